"""Cross entropy and negative log-likelihood, fused.

Cross entropy keeps the logits, which the layer before may keep as well, and two numbers per row:
the largest logit, and the sum of exponentials beside it. Added to a large logit, the logarithm of
that sum would be rounded away. Neither the softmax nor its logarithm is ever complete: forward and
backward go through a tile of rows at a time.

The elementwise losses are in ``regression.py``, ``binary_cross_entropy.py`` and
``likelihood.py``, those of distances in ``similarity.py``.
"""

from __future__ import annotations

import warnings

import numpy as np

from ...dtypes import FLOAT, float32, int64
from ...kernels.common.layout import contiguous, heavy, tiles
from ...kernels.common.strided_ufuncs import negate
from ...kernels.cuda import cross_entropy as on_gpu
from ...spec import Spec
from ..activation.softmax import log_softmax
from ..creation.from_data import tensor
from ..overwrite import write_over
from ..registry import function, op
from . import class_targets

# Cross entropy with class numbers


def _computed(dtype):
    return float32 if dtype.is_half else dtype


def _cross_entropy_infer(input, target, weight, *, ignore_index, label_smoothing):
    n, c, length = class_targets.class_shape("cross_entropy", input, target, weight)
    dtype = _computed(input.dtype)
    tile = class_targets.tile_size(n, c, length, dtype.itemsize, input.on_host)
    row = Spec((n, 1, length), dtype)
    return Spec(target.shape, input.dtype), row, row, Spec((tile,), dtype)


def _classes(values):
    return tensor(values, dtype=int64)


def _some_classes(x):
    return _classes([k * k % x.shape[1] for k in range(x.shape[0])])


def _cross_entropy_samples(make):
    base = {"ignore_index": -100, "label_smoothing": 0.0}
    x = make(4, 5)
    yield (x, _some_classes(x), None), base
    yield (make(4, 5), _classes([0, -100, 2, 2]), None), base | {"label_smoothing": 0.1}
    yield (make(2, 3, 2), _classes([[0, 1], [2, 0]]), None), base | {"ignore_index": 0}
    yield (make(3), _classes(1), make(3, low=0.5)), base
    yield (make(0, 3), _classes([]), None), base


@op(
    infer=_cross_entropy_infer,
    aux=("top", "total"),
    scratch=("work",),
    layout=contiguous,
    flops=lambda input, *_, **__: 4 * input.numel,
    samples=_cross_entropy_samples,
)
def _cross_entropy(
    xp, out, top, total, work, input, target, weight, *, ignore_index, label_smoothing
):
    """Cross entropy of each row of logits with its class."""
    n, c, length = class_targets.sizes(input)
    logits = input.reshape(n, c, length)
    losses, classes = out.reshape(n, 1, length), target.reshape(n, length)
    mass = float(weight.sum()) if label_smoothing and weight is not None else c
    if c == 0:  # only rows that are ignored have no class
        class_targets.checked(xp, classes[classes != ignore_index], c, ignore_index)
        out.fill(0)
        top.fill(0)
        total.fill(0)
        return
    for rows, columns in class_targets.tiles(n, c, length, total.dtype.itemsize, xp is np):
        x, loss = logits[rows, :, columns], losses[rows, :, columns]
        largest, row = top[rows, :, columns], total[rows, :, columns]
        tile = work[: x.size].reshape(x.shape)
        xp.max(x, axis=1, keepdims=True, out=largest)
        xp.subtract(x, largest, out=tile)
        if label_smoothing:
            below = tile.sum(1, keepdims=True) if weight is None else weight @ tile
            below = below.reshape(row.shape)
        xp.exp(tile, out=tile)
        xp.sum(tile, axis=1, keepdims=True, out=row)
        low = xp.log(row)
        safe, counts = class_targets.checked(xp, classes[rows, columns], c, ignore_index)
        factor = class_targets.weights_of(xp, weight, safe, counts, out.dtype)[:, None]
        xp.subtract(largest, x[class_targets.where_in(xp, x, safe)][:, None], out=loss)
        xp.add(loss, low, out=loss)
        xp.multiply(loss, factor * (1.0 - label_smoothing), out=loss)
        if label_smoothing:
            # The mean over classes of what the loss would be for each.
            smooth = (low * mass - below) * (label_smoothing / c)
            xp.add(loss, smooth * counts[:, None], out=loss)
        loss[~counts[:, None]] = 0  # also where logits are not finite


