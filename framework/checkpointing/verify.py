"""Verification of checkpointing: compare a plain and a checkpointed run bit by bit.

:func:`verify` runs a function plainly and in a checkpointed region, from the same state: the same
random streams, the same values of buffers, arguments and gradients. Then it compares what came out,
the gradients, the buffers and the random streams. It puts everything back as it was.

Values are compared by their bytes: a NaN equals itself, and -0.0 does not equal 0.0.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..autograd.engine import grad
from ..devices import backend, live_backends
from ..errors import CheckpointError
from ..memory.ledger import SAVED, format_bytes
from ..modes import enable_grad, no_grad
from ..ops.creation.fill import ones_like
from ..ops.random.draw import randn
from ..random.generator import Generator, generators_in_use
from ..tensor import Tensor
from .regions import checkpointing

_GRADIENT = "gradient of "
_SEED = 20121  # of the gradients that arrive at results that are no scalars


@dataclass(frozen=True)
class Difference:
    """A value that differs between the two runs.

    Attributes:
        name: Such as ``gradient of blocks.0.weight``.
        what: What differs, in words.
        error: The norm of the difference; NaN if there is none.
    """

    name: str
    what: str
    error: float

    def __str__(self) -> str:
        return f"{self.name} {self.what}"


@dataclass(frozen=True)
class Figures:
    """Peak memory of one run, summed over devices, above what was allocated before.

    Attributes:
        peak_bytes: The most that lived at a time.
        saved_bytes: What the graph held for backward after the forward.
    """

    peak_bytes: int
    saved_bytes: int


@dataclass(frozen=True)
class Verification:
    """The result of :func:`verify`.

    Attributes:
        plain: Memory of the plain run.
        checkpointed: Memory of the checkpointed run.
        compared: Names of the values that were compared.
        differences: Those that differ.
        gradient_norm: The norm of all gradients of the plain run together.
    """

    plain: Figures
    checkpointed: Figures
    compared: tuple[str, ...]
    differences: tuple[Difference, ...]
    gradient_norm: float

    @property
    def equal(self) -> bool:
        """True if no value differs."""
        return not self.differences

    @property
    def gradient_error(self) -> float:
        """The norm of the gradients' difference over the norm of the gradients.

        This is what lossy packing costs; 0.0 where every gradient is equal.
        """
        error = math.hypot(*(d.error for d in self.differences if d.name.startswith(_GRADIENT)))
        return error / self.gradient_norm if error else 0.0

    def __str__(self) -> str:
        rows = [
            f"{name} {format_bytes(before)} plain, {format_bytes(after)} checkpointed"
            for name, before, after in (
                ("peak", self.plain.peak_bytes, self.checkpointed.peak_bytes),
                ("saved", self.plain.saved_bytes, self.checkpointed.saved_bytes),
            )
        ]
        if self.equal:
            return f"{len(self.compared)} values equal bit for bit; {'; '.join(rows)}"
        first = self.differences[0]
        return (
            f"{len(self.differences)} of {len(self.compared)} values differ, first {first}; "
            f"{'; '.join(rows)}"
        )


def verify(
    function: Callable[..., Any],
    /,
    *args: Any,
    policy: Any = None,
    strict: bool = True,
    **kwargs: Any,
) -> Verification:
    """Run ``function`` with and without checkpointing, and compare all results bit by bit.

    Compared are the results (tensors in tuples, lists, mappings and dataclasses), the gradients of
    arguments and of all parameters and leaves that the function can reach (as a module, a bound
    method, a ``partial``, through its closure or its globals), the buffers of such modules, and the
    random generators. Gradients of what is no scalar start from fixed random values.

    Args:
        function: A module or a function. Called twice, with copies of the tensors in ``args`` and
            ``kwargs``; random streams, buffers and parameters begin alike and are put back after.
        args: Its arguments.
        policy: Of the region.
        strict: Raise if anything differs; else only report it.
        kwargs: Its keyword arguments.

    Returns:
        What was compared, what differs, and the memory of both runs.

    Raises:
        CheckpointError: Something differs.
        TypeError: The function returns no tensors: there is nothing to compare.

    Example:
        >>> import lowtide as lt
        >>> block = lt.nn.Sequential(lt.nn.Linear(64, 64), lt.nn.GELU(), lt.nn.Dropout(0.1))
        >>> report = lt.checkpointing.verify(block, lt.ones(32, 64))
        >>> report.equal
        True
        >>> report.checkpointed.saved_bytes < report.plain.saved_bytes
        True
    """
    reached = _ReachableState(function, args, kwargs)
    before = reached.state()
    try:
        plain, plainly = _run(function, args, kwargs, reached, None)
        reached.restore(before)
        other, figures = _run(function, args, kwargs, reached, checkpointing(policy))
    finally:
        reached.restore(before)
    differences = tuple(_differences(plain, other))
    norm = math.hypot(*(_norm(v.array) for n, v in plain.items() if v and n.startswith(_GRADIENT)))
    found = Verification(plainly, figures, tuple(plain), differences, norm)
    if strict and differences:
        raise CheckpointError(
            f"checkpointing changed {len(differences)} of {len(plain)} values, first "
            f"{differences[0]}. A function must do the same when called twice; if it does, and the "
            "policy loses nothing, this is a bug of lowtide. strict=False reports all differences."
        )
    return found


class _ReachableState:
    """Modules, parameters and leaves that a call can reach, and their state.

    Attributes:
        leaves: Tensors that get gradients, by name.
        buffers: Buffers of modules, by name.
        generators: Random generators of the program's own.
    """

    def __init__(self, function: Any, args: Any, kwargs: Any) -> None:
        self.leaves: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self.generators: list[Generator] = []
        self._seen: set[int] = set()
        self._visit(function, "")
        self._seen.update(id(t) for _, t in _tensors((args, kwargs), ""))  # those are copied
        for value in (*args, *kwargs.values()):
            self._visit(value, "")

    def _visit(self, value: Any, name: str) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            if value.requires_grad and value.grad_fn is None:
                self.leaves[name or f"leaf {len(self.leaves)}"] = value
        elif hasattr(value, "named_parameters") and hasattr(value, "named_buffers"):
            prefix = f"{name}." if name else ""
            for n, p in value.named_parameters():
                self._visit(p, prefix + n)
            for n, b in value.named_buffers():
                if id(b) not in self._seen:
                    self._seen.add(id(b))
                    self.buffers[prefix + n] = b
        elif isinstance(value, Generator):
            self.generators.append(value)
        elif parts := _parts(value):
            for _, n, v in parts:
                self._visit(v, name + n if name else "")
        else:
            self._visit_callable(value, name)

    def _visit_callable(self, value: Any, name: str) -> None:
        if isinstance(value, functools.partial):
            for v in (value.func, *value.args, *value.keywords.values()):
                self._visit(v, "")
        elif inspect.ismethod(value):
            self._visit(value.__self__, name)
            self._visit(value.__func__, "")
        elif inspect.isfunction(value) and not _ours(value):
            found = inspect.getclosurevars(value)
            for n, v in {**found.globals, **found.nonlocals}.items():
                if not inspect.ismodule(v) and not inspect.isclass(v):
                    self._visit(v, n)

    def state(self) -> Any:
        """Return what a run may change: random streams, values of buffers and leaves."""
        tensors = [*self.leaves.values(), *self.buffers.values()]
        values = [t.detach().clone() for t in tensors]
        return tensors, values, [(g, g.get_state()) for g in self.all_generators()]

    def restore(self, state: Any) -> None:
        """Restore the state."""
        tensors, values, generators = state
        with no_grad():
            for t, v in zip(tensors, values, strict=True):
                if _bits(t) != _bits(v):
                    t.copy_(v)
        known = dict(generators)
        for g in self.all_generators():
            if g in known:
                g.set_state(known[g])
            else:  # a device's, first asked for in a run
                g.manual_seed(g.initial_seed())

    def all_generators(self) -> list[Generator]:
        """Return the generators of devices, and the program's own."""
        return [*generators_in_use().values(), *self.generators]


