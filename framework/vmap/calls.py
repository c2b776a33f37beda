"""Calls of ops on batched tensors: each becomes a call of the same op on the values of all samples.

The dispatcher comes here when it meets a spec of a batched tensor (``batched.py``). First the plan
of one sample's call is made, as ever: it words the user's errors and says what the result is. Then
the op's rule (``rules.py``) says with which operands and attributes the op gives the results of all
samples at once, or of which other calls it is made.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ..modes import local
from ..ops.dispatch import dispatch, make_plan
from ..ops.inplace import dispatch_inplace
from ..ops.plan import Plan, _promoted
from ..ops.registry import Op
from ..random.philox import Rng
from ..spec import SCALARS
from ..tensor import Tensor
from . import rules
from .batched import Batched, Layout, batched, labeled, levels_of, real, runs, value_of
from .draws import LevelRng, call_random
from .levels import Levels, ordered, sizes
from .shared import share


class Call:
    """A call of an op on batched tensors.

    Attributes:
        op: The op.
        inputs: Tensors, batched or not, and scalars.
        attributes: By name.
        levels: All levels that some input depends on, the outermost first.
        sizes: Their sizes: the leading dims of all values here.
        plan: Of the same call on one sample.
        specs: One sample's spec of each tensor input; None for others.
    """

    __slots__ = ("attributes", "inputs", "levels", "op", "plan", "sizes", "specs")

    def __init__(
        self, op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...], levels: Levels
    ) -> None:
        self.op = op
        self.plan, inputs = _plan_of_sample(op, inputs, attributes)
        self.inputs = _promoted_alike(op, inputs)
        self.attributes = dict(zip(op.attributes, attributes, strict=True))
        self.levels = levels
        self.sizes = sizes(levels)
        self.specs: list[Any] = [
            x._spec.like() if isinstance(x, Tensor) else None for x in self.inputs
        ]

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each input."""
        return self.op.names_of(len(self.inputs))

    def front(self, i: int, ndim: int = 0, expand: bool = True) -> Any:
        """Return an operand with the levels as leading dims.

        Args:
            i: Which input; one that is no tensor is returned as it is.
            ndim: Dims of a sample; more than it has are put before its own, with size 1.
            expand: Repeat it along levels that it does not depend on; else these dims have size 1.
        """
        x = self.inputs[i]
        if not isinstance(x, Tensor):
            return x
        value = real(x, self.levels, expand=False)
        sample = self.specs[i].shape
        more = ndim - len(sample)
        lead = value._spec.shape[: len(self.levels)]
        if more > 0:
            value = value.view((*lead, *(1,) * more, *sample))
        if expand and lead != self.sizes:
            tail = value._spec.shape[len(lead) :]
            value = value.expand((*self.sizes, *tail))
        return value

    def rows(self, i: int) -> Any:
        """Return an operand whose first dim counts all samples' rows."""
        value = self.front(i)
        if not isinstance(value, Tensor):
            return value
        shape = self.specs[i].shape
        count = prod(self.sizes) * (shape[0] if shape else 1)
        return value.reshape((count, *shape[1:]))

    def unbatched(self, i: int) -> bool:
        """True if an input is no batched tensor."""
        return not isinstance(self.inputs[i], Batched)

    def run(self, operands: Any, attributes: dict[str, Any] | None = None) -> Any:
        """Run the op once for all samples; return what one sample sees.

        Args:
            operands: In the place of ``inputs``; ordinary tensors.
            attributes: Those that differ from the sample's.
        """
        attributes = {**self.attributes, **(attributes or {})}
        results = dispatch(self.op, tuple(operands), tuple(attributes.values()))
        several = results if isinstance(results, tuple) else (results,)
        if local.state.grad and any(r._node is not None for r in several):
            share(self, operands, several)
        seen = tuple(self.seen(r, k) for k, r in enumerate(several))
        return seen if isinstance(results, tuple) else seen[0]

    def seen(self, value: Tensor, k: int = 0) -> Tensor:
        """Return result ``k`` as one sample sees it, given that of all samples."""
        shape = (*self.sizes, *self.plan.results[k].shape)
        if value._spec.shape != shape:
            value = value.reshape(shape)
        return batched(value, self.levels)


