"""What autocast makes of the inputs of a call: the policies that ops and compositions declare.

``"low"``, ``"float32"``, ``"promote"``, ``"keep"`` (a composition computes in the dtypes of its
inputs), or a dict of these by device type. A region sets ``State.autocast`` of its thread
(``framework/amp/autocast.py``); the dispatcher and compositions look at it. The dispatcher imports
this file, and the registry decorates compositions with :func:`casts`, so it lies below both.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from ..dtypes import bfloat16, dtype, float16, float32
from ..modes import local
from ..tensor import Tensor
from .templates import compiled, passed

LOW = (bfloat16, float16)
WIDE_ON_CUDA = {"cuda": "float32"}  # of ops that PyTorch lists for one device
WIDE_ON_CPU = {"cpu": "float32"}
_LIKE: dict[Any, str] = {"sim": "cuda", "meta": "cpu"}  # devices that policies do not name


class _Thread(threading.local):
    """What a thread was told, whether or not it is inside a region."""

    def __init__(self) -> None:
        self.dtypes = {"cpu": bfloat16, "cuda": float16, "sim": float16, "meta": bfloat16}
        self.cache: dict[tuple[int, dtype], tuple[Any, Any, int]] = {}
        self.caching = True
        self.nesting = 0


thread = _Thread()


def casts(policy: Any) -> Callable[[Any], Any]:
    """Declare what autocast does to a composition: as ``autocast=`` of an op does.

    The composition runs on converted arguments, and the ops inside without autocast. The result is
    a function of the same signature that looks whether the thread is inside a region.

    Args:
        policy: "low", "float32", "promote", "keep", or a dict of these by device type.
    """

    def declare(function: Any) -> Any:
        def casting(*args: Any, **kwargs: Any) -> Any:
            state = local.state
            mapping = state.autocast
            assert mapping is not None
            values = (*args, *kwargs.values())
            kind, _ = _region(values, mapping)
            if isinstance(policy, dict) and kind not in policy:
                return function(*args, **kwargs)  # a device it says nothing of
            found = converted(function.__name__, policy, values, mapping)
            named = dict(zip(kwargs, found[len(args) :], strict=True))
            state.autocast = None
            try:
                return function(*found[: len(args)], **named)
            finally:
                state.autocast = mapping

        names = {"_function": function, "_casting": casting, "_local": local}
        parameters = inspect.signature(function).parameters.values()
        chosen = "_function if _local.state.autocast is None else _casting"
        body = f"return ({chosen})({passed(parameters)})"
        call = compiled("call", parameters, body, names, f"<function {function.__name__}>")
        return functools.wraps(function)(call)

    return declare


def cast_call(
    op: Any, inputs: tuple[Any, ...], attributes: tuple[Any, ...], mapping: dict[str, dtype]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Inputs and attributes of an op's call as its policy wants them; of converted ones, the same.

    Args:
        op: Declares a policy.
        inputs: Tensors and scalars.
        attributes: In the order in which the op declares them.
        mapping: Dtypes of the region by device type.
    """
    found = converted(op.display_name, op.autocast, inputs, mapping)
    if found is not inputs and "dtype" in op.attributes:  # the result's, of the input as it was
        k = list(op.attributes).index("dtype")
        if attributes[k] is inputs[0].dtype:
            attributes = (*attributes[:k], found[0].dtype, *attributes[k + 1 :])
    return found, attributes


def converted(
    name: str, policy: Any, inputs: tuple[Any, ...], mapping: dict[str, dtype]
) -> tuple[Any, ...]:
    """Inputs as the policy wants them: float tensors of the region's device, never float64."""
    kind, low = _region(inputs, mapping)
    if low is None:
        return inputs
    if isinstance(policy, dict):
        policy = policy.get(kind)
    if policy is None or policy == "keep":
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


def _region(inputs: tuple[Any, ...], mapping: dict[str, dtype]) -> tuple[Any, dtype | None]:
    # The kind of device that a policy names for the inputs, and the region's dtype there, or None.
    kind = next((x.device.type for x in inputs if isinstance(x, Tensor)), None)
    if kind == "meta" and kind not in mapping:
        kind = next(reversed(mapping))
    low = None if kind is None else mapping.get(kind)
    return _LIKE.get(kind, kind), low


def eligible(x: Any) -> bool:
    """True for tensors that are converted: float32 and narrower floats, never float64."""
    return isinstance(x, Tensor) and (x.dtype is float32 or x.dtype.is_narrow)


def _cast(x: Any, wanted: dtype) -> Any:
    if x.dtype is wanted:
        return x
    if not (
        thread.caching
        and wanted is not float32
        and x._requires_grad
        and x.is_leaf
        and x._viewed is None
    ):
        return x.to(wanted)
    key = (id(x), wanted)
    found = thread.cache.get(key)
    if found is not None:
        source, cast, version = found
        recorded = cast._requires_grad or not local.state.grad
        if source is x and version == x._storage.version and recorded:
            return cast
    cast = x.to(wanted)
    thread.cache[key] = (x, cast, x._storage.version)
    return cast
