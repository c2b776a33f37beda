"""Tests generated from op declarations: samples, poisoned memory, comparison.

The generated tests (``tests/ops/test_generated.py``) are these functions applied to every op of
the registry and every sample it declares. They are public so that an op declared outside lowtide
can be held to the same contract.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from math import prod
from typing import Any

import numpy as np

from .autograd.engine import grad
from .autograd.saved import Held
from .device import device as as_device
from .devices import backend
from .dtypes import dtype, float32, float64, tolerance
from .modes import enable_grad, no_grad
from .ops import registry
from .ops.creation.from_data import tensor
from .ops.registry import Op
from .tensor import Tensor

LARGEST = 1 << 19  # elements of a scaled sample's largest tensor


class Make:
    """Builds the tensors of samples: ``make(3, 4)``.

    Args:
        dtype: Of the tensors.
        seed: Of their values, which lie in (-2, 2) and keep away from 0 and the integers, where
            many functions have kinks.
        scale: Every size above 1 is multiplied by it, for tests that need large operands.
    """

    def __init__(self, dtype: dtype = float64, seed: int = 0, scale: int = 1) -> None:
        self.dtype = dtype
        self.scale = scale
        self._random = np.random.default_rng(seed)

    def __call__(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Tensor:
        """Return a leaf tensor with random values in (low, high)."""
        if self.scale > 1:
            shape = tuple(n * self.scale if n > 1 else n for n in shape)
            if prod(shape) > LARGEST:
                raise OverflowError(f"a sample of shape {shape}; take a smaller scale")
        values = self._random.uniform(low, high, shape)
        near = np.abs(values - np.round(values)) < 0.05
        values = np.where(near, values + 0.1 * (high - low) / 4, values)
        return tensor(values, dtype=self.dtype)  # type: ignore[no-any-return]


def samples(op: Op, make: Make) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the declared samples of an op, as (inputs, attributes)."""
    if op.samples is None:
        return []
    with no_grad():
        return [(tuple(inputs), dict(attributes)) for inputs, attributes in op.samples(make)]


def sample_ids() -> list[tuple[str, int]]:
    """List (op name, sample number) of all registered ops."""
    return [(n, k) for n, op in registry.OPS.items() for k in range(len(samples(op, Make())))]


