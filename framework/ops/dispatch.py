"""The dispatcher: from a call to a result, with memory from the pool and a node in the graph.

Everything that can be known from specs and attributes is decided once, in a :class:`Plan`, and
found again by a dictionary look-up: which device, which kernel, what results look like, which
inputs are converted, which rules apply. A repeated call costs that look-up, the allocation, the
kernel, and, if a gradient is wanted, a node with a handle for each saved value.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np

from ..autograd.modes import local
from ..autograd.node import OpNode
from ..autograd.saved import OWN, Held, check_savable
from ..autograd.views import check_writable, rebase, refresh
from ..devices import backend
from ..devices.device import device
from ..dtypes import FLOAT, INT, can_cast, combine, dtype, float32, get_default_dtype
from ..kernels.silence import run_nested, was_busy
from ..memory.ledger import TEMPORARY, WORKSPACE
from ..spec import NONE, SCALARS, ScalarSpec, Spec
from ..tensor import Tensor, ViewInfo, wrap
from .registry import Op
from .rules import RuleSet

_new = object.__new__
MAX_PLANS = 4096  # per op; a program whose shapes never repeat must not grow without bound


class Plan:
    """What a call of an op with given specs and attributes comes down to.

    Attributes:
        kernel: The kernel, as declared.
        xp: The device's array module; None on meta, where no kernel runs.
        run: The kernel with ``xp`` and the attributes filled in; None on meta.
        backend: The device's backend.
        results: Specs of visible results and aux values.
        simple: One result, and nothing of what follows: the dispatcher's short road.
        casts: Per input the spec that the kernel wants it in, or None.
        compute: Per result the spec that the kernel writes, where that is another dtype.
        scratch: Specs of the scratch buffers.
        layout: Predicate that input arrays must meet, or None.
        differentiable: Some result can carry a gradient.
        rules: Rule sets by the bit mask of inputs that need a gradient.
    """

    __slots__ = (
        "attributes",
        "backend",
        "casts",
        "compute",
        "differentiable",
        "kernel",
        "layout",
        "op",
        "results",
        "rules",
        "run",
        "scratch",
        "simple",
        "specs",
        "xp",
    )

    def __init__(self, op: Op, specs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        self.op = op
        self.specs = specs
        self.attributes = attributes
        self.rules: dict[int, RuleSet] = {}
        where = _common_device(op, specs)
        be = self.backend = backend(where)
        names = op.names_of(len(specs))
        common = _promoted(op, names, specs)
        seen = tuple(
            s if c is None else Spec(s.shape, c, where) for s, c in zip(specs, common, strict=True)
        )
        seen = tuple(None if s is NONE else s for s in seen)
        inferred = () if op.infer is None else op.infer(*seen, **attributes)
        if isinstance(inferred, Spec):
            inferred = (inferred,)
        inferred = tuple(s.on(where) for s in inferred)
        count = len(op.returns) + len(op.aux)
        self.results = inferred[:count]
        self.scratch = inferred[count:]
        up = op.half == "float32"
        casts = [_kernel_spec(s, c, up) for s, c in zip(specs, common, strict=True)]
        self.casts = tuple(casts) if any(casts) else None
        compute = [r.like(dtype=float32) if up and r.dtype.is_half else None for r in self.results]
        self.compute = tuple(compute) if any(compute) else None
        kernel_sees = tuple(
            c or (None if s is NONE else s) for c, s in zip(casts, seen, strict=True)
        )
        kernel, self.layout = op.kernel_for(be.kernel_key, kernel_sees, attributes)
        self.kernel, self.xp = kernel, be.xp
        self.run = None if be.xp is None else partial(kernel, be.xp, **attributes)
        self.simple = len(self.results) == 1 and not (
            self.scratch or self.casts or self.compute or self.layout or op.adopt
        )
        self.differentiable = bool(op.rules) and (
            op.infer is None or any(r.dtype.is_differentiable for r in self.results)
        )

    def rule_set(self, mask: int) -> RuleSet:
        """The rules for the inputs in ``mask``."""
        found = self.rules.get(mask)
        if found is None:
            found = self.rules[mask] = RuleSet(
                self.op, self.specs, self.attributes, self.results, mask
            )
        return found


def _common_device(op: Op, specs: tuple[Any, ...]) -> device:
    found: device | None = None
    for s in specs:
        if isinstance(s, Spec):
            if found is None:
                found = s.device
            elif s.device is not found:
                listed = ", ".join(
                    f"{n} on {s.device}"
                    for n, s in zip(op.names_of(len(specs)), specs, strict=True)
                    if isinstance(s, Spec)
                )
                raise RuntimeError(
                    f"{op.shown} needs all tensors on one device (Expected all tensors to be on "
                    f"the same device); got {listed}. Move one with .to()."
                )
    if found is None:
        raise TypeError(
            f"{op.shown}: at least one input must be a Tensor; got only scalars. Wrap one in "
            "lowtide.tensor()."
        )
    return found


def _promoted(op: Op, names: Any, specs: tuple[Any, ...]) -> list[dtype | None]:
    """The common dtype of each input that takes part in promotion; None for the others."""
    if op.promote is None:
        return [None] * len(specs)
    rule, among = (op.promote, None) if isinstance(op.promote, str) else op.promote
    takes = [
        not (isinstance(s, ScalarSpec) and s.category < 0) and (among is None or n in among)
        for n, s in zip(names, specs, strict=True)
    ]
    group = [s for s, t in zip(specs, takes, strict=True) if t]
    if rule == "same":
        types = {s.dtype for s in group if isinstance(s, Spec)}
        if len(types) > 1:
            listed = ", ".join(
                f"{n} {s.dtype}" for n, s, t in zip(names, specs, takes, strict=True) if t
            )
            raise RuntimeError(
                f"{op.shown}: expected its inputs to have the same dtype; got {listed}. "
                "Convert one with .to()."
            )
        common = types.pop()
    else:
        common = combine(
            [s.dtype for s in group if isinstance(s, Spec) and s.ndim],
            [s.dtype for s in group if isinstance(s, Spec) and not s.ndim],
            [s.category for s in group if isinstance(s, ScalarSpec)],
        )
        kinds = [s.dtype.category if isinstance(s, Spec) else s.category for s in group]
        if rule == "number" and 0 in kinds and any(kinds):
            raise RuntimeError(
                "Subtraction, the `-` operator, with a bool tensor is not supported. If you are "
                "trying to invert a mask, use the `~` or `logical_not()` operator instead."
            )
        if rule == "float" and common.category <= INT:
            common = get_default_dtype()
    return [common if t else None for t in takes]


def _kernel_spec(spec: Any, common: dtype | None, up: bool) -> Spec | None:
    # The spec a tensor input is converted to for the kernel, or None if it is right as it is.
    if not isinstance(spec, Spec):
        return None
    wanted = common or spec.dtype
    if up and wanted.is_half:
        wanted = float32
    return None if wanted is spec.dtype else spec.like(dtype=wanted)


# Calls


def dispatch(op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
    """Run an op on tensors and scalars; return its result, or a tuple of results."""
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
        return dispatch(op, inputs, _hashable(op, attributes))
    if plan is None:
        plan, replaced = make_plan(op, inputs, key)
        if replaced is not None:
            return dispatch(op, replaced, attributes)
    state = local.state
    recording = mask and state.grad and plan.differentiable
    if plan.simple:
        spec = plan.results[0]
        if op.view:
            return _view(plan, inputs, arrays, attributes, mask if recording else 0)
        storage, array = plan.backend.empty(spec)
        if plan.run is not None:
            try:
                state.run(plan.run, array, *arrays)
            except RuntimeError as error:
                if not was_busy(error):
                    raise
                run_nested(plan.run, array, *arrays)
        out = wrap(array, spec, storage)
        if recording:
            record(plan, mask, inputs, (out,))
        elif state.inference:
            out._extra = {"inference": True}
        return out
    results = _quietly(_execute, plan, arrays, None)
    if recording:
        record(plan, mask, inputs, results)
    elif state.inference:
        for out in results:
            out._extra = {"inference": True}
    count = len(op.returns)
    return results[0] if count == 1 else tuple(results[:count])


def dispatch_pair(op: Op, a: Any, b: Any) -> Any:
    """The short road of :func:`dispatch` for two inputs and no attributes.

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
    if not plan.simple or state.inference:
        return dispatch(op, (a, b), ())
    spec = plan.results[0]
    storage, array = plan.backend.empty(spec)
    if plan.xp is not None:
        try:
            state.run(plan.kernel, plan.xp, array, a._array, barray)
        except RuntimeError as error:
            if not was_busy(error):
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
    """The plan for a call met for the first time.

    Returns:
        (plan, None), or (None, inputs) if the call is to be repeated with other inputs: NumPy
        scalars become Python's, 0-d tensors of the CPU move to where the others are.
    """
    specs = tuple(key[:-1])
    if None in specs:
        return None, tuple(_python_value(op, x) for x in inputs)
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


