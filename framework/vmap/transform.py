"""``vmap``: a function of one sample becomes a function of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from ..autograd.transforms import flatten
from ..ops.manipulation.cat import cat
from ..tensor import Tensor
from . import calls, custom_function, gradients, own_rules  # noqa: F401
from .batched import labeled, levels_of, real
from .factories import exchanged
from .levels import RANDOMNESS, Level, inside

Function = Callable[..., Any]


def vmap(
    func: Function,
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Function:
    """Return the vectorizing map of ``func``: it runs on a batch as ``func`` would on each sample.

    Args:
        func: Takes tensors of one sample (trees of them, and anything else), returns a Tensor or a
            tree of them.
        in_dims: Which dim of each argument counts the samples: an int for all, or a tree in the
            structure of the arguments, or of an upper part of it; None for what all samples share.
        out_dims: Where that dim goes in the results, likewise.
        randomness: What random draws in ``func`` are: "error" refuses them, "different" draws for
            each sample, "same" draws once.
        chunk_size: Compute that many samples at a time, which takes less memory; None for all.

    Returns:
        A function of the same arguments, which have one more dim, as its results do; keyword
        arguments are shared by all samples. Each op runs once for all samples; those without a
        rule run once per sample (docs/vmap.md has the list).

    Raises:
        ValueError: The arguments have no batch, or not one size of it; ``in_dims`` or ``out_dims``
            do not fit.
        RuntimeError: ``func`` asks for a value (``.item()``, ``if`` on a tensor), draws under
            "error", writes a sample's values into what all share, or calls an op whose result's
            shape depends on values.

    Example:
        >>> import lowtide as lt
        >>> lt.vmap(lt.dot)(lt.ones(3, 2), lt.ones(3, 2)).tolist()
        [2.0, 2.0, 2.0]
    """
    if randomness not in RANDOMNESS:
        raise RuntimeError(
            "Only allowed values for randomness are 'error', 'different', or 'same'. Got "
            f"{randomness!r}."
        )
    if not (chunk_size is None or chunk_size > 0):
        raise ValueError(
            f"vmap: chunk_size should be None or greater than 0; got {chunk_size}. Leave it out to "
            "compute all samples at once."
        )

    @functools.wraps(func)
    def vectorized(*args: Any, **kwargs: Any) -> Any:
        name = getattr(func, "__name__", type(func).__name__)
        what = f"vmap({name}, in_dims={in_dims}, ...)(<inputs>)"
        leaves, dims, restore = _spread_inputs(what, in_dims, args)
        size = _batch_size(leaves, dims)

        def run(given: list[Any], number: int) -> tuple[list[Any], Any]:
            level = Level(number, randomness)
            seen = [
                x if d is None else labeled(x.movedim(d, 0), (level,))
                for x, d in zip(given, dims, strict=True)
            ]
            with exchanged(), inside((level,)):
                result = func(*restore(seen), **kwargs)
                return _gather(f"vmap({name}, ...)", name, result, out_dims, level)

        if chunk_size is None or chunk_size >= size:
            results, back = run(leaves, size)
            return back([r for r, _ in results])
        parts = []
        for start in range(0, size, chunk_size):
            number = min(chunk_size, size - start)
            given = [
                x if d is None else x.narrow(d, start, number)
                for x, d in zip(leaves, dims, strict=True)
            ]
            results, back = run(given, number)
            parts.append(results)
        joined = [
            column[0][0] if column[0][1] is None else cat([r for r, _ in column], column[0][1])
            for column in zip(*parts, strict=True)
        ]
        return back(joined)

    return vectorized


def _gather(
    what: str, name: str, result: Any, out_dims: Any, level: Level
) -> tuple[list[tuple[Any, int | None]], Any]:
    # The results with the level as a dim: (tensor, dim) of each, and what restores their structure.
    found, back = flatten(result)
    dims = _spread(f"{what[:-1]}, out_dims={out_dims})(<inputs>)", "out_dims", out_dims, result)
    results: list[tuple[Any, int | None]] = []
    for r, d in zip(found, dims, strict=True):
        if not isinstance(r, Tensor):
            raise ValueError(
                f"{what}: `{name}` must only return Tensors, got type {type(r).__name__}. Return "
                "it as a tensor, or not at all."
            )
        if d is None:
            if level in levels_of(r):
                raise ValueError(
                    f"{what}: `{name}` can not return a BatchedTensor when out_dim is None: it "
                    "differs between samples. Give the dim where they go."
                )
            results.append((r, None))
            continue
        out = real(r, (level,))
        if not -out.ndim <= d < out.ndim:
            raise IndexError(
                f"{what}: Dimension out of range (expected to be in range of [{-out.ndim}, "
                f"{out.ndim - 1}], but got out_dim {d} for a result of shape {tuple(r.shape)})."
            )
        results.append((out.movedim(0, d) if d else out, d))
    return results, back


def _spread_inputs(what: str, in_dims: Any, args: Any) -> tuple[list[Any], list[int | None], Any]:
    if not isinstance(in_dims, int | tuple):
        raise ValueError(
            f"{what}: expected `in_dims` to be int or a (potentially nested) tuple matching the "
            f"structure of inputs, got: {type(in_dims)}."
        )
    if not args:
        raise ValueError(
            f"{what}: got no inputs. Maybe you forgot to add inputs, or you are trying to vmap "
            "over a function with no inputs. The latter is unsupported."
        )
    leaves, restore = flatten(args)
    dims = _spread(what, "in_dims", in_dims, args, "inputs")
    for k, (x, d) in enumerate(zip(leaves, dims, strict=True)):
        if d is None:
            continue
        if not isinstance(d, int):
            raise ValueError(
                f"{what}: Got in_dim={d} for an input but in_dim must be either an integer "
                "dimension or None."
            )
        if not isinstance(x, Tensor):
            raise ValueError(
                f"{what}: Got in_dim={d} for an input but the input is of type {type(x)}. We "
                "cannot vmap over non-Tensor arguments, please use None as the respective in_dim."
            )
        if not -x.ndim <= d < x.ndim:
            raise ValueError(
                f"{what}: Got in_dim={d} for some input, but that input is a Tensor of "
                f"dimensionality {x.ndim} so expected in_dim to satisfy -{x.ndim} <= in_dim < "
                f"{x.ndim}."
            )
        dims[k] = d % x.ndim
    return leaves, dims, restore


def _batch_size(leaves: list[Any], dims: list[int | None]) -> int:
    found = [x.shape[d] for x, d in zip(leaves, dims, strict=True) if d is not None]
    if not found:
        raise ValueError(
            "vmap: Expected at least one Tensor to vmap over: all in_dims are None. Call the "
            "function itself."
        )
    if len({*found}) > 1:
        raise ValueError(
            "vmap: Expected all tensors to have the same size in the mapped dimension, got sizes "
            f"{found} for the mapped dimension."
        )
    return int(found[0])


def _spread(what: str, which: str, dims: Any, tree: Any, of: str = "outputs") -> list[Any]:
    # One dim per leaf of the tree.
    try:
        return list(_dims_of(dims, tree, which == "out_dims"))
    except _Unlike:
        raise ValueError(
            f"{what}: {which} is not compatible with the structure of `{of}`: {which} is "
            f"{dims!r}. Pass an int for all, or a tree in the structure of the {of}."
        ) from None


class _Unlike(Exception):
    pass


def _dims_of(dims: Any, tree: Any, outermost: bool = False) -> Iterator[Any]:
    if dims is None or isinstance(dims, int):
        yield from [dims] * len(flatten(tree)[0])
        return
    if isinstance(tree, dict):
        if not isinstance(dims, dict) or dims.keys() != tree.keys():
            raise _Unlike
        for k in tree:
            yield from _dims_of(dims[k], tree[k])
    elif isinstance(tree, tuple | list):
        if not isinstance(dims, tuple | list) or len(dims) != len(tree):
            raise _Unlike
        for d, t in zip(dims, tree, strict=True):
            yield from _dims_of(d, t)
    elif outermost and isinstance(dims, tuple | list) and len(dims) == 1:
        yield dims[0]
    elif isinstance(dims, tuple | list | dict):
        raise _Unlike
    else:
        yield dims
