"""Gradient rules: parameter names, and rule sets per call signature.

The names are a closed vocabulary. ``g`` (or ``g_values`` for an op with several results) is the
gradient that arrives; the name of an input, of a result, or of an ``aux`` value asks for that
value and **keeps it alive**; ``<name>_spec`` asks for shape and dtype only; an attribute's name
gives the attribute; ``needs`` says, for a joint rule, which of its inputs need a gradient.
``room`` is one of the values that the rule was declared with (``vjp(..., room=("g", "input"))``):
the first that is there and whose bytes nothing else can see, or None. The rule writes its result
there (``overwrite.write_over``), and reads it no more then.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..autograd.engine import grad, zeros_of
from ..autograd.node_names import node_name
from ..autograd.overwriting import ARRIVED, LEAST_ROOM, SAVED
from ..modes import enable_grad
from ..spec import Spec
from ..tensor import Tensor
from .templates import parameter_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .registry import Op


Slots = dict[tuple[bool, int], int]  # (from outputs?, position) -> place among the kept values


class Rule:
    """A gradient rule: the inputs it serves, its function, and the names it needs.

    Attributes:
        room: The values over which its result may be written, the best first.
    """

    __slots__ = ("function", "inputs", "joint", "names", "room")

    def __init__(
        self, op: Op, inputs: tuple[str, ...], function: Any, room: tuple[str, ...] = ()
    ) -> None:
        self.inputs = inputs
        self.function = function
        self.names = parameter_names(function)
        self.room = room
        # A rule for several inputs, or for a list of them, returns a tuple.
        self.joint = len(inputs) > 1 or inputs == (op.variadic,)
        known = vocabulary(op)
        for name in (*self.names, *inputs):
            if name not in known:
                raise TypeError(
                    f"{op.name}: a gradient rule may name {', '.join(sorted(known))}; got {name}."
                )
        if bool(room) != ("room" in self.names) or not {*room} <= known:
            raise TypeError(
                f"{op.name}: a gradient rule that names room is declared with the values that may "
                f"be overwritten; got {room} and the names {self.names}."
            )


def vocabulary(op: Op) -> set[str]:
    """Return every name that a rule of ``op`` may use."""
    values = {*op.inputs, *op.returns, *op.aux}
    cotangents = {"g"} if len(op.returns) == 1 else {f"g_{r}" for r in op.returns}
    return (
        values | {f"{v}_spec" for v in values} | set(op.attributes) | cotangents | {"needs", "room"}
    )


class RuleSet:
    """The rules of an op for one combination of specs, attributes and inputs that need grad.

    Attributes:
        op: The op.
        name: PyTorch's name of the node.
        edge_inputs: Which inputs (by position in the call) have an edge, in order.
        edge_specs: Their specs.
        tensor_needs: For each tensor input of the call, whether it has an edge.
        saves: What to keep: (from outputs?, position) in the order of ``OpNode.handles``.
        releases_saved: Backward frees what was kept, and a second one is refused.
        labels: A name for each of them, for messages and reports.
        handle_labels: The same names, but None where a plain number is kept and no handle.
        constants: A None for the room of each rule that may have some, and the arguments of rules
            that are the same for all calls alike.
        calls: (function, what picks its arguments, joint, edge per result, places). It picks from
            one list: the values kept, the gradients of the outputs, ``constants``. The places are
            that of the room and those of the values that may be it; empty if there is none.
        composite: The op's composition, if backward of backward has to go through it.
    """

    __slots__ = (
        "attributes", "calls", "composite", "composite_plan", "constants", "edge_inputs",
        "edge_specs", "handle_labels", "labels", "name", "op", "output_count", "releases_saved",
        "saves", "tensor_needs",
    )  # fmt: skip

    def __init__(
        self,
        op: Op,
        specs: tuple[Any, ...],
        attributes: dict[str, Any],
        outputs: tuple[Spec, ...],
        mask: int,
    ) -> None:
        self.op = op
        self.name = node_name(op.name, specs, attributes)
        self.attributes = attributes
        self.output_count = len(op.returns)
        needed = [i for i in range(len(specs)) if mask >> i & 1]
        self.edge_inputs = tuple(needed)
        self.edge_specs = tuple(specs[i] for i in needed)
        call = _Call(op, specs, attributes, outputs, {i: k for k, i in enumerate(needed)})
        self.tensor_needs = tuple(i in call.edges for i in call.tensors)
        chosen = call.chosen_rules()
        slots = call.slots(chosen)
        self.saves = tuple(slots)
        # Of a view op only positions are kept, of some calls only numbers: nothing to free.
        handles = [from_outputs or isinstance(specs[i], Spec) for from_outputs, i in slots]
        self.releases_saved = not op.view and any(handles)
        self.labels = tuple(
            f"{op.name}.{call.results[i] if from_outputs else call.names[i]}"
            for from_outputs, i in slots
        )
        self.handle_labels = tuple(
            label if handle else None for label, handle in zip(self.labels, handles, strict=True)
        )
        self.calls, self.constants = call.arranged(chosen, slots)
        self.composite, self.composite_plan = call.composite(slots)

    def through_composite(
        self, values: list[Any], grads: list[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """Compute gradients with a recorded graph, through the plain composition.

        A fused op keeps statistics that are constants to its rule, so the rule's own derivative
        would be wrong. Its composition is differentiated instead, on the kept inputs. An input that
        no rule names cannot matter to the gradient: zeros stand for it.
        """
        with enable_grad():
            inputs, sources = self.composite_inputs(values)
            outputs = self.composite(*inputs, **self.attributes)
            if isinstance(outputs, Tensor):
                outputs = (outputs,)
            pairs = [(o, g) for o, g in zip(outputs, grads, strict=False) if g is not None]
            return grad(
                [o for o, _ in pairs],
                sources,
                [g for _, g in pairs],
                create_graph=True,
                allow_unused=True,
            )

    def composite_inputs(self, values: list[Any]) -> tuple[list[Any], list[Tensor]]:
        """Return inputs for the composition, detached from and connected to their history.

        Returns:
            (inputs, sources): every input of the op, and those that have an edge, in edge order.
        """
        inputs: list[Any] = []
        sources: dict[int, Tensor] = {}
        for slot, spec, edge in self.composite_plan:
            if slot is not None:
                value = values[slot]
            elif isinstance(spec, Spec):
                value = zeros_of(spec)
            else:
                value = None
            if isinstance(value, Tensor) and edge is not None:
                if not value._requires_grad:
                    value.requires_grad_()
                value = value.view_as(value)
                sources[edge] = value
            inputs.append(value)
        return inputs, [sources[k] for k in sorted(sources)]


class _Call:
    # What a rule set is made from: a call's specs, and where each name of the vocabulary is found.

    def __init__(
        self,
        op: Op,
        specs: tuple[Any, ...],
        attributes: dict[str, Any],
        outputs: tuple[Spec, ...],
        edges: dict[int, int],
    ) -> None:
        self.op = op
        self.specs = specs
        self.attributes = attributes
        self.outputs = outputs
        self.edges = edges  # by position of an input: which edge it has
        self.tensors = [i for i, s in enumerate(specs) if isinstance(s, Spec)]
        self.names = op.names_of(len(specs))
        self.results = (*op.returns, *op.aux)
        self.positions: dict[str, list[int]] = {name: [] for name in op.inputs}
        for i, name in enumerate(self.names):
            self.positions.setdefault(name, []).append(i)

    def chosen_rules(self) -> list[tuple[Rule, list[int]]]:
        # The rules that are needed, each with the positions of the inputs that it serves.
        chosen = []
        served: set[int] = set()
        for rule in self.op.rules:
            targets = [i for name in rule.inputs for i in self.positions[name]]
            if any(i in self.edges for i in targets):
                chosen.append((rule, targets))
                served.update(targets)
        missing = [self.names[i] for i in self.edges if i not in served]
        if missing:
            raise NotImplementedError(
                f"the derivative for {self.op.display_name} with respect to {', '.join(missing)} "
                "is not implemented. Detach that input, or add a rule with "
                f"@{self.op.name}.vjp({missing[0]!r})."
            )
        return chosen

    def slots(self, chosen: list[tuple[Rule, list[int]]]) -> Slots:
        # What the rules read, numbered in the order in which it is kept.
        slots: Slots = {}
        for rule, _ in chosen:
            for name in rule.names:
                if name in self.positions:
                    for i in self.positions[name]:
                        slots.setdefault((False, i), len(slots))
                elif name in self.results:
                    slots.setdefault((True, self.results.index(name)), len(slots))
        return slots

    def arranged(
        self, chosen: list[tuple[Rule, list[int]]], slots: Slots
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        # `RuleSet.calls` and `RuleSet.constants`.
        calls = []
        constants: list[Any] = []
        read: set[int] = set()  # by later rules
        for rule, targets in reversed(chosen):
            picked = []
            places: tuple[Any, ...] = ()
            for name in rule.names:
                where = self._varying(name, slots)
                if where is None:
                    where = len(slots) + len(self.op.returns) + len(constants)
                    constants.append(None if name == "room" else self._constant(name, targets))
                    if name == "room":
                        places = self._places(rule, where, targets, slots, read)
                picked.append(where)
            read.update(picked)
            edges = tuple(self.edges.get(i) for i in targets)
            calls.append((rule.function, _picker(picked), rule.joint, edges, places))
        return tuple(calls[::-1]), tuple(constants)

    def _places(
        self, rule: Rule, where: int, targets: list[int], slots: Slots, read: set[int]
    ) -> tuple[Any, ...]:
        # Where the list of values has the rule's room, and what may be it: large enough to be worth
        # the question, and read by no later rule.
        found = []
        for name in rule.room:
            if not self._is_kept(name, slots):
                continue
            place: Any = self._varying(name, slots)
            spec = self._spec_of(name)
            fits = isinstance(spec, Spec) and (rule.joint or spec is self.specs[targets[0]])
            if fits and place not in read and spec.nbytes >= LEAST_ROOM:
                found.append((place, SAVED if place < len(slots) else ARRIVED))
        return (where, tuple(found)) if found else ()

    def _is_kept(self, name: str, slots: Slots) -> bool:
        # Whether this rule or another one reads it; to be overwritten alone it is not kept.
        if name in self.positions:
            return (False, self.positions[name][0]) in slots
        return name not in self.results or (True, self.results.index(name)) in slots

    def _spec_of(self, name: str) -> Any:
        if name in self.positions:
            return self.specs[self.positions[name][0]]
        result = name.removeprefix("g_") if name not in self.results else name
        return self.outputs[0 if name == "g" else self.results.index(result)]

    def _varying(self, name: str, slots: Slots) -> int | None:
        # Where the list of values has what differs from call to call; None for a constant.
        op = self.op
        if name == "g":
            return len(slots)
        if name.startswith("g_") and name[2:] in op.returns:
            return len(slots) + op.returns.index(name[2:])
        if name in self.positions:
            if name == op.variadic:
                raise TypeError(
                    f"{op.name}: a rule of an op on a list keeps no list elements; name "
                    f"{name}_spec instead of {name}."
                )
            return slots[False, self.positions[name][0]]
        if name in self.results:
            return slots[True, self.results.index(name)]
        return None

    def _constant(self, name: str, targets: list[int]) -> Any:
        # What is the same for all calls alike.
        if name == "needs":
            return tuple(i in self.edges for i in targets)
        of = name.removesuffix("_spec")
        if of != name and of in self.results:
            return self.outputs[self.results.index(of)]
        if of != name and of in self.positions:
            found = tuple(self.specs[i] for i in self.positions[of])
            return found if of == self.op.variadic else found[0]
        return self.attributes[name]

    def composite(self, slots: Slots) -> tuple[Any, tuple[Any, ...]]:
        # The composition if backward of backward goes through it, and where each of its inputs
        # comes from: (slot or None, spec, edge or None).
        op = self.op
        uses_aux = any(from_outputs and i >= len(op.returns) for from_outputs, i in slots)
        composition = op.composition if uses_aux or not op.aux else None
        if uses_aux and composition is None:
            raise TypeError(
                f"{op.name} keeps aux values for backward, so it needs a composition for double "
                f"backward: declare one with @{op.name}.composite."
            )
        plan = ((slots.get((False, i)), s, self.edges.get(i)) for i, s in enumerate(self.specs))
        return composition, tuple(plan)


def _picker(slots: list[int]) -> Any:
    # values -> those at slots, as a tuple
    if len(slots) > 1:
        return itemgetter(*slots)
    return lambda values: tuple(values[k] for k in slots)