def _ours(function: Any) -> bool:
    return bool(function.__module__.split(".")[0] == __name__.split(".")[0])


def _run(
    function: Any, args: Any, kwargs: Any, reached: _ReachableState, region: Any
) -> tuple[dict[str, _Copy | None], Figures]:
    # (values by name, figures) of one run.
    copies: dict[int, Tensor] = {}
    leaves: dict[str, Tensor] = {}
    args = tuple(_copied(a, f"args[{k}]", copies, leaves) for k, a in enumerate(args))
    kwargs = {k: _copied(a, k, copies, leaves) for k, a in kwargs.items()}
    leaves |= reached.leaves
    with _LiveBytesMeter() as meter, enable_grad():
        if region is None:
            output = function(*args, **kwargs)
        else:
            with region:
                output = function(*args, **kwargs)
        meter.after_forward()
        results = dict(_tensors(output, "output"))
        if not results:
            raise TypeError(
                "verify compares the tensors that a function returns, in tuples, lists, mappings "
                f"and dataclasses; in {type(output).__name__} it found none. Return them."
            )
        del output
        values: dict[str, _Copy | None] = {n: _kept(t) for n, t in results.items()}
        roots = [t for t in results.values() if t.requires_grad]
        results.clear()
        gradients: Any = [None] * len(leaves)
        if roots and leaves:
            starts = [_start(t) for t in roots]
            gradients = grad(roots, list(leaves.values()), starts, allow_unused=True)
        del roots
    for name, g in zip(leaves, gradients, strict=True):
        values[_GRADIENT + name] = None if g is None else _kept(g)
    for name, t in reached.buffers.items():
        values[f"buffer {name}"] = _kept(t)
    for name, t in reached.leaves.items():
        values[f"value of {name}"] = _kept(t)
    for k, g in enumerate(reached.all_generators()):
        values[f"generator {k} of {g.device}"] = _kept(g.get_state())
    return values, meter.figures


