"""Pytrees: nested containers taken apart into leaves and a structure, and put together again.

:func:`tree_flatten` gives the leaves in order, left to right, and a :class:`TreeSpec`, from which
:func:`tree_unflatten` makes the same containers around other leaves. A dict's values come in the
order of insertion. What is a container, and what a leaf, ``pytree_nodes.py`` says.

Names and behaviour are those of PyTorch's ``torch.utils._pytree``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .pytree_nodes import (
    LEAF,
    IsLeaf,
    KeyPath,
    SequenceKey,
    TreeSpec,
    get_node_type,
    node_of,
    tree_is_leaf,
)

# Trees to leaves, and back


def tree_flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeSpec]:
    """Take a pytree apart: its leaves in order, and its structure.

    Args:
        tree: Containers and leaves.
        is_leaf: Says of a container that it shall be a leaf.

    Returns:
        (leaves, structure).
    """
    leaves: list[Any] = []
    return leaves, _flattened(tree, leaves, is_leaf)


def _flattened(tree: Any, leaves: list[Any], is_leaf: IsLeaf) -> TreeSpec:
    node = node_of(tree)
    if node is None or (is_leaf is not None and is_leaf(tree)):
        leaves.append(tree)
        return LEAF
    children, context = node.flatten_fn(tree)
    return TreeSpec(node.type, context, [_flattened(c, leaves, is_leaf) for c in children])


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """Make a pytree of leaves and a structure.

    Raises:
        TypeError: ``treespec`` is no structure.
        ValueError: The number of leaves is not the structure's.
    """
    if not isinstance(treespec, TreeSpec):
        raise TypeError(
            "tree_unflatten(leaves, treespec): Expected `treespec` to be instance of TreeSpec but "
            f"got item of type {type(treespec)}."
        )
    return treespec.unflatten(leaves)


def tree_iter(tree: Any, is_leaf: IsLeaf = None) -> Iterator[Any]:
    """Yield the leaves in order."""
    node = node_of(tree)
    if node is None or (is_leaf is not None and is_leaf(tree)):
        yield tree
        return
    for child in node.flatten_fn(tree)[0]:
        yield from tree_iter(child, is_leaf)


def tree_leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves in order."""
    return list(tree_iter(tree, is_leaf))


def arg_tree_leaves(*args: Any, **kwargs: Any) -> list[Any]:
    """Return the leaves of all arguments in order."""
    return [leaf for arg in (*args, *kwargs.values()) for leaf in tree_iter(arg)]


def tree_structure(tree: Any, is_leaf: IsLeaf = None) -> TreeSpec:
    """Return the structure alone."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: IsLeaf = None) -> Any:
    """Return a tree of the same structure whose leaves are ``func(leaf, *leaves_of_the_rests)``.

    Raises:
        ValueError: One of ``rests`` has another structure.
    """
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    return spec.unflatten(map(func, leaves, *others))


def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: IsLeaf = None) -> Any:
    """Call ``func`` on the leaves for what it does to them; return ``tree`` itself."""
    leaves, spec = tree_flatten(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    deque(map(func, leaves, *others), maxlen=0)
    return tree


def map_only(type_or_types_or_pred: Any, /) -> Callable[[Callable[[Any], Any]], Any]:
    """Return a decorator of functions of a leaf: other leaves stay as they are.

    Args:
        type_or_types_or_pred: A type, several, a union, or a function that says which leaves.
    """
    if not isinstance(type_or_types_or_pred, type | tuple) and callable(type_or_types_or_pred):
        chosen = type_or_types_or_pred
    else:
        chosen = lambda x: isinstance(x, type_or_types_or_pred)  # noqa: E731
    return lambda func: lambda x: func(x) if chosen(x) else x


def tree_map_only(
    type_or_types_or_pred: Any, /, func: Callable[[Any], Any], tree: Any, is_leaf: IsLeaf = None
) -> Any:
    """As :func:`tree_map`, on leaves of some types alone."""
    return tree_map(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_map_only_(
    type_or_types_or_pred: Any, /, func: Callable[[Any], Any], tree: Any, is_leaf: IsLeaf = None
) -> Any:
    """As :func:`tree_map_`, on leaves of some types alone."""
    return tree_map_(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: Any, is_leaf: IsLeaf = None) -> bool:
    """True if ``pred`` holds for all leaves."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: Any, is_leaf: IsLeaf = None) -> bool:
    """True if ``pred`` holds for a leaf."""
    return any(map(pred, tree_iter(tree, is_leaf)))


def tree_all_only(
    types: Any, /, pred: Callable[[Any], bool], tree: Any, is_leaf: IsLeaf = None
) -> bool:
    """True if ``pred`` holds for all leaves of some types."""
    return all(pred(x) for x in tree_iter(tree, is_leaf) if isinstance(x, types))


def tree_any_only(
    types: Any, /, pred: Callable[[Any], bool], tree: Any, is_leaf: IsLeaf = None
) -> bool:
    """True if ``pred`` holds for a leaf of some types."""
    return any(pred(x) for x in tree_iter(tree, is_leaf) if isinstance(x, types))


def broadcast_to_and_flatten(tree: Any, treespec: TreeSpec, is_leaf: IsLeaf = None) -> Any:
    """Return leaves for a structure, where one may stand for a subtree; None if it does not fit."""
    if tree_is_leaf(tree, is_leaf):
        return [tree] * treespec.num_leaves
    if treespec.is_leaf() or get_node_type(tree) is not treespec.type:
        return None
    node = node_of(tree)
    assert node is not None
    children, context = node.flatten_fn(tree)
    if len(list(children)) != treespec.num_children or context != treespec.context:
        return None
    found = []
    for child, spec in zip(children, treespec.children_specs, strict=True):
        flat = broadcast_to_and_flatten(child, spec, is_leaf)
        if flat is None:
            return None
        found += flat
    return found


# With paths


def tree_flatten_with_path(
    tree: Any, is_leaf: IsLeaf = None
) -> tuple[list[tuple[KeyPath, Any]], TreeSpec]:
    """As :func:`tree_flatten`, each leaf with its path: ([(path, leaf), ...], structure)."""
    return list(_with_paths((), tree, is_leaf)), tree_structure(tree, is_leaf)


def tree_leaves_with_path(tree: Any, is_leaf: IsLeaf = None) -> list[tuple[KeyPath, Any]]:
    """Return the leaves in order, each with its path."""
    return list(_with_paths((), tree, is_leaf))


def _with_paths(path: KeyPath, tree: Any, is_leaf: IsLeaf) -> Iterator[tuple[KeyPath, Any]]:
    node = node_of(tree)
    if node is None or (is_leaf is not None and is_leaf(tree)):
        yield path, tree
        return
    if node.flatten_with_keys_fn is not None:
        pairs = node.flatten_with_keys_fn(tree)[0]
    else:
        pairs = [(SequenceKey(i), child) for i, child in enumerate(node.flatten_fn(tree)[0])]
    for key, child in pairs:
        yield from _with_paths((*path, key), child, is_leaf)


def tree_map_with_path(
    func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: IsLeaf = None
) -> Any:
    """As :func:`tree_map`, ``func`` taking the leaf's path first.

    Raises:
        ValueError: One of ``rests`` has another structure.
    """
    found, spec = tree_flatten_with_path(tree, is_leaf)
    others = [spec.flatten_up_to(rest) for rest in rests]
    paths, leaves = [path for path, _ in found], [leaf for _, leaf in found]
    return spec.unflatten(map(func, paths, leaves, *others))