def _python_value(op: Op, x: Any) -> Any:
    if isinstance(x, Tensor) or type(x) in SCALARS:
        return x
    if isinstance(x, np.generic):
        return x.item()
    if isinstance(x, np.ndarray):  # from an operator: numpy leaves a mixed expression to us
        from .arrays import tensor

        return tensor(x)
    if isinstance(x, int | float | complex):  # a subclass, such as an IntEnum
        return x.__index__() if isinstance(x, int) else type(x).__mro__[-2](x)
    raise TypeError(
        f"{op.shown} takes Tensors and Python scalars; got {type(x).__name__}. "
        "Convert it with lowtide.tensor() or lowtide.as_tensor()."
    )


def _hashable(op: Op, attributes: tuple[Any, ...]) -> tuple[Any, ...]:
    def freeze(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(freeze(v) for v in value)
        if isinstance(value, Tensor):
            return value.item() if value.numel() == 1 else freeze(value.tolist())
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{op.shown}: an attribute must be hashable; got {type(value).__name__}."
            ) from None
        return value

    return tuple(freeze(a) for a in attributes)


def _quietly(f: Any, *args: Any) -> Any:
    try:
        return local.state.run(f, *args)
    except RuntimeError as error:
        if not was_busy(error):
            raise
        return run_nested(f, *args)