def _plan_of_sample(
    op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]
) -> tuple[Plan, tuple[Any, ...]]:
    while True:
        key: list[Any] = [
            x._spec.like() if isinstance(x, Tensor) else SCALARS.get(type(x)) for x in inputs
        ]
        key.append(attributes)
        plan = op.plans.get(tuple(key))
        replaced: Any = None
        if plan is None:
            plan, replaced = make_plan(op, inputs, key)
        if plan is not None:
            return plan, inputs
        inputs = tuple(replaced)


def _promoted_alike(op: Op, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    # A sample's number without dims takes part in promotion weakly; all samples' numbers do not.
    types = {x._spec.dtype for x in inputs if isinstance(x, Tensor)}
    if op.promote is None or len(types) < 2:
        return inputs
    specs = tuple(x._spec.like() if isinstance(x, Tensor) else SCALARS[type(x)] for x in inputs)
    common = _promoted(op, op.names_of(len(inputs)), specs)
    return tuple(
        x.to(c) if isinstance(x, Tensor) and c is not None and x.dtype is not c else x
        for x, c in zip(inputs, common, strict=True)
    )


def call(op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
    """Run an op on batched tensors; the dispatcher calls it."""
    made_call, rng = _prepared(op, inputs, attributes)
    if rng is not None:
        return call_random(made_call, rng)
    return rules.apply(made_call)


def call_inplace(op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
    """Run an op in place, on its first input.

    Raises:
        RuntimeError: Another input depends on a level that the first does not.
    """
    made_call, rng = _prepared(op, inputs, attributes)
    target = inputs[0]
    name = (op.inplace or op.name).lstrip("_")
    if levels_of(target) != made_call.levels:
        raise RuntimeError(
            f"vmap: {name} is not possible: inplace arithmetic writes one result into a tensor "
            "that all samples share, and an operand differs between them (it is vmapped over, the "
            "written tensor is not). Use the out-of-place op, or clone the tensor from one that is "
            "vmapped over (x.new_zeros(...), lowtide.zeros_like(x))."
        )
    value = value_of(target)
    if rng is None and rules.is_pointwise(op):
        ndim = len(made_call.specs[0].shape)
        operands = [value, *[_apart(made_call, i, ndim) for i in range(1, len(inputs))]]
        dispatch_inplace(op, tuple(operands), attributes)
        return target
    recorded = local.state.grad and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    if recorded:  # backward may want the value that is about to go
        inputs = (target.clone(), *inputs[1:])
    result = call(op, inputs, attributes)
    value.copy_(real(result, made_call.levels))
    return target


def _apart(made_call: Call, i: int, ndim: int) -> Any:
    # An operand of a write; one that samples share and that has a gradient is repeated first.
    x = made_call.inputs[i]
    if isinstance(x, Tensor) and x.requires_grad and levels_of(x) != made_call.levels:
        value = real(x, made_call.levels)
        sample = made_call.specs[i].shape
        return value.reshape((*made_call.sizes, *(1,) * (ndim - len(sample)), *sample))
    return made_call.front(i, ndim, expand=False)


def _prepared(op: Op, inputs: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[Call, Any]:
    found = [_recovered(x) for x in inputs]
    levels = {level for x in found for level in levels_of(x)}
    rng: Any = None
    for k, x in enumerate(found):
        if isinstance(x, Rng | LevelRng):
            rng = x
        if isinstance(x, LevelRng):
            levels |= {*x.levels}
            found[k] = x.first
    running = local.state.levels
    for level in levels:
        if level not in running:
            raise RuntimeError(
                f"{op.display_name}: a tensor of one sample left the vmap that it belongs to (a "
                f"BatchedTensor that survived its call of vmap, over {level.size} samples). Return "
                "it from the function instead of storing it elsewhere."
            )
    return Call(op, tuple(found), attributes, ordered(levels)), rng


def _recovered(x: Any) -> Any:
    # lowtide.detach(x) makes a tensor of a batched one's parts.
    if isinstance(x, Tensor) and not isinstance(x, Batched) and x._spec.runs is not None:
        layout = x._array
        if isinstance(layout, Layout):
            return labeled(
                value_of(layout.owner).detach(),
                layout.owner._levels,
            )
    return x


setattr(call, "inplace", call_inplace)  # noqa: B010
runs.append(call)
