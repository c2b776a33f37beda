"""Normalizations with their statistics, and random draws, directly under ``torch``.

Their public counterparts (``nn.functional``, ``distributions``) return the result alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import lowtide as _lt
from lowtide.framework.distributions.sampling import draws, implicit_gradients
from lowtide.nn import functional as _F

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def _listed(function: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[function.__name__] = function
    return function


# Normalization: (result, mean, reciprocal of the deviation)


def _statistics(input: Any, dims: tuple[int, ...], eps: float, keepdim: bool) -> tuple[Any, Any]:
    # Rounded once, to the dtype of the input.
    wide = input.float() if input.dtype in (_lt.float16, _lt.bfloat16) else input
    mean = wide.mean(dims, keepdim=keepdim)
    rstd = (wide.var(dims, correction=0, keepdim=keepdim) + eps).rsqrt()
    return mean.to(input.dtype), rstd.to(input.dtype)


@_listed
def native_layer_norm(
    input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float
) -> tuple[Any, Any, Any]:
    """Normalize the last dimensions; statistics keep them, with size 1."""
    dims = tuple(range(-len(normalized_shape), 0))
    result = _F.layer_norm(input, normalized_shape, weight, bias, eps)
    return result, *_statistics(input, dims, eps, True)


@_listed
def native_batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, Any, Any]:
    """Normalize channels over the batch; statistics (C,) have the running ones' dtype.

    In evaluation they are empty: the running ones were used.
    """
    result = _F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    kind = (input if running_mean is None else running_mean).dtype
    if not training:
        return result, input.new_empty((0,), dtype=kind), input.new_empty((0,), dtype=kind)
    dims = (0, *range(2, input.dim()))
    return result, *_statistics(input.detach().to(kind), dims, eps, False)


@_listed
def native_group_norm(
    input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Any, Any, Any]:
    """Normalize groups of channels of (N, C, HxW); statistics are (N, group).

    Raises:
        RuntimeError: The sizes are not those of the input, or the groups do not divide C.
    """
    if input.numel() != N * C * HxW or group < 1 or C % group:
        raise RuntimeError(
            "native_group_norm takes N * C * HxW elements in groups that divide C; got "
            f"{tuple(input.shape)} with N={N}, C={C}, HxW={HxW}, group={group}. Pass the sizes of "
            "the input."
        )
    flat = input.reshape(N, C, HxW)
    result = _F.group_norm(flat, group, weight, bias, eps).reshape(input.shape)
    rows = input.detach().reshape(N, group, prod((C // group, HxW)))
    return result, *_statistics(rows, (-1,), eps, False)


@_listed
def native_dropout(input: Any, p: float, train: bool | None) -> tuple[Any, Any]:
    """Drop elements; return (result, mask of those that stay)."""
    if train is False or p == 0:
        return input.clone(), _lt.ones_like(input, dtype=_lt.bool)
    mask = _lt.rand_like(input) >= p
    return input * mask * (1 / (1 - p) if p < 1 else 0.0), mask


@_listed
def native_channel_shuffle(input: Any, groups: int) -> Any:
    """Interleave groups of channels, as ``nn.functional.channel_shuffle``."""
    return _F.channel_shuffle(input, groups)


@_listed
def native_norm(
    input: Any,
    p: Any = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Any:
    """The p-norm, as ``torch.norm``; of a sparse tensor, of its values."""
    return _lt.norm(input, 2 if p is None else p, dim or None, keepdim, dtype=dtype)


# Draws


@_listed
def binomial(count: Any, prob: Any, generator: Any = None) -> Any:
    """Draw the number of successes in ``count`` trials of probability ``prob``, in its dtype.

    Raises:
        ValueError: A dtype is not floating.
        RuntimeError: The dtypes differ, a count is negative or a probability outside of [0, 1],
            or ``prob`` requires a gradient; there is none.
    """
    for name, x in (("count", count), ("prob", prob)):
        if not x.is_floating_point():
            raise ValueError(
                f"binomial only supports floating-point dtypes for {name}, got: {x.dtype}. "
                "Convert with .to(torch.float32)."
            )
        if x.requires_grad and _lt.is_grad_enabled():
            raise RuntimeError(
                f"binomial has no gradient by {name}, and it requires one. Pass {name}.detach()."
            )
    if count.dtype != prob.dtype:
        raise RuntimeError(
            f"binomial: Found dtype {prob.dtype} but expected {count.dtype}. Convert one by .to()."
        )
    count, prob = _lt.broadcast_tensors(count, prob)
    found: Any = draws._binomial(count, prob, draws.place_for(count, generator))
    return found


@_listed
def _standard_gamma(input: Any, generator: Any = None) -> Any:
    """Draw gamma variables of rate 1; their gradient by the shape parameters is implicit."""
    return implicit_gradients.draw_gamma(input, generator)


@_listed
def _sample_dirichlet(input: Any, generator: Any = None) -> Any:
    """Draw from Dirichlet distributions along the last dimension, with an implicit gradient."""
    return implicit_gradients.draw_dirichlet(input, generator)
