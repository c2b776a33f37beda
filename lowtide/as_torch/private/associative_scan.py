"""``torch._higher_order_ops.associative_scan``: the scan that sequence models call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowtide as _lt
from lowtide.utils import _pytree


def associative_scan(
    combine_fn: Callable[[Any, Any], Any],
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """Return all prefixes of tensors along ``dim``, combined by an associative function.

    It takes about log2 of the length steps, each on half of what is left, and a gradient through
    each.

    Args:
        combine_fn: Takes two trees of tensors like ``xs``, and returns one.
        xs: A tree of tensors with the same size along ``dim``.
        dim: Where to scan.
        reverse: Suffixes instead of prefixes.
        combine_mode: Ignored: both of PyTorch's compute the same.

    Raises:
        ValueError: There are no tensors, or their sizes along ``dim`` differ.
    """
    leaves, spec = _pytree.tree_flatten(xs)
    sizes = {leaf.shape[dim] for leaf in leaves}
    if len(sizes) != 1:
        raise ValueError(
            f"associative_scan: all leaves of xs need one size along dim {dim}; got "
            f"{sorted(sizes)}."
        )

    def combine(a: list[Any], b: list[Any]) -> list[Any]:
        both = (_pytree.tree_unflatten(side, spec) for side in (a, b))
        found: list[Any] = _pytree.tree_flatten(combine_fn(*both))[0]
        if len(found) != len(leaves):
            raise RuntimeError(
                f"associative_scan: combine_fn must return a tree like xs, of {len(leaves)} "
                f"tensors; got {len(found)}. Return one for each."
            )
        return found

    leaves = [leaf.flip(dim) if reverse else leaf for leaf in leaves]
    found = _scan(combine, leaves, dim)
    return _pytree.tree_unflatten([leaf.flip(dim) if reverse else leaf for leaf in found], spec)


def _scan(combine: Callable[..., list[Any]], leaves: list[Any], dim: int) -> list[Any]:
    # Pairs first, then the prefixes of the pairs: those are every second one of the result.
    n = leaves[0].shape[dim]
    if n < 2:
        return leaves
    even, odd = _every_second(leaves, dim, 0), _every_second(leaves, dim, 1)
    pairs = [leaf.narrow(dim, 0, n // 2) for leaf in even]
    odd = _scan(combine, combine(pairs, odd), dim)
    first = [leaf.narrow(dim, 0, 1) for leaf in even]
    before = [leaf.narrow(dim, 0, (n - 1) // 2) for leaf in odd]
    later = [leaf.narrow(dim, 1, (n - 1) // 2) for leaf in even]
    even = (
        [_lt.cat([a, b], dim) for a, b in zip(first, combine(before, later), strict=True)]
        if n > 2
        else first
    )
    return [_interleaved(a, b, dim) for a, b in zip(even, odd, strict=True)]


def _every_second(leaves: list[Any], dim: int, start: int) -> list[Any]:
    return [
        leaf.movedim(dim, 0)[start::2].movedim(0, dim) for leaf in leaves
    ]  # a view: nothing is copied


def _interleaved(even: Any, odd: Any, dim: int) -> Any:
    a, b = even.movedim(dim, 0), odd.movedim(dim, 0)
    n = b.shape[0]
    mixed = _lt.stack([a[:n], b], 1).flatten(0, 1)
    return (_lt.cat([mixed, a[n:]]) if a.shape[0] > n else mixed).movedim(0, dim)