def _compiled(input, weight):
    if input.ndim < 2 or not (weight is None or weight.dtype is float32):
        return False
    return heavy(input) and input.dtype is float32


@_cross_entropy.kernel(
    "cpu",
    when=lambda input, target, weight, **_: (
        _compiled(input, weight) and class_targets.are_rows(input)
    ),
    layout=contiguous,
    scratch=False,
)
def _(xp, out, top, total, input, target, weight, *, ignore_index, label_smoothing):
    given = (out, top, total, input, target, weight)
    class_targets.run_rows(*given, ignore_index, label_smoothing)


@_cross_entropy.kernel(
    "cpu",
    when=lambda input, target, weight, **_: _compiled(input, weight),
    layout=contiguous,
    scratch=False,
)
def _(xp, out, top, total, input, target, weight, *, ignore_index, label_smoothing):
    class_targets.run_compiled(
        "planes", [input], [out, top, total, target], weight, ignore_index, label_smoothing
    )


@_cross_entropy.kernel(
    "cuda",
    when=lambda input, target, weight, **_: on_gpu.takes(input, target, weight),
    layout=contiguous,
    scratch=False,
)
def _(xp, out, top, total, input, target, weight, *, ignore_index, label_smoothing):
    sizes = class_targets.sizes(input)
    given = (input, target, weight, sizes, ignore_index, label_smoothing)
    on_gpu.rows(xp, out, top, total, *given)


@_cross_entropy.vjp("input", room=("input",))
def _(g, input, target, weight, top, total, ignore_index, label_smoothing, room):
    given = (g, input, target, weight, top, total)
    attributes = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    return write_over(room, _cross_entropy_grad, *given, **attributes)


@_cross_entropy.composite
def _(input, target, weight, *, ignore_index, label_smoothing):
    dim = 0 if input.ndim == 1 else 1
    log_p = log_softmax(input, dim)
    loss = _nll(log_p, target, weight, ignore_index)
    if not label_smoothing:
        return loss
    scaled = log_p if weight is None else log_p * weight.view(-1, *[1] * max(input.ndim - 2, 0))
    smooth = -scaled.sum(dim) * target.ne(ignore_index).to(input.dtype)
    return loss * (1.0 - label_smoothing) + smooth * (label_smoothing / input.shape[dim])


def _grad_samples(make):
    top, total = make(4, 1, 1).detach() + 1.0, make(4, 1, 1, low=2.0, high=5.0).detach()
    base = {"ignore_index": 2, "label_smoothing": 0.0}
    yield (make(4), make(4, 5), _classes([0, 4, 2, 1]), None, top, total), base
    yield (
        (make(4), make(4, 5), _classes([0, 4, 2, 1]), make(5), top, total),
        base | {"label_smoothing": 0.2},
    )
    x = make(4, 5)
    plain = {"ignore_index": -100, "label_smoothing": 0.0}
    row = x[:, :1].unsqueeze(2)
    yield (x[:, 0], x, _some_classes(x), None, row, row + 4.0), plain
    yield (make(0), make(0, 3), _classes([]), None, make(0, 1, 1), make(0, 1, 1)), plain
    tops = make(2, 1, 2).detach() + 1.0, make(2, 1, 2, low=2.0, high=5.0).detach()
    yield (make(2, 2), make(2, 3, 2), _classes([[0, 2], [1, 1]]), None, *tops), plain
    repeated = make().detach().expand(4)  # what a mean sends
    yield (repeated, make(4, 5), _classes([0, 4, 2, 1]), None, top, total), plain


def _cross_entropy_grad_infer(grad, input, target, weight, top, total, **_):
    return input