def describe(inputs: tuple[Any, ...], attributes: dict[str, Any]) -> str:
    """Describe a sample: dtypes and shapes of its tensors, other inputs, attributes."""

    def word(value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{value.dtype.name}{list(value.shape)}"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(word, value))}]"
        return repr(value)

    return ", ".join([*map(word, inputs), *(f"{k}={word(v)}" for k, v in attributes.items())])


def place(inputs: tuple[Any, ...], where: Any = "cpu", op: Op | None = None) -> list[Any]:
    """Create fresh leaves on a device with the values of ``inputs``; scalars stay.

    Those for which ``op`` has a gradient rule require grad.
    """
    out: list[Any] = []
    for x in inputs:
        out.append(x.detach().to(as_device(where), copy=True) if isinstance(x, Tensor) else x)
    for x in () if op is None else differentiable(op, out):
        x.requires_grad_()
    return out


def call(op: Op, inputs: Any, attributes: dict[str, Any]) -> tuple[Tensor, ...]:
    """Run an op and return a tuple of results."""
    out = op.function(*inputs, **attributes)
    return (out,) if isinstance(out, Tensor) else tuple(out)


def differentiable(op: Op, inputs: Any) -> list[Tensor]:
    """Return the inputs that can require grad and have a gradient rule."""
    names = op.names_of(len(inputs))
    ruled = {n for rule in op.rules for n in rule.inputs}
    return [
        x
        for n, x in zip(names, inputs, strict=True)
        if isinstance(x, Tensor) and x.dtype.is_differentiable and n in ruled
    ]


def _directions(tensors: Any, seed: int) -> list[Tensor]:
    random = np.random.default_rng(seed)
    made = []
    for t in tensors:
        v = random.standard_normal(tuple(t.shape))
        if t.dtype.is_complex:
            v = v + 1j * random.standard_normal(tuple(t.shape))
        made.append(tensor(v, dtype=t.dtype, device=t.device))
    return made


def _dot(a: Any, b: Any) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        if x is not None and x.numel():
            total += float(np.sum(np.real(np.conj(_values(x)) * _values(y))))
    return total


def _values(t: Tensor) -> Any:
    t = t.detach().to_dense()
    return np.asarray(backend(t.device).to_host(t.array))


def check_gradient(function: Any, inputs: list[Tensor], eps: float = 1e-6) -> None:
    """Compare ``<vjp(u), v>`` with a central difference of ``<u, f>`` along a random ``v``.

    One direction, in float64: no Jacobian is built. ``function`` maps the list of inputs to a
    tuple of tensors.

    Raises:
        AssertionError: They differ by more than the difference quotient's own error.
    """
    outputs = [o for o in function(inputs) if o.requires_grad]
    if not outputs or not inputs:
        return
    u = _directions(outputs, 1)
    v = _directions(inputs, 2)
    gradients = grad(outputs, inputs, u, allow_unused=True, retain_graph=True)
    analytic = _dot(gradients, v)
    keep = [o.requires_grad for o in function(inputs)]

    def moved(sign: float) -> float:
        with no_grad():
            there = [(x + d * (sign * eps)) for x, d in zip(inputs, v, strict=True)]
        for t in there:
            t.requires_grad_()
        with enable_grad():
            found = [o for o, k in zip(function(there), keep, strict=True) if k]
        return _dot(u, found)

    numeric = (moved(1.0) - moved(-1.0)) / (2 * eps)
    scale = max(1.0, abs(analytic), abs(numeric))
    assert abs(analytic - numeric) <= 1e-5 * scale, (
        f"vjp gives {analytic:.10g} along a random direction, finite differences {numeric:.10g}"
    )


def check_second_gradient(function: Any, inputs: list[Tensor]) -> None:
    """Run :func:`check_gradient` on the gradient itself, with the cotangent as an input."""
    outputs = [o for o in function(inputs) if o.requires_grad]
    if not outputs or not inputs:
        return
    cotangents = [u.requires_grad_() for u in _directions(outputs, 3)]
    count = len(inputs)

    def gradient(all_inputs: list[Tensor]) -> tuple[Tensor, ...]:
        xs, us = all_inputs[:count], all_inputs[count:]
        outs = [o for o in function(xs) if o.requires_grad]
        found = grad(outs, xs, us, create_graph=True, allow_unused=True, materialize_grads=True)
        return tuple(g.to_dense() for g in found if g is not None)

    check_gradient(gradient, [*inputs, *cotangents], eps=1e-6)


@contextmanager
def poisoned(where: Any = "cpu", byte: int = 0xFF) -> Iterator[None]:
    """Fill all memory from the pool with a byte; ones in every bit are NaN, -1, True."""
    be: Any = backend(as_device(where))
    plain = type(be).empty

    def empty(spec: Any, role: int = 0) -> Any:
        storage, array = plain(be, spec, role)
        if storage.nbytes:
            np.ndarray.__setitem__(storage.view(np.ndarray), slice(None), byte)
        return storage, array

    be.empty = empty
    # Plans hold the backend, not its method: they see the poison at once.
    try:
        yield
    finally:
        del be.empty


def scaled_sample(op: Op, number: int) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Scale one declared sample up as far as :data:`LARGEST` allows.

    Returns:
        (inputs, attributes), or None where nothing larger than the declared sample is valid: an
        attribute or an index ties its sizes, or it has no elements.
    """
    declared = _at_scale(op, number, 1)[0]
    if any(isinstance(x, Tensor) and not x.numel() for x in declared):
        return None
    scale = float(LARGEST)
    while scale >= 2:
        try:
            found = _at_scale(op, number, int(scale))
            if _size(op, *found) <= LARGEST:
                # On sim plain kernels run, which check sizes; compiled ones trust them.
                call(op, place(found[0], "sim"), found[1])
                return found
        except (OverflowError, MemoryError):
            pass
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None
        scale *= 0.8
    return None


def _at_scale(op: Op, number: int, scale: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    make = Make(float32)
    # Closed in here: a generator that stops inside no_grad() leaves it when it ends.
    with no_grad(), closing(op.samples(make)) as declared:
        for _ in range(number):
            next(declared)
        make.scale = scale
        inputs, attributes = next(declared)
        return tuple(inputs), dict(attributes)


def _size(op: Op, inputs: Any, attributes: dict[str, Any]) -> int:
    """Return the elements of the largest operand or result, weighted by the cost of the call."""
    size = max((x.numel() for x in inputs if isinstance(x, Tensor)), default=0)
    if op.infer is not None:
        meta = backend(as_device("meta")).ledger
        on_meta = place(inputs, "meta")
        meta.reset_peak()
        before = meta.live
        outputs = call(op, on_meta, attributes)
        size = max(size, (meta.peak - before) // 16, *[o.numel() for o in outputs])
    if op.flops is not None:
        specs = [x._spec if isinstance(x, Tensor) else None for x in inputs]
        size = max(size, op.flops(*specs, **attributes) // 1000)
    return size


def hidden_allocation(op: Op, inputs: Any, attributes: dict[str, Any]) -> int:
    """Measure the peak of Python's own allocators while an op runs, in bytes.

    The pool's own memory is a mapping that they do not know, so this is what escaped the ledger.
    """
    with no_grad():
        call(op, inputs, attributes)  # plans, imports and compilation happen here
        tracemalloc.start()
        try:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            call(op, inputs, attributes)
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()


def live_bytes(where: Any = "cpu") -> int:
    """Return the live bytes of a device's ledger."""
    return int(backend(as_device(where)).ledger.live)


def saved_of(outputs: Any) -> list[tuple[str, str, tuple[int, ...], int]]:
    """List what the graph behind some results saves: (label, dtype, shape, bytes) of each."""
    found = []
    for out in outputs:
        node = out.grad_fn
        if node is None:
            continue
        for label, handle in zip(node.rules.labels, node.handles or (), strict=False):
            if isinstance(handle, Held):
                s = handle.spec
                found.append((label, s.dtype.name, tuple(s.shape), s.nbytes))
        break  # every result of one op has the same node
    return found


def assert_close(
    actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None
) -> None:
    """Assert that values, shape and dtype agree, within the tolerances of the dtype.

    Raises:
        AssertionError: They differ; the message shows the largest difference.
    """
    if isinstance(actual, Tensor) and isinstance(expected, Tensor):
        assert actual.dtype is expected.dtype, f"{actual.dtype} is not {expected.dtype}"
        r, a = tolerance(actual.dtype)
    else:
        r, a = 1e-7, 1e-7
    x = _values(actual) if isinstance(actual, Tensor) else np.asarray(actual)
    y = _values(expected) if isinstance(expected, Tensor) else np.asarray(expected)
    if x.dtype.kind == "V" or y.dtype.kind == "V":
        x, y = x.astype(np.float32), y.astype(np.float32)
    np.testing.assert_allclose(
        x, y, rtol=r if rtol is None else rtol, atol=a if atol is None else atol
    )
