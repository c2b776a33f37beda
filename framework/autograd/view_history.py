"""View history: in-place writes update the graph of a base and of all its views.

A write in place makes a new value. For a tensor of its own that is all: its node becomes the node
of the write. A view shares its bytes with its base, so the base has a new value too: the old base
with the written view scattered into it. That is :class:`ViewScatter`. Every other view of the
same base notices, by the storage's version, that its ``grad_fn`` is out of date, and takes a new
one by replaying its view ops on the base (:func:`refresh`) when next it is used.

A view that an ``autograd.Function`` returned cannot be replayed: the function's backward would be
left out. It keeps the history it was given (:class:`OfFunction`), and is refused once that of its
base has changed.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import GradientError
from ..modes import enable_grad, local, no_grad
from ..tensor import Tensor, ViewInfo
from . import given_ops
from .hooks import move_retained
from .node import Node, attach, edge_to

if TYPE_CHECKING:
    from collections.abc import Sequence

Link: TypeAlias = "tuple[Link | None, Any, tuple[Any, ...], int]"  # see ViewInfo.chain
RETYPED = -(1 << 62)  # counts for a link that reads the bytes as another dtype: no strided view
LONG = 16  # links: a longer chain is replayed as one strided view of the base


class OfFunction:
    """Says that a view is an output of an ``autograd.Function``, or a view of one.

    Args:
        function: The name of its class.
        index: Which output.
        base: The tensor whose bytes it shows.
    """

    __slots__ = ("base_history", "function", "index")

    def __init__(self, function: str, index: int, base: Tensor) -> None:
        self.function = function
        self.index = index
        # A reference to the base's node would make a cycle if that is the function's own.
        self.base_history = _history(base)

    def outdated(self, base: Tensor) -> bool:
        """True if a write that counts for gradients may have changed the base since.

        Where the base has a history, such a write changes it; one under ``no_grad`` does not, and
        is a constant to the view as to any other. Without a history no write can be told apart.
        """
        return self.base_history is None or self.base_history != _history(base)

    def error(self, what: str) -> RuntimeError:
        """Return the error for a use that would leave out the function's backward."""
        return RuntimeError(
            f"{what}: Output {self.index} of {self.function} is a view, or a view of it: "
            f"{self.function}.forward returned its input or a view, which shares memory with "
            "its base. Written in place, the base and its views get gradients by view "
            f"ops, without {self.function}.backward. Return .clone() of it from forward, or use "
            "the out-of-place op."
        )


def _history(base: Tensor) -> tuple[int, int] | None:
    # By number: each node has its own, and a leaf 0, for it keeps its history under no_grad.
    if not base._requires_grad:
        return None
    return (0 if base._node is None else base._node.seq, base._index)


def mark_outputs(function: str, outputs: dict[int, Tensor]) -> None:
    """Mark those outputs of an ``autograd.Function`` that are views.

    A view whose base nothing else holds any more is simply a tensor.

    Args:
        function: The name of the class.
        outputs: By their positions those that the function is the history of, but for inputs
            written in place, which are part of their base's.
    """
    for k, t in outputs.items():
        viewed = t._viewed
        if viewed is None:
            continue
        reference, t._viewed = weakref.ref(base_of(viewed)), None
        chain = viewed.chain
        del viewed
        base = reference()
        if base is not None:
            of = OfFunction(function, k, base)
            t._viewed = ViewInfo(base, chain, t._storage.version, of)


def mark_view(function: str, index: int, view: Tensor, base: Tensor) -> None:
    """Mark an output of a function as a view of another output, whose history it cannot follow."""
    chain = (None, given_ops.strided_view, (), 1)
    view._viewed = ViewInfo(base, chain, view._storage.version, OfFunction(function, index, base))


def replay(tensor: Tensor, chain: Link) -> Tensor:
    """Apply a chain of view ops to a tensor."""
    links = []
    link: Link | None = chain
    while link is not None:
        links.append(link)
        link = link[0]
    for _, function, attributes, _ in reversed(links):
        tensor = function(tensor, *attributes)
    return tensor


def continued(chain: Link, more: Link) -> Link:
    """Return a chain of view ops, and then those of another chain."""
    links = []
    link: Link | None = more
    while link is not None:
        before = link[0]
        links.append((link[1], link[2], link[3] - (before[3] if before is not None else 0)))
        link = before
    for function, attributes, count in reversed(links):
        chain = (chain, function, attributes, chain[3] + count)
    return chain


def shortened(view: Tensor, viewed: ViewInfo) -> Link:
    """Shorten a view's chain for replay: a long one becomes one ``as_strided`` of its base.

    So a replay costs the same however long the chain is, and a loop that makes a view of a view
    and writes into it is linear. A chain that reads the bytes as another dtype,
    or whose base has gaps, stays as it is.
    """
    chain = viewed.chain
    base = viewed.base
    if chain[3] <= LONG or not base.is_contiguous() or view._storage is not base._storage:
        return chain
    start = view.storage_offset() - base.storage_offset() if view._spec.numel else 0
    if start < 0:  # an `as_strided` reached before the base
        return chain
    strided = (tuple(view._spec.shape), view.stride(), start, base.stride())
    viewed.chain = (None, given_ops.strided_view, strided, 1)
    return viewed.chain


