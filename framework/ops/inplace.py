"""In-place ops and ``out=``.

Everything that could go wrong is asked before the first byte is written: shape, dtype, leaves that
require grad, memory that overlaps. Values that backward needs and the write destroys are copied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..autograd.remat.recorder import leave_copies
from ..autograd.saved import check_savable, count_write
from ..autograd.view_history import check_writable, rebase
from ..devices import backend
from ..dtypes import can_cast
from ..interrupts import defer_interrupts
from ..kernels.runtime.errstate import is_reentrancy_error, run_nested
from ..memory.ledger import BUFFER
from ..modes import local, no_grad
from ..spec import SCALARS
from ..storage import AliasStorage, ExternalStorage, may_share_memory
from ..tensor import Tensor
from .dispatch import dispatch, hashable, make_plan, python_value, record

if TYPE_CHECKING:
    from .registry import Op

_shares_memory: Any = np.shares_memory  # NumPy's annotations know two values of max_work
_MOST_WORK = 10_000  # of a search for a shared element, some 0.1 ms; then it is taken for found


def dispatch_inplace(  # noqa: C901, PLR0915 - one order of checks, writes and records
    op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]
) -> Tensor:
    """Run an op in place, on its first input.

    Raises:
        RuntimeError: The result does not fit the input, or autograd could not follow the write.
    """
    target = inputs[0]
    if _written_at_once(op, inputs, attributes):
        return target
    name = (op.inplace or op.name).lstrip("_")
    if not isinstance(target, Tensor):
        raise TypeError(f"{name} writes into a Tensor; got {type(target).__name__}.")
    inputs = tuple(
        x if isinstance(x, Tensor) or type(x) in SCALARS else python_value(op, x) for x in inputs
    )
    mask = 0
    key: list[Any] = []
    for i, x in enumerate(inputs):
        if isinstance(x, Tensor):
            x._refresh()
            key.append(x._spec)
            mask |= x._requires_grad << i
        else:
            key.append(SCALARS[type(x)])
    attributes = hashable(op, attributes)
    key.append(attributes)
    plan = op.plans.get(tuple(key))
    if plan is None:
        plan, replaced = make_plan(op, inputs, key)
        if replaced is not None:
            return (plan.inplace if plan else dispatch_inplace)(op, replaced, attributes)
    spec = plan.results[0]
    if spec.shape != target._spec.shape:
        raise RuntimeError(
            f"{name}: output with shape {tuple(target.shape)} doesn't match the broadcast shape "
            f"{tuple(spec.shape)}. Use the out-of-place op."
        )
    if not can_cast(spec.dtype, target._spec.dtype):
        raise RuntimeError(
            f"{name}: result type {spec.dtype} can't be cast to the desired output type "
            f"{target.dtype}. Use the out-of-place op, or convert the tensor first."
        )
    state = local.state
    recording = mask and state.grad and plan.differentiable and target.dtype.is_differentiable
    check_writable(target, name, bool(recording))
    _check_no_overlap(target, inputs, name)
    if any(_is_overwritten(op, target, x) for x in inputs[1:]):
        apart = (x.clone() if _is_overwritten(op, target, x) else x for x in inputs[1:])
        return dispatch_inplace(op, (target, *apart), attributes)
    saved_inputs = inputs
    if recording:  # backward may want values that are about to go
        rules = plan.rule_set(mask)
        wanted = {i for from_outputs, i in rules.saves if not from_outputs}
        if state.saver is None:  # what cannot be kept is refused before the write
            for (from_outputs, i), label in zip(rules.saves, rules.labels, strict=True):
                if not from_outputs and isinstance(inputs[i], Tensor):
                    check_savable(inputs[i], label)
        again = state.recorder is not None and state.recorder.makes_again(target)
        saved_inputs = tuple(
            _copy_of(x) if i in wanted and not again and _shares(x, target) else x
            for i, x in enumerate(inputs)
        )
        if state.saver is not None:  # a pack hook may fail: before the write
            saved_inputs = tuple(
                state.saver.save(x, None, i) if i in wanted and isinstance(x, Tensor) else x
                for i, x in enumerate(saved_inputs)
            )
    arrays = [x._array if isinstance(x, Tensor) else x for x in inputs]
    storage = target._storage
    with defer_interrupts():  # what is written, and what the graph and regions know of it
        noted = None
        if state.recorder is not None:
            noted = state.recorder.before_write(inputs)
        elif storage.pins and storage.role == BUFFER:  # a module's state, such as running averages
            leave_copies(storage)
        plan.write(arrays, storage, target._array, target._spec)
        count_write(storage, name)
        if noted is not None:
            state.recorder.wrote(plan, noted, target)
        if state.dependence is not None:
            state.dependence.wrote(plan, inputs)
        if recording:
            before = (target._node, target._index, target._requires_grad)
            node = record(plan, mask, inputs, (target,), saved_inputs)
            target._node, target._index, target._requires_grad = before
            rebase(target, node)
    return target


def _written_at_once(op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> bool:
    # The short road: a known plan of one kernel, nothing to record, and a target that no graph and
    # no region knows of, and that no other input shares. False: nothing has happened.
    target = inputs[0]
    state = local.state
    if not isinstance(target, Tensor) or state.notes_results or target._extra is not None:
        return False
    array, storage = target._array, target._storage
    if storage.pins or storage.root is not storage or not array.flags.c_contiguous:
        return False
    key: list[Any] = []
    arrays = []
    for x in inputs:
        if isinstance(x, Tensor):
            if x is target:
                if key and not op.elementwise:  # an operand, too
                    return False
            elif (
                x._storage is storage
                or x._storage.__class__ is AliasStorage
                or x._storage.__class__ is ExternalStorage is storage.__class__
            ):
                return False
            viewed = x._viewed
            if viewed is not None and (state.grad or viewed.version != x._storage.version):
                return False
            if x._requires_grad and state.grad:
                return False
            key.append(x._spec)
            arrays.append(x._array)
        else:
            key.append(SCALARS.get(type(x)))
            arrays.append(x)
    key.append(attributes)
    try:
        plan = op.plans.get(tuple(key))
    except TypeError:  # an attribute is a list
        return False
    if plan is None or not plan.simple or plan.results[0] is not target._spec:
        return False
    storage.version += 1  # before the write, which an interrupt may follow at once
    if plan.run is not None:
        if plan.one_write:
            _run(state, plan, array, arrays)
        else:
            with defer_interrupts():
                _run(state, plan, array, arrays)
    return True


def _run(state: Any, plan: Any, array: Any, arrays: list[Any]) -> None:
    try:
        state.run_kernel(plan.run, array, *arrays)
    except RuntimeError as error:
        if not is_reentrancy_error(error):
            raise
        run_nested(plan.run, array, *arrays)


def _shares(x: Any, target: Tensor) -> bool:
    return isinstance(x, Tensor) and x._storage.root is target._storage.root


def _copy_of(x: Tensor) -> Tensor:
    # The value before the write, with the history it had. A region cannot recompute it.
    state = local.state
    recorder, state.recorder = state.recorder, None
    try:
        kept: Tensor = x.detach().clone()
    finally:
        state.recorder = recorder
    kept._node, kept._index, kept._requires_grad = x._node, x._index, x._requires_grad
    if x._requires_grad and x._node is None:
        kept._requires_grad = False  # an edge leads to the leaf itself, not to its copy
    return kept


def _check_no_overlap(target: Tensor, inputs: tuple[Any, ...], name: str) -> None:
    array, storage = target._array, target._storage
    if name == "fill_":  # one value everywhere: what is written twice is written alike
        return
    twice = any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True))
    if twice and array.size:
        raise RuntimeError(
            f"{name}: unsupported operation: more than one element of the written-to tensor refers "
            "to a single memory location. Please clone() the tensor before performing the "
            "operation."
        )
    for x in inputs[1:]:
        if (
            isinstance(x, Tensor)
            and x._storage.root is storage.root
            and _partly_the_same(target, x)
        ):
            raise RuntimeError(
                f"{name}: unsupported operation: some elements of the input tensor and the "
                "written-to tensor refer to a single memory location: an input of shape "
                f"{tuple(x.shape)} and strides {x.stride()} overlaps one of shape "
                f"{tuple(target.shape)} and strides {target.stride()}. Please clone() the tensor "
                "before performing the operation."
            )


def _partly_the_same(target: Tensor, x: Tensor) -> bool:
    # A kernel may read an element before it writes that element, not one it has written already.
    dense = _is_dense(target._array) and _is_dense(x._array)
    return dense and _lies_across(target, x)


def _is_overwritten(op: Op, target: Tensor, x: Any) -> bool:
    # Whether a kernel may write an element that it has yet to read as part of this input.
    #
    # ``a[:, 1:]`` and ``a[:, :-1]`` share elements; ``a[:, 0]`` and ``a[:, 1]`` lie in the same
    # memory and share none. PyTorch does not distinguish these cases, and copies in neither.
    if not isinstance(x, Tensor) or not may_share_memory(x._storage, target._storage):
        return False
    if not _lies_across(target, x) and (op.elementwise or op.name == "_copy"):
        return False
    try:
        return bool(_shares_memory(_place(target), _place(x), max_work=_MOST_WORK))
    except np.exceptions.TooHardError:
        return True


def _lies_across(target: Tensor, x: Tensor) -> bool:
    # Whether the memory between the first and the last element of each is partly the same.
    a, b = target._array, x._array
    if a is b or not (target.numel() and x.numel()):
        return False
    first, last = _span(target)
    begin, end = _span(x)
    if end <= first or last <= begin:
        return False
    return first != begin or not _lies_alike(a, b)


def _lies_alike(a: Any, b: Any) -> bool:
    # Whether elements of the same memory are at the same place, once ``b`` is broadcast to ``a``.
    if a.shape == b.shape and a.strides == b.strides:
        return True
    missing = a.ndim - b.ndim
    if missing < 0 or any(n != 1 for n in a.shape[:missing]):
        return False
    mine = zip(a.shape[missing:], a.strides[missing:], b.shape, b.strides, strict=True)
    return all(n == m and (n == 1 or s == t) for n, s, m, t in mine)


class _Place:
    # Memory of any device as NumPy describes it: nothing reads it.
    def __init__(self, x: Tensor) -> None:
        self.__array_interface__ = {
            "data": (_span(x)[0], True),
            "shape": x._array.shape,
            "strides": x._array.strides,
            "typestr": f"|V{x.itemsize}",
            "version": 3,
        }


def _place(x: Tensor) -> Any:
    return x._array if type(x._array) is np.ndarray else np.asarray(_Place(x))


def _is_dense(a: Any) -> bool:
    if a.flags.c_contiguous or a.flags.f_contiguous:
        return True
    expected = a.itemsize
    for stride, n in sorted(zip(a.strides, a.shape, strict=True)):
        if n != 1:
            if stride != expected:
                return False
            expected *= n
    return True


def need_separate(name: str, out: Tensor, inputs: Any) -> None:
    """Raise an error for an ``out=`` that overlaps itself or an input.

    Raises:
        RuntimeError: It does.
    """
    _check_no_overlap(out, (out,), name)
    first, last = _span(out)
    for x in inputs:
        if isinstance(x, Tensor) and x._storage.root is out._storage.root:
            begin, end = _span(x)
            if begin < last and first < end:
                raise RuntimeError(
                    f"{name}: unsupported operation: the input tensor cannot refer to any of the "
                    "output memory locations. Found overlap. Pass another out=."
                )


def _span(x: Tensor) -> tuple[int, int]:
    # Addresses of the first byte that a tensor reads and of the one after its last.
    start = backend(x.device).address(x._array)
    if not x.numel():
        return start, start
    steps = zip(x._array.shape, x._array.strides, strict=True)
    return start, start + sum((n - 1) * s for n, s in steps) + x.itemsize


def dispatch_out(op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...], out: Any) -> Any:
    """Run an op and write its results to the tensors given as ``out=``."""
    write_out(op.display_name, partial(dispatch, op, inputs, attributes), inputs, out)
    return out


def write_out(name: str, compute: Callable[[], Any], inputs: tuple[Any, ...], out: Any) -> Any:
    """Write what a function computes to the tensors given as ``out=``, and return them.

    Raises:
        TypeError: There are more or fewer tensors than results.
        RuntimeError: One of the tensors requires grad, or a result cannot be cast to its dtype.
    """
    outs = (out,) if isinstance(out, Tensor) else tuple(out)
    _check_no_graph(name, (*inputs, *outs))
    with no_grad():
        found = compute()
        results = (found,) if isinstance(found, Tensor) else found
        outs = as_outs(name, out, len(results))
        for o, r in zip(outs, results, strict=True):
            _check_cast(name, o, r)
        with defer_interrupts():
            for o, r in zip(outs, results, strict=True):
                if o.shape != r.shape:
                    o.resize_(r.shape)
                o.copy_(r)
    if isinstance(found, Tensor):
        return outs[0]
    return type(found)(*outs) if hasattr(found, "_fields") else outs


def _check_no_graph(name: str, tensors: Any) -> None:
    if local.state.grad and any(isinstance(x, Tensor) and x.requires_grad for x in tensors):
        raise RuntimeError(
            f"{name}(): functions with out=... arguments don't support automatic "
            "differentiation, but one of the arguments requires grad. Detach it, or leave out=."
        )


def _check_cast(name: str, out: Tensor, result: Tensor) -> None:
    if not can_cast(result.dtype, out.dtype):
        raise RuntimeError(
            f"{name}(): result type {result.dtype} can't be cast to the desired output type "
            f"{out.dtype}. Pass an out= of that dtype."
        )


def as_outs(
    name: str, out: Any, count: int, error: type[Exception] = TypeError
) -> tuple[Tensor, ...]:
    """Return what was given as ``out=`` as a tuple, a tensor for each of ``count`` results."""
    outs = (out,) if isinstance(out, Tensor) else tuple(out)
    if len(outs) != count:
        raise error(
            f"{name}(): out= takes one tensor for each of {count} results; got {len(outs)}. Pass "
            f"{f'a tuple of {count}' if count != 1 else 'that one'}, or leave out=."
        )
    return outs


def into(out: Any, result: Any, name: str = "out=") -> Any:
    """Write the value of a composition to the tensor given as ``out=``, if there is one.

    Raises:
        RuntimeError: One of them requires grad, or the result cannot be cast to the tensor's dtype.
    """
    if out is None:
        return result
    _check_no_graph(name, (out, result))
    _check_cast(name, out, result)
    with defer_interrupts():
        if out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)