@op(
    infer=_cross_entropy_grad_infer,
    layout=contiguous,
    flops=lambda grad, input, *_, **__: 4 * input.numel,
    samples=_grad_samples,
)
def _cross_entropy_grad(
    xp, out, grad, input, target, weight, top, total, *, ignore_index, label_smoothing
):
    """Backward of cross entropy: softmax minus target, scaled, in one pass."""
    n, c, length = class_targets.sizes(input)
    logits, result = input.reshape(n, c, length), out.reshape(n, c, length)
    arriving, classes = grad.reshape(n, length), target.reshape(n, length)
    mass = float(weight.sum()) if label_smoothing and weight is not None else c
    if result.size == 0:
        return
    for rows, columns in class_targets.tiles(n, c, length, top.dtype.itemsize, xp is np):
        x, y = logits[rows, :, columns], result[rows, :, columns]
        safe, counts = class_targets.checked(xp, classes[rows, columns], c, ignore_index)
        g = xp.where(counts, arriving[rows, columns], 0)  # infinite, if the mean is over no row
        factor = class_targets.weights_of(xp, weight, safe, counts, out.dtype) * g
        hit = factor * (1.0 - label_smoothing)
        spread = (g * counts) * (label_smoothing / c)
        xp.subtract(x, top[rows, :, columns], out=y)
        xp.exp(y, out=y)
        factor = (hit + spread * mass)[:, None] / total[rows, :, columns]
        xp.multiply(y, factor, out=y)
        if label_smoothing:
            if weight is None:
                xp.subtract(y, spread[:, None], out=y)
            else:
                for k in range(c):
                    xp.subtract(y[:, k], spread * weight[k], out=y[:, k])
        y[class_targets.where_in(xp, y, safe)] -= hit


@_cross_entropy_grad.kernel(
    "cpu",
    when=lambda grad, input, target, weight, *_, **__: (
        _compiled(input, weight) and class_targets.are_rows(input)
    ),
    layout=class_targets.contiguous_or_repeated,
    overwrites=("input",),
)
def _(xp, out, grad, input, target, weight, top, total, *, ignore_index, label_smoothing):
    given = (out, grad, input, target, weight, top, total)
    class_targets.run_rows_grad(*given, ignore_index, label_smoothing)


@_cross_entropy_grad.kernel(
    "cpu",
    when=lambda grad, input, target, weight, *_, **__: _compiled(input, weight),
    layout=contiguous,
    overwrites=("input",),
)
def _(xp, out, grad, input, target, weight, top, total, *, ignore_index, label_smoothing):
    class_targets.run_compiled(
        "planes_grad",
        [out, input],
        [grad, top, total, target],
        weight,
        ignore_index,
        label_smoothing,
    )


@_cross_entropy_grad.kernel(
    "cuda",
    when=lambda grad, input, target, weight, *_, **__: on_gpu.takes(input, target, weight),
    layout=contiguous,
)
def _(xp, out, grad, input, target, weight, top, total, *, ignore_index, label_smoothing):
    sizes = class_targets.sizes(input)
    given = (input, target, weight, top, total, sizes, ignore_index, label_smoothing)
    on_gpu.rows_grad(xp, out, grad, *given)


# Negative log likelihood: linear in its input


def _nll_infer(input, target, weight, *, ignore_index):
    class_targets.class_shape("nll_loss", input, target, weight)
    return Spec(target.shape, input.dtype)


def _nll_grad_samples(make):
    x = make(3, 5)
    yield (x[:, 0], _some_classes(x), None), {"shape": tuple(x.shape), "ignore_index": 2}
    given = (make(2, 2), _classes([[0, 1], [2, 0]]), make(3, low=0.5))
    yield given, {"shape": (2, 3, 2), "ignore_index": -100}
    yield (make(0), _classes([]), None), {"shape": (0, 3), "ignore_index": -100}
    yield (make(), _classes(1), None), {"shape": (3,), "ignore_index": -100}


def _nll_samples(make):
    x = make(4, 5)
    yield (x, _some_classes(x), None), {"ignore_index": 2}
    yield (make(2, 3, 2), _classes([[0, 1], [2, 0]]), make(3, low=0.5)), {"ignore_index": -100}
    yield (make(0, 3), _classes([]), None), {"ignore_index": -100}
    yield (make(3), _classes(1), None), {"ignore_index": -100}


@op(
    infer=_nll_infer,
    layout=contiguous,
    flops=lambda input, target, *_, **__: target.numel,
    samples=_nll_samples,
)
def _nll(xp, out, input, target, weight, *, ignore_index):
    """Negative log-likelihood of each row, times the weight of its class."""
    n, c, length = class_targets.sizes(input)
    x, losses = input.reshape(n, c, length), out.reshape(n, 1, length)
    classes = target.reshape(n, length)
    for rows, columns in class_targets.tiles(n, c, length, 4, xp is np):
        loss, tile = losses[rows, :, columns], x[rows, :, columns]
        safe, counts = class_targets.checked(xp, classes[rows, columns], c, ignore_index)
        factor = class_targets.weights_of(xp, weight, safe, counts, out.dtype)
        xp.multiply(tile[class_targets.where_in(xp, tile, safe)], factor, out=loss[:, 0])
        negate(xp, loss, loss)
        loss[~counts[:, None]] = 0


