"""The backward pass: gradients flow from outputs to leaves, in reverse order of recording.

A node is recorded after everything it was computed from. So the highest sequence number among the
nodes that have received a gradient is ready: all others that could contribute were recorded later
and has run. A heap gives that order. A first pass counts what each leaf will receive, so that a
leaf accumulates, and its hooks run, as soon as its gradient is complete; with ``inputs`` it also
finds which nodes lead there at all, and nothing else runs.

A node's saved values go as soon as its rules have run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from ..attribution.scopes import listening
from ..modes import local
from ..spec import Spec
from ..tensor import Tensor
from .accumulate import accumulate, add_arriving
from .anomaly import apply_watched
from .hooks import run_hooks
from .node import Node, edge_to


class BackwardPass:
    """One backward pass, run by its constructor.

    Args:
        roots: Where gradients arrive.
        gradients: What arrives at each.
        retain: Keep saved values.
        create: Record what is computed.
        inputs: Capture the gradients of these; None accumulates into the leaves.
        arrived: Leaves among ``inputs``, or their nodes of one value, each with a gradient that
            others are added to.
    """

    def __init__(
        self,
        roots: list[Tensor],
        gradients: list[Tensor],
        retain: bool,
        create: bool,
        inputs: list[Tensor] | None,
        arrived: Sequence[tuple[Any, Tensor]] = (),
    ) -> None:
        self.retain = retain
        self.create = create
        self.inputs = inputs
        self.pending: dict[Any, list[Tensor | None]] = {}
        self.heap: list[tuple[int, Node]] = []
        self.arriving: dict[Tensor, int] = {}  # leaf -> gradients still to come
        self.wanted: dict[Node, list[bool]] | None = None
        self.capture: dict[Any, dict[int, Tensor | None]] = {}
        self.notes: dict[Any, dict[int, Tensor]] = {}  # of hooks on several tensors
        self.seen: set[Node] = set()
        self.replayed: list[Any] = []  # weak references to versions recomputed in this pass
        # ids of versions it will ask for (``autograd/remat/replay.py``)
        self.reads: set[int] | None = None
        self.node: Any = None  # that runs
        self.endings: list[Callable[[], None]] = []  # called when all gradients are accumulated
        edges = [edge_to(r) for r in roots]
        nodes = self._count(edges)
        if inputs is not None:
            self._restrict(nodes, inputs, edges)
        for target, g in arrived:
            self.pending[target] = [g]
            if target._is_node:
                heappush(self.heap, (-target.seq, target))
        local.state.running = self
        for (target, index), g in zip(edges, gradients, strict=True):
            self._start(target, index, g)
        self._drain()
        for ending in self.endings:
            ending()

    def _count(self, roots: list[tuple[Any, int]]) -> list[Node]:
        # Visit every node once; count the edges that end at each leaf.
        arriving = self.arriving
        seen = self.seen
        stack: list[Node] = []
        nodes: list[Node] = []
        edges: Sequence[tuple[Any, int]] = roots
        while True:
            for target, _ in edges:
                if target._is_node:
                    if target not in seen:
                        seen.add(target)
                        stack.append(target)
                else:
                    arriving[target] = arriving.get(target, 0) + 1
            if not stack:
                return nodes
            node = stack.pop()
            nodes.append(node)
            edges = node.edges

    def _restrict(
        self, nodes: list[Node], inputs: list[Tensor], roots: list[tuple[Any, int]]
    ) -> None:
        # Only what leads to an input runs; gradients stop there unless another lies beyond.
        for t in inputs:
            target, index = edge_to(t)
            self.capture.setdefault(target, {})[index] = None
        leads: set[Any] = set(self.capture)
        self.wanted = {}
        for node in sorted(nodes, key=lambda n: n.seq):
            wanted = [target in leads for target, _ in node.edges]
            self.wanted[node] = wanted
            if any(wanted):
                leads.add(node)
        self.leads = leads
        self.arriving.clear()
        for target, _ in roots:
            if not target._is_node:
                self.arriving[target] = self.arriving.get(target, 0) + 1
        for node in nodes:
            for (target, _), want in zip(node.edges, self.wanted[node], strict=True):
                if want and not target._is_node:
                    self.arriving[target] = self.arriving.get(target, 0) + 1

    def reaches(self, target: Any) -> bool:
        """True if a node or leaf may receive a gradient in this pass."""
        if not target._is_node:
            return target in self.arriving
        return target in self.seen and (self.wanted is None or target in self.leads)

    def _start(self, target: Any, index: int, g: Tensor) -> None:
        # The gradient that arrives at a root.
        if self.wanted is not None and target not in self.leads:
            return
        entry = self.pending.get(target)
        if entry is None:
            entry = self.pending[target] = [None] * (target.output_count if target._is_node else 1)
            if target._is_node:
                heappush(self.heap, (-target.seq, target))
        if entry[index] is None:
            entry[index] = g
        else:
            add_arriving(entry, index, g, self.create)
        if not target._is_node:
            left = self.arriving[target] = self.arriving[target] - 1
            if left == 0:
                self._leaf(target)

    def _leaf(self, leaf: Tensor) -> None:
        g = self.pending.pop(leaf).pop()
        if g is None:
            return
        extra = leaf._extra
        if extra is not None and ("tensor", 0) in extra:
            g = run_hooks(extra["tensor", 0], g)
        if self.inputs is not None:
            self.capture[leaf][0] = g
        elif leaf._requires_grad and g is not None:
            accumulate(leaf, g, self.create)

    def _drain(self) -> None:  # noqa: C901, PLR0915 - a turn a node: each call inside would cost
        heap, pending, create, retain = self.heap, self.pending, self.create, self.retain
        arriving, wanted_edges = self.arriving, self.wanted
        watched = local.state.anomaly or listening()
        wanted = None
        while heap:
            node = self.node = heappop(heap)[1]
            grads = pending.pop(node)
            extra = node.extra
            if extra is not None:
                _tensor_hooks(extra, grads)
            if wanted_edges is not None:
                wanted = wanted_edges[node]
                for index in self.capture.get(node, ()):
                    self.capture[node][index] = grads[index]
                if True not in wanted:
                    continue
            if extra is not None and "pre" in extra:
                _node_prehooks(extra, grads)
            if (
                grads[0] is None
                and not node.runs_without_gradient
                and all(x is None for x in grads)
            ):
                results: Any = [None] * len(node.edges)
            elif watched:
                results = apply_watched(node, grads, wanted, retain, create)
            else:
                results = node.apply(grads, wanted, retain, create)
            if extra is not None and "post" in extra:
                results = _after_node(extra, results, grads)
            if results.__class__ is not list:
                results = list(results)
            # Let the arriving gradient go before what it caused is passed on; and pass that on
            # without keeping it, so that a leaf can see whether it is the only owner.
            del grads
            specs = node.edge_specs
            k = 0
            for target, index in node.edges:
                g = results[k]
                results[k] = None
                if wanted is not None and not wanted[k]:
                    k += 1
                    continue
                if g is not None and g._spec is not specs[k]:
                    g = fit(g, specs[k], node, k)
                k += 1
                entry = pending.get(target)
                if target._is_node:
                    if entry is None:
                        entry = pending[target] = [None] * target.output_count
                        heappush(heap, (-target.seq, target))
                    if g is not None:
                        if entry[index] is None:
                            entry[index] = g
                        else:
                            add_arriving(entry, index, g, create)
                        g = None
                    continue
                if entry is None:
                    entry = pending[target] = [None]
                if g is not None:
                    if entry[0] is None:
                        entry[0] = g
                    else:
                        add_arriving(entry, 0, g, create)
                    g = None
                left = arriving[target] = arriving[target] - 1
                if left == 0:
                    self._leaf(target)
            entry = None  # it may be the list of gradients that the next node lets go

    def results(self) -> list[Tensor | None]:
        """Return the captured gradient of each input."""
        if self.inputs is None:
            return []
        found = []
        for t in self.inputs:
            target, index = edge_to(t)
            g = self.capture[target][index]
            if g is None and target in self.pending and len(self.pending[target]) == 1:
                g = self.pending[target][index]  # nothing was added to what had arrived
            found.append(g)
        return found


def _tensor_hooks(extra: dict[Any, Any], grads: list[Tensor | None]) -> None:
    # The user's hooks first, then what is retained: .grad shows what the hooks made of it.
    for key in list(extra):
        if isinstance(key, tuple) and key[0] == "tensor" and grads[key[1]] is not None:
            grads[key[1]] = run_hooks(extra[key], grads[key[1]])
    for index, reference in extra.get("retain", ()):
        tensor = reference()
        g = grads[index]
        if tensor is not None and g is not None:
            accumulate(tensor, g, local.state.grad, share=True)


def _node_prehooks(extra: dict[Any, Any], grads: list[Tensor | None]) -> None:
    for hook in list(extra["pre"].values()):
        replaced = hook(tuple(grads))
        if replaced is not None:
            grads[:] = _checked(hook, replaced, grads)


def _after_node(
    extra: dict[Any, Any], results: Sequence[Tensor | None], grads: list[Tensor | None]
) -> Sequence[Tensor | None]:
    for hook in list(extra["post"].values()):
        replaced = hook(tuple(results), tuple(grads))
        if replaced is not None:
            results = _checked(hook, replaced, results)
    return results


def _checked(hook: Any, replaced: Any, before: Sequence[Tensor | None]) -> list[Tensor | None]:
    # What a node hook returned in the place of `before`.
    found = [replaced] if isinstance(replaced, Tensor) else list(replaced)
    name = getattr(hook, "__name__", type(hook).__name__)
    if len(found) != len(before):
        raise RuntimeError(
            f"hook '{name}' has returned an incorrect number of values (got {len(found)}, but "
            f"expected {len(before)}). Return one per gradient, or None to change nothing."
        )
    for new, old in zip(found, before, strict=True):
        if new is None:
            continue
        if not isinstance(new, Tensor):
            raise TypeError(f"hook '{name}' must return Tensors or None; got {type(new).__name__}.")
        if old is not None and new._spec.shape != old._spec.shape:
            raise RuntimeError(
                f"hook '{name}' has changed the size of value: the gradient has shape "
                f"{tuple(old.shape)}, what it returned {tuple(new.shape)}."
            )
    return found


def fit(g: Any, spec: Spec, node: Node, index: int = 0) -> Tensor:
    """Reduce a gradient to the shape and dtype of its input (undo broadcasting and promotion).

    Raises:
        RuntimeError: The rule returned something that cannot be the gradient of that input.
    """
    if not isinstance(g, Tensor):
        raise TypeError(f"{node.name()} returned {type(g).__name__} as a gradient, not a Tensor.")
    if g._spec.shape != spec.shape:
        if not _broadcasts(spec.shape, g._spec.shape):
            raise RuntimeError(
                f"Function {node.name()} returned an invalid gradient at index {index} - got "
                f"{list(g.shape)} but expected shape compatible with {list(spec.shape)}."
            )
        leading = g._spec.ndim - spec.ndim
        dims = [k for k, n in enumerate(spec.shape, leading) if n == 1 and g._spec.shape[k] != 1]
        if leading and dims:
            g = g.sum_to_size(spec.shape)
        else:  # no view of the sum: a leaf could not take it over
            g = g.sum(dims or list(range(leading)), bool(dims))
    if g._spec.dtype is not spec.dtype:
        if g._spec.dtype.is_complex and not spec.dtype.is_complex:
            g = g.real
        g = g.to(spec.dtype)
    if g._spec.device is not spec.device:
        g = g.to(spec.device)
    return g  # type: ignore[no-any-return]


def _broadcasts(small: Sequence[int], large: Sequence[int]) -> bool:
    if len(small) > len(large):
        return False
    return all(s in (1, b) for s, b in zip(small[::-1], large[::-1], strict=False))
