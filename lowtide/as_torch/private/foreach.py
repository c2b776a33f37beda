"""``torch._foreach_*``: one operation on each tensor of a list.

They are loops: lowtide has no kernel of many tensors, its optimizers fuse a step instead. An
argument is a list with one item for each tensor, or one number or tensor for all. Twins that write
in place check all lengths, shapes and dtypes before they write anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lowtide as _lt

FUNCTIONS: dict[str, Callable[..., Any]] = {}

UNARY = """abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p
log2 neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"""
BINARY = {
    "add": _lt.add,
    "sub": _lt.sub,
    "mul": _lt.mul,
    "div": _lt.div,
    "pow": _lt.pow,
    "maximum": lambda x, y: _lt.maximum(x, _as_tensor(y, x)),
    "minimum": lambda x, y: _lt.minimum(x, _as_tensor(y, x)),
    "clamp_min": _lt.clamp_min,
    "clamp_max": _lt.clamp_max,
}


def _as_tensor(value: Any, like: Any) -> Any:
    return value if isinstance(value, _lt.Tensor) else _lt.full((), value, dtype=like.dtype)


def _rows(name: str, first: Any, others: Sequence[Any]) -> list[tuple[Any, ...]]:
    # For each tensor its own arguments.
    tensors = list(first)
    for t in tensors:
        if not isinstance(t, _lt.Tensor):
            raise TypeError(f"{name} takes a list of tensors; got a {type(t).__name__} in it.")
    if not tensors:
        raise RuntimeError(f"{name}: Tensor list must have at least one tensor.")
    columns: list[Sequence[Any]] = [tensors]
    for other in others:
        # `scalars` may be one tensor with a number for each: of the CPU, and of one dimension
        listed = isinstance(other, list | tuple)
        column = list(other) if listed else [other] * len(tensors)
        if len(column) != len(tensors):
            raise RuntimeError(
                f"{name}: Tensor lists must have the same number of tensors, got {len(tensors)} "
                f"and {len(column)}."
            )
        columns.append(column)
    return list(zip(*columns, strict=True))


def _fits(name: str, row: tuple[Any, ...]) -> None:
    # Before the first of several writes: none may fail half way.
    target = row[0]
    if target.requires_grad and target.is_leaf and _lt.is_grad_enabled():
        raise RuntimeError(
            f"{name}: a leaf Variable that requires grad is being used in an in-place operation. "
            "Call it under no_grad."
        )
    for other in row[1:]:
        shape = other.shape if isinstance(other, _lt.Tensor) else ()
        if _lt.broadcast_shapes(target.shape, shape) != target.shape:
            raise RuntimeError(
                f"{name} writes into tensors of an equal shape; got {tuple(target.shape)} and "
                f"{tuple(shape)}."
            )
        if not _lt.can_cast(_lt.result_type(target, other), target.dtype):
            raise RuntimeError(
                f"{name}: result type {_lt.result_type(target, other)} can't be cast to the "
                f"desired output type {target.dtype}."
            )


def _declare(name: str, one: Callable[..., Any], *, writes: bool = True) -> None:
    """Make ``_foreach_<name>`` and its twin in place of a function of one tensor."""

    def plain(self: Sequence[Any], *others: Any, **options: Any) -> tuple[Any, ...]:
        rows = _rows(f"_foreach_{name}", self, others)
        return tuple(one(*row, **options) for row in rows)

    def in_place(self: Sequence[Any], *others: Any, **options: Any) -> Any:
        rows = _rows(f"_foreach_{name}_", self, others)
        for row in rows:
            _fits(f"_foreach_{name}_", row)
        for row in rows:
            row[0].copy_(one(*row, **options))
        return self

    for function, suffix in ((plain, ""), *([(in_place, "_")] if writes else [])):
        function.__name__ = function.__qualname__ = f"_foreach_{name}{suffix}"
        function.__doc__ = f"``{name}`` of each tensor of a list" + (
            ", in place." if suffix else "."
        )
        FUNCTIONS[function.__name__] = function


def _norm(x: Any, ord: Any = 2, dtype: Any = None) -> Any:
    return _lt.linalg.vector_norm(x, ord, dtype=dtype)


def _powsum(x: Any, ord: Any = 2, dtype: Any = None) -> Any:
    return x.abs().pow(ord).sum(dtype=dtype)


def _addcdiv(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    return _lt.addcdiv(x, a, b, value=value)


def _addcmul(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
    return _lt.addcmul(x, a, b, value=value)


def _foreach_copy_(self: Sequence[Any], src: Sequence[Any], non_blocking: bool = False) -> Any:
    """Copy each tensor of ``src`` into its place in ``self``."""
    rows = _rows("_foreach_copy_", self, [list(src)])
    for target, source in rows:
        if _lt.broadcast_shapes(target.shape, source.shape) != target.shape:
            raise RuntimeError(
                f"_foreach_copy_: {tuple(source.shape)} does not fit {tuple(target.shape)}."
            )
    for target, source in rows:
        target.copy_(source)
    return self


def _foreach_zero_(self: Sequence[Any]) -> Any:
    """Fill each tensor with zeros."""
    for row in _rows("_foreach_zero_", self, ()):
        row[0].zero_()
    return self


for _name in UNARY.split():
    _declare(_name, getattr(_lt, _name))
for _name, _function in BINARY.items():
    _declare(_name, _function)
_declare("lerp", _lt.lerp)
_declare("addcdiv", _addcdiv)
_declare("addcmul", _addcmul)
_declare("norm", _norm, writes=False)
_declare("powsum", _powsum, writes=False)
_declare("max", _lt.max, writes=False)
_declare("mm", _lt.mm, writes=False)
_declare("clone", _lt.clone, writes=False)
FUNCTIONS.update({f.__name__: f for f in (_foreach_copy_, _foreach_zero_)})
