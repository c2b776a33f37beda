"""Calls of ops on sparse tensors: each is a composition of ops on indices and values, or refused.

The dispatcher comes here when it meets the spec of a sparse tensor. An op that leaves zeros zero
(``KEEPS_ZERO``) runs on the values; the others that make sense have a rule in ``RULES``, which the
files of this folder fill. Whatever has none raises, by name: no op computes with a sparse tensor
as if it were something else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from ...memory_format import sparse_coo, sparse_csc, sparse_csr
from ...tensor import Tensor
from ..registry import Op
from .compressed import as_layout
from .coo import as_coo, coalesce
from .sparse_tensor import SparseSpec, SparseTensor

_F = TypeVar("_F", bound=Callable[..., Any])
RULES: dict[str, Any] = {}  # op name -> f(inputs, **attributes)
IN_PLACE: dict[str, Any] = {}  # op name -> f(inputs, **attributes), which writes the first

KEEPS_ZERO = {
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor",
    "frac", "isinf", "isnan", "_isposinf", "isposinf", "isneginf", "log1p", "nan_to_num",
    "rad2deg", "_relu", "round", "sgn", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan",
    "tanh", "trunc",
}  # fmt: skip
LINEAR = {"neg", "_convert", "clone"}  # of which the values need not be added up first


def rule(*names: str) -> Callable[[_F], _F]:
    """Declare what an op does with sparse operands: ``f(inputs, **attributes)``; a decorator."""

    def declare(f: _F) -> _F:
        for name in names:
            RULES[name] = f
        return f

    return declare


def rule_in_place(*names: str) -> Callable[[_F], _F]:
    """Declare what an op does in place where an operand is sparse; a decorator."""

    def declare(f: _F) -> _F:
        for name in names:
            IN_PLACE[name] = f
        return f

    return declare


class _Calls:
    """What the dispatcher calls."""

    def __call__(self, op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        _need_one_world(op, inputs)
        named = dict(zip(op.attributes, attributes, strict=True))
        first = inputs[0]
        if isinstance(first, SparseTensor) and (op.name in LINEAR or op.name in KEEPS_ZERO):
            if op.name in KEEPS_ZERO and first.layout is sparse_coo:
                first = coalesce(first)
            return first._with(op.function(first._value, **named))
        found = RULES.get(op.name)
        result = NotImplemented
        if found is not None:
            layout = next(x.layout for x in inputs if isinstance(x, SparseTensor))
            operands = tuple(as_coo(x) if isinstance(x, SparseTensor) else x for x in inputs)
            result = found(operands, **named)
            if isinstance(result, SparseTensor) and layout is not sparse_coo and result.ndim == 2:
                result = as_layout(result, _flipped(layout) if op.name == "_permute" else layout)
        if result is NotImplemented:
            refuse(op.display_name, inputs)
        return result

    def inplace(self, op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        _need_one_world(op, inputs)
        found = IN_PLACE.get(op.name)
        named = dict(zip(op.attributes, attributes, strict=True))
        result = NotImplemented if found is None else found(inputs, **named)
        if result is NotImplemented:
            refuse((op.inplace or op.name).lstrip("_"), inputs)
        return result


def _flipped(layout: Any) -> Any:
    return sparse_csc if layout is sparse_csr else sparse_csr


def refuse(name: str, inputs: Any) -> NoReturn:
    """Raise the error of an op that has no rule for these operands.

    Raises:
        NotImplementedError: Always.
    """
    listed = ", ".join(f"{x.layout.name} {tuple(x.shape)}" for x in inputs if isinstance(x, Tensor))
    raise NotImplementedError(
        f"{name} has no rule for sparse operands in this place: got {listed}. Convert with "
        ".to_dense(), or work on .values()."
    )


def _need_one_world(op: Op, inputs: tuple[Any, ...]) -> None:
    for x in inputs:
        if isinstance(x, Tensor) and not isinstance(x, SparseTensor) and x._spec.runs is not None:
            raise NotImplementedError(
                f"{op.display_name}: sparse tensors are not supported inside vmap. Use .to_dense() "
                "on them outside, or a loop."
            )


SparseSpec.runs = _Calls()