def _pickable(large, weight):
    return heavy(large) and (weight is None or weight.dtype is large.dtype)


@_nll.kernel(
    "cpu",
    when=lambda input, target, weight, **_: input.ndim > 1 and _pickable(input, weight),
    layout=contiguous,
)
def _(xp, out, input, target, weight, *, ignore_index):
    class_targets.run_compiled("picked", [input], [out, target], weight, ignore_index)


@_nll.vjp("input")
def _(g, target, weight, input_spec, ignore_index):
    return _nll_grad(g, target, weight, tuple(input_spec.shape), ignore_index)


@op(
    layout=contiguous,
    infer=lambda grad, target, weight, *, shape, ignore_index: grad.like(shape),
    flops=lambda grad, *_, **__: grad.numel,
    samples=_nll_grad_samples,
)
def _nll_grad(xp, out, grad, target, weight, *, shape, ignore_index):
    """Backward of nll: minus the gradient at each row's class, zero elsewhere."""
    n, c, length = class_targets.sizes(out)
    y, arriving = out.reshape(n, c, length), grad.reshape(n, length)
    classes = target.reshape(n, length)
    out.fill(0)
    for rows, columns in class_targets.tiles(n, c, length, 4, xp is np):
        safe, counts = class_targets.checked(xp, classes[rows, columns], c, ignore_index)
        factor = class_targets.weights_of(xp, weight, safe, counts, out.dtype)
        tile = y[rows, :, columns]
        g = xp.where(counts, arriving[rows, columns], 0)  # infinite, if the mean is over no row
        tile[class_targets.where_in(xp, tile, safe)] = g * -factor


@_nll_grad.kernel(
    "cpu",
    when=lambda grad, target, weight, *, shape, **_: (
        len(shape) > 1 and _pickable(grad.like(shape), weight)
    ),
    layout=contiguous,
)
def _(xp, out, grad, target, weight, *, shape, ignore_index):
    class_targets.run_compiled("picked_grad", [out], [grad, target], weight, ignore_index)


@_nll_grad.vjp("grad")
def _(g, target, weight, ignore_index):
    return _nll(g, target, weight, ignore_index)


# The mean of either


def _mean_samples(make):
    yield (make(3), _classes([0, 1, 4]), None), {"ignore_index": 2}
    yield (make(3), _classes([0, 4, 2]), make(5, low=0.5)), {"ignore_index": 2}
    yield (make(2, 2), _classes([[0, 1], [2, 0]]), make(3, low=0.5)), {"ignore_index": -100}
    yield (make(), _classes(1), None), {"ignore_index": -100}


@op(
    aux=("divisor",),
    layout=contiguous,
    infer=lambda loss, target, weight, *, ignore_index: (loss.like(()), loss.like(())),
    half="exact",
    flops=lambda loss, *_, **__: loss.numel,
    samples=_mean_samples,
)
def _class_mean(xp, out, divisor, loss, target, weight, *, ignore_index):
    """Weighted mean of class losses over the rows that count."""
    flat = target.reshape(1, -1)
    divisor.fill(0)
    for here in tiles(flat.shape[1], class_targets.rows_of_tile(0, 0, xp is np)):
        tile = flat[:, here]
        if weight is None:
            counted = xp.count_nonzero(tile != ignore_index)
        else:
            safe, counts = class_targets.checked(xp, tile, weight.shape[0], ignore_index)
            counted = class_targets.weights_of(xp, weight, safe, counts, divisor.dtype).sum()
        xp.add(divisor, counted, out=divisor)
    xp.sum(loss, out=out)
    xp.divide(out, divisor, out=out)


@_class_mean.kernel(
    "cpu",
    when=lambda loss, target, weight, **_: (
        loss.dtype.name in ("float32", "float64") and (weight is None or weight.dtype is loss.dtype)
    ),
    layout=contiguous,
)
def _(xp, out, divisor, loss, target, weight, *, ignore_index):
    target = target.reshape(-1)
    if weight is None:
        weights = class_targets.no_weight(loss.dtype)
    else:
        weights = weight.reshape(1, -1)
        class_targets.check_compiled(target, weights.size, ignore_index)
    results = out.reshape(-1), divisor.reshape(-1)
    class_targets.loops().mean(*results, loss.reshape(-1), target, weights, ignore_index)


