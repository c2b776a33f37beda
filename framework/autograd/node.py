"""Graph nodes: one recorded op each, its edges to the nodes of its inputs, its saved tensors.

An edge is a pair (target, index): a node and which of its outputs, or a leaf tensor and 0. A leaf
is its own target, so recording an op on parameters makes no extra object; the
:class:`AccumulateGrad` that ``next_functions`` shows is made when someone looks.
"""

from __future__ import annotations

import weakref
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from ..attribution.scopes import note_node, recording
from ..dtypes import dtype
from ..errors import GradientError
from ..modes import local
from ..tensor import Tensor
from .accumulate import claim
from .overwriting import find_room
from .removable_handle import add_hook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..spec import Spec

_sequence = count(1)


class SavedValue(NamedTuple):
    """A value saved for backward, as described by ``grad_fn.saved``.

    Attributes:
        label: Which value of which op, such as ``mul.other``.
        shape: Its shape.
        dtype: Its dtype.
        nbytes: Bytes of the value.
        held_bytes: Bytes that keeping it keeps alive: all of its storage for a view.
    """

    label: str
    shape: tuple[int, ...]
    dtype: dtype
    nbytes: int
    held_bytes: int


def describe_saved(handles: Any, labels: Sequence[str]) -> tuple[SavedValue, ...]:
    """Describe the saved values of a node; empty once they are freed."""
    return tuple(
        SavedValue(label, tuple(h.spec.shape), h.spec.dtype, h.nbytes, h.held_bytes)
        for h, label in zip(handles or (), labels, strict=False)
        if hasattr(h, "unpack")
    )


class Node:
    """Base of graph nodes: edges, order, and ``apply``.

    Attributes:
        edges: (target, index) of each input that needs a gradient.
        edge_specs: The specs of those inputs.
        seq: Position in the order of recording; backward runs the highest first.
        extra: None, or a dict of hooks, metadata and traces.
    """

    # _site: see framework/attribution/scopes.py
    __slots__ = ("__weakref__", "_site", "edges", "extra", "seq")
    _is_node = True
    edges: Sequence[tuple[Any, int]]
    edge_specs: Sequence[Spec]
    output_count = 1
    runs_without_gradient = False  # apply() wants to be called even if every gradient is None
    extra: dict[Any, Any] | None
    seq: int

    def _begin(self, numbered: bool = True) -> None:
        # What an initializer does last: the node is numbered, and a profiler learns of it.
        self.seq = next(_sequence) if numbered else 0
        self.extra = None
        if recording.on:
            note_node(self)

    def name(self) -> str:
        """Return PyTorch's name of the node, such as ``MulBackward0``."""
        raise NotImplementedError

    def apply(
        self, grads: list[Tensor | None], wanted: Sequence[bool] | None, retain: bool, create: bool
    ) -> Sequence[Tensor | None]:
        """Compute the gradient of each edge from those of the outputs.

        Args:
            grads: One per output; None where no gradient arrived.
            wanted: Which edges need one; None for all.
            retain: Keep the saved values.
            create: Record what is computed.
        """
        raise NotImplementedError

    def release(self) -> None:
        """Free saved values; a later ``apply`` that needs them raises."""

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """(node, output index) of each edge; an :class:`AccumulateGrad` for a leaf."""
        return tuple((t, i) if t._is_node else (accumulate_node(t), 0) for t, i in self.edges)

    @property
    def metadata(self) -> dict[str, Any]:
        """A dict for the user's own data."""
        return self._extras().setdefault("metadata", {})  # type: ignore[no-any-return]

    def _extras(self) -> dict[Any, Any]:
        if self.extra is None:
            self.extra = {}
        return self.extra

    def register_hook(self, hook: Any) -> Any:
        """Register ``hook(grad_inputs, grad_outputs)`` after the node; may replace the first."""
        return add_hook(self._extras(), "post", hook)

    def register_prehook(self, hook: Any) -> Any:
        """Register ``hook(grad_outputs)``, called before the node runs; it may replace them."""
        return add_hook(self._extras(), "pre", hook)

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"


