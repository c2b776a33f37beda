"""Backward of ``linear_cross_entropy``: tiles of logits are recomputed.

With p the softmax of a token's logits and w the class weights (or ones), the gradient in the logits
is ``scale p - spread w``, less ``hit`` at the token's class. ``hit`` is the arriving gradient times
the weight of the class and 1 less the label smoothing, ``spread`` the arriving gradient times the
smoothing over the number of classes, and ``scale`` the sum of all that is subtracted. Two products
of a tile of that give what it adds to the gradients of ``input`` and ``linear_weight``.

The rows of the weight's gradient that are not yet written hold the tiles meanwhile, so that these
can be larger than the workspace, and their products as fast as any.

Source:
    Wijmans et al.: "Cut Your Losses in Large-Vocabulary Language Models", 2024.
"""

from __future__ import annotations

from ...dtypes import float32, int64
from ...kernels.common import layout
from ...kernels.runtime import thresholds
from ...spec import Spec
from ..creation.from_data import tensor
from ..registry import op
from .linear_cross_entropy_tiling import computed, found_in, logits_of, ready, room, rows_of

LARGE = 1 << 10  # tokens and classes of a tile where there is room for it


def _classes(values):
    return tensor(values, dtype=int64)


def _grad_samples(make):
    def given(n, d, c, bias=False, weight=False):
        x, w = make(n, d), make(c, d)
        n, c = x.shape[0], w.shape[0]
        top, total = make(n, low=0.5, high=1.0), make(n, low=3.0, high=5.0)
        if total.dtype.is_half:
            top, total = top.to(float32), total.to(float32)
        target = _classes([k * k % c for k in range(n)])
        b, s = (make(c) if bias else None), (make(c, low=0.5) if weight else None)
        tile = max(1, n // 2 + n % 2), max(1, c // 2)
        return (make(n), x, w, b, target, s, top, total), tile

    base = {"needs": (True, True, False), "ignore_index": -100, "label_smoothing": 0.0}
    for shape in ((4, 3, 5), (0, 3, 5)):
        inputs, tile = given(*shape)
        yield inputs, base | {"tile": tile}
    inputs, tile = given(5, 3, 4, bias=True, weight=True)
    every = base | {"needs": (True, True, True), "ignore_index": 1, "label_smoothing": 0.2}
    yield inputs, every | {"tile": tile}
    n, c = inputs[1].shape[0], inputs[2].shape[0]
    yield inputs, every | {"needs": (False, False, True), "tile": (n, c)}
    yield inputs, every | {"needs": (True, False, False), "tile": (n // 5, c // 4)}


def _grad_infer(
    grad, input, linear_weight, linear_bias, target, weight, top, total, *, needs, ignore_index,
    label_smoothing, tile,
):  # fmt: skip
    dtype, half = computed(input.dtype), input.dtype.is_half
    (tokens, features), (rows, columns) = input.shape, tile
    several = tokens > rows, linear_weight.shape[0] > columns
    # The longest product that is added to another.
    longest = max(rows if needs[0] and several[1] else 0, columns if needs[1] and several[0] else 0)
    nothing = input.like((0,))
    return (
        input if needs[0] else nothing,
        linear_weight if needs[1] else nothing,
        linear_bias if needs[2] else nothing,
        *room(input, linear_weight, tile),
        Spec((longest * features,), dtype),
        Spec((tokens * features if half and needs[0] else 0,), dtype),
        Spec((columns * features if half and needs[1] else 0,), dtype),
        Spec((columns if half and needs[2] else 0,), dtype),
        Spec((3, tokens), dtype),
    )


def _grad_flops(grad, input, linear_weight, *_, needs, **__):
    products = 1 + needs[0] + needs[1]
    return (2 * products * input.shape[1] + 4) * input.shape[0] * linear_weight.shape[0]


@op(
    infer=_grad_infer, returns=("dinput", "dweight", "dbias"),
    scratch=("work", "some_inputs", "some_weights", "products", "all_inputs", "summed", "line",
             "factors"),
    half="tiles", layout=ready, flops=_grad_flops, samples=_grad_samples,
)  # fmt: skip
def _linear_cross_entropy_grad(
    xp, dinput, dweight, dbias, work, some_inputs, some_weights, products, all_inputs, summed, line,
    factors, grad, input, linear_weight, linear_bias, target, weight, top, total, *, needs,
    ignore_index, label_smoothing, tile,
):  # fmt: skip
    """Gradients of ``input``, ``linear_weight`` and ``linear_bias``, where needed."""
    _descend(
        xp, _slopes, dinput, dweight, dbias, work, some_inputs, some_weights, products, all_inputs,
        summed, line, factors, grad, input, linear_weight, linear_bias, target, weight, top, total,
        needs=needs, ignore_index=ignore_index, label_smoothing=label_smoothing, tile=tile,
    )  # fmt: skip


@_linear_cross_entropy_grad.kernel(
    "cpu", when=lambda grad, *rest, **_: worth_tiles(*rest), layout=ready
)
def _(xp, *arrays, **attributes):
    from ...kernels.cpu.loss.linear_cross_entropy import over_rows, slopes

    def compiled(xp, tile, top, total, factors, target, first, shares):
        scale, hit, spread = factors
        shares = tile[0, :0] if shares is None else shares
        over_rows(slopes, (tile, top, total, scale, hit, spread, target), first, shares)

    _descend(xp, compiled, *arrays, **attributes)


def worth_tiles(input, linear_weight, *_, **__):
    """True if the compiled passes apply: float32, and enough logits to repay their import."""
    return input.dtype is float32 and input.shape[0] * linear_weight.shape[0] >= thresholds.COMPILED


def _descend(
    xp, slopes, dinput, dweight, dbias, work, some_inputs, some_weights, products, all_inputs,
    summed, line, factors, grad, input, linear_weight, linear_bias, target, weight, top, total, *,
    needs, ignore_index, label_smoothing, tile,
):  # fmt: skip
    tokens, classes = input.shape[0], linear_weight.shape[0]
    if tokens == 0 or classes == 0:
        for d in (dinput, dweight, dbias):
            d.fill(0)
        return
    half = dinput.dtype != work.dtype
    _factors(xp, factors, grad, target, weight, classes, ignore_index, label_smoothing)
    to_inputs = all_inputs.reshape(dinput.shape) if half and needs[0] else dinput
    unwritten = dweight if needs[1] and not half else None
    start = 0
    while start < classes:
        (height, width), space, product = _space(unwritten, tokens, start, tile, work, products)
        columns = slice(start, min(start + width, classes))
        w = rows_of(xp, linear_weight, columns, some_weights)
        shares = shares_of(xp, weight, columns, work) if label_smoothing else None
        if needs[1]:
            to_weight = summed[: w.size].reshape(w.shape) if half else dweight[columns]
        to_bias = line[: w.shape[0]] if half else dbias[columns] if needs[2] else None
        for rows in layout.tiles(tokens, height):
            x = rows_of(xp, input, rows, some_inputs)
            t = logits_of(xp, space, x, w, linear_bias, columns)
            cut = top[rows], total[rows], factors[:, rows], target[rows]
            slopes(xp, t, *cut, columns.start, shares)
            if needs[0]:
                _add(xp, to_inputs[rows], product, t, w, columns.start == 0)
            if needs[1]:
                _add(xp, to_weight, product, t.T, x, rows.start == 0)
            if needs[2] and rows.start == 0:
                xp.sum(t, axis=0, out=to_bias)
            elif needs[2]:
                xp.add(to_bias, xp.sum(t, axis=0), out=to_bias)
        start = columns.stop
        if needs[1] and half:
            xp.copyto(dweight[columns], to_weight, casting="unsafe")
        if needs[2] and half:
            xp.copyto(dbias[columns], to_bias, casting="unsafe")
    if needs[0] and half:
        xp.copyto(dinput, to_inputs, casting="unsafe")


def _space(unwritten, tokens, start, tile, work, products):
    """Return (tile, its memory, memory of a product before it is added), from a column on.

    The rows of the weight's gradient that are still to come are room for a larger tile, whose
    products take less time: its sides are halved until it fits. For the last ones there is the
    workspace.
    """
    if unwritten is None:
        return tile, work, products
    rows, features = unwritten.shape
    height, width = min(tokens, LARGE), LARGE
    while height * width > tile[0] * tile[1]:
        free = unwritten[start + width :].reshape(-1)
        size, longest = height * width, max(height, width) * features
        if start + width < rows and size + longest <= free.shape[0]:
            return (height, width), free[:size], free[size : size + longest]
        height, width = (height // 2, width) if height > width else (height, width // 2)
    return tile, work, products


def _factors(xp, factors, grad, target, weight, classes, ignore_index, label_smoothing):
    # scale, hit and spread of each token
    scale, hit, spread = factors
    for here in layout.tiles(target.shape[0], 4096):
        counts = target[here] != ignore_index
        g = xp.where(counts, grad[here], 0).astype(factors.dtype)
        xp.multiply(g, label_smoothing / classes, out=spread[here])
        xp.multiply(g, 1.0 - label_smoothing, out=hit[here])
        total = float(classes)
        if weight is not None:
            each = weight[xp.where(counts, target[here], 0)].astype(factors.dtype)
            xp.multiply(hit[here], each, out=hit[here])
            total = float(weight.sum(dtype=factors.dtype)) if label_smoothing else 0.0
        xp.multiply(spread[here], total, out=scale[here])
        xp.add(scale[here], hit[here], out=scale[here])


def shares_of(xp, weight, columns, like):
    """Return the weight that smoothing gives to each column of a tile."""
    if weight is None:
        return xp.ones(columns.stop - columns.start, like.dtype)
    return weight[columns].astype(like.dtype)


def _slopes(xp, tile, top, total, factors, target, first, shares):
    scale, hit, spread = factors
    xp.subtract(tile, top[:, None], out=tile)
    xp.exp(tile, out=tile)
    xp.multiply(tile, (scale / total)[:, None], out=tile)
    if shares is not None:
        for k in range(tile.shape[0]):
            xp.subtract(tile[k], spread[k] * shares, out=tile[k])
    column, inside = found_in(xp, target, slice(first, first + tile.shape[1]))
    row = xp.arange(tile.shape[0])
    tile[row, column] -= xp.where(inside, hit, 0)
    tile[(scale == 0) & (hit == 0) & (spread == 0)] = 0  # also where logits are not finite


def _add(xp, total, products, a, b, first):
    # total += a @ b
    if first:
        xp.matmul(a, b, out=total)
        return
    product = products[: total.size].reshape(total.shape)
    xp.matmul(a, b, out=product)
    xp.add(total, product, out=total)
