"""The dispatcher: runs ops on tensors, allocating results and recording graph nodes.

Everything that can be known from specs and attributes is decided once, in a plan (``plan.py``), and
found again by a dictionary look-up: which device, which kernel, what results look like, which
inputs are converted, which rules apply. A repeated call costs that look-up, the allocation, the
kernel, and, if a gradient is wanted, a node with a handle for each saved value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..autograd.anomaly import remember
from ..autograd.node import OpNode
from ..autograd.saved import OWN, Held, check_savable
from ..autograd.view_history import RETYPED, refresh
from ..dtypes import FLOAT
from ..errors import GradientError
from ..kernels.runtime.errstate import is_reentrancy_error, run_nested
from ..modes import local, run_kernel
from ..spec import SCALARS, Spec
from ..tensor import Tensor, ViewInfo, wrap
from .autocast_policy import cast_call
from .plan import Plan, execute

if TYPE_CHECKING:
    from .registry import Op

_new = object.__new__
OPERANDS: dict[type, Any] = {}  # how an operand of a foreign type becomes a tensor: from_data.py
MAX_PLANS = 4096  # per op; a program whose shapes never repeat must not grow without bound


def dispatch(  # noqa: C901 - every op goes through here: each call inside would cost
    op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]
) -> Any:
    """Run an op on tensors and scalars; return its result, or a tuple of results."""
    state = local.state
    if state.autocast is not None and op.autocast is not None:
        inputs, attributes = cast_call(op, inputs, attributes, state.autocast)
    key: list[Any] = []
    arrays = []
    mask = 0
    bit = 1
    for x in inputs:
        if x.__class__ is Tensor or isinstance(x, Tensor):
            viewed = x._viewed
            if viewed is not None and viewed.version != x._storage.version:
                refresh(x)
            key.append(x._spec)
            arrays.append(x._array)
            if x._requires_grad:
                mask |= bit
        else:
            key.append(SCALARS.get(type(x)))
            arrays.append(x)
        bit += bit
    key.append(attributes)
    try:
        plan = op.plans.get(tuple(key))
    except TypeError:  # an attribute is a list: the same call with tuples
        return dispatch(op, inputs, hashable(op, attributes))
    if plan is None:
        plan, replaced = make_plan(op, inputs, key)
        if replaced is not None:
            return (plan or dispatch)(op, replaced, attributes)
    recording = mask and state.grad and plan.differentiable
    if plan.simple:
        spec = plan.results[0]
        if op.view:
            return _view(plan, inputs, arrays, attributes, mask if recording else 0)
        storage, array = plan.backend.empty(spec)
        if plan.run is not None:
            try:
                state.run_kernel(plan.run, array, *arrays)
            except RuntimeError as error:
                if not is_reentrancy_error(error):
                    raise
                run_nested(plan.run, array, *arrays)
        out = wrap(array, spec, storage)
        if recording:
            record(plan, mask, inputs, (out,))
        elif state.notes_results:
            note_without_node(plan, inputs, (out,))
        return out
    results = run_kernel(execute, plan, arrays, None)
    if recording:
        record(plan, mask, inputs, results)
    elif state.notes_results:
        note_without_node(plan, inputs, results)
    count = len(op.returns)
    return results[0] if count == 1 else tuple(results[:count])


def dispatch_pair(op: Op, a: Any, b: Any) -> Any:
    """Run an op with two inputs and no attributes: the fast path of :func:`dispatch`.

    It takes the calls of a training loop: a plan that is known, tensors that are no views.
    """
    try:
        mask = a._requires_grad
        if b.__class__ is Tensor or isinstance(b, Tensor):
            plan = op.plans[a._spec, b._spec, ()]
            if a._viewed is not None or b._viewed is not None:
                return dispatch(op, (a, b), ())
            barray = b._array
            if b._requires_grad:
                mask += 2
        else:
            if a._viewed is not None:
                return dispatch(op, (a, b), ())
            plan = op.plans[a._spec, SCALARS[b.__class__], ()]
            barray = b
    except (KeyError, AttributeError):
        return dispatch(op, (a, b), ())
    state = local.state
    if not plan.simple or state.notes_results or state.autocast is not None:
        return dispatch(op, (a, b), ())
    spec = plan.results[0]
    storage, array = plan.backend.empty(spec)
    if plan.xp is not None:
        try:
            state.run_kernel(plan.kernel, plan.xp, array, a._array, barray)
        except RuntimeError as error:
            if not is_reentrancy_error(error):
                raise
            run_nested(plan.kernel, plan.xp, array, a._array, barray)
    out: Tensor = _new(Tensor)  # `wrap`, written out
    out._array = array
    out._spec = spec
    out._storage = storage
    out._node = None
    out._index = 0
    out._requires_grad = False
    out._grad = None
    out._viewed = None
    out._extra = None
    if mask and state.grad and plan.differentiable:
        record(plan, mask, (a, b), (out,))
    return out


def make_plan(op: Op, inputs: tuple[Any, ...], key: list[Any]) -> tuple[Any, Any]:
    """Make the plan of a call with new specs or attributes: (plan, None).

    Or (None, inputs) to repeat it with; of tensors in ``vmap`` (what runs the call, inputs).
    """
    specs = tuple(key[:-1])
    if None in specs:
        return None, tuple(python_value(op, x) for x in inputs)
    if batched := next((s.runs for s in specs if s.runs), None):
        return batched, inputs
    where: set[Any] = {
        s.device
        for s in specs
        if isinstance(s, Spec) and (s.ndim or s.device.type != "cpu")  # type: ignore[union-attr]
    }
    if len(where) == 1 and any(isinstance(s, Spec) and s.device not in where for s in specs):
        (d,) = where
        return None, tuple(x.to(d) if isinstance(x, Tensor) else x for x in inputs)
    attributes = dict(zip(op.attributes, key[-1], strict=True))
    plan = Plan(op, specs, attributes)
    if len(op.plans) >= MAX_PLANS:
        op.plans.clear()
    op.plans[tuple(key)] = plan
    return plan, None


def python_value(op: Op, x: Any) -> Any:
    """Convert an unknown operand: a NumPy scalar becomes a Python number.

    Raises:
        TypeError: It is nothing an op computes with.
    """
    if isinstance(x, Tensor) or type(x) in SCALARS:
        return x
    if isinstance(x, np.generic):
        return x.item()
    if isinstance(x, np.ndarray):  # from an operator: numpy leaves a mixed expression to us
        return OPERANDS[np.ndarray](x)
    if isinstance(x, int | float | complex):  # a subclass, such as an IntEnum
        return x.__index__() if isinstance(x, int) else type(x).__mro__[-2](x)
    raise TypeError(
        f"{op.display_name} takes Tensors and Python scalars; got {type(x).__name__}. "
        "Convert it with lowtide.tensor() or lowtide.as_tensor()."
    )


def hashable(op: Op, attributes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert attributes for use in a plan's key: lists become tuples.

    Raises:
        TypeError: One cannot be hashed.
    """
    return tuple(_frozen(op, a) for a in attributes)