def _execute(plan: Plan, arrays: list[Any], targets: Any) -> list[Tensor]:
    """Run a kernel with all that it may want: conversions, scratch, several results."""
    be, op = plan.backend, plan.op
    held = []  # workspace, given back when this function ends
    arrays = list(arrays)
    if plan.casts is not None:
        for i, spec in enumerate(plan.casts):
            if spec is not None:
                storage, array = be.empty(spec, WORKSPACE)
                held.append(storage)
                if be.xp is not None:
                    be.copy(array, arrays[i])
                arrays[i] = array
    if plan.layout is not None:
        for i, array in enumerate(arrays):
            if hasattr(array, "shape") and not plan.layout(array):
                spec = plan.specs[i] if plan.casts is None else plan.casts[i] or plan.specs[i]
                storage, fresh = be.empty(spec, WORKSPACE)
                held.append(storage)
                if be.xp is not None:
                    be.copy(fresh, array)
                arrays[i] = fresh
    if op.adopt:
        return _adopt(plan, arrays)
    outs = targets or [be.empty(spec) for spec in plan.results]
    buffers = [array for _, array in outs]
    if plan.compute is not None:
        for i, spec in enumerate(plan.compute):
            if spec is not None:
                storage, buffers[i] = be.empty(spec, WORKSPACE)
                held.append(storage)
    for spec in plan.scratch:
        storage, array = be.empty(spec, WORKSPACE)
        held.append(storage)
        buffers.append(array)
    if plan.run is not None:
        plan.run(*buffers, *arrays)
        if plan.compute is not None:
            for i, spec in enumerate(plan.compute):
                if spec is not None:
                    be.copy(outs[i][1], buffers[i])
    return [wrap(a, s, st) for (st, a), s in zip(outs, plan.results, strict=True)]


def _adopt(plan: Plan, arrays: list[Any]) -> list[Tensor]:
    # A library allocated the result: its bytes move to the pool, where the ledger sees them.
    be = plan.backend
    if plan.run is None:
        if not plan.results:
            raise NotImplementedError(
                f"{plan.op.shown} on meta: the shape of its result depends on values, and meta "
                "has none. Run it on cpu or cuda."
            )
        return [wrap(a, s, st) for s in plan.results for st, a in [be.empty(s)]]
    made = plan.run(*arrays)
    made = made if isinstance(made, tuple) else (made,)
    results = []
    for k, array in enumerate(made):
        from ..dtypes import as_dtype

        spec = (
            plan.results[k] if plan.results else Spec(array.shape, as_dtype(array.dtype), be.device)
        )
        storage, out = be.empty(spec)
        be.copy(out, array)
        results.append(wrap(out, spec, storage))
    return results


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
    out = wrap(array, plan.results[0], storage)
    viewed = input._viewed
    step = (plan.op.function, (*inputs[1:], *attributes))
    state = local.state
    if viewed is None:
        out._viewed = ViewInfo(input, (step,), storage.version, state.grad)
    else:
        tracked = state.grad and viewed.tracked
        out._viewed = ViewInfo(viewed.base, (*viewed.chain, step), storage.version, tracked)
    if mask:
        record(plan, mask, inputs, (out,))
    elif state.inference or (input._extra is not None and "inference" in input._extra):
        out._extra = {"inference": True}
    return out