class OpNode(Node):
    """The graph node of a registered op.

    Attributes:
        rules: The gradient rules of the op, compiled for the inputs that need one
            (``ops.rules.RuleSet``); shared by all calls alike.
        handles: Handles and plain scalars, in the order of ``rules.saves``; None once freed.
    """

    __slots__ = ("handles", "rules")

    def __init__(self, rules: Any, edges: Any, handles: Any) -> None:
        self.rules = rules
        self.edges = edges
        self.handles = handles
        self.seq = next(_sequence)  # `_begin`, written out: every recorded op comes by here
        self.extra = None
        if recording.on:
            note_node(self)

    @property
    def edge_specs(self) -> Sequence[Spec]:  # type: ignore[override]
        """The specs of the inputs that need a gradient."""
        return self.rules.edge_specs  # type: ignore[no-any-return]

    @property
    def output_count(self) -> int:  # type: ignore[override]
        """Number of visible outputs."""
        return self.rules.output_count  # type: ignore[no-any-return]

    def name(self) -> str:
        """Return PyTorch's name of the node, such as ``MulBackward0``."""
        return self.rules.name  # type: ignore[no-any-return]

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """(node, output index) per tensor input; (None, 0) for one without a gradient."""
        edges = iter(Node.next_functions.fget(self))  # type: ignore[attr-defined]
        return tuple(next(edges) if needed else (None, 0) for needed in self.rules.tensor_needs)

    @property
    def saved(self) -> tuple[SavedValue, ...]:
        """The values saved for backward: label, shape, dtype and bytes of each."""
        return describe_saved(self.handles, self.rules.labels)

    def __getattr__(self, name: str) -> Any:
        """Return ``_saved_<input>`` or ``_saved_result``, as on PyTorch's nodes."""
        if name.startswith("_saved_"):
            wanted = name.removeprefix("_saved_")
            wanted = {"self": "input", "result": "out"}.get(wanted, wanted)
            for value, label in zip(self.unpack(), self.rules.labels, strict=True):
                if label.rpartition(".")[2] == wanted:
                    return value
        raise AttributeError(f"{self.name()} has no attribute {name}.")

    def unpack(self) -> list[Any]:
        """Unpack the saved values, as tensors and scalars."""
        saved = self.handles
        if saved is None:
            raise GradientError(
                f"The graph of {self.name()} was freed by an earlier backward (Trying to backward "
                "through the graph a second time). Pass retain_graph=True there, or compute the "
                "loss again."
            )
        handled = self.rules.handle_labels
        values: list[Any] = []
        for value in saved:  # no comprehension: before Python 3.12 that is a call
            label = handled[len(values)]
            values.append(value if label is None else value.unpack(self, label))
        return values

    def apply(
        self, grads: list[Tensor | None], wanted: Sequence[bool] | None, retain: bool, create: bool
    ) -> Sequence[Tensor | None]:
        """Compute gradients by running the rules on the saved values."""
        rules = self.rules
        values = self.unpack()
        if not retain and rules.releases_saved:
            self.handles = None
        if create and rules.composite is not None:
            return rules.through_composite(values, grads)  # type: ignore[no-any-return]
        values += grads
        values += rules.constants
        edges = self.edges
        results: list[Tensor | None] = [None] * len(edges)
        for rule, pick, joint, targets, places in rules.calls:
            if wanted is not None and not any(wanted[t] for t in targets if t is not None):
                continue
            if places and not create:
                where, candidates = places
                values[where] = find_room(values, candidates) if self.extra is None else None
            if not joint:
                target = targets[0]
                results[target] = rule(*pick(values))
                if not edges[target][0]._is_node and not create:
                    self._claim(targets, results, values)
                continue
            for target, result in zip(targets, rule(*pick(values)), strict=True):
                if target is not None:
                    results[target] = result
            if not create:
                self._claim(targets, results, values)
        return results

    def _claim(self, targets: Any, results: list[Tensor | None], values: list[Any]) -> None:
        # Gradients of leaves count as such when they are made, if the pass accumulates them.
        running = local.state.running
        if self.extra is None and running is not None and running.inputs is None:
            for target in targets:
                if target is not None and not self.edges[target][0]._is_node:
                    claim(self.edges[target][0], results[target], values, running.pending)

    def release(self) -> None:
        """Free the saved values."""
        if self.rules.releases_saved:
            self.handles = None


class Alias(Node):
    """A node that connects another tensor of a leaf's values to that leaf."""

    __slots__ = ("edge_specs",)

    def __init__(self, tensor: Tensor) -> None:
        self.edges = [edge_to(tensor)]
        self.edge_specs = [tensor._spec]
        self._begin()

    def name(self) -> str:
        """Return PyTorch's name of the corresponding node."""
        return "AliasBackward0"

    def apply(
        self, grads: list[Tensor | None], wanted: Sequence[bool] | None, retain: bool, create: bool
    ) -> Sequence[Tensor | None]:
        """Pass the gradient on unchanged."""
        return grads


class AccumulateGrad(Node):
    """The node at a leaf, as ``next_functions`` shows it.

    Attributes:
        variable: The leaf.
    """

    __slots__ = ("variable",)
    edges = ()
    edge_specs = ()

    def __init__(self, variable: Tensor) -> None:
        self.variable = variable
        self._begin(numbered=False)

    def name(self) -> str:
        """Return ``AccumulateGrad``."""
        return "AccumulateGrad"

    def register_prehook(self, hook: Any) -> Any:
        """Register ``hook((grad,))``, called before the leaf's gradient is accumulated."""

        def on_tensor(g: Tensor) -> Tensor | None:
            replaced = hook((g,))
            return replaced if replaced is None or isinstance(replaced, Tensor) else replaced[0]

        return self.variable.register_hook(on_tensor)

    def register_hook(self, hook: Any) -> Any:
        """Register ``hook((), (grad,))``, called after the leaf's gradient was accumulated."""
        variable = self.variable
        return variable.register_post_accumulate_grad_hook(
            lambda leaf: hook((), (leaf.grad,)) and None
        )


def accumulate_node(leaf: Tensor) -> AccumulateGrad:
    """Return the AccumulateGrad of a leaf: one object as long as it is referenced."""
    if leaf._extra is None:
        leaf._extra = {}
    reference = leaf._extra.get("accumulate")
    node: AccumulateGrad | None = reference() if reference is not None else None
    if node is None:
        node = AccumulateGrad(leaf)
        leaf._extra["accumulate"] = weakref.ref(node)
    return node


def edge_to(tensor: Tensor) -> tuple[Any, int]:
    """Return the edge that leads to a tensor that requires grad."""
    node = tensor._node
    return (tensor, 0) if node is None else (node, tensor._index)


def attach(output: Tensor, node: Node, index: int = 0) -> None:
    """Set ``output`` as result ``index`` of ``node``."""
    output._node = node
    output._index = index
    output._requires_grad = True


__all__ = [
    "AccumulateGrad",
    "Alias",
    "Node",
    "OpNode",
    "SavedValue",
    "accumulate_node",
    "attach",
    "describe_saved",
    "edge_to",
    "local",
]
