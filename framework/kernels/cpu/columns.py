"""Compiled unrolling of images into the columns that convolution multiplies, and its adjoint.

All is three-dimensional here; a signal is a volume with two sizes of 1. ``columns`` is flat: the
columns of image ``i`` begin at ``i * image_step``, and its row for a channel and a window element
``row_step`` after the one before. A padding is what lies before the first position; it is negative
for a tile that begins further in.

Where the result is as wide as the image, positions and what they meet run in step over the ends of
lines, so lines are copied together, and what crossed an end is put right after (before, for the
adjoint: ``roll`` writes zeros into ``columns``).
"""

from __future__ import annotations

from typing import Any

from numba import njit

from .compiler import compiled


@njit(inline="always")
def reach(offset: int, n: int, out: int, stride: int) -> Any:  # pragma: no cover - compiled
    """Positions ``first:last`` for which ``position * stride + offset`` is in ``0:n``."""
    if stride == 1:
        first, last = -offset, n - offset
    else:
        first, last = (stride - 1 - offset) // stride, (n - 1 - offset) // stride + 1
    first = min(max(first, 0), out)
    return first, max(min(last, out), first)


@compiled
def _clear(lines: Any, width: int, first: int, last: int) -> None:  # pragma: no cover - compiled
    # Zero what is outside of first:last in each line.
    for at in range(0, lines.size, width):
        for s in range(at, at + first):
            lines[s] = 0
        for s in range(at + last, at + width):
            lines[s] = 0


@compiled
def unroll(
    columns: Any, row_step: int, image_step: int, images: Any, out: Any, kernel: Any, stride: Any,
    padding: Any, dilation: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """``columns[element, position]`` is the image there, 0 where the window is outside of it."""
    count, channels, depth, height, width = images.shape
    _, lines, wide = out
    taps = kernel[0] * kernel[1] * kernel[2]
    step = stride[2]
    together = wide == width and step == 1 and stride[1] == 1
    for i in range(count):
        for c in range(channels):
            for tap in range(taps):
                a, b = tap // (kernel[1] * kernel[2]), tap // kernel[2] % kernel[1]
                drop = b * dilation[1] - padding[1]
                shift = tap % kernel[2] * dilation[2] - padding[2]
                top, bottom = reach(drop, height, lines, stride[1])
                first, last = reach(shift, width, wide, step)
                begin = i * image_step + (c * taps + tap) * row_step
                for p in range(out[0]):
                    z = p * stride[0] + a * dilation[0] - padding[0]
                    target = columns[begin + p * lines * wide : begin + (p + 1) * lines * wide]
                    if z < 0 or z >= depth or bottom == top or last == first:
                        target[:] = 0
                        continue
                    target[: top * wide] = 0
                    target[bottom * wide :] = 0
                    if together:
                        # The first and last elements of all may be outside of the plane.
                        flat = images[i, c, z].reshape(-1)
                        low, high = top * wide + first, (bottom - 1) * wide + last
                        source = flat[low + drop * wide + shift : high + drop * wide + shift]
                        here = target[low:high]
                        for s in range(here.size):
                            here[s] = source[s]
                        _clear(target[top * wide : bottom * wide], wide, first, last)
                        continue
                    for q in range(top, bottom):
                        line = target[q * wide : (q + 1) * wide]
                        line[:first] = 0
                        line[last:] = 0
                        here = line[first:last]
                        source = images[i, c, z, q * stride[1] + drop, first * step + shift :]
                        if step == 1:
                            for s in range(here.size):
                                here[s] = source[s]
                        else:
                            for s in range(here.size):
                                here[s] = source[s * step]


@compiled
def roll(
    columns: Any, row_step: int, image_step: int, images: Any, out: Any, kernel: Any, stride: Any,
    padding: Any, dilation: Any,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Add each element of the columns to where :func:`unroll` takes it from."""
    count, channels, depth, height, width = images.shape
    _, lines, wide = out
    taps = kernel[0] * kernel[1] * kernel[2]
    step = stride[2]
    together = wide == width and step == 1 and stride[1] == 1
    for i in range(count):
        for c in range(channels):
            for tap in range(taps):
                a, b = tap // (kernel[1] * kernel[2]), tap // kernel[2] % kernel[1]
                drop = b * dilation[1] - padding[1]
                shift = tap % kernel[2] * dilation[2] - padding[2]
                top, bottom = reach(drop, height, lines, stride[1])
                first, last = reach(shift, width, wide, step)
                if bottom == top or last == first:
                    continue
                begin = i * image_step + (c * taps + tap) * row_step
                for p in range(out[0]):
                    z = p * stride[0] + a * dilation[0] - padding[0]
                    if z < 0 or z >= depth:
                        continue
                    source = columns[begin + p * lines * wide : begin + (p + 1) * lines * wide]
                    if together:
                        _clear(source[top * wide : bottom * wide], wide, first, last)
                        flat = images[i, c, z].reshape(-1)
                        low, high = top * wide + first, (bottom - 1) * wide + last
                        target = flat[low + drop * wide + shift : high + drop * wide + shift]
                        here = source[low:high]
                        for s in range(here.size):
                            target[s] += here[s]
                        continue
                    for q in range(top, bottom):
                        here = source[q * wide + first : q * wide + last]
                        target = images[i, c, z, q * stride[1] + drop, first * step + shift :]
                        if step == 1:
                            for s in range(here.size):
                                target[s] += here[s]
                        else:
                            for s in range(here.size):
                                target[s * step] += here[s]
