"""Arithmetic with sparse tensors: sums, products, quotients, powers; and writes in place.

A product has the places of its sparse operand (of two: where both have a value), a sum of two
sparse tensors the places of both, a sum with a dense tensor is dense. What would fill the zeros
(adding a number, dividing by a sparse tensor) is refused.
"""

from __future__ import annotations

from typing import Any

from ...interrupts import defer_interrupts
from ...memory_format import sparse_coo
from ...modes import local
from ...tensor import Tensor
from ..elementwise.arithmetic import neg
from ..elementwise.comparison import equal
from ..indexing.index_put import _index_put_add
from ..indexing.nonzero import searchsorted
from ..manipulation.cat import cat
from .calls import rule, rule_in_place
from .coo import as_coo, coalesce, gathered, keys, looked_up, parts, to_dense
from .sparse_tensor import SparseTensor, assembled


def _is_number(x: Any) -> bool:
    return not isinstance(x, Tensor) or (not x.ndim and not isinstance(x, SparseTensor))


def _same_shape(name: str, a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        raise RuntimeError(
            f"{name}: a sparse tensor is not expanded, so the other operand must have or expand to "
            f"its shape; got {tuple(a.shape)} and {tuple(b.shape)}. Use .to_dense()."
        )


def joined(a: Any, b: Any) -> Tensor:
    """Add two COO tensors: their values one after the other, or added up if both are coalesced."""
    _same_shape("add", a, b)
    (at, left), (bt, right) = parts(a, "add"), parts(b, "add")
    if at.shape[0] != bt.shape[0]:
        raise RuntimeError(
            f"add: operands have {at.shape[0]} and {bt.shape[0]} sparse dims; they must be equal. "
            "Use .to_dense()."
        )
    if at is bt or (at.shape == bt.shape and at.device.type != "meta" and equal(at, bt)):
        return a._with(left + right, a._coalesced or b._coalesced)
    both = assembled(a.shape, (cat((at, bt), 1),), cat((left, right)), sparse_coo, False)
    return coalesce(both) if a._coalesced and b._coalesced else both


def onto_dense(dense: Tensor, s: Tensor) -> Tensor:
    """Add a sparse tensor to a dense one: dense."""
    _same_shape("add", dense, s)
    found, held = parts(s, "add")
    dims = found.shape[0]
    if not dims or dense.dtype is not held.dtype:
        return dense + to_dense(s)
    return _index_put_add(dense, found, held, dims=tuple(range(dims)), at=0)


@rule("_add")
def _add(inputs: Any) -> Any:
    a, b = inputs
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        return joined(a, b)
    if isinstance(a, SparseTensor):
        if not isinstance(b, Tensor) or b.shape != a.shape:
            raise RuntimeError(
                "add(sparse, dense) is not supported. Use add(dense, sparse) instead, with a dense "
                f"tensor of shape {tuple(a.shape)}."
            )
        return onto_dense(b, a)
    if _is_number(a):
        return NotImplemented
    return onto_dense(a, b)


@rule("_sub")
def _sub(inputs: Any) -> Any:
    a, b = inputs
    return _add((a, neg(b) if isinstance(b, Tensor) else -b))


@rule("mul")
def _mul(inputs: Any) -> Any:
    a, b = inputs
    s, other = (a, b) if isinstance(a, SparseTensor) else (b, a)
    found, held = parts(s, "mul")
    if _is_number(other):
        return s._with(held * other)
    if not isinstance(other, SparseTensor):
        pairs = zip(other.shape[::-1], s.shape[::-1], strict=False)
        if other.ndim > s.ndim or any(n not in (1, m) for n, m in pairs):
            _same_shape("mul", s, other)
        return s._with(held * gathered(other.expand(s.shape), found))
    _same_shape("mul", s, other)
    if s.sparse_dim() != other.sparse_dim():
        return NotImplemented
    other = coalesce(other)
    dims = found.shape[0]
    if not dims:
        return NotImplemented
    if found.data_ptr() == other._indexing[0].data_ptr() and s._coalesced:
        return s._with(held * other._value)
    sizes = tuple(s.shape[:dims])
    hit = _among(keys(found, sizes), keys(other._indexing[0], sizes))
    kept = hit.nonzero().reshape(-1)
    at = found.index_select(1, kept)
    values = held.index_select(0, kept) * looked_up(other, at)
    return assembled(s.shape, (at,), values, sparse_coo, s._coalesced)


def _among(wanted: Tensor, there: Tensor) -> Tensor:
    # Which of ``wanted`` are in the sorted ``there``.
    if not there.shape[0]:
        return wanted.ne(wanted)
    at = searchsorted(there, wanted).clamp(max=there.shape[0] - 1)
    return there[at].eq(wanted)


@rule("_div")
def _div(inputs: Any) -> Any:
    a, b = inputs
    if not isinstance(a, SparseTensor):
        return NotImplemented
    if not _is_number(b):
        raise RuntimeError(
            "Sparse division requires a scalar or zero-dim dense tensor divisor (got shape "
            f"{list(b.shape)} for divisor). Multiply by the reciprocal of a dense one."
        )
    return a._with(a._value / b)


@rule("pow")
def _pow(inputs: Any) -> Any:
    a, b = inputs
    if not isinstance(a, SparseTensor) or isinstance(b, Tensor) or not b > 0:
        return NotImplemented  # what is not stored would become 1, or infinite
    a = coalesce(a)
    return a._with(a._value**b)


# In place


@rule_in_place("_add")
def _add_in_place(inputs: Any) -> Any:
    target, other = inputs
    if isinstance(target, SparseTensor):
        if not isinstance(other, SparseTensor) or target.layout is not sparse_coo:
            return NotImplemented
        _check_leaf("add_", target)
        _become(target, joined(target, as_coo(other).to(target.dtype)))
        return target
    if target.shape != other.shape:
        _same_shape("add_", target, other)
    found, held = parts(as_coo(other), "add_")
    dims = tuple(range(found.shape[0]))
    if not dims:
        return target.add_(held.sum(0))
    return target._index_put_add_(found, held.to(target.dtype), dims=dims, at=0)


@rule_in_place("_sub")
def _sub_in_place(inputs: Any) -> Any:
    target, other = inputs
    return _add_in_place((target, neg(other)))


@rule_in_place("mul")
def _mul_in_place(inputs: Any) -> Any:
    target, other = inputs
    if not isinstance(target, SparseTensor) or not _is_number(other):
        return NotImplemented
    target._value.mul_(other)
    return target


@rule_in_place("_div")
def _div_in_place(inputs: Any) -> Any:
    target, other = inputs
    if not isinstance(target, SparseTensor) or not _is_number(other):
        return NotImplemented
    target._value.div_(other)
    return target


@rule_in_place("neg")
def _neg_in_place(inputs: Any) -> Any:
    inputs[0]._value.neg_()
    return inputs[0]


@rule_in_place("_fill")
def _fill_in_place(inputs: Any, **_: Any) -> Any:
    target, value = inputs
    if not isinstance(target, SparseTensor) or isinstance(value, Tensor) or value != 0:
        return NotImplemented  # a sparse tensor of another number everywhere is none
    _check_leaf("zero_", target)
    found, held = parts(target, "zero_")
    none = assembled(target.shape, (found[:, :0],), held[:0], sparse_coo, True)
    _become(target, none.detach().clone())
    return target


@rule_in_place("_copy")
def _copy_in_place(inputs: Any) -> Any:
    target, source = inputs
    if not isinstance(target, SparseTensor):
        return target.copy_(to_dense(source))
    if not isinstance(source, SparseTensor) or target.shape != source.shape:
        return NotImplemented
    _check_leaf("copy_", target)
    _become(target, as_coo(source).to(target.dtype).clone())
    return target


def _check_leaf(name: str, target: Any) -> None:
    if target.requires_grad and target.is_leaf and local.state.grad:
        raise RuntimeError(
            f"{name}: a leaf Variable that requires grad is being used in an in-place operation. "
            "Write under lowtide.no_grad(), or into a clone."
        )


def _become(target: Any, found: Any) -> None:
    role = target._storage.role
    with defer_interrupts():
        target._indexing, target._value = found._indexing, found._value
        target._coalesced = found._coalesced
        target._storage.set_role(role)
