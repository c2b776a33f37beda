"""The engine: gradients flow from the roots to the leaves, in the reverse order of recording.

A node is recorded after everything it was computed from. So the highest sequence number among the
nodes that have received a gradient is ready: whoever else could contribute was recorded later and
has run. A heap gives that order. A first pass counts what each leaf will receive, so that a leaf
accumulates, and its hooks run, as soon as its gradient is whole; with ``inputs`` it also finds
which nodes lead there at all, and nothing else runs.

A node's saved values go as soon as its rules have run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from ..devices import backend
from ..memory.ledger import TEMPORARY
from ..scopes import listening
from ..spec import Spec
from ..tensor import Tensor, wrap
from .accumulate import accumulate
from .hooks import run_hooks
from .modes import local, quietly
from .node import Node, edge_to


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Accumulate into ``.grad`` of the leaves the sum of the gradients of ``tensors``.

    Args:
        tensors: One tensor, or several.
        grad_tensors: The gradient arriving at each, in its shape; None for single elements.
        retain_graph: Keep saved values for another backward; defaults to ``create_graph``.
        create_graph: Record the backward itself, for higher derivatives.
        inputs: Accumulate into these tensors only.

    Raises:
        RuntimeError: A tensor has no graph, or more than one element and no gradient.
        GradientError: The graph was freed, or a saved value was overwritten.

    Memory:
        A leaf takes its first gradient over without a copy if nobody else can see its bytes; later
        ones are added to it in place. With ``create_graph``, a leaf's ``.grad`` has a graph that
        may lead back to the leaf: a cycle, until ``.grad`` is set to None. ``grad`` makes none.
    """
    roots = _as_list(tensors)
    targets = None if inputs is None else _as_list(inputs)
    if targets is not None and not targets:
        raise RuntimeError(
            "'inputs' argument to backward cannot be empty. Leave it out for all leaves."
        )
    gradients = _root_gradients(roots, grad_tensors, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    if targets is None:
        _run(roots, gradients, retain, create_graph, None)
        return
    targets = list(dict.fromkeys(targets))
    _check_inputs(targets)
    captured = _run(roots, gradients, retain, create_graph, targets)
    del gradients
    for target in targets:
        g = captured.pop(0)
        if g is not None:
            accumulate(target, g, create_graph)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of the sum of ``outputs`` with respect to ``inputs``; ``.grad`` is untouched.

    Args:
        outputs: One tensor, or several.
        inputs: One tensor, or several, leaves or not.
        grad_outputs: The gradient arriving at each output; None for single elements.
        retain_graph: Keep saved values; defaults to ``create_graph``.
        create_graph: Record the backward itself, for higher derivatives.
        allow_unused: Return None for an input that no output depends on, instead of raising.
        is_grads_batched: The first dimension of each ``grad_outputs`` counts independent vectors.
        materialize_grads: Return zeros instead of None.

    Returns:
        One gradient per input, in its shape and dtype.

    Raises:
        RuntimeError: An input does not require grad, or is unused and that is not allowed.
    """
    if is_grads_batched:
        return _batched_grad(
            outputs,
            inputs,
            grad_outputs,
            retain_graph,
            create_graph,
            allow_unused,
            materialize_grads,
        )
    roots, targets = _as_list(outputs), _as_list(inputs)
    if not targets:
        raise RuntimeError(
            "'inputs' argument to grad cannot be empty. Pass what to differentiate with respect to."
        )
    if materialize_grads and allow_unused is False:
        raise ValueError("materialize_grads=True needs allow_unused to be None or True.")
    _check_inputs(targets)
    gradients = _root_gradients(roots, grad_outputs, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    results = _run(roots, gradients, retain, create_graph, targets)
    for k, (target, g) in enumerate(zip(targets, results, strict=True)):
        if g is None and materialize_grads:
            results[k] = zeros_of(target._spec)
        elif g is None and not allow_unused:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph: "
                f"input {k} of shape {tuple(target.shape)}. Set allow_unused=True if this is "
                "desired; its gradient is None then."
            )
    return tuple(results)


def _check_inputs(targets: list[Tensor]) -> None:
    for t in targets:
        if not t.requires_grad:
            raise RuntimeError(
                "One of the differentiated Tensors does not require grad: an input of shape "
                f"{tuple(t.shape)}. Call .requires_grad_() on it before computing the outputs."
            )


def _batched_grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any,
    retain: bool | None,
    create: bool,
    allow_unused: bool | None,
    materialize: bool,
) -> tuple[Tensor | None, ...]:
    from ..ops import stack

    batches = _as_list(grad_outputs)
    count = len(batches[0])
    if count == 0:
        return tuple(zeros_of(t._spec.like((0, *t.shape))) for t in _as_list(inputs))
    keep = create if retain is None else retain
    rows = [
        grad(
            outputs,
            inputs,
            [b[k] for b in batches],
            keep or k < count - 1,
            create,
            allow_unused,
            False,
            materialize,
        )
        for k in range(count)
    ]
    return tuple(
        None if column[0] is None else stack(list(column)) for column in zip(*rows, strict=True)
    )


def _as_list(tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    found = list(tensors) if isinstance(tensors, Iterable) else [tensors]
    for t in found:
        if not isinstance(t, Tensor):
            raise TypeError(f"backward and grad take Tensors; got {type(t).__name__}.")
    return found


def zeros_of(spec: Spec) -> Tensor:
    """A new tensor of zeros."""
    be = backend(spec.device)
    storage, array = be.empty(spec, TEMPORARY)
    if be.xp is not None:
        quietly(_fill, array, 0)
    return wrap(array, spec, storage)


def _root_gradients(roots: list[Tensor], given: Any, create: bool) -> list[Tensor]:
    if given is None:
        gradients: list[Any] = [None] * len(roots)
    else:
        several = isinstance(given, Iterable) and not isinstance(given, Tensor)
        gradients = list(given) if several else [given]
    if len(gradients) != len(roots):
        raise RuntimeError(
            f"backward needs one gradient per tensor; got {len(roots)} tensors and "
            f"{len(gradients)} gradients. Pass None for those of a single element."
        )
    for k, (root, g) in enumerate(zip(roots, gradients, strict=True)):
        if not root.requires_grad:
            raise RuntimeError(
                f"element {k} of tensors does not require grad and does not have a grad_fn. "
                "Compute it from a tensor that requires grad, outside no_grad."
            )
        if g is None:
            if root._spec.numel != 1:
                raise RuntimeError(
                    "grad can be implicitly created only for scalar outputs; got shape "
                    f"{tuple(root.shape)}. Reduce it with .sum(), or pass gradient=."
                )
            if root._spec.dtype.is_complex:
                raise RuntimeError(
                    "grad can be implicitly created only for real scalar outputs but got "
                    f"{root.dtype}. Pass gradient=."
                )
            gradients[k] = ones_of(root._spec)
        else:
            if not isinstance(g, Tensor):
                raise TypeError(
                    f"gradients can be either Tensors or None, but got {type(g).__name__} for "
                    f"element {k}. Wrap it in lowtide.tensor()."
                )
            if g._spec.shape != root._spec.shape:
                raise RuntimeError(
                    f"Mismatch in shape: grad_output[{k}] has a shape of {tuple(g.shape)} and "
                    f"output[{k}] has a shape of {tuple(root.shape)}. They must be equal."
                )
            if g._spec.device is not root._spec.device:
                raise RuntimeError(
                    f"grad_output[{k}] is on {g.device} and output[{k}] on {root.device}. "
                    "Move one with .to()."
                )
            if g._spec is not root._spec:
                g = g.to(root.dtype)
            gradients[k] = g if create else g.detach()
    return gradients


def ones_of(spec: Spec) -> Tensor:
    """A new tensor of ones."""
    out = zeros_of(spec)
    if spec.device.type != "meta":  # type: ignore[union-attr]
        quietly(_fill, out._array, 1)
    return out


def _fill(array: Any, value: int) -> None:
    array.fill(value)


def _run(
    roots: list[Tensor],
    gradients: list[Tensor],
    retain: bool,
    create: bool,
    inputs: list[Tensor] | None,
) -> list[Tensor | None]:
    state = local.state
    before = (state.grad, state.saver, state.running, state.autocast)
    tape, state.tape, state.watch = state.tape, None, state.inference
    if tape is not None and state.saver is tape:
        state.saver = None
    phase, site = state.phase, state.site
    state.phase, state.site = "backward", None
    state.autocast = None  # rules compute in the types of the forward
    state.grad = create and not state.inference
    if not create:
        state.saver = None
    try:
        return _Pass(roots, gradients, retain, create, inputs).results()
    finally:
        if state.running is not before[2]:
            for reference in state.running.replayed:
                content = reference()
                if content is not None:
                    content.drop()
        state.grad, state.saver, state.running, state.autocast = before
        state.phase, state.site = phase, site
        state.tape, state.watch = tape, state.inference or tape is not None


class _Pass:
    """One backward pass."""

    def __init__(
        self,
        roots: list[Tensor],
        gradients: list[Tensor],
        retain: bool,
        create: bool,
        inputs: list[Tensor] | None,
    ) -> None:
        self.retain = retain
        self.create = create
        self.inputs = inputs
        self.pending: dict[Any, list[Tensor | None]] = {}
        self.owned: set[int] = set()  # ids of pending sums that nobody else can see
        self.heap: list[tuple[int, Node]] = []
        self.arriving: dict[Tensor, int] = {}  # leaf -> gradients still to come
        self.wanted: dict[Node, list[bool]] | None = None
        self.capture: dict[Any, dict[int, Tensor | None]] = {}
        self.notes: dict[Any, dict[int, Tensor]] = {}  # of hooks on several tensors
        self.seen: set[Node] = set()
        self.replayed: list[Any] = []  # weak references to contents made again in this pass
        edges = [edge_to(r) for r in roots]
        nodes = self._count(edges)
        if inputs is not None:
            self._restrict(nodes, inputs, edges)
        local.state.running = self
        for (target, index), g in zip(edges, gradients, strict=True):
            self._start(target, index, g)
        self._drain()

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
        """True if a gradient may arrive at a node or leaf in this pass."""
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
            self._add(entry, index, g)
        if not target._is_node:
            left = self.arriving[target] = self.arriving[target] - 1
            if left == 0:
                self._leaf(target)

    def _add(self, entry: list[Tensor | None], index: int, g: Tensor) -> None:
        # A second gradient for the same value: into the sum, if that is nobody else's yet.
        old = entry[index]
        if id(old) in self.owned and not self.create:
            old.add_(g)  # type: ignore[union-attr]
        else:
            total = old + g  # type: ignore[operator]
            self.owned.discard(id(old))
            self.owned.add(id(total))
            entry[index] = total

    def _leaf(self, leaf: Tensor) -> None:
        g = self.pending.pop(leaf).pop()
        if g is None:
            return
        self.owned.discard(id(g))
        extra = leaf._extra
        if extra is not None and ("tensor", 0) in extra:
            g = run_hooks(extra["tensor", 0], g)
        if self.inputs is not None:
            self.capture[leaf][0] = g
        elif leaf._requires_grad and g is not None:
            accumulate(leaf, g, self.create)

    def _drain(self) -> None:
        heap, pending, create, retain = self.heap, self.pending, self.create, self.retain
        arriving, owned, wanted_edges = self.arriving, self.owned, self.wanted
        watched = local.state.anomaly or listening()
        wanted = None
        while heap:
            node = heappop(heap)[1]
            grads = pending.pop(node)
            if owned:
                owned.difference_update(map(id, grads))
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
                from .anomaly import apply_watched

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
                            self._add(entry, index, g)
                        g = None
                    continue
                if entry is None:
                    entry = pending[target] = [None]
                if g is not None:
                    if entry[0] is None:
                        entry[0] = g
                    else:
                        self._add(entry, 0, g)
                    g = None
                left = arriving[target] = arriving[target] - 1
                if left == 0:
                    self._leaf(target)
            entry = None  # it may be the list of gradients that the next node lets go

    def results(self) -> list[Tensor | None]:
        """The captured gradient of each input."""
        if self.inputs is None:
            return []
        found = []
        for t in self.inputs:
            target, index = edge_to(t)
            found.append(self.capture[target][index])
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
    """Sum a gradient over what broadcasting repeated, and convert it to its input's dtype.

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
