"""The Kullback-Leibler divergence, looked up by the classes of both distributions.

``KL(p, q) = E_p[log p(x) - log q(x)]`` has a closed form for some pairs of families. Each is a
function registered for two classes (``continuous.py``, ``discrete.py``,
``structured.py``); a pair of subclasses takes what is registered for their nearest bases.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from ...ops.creation.fill import full
from ...tensor import Tensor
from ..distribution import Distribution

Divergence = Callable[[Any, Any], Tensor]

_REGISTRY: dict[tuple[type, type], Divergence] = {}
_FOUND: dict[tuple[type, type], Divergence | None] = {}


def register_kl(type_p: Any, type_q: Any) -> Callable[[Divergence], Divergence]:
    """Register the divergence of a pair of classes; a decorator of ``f(p, q)``.

    Args:
        type_p: A class, that of the first: of Distribution, or one that claims such classes as its
            own, as an abstract base class does.
        type_q: The second's.

    Raises:
        TypeError: One is no class.
    """
    for role, given in (("type_p", type_p), ("type_q", type_q)):
        if not isinstance(given, type):
            raise TypeError(
                f"register_kl: expected {role} to be a class of distributions; got {given!r}."
            )

    def decorate(function: Divergence) -> Divergence:
        _REGISTRY[type_p, type_q] = function
        _FOUND.clear()
        return function

    return decorate


def _found(type_p: type, type_q: type) -> Divergence | None:
    # What is registered for the nearest bases of p, among those the nearest of q. Warns where
    # looking at q first would find another.
    candidates = [(p, q) for p, q in _REGISTRY if issubclass(type_p, p) and issubclass(type_q, q)]
    if not candidates:
        return None

    def steps(kind: type, base: type) -> int:  # an abstract base is the farthest
        return kind.__mro__.index(base) if base in kind.__mro__ else len(kind.__mro__)

    def near_p(pair: tuple[type, type]) -> tuple[int, int]:
        return steps(type_p, pair[0]), steps(type_q, pair[1])

    left = min(candidates, key=near_p)
    right = min(candidates, key=lambda pair: near_p(pair)[::-1])
    if _REGISTRY[left] is not _REGISTRY[right]:
        names = [f"{p.__name__}, {q.__name__}" for p, q in (left, right)]
        warnings.warn(
            f"Ambiguous kl_divergence({type_p.__name__}, {type_q.__name__}): ({names[0]}) and "
            f"({names[1]}) are registered. Please register_kl({type_p.__name__}, "
            f"{type_q.__name__}).",
            RuntimeWarning,
            stacklevel=3,
        )
    return _REGISTRY[left]


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Compute the Kullback-Leibler divergence ``E_p[log p - log q]``, of the batch shape.

    Args:
        p: The distribution over which the mean is taken.
        q: The other, of the same event shape.

    Raises:
        NotImplementedError: No closed form is registered for the pair.
    """
    pair = type(p), type(q)
    if pair not in _FOUND:
        _FOUND[pair] = _found(*pair)
    function = _FOUND[pair]
    if function is None:
        raise NotImplementedError(
            f"No KL(p || q) is implemented for p type {type(p).__name__} and q type "
            f"{type(q).__name__}. Register one with register_kl, or take the mean of "
            "p.log_prob(x) - q.log_prob(x) over samples x of p."
        )
    return function(p, q)


def infinite_like(x: Tensor) -> Tensor:
    """Return infinity in the shape of a tensor."""
    return full(x.shape, math.inf, dtype=x.dtype, device=x.device)
