"""Base of elementwise optimizers: one recurrence, compiled or in tensor ops.

A subclass says what state a parameter has (:meth:`Elementwise.start`), which numbers this step's
recurrence takes (:meth:`Elementwise.advance`), and the recurrence itself: compiled, as the loop of
that name in ``framework/kernels/cpu/optim/elementwise.py``, and in tensor ops
(:meth:`Elementwise.plain`).

The compiled loop serves contiguous float32 and float64 on the CPU. All else there (half precision,
strided or complex parameters, small models) runs the tensor methods on blocks
(``framework/blockwise.py``). Neither takes memory, so a step whose state exists cannot fail
half-way.

On other devices they run on tiles of tensors (``framework/ops/views/tiled.py``), so temporaries
never grow with the parameter: at most ``TILES_ALIVE`` tiles of scratch at any moment. So much is
taken and given back before the first write: what a limit refuses, it refuses there. Not optimal:
each op is a kernel of its own.

Complex parameters are stepped as pairs of real numbers, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..framework.blockwise import HOSTS, ArrayBlock, blockwise_call
from ..framework.ops.creation.fill import empty, full_like, ones_like, zeros_like
from ..framework.ops.views.tiled import limit_of, tiles
from . import fused
from .optimizer import SCALARS, Optimizer, number, own

TILES_ALIVE = 5  # temporaries of that size at once, by the longest of the recurrences


class Elementwise(Optimizer):
    """Base class of optimizers that update each element independently.

    Attributes:
        loop: Name of the compiled loop.
    """

    loop = ""

    def start(self, p: Any, group: dict[str, Any]) -> dict[str, Any]:
        """Return the initial state of a parameter; subclasses define it."""
        raise NotImplementedError

    def advance(
        self, state: dict[str, Any], group: dict[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[float, ...]]:
        """Count the step; return the state tensors and the numbers that the recurrence takes."""
        raise NotImplementedError

    @staticmethod
    def plain(p: Any, g: Any, *state_and_numbers: Any) -> None:
        """Apply the recurrence in tensor ops, in place; arguments as the compiled loop."""
        raise NotImplementedError

    def prepare(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        """Prepare the step of one parameter."""
        if not state:
            state.update(self.start(p, group))
        held, numbers = self.advance(state, group)
        tensors = (p, g, *held)
        if fused.fits(self.elements, *tensors):
            return fused.planned(self.loop, tensors, numbers)
        return planned_plain(self.plain, tensors, numbers)

    def state_shape(self, key: str, p: Any) -> tuple[int, ...] | None:
        """Return the parameter's own shape, but for counters."""
        return None if key in SCALARS else tuple(p.shape)

    def planned(
        self, loop: str, plain: Any, tensors: Sequence[Any], numbers: Sequence[float]
    ) -> Any:
        """Return the call of the compiled loop where it applies, else of tensor methods."""
        if fused.fits(self.elements, *tensors):
            return fused.planned(loop, tensors, numbers)
        return planned_plain(plain, tensors, numbers)


def planned_plain(plain: Any, tensors: Sequence[Any], numbers: Sequence[float]) -> Any:
    """Return the call of a recurrence in tensor methods."""
    if tensors[0].device.type in HOSTS:
        return blockwise_call(plain, tensors, numbers)
    reserve(tensors[0])
    return by_tiles, plain, tensors, numbers


def by_tiles(plain: Any, tensors: Sequence[Any], numbers: Sequence[float]) -> None:
    """Run a recurrence in tensor ops, tile by tile."""
    for tile in tiles(*tensors):
        plain(*tile, *numbers)


def reserve(p: Any) -> None:
    """Allocate and free the scratch of a step, so that a memory limit refuses it before writes."""
    empty(TILES_ALIVE * min(p.numel(), limit_of(p)), dtype=p.dtype, device=p.device)


def ones(like: Any) -> Any:
    """Ones of the shape and dtype of a tensor, or of an array block."""
    return like.ones() if type(like) is ArrayBlock else ones_like(like)


def zeros(p: Any) -> Any:
    """Return zero state of a parameter's shape and dtype."""
    return own(zeros_like(p), p)


def filled(p: Any, value: float) -> Any:
    """Return state filled with ``value``, in both parts for a complex parameter."""
    return own(full_like(p, complex(value, value) if p.is_complex() else value), p)


def gradient(p: Any, g: Any, sign: float, decay: float) -> Any:
    """Return the gradient with its sign and the L2 penalty applied."""
    if sign != 1:
        g = -g
    return g.add(p, alpha=decay) if decay else g


def first_numbers(group: dict[str, Any]) -> tuple[float, float]:
    """Return ``sign`` and ``decay`` of a group whose weight decay is an L2 penalty."""
    return (-1.0 if group["maximize"] else 1.0), number(group["weight_decay"])
