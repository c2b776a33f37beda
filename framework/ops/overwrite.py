"""Calls in a gradient rule whose result is written over a value that is read no more.

The engine finds such a value (``autograd/overwriting.py``); a kernel says over which of its inputs
it can write (``Kernel.overwrites``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..modes import local
from ..spec import SCALARS
from ..tensor import Tensor
from .dispatch import dispatch, make_plan

if TYPE_CHECKING:
    from .registry import Op


def write_over(room: Tensor | None, function: Any, *inputs: Any, **attributes: Any) -> Any:
    """Call an op, and write its first result over ``room``.

    Args:
        room: A tensor which nothing else can see and which is not read again, or None. The result
            is allocated if there is none, if it has another shape or dtype, and if ``room`` is one
            of ``inputs`` and the kernel cannot write over that one.
        function: Of the op.
        *inputs: All of them, defaults included.
        **attributes: Those that are not to have their defaults.
    """
    if room is None or local.state.autocast is not None:
        return function(*inputs, **attributes)
    op: Op = function.op
    given = (*(attributes.get(name, default) for name, default in op.attributes.items()),)
    plan = _plan(op, inputs, given)
    if plan is None:
        return dispatch(op, inputs, given)
    place = next((k for k, x in enumerate(inputs) if x is room), None)
    can = place is None or op.inputs[place] in plan.overwrites
    if not can or plan.results[0] is not room._spec:
        return dispatch(op, inputs, given)
    arrays = [x._array if isinstance(x, Tensor) else x for x in inputs]
    results = plan.results_over(arrays, room._storage, room._array)
    count = len(op.returns)
    return results[0] if count == 1 else tuple(results[:count])


def _plan(op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
    # The plan of the call; None if the dispatcher would first make other inputs of these.
    key: list[Any] = []
    for x in inputs:
        if isinstance(x, Tensor):
            x._refresh()
        key.append(x._spec if isinstance(x, Tensor) else SCALARS.get(type(x)))
    key.append(attributes)
    plan = op.plans.get(tuple(key))
    return make_plan(op, inputs, key)[0] if plan is None else plan