def _copied(value: Any, name: str, copies: dict[int, Tensor], leaves: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        found = copies.get(id(value))
        if found is None:
            found = copies[id(value)] = value.detach().clone()
            if value.requires_grad:
                leaves[name] = found.requires_grad_()
        return found
    parts = {k: (n, _copied(v, name + n, copies, leaves)) for k, n, v in _parts(value)}
    if isinstance(value, tuple):
        inner = [v for _, v in parts.values()]
        return value._make(inner) if hasattr(value, "_make") else type(value)(inner)
    if not parts or not any(True for _ in _tensors(value, name)):
        return value
    made = copy.copy(value)
    for k, (n, v) in parts.items():
        if n[0] == ".":
            object.__setattr__(made, k, v)  # a frozen dataclass too
        else:
            made[k] = v
    return made


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    for _, n, v in _parts(value):
        yield from _tensors(v, name + n)


def _parts(value: Any) -> list[tuple[Any, str, Any]]:
    # (key, how it is written, value) of what a container holds.
    if isinstance(value, list | tuple):
        return [(k, f"[{k}]", v) for k, v in enumerate(value)]
    if isinstance(value, Mapping):
        return [(k, f"[{k!r}]", v) for k, v in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
        return [(n, f".{n}", getattr(value, n)) for n in fields]
    return []


def _start(root: Tensor) -> Any:
    if root.numel() == 1 or root.is_meta or not root.is_floating_point():
        return ones_like(root)
    generator = Generator().manual_seed(_SEED)
    return randn(root.shape, generator=generator).to(root.device, root.dtype)


@dataclass(frozen=True)
class _Copy:
    # A value on the host, off the ledger.
    shape: tuple[int, ...]
    dtype: Any
    array: Any  # None on meta


def _kept(t: Tensor) -> _Copy:
    array = None if t.is_meta else np.array(backend(t.device).to_host(t._array))
    return _Copy(tuple(t.shape), t.dtype, array)


def _bits(t: Tensor) -> bytes:
    return b"" if t.is_meta else np.asarray(backend(t.device).to_host(t._array)).tobytes()


def _differences(plain: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
    for name in [*plain, *(n for n in other if n not in plain)]:
        a, b = plain.get(name), other.get(name)
        if a is None or b is None:
            if a is not b:
                where = "plain" if a is None else "checkpointed"
                yield Difference(name, f"is missing {where}", math.nan)
        elif (a.shape, a.dtype) != (b.shape, b.dtype):
            what = f"has shape {a.shape} and {a.dtype} plain, {b.shape} and {b.dtype} checkpointed"
            yield Difference(name, what, math.nan)
        elif a.array is not None and a.array.tobytes() != b.array.tobytes():
            yield _difference(name, a.array, b.array)


def _difference(name: str, a: Any, b: Any) -> Difference:
    with np.errstate(all="ignore"):
        x, y = _wide(a), _wide(b)
        error = _norm(y - x)
    unequal = np.array([p != q for p, q in zip(_items(a), _items(b), strict=True)])
    place = int(unequal.argmax())
    index = tuple(int(k) for k in np.unravel_index(place, a.shape)) if a.ndim else ()
    what = (
        f"(shape {a.shape}) differs in {int(unequal.sum())} of {a.size} elements, by {error:.3g} "
        f"in norm; first at {index}: {x.flat[place]} plain, {y.flat[place]} checkpointed"
    )
    return Difference(name, what, error)


def _wide(a: Any) -> Any:
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def _norm(a: Any) -> float:
    return 0.0 if a is None else float(np.linalg.norm(_wide(a)))


def _items(a: Any) -> Any:
    return np.ascontiguousarray(a).reshape(-1).view(f"V{a.dtype.itemsize}").tolist()


class _LiveBytesMeter:
    """Measures live bytes over a block of code, without resetting the ledgers' peaks."""

    figures: Figures

    def __enter__(self) -> _LiveBytesMeter:
        self._before: dict[Any, Any] = {}
        self._saved = 0
        for be in live_backends():
            ledger = be.ledger
            saved, highest = ledger.roles[SAVED], (ledger.peak, ledger.peak_roles)
            self._before[ledger] = (ledger.live, saved, *highest)
            ledger.reset_peak()
        return self

    def after_forward(self) -> None:
        """Record the bytes that the graph holds."""
        for be in live_backends():
            self._saved += be.ledger.roles[SAVED] - self._before.get(be.ledger, (0, 0))[1]

    def __exit__(self, *exc: object) -> None:
        peak = 0
        for be in live_backends():
            ledger = be.ledger
            live, _, highest, roles = self._before.get(ledger, (0, 0, 0, ledger.roles[:]))
            peak += ledger.peak - live
            if highest > ledger.peak:
                ledger.peak, ledger.peak_roles = highest, roles
        self.figures = Figures(peak, self._saved)


__all__ = ["Difference", "Figures", "Verification", "verify"]
