"""Automatic mixed precision: ``autocast`` converts inputs of ops that say so in their declaration.

An op declares ``autocast="low"`` (products: run in bfloat16 or float16), ``"float32"`` (losses,
sums over many terms: run in float32) or ``"promote"`` (run in the widest type of its inputs), or a
dict of these by device type, where PyTorch's lists differ; a composition is decorated with
:func:`casts`. Everything else runs in the types it is given.

While no thread is inside an autocast region, an op's function calls the dispatcher directly, and
mixed precision costs nothing. The first region patches the functions of the ops that declare
something: their global name ``dispatch`` then leads through a function that converts the inputs.
The last region restores them. The dispatcher itself knows nothing of this.

Conversions are recorded ops, so gradients arrive in the types of what was converted: float32
weights have float32 gradients. A converted leaf that requires grad is kept until the outermost
region ends, and converted again if it was written or recording is on now and was off then. Backward
runs without autocast: it uses the types of the forward.

Differences from PyTorch: tensors on meta follow the region that was entered last, so that bytes can
be foretold; float16 on the CPU and all listed ops compute in float32 inside and round once; ops of
PyTorch's lists that only move, pad or pool values are not listed here. The CPU has no faster
bfloat16 product: what mixed precision saves there is memory.
"""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable
from typing import Any, Self

from ..dtypes import bfloat16, dtype, float16, float32
from ..interrupts import WholeContext
from ..modes import local
from ..tensor import Tensor

DEVICE_TYPES = ("cpu", "cuda", "sim", "meta")
LOW = (bfloat16, float16)

_lock = threading.Lock()
_regions = 0  # threads that are inside one
_unpatched: dict[Any, dict[str, Any]] = {}  # while patched: what each op's function called
_compositions: list[tuple[dict[str, Any], Any, Any]] = []  # (globals, function, casting function)


class _Thread(threading.local):
    """What a thread was told, whether or not it is inside a region."""

    def __init__(self) -> None:
        self.dtypes = {"cpu": bfloat16, "cuda": float16, "sim": float16, "meta": bfloat16}
        self.cache: dict[tuple[int, dtype], tuple[Any, Any, int]] = {}
        self.caching = True
        self.nesting = 0


_thread = _Thread()


class autocast(WholeContext):
    """Run listed ops in lower precision inside; a context manager and a decorator.

    Args:
        device_type: "cpu" or "cuda": whose ops.
        dtype: bfloat16 or float16; default: bfloat16 on the CPU, float16 on cuda.
        enabled: False turns it off inside.
        cache_enabled: Keep converted weights until the outermost region ends.

    Raises:
        ValueError: ``device_type`` is no string.
        RuntimeError: There is no such device type.

    Example:
        >>> import lowtide as lt
        >>> a, b = lt.ones(2, 2), lt.ones(2, 2)
        >>> with lt.autocast("cpu"):
        ...     c = a @ b
        >>> c.dtype
        lowtide.bfloat16
    """

    def __init__(
        self,
        device_type: str,
        dtype: dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        self.device = checked(device_type)
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else dtype
        if enabled and self.fast_dtype not in LOW:
            warnings.warn(
                f"In {device_type.upper()} autocast, but the target dtype is not supported. "
                f"Disabling autocast. It supports {', '.join(map(str, LOW))}; got "
                f"{self.fast_dtype}.",
                UserWarning,
                stacklevel=2,
            )
            enabled = False
        if enabled and device_type == "cuda" and not _has_cuda():
            warnings.warn(
                "User provided device_type of 'cuda', but CUDA is not available. Disabling "
                "autocast.",
                UserWarning,
                stacklevel=2,
            )
            enabled = False
        self._enabled = bool(enabled)
        self._cache_enabled = cache_enabled
        self._before: list[Any] = []  # a stack: one object may be entered again inside itself

    def _enter(self) -> Self:
        self._before.append((local.state.autocast, _thread.dtypes[self.device], _thread.caching))
        _thread.dtypes[self.device] = self.fast_dtype
        if self._cache_enabled is not None:
            _thread.caching = self._cache_enabled
        autocast_increment_nesting()
        set_autocast_enabled(self.device, self._enabled)
        return self

    def _leave(self) -> None:
        mapping, _thread.dtypes[self.device], _thread.caching = self._before.pop()
        if autocast_decrement_nesting() == 0:
            clear_autocast_cache()
        _switch(mapping)

    def __call__(self, function: Any) -> Any:
        """Decorate a function: each call is a region."""
        if not callable(function):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(function).__name__}. Did "
                "you mean `with lowtide.autocast(device_type):`?"
            )

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return inside


