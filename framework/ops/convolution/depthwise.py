"""Depthwise routes: each channel with separate windows, whose products would have a single row.

Channels are independent: threads take a chunk of them each, and there is no scratch.
"""

from __future__ import annotations

from ...kernels.runtime import threads
from .sizes import INPUT, OUT, Route, as_3d, given_bias, volumes


class _Depthwise(Route):
    def split(self, loop, count: int) -> None:
        """Call ``loop(start, stop)`` for a chunk of ``count`` channels for each thread."""
        threads.parallel_chunks(lambda _, *chunk: loop(*chunk), count, min(self.threads, count))


class Sliding(_Depthwise):
    """Planes with windows that are one apart: neighbors stay in registers."""

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        from ...kernels.cpu.convolution.depthwise_stride1 import slide, slide_weight

        sizes, low, dilation = self.sizes, self.sizes.low, tuple(self.sizes.dilation)
        windows, given = weight.reshape(weight.shape[0], *sizes.kernel), given_bias(weight, bias)
        if sizes.side == OUT:
            self.split(
                lambda start, stop: slide(y, x, windows, given, low, dilation, False, start, stop),
                y.shape[1],
            )
        elif sizes.side == INPUT:  # which is the convolution with windows turned around
            low = tuple(
                (k - 1) * d - p for k, d, p in zip(sizes.kernel, dilation, low, strict=True)
            )
            self.split(
                lambda start, stop: slide(x, y, windows, given, low, dilation, True, start, stop),
                x.shape[1],
            )
        else:
            self.split(
                lambda start, stop: slide_weight(windows, x, y, low, dilation, start, stop),
                weight.shape[0],
            )


class Depthwise(_Depthwise):
    """Signals, volumes, and planes with other strides: plain loops."""

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        from ...kernels.cpu.convolution import depthwise as loops

        sizes = self.sizes
        steps = as_3d(sizes.stride, 1), as_3d(sizes.low, 0), as_3d(sizes.dilation, 1)
        windows, given = weight.reshape(-1, *as_3d(sizes.kernel, 1)), given_bias(weight, bias)
        x, y = volumes(x), volumes(y)
        if sizes.side == OUT:
            self.split(
                lambda start, stop: loops.depthwise(y, x, windows, given, *steps, start, stop),
                weight.shape[0],
            )
        elif sizes.side == INPUT:
            self.split(
                lambda start, stop: loops.depthwise_input_grad(x, y, windows, *steps, start, stop),
                x.shape[1],
            )
        else:
            self.split(
                lambda start, stop: loops.depthwise_weight_grad(windows, x, y, *steps, start, stop),
                weight.shape[0],
            )
