"""Adafactor: the mean square of a matrix by its rows and columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..framework.autograd.modes import quietly
from ..framework.dtypes import finfo
from ..framework.ops.creation import empty, zeros_like
from ..framework.pieces import limit_of, pieces
from . import fused
from .optimizer import Optimizer, check_options, number, own


class Adafactor(Optimizer):
    """Adam without a mean, whose mean square is an outer product: state of rows plus columns.

    With ``r = 1 - t^beta2_decay``, for a matrix g (R and C are the means of g^2 along its last and
    its last but one dimension): ``R = r R + (1 - r) mean_cols(g^2); C = r C + (1 - r)
    mean_rows(g^2); V = R C / max(mean(R), eps1)``; for a vector ``V = r V + (1 - r) g^2``. Then
    ``U = g / max(sqrt(V), eps1); p = (1 - lr weight_decay) p - a U / max(1, RMS(U) / d)`` with
    ``a = max(eps2, RMS(p)) min(lr, 1 / sqrt(t))``.

    State: ``step``, and ``row_var`` and ``col_var``, or ``variance`` for a vector.

    Memory: V and U are never whole. On the CPU a step is compiled and takes none beside the state
    (``framework/kernels/cpu/factored.py``); elsewhere it runs on pieces (``framework/pieces.py``;
    one row, if that is longer), twice: once for RMS(U), once to apply it.

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
        check_options(
            "Adafactor", lr, weight_decay=weight_decay, epsilon1=eps[0] or 0, epsilon2=eps[1]
        )
        if beta2_decay > 0:
            raise ValueError(f"Adafactor: beta2_decay should be <= 0 but is: {beta2_decay}.")
        if d < 1:
            raise ValueError(f"Adafactor: Clipping threshold d should be >= 1 but is: {d}.")
        defaults = {
            "lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d,
            "weight_decay": weight_decay, "foreach": foreach, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
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
        if fused.fits(self.elements, p, g) and all(v.dtype is p.dtype for v in held):
            _compiled(p, g, held, (share, eps1, eps2, keep, rate, group["d"]))
            return
        rate *= max(eps2, (_square_sum(pieces(p)) / max(p.numel(), 1)) ** 0.5)
        parts = (_matrix if p.ndim > 1 else _vector)(p, g, state, share, eps1)
        root_mean = (_square_sum((u,) for _, u in parts()) / max(p.numel(), 1)) ** 0.5
        if keep != 1:
            p.mul_(keep)
        rate /= max(1.0, root_mean / group["d"])
        for part, u in parts():
            part.add_(u, alpha=-rate)


def _compiled(p: Any, g: Any, held: list[Any], numbers: Any) -> None:
    for t in (p, *held):
        t._storage.version += 1
    if p.is_meta or p.numel() == 0:
        return
    from ..framework.kernels.cpu import factored

    kind = p._array.dtype.type
    scalars = [kind(x) for x in numbers]
    if p.ndim <= 1:
        quietly(factored.vector, *[t._array.reshape(-1) for t in (p, g, *held)], *scalars)
        return
    n, m = p.shape[-2:]
    arrays = [t._array.reshape(-1, n, m) for t in (p, g)]
    arrays += [t._array.reshape(-1, k) for t, k in zip(held, (n, m), strict=True)]
    quietly(factored.matrices, *arrays, *scalars)


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


def _vector(p: Any, g: Any, state: dict[str, Any], share: float, eps: float) -> Any:
    """Move the mean square on; return a generator function of (piece of p, piece of U)."""
    held = state["variance"]
    for d, v in pieces(g, held):
        v.mul_(1 - share).addcmul_(d, d, value=share)

    def parts() -> Iterator[tuple[Any, Any]]:
        for x, d, v in pieces(p, g, held):
            yield x, v.clamp(min=eps * eps).rsqrt_().mul_(d)

    return parts


def _matrix(p: Any, g: Any, state: dict[str, Any], share: float, eps: float) -> Any:
    """The same for a stack of matrices: their row and column means."""
    rows, columns = p.shape[-2:]
    x, d, r, c = (
        t.detach().reshape(-1, *t.shape[-2:]) for t in (p, g, state["row_var"], state["col_var"])
    )
    blocks = list(_blocks(x))
    r.mul_(1 - share)
    c.mul_(1 - share)
    for b, k in blocks:
        squares = d[b, k] * d[b, k]
        r[b, k].add_(squares.sum(-1, keepdim=True), alpha=share / max(columns, 1))
        c[b].add_(squares.sum(-2, keepdim=True), alpha=share / max(rows, 1))

    def parts() -> Iterator[tuple[Any, Any]]:
        mean = r.mean(-2, keepdim=True).clamp_(min=eps)
        for b, k in blocks:
            u = (r[b, k] * c[b]).div_(mean[b]).clamp_(min=eps * eps).rsqrt_()
            yield x[b, k], u.mul_(d[b, k])

    return parts


def _blocks(x: Any) -> Iterator[tuple[slice, slice]]:
    """Slices of the first two of three dimensions, of at most a piece each (or one row)."""
    limit = limit_of(x)
    count, rows, columns = x.shape
    each = max(1, limit // max(rows * columns, 1))
    some = rows if each > 1 or rows * columns <= limit else max(1, limit // max(columns, 1))
    for b in range(0, count, each):
        for k in range(0, rows, max(some, 1)):
            yield slice(b, b + each), slice(k, k + some)
