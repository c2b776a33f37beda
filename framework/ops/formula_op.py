"""Ops that are made of a formula and nothing else: ``lowtide.formula``.

The gradients are formulas too, derived from it, and so are theirs: each is one kernel.
"""

from __future__ import annotations

import itertools
from typing import Any

from ..kernels.common.elementwise import same_shape_float32, vectorized
from ..kernels.formula.formula import Formula
from ..kernels.formula.functions import TABLE
from ..kernels.formula.steps import Apply
from .registry import op
from .signatures import broadcast, per_element, same

_numbers = itertools.count(1)  # of gradients, so that no two have a name
_CALL = 10  # operations that a function of the table counts


def formula_op(made: Formula, name: str, gradients: dict[str, Any] | None = None) -> Any:
    """Declare an op of a formula, with its gradients.

    Args:
        made: The formula; each input is an element of a real tensor, or a number.
        name: Of the op, unique.
        gradients: For inputs, functions that this function returned: of ``grad``, of inputs and of
            attributes, by their names. For the others it is derived.

    Returns:
        The function of tensors; its ``op`` has the formula.

    Raises:
        NoFormula: The formula has something that it may not hold.
        TypeError: There is an op of that name.
    """
    inputs = made.reader.elements
    for outcome in made.outcomes():
        made.variant_of(outcome)  # what cannot be read is refused here
    given = gradients or {}
    rules = [
        _given_rule(made, given[e]) if e in given else _rule(made, name, k)
        for k, e in enumerate(inputs)
    ]
    one = len(inputs) == 1
    made.when = vectorized if one else same_shape_float32
    function = op(
        name=name,
        infer=same if one else broadcast,
        promote="float",
        method=False,
        public=False,
        real=True,
        flops=lambda *specs, **attributes: _cost(made, attributes)(*specs),
    )(made)
    for input, rule in zip(inputs, rules, strict=True):
        function.vjp(input)(rule)
    function.__name__ = function.__qualname__ = made.name
    return function


def _given_rule(made: Formula, function: Any) -> Any:
    # The gradient rule that calls a function of a formula.
    reader = function.op.formula.reader
    first, *kept = reader.elements
    fits = {*kept} <= {*made.reader.elements} and {*reader.attributes} <= {*made.reader.attributes}
    if first != "grad" or not fits:
        raise TypeError(
            f"formula {made.name}: a gradient takes grad, and inputs and numbers of the formula; "
            f"{function.op.formula.name} takes {[first, *kept, *reader.attributes]}."
        )
    names = "".join(f", {name}" for name in [*kept, *reader.attributes])
    given = "".join([*[f", {n}" for n in kept], *[f", {n}={n}" for n in reader.attributes]])
    return _evaluated(f"lambda g{names}: function(g{given})", made.name, function=function)


def _rule(made: Formula, name: str, k: int) -> Any:
    # The gradient rule of an input, whose parameters say what is kept: what the derivative reads.
    derived = made.derivative(made.reader.elements[k])
    assert derived.derived is not None
    kept = derived.derived.inputs
    attributes = made.reader.attributes
    known: dict[int, Any] = {}  # the function, once backward has asked for it

    def gradient(g: Any, *values: Any) -> Any:
        function = known.get(0)
        if (
            function is None
        ):  # each thread that comes here first declares one, and one of them stays
            own = f"{name}_grad_{k}_{next(_numbers)}"
            function = known.setdefault(0, formula_op(derived, own))
        numbers = dict(zip(attributes, values[len(kept) :], strict=True))
        return function(g, *values[: len(kept)], **numbers)

    names = "".join(f", {name}" for name in [*kept, *attributes])
    return _evaluated(f"lambda g{names}: gradient(g{names})", name, gradient=gradient)


def _evaluated(text: str, name: str, **known: Any) -> Any:
    # As the functions of ops are: their lines are no lines of a user's.
    return eval(compile(text, f"<op {name}>", "eval"), known)


def _cost(made: Formula, attributes: dict[str, Any]) -> Any:
    steps = made.variant(attributes).steps
    every = [*(value for _, value in steps.assignments), steps.result]
    return per_element(max(1, sum(map(_operations, every))))


def _operations(value: Any) -> int:
    if not isinstance(value, Apply):
        return 0
    own = _CALL if value.what in TABLE and TABLE[value.what].second != "number" else 1
    return own + sum(map(_operations, value.operands))
