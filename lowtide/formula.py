"""Custom elementwise functions, written as the computation of one element.

    from lowtide.formula import exp, formula

    @formula
    def swish(x, *, slope=1.0):
        return x / (1 + exp(-slope * x))

    y = swish(lt.randn(1000, requires_grad=True), slope=1.5)
    y.sum().backward()

Positional parameters are tensors or numbers, keyword-only ones are numbers. The function runs in
one pass over its inputs: compiled on the CPU, printed as CUDA C++ on a GPU. Its gradients, and
theirs, are derived from it and are one pass each; backward keeps the inputs that they need.
The body may hold assignments, ``+ - * /``, comparisons, ``and or not``, conditional expressions,
``if`` statements that test the numbers, ``abs``, the functions of this module, and ``return``.
"""

from __future__ import annotations

from collections.abc import Callable as _Callable
from typing import Any

from lowtide.framework.kernels.common.elementwise import vectorized as _vectorized
from lowtide.framework.kernels.formula.formula import Formula as _Formula
from lowtide.framework.kernels.formula.functions import (
    erf,
    exp,
    expm1_of_negative,
    log,
    log1p_of_fraction,
    log_of_rest,
    maximum,
    minimum,
    normal_cdf,
    sqrt,
)
from lowtide.framework.kernels.formula.reader import NoFormula
from lowtide.framework.ops.formula_op import formula_op as _formula_op

_names: dict[str, int] = {}  # how many formulas have a name


def formula(
    function: _Callable[..., float] | None = None, *, gradient: dict[str, Any] | None = None
) -> Any:
    """Make a function of numbers a function of tensors.

    Args:
        function: Computes one element; see above for what it may hold.
        gradient: For inputs by name, the formula of their gradient. It takes ``grad`` and those of
            the inputs and numbers that it needs. By default it is derived. A derived gradient is
            what autograd would compute, so it may overflow where one that you write yourself does
            not.

    Returns:
        A function of tensors that broadcast, with the same parameters. ``.op.formula`` computes
        one element from numbers. Without ``function``, a decorator.

    Raises:
        NoFormula: The function holds something else; the message names the line.
        TypeError: A gradient takes something that the formula does not have.
    """
    if function is None:
        return lambda f: formula(f, gradient=gradient)
    name = function.__name__
    _names[name] = count = _names.get(name, 0) + 1
    unique = f"_formula_{name}" + (f"_{count}" if count > 1 else "")
    return _formula_op(_Formula(function, name, True, _vectorized), unique, gradient)


__all__ = [
    "NoFormula",
    "erf",
    "exp",
    "expm1_of_negative",
    "formula",
    "log",
    "log1p_of_fraction",
    "log_of_rest",
    "maximum",
    "minimum",
    "normal_cdf",
    "sqrt",
]
