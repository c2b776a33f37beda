"""Parameters of distributions: numbers and tensors made alike, probabilities and log-odds.

Every distribution of independent numbers takes Python numbers and tensors and broadcasts them
(:func:`broadcast_all`). Those over few outcomes take probabilities or logits, of which the other
is computed when it is first asked for (:class:`lazy_property`).
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any, cast

from .. import execution
from ..dtypes import finfo, get_default_dtype
from ..modes import enable_grad
from ..ops.activation.softmax import log_softmax, softmax
from ..ops.creation.fill import ones, zeros
from ..ops.creation.from_data import tensor
from ..ops.indexing.where import tril
from ..ops.manipulation.cat import broadcast_tensors
from ..spec import Size
from ..tensor import Tensor


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Broadcast numbers and tensors to one shape.

    A number becomes a tensor of the first tensor's dtype and device, or of the default ones if
    all are numbers. Tensors keep their dtypes.

    Args:
        values: Numbers or tensors, whose shapes broadcast.

    Returns:
        One tensor for each.

    Raises:
        ValueError: One is neither.
    """
    for v in values:
        if not isinstance(v, Tensor | Number):
            raise ValueError(
                "a distribution's parameters are numbers and tensors (instances of Number or "
                f"Tensor); got {type(v).__name__}: {v!r}. Convert it with lowtide.tensor()."
            )
    first = next((v for v in values if isinstance(v, Tensor)), None)
    dtype = get_default_dtype() if first is None else first.dtype
    device = None if first is None else first.device
    made = [v if isinstance(v, Tensor) else tensor(v, dtype=dtype, device=device) for v in values]
    return tuple(broadcast_tensors(*made))


def batch_shape_of(broadcast: Tensor, *values: Any) -> Size:
    """Return the batch shape of parameters: that of numbers alone is empty."""
    return Size() if all(isinstance(v, Number) for v in values) else broadcast.shape


def known(value: Tensor) -> bool:
    """True if a tensor has values that may be looked at: not on meta, and not in an estimate."""
    return value.device.type != "meta" and execution.current.knows(value)


def decided(condition: Tensor, usual: bool) -> bool:
    """Return the truth of a tensor of one element; ``usual`` where it has no value.

    What leads to the condition is computed in any case, so that a step on meta and the estimate of
    a step need the bytes of the step itself.
    """
    return bool(condition) if known(condition) else usual


def given_one(name: str, **given: Any) -> None:
    """Check that exactly one of several parameters was given.

    Raises:
        ValueError: None or more than one was.
    """
    count = sum(v is not None for v in given.values())
    if count != 1:
        names = " or ".join(f"`{n}`" for n in given)
        raise ValueError(
            f"{name}: exactly one of {names} must be specified, and the others follow from it "
            f"(either one, but not both); got {count}."
        )


def need_vector(name: str, parameter: str, value: Any) -> None:
    """Check that a parameter has at least one axis, that of the event.

    Raises:
        ValueError: It has none.
    """
    if value.dim() < 1:
        raise ValueError(
            f"{name}: `{parameter}` must be at least one-dimensional, the last axis being one "
            f"event's; got shape {tuple(value.shape)}."
        )


# Probabilities and logits


def clamp_probs(probs: Tensor) -> Tensor:
    """Keep probabilities away from 0 and 1 by the dtype's precision, so that logs are finite."""
    eps = finfo(probs.dtype).eps
    return probs.clamp(eps, 1 - eps)


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Convert logits into probabilities.

    Args:
        logits: Log-odds, or unnormalized log-probabilities along the last axis.
        is_binary: Whether each is the log-odds of a separate event.
    """
    if is_binary:
        return logits.sigmoid()
    return cast(Tensor, softmax(logits, -1))


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Convert probabilities into logits; the inverse of :func:`logits_to_probs`.

    Args:
        probs: Probabilities; of categories, those along the last axis add up to 1.
        is_binary: Whether each is the probability of a separate event.
    """
    clamped = clamp_probs(probs)
    return clamped.log() - (-clamped).log1p() if is_binary else clamped.log()


def normalized_logits(logits: Tensor) -> Tensor:
    """Subtract the logarithm of the sum of exponentials along the last axis."""
    return cast(Tensor, log_softmax(logits, -1))


class lazy_property:
    """A property that is computed when first read and from then on is a plain attribute.

    It is computed with recording on, since who reads it first may be inside ``no_grad``.
    """

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped = wrapped
        self.__doc__ = wrapped.__doc__
        self.__name__ = getattr(wrapped, "__name__", "lazy_property")

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Compute it and leave it in the instance, which is asked first the next time."""
        if instance is None:
            return self
        with enable_grad():
            value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


# Triangular matrices


def _below(n: int, diag: int, device: Any) -> Tensor:
    # True on and below a diagonal of an n x n matrix.
    return cast(Tensor, tril(ones(n, n, device=device), diag) > 0)


def tril_matrix_to_vec(mat: Tensor, diag: int = 0) -> Tensor:
    """Take the elements on and below a diagonal, row by row.

    Args:
        mat: (..., n, n).
        diag: The diagonal: 0 the main one, positive ones above it.

    Returns:
        (..., number of them).

    Raises:
        ValueError: There is no such diagonal.
    """
    n = mat.shape[-1]
    if not -n <= diag < n:
        raise ValueError(f"tril_matrix_to_vec: diag ({diag}) provided is outside [{-n}, {n - 1}].")
    return mat[..., _below(n, diag, mat.device)]


def vec_to_tril_matrix(vec: Tensor, diag: int = 0) -> Tensor:
    """Put numbers on and below a diagonal of a matrix of zeros, row by row.

    Args:
        vec: (..., number of places).
        diag: The diagonal: 0 the main one, positive ones above it.

    Returns:
        (..., n, n).

    Raises:
        ValueError: No matrix has that many places there.
    """
    count, n = vec.shape[-1], 1
    while _triangle_size(n, diag) < count:
        n += 1
    if _triangle_size(n, diag) != count or not -n <= diag < n:
        raise ValueError(
            f"vec_to_tril_matrix: the size of the last dimension is {count}, which cannot be "
            "expressed as the lower triangular part of a square D x D matrix up to diagonal "
            f"{diag}."
        )
    matrix = zeros(*vec.shape[:-1], n, n, dtype=vec.dtype, device=vec.device)
    matrix[..., _below(n, diag, vec.device)] = vec
    return cast(Tensor, matrix)


def _triangle_size(n: int, diag: int) -> int:
    # On and below a diagonal of an n x n matrix.
    if diag < 0:
        return max(n + diag, 0) * (n + diag + 1) // 2
    above = min(diag, n - 1)
    return n * (n + 1) // 2 + above * n - above * (above + 1) // 2


def tiny_of(x: Tensor) -> float:
    """Return the least positive normal number of a floating tensor's dtype."""
    return float(finfo(x.dtype).tiny)


def eps_of(x: Tensor) -> float:
    """Return the distance from 1 to the next number of a floating tensor's dtype."""
    return float(finfo(x.dtype).eps)