def base_of(viewed: ViewInfo) -> Tensor:
    """Return the tensor from which a view's chain starts.

    ``x.t_()`` makes ``x`` a view of what it was; the views that ``x`` had are views of that now.
    """
    base = viewed.base
    if base._viewed is not None:
        base = viewed.base = base._viewed.base
    return base


def refresh(view: Tensor) -> None:
    """Update the history of a view after its base changed."""
    viewed = view._viewed
    assert viewed is not None
    viewed.version = view._storage.version
    base = base_of(viewed)
    of = viewed.tracked
    if of is not True:
        if of and of.outdated(base):
            viewed.version = -1  # the next use is refused too
            raise of.error("The base or another view of it has been modified inplace")
        return
    if not base._requires_grad:
        return
    if base._node is None and view._node is not None and view._requires_grad:
        return  # the base is a leaf, written under no_grad: same history
    with enable_grad():
        fresh = replay(base, shortened(view, viewed))
    old = view._node
    view._node, view._index, view._requires_grad = fresh._node, fresh._index, fresh._requires_grad
    if view._extra is not None and "retains_grad" in view._extra:
        move_retained(view, old)


def check_writable(tensor: Tensor, op: str, recorded: bool = False) -> None:
    """Raise an error for an in-place write that autograd cannot track, before it happens.

    Args:
        tensor: What is to be written.
        op: Whose message it is.
        recorded: The write will be a node of the graph.

    Raises:
        RuntimeError: The tensor is a leaf that requires grad, or a view of one; or a view made
            under ``no_grad`` or by an ``autograd.Function``; or an inference tensor outside its
            mode.
    """
    state = local.state
    if tensor._extra is not None and tensor._extra.get("inference") and not state.inference:
        raise RuntimeError(
            f"{op}: Inplace update to inference tensor outside InferenceMode is not allowed. "
            "Clone it first."
        )
    if not state.grad:
        return
    viewed = tensor._viewed
    owner = tensor if viewed is None else base_of(viewed)
    if viewed is not None and isinstance(viewed.tracked, OfFunction):
        raise viewed.tracked.error(op)
    leaf = tensor._requires_grad and tensor._node is None  # a view can be a leaf of its own
    # A view with a history whose base has none: the base, written, would be its own ancestor.
    if leaf or (owner._node is None and (owner._requires_grad or tensor._requires_grad)):
        what = "a leaf" if viewed is None else "a view of a leaf"
        raise RuntimeError(
            f"{op}: {what} Variable that requires grad is being used in an in-place operation. "
            "Write under lowtide.no_grad(), or into a clone."
        )
    if viewed is not None and not viewed.tracked and (recorded or owner._requires_grad):
        raise RuntimeError(
            f"{op}: a view was created in no_grad mode and its base or another view of its base "
            "is being modified inplace with grad mode enabled. Make the view outside no_grad."
        )


def rebase(tensor: Tensor, node: Node, index: int = 0) -> None:
    """Set a node as the history of a tensor just written in place, and of its base."""
    viewed = tensor._viewed
    if viewed is None:
        _replace(tensor, node, index)
        return
    base = base_of(viewed)
    if not viewed.tracked:
        raise GradientError(
            f"{node.name()} wrote into a view made under no_grad, so its gradient has no way "
            "back. Make the view outside no_grad."
        )
    _replace(base, ViewScatter(base, node, index, tensor, shortened(tensor, viewed)), 0)
    refresh(tensor)


def _replace(tensor: Tensor, node: Node, index: int) -> None:
    old = tensor._node
    attach(tensor, node, index)
    if tensor._extra is not None and "retains_grad" in tensor._extra:
        move_retained(tensor, old)


class ViewScatter(Node):
    """The node of a base after an in-place write into a view: PyTorch's ``CopySlices``.

    The gradient of the written values is the view of the base's gradient; that of the old base is
    the rest, with zeros in the view's place.
    """

    __slots__ = ("chain", "edge_specs", "old")

    def __init__(self, base: Tensor, written: Node, index: int, view: Tensor, chain: Link) -> None:
        self.old = base._requires_grad
        self.edges = [(written, index), *([edge_to(base)] if self.old else [])]
        self.edge_specs = [view._spec, base._spec]
        self.chain = chain
        self._begin()

    def name(self) -> str:
        """Return PyTorch's name of the corresponding node."""
        return "CopySlices"

    def apply(
        self, grads: list[Tensor | None], wanted: Sequence[bool] | None, retain: bool, create: bool
    ) -> Sequence[Tensor | None]:
        """Split the gradient of the base."""
        g = grads[0]
        if g is None:
            return [None] * len(self.edges)
        if not g.is_contiguous():
            g = g.contiguous()  # as the base was: strides matter
        inside = replay(g, self.chain)
        if not self.old or (wanted is not None and not wanted[1]):
            return [inside] + [None] * self.old
        outside = g.clone()
        with enable_grad() if create else no_grad():
            replay(outside, self.chain).zero_()
        return [inside, outside]
