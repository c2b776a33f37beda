"""Cross entropy of halves: rows of logits are converted a block at a time."""

from __future__ import annotations

from ...dtypes import float32
from ...kernels.common.copy import copy
from ...kernels.common.layout import contiguous, heavy
from ...kernels.common.row_blocks import in_blocks, room_specs
from ...spec import Spec
from . import class_targets
from .cross_entropy import _cross_entropy, _cross_entropy_grad


def _half_rows(input):
    if not input.dtype.is_half or input.ndim < 2 or not class_targets.are_rows(input):
        return False
    return heavy(input.like(dtype=float32))


def _weight_spec(weight):
    return Spec((0 if weight is None else weight.numel,), float32)


def _filled(room, weight):
    # The weights of classes in float32.
    if weight is None:
        return None
    copy(room, weight.reshape(-1))
    return room


@_cross_entropy.kernel(
    "cpu",
    dtypes="half",
    when=lambda input, *_, **__: _half_rows(input),
    layout=contiguous,
    scratch=lambda input, target, weight, **_: (
        *room_specs(input.shape[0], input.like(target.shape), input),
        _weight_spec(weight),
    ),
)
def _(
    xp, out, top, total, room, x_room, w, input, target, weight, *, ignore_index, label_smoothing
):
    n, w = input.shape[0], _filled(w, weight)

    def compute(loss, top, total, x, classes):
        class_targets.run_rows(loss, top, total, x, classes, w, ignore_index, label_smoothing)

    results = out.reshape(n), top.reshape(n), total.reshape(n)
    in_blocks(compute, results, [input.reshape(n, -1), target.reshape(n)], [room, x_room])


@_cross_entropy_grad.kernel(
    "cpu",
    dtypes="half",
    when=lambda grad, input, *_, **__: grad.dtype is input.dtype and _half_rows(input),
    layout=class_targets.contiguous_or_repeated,
    scratch=lambda grad, input, target, weight, top, total, **_: (
        _weight_spec(weight),
        *room_specs(input.shape[0], input, grad, input, target, top, total),
    ),
    overwrites=("input",),
)
def _(xp, out, w, *rest, ignore_index, label_smoothing):
    *rooms, grad, input, target, weight, top, total = rest
    n, w = input.shape[0], _filled(w, weight)

    def compute(made, g, x, classes, top, total):
        options = ignore_index, label_smoothing
        class_targets.run_rows_grad(made, g, x, classes, w, top, total, *options)

    inputs = [grad.reshape(n), input.reshape(n, -1), *(a.reshape(n) for a in (target, top, total))]
    in_blocks(compute, [out.reshape(n, -1)], inputs, rooms)
