"""Multi-label margin loss.

``_multilabel_margin`` adds up ``max(0, 1 - x[right] + x[wrong])`` over all pairs of an example. The
pairs are the square of the classes: they are met one right class at a time, for some examples at
once, forward and backward, and what is kept are the two inputs. The slope of the loss is piecewise
constant, so second gradients are those in the arriving gradient alone.

Not optimal: a pass over the wrong scores for each right class; sorted, they would need one in all.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import INT, bool_, int64
from ...kernels.common.layout import contiguous, tiles
from ...kernels.runtime import thresholds
from ..creation.fill import ones
from ..creation.from_data import tensor
from ..registry import op

_ELEMENTS = 1 << 15  # scores of a tile on the host
_ROWS = 1 << 10  # and at most so many examples


def _tile(input):
    classes = max(1, input.shape[1])
    if input.on_host:
        most = min(_ROWS, _ELEMENTS // classes)
    else:
        most = thresholds.tile_elements(False) // classes
    rows = max(1, min(input.shape[0], most))
    shape = (rows, input.shape[1])
    return input.like(shape), input.like(shape, dtype=bool_)


def _check(target):
    if target.dtype.category != INT:
        raise RuntimeError(
            f"multilabel_margin_loss: expected class numbers in target, got {target.dtype}. "
            "Convert it with .to(lowtide.int64)."
        )


def _margin_infer(input, target):
    _check(target)
    return input.like((input.shape[0],)), *_tile(input)


def _labels(rows, classes):
    # Some right classes of each example, none of the first, ended by -1

    found = np.full((rows, classes), -1, np.int64)
    for n in range(rows):
        for k in range(min(n, classes)):
            found[n, k] = (n + 2 * k) % classes if classes % 2 else (n + k) % classes
    return tensor(found, dtype=int64)


def _margin_samples(make):
    for shape in ((4, 5), (2, 3), (3, 1), (0, 3)):
        x = make(*shape)
        yield (x, _labels(*x.shape)), {}


@op(
    infer=_margin_infer,
    scratch=("gap", "right"),
    samples=_margin_samples,
    flops=lambda input, target: 4 * input.numel,
)
def _multilabel_margin(xp, out, gap, right, input, target):
    """Mean over classes of ``max(0, 1 - x[right] + x[wrong])``, summed over all pairs.

    Args:
        input: (N, C).
        target: (N, C), the right classes, ended by a negative number.
    """
    classes = input.shape[1]
    for rows in tiles(input.shape[0], gap.shape[0]):
        total = out[rows]
        total.fill(0)
        for here, _, on in _leaders(xp, gap, right, input[rows], target[rows]):
            xp.fmax(here, 0, out=here)  # a margin that is NaN is left out
            xp.add(total, xp.where(on, xp.sum(here, axis=1), 0), out=total)
        xp.divide(total, classes, out=total)


def _leaders(xp, gap, right, x, target):
    """Yield for each right class: (margins, -1 for right ones; the class; rows that have it)."""
    count = x.shape[0]
    gap, right, row = gap[:count], right[:count], xp.arange(count)
    xp.less(target, 0, out=right)
    listed = xp.where(right.any(axis=1), right.argmax(axis=1), target.shape[1])
    right.fill(False)

    def chosen():
        for k in range(int(listed.max())):
            on = listed > k
            yield xp.where(on, target[:, k], 0), on

    for column, on in chosen():
        if xp is np and column.max() >= x.shape[1]:
            _check_class(int(column.max()), x.shape[1])
        right[row, column] |= on
    for column, on in chosen():
        xp.subtract(x, (x[row, column] - 1)[:, None], out=gap)
        xp.copyto(gap, -1, where=right)
        yield gap, column, on


_multilabel_margin.op.display_name = "multilabel_margin_loss"


def _worth(*specs):
    return specs[-2].numel >= thresholds.COMPILED_HEAVY and specs[-2].dtype.name in (
        "float32",
        "float64",
    )


def _check_class(found, classes):
    if found:
        raise RuntimeError(
            f"multilabel_margin_loss: class {found} in target is out of range for {classes} "
            "classes. Take classes from 0, and end them with -1."
        )


@_multilabel_margin.kernel("cpu", when=_worth, layout=contiguous)
def _(xp, out, gap, right, input, target):
    from ...kernels.cpu.loss.multilabel_margin import margins

    _check_class(margins(out, gap[0], right[0], input, target), input.shape[1])


@_multilabel_margin.vjp("input")
def _(g, input, target):
    return _multilabel_margin_grad(g, input, target)


def _slope_samples(make):
    for (x, target), _ in _margin_samples(make):
        yield (make(x.shape[0]), x, target), {}


@op(
    infer=lambda grad, input, target: (input, *_tile(input)),
    scratch=("gap", "right"),
    samples=_slope_samples,
    flops=lambda grad, input, target: 4 * input.numel,
)
def _multilabel_margin_grad(xp, out, gap, right, grad, input, target):
    """The gradient of :func:`_multilabel_margin`, times ``grad``; at a margin of 0 it is 0."""
    for rows in tiles(input.shape[0], gap.shape[0]):
        slope = out[rows]
        slope.fill(0)
        row = xp.arange(slope.shape[0])
        for here, column, on in _leaders(xp, gap, right, input[rows], target[rows]):
            xp.greater(here, 0, out=here)
            xp.multiply(here, on[:, None], out=here)
            xp.add(slope, here, out=slope)
            slope[row, column] -= xp.sum(here, axis=1)
        xp.multiply(slope, (grad[rows] / input.shape[1])[:, None], out=slope)


@_multilabel_margin_grad.kernel("cpu", when=_worth, layout=contiguous)
def _(xp, out, gap, right, grad, input, target):
    from ...kernels.cpu.loss.multilabel_margin import slopes

    _check_class(slopes(out, gap[0], right[0], grad, input, target), input.shape[1])


@_multilabel_margin_grad.vjp("grad", "input")
def _(g, needs, grad_spec, input, target):
    if not needs[0]:
        return None, None
    unit = ones(*grad_spec.shape, dtype=grad_spec.dtype, device=g.device)
    return (g * _multilabel_margin_grad(unit, input, target)).sum(1), None