@_class_mean.vjp("loss")
def _(g, target, weight, divisor, loss_spec):  # the composite needs both; the losses keep them too
    return (g / divisor).expand(loss_spec.shape)


@_class_mean.composite
def _(loss, target, weight, *, ignore_index):
    counts = target.ne(ignore_index)
    factors = counts.to(loss.dtype)
    if weight is not None:
        factors = factors * weight[target.masked_fill(~counts, 0)]
    return loss.sum() / factors.sum()


# The public functions


def reduction_of(size_average, reduce, reduction: str) -> str:
    """Return PyTorch's ``reduction``, also from its two deprecated arguments."""
    if size_average is not None or reduce is not None:
        warnings.warn(
            "size_average and reduce args will be deprecated, please use reduction instead.",
            UserWarning,
            stacklevel=4,
        )
        if reduce is False:
            return "none"
        return "sum" if size_average is False else "mean"
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction: none, mean or sum.")
    return reduction


def reduce_loss(loss, reduction: str):
    """Reduce losses to their mean or sum, or return them."""
    if reduction == "mean":
        return loss.mean()
    return loss.sum() if reduction == "sum" else loss


def by_class(loss, target, weight, ignore_index, reduction):
    """Reduce class losses; the mean is weighted and skips ignored rows."""
    if reduction == "none":
        return loss
    if loss.dtype.is_half and reduction == "mean":  # the sum may be beyond float16's range
        return by_class(loss.to(float32), target, weight, ignore_index, reduction).to(loss.dtype)
    if reduction == "sum":
        return loss.sum()
    return _class_mean(loss, target, weight, ignore_index)


@function(public=False, autocast="float32")
def cross_entropy(
    input,
    target,
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
):
    """Compute the cross entropy between logits and class indices or probabilities.

    Args:
        input: Logits (N, C), (N, C, *) or (C,).
        target: Class indices (N,), (N, *) or (); or probabilities in the shape of ``input``.
        weight: (C,), a factor for each class.
        size_average: Old form of ``reduction``.
        ignore_index: Rows of this class count for nothing.
        reduce: Old form of ``reduction``.
        reduction: "mean" (over the weights of the rows that count), "sum" or "none".
        label_smoothing: Share of the target that is spread evenly over all classes.

    Returns:
        Tensor (), or in the shape of the class indices for "none".

    Raises:
        IndexError: A class index is out of range (on the CPU).

    Memory:
        Keeps input, target, weight and two numbers per row; no softmax. Workspace: at most a tile.
    """
    how = reduction_of(size_average, reduce, reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}.")
    if target.dtype.category >= FLOAT and tuple(target.shape) == tuple(input.shape):
        return _soft_cross_entropy(input, target, weight, how, float(label_smoothing))
    loss = _cross_entropy(input, target, weight, ignore_index, float(label_smoothing))
    return by_class(loss, target, weight, ignore_index, how)


def _soft_cross_entropy(input, target, weight, reduction, smoothing):
    dim = 0 if input.ndim == 1 else 1
    if smoothing:
        target = target * (1.0 - smoothing) + smoothing / max(input.shape[dim], 1)
    log_p = log_softmax(input, dim)
    if weight is not None:
        log_p = log_p * weight.view(-1, *[1] * max(input.ndim - 2, 0))
    loss = -(log_p * target).sum(dim)
    if reduction == "mean":
        # Of rows without classes it is NaN, as a mean over no rows.
        return loss.sum() / (loss.numel() if input.numel() else 0)
    return reduce_loss(loss, reduction)


@function(public=False, autocast="float32")
def nll_loss(
    input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"
):
    """Compute the negative log-likelihood of each row's class.

    Args:
        input: Log probabilities (N, C), (N, C, *) or (C,).
        target: Class indices (N,), (N, *) or ().
        weight: (C,), a factor for each class.
        size_average: Old form of ``reduction``.
        ignore_index: Rows of this class count for nothing.
        reduce: Old form of ``reduction``.
        reduction: "mean" (over the weights of the rows that count), "sum" or "none".

    Returns:
        Tensor (), or in the shape of ``target`` for "none".

    Memory:
        Keeps target and weight, and not the input.
    """
    how = reduction_of(size_average, reduce, reduction)
    loss = _nll(input, target, weight, ignore_index)
    return by_class(loss, target, weight, ignore_index, how)