# What a thread's region is: a dict of dtypes by device type, or None; never changed, only replaced


def _switch(mapping: dict[str, dtype] | None) -> None:
    global _regions
    state = local.state
    before, state.autocast = state.autocast, mapping
    if (before is None) != (mapping is None):
        with _lock:
            _regions += 1 if before is None else -1
            if _regions == 1 and before is None:
                _patch_dispatch()
            elif _regions == 0:
                _restore_dispatch()


def _patch_dispatch() -> None:
    from ..ops.registry import OPS

    for op in OPS.values():
        if op.autocast is not None and op.function is not None:
            names = op.function.__globals__
            _unpatched[op] = {n: names[n] for n in ("dispatch", "dispatch_pair")}
            names["dispatch"], names["dispatch_pair"] = _dispatch, _dispatch_pair
    for names, _, casting in _compositions:
        names["run"] = casting


def _restore_dispatch() -> None:
    for op, names in _unpatched.items():
        op.function.__globals__.update(names)
    _unpatched.clear()
    for names, function, _ in _compositions:
        names["run"] = function


def _dispatch(op: Any, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
    from ..ops.dispatch import dispatch

    mapping = local.state.autocast
    if mapping is not None:
        found = _converted(op.shown, op.autocast, inputs, mapping)
        if found is not inputs and "dtype" in op.attributes:  # the result's, of the input as it was
            k = list(op.attributes).index("dtype")
            if attributes[k] is inputs[0].dtype:
                attributes = (*attributes[:k], found[0].dtype, *attributes[k + 1 :])
        inputs = found
    return dispatch(op, inputs, attributes)


def _dispatch_pair(op: Any, a: Any, b: Any) -> Any:
    return _dispatch(op, (a, b), ())


def casts(policy: Any) -> Callable[[Any], Any]:
    """Declare what autocast does to a composition: as ``autocast=`` of an op does.

    The composition runs on converted arguments, and the ops inside without autocast. It is
    patched too: the result is a function of the same signature that calls its global name ``run``.

    Args:
        policy: "low", "float32", "promote", or a dict of these by device type.
    """

    def declare(function: Any) -> Any:
        def casting(*args: Any, **kwargs: Any) -> Any:
            state = local.state
            mapping = state.autocast
            if mapping is None:
                return function(*args, **kwargs)
            values = (*args, *kwargs.values())
            found = _converted(function.__name__, policy, values, mapping)
            if found is values and isinstance(policy, dict):
                return function(*args, **kwargs)  # a device it says nothing of
            named = dict(zip(kwargs, found[len(args) :], strict=True))
            state.autocast = None
            try:
                return function(*found[: len(args)], **named)
            finally:
                state.autocast = mapping

        names = _passing(function)
        _compositions.append((names, function, casting))
        if _regions:  # declared inside a region
            names["run"] = casting
        return functools.wraps(function)(names["call"])

    return declare


def _passing(function: Any) -> dict[str, Any]:
    """The globals of ``call``, which has a function's signature and passes all on to ``run``."""
    head, passed, names = [], [], {"run": function}
    for n, p in inspect.signature(function).parameters.items():
        if p.kind is p.KEYWORD_ONLY and "*" not in head:
            head.append("*")
        if p.default is not p.empty:
            names[f"_d_{n}"] = p.default
        head.append(n if p.default is p.empty else f"{n}=_d_{n}")
        passed.append(f"{n}={n}" if p.kind is p.KEYWORD_ONLY else n)
    source = f"def call({', '.join(head)}):\n    return run({', '.join(passed)})\n"
    exec(compile(source, f"<function {function.__name__}>", "exec"), names)
    return names


def _converted(
    name: str, policy: Any, inputs: tuple[Any, ...], mapping: dict[str, dtype]
) -> tuple[Any, ...]:
    """Inputs as the policy wants them: float tensors of the region's device, never float64."""
    kind = next((x.device.type for x in inputs if isinstance(x, Tensor)), None)
    if kind == "meta" and kind not in mapping:
        kind = next(reversed(mapping))
    low = mapping.get(kind) if kind is not None else None
    if low is None:
        return inputs
    if isinstance(policy, dict):
        policy = policy.get("cuda" if kind == "sim" else kind)
        if policy is None:
            return inputs
    if policy == "refuse":
        raise RuntimeError(
            f"{name} and lowtide.nn.BCELoss are unsafe to autocast: a probability in lower "
            "precision may be 0 or 1. Combine the sigmoid with the loss by "
            "binary_cross_entropy_with_logits or BCEWithLogitsLoss."
        )
    wanted = low if policy == "low" else float32
    if policy == "promote" and not any(
        isinstance(x, Tensor) and x.dtype is float32 for x in inputs
    ):
        return inputs
    return tuple(_cast(x, wanted) if eligible(x) else x for x in inputs)


def eligible(x: Any) -> bool:
    """True for tensors that are converted: float32 and half precision, never float64."""
    return isinstance(x, Tensor) and (x.dtype is float32 or x.dtype in LOW)


def _cast(x: Any, wanted: dtype) -> Any:
    if x.dtype is wanted:
        return x
    if not (
        _thread.caching and wanted is not float32 and x._requires_grad and x.is_leaf
        and x._viewed is None
    ):  # fmt: skip
        return x.to(wanted)
    key = (id(x), wanted)
    found = _thread.cache.get(key)
    if found is not None:
        source, cast, version = found
        recorded = cast._requires_grad or not local.state.grad
        if source is x and version == x._storage.version and recorded:
            return cast
    cast = x.to(wanted)
    _thread.cache[key] = (x, cast, x._storage.version)
    return cast


# PyTorch's functions around it


def _has_cuda() -> bool:
    from ..devices.cuda import device_count

    return device_count() > 0


def checked(device_type: Any) -> str:
    """A device type that autocast knows.

    Raises:
        ValueError: It is no string.
        RuntimeError: Autocast does not know it.
    """
    if not isinstance(device_type, str):
        raise ValueError(
            f"Expected `device_type` of type `str`, got: `{type(device_type)}`. Pass 'cpu' or "
            "'cuda'."
        )
    if device_type not in DEVICE_TYPES:
        raise RuntimeError(
            f"User specified an unsupported autocast device_type '{device_type}'. "
            f"Use one of {', '.join(DEVICE_TYPES)}."
        )
    return device_type


def is_autocast_available(device_type: str) -> bool:
    """True for device types that autocast knows."""
    return device_type in DEVICE_TYPES


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """True inside a region for that device type."""
    return checked(device_type) in (local.state.autocast or {})


def set_autocast_enabled(device_type: Any, enabled: bool | None = None) -> None:
    """Turn autocast on or off for a device type; prefer ``with autocast``."""
    if enabled is None:  # PyTorch's older form, for cuda
        device_type, enabled = "cuda", device_type
    mapping = dict(local.state.autocast or {})
    mapping.pop(checked(device_type), None)
    if enabled:
        mapping[device_type] = _thread.dtypes[device_type]
    _switch(mapping or None)


def get_autocast_dtype(device_type: str) -> dtype:
    """What ``autocast(device_type)`` computes in."""
    return _thread.dtypes[checked(device_type)]


def set_autocast_dtype(device_type: str, dtype: dtype) -> None:
    """Set what ``autocast(device_type)`` computes in, also in a region that is open."""
    _thread.dtypes[checked(device_type)] = dtype
    if is_autocast_enabled(device_type):
        local.state.autocast = {**(local.state.autocast or {}), device_type: dtype}


def is_autocast_cache_enabled() -> bool:
    """True if converted weights are kept inside a region."""
    return _thread.caching


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Say whether converted weights are kept inside a region."""
    _thread.caching = bool(enabled)


def clear_autocast_cache() -> None:
    """Drop the converted weights."""
    _thread.cache.clear()


def autocast_increment_nesting() -> int:
    """Count a region that begins; return how many there are."""
    _thread.nesting += 1
    return _thread.nesting


def autocast_decrement_nesting() -> int:
    """Count a region that ends; return how many are left."""
    _thread.nesting -= 1
    return _thread.nesting
