"""Convolutions of halves: images are converted a block at a time, weights once.

A convolution computes in float32. Converted as a whole, input and result would be workspace of
twice their bytes each. A block has as many images as repay what a route does with the weight.
"""

from __future__ import annotations

from math import prod

from ...dtypes import float32
from ...kernels.common.copy import copy
from ...kernels.common.layout import contiguous
from ...kernels.common.row_blocks import in_blocks, of_threads, room_specs
from ...kernels.runtime import thresholds
from ...spec import Spec
from .primitives import _conv, _conv_input_grad, _conv_weight_grad, _run, _scratch
from .sizes import INPUT, OUT, WEIGHT


def images_of_block(images: int, image: int, weight: int) -> int:
    """Return how many images a block has, a divisor of all; 0 if all are converted at once.

    Args:
        images: How many there are.
        image: Elements of one, or of its result if that has more.
        weight: Elements of the weight.
    """
    block = of_threads(thresholds.IMAGE_BLOCK)
    fit = max(1, max(block, thresholds.IMAGE_WEIGHTS * weight) // max(1, image))
    if fit >= images:
        return 0
    step = next(n for n in range(fit, 0, -1) if images % n == 0)
    return step if 4 * step >= fit else 0


def _step(x, y, weight):
    # Of shapes
    return images_of_block(x[0], max(prod(x[1:]), prod(y[1:])), prod(weight))


def _line(spec):
    return Spec((0 if spec is None else spec.numel,), float32)


def _geometry(attributes):
    return [attributes[name] for name in ("stride", "padding", "dilation", "groups")]


def _block_scratch(side, spec, step, x, weight, size, attributes):
    return _scratch(side, spec, (step, *x[1:]), weight, size, *_geometry(attributes))


def _out_of(input, weight, attributes):
    return _conv.op.infer(input, weight, None, **attributes)[0]


def _takes_conv(input, weight, bias, **attributes):
    if not input.dtype.is_half:
        return False
    return _step(input.shape, _out_of(input, weight, attributes).shape, weight.shape) > 0


def _conv_rooms(input, weight, bias, **attributes):
    out = _out_of(input, weight, attributes)
    step = _step(input.shape, out.shape, weight.shape)
    sizes = (step, input.shape, weight.shape, out.shape[2:], attributes)
    rooms = room_specs(input.shape[0], out, input, step=step)
    return *rooms, _line(weight), _line(bias), *_block_scratch(OUT, input, *sizes)


@_conv.kernel("cpu", dtypes="half", when=_takes_conv, layout=contiguous, scratch=_conv_rooms)
def _(xp, out, room, x_room, w, b, columns, input, weight, bias, **attributes):
    copy(w, weight.reshape(-1))
    w = w.reshape(weight.shape)
    if bias is None:
        b = None
    else:
        copy(b, bias)

    def compute(y, x):
        _run(OUT, True, xp, (columns,), x, w, y, b, *_geometry(attributes))

    step = _step(input.shape, out.shape, weight.shape)
    in_blocks(compute, [out], [input], [room, x_room], step=step)


def _takes_input_grad(grad, weight, **attributes):
    if not grad.dtype.is_half:
        return False
    return _step(_input_of(grad, weight, attributes), grad.shape, weight.shape) > 0


def _input_of(grad, weight, attributes):
    return (grad.shape[0], weight.shape[1] * attributes["groups"], *attributes["size"])


def _input_grad_rooms(grad, weight, **attributes):
    x = _input_of(grad, weight, attributes)
    step = _step(x, grad.shape, weight.shape)
    rooms = room_specs(grad.shape[0], grad.like(x), grad, step=step)
    sizes = (step, x, weight.shape, grad.shape[2:], attributes)
    return *rooms, _line(weight), *_block_scratch(INPUT, grad, *sizes)


@_conv_input_grad.kernel(
    "cpu", dtypes="half", when=_takes_input_grad, layout=contiguous, scratch=_input_grad_rooms
)
def _(xp, out, room, g_room, w, columns, grad, weight, **attributes):
    copy(w, weight.reshape(-1))
    w = w.reshape(weight.shape)

    def compute(x, y):
        _run(INPUT, True, xp, (columns,), x, w, y, None, *_geometry(attributes))

    step = _step(out.shape, grad.shape, weight.shape)
    in_blocks(compute, [out], [grad], [room, g_room], step=step)


def _weight_of(input, grad, attributes):
    return (grad.shape[1], input.shape[1] // attributes["groups"], *attributes["kernel"])


def _takes_weight_grad(input, grad, **attributes):
    if not input.dtype.is_half:
        return False
    return _step(input.shape, grad.shape, _weight_of(input, grad, attributes)) > 0


def _weight_grad_rooms(input, grad, **attributes):
    weight = _weight_of(input, grad, attributes)
    step = _step(input.shape, grad.shape, weight)
    sizes = (step, input.shape, weight, grad.shape[2:], attributes)
    whole = Spec(weight, float32)
    rooms = room_specs(input.shape[0], input, grad, step=step)
    return *rooms, whole, whole, *_block_scratch(WEIGHT, grad, *sizes)


@_conv_weight_grad.kernel(
    "cpu", dtypes="half", when=_takes_weight_grad, layout=contiguous, scratch=_weight_grad_rooms
)
def _(xp, out, x_room, g_room, total, here, columns, rows, sums, input, grad, **attributes):
    total.fill(0)

    def compute(x, y):
        scratch = columns, rows, sums
        _run(WEIGHT, True, xp, scratch, x, here, y, None, *_geometry(attributes))
        xp.add(total, here, out=total)

    step = _step(input.shape, grad.shape, out.shape)
    in_blocks(compute, [], [input, grad], [x_room, g_room], step=step)
    copy(out, total)