def _frozen(op: Op, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_frozen(op, v) for v in value)
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else _frozen(op, value.tolist())
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{op.display_name}: an attribute must be hashable; got {type(value).__name__}."
        ) from None
    return value


def _view(
    plan: Plan,
    inputs: tuple[Any, ...],
    arrays: list[Any],
    attributes: tuple[Any, ...],
    mask: int,
) -> Tensor:
    input = inputs[0]  # the others are scalars: a position that would be too many attributes
    run = plan.run
    array = run(*arrays) if run is not None else plan.op.plain(np, *arrays, **plan.attributes)
    storage = input._storage
    spec = plan.results[0]
    out = wrap(array, spec, storage)
    viewed = input._viewed
    step = (*inputs[1:], *attributes)
    count = 1 if plan.differentiable and spec.dtype is input._spec.dtype else RETYPED
    state = local.state
    if viewed is None:
        link = (None, plan.op.function, step, count)
        out._viewed = ViewInfo(input, link, storage.version, state.grad)
    else:
        before = viewed.chain
        link = (before, plan.op.function, step, before[3] + count)
        tracked = state.grad and viewed.tracked
        out._viewed = ViewInfo(viewed.base, link, storage.version, tracked)
    if mask:
        record(plan, mask, inputs, (out,))
    elif state.inference or (input._extra is not None and "inference" in input._extra):
        out._extra = {"inference": True}
    return out


def note_without_node(plan: Plan, inputs: tuple[Any, ...], outputs: Any) -> None:
    """Finish results without a node: in ``inference_mode``, a region, or a Function's forward."""
    state = local.state
    if state.inference:
        for out in outputs:
            out._extra = {"inference": True}
    elif state.recorder is not None:
        state.recorder.note(plan, inputs, outputs)
    if state.dependence is not None:
        state.dependence.note(plan, inputs, outputs)


def record(
    plan: Plan, mask: int, inputs: tuple[Any, ...], outputs: Any, keep: Any = None
) -> OpNode:
    """Record a graph node for this call.

    Args:
        plan: Of the call.
        mask: Which inputs need a gradient.
        inputs: Edges lead to these.
        outputs: Results, aux values included.
        keep: The inputs to save from, where a write in place made them differ from ``inputs``.
    """
    rules = plan.rules.get(mask) or plan.rule_set(mask)
    edges = []
    for i in rules.edge_inputs:
        x = inputs[i]
        node = x._node
        edges.append((x, 0) if node is None else (node, x._index))
    if keep is not None:
        inputs = keep
    state = local.state
    saved: list[Any] = []
    try:
        if state.saver is None:
            for from_outputs, i in rules.saves:
                if from_outputs:
                    saved.append(Held(outputs[i], OWN, i))
                else:
                    x = inputs[i]
                    saved.append(Held(x) if isinstance(x, Tensor) else x)
        else:
            if state.recorder is not None and keep is None and not plan.op.view:
                state.recorder.note(plan, inputs, outputs, rules.saves)
            for from_outputs, i in rules.saves:
                x = outputs[i] if from_outputs else inputs[i]
                if isinstance(x, Tensor):
                    x = state.saver.save(x, OWN if from_outputs else None, i)
                saved.append(x)
    except GradientError:
        _name_unsavable(rules, inputs)
        raise
    node = OpNode(rules, edges, saved)
    if state.anomaly:
        remember(node)
    if rules.output_count == 1:
        out = outputs[0]
        out._node = node
        out._requires_grad = True
        return node
    for k, out in enumerate(outputs[: rules.output_count]):
        if out._spec.dtype.category >= FLOAT:
            out._node = node
            out._index = k
            out._requires_grad = True
    return node


def _name_unsavable(rules: Any, inputs: Any) -> None:
    # Raises the error of a value that cannot be saved in words that say whose it is.
    for (from_outputs, i), label in zip(rules.saves, rules.labels, strict=True):
        if not from_outputs and isinstance(inputs[i], Tensor):
            check_savable(inputs[i], label)
