"""Gradients of operands that samples share.

``vmap(func.grad(loss), in_dims=(None, 0))(weights, samples)`` asks for one gradient per sample of
weights that there are once. An op on such a mix is one ordinary node on all samples' values, and
its ordinary rule adds the gradient of the shared operand up, which is right for any caller that
differentiates the result of ``vmap`` from outside. A pass that runs inside the ``vmap`` wants them
apart: then the node runs the rules of one sample's call, on values and gradients that are batched,
as the forward was. So the weights are read once, and only their gradients are as many as samples.
"""

from __future__ import annotations

from typing import Any

from ..autograd.backward_pass import fit
from ..autograd.node import OpNode, edge_to
from ..modes import local
from ..tensor import Tensor
from .batched import batched, labeled, levels_of, real, value_of
from .levels import Levels, inside, sizes


class SharedNode(OpNode):
    """The node of an op on all samples, of whose operands some are shared by the samples.

    Attributes:
        apart: The rule set of one sample's call.
        levels: Of the result.
        shared: Those that some operand with a gradient does not depend on.
        owned: The levels of each input.
        values: The spec of each input's values: what the edges lead to.
        samples: One sample's spec of each input.
        results: One sample's specs of the results, aux values included.
        edge_specs: The specs of the edges' targets.
    """

    __slots__ = ("apart", "edge_specs", "levels", "owned", "results", "samples", "shared", "values")
    edge_specs: Any

    def __init__(self, node: OpNode, call: Any, needed: tuple[int, ...]) -> None:
        inputs = call.inputs
        OpNode.__init__(
            self, node.rules, [edge_to(value_of(inputs[i])) for i in needed], node.handles
        )
        self.seq, self.extra = node.seq, node.extra
        mask = sum(1 << i for i in needed)
        self.apart = call.plan.rule_set(mask)
        self.levels: Levels = call.levels
        self.owned = [levels_of(x) for x in inputs]
        self.values: list[Any] = [
            value_of(x)._spec if isinstance(x, Tensor) else None for x in inputs
        ]
        self.samples: list[Any] = call.specs
        self.results = call.plan.results
        self.edge_specs = [self.values[i] for i in needed]
        self.shared = {x for i in needed for x in self.levels if x not in self.owned[i]}

    def apply(self, grads: Any, wanted: Any, retain: bool, create: bool) -> Any:
        """Compute gradients: summed over samples, or inside their ``vmap`` one for each."""
        if self.shared.isdisjoint(local.state.levels):
            specs = self.rules.edge_specs
            found = super().apply(grads, wanted, retain, create)
            return [
                None if g is None else self._summed(fit(g, specs[k], self, k), i)
                for k, (g, i) in enumerate(zip(found, self.rules.edge_inputs, strict=True))
            ]
        values = [
            self._of_sample(v, from_outputs, i)
            for v, (from_outputs, i) in zip(self.unpack(), self.rules.saves, strict=True)
        ]
        if not retain and self.rules.releases_saved:
            self.handles = None
        lead = sizes(self.levels)
        given = [
            None
            if g is None
            else labeled(
                g.reshape((*lead, *spec.shape)),
                self.levels,
            )
            for g, spec in zip(grads, self.results, strict=False)
        ]
        with inside(self.levels):
            if create and self.apart.composite is not None:
                found = list(self.apart.through_composite(values, given))
            else:
                found = self._by_rules(values, given, wanted)
            found = [
                None if g is None else fit(g, self.samples[i], self, k)
                for k, (g, i) in enumerate(zip(found, self.rules.edge_inputs, strict=True))
            ]
        return [
            None if g is None else self._of_values(g, i)
            for g, i in zip(found, self.rules.edge_inputs, strict=True)
        ]

    def _by_rules(self, values: list[Any], given: list[Any], wanted: Any) -> list[Any]:
        rules = self.apart
        values = [*values, *given, *rules.constants]
        found: list[Any] = [None] * len(self.edges)
        for rule, pick, joint, targets, _ in rules.calls:
            if wanted is not None and not any(wanted[t] for t in targets if t is not None):
                continue
            made = rule(*pick(values))
            for target, g in zip(targets, made if joint else (made,), strict=True):
                if target is not None:
                    found[target] = g
        return found

    def _summed(self, g: Tensor, i: int) -> Tensor:
        # In the shape of the operand as it was laid out for the op; to that of the input's values.
        spec = self.values[i]
        if g._spec.shape == spec.shape:
            return g
        if g._spec.numel != spec.numel:
            g = g.reshape((*sizes(self.levels), *self.samples[i].shape))
            dims = [k for k, x in enumerate(self.levels) if x not in self.owned[i]]
            g = g.sum(dims)
        return g.reshape(spec.shape)

    def _of_sample(self, value: Any, from_outputs: bool, i: int) -> Any:
        # A saved value, as one sample sees it.
        if not isinstance(value, Tensor):
            return value
        if from_outputs:
            shape = (*sizes(self.levels), *self.results[i].shape)
            return batched(value.reshape(shape), self.levels)
        spec, owned = self.values[i], self.owned[i]
        if value._spec.numel != spec.numel:
            value = value.reshape((*sizes(self.levels), *self.samples[i].shape))
            for k in reversed(range(len(self.levels))):
                if self.levels[k] not in owned:
                    value = value.select(k, 0)
        if value._spec.shape != spec.shape:
            value = value.reshape(spec.shape)
        return batched(value, owned)

    def _of_values(self, g: Tensor, i: int) -> Tensor:
        # One sample's gradient of an input; to that of the input's values.
        owned = self.owned[i]
        missing = tuple([x for x in self.levels if x not in owned])
        running = local.state.levels
        dead = tuple([x for x in missing if x not in running and x in levels_of(g)])
        if dead:
            g = real(g, dead)
            g = g.sum(tuple(range(len(dead))))
        return real(g, owned)


def share(call: Any, operands: Any, results: tuple[Tensor, ...]) -> None:
    """Put a :class:`SharedNode` in the place of the results' node, if an operand is shared.

    Args:
        call: A ``calls.Call``.
        operands: What the op ran on.
        results: What it returned.
    """
    node = next(r._node for r in results if r._node is not None)
    inputs = call.inputs
    needed = tuple(i for i, x in enumerate(operands) if isinstance(x, Tensor) and x._requires_grad)
    if all(levels_of(inputs[i]) == call.levels for i in needed) or not isinstance(node, OpNode):
        return
    fresh = SharedNode(node, call, needed)
    for r in results:
        if r._node is node:
            r._node = fresh
