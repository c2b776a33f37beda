"""Depthwise routes: each channel with separate windows, whose products would have a single row.

Channels are independent: threads take a chunk of them each, and there is no scratch.
"""

from __future__ import annotations

from ...kernels.common.schedule import parallel_range
from .sizes import INPUT, OUT, Route, as_3d, given_bias, volumes

_MUCH = 1 << 40  # additions: the route has decided whether threads take part


class _Depthwise(Route):
    def split(self, kernel, count: int, *arguments) -> None:
        """Call ``kernel(*arguments, start, stop)`` for chunks of ``count`` channels."""
        if self.threads == 1:
            kernel(*arguments, 0, count)
        else:
            parallel_range(kernel, _MUCH, count, *arguments)


class Sliding(_Depthwise):
    """Planes with windows that are one apart: neighbors stay in registers."""

    def run(self, xp, scratch, x, weight, y, bias=None) -> None:
        """Fill the array of the side; see :class:`Route`."""
        from ...kernels.cpu.convolution.depthwise_stride1 import slide, slide_weight

        sizes, low, dilation = self.sizes, self.sizes.low, tuple(self.sizes.dilation)
        windows, given = weight.reshape(weight.shape[0], *sizes.kernel), given_bias(weight, bias)
        if sizes.side == OUT:
            self.split(slide, y.shape[1], y, x, windows, given, low, dilation, False)
        elif sizes.side == INPUT:  # which is the convolution with windows turned around
            low = tuple(
                (k - 1) * d - p for k, d, p in zip(sizes.kernel, dilation, low, strict=True)
            )
            self.split(slide, x.shape[1], x, y, windows, given, low, dilation, True)
        else:
            self.split(slide_weight, weight.shape[0], windows, x, y, low, dilation)


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
            self.split(loops.depthwise, weight.shape[0], y, x, windows, given, *steps)
        elif sizes.side == INPUT:
            self.split(loops.depthwise_input_grad, x.shape[1], x, y, windows, *steps)
        else:
            self.split(loops.depthwise_weight_grad, weight.shape[0], windows, x, y, *steps)