def record(
    plan: Plan, mask: int, inputs: tuple[Any, ...], outputs: Any, keep: Any = None
) -> OpNode:
    """Put a node for this call into the graph.

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
    if state.saver is None:
        for from_outputs, i in rules.saves:
            if from_outputs:
                saved.append(Held(outputs[i], OWN, i))
            else:
                x = inputs[i]
                saved.append(Held(x) if isinstance(x, Tensor) else x)
    else:
        for from_outputs, i in rules.saves:
            x = outputs[i] if from_outputs else inputs[i]
            if isinstance(x, Tensor):
                x = state.saver.save(x, OWN if from_outputs else None, i)
            saved.append(x)
    node = OpNode(rules, edges, saved)
    if state.anomaly:
        from ..autograd.anomaly import remember

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


def dispatch_inplace(op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Tensor:
    """Run an op with its first input as the result.

    Raises:
        RuntimeError: The result does not fit the input, or autograd could not follow the write.
    """
    target = inputs[0]
    name = (op.inplace or op.name).lstrip("_")
    if not isinstance(target, Tensor):
        raise TypeError(f"{name} writes into a Tensor; got {type(target).__name__}.")
    inputs = tuple(
        x if isinstance(x, Tensor) or type(x) in SCALARS else _python_value(op, x) for x in inputs
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
    attributes = _hashable(op, attributes)
    key.append(attributes)
    plan = op.plans.get(tuple(key))
    if plan is None:
        plan, replaced = make_plan(op, inputs, key)
        if replaced is not None:
            return dispatch_inplace(op, replaced, attributes)
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
    saved_inputs = inputs
    if recording:  # backward may want values that are about to go
        wanted = {i for from_outputs, i in plan.rule_set(mask).saves if not from_outputs}
        if state.saver is None:  # what cannot be kept is refused before the write
            for i in wanted:
                if isinstance(inputs[i], Tensor):
                    check_savable(inputs[i])
        saved_inputs = tuple(
            _copy_of(x) if i in wanted and _shares(x, target) else x for i, x in enumerate(inputs)
        )
        if state.saver is not None:  # a pack hook may fail: before the write
            saved_inputs = tuple(
                state.saver.save(x, None, i) if i in wanted and isinstance(x, Tensor) else x
                for i, x in enumerate(saved_inputs)
            )
    arrays = [x._array if isinstance(x, Tensor) else x for x in inputs]
    be = plan.backend
    if spec.dtype is target._spec.dtype and len(plan.results) == 1:
        _quietly(_execute, plan, arrays, [(target._storage, target._array)])
    else:
        result = _quietly(_execute, plan, arrays, None)[0]
        if be.xp is not None:
            _quietly(be.copy, target._array, result._array)
    target._storage.version += 1
    if recording:
        before = (target._node, target._index, target._requires_grad)
        node = record(plan, mask, inputs, (target,), saved_inputs)
        target._node, target._index, target._requires_grad = before
        rebase(target, node)
    return target


def _shares(x: Any, target: Tensor) -> bool:
    return isinstance(x, Tensor) and x._storage is target._storage


def _copy_of(x: Tensor) -> Tensor:
    # The value before the write, with the history it had.
    kept: Tensor = x.detach().clone()
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
        if isinstance(x, Tensor) and x._storage is storage and _partly_the_same(array, x._array):
            raise RuntimeError(
                f"{name}: unsupported operation: some elements of the input tensor and the "
                "written-to tensor refer to a single memory location: an input of shape "
                f"{tuple(x.shape)} and strides {x.stride()} overlaps one of shape "
                f"{tuple(target.shape)} and strides {target.stride()}. Please clone() the tensor "
                "before performing the operation."
            )


def _partly_the_same(a: Any, b: Any) -> bool:
    # A kernel may read an element before it writes that element, not one it has written already.
    if a is b or not np.may_share_memory(a, b):
        return False
    if not (_is_dense(a) and _is_dense(b)):
        return False  # as PyTorch: rows and columns that interleave are not told apart
    return a.shape != b.shape or a.strides != b.strides or _start(a) != _start(b)


def _is_dense(a: Any) -> bool:
    if a.flags.forc:
        return True
    expected = a.itemsize
    for stride, n in sorted(zip(a.strides, a.shape, strict=True)):
        if n != 1:
            if stride != expected:
                return False
            expected *= n
    return True


def _start(a: Any) -> Any:
    return a.__array_interface__["data"]


def dispatch_out(op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...], out: Any) -> Any:
    """Run an op and leave its results in the tensors given as ``out=``."""
    from ..autograd.modes import no_grad

    outs = (out,) if isinstance(out, Tensor) else tuple(out)
    if local.state.grad and any(
        isinstance(x, Tensor) and x.requires_grad for x in (*inputs, *outs)
    ):
        raise RuntimeError(
            f"{op.shown}(): functions with out=... arguments don't support automatic "
            "differentiation, but one of the arguments requires grad. Detach it, or leave out=."
        )
    with no_grad():
        results = dispatch(op, inputs, attributes)
        results = (results,) if isinstance(results, Tensor) else results
        for o, r in zip(outs, results, strict=True):
            if not can_cast(r.dtype, o.dtype):
                raise RuntimeError(
                    f"{op.shown}(): result type {r.dtype} can't be cast to the desired output type "
                    f"{o.dtype}. Pass an out= of that dtype."
                )
        for o, r in zip(outs, results, strict=True):
            if o.shape != r.shape:
                o.resize_(r.shape)
            o.copy_(r)
    return out


# The functions that users call


def make_functions(op: Op, allow_out: bool) -> tuple[Any, Any]:
    """The public function of an op, and its in-place twin if it declares one.

    Both are built from a template, as dataclasses build ``__init__``: so that the call has the
    op's own argument names and defaults at the cost of one plain call.
    """
    empty = inspect.Parameter.empty
    head = []
    for n in op.inputs:
        if n == op.variadic:
            head.append(f"*{n}")
        else:
            head.append(n if op.input_defaults[n] is empty else f"{n}=_d_{n}")
    tail = [n if d is empty else f"{n}=_d_{n}" for n, d in op.attributes.items()]
    defaults = {f"_d_{n}": d for n, d in (op.attributes | op.input_defaults).items()}
    if op.variadic is None:  # a required attribute may not follow a defaulted input
        required_after = any("=" in h for h in head) and any("=" not in t for t in tail)
        if required_after:
            tail = ["*", *tail]
    star = any(p.startswith("*") for p in (*head, *tail))
    call_inputs = ", ".join(f"*{n}" if n == op.variadic else n for n in op.inputs)
    inputs = f"({call_inputs},)" if op.inputs else "()"
    attrs = f"({', '.join(op.attributes)},)" if op.attributes else "()"
    out = [] if not allow_out else (["out=None"] if star else ["*", "out=None"])
    check = f"    if out is not None: return dispatch_out(op, {inputs}, {attrs}, out)\n"
    name = op.name if op.name.isidentifier() else "call"
    source = (
        f"def {name}({', '.join((*head, *tail, *out))}):\n"
        + (check if allow_out else "")
        + (
            f"    return dispatch_pair(op, {call_inputs})\n"
            if len(op.inputs) == 2 and not (op.attributes or op.variadic or op.view)
            else f"    return dispatch(op, {inputs}, {attrs})\n"
        )
    )
    if op.inplace:
        source += (
            f"def _inplace({', '.join((*head, *tail))}):\n"
            f"    return dispatch_inplace(op, {inputs}, {attrs})\n"
        )
    scope = {
        "op": op,
        "dispatch": dispatch,
        "dispatch_pair": dispatch_pair,
        "dispatch_out": dispatch_out,
        "dispatch_inplace": dispatch_inplace,
        **defaults,
    }
    exec(compile(source, f"<op {op.name}>", "exec"), scope)
    function = scope[name]
    in_place: Any = scope.get("_inplace")
    for f, n in ((function, op.name), (in_place, op.inplace or "")):
        if f is not None:
            f.__name__ = f.__qualname__ = n
            f.__module__ = op.plain.__module__
            f.__doc__ = op.doc if f is function else f"In-place twin of ``{op.name}``.\n\n{op.doc}"
    return function, in_place


__all__ = ["TEMPORARY", "Plan", "dispatch", "dispatch_inplace", "dispatch_out", "make_functions"]
