"""The Adafactor optimizer: factored second moments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..framework.autograd.saved import count_write
from ..framework.dtypes import finfo
from ..framework.kernels.common.copy import copy
from ..framework.kernels.formula.formula import formula
from ..framework.kernels.formula.functions import maximum, sqrt
from ..framework.kernels.formula.update import update
from ..framework.modes import run_kernel
from ..framework.ops.creation.fill import empty, zeros_like
from ..framework.ops.views.tiled import limit_of, tiles
from ..framework.updates import HOSTS, flat_arrays, planned_update
from .optimizer import Optimizer, check_options, need_pair, number, own


class Adafactor(Optimizer):
    """Adafactor: Adam without momentum, with second moments factored into rows and columns.

    With ``r = 1 - t^beta2_decay``, for a matrix g (R and C are the means of g^2 along its last and
    its last but one dimension): ``R = r R + (1 - r) mean_cols(g^2); C = r C + (1 - r)
    mean_rows(g^2); V = R C / max(mean(R), eps1)``; for a vector ``V = r V + (1 - r) g^2``. Then
    ``U = g / max(sqrt(V), eps1); p = (1 - lr weight_decay) p - a U / max(1, RMS(U) / d)`` with
    ``a = max(eps2, RMS(p)) min(lr, 1 / sqrt(t))``.

    State: ``step``, and ``row_var`` and ``col_var``, or ``variance`` for a vector.

    Memory: V and U are never complete. On the CPU a step is compiled and takes none beside the
    state (``framework/kernels/cpu/optim/adafactor.py``). What is not compiled (half precision,
    strides, small models, other devices) runs on tiles (``framework/ops/views/tiled.py``; one row,
    if that is longer), twice: once for RMS(U), before anything is written, once to apply it. From
    the first to the second the new rows and columns of all parameters are kept beside the old ones.

    Args:
        params: What to optimize.
        lr: The largest relative step, and the factor of the decay.
        beta2_decay: Power of t in the decay of the mean square; at most 0.
        eps: Least denominators of V (None: the dtype's machine epsilon) and of RMS(p).
        d: Where the step is clipped.
        weight_decay: Share of the parameter, times ``lr``, taken away at each step.
        foreach: No effect.
        maximize: Climb instead.

    Raises:
        ValueError: An option is out of range.
        RuntimeError: A parameter is complex.

    Source:
        Shazeer and Stern 2018. ``lr`` and the place of eps1 are PyTorch's.
    """

    reads_whole = True

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        need_pair("Adafactor", "eps", eps)
        check_options(
            "Adafactor", lr, weight_decay=weight_decay, epsilon1=eps[0] or 0, epsilon2=eps[1]
        )
        if beta2_decay > 0:
            raise ValueError(f"Adafactor: beta2_decay should be <= 0 but is: {beta2_decay}.")
        if d < 1:
            raise ValueError(f"Adafactor: Clipping threshold d should be >= 1 but is: {d}.")
        defaults = {
            "lr": lr,
            "beta2_decay": beta2_decay,
            "eps": eps,
            "d": d,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    def state_shape(self, key: str, p: Any) -> tuple[int, ...] | None:
        """Return the parameter's shape, with a size of 1 where rows or columns are averaged."""
        shape = list(p.shape)
        if key in ("row_var", "col_var") and p.ndim > 1:
            shape[-1 if key == "row_var" else -2] = 1
        return None if key == "step" else tuple(shape)

    def prepare(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """One step for one parameter."""
        if p.is_complex():
            raise RuntimeError("Adafactor does not support complex parameters. Split them in two.")
        if not state:
            state.update(_start(p))
        step = state["step"] = state["step"] + 1
        lr, (eps1, eps2) = number(group["lr"]), group["eps"]
        eps1 = finfo(p.dtype).eps if eps1 is None else eps1
        share = step ** group["beta2_decay"]  # of the new square in the mean
        # The gradient enters squared, and once in U: there its sign is the rate's.
        rate = min(lr, 1 / step**0.5) * (-1 if group["maximize"] else 1)
        keep = 1 - lr * group["weight_decay"]
        names = ("row_var", "col_var") if p.ndim > 1 else ("variance",)
        held = [state[name] for name in names]
        alike = all(v.dtype is p.dtype for v in held)
        if alike and p.device.type in HOSTS and flat_arrays(self.elements, (p, g)) is not None:
            return _compiled(p, g, held, (share, eps1, eps2, keep, rate, group["d"]))
        rate *= max(eps2, (_square_sum(tiles(p)) / max(p.numel(), 1)) ** 0.5)
        planned = (_matrix if p.ndim > 1 else _vector)(p, g, held, share, eps1)
        root_mean = (_square_sum((u,) for u in planned.updates()) / max(p.numel(), 1)) ** 0.5
        rate /= max(1.0, root_mean / group["d"])
        return planned.write(keep, rate)


_ready: set[Any] = set()  # loops that are compiled


def _compiled(p: Any, g: Any, held: list[Any], numbers: Any) -> Any:
    from ..framework.kernels.cpu.optim import adafactor

    storages = [t._storage for t in (p, *held)]
    if p.is_meta or p.numel() == 0:
        return _run, storages, None
    kind = p._array.dtype.type
    scalars = [kind(x) for x in numbers]
    if p.ndim <= 1:
        loop: Any = adafactor.vector
        arrays = [t._array.reshape(-1) for t in (p, g, *held)]
    else:
        loop = adafactor.matrices
        n, m = p.shape[-2:]
        arrays = [t._array.reshape(-1, n, m) for t in (p, g)]
        arrays += [t._array.reshape(-1, k) for t, k in zip(held, (n, m), strict=True)]
    if (loop, kind) not in _ready:  # compiled at its first call, which may fail: here, on copies
        run_kernel(loop, *[np.ones((1,) * a.ndim, a.dtype) for a in arrays], *scalars)
        _ready.add((loop, kind))
    return _run, storages, loop, *arrays, *scalars


def _run(storages: list[Any], loop: Any, *arguments: Any) -> None:
    for storage in storages:
        count_write(storage, "step")
    if loop is not None:
        run_kernel(loop, *arguments)


def _start(p: Any) -> dict[str, Any]:
    if p.ndim <= 1:
        return {"step": 0, "variance": own(zeros_like(p), p)}
    found = {}
    for name, dim in (("row_var", -1), ("col_var", -2)):
        shape = list(p.shape)
        shape[dim] = 1
        found[name] = own(empty(shape, dtype=p.dtype, device=p.device).zero_(), p)
    return {"step": 0, **found}


def _square_sum(parts: Any) -> float:
    total = 0.0
    for (x,) in parts:
        square = (x * x).sum()
        total += 0.0 if x.is_meta else float(square)  # meta has no values, but the same bytes
    return total


@formula
def moved(v: Any, d: Any, *, share: Any) -> Any:
    """The mean square after this step."""
    return (1 - share) * v + share * d * d


@formula
def scaled(d: Any, square: Any, *, least: Any) -> Any:
    """The update U."""
    return d / sqrt(maximum(square, least))


@update
def vector_scaled(u: Any, d: Any, v: Any, *, share: Any, least: Any) -> Any:
    """U of a vector."""
    return scaled(d, moved(v, d, share=share), least=least)


@update
def vector_step(p: Any, d: Any, v: Any, *, share: Any, least: Any, keep: Any, rate: Any) -> Any:
    """A step of a vector, whose second moment is not factored."""
    v = moved(v, d, share=share)
    p = keep * p - rate * scaled(d, v, least=least)
    return p, v


@update
def matrix_scaled(u: Any, d: Any, r: Any, c: Any, mean: Any, *, least: Any) -> Any:
    """U of a matrix; r, c and ``mean``, the mean of r, are expanded to its shape."""
    return scaled(d, r * c / mean, least=least)


@update
def matrix_step(
    p: Any, d: Any, r: Any, c: Any, mean: Any, *, least: Any, keep: Any, rate: Any
) -> Any:
    """A step of a matrix, from the new r and c."""
    return keep * p - rate * scaled(d, r * c / mean, least=least)


def _computed(change: Any, d: Any, tensors: Any, numbers: dict[str, float]) -> Any:
    # What an update gives, as a new tensor.
    found = empty(d.shape, dtype=d.dtype, device=d.device)
    run, *arguments = planned_update(change, (found, d, *tensors), numbers)
    run(*arguments)
    return found


class _vector:
    """The step of a vector."""

    def __init__(self, p: Any, g: Any, held: list[Any], share: float, eps: float) -> None:
        self.tensors, self.numbers = (p, g, held[0]), {"share": share, "least": eps * eps}

    def updates(self) -> Iterator[Any]:
        """Yield the update tile by tile, without changing the second moment."""
        for d, v in tiles(*self.tensors[1:]):
            yield _computed(vector_scaled, d, (v,), self.numbers)

    def write(self, keep: float, rate: float) -> Any:
        """Return the call that updates the second moment and the parameter."""
        return planned_update(
            vector_step, self.tensors, {**self.numbers, "keep": keep, "rate": rate}
        )


class _matrix:
    """The step of a stack of matrices, whose row and column means are computed in copies."""

    def __init__(self, p: Any, g: Any, held: list[Any], share: float, eps: float) -> None:
        self.p, self.held, self.least = p, held, eps * eps
        rows, columns = p.shape[-2:]
        # Of a stack whose strides do not allow a view x is a copy; it is copied back.
        self.x, self.d = (t.detach().reshape(-1, *t.shape[-2:]) for t in (p, g))
        means = [t.detach().reshape(-1, *t.shape[-2:]).mul(1 - share) for t in held]
        self.r, self.c = r, c = means
        self.blocks = list(_blocks(self.x))
        for b, k in self.blocks:
            squares = self.d[b, k] * self.d[b, k]
            r[b, k].add_(squares.sum(-1, keepdim=True), alpha=share / max(columns, 1))
            c[b].add_(squares.sum(-2, keepdim=True), alpha=share / max(rows, 1))
        self.mean = r.mean(-2, keepdim=True).clamp_(min=eps)

    def updates(self) -> Iterator[Any]:
        """Yield the update block by block."""
        for b, k in self.blocks:
            d = self.d[b, k]
            factors = [t.expand(d.shape) for t in (self.r[b, k], self.c[b], self.mean[b])]
            yield _computed(matrix_scaled, d, factors, {"least": self.least})

    def write(self, keep: float, rate: float) -> Any:
        """Return the call that updates the means and the parameter."""
        factors = [t.expand(self.x.shape) for t in (self.r, self.c, self.mean)]
        numbers = {"least": self.least, "keep": keep, "rate": rate}
        step = planned_update(matrix_step, (self.x, self.d, *factors), numbers)
        pairs = [(t, new.view(t.shape)) for t, new in zip(self.held, (self.r, self.c), strict=True)]
        if self.x._storage is not self.p._storage:
            pairs.append((self.p, self.x.view(self.p.shape)))
        return _step_and_copy, step, pairs


def _step_and_copy(step: Any, pairs: list[tuple[Any, Any]]) -> None:
    run, *arguments = step
    run(*arguments)
    for to, new in pairs:
        if to.device.type == "cpu":
            count_write(to._storage, "step")
            run_kernel(copy, to.detach()._array, new._array)
        else:
            to.copy_(new)


def _blocks(x: Any) -> Iterator[tuple[slice, slice]]:
    """Yield slices of the first two of three dims, each at most a tile (or one row)."""
    limit = limit_of(x)
    count, rows, columns = x.shape
    each = max(1, limit // max(rows * columns, 1))
    some = rows if each > 1 or rows * columns <= limit else max(1, limit // max(columns, 1))
    for b in range(0, count, each):
        for k in range(0, rows, max(some, 1)):
            yield slice(b, b + each), slice(k, k + some)
