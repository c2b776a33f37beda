"""Line search with the strong Wolfe conditions.

First the step grows until an interval must hold an acceptable one, then the interval shrinks, both
by cubic interpolation of loss and slope. Source: Nocedal and Wright, Numerical Optimization,
algorithms 3.5 and 3.6, with the safeguards of minFunc (M. Schmidt 2005), which PyTorch uses too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..framework.data_dependence import value_or_hint

ENOUGH = 1e-4  # c1: share of the first slope's promise that the loss must fall by
FLAT = 0.9  # c2: share of the first slope that may be left


class Point(NamedTuple):
    """A step length with its loss, gradient and slope."""

    t: float
    loss: float
    g: Any
    slope: float


def strong_wolfe(
    probe: Callable[[float], tuple[float, Any]],
    t: float,
    d: Any,
    loss: float,
    g: Any,
    slope: float,
    most: int = 25,
    least_change: float = 1e-9,
) -> tuple[float, Any, float, int]:
    """Find a step length that meets the strong Wolfe conditions.

    Args:
        probe: Loss and gradient at a step length.
        t: Where to begin.
        d: The direction.
        loss: At 0, and so are ``g`` and ``slope``.
        g: Gradient.
        slope: Its product with d; below 0.
        most: Probes after the first.
        least_change: End where an interval is shorter, measured by d's largest element.

    Returns:
        (loss, gradient, step length, number of probes).
    """

    def at(t: float) -> Point:
        f, gradient = probe(t)
        return Point(t, f, gradient, value_or_hint(gradient.dot(d), slope / 2))

    reach = value_or_hint(d.abs().max(), 1.0)
    start = before = Point(0.0, loss, g, slope)
    here = at(t)
    probes, tries = 1, 0
    low = high = here
    found = False
    while tries < most:
        too_high = here.loss > loss + ENOUGH * here.t * slope
        if too_high or (tries > 1 and here.loss >= before.loss):
            low, high = before, here
            break
        if abs(here.slope) <= -FLAT * slope:
            low, high, found = here, here, True
            break
        if here.slope >= 0:
            low, high = before, here
            break
        least, largest = here.t + 0.01 * (here.t - before.t), here.t * 10
        t = interpolate(before, here, (least, largest))
        before, here = here, at(t)
        probes += 1
        tries += 1
    else:
        low, high = start, here
    if high.loss < low.loss:
        low, high = high, low
    if not found:

        def closed(width: float) -> bool:
            return bool(width * reach < least_change)

        low, more = _narrow(at, low, high, most - tries, closed, loss, slope)
        probes += more
    return low.loss, low.g, low.t, probes


def _narrow(
    at: Callable[[float], Point],
    low: Point,
    high: Point,
    most: int,
    closed: Callable[[float], bool],
    loss: float,
    slope: float,
) -> tuple[Point, int]:
    # A point between two that meets the conditions, or the better end of what is left; and how
    # many probes it took.
    probes = 0
    stuck = found = False
    while not found and probes < most:
        left, right = min(low.t, high.t), max(low.t, high.t)
        if closed(right - left):
            break
        t = interpolate(low, high)
        margin = 0.1 * (right - left)
        if min(right - t, t - left) < margin:  # too near an end to learn much
            if stuck or t >= right or t <= left:
                t = right - margin if abs(t - right) < abs(t - left) else left + margin
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        here = at(t)
        probes += 1
        if here.loss > loss + ENOUGH * here.t * slope or here.loss >= low.loss:
            high = here
            if high.loss < low.loss:
                low, high = high, low
        else:
            if abs(here.slope) <= -FLAT * slope:
                found = True
            elif here.slope * (high.t - low.t) >= 0:
                high = low
            low = here
    return low, probes


def interpolate(a: Point, b: Point, bounds: tuple[float, float] | None = None) -> float:
    """Return the minimum of the cubic through two points with given losses and slopes.

    Args:
        a: One end.
        b: The other.
        bounds: Where the answer must lie; default: between the ends. Their middle if the cubic has
            no minimum.
    """
    if a.t > b.t:
        a, b = b, a
    least, largest = bounds or (a.t, b.t)
    inner = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = inner * inner - a.slope * b.slope
    if not square >= 0:
        return (least + largest) / 2
    root = math.sqrt(square)
    t = b.t - (b.t - a.t) * ((b.slope + root - inner) / (b.slope - a.slope + 2 * root))
    return min(max(t, least), largest)
