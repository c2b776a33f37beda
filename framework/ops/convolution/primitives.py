"""Convolution in any number of dimensions, and the two bilinear ops that are its gradients.

``_conv``, ``_conv_input_grad`` and ``_conv_weight_grad`` are one trilinear form seen from its
three sides, so the gradient of each is made of the other two and derivatives of any order close.
A transposed convolution is ``_conv_input_grad`` under its other name.

Images are unrolled into columns tile by tile (``im2col.py``): a few images at a time, or a few rows
of one image, so that the columns stay in the cache and the workspace is a constant, whatever the
batch. One batched matrix product per tile does the arithmetic. On a CPU a large convolution does
without columns and products of matrices: it is compiled (``direct.py``), and so is a depthwise one,
whose products would have a single row. Windows of one element stay with BLAS, each thread with
images of its own and one thread of BLAS.

Not optimal: no transformation (Winograd, FFT) saves multiplications; small windows would gain.
"""

from __future__ import annotations

from math import prod

from ...dtypes import float32
from ...kernels.common.layout import contiguous, worth_compiling
from ...kernels.runtime import blas, threads
from ...spec import Spec
from ..elementwise.arithmetic import conjugate
from ..registry import op
from .direct import weight_grad, windows
from .im2col import Tiling, output_size, roll, unroll


def _depthwise(input, weight, *_, groups, **__):
    return groups > 1 and weight.shape[1] == 1 and worth_compiling(input)


def _depthwise_weight(input, grad, *, groups, **_):
    return groups > 1 and input.shape[1] == groups and worth_compiling(input)


def _directly(operand, *_, **__):
    # Whether a compiled kernel takes it, once it is of the type that is computed with.
    where = operand.device.type in ("cpu", "meta")
    return where and worth_compiling(operand.like(dtype=_computed(operand.dtype)))


def _directly_windows(operand, weight, *_, stride, padding, **__):
    # Sums of a few products are sooner done than handed out: their columns are small, too.
    worth = prod(weight.shape[1:]) >= 16 and not _pointwise(weight.shape[2:], stride, padding)
    return worth and _directly(operand)


def _threaded(operand, weight, *_, stride, padding, **__):
    return _directly(operand) and _pointwise(weight.shape[2:], stride, padding)


def _pointwise(kernel, stride, padding):
    return prod(kernel) == 1 and prod(stride) == 1 and not any(map(any, padding))


def _check(name, input, weight, bias, stride, padding, dilation, groups):
    nd = weight.ndim - 2
    if input.ndim != nd + 2:
        raise RuntimeError(
            f"{name} takes {nd + 1}D (unbatched) or {nd + 2}D (batched) input; got "
            f"{tuple(input.shape)} for weight {tuple(weight.shape)}. Reshape the input."
        )
    if groups < 1 or weight.shape[0] % groups or input.shape[1] != weight.shape[1] * groups:
        raise RuntimeError(
            f"{name}: with groups={groups} and weight {tuple(weight.shape)}, input must have "
            f"{weight.shape[1] * groups} channels and weight.shape[0] must be divisible by "
            f"groups; got input {tuple(input.shape)}. Pass channels in dim 1."
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise RuntimeError(
            f"{name} adds one bias per output channel: bias must have shape "
            f"({weight.shape[0]},); got {tuple(bias.shape)}."
        )
    if any(s < 1 for s in (*stride, *dilation)):
        raise RuntimeError(
            f"{name}: stride and dilation must be positive; got {stride} and {dilation}."
        )
    if any(p < 0 for pair in padding for p in pair):
        raise RuntimeError(f"{name}: negative padding is not supported; got {padding}.")


def _conv_infer(input, weight, bias, *, stride, padding, dilation, groups):
    _check("conv", input, weight, bias, stride, padding, dilation, groups)
    size = tuple(
        output_size(*d)
        for d in zip(input.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    )
    if any(n < 1 for n in size):
        raise RuntimeError(
            f"conv: Kernel size can't be greater than actual input size; got input "
            f"{tuple(input.shape)}, padding {padding} and weight {tuple(weight.shape)} with "
            f"dilation {dilation}. Pad the input."
        )
    out = Spec((input.shape[0], weight.shape[0], *size), input.dtype)
    itemsize = max(4, input.dtype.itemsize)  # half types are computed in float32
    sizes = (input.shape, weight.shape, size, stride, padding, dilation, groups)
    if _directly_windows(input, weight, stride=stride, padding=padding):
        count = windows(*sizes, itemsize).elements
    else:
        plan = Tiling(*sizes)
        count = 0 if plan.pointwise else plan.columns(itemsize)
    return out, Spec((count,), _computed(input.dtype))


def _computed(dtype):
    return float32 if dtype.is_half else dtype


def _conv_flops(input, weight, *rest, **attributes):
    out = _conv_infer(input, weight, None, **attributes)[0]
    return 2 * out.numel * prod(weight.shape[1:])


def _conv_samples(make):
    one, two = ((0, 0),), ((0, 0), (0, 0))
    base = {"stride": (1,), "padding": one, "dilation": (1,), "groups": 1}
    yield (make(2, 3, 7), make(4, 3, 3), make(4)), base
    yield (make(1, 4, 8), make(4, 2, 2), None), base | {"groups": 2, "dilation": (2,)}
    base = {"stride": (1, 1), "padding": two, "dilation": (1, 1), "groups": 1}
    yield (make(2, 3, 6, 5), make(4, 3, 3, 3), make(4)), base | {"padding": ((1, 1), (1, 2))}
    yield (make(2, 2, 7, 6), make(2, 2, 3, 2), None), base | {"stride": (2, 3)}
    yield (make(2, 4, 3, 3), make(3, 4, 1, 1), make(3)), base
    yield (make(0, 2, 4, 4), make(3, 2, 2, 2), make(3)), base


@op(
    name="_conv", infer=_conv_infer, scratch=("columns",), promote="same", layout=contiguous,
    flops=_conv_flops, samples=_conv_samples, autocast="low",
)  # fmt: skip
def conv(xp, out, columns, input, weight, bias, *, stride, padding, dilation, groups):
    """Slide ``weight`` over ``input`` and contract channels: cross-correlation, as PyTorch's."""
    plan = Tiling(input.shape, weight.shape, out.shape[2:], stride, padding, dilation, groups)
    _forward(xp, out, columns, input, weight, bias, plan)


@conv.kernel("cpu", when=_depthwise, layout=contiguous, scratch=False)
def _(xp, out, columns, input, weight, bias, *, stride, padding, dilation, groups):
    plan = Tiling(
        input.shape, weight.shape, out.shape[2:], stride, padding, dilation, groups, "cpu"
    )
    given = weight[:0, 0].reshape(-1) if bias is None else bias
    if plan.sliding:
        _slide(plan, out, input, weight, given, False)
        return
    from ...kernels.cpu.convolution.depthwise import depthwise

    x, w, y = plan.volumes(input), _windows(weight, plan), _planes(out, plan)
    rest = plan.geometry(0, 0)[2:]
    threads.parallel_chunks(
        lambda _, start, stop: depthwise(y, x, w, given, *rest, start, stop),
        weight.shape[0], min(plan.threads, weight.shape[0]),
    )  # fmt: skip


@conv.kernel("cpu", when=_directly_windows, layout=contiguous)
def _(xp, out, columns, input, weight, bias, *, stride, padding, dilation, groups):
    plan = windows(
        input.shape, weight.shape, out.shape[2:], stride, padding, dilation, groups, out.itemsize
    )
    plan.fill(_solid(out), columns, _solid(input), weight, bias)


@conv.kernel("cpu", when=_threaded, layout=contiguous)
def _(xp, out, columns, input, weight, bias, *, stride, padding, dilation, groups):
    plan = Tiling(
        input.shape, weight.shape, out.shape[2:], stride, padding, dilation, groups, "cpu"
    )
    _forward(xp, out, columns, input, weight, bias, plan)


def _solid(array):
    # (batch, channels, ...) in three spatial dims
    return array.reshape(*array.shape[:2], *[1] * (5 - array.ndim), *array.shape[2:])


def _slide(plan, out, x, weight, bias, back):
    # A depthwise convolution of planes with neighboring windows, or the gradient of its input.
    from ...kernels.cpu.convolution.depthwise_stride1 import slide

    filters = weight.reshape(weight.shape[0], *plan.kernel)
    low = tuple(p[0] for p in plan.padding)
    if back:  # which is the convolution with windows turned around
        low = tuple(
            (k - 1) * d - p for k, d, p in zip(plan.kernel, plan.dilation, low, strict=True)
        )
    threads.parallel_chunks(
        lambda _, start, stop: slide(
            out, x, filters, bias, low, tuple(plan.dilation), back, start, stop
        ),
        out.shape[1], min(plan.threads, out.shape[1]),
    )  # fmt: skip


def _windows(weight, plan):
    # (filters, 1, ...) as (filters, depth, height, width)
    return weight.reshape(weight.shape[0], *[1] * (3 - len(plan.kernel)), *plan.kernel)


def _planes(result, plan):
    # (batch, filters, ...) in three spatial dims
    return result.reshape(*result.shape[:2], *[1] * (3 - len(plan.kernel)), *plan.out)


def _share(plan, run):
    # Images are independent: each thread takes some, with BLAS to itself.
    if plan.workers == 1:
        run(0, 0, plan.batch)
        return
    with blas.single():
        threads.parallel_chunks(run, plan.batch, plan.workers)


def _forward(xp, out, columns, input, weight, bias, plan):
    g, per, filters = plan.groups, plan.per_group, plan.filters
    matrix = weight.reshape(g, filters, plan.taps)
    result = out.reshape(plan.batch, g, filters, prod(plan.out))
    added = None if bias is None else bias.reshape(g, filters, 1)
    line = prod(plan.out[1:])

    def run(worker, start, stop):
        if plan.pointwise:
            target = result[start:stop]
            image = input.reshape(plan.batch, g, per, prod(plan.size))[start:stop]
            xp.matmul(matrix, image, out=target)
            if added is not None:
                xp.add(target, added, out=target)
            return
        for n, m, r, s in plan.tiles(out.dtype.itemsize, start, stop):
            tile = columns[: (m - n) * plan.rows * (s - r) * line]
            unroll(xp, plan, tile, input[n:m], r, s)
            # Where a tile has some lines of an image, the rows of its result have gaps in between.
            target = result[n:m, :, :, r * line : s * line]
            xp.matmul(matrix, tile.reshape(m - n, g, plan.taps, (s - r) * line), out=target)
            if added is not None:
                xp.add(target, added, out=target)

    if plan.batch:
        _share(plan, run)


def _input_grad_infer(grad, weight, *, size, stride, padding, dilation, groups):
    shape = (grad.shape[0], weight.shape[1] * groups, *size)
    itemsize = max(4, grad.dtype.itemsize)
    sizes = (shape, weight.shape, grad.shape[2:], stride, padding, dilation, groups)
    if _directly_windows(grad, weight, stride=stride, padding=padding):
        count = windows(*sizes, itemsize, back=True).elements
    else:
        plan = Tiling(*sizes)
        count = 0 if plan.pointwise else plan.columns(itemsize)
    return Spec(shape, grad.dtype), Spec((count,), _computed(grad.dtype))


def _input_grad_samples(make):
    base = {"stride": (2, 1), "padding": ((1, 1), (0, 0)), "dilation": (1, 2), "groups": 1}
    yield (make(2, 3, 3, 3), make(3, 2, 3, 2)), base | {"size": (6, 5)}
    yield (make(2, 4, 3, 3), make(4, 2, 3, 2)), base | {"size": (5, 5), "groups": 2}
    base = {"stride": (1,), "padding": ((0, 1),), "dilation": (1,), "groups": 1}
    g, w = make(1, 2, 5), make(2, 1, 2)
    yield (g, w), base | {"size": (g.shape[2] + w.shape[2] - 2,)}
    yield (make(0, 2, 5), make(2, 1, 2)), base | {"size": (5,)}


@op(
    name="_conv_input_grad", infer=_input_grad_infer, scratch=("columns",), promote="same",
    layout=contiguous, flops=lambda grad, weight, **_: 2 * grad.numel * prod(weight.shape[1:]),
    samples=_input_grad_samples, autocast="low",
)  # fmt: skip
def conv_input_grad(
    xp, out, columns, grad, weight, *, size, stride, padding, dilation, groups
):  # fmt: skip
    """Spread ``grad`` back over the windows it came from: the adjoint of ``_conv`` in its input."""
    plan = Tiling(out.shape, weight.shape, grad.shape[2:], stride, padding, dilation, groups)
    _backward(xp, out, columns, grad, weight, plan)


@conv_input_grad.kernel("cpu", when=_depthwise, layout=contiguous, scratch=False)
def _(xp, out, columns, grad, weight, *, size, stride, padding, dilation, groups):
    plan = Tiling(out.shape, weight.shape, grad.shape[2:], stride, padding, dilation, groups, "cpu")
    if plan.sliding:
        _slide(plan, out, grad, weight, weight[:0, 0].reshape(-1), True)
        return
    from ...kernels.cpu.convolution.depthwise import depthwise_input_grad

    x, w, y = plan.volumes(out), _windows(weight, plan), _planes(grad, plan)
    rest = plan.geometry(0, 0)[2:]
    threads.parallel_chunks(
        lambda _, start, stop: depthwise_input_grad(x, y, w, *rest, start, stop),
        plan.channels, min(plan.threads, plan.channels),
    )  # fmt: skip


@conv_input_grad.kernel("cpu", when=_directly_windows, layout=contiguous)
def _(xp, out, columns, grad, weight, *, size, stride, padding, dilation, groups):
    sizes = (out.shape, weight.shape, grad.shape[2:], stride, padding, dilation, groups)
    plan = windows(*sizes, out.itemsize, back=True)
    plan.fill(_solid(out), columns, _solid(grad), weight, None)


@conv_input_grad.kernel("cpu", when=_threaded, layout=contiguous)
def _(xp, out, columns, grad, weight, *, size, stride, padding, dilation, groups):
    plan = Tiling(out.shape, weight.shape, grad.shape[2:], stride, padding, dilation, groups, "cpu")
    _backward(xp, out, columns, grad, weight, plan)


def _backward(xp, out, columns, grad, weight, plan):
    g, per, filters = plan.groups, plan.per_group, plan.filters
    matrix = weight.reshape(g, filters, plan.taps).swapaxes(1, 2)
    source = grad.reshape(plan.batch, g, filters, prod(plan.out))
    line = prod(plan.out[1:])

    def run(worker, start, stop):
        if plan.pointwise:
            target = out.reshape(plan.batch, g, per, prod(plan.size))[start:stop]
            xp.matmul(matrix, source[start:stop], out=target)
            return
        out[start:stop].fill(0)
        for n, m, r, s in plan.tiles(out.dtype.itemsize, start, stop):
            tile = columns[: (m - n) * plan.rows * (s - r) * line]
            part = source[n:m, :, :, r * line : s * line]
            xp.matmul(matrix, part, out=tile.reshape(m - n, g, plan.taps, (s - r) * line))
            roll(xp, plan, tile, out[n:m], r, s)

    if plan.batch:
        _share(plan, run)


def _weight_grad_infer(input, grad, *, kernel, stride, padding, dilation, groups):
    shape = (grad.shape[1], input.shape[1] // groups, *kernel)
    computed = _computed(grad.dtype)
    itemsize = max(4, grad.dtype.itemsize)
    sizes = (input.shape, shape, grad.shape[2:], stride, padding, dilation, groups)
    if _directly(input):
        direct = weight_grad(*sizes, itemsize)
        columns, rows = (direct.workers * n for n in direct.parts(*direct.tile))
        part = (direct.workers, direct.sums)
    else:
        plan = Tiling(*sizes)
        columns = plan.columns(itemsize)
        rows = columns // max(1, plan.rows) * grad.shape[1]
        part = (1, prod(shape))
    return (
        Spec(shape, grad.dtype),
        Spec((columns,), computed),
        Spec((rows,), computed),
        Spec(part, computed),
    )


def _weight_grad_samples(make):
    base = {"stride": (2, 1), "padding": ((1, 1), (0, 0)), "dilation": (1, 2), "groups": 1}
    yield (make(2, 2, 6, 5), make(2, 3, 3, 3)), base | {"kernel": (3, 2)}
    yield (make(2, 4, 6, 5), make(2, 4, 3, 3)), base | {"kernel": (3, 2), "groups": 2}
    base = {"stride": (1,), "padding": ((0, 1),), "dilation": (1,), "groups": 1}
    x, g = make(1, 2, 7), make(1, 2, 5)
    yield (x, g), base | {"kernel": (x.shape[2] - g.shape[2] + 2,)}
    yield (make(0, 2, 5), make(0, 3, 5)), base | {"kernel": (2,)}


@op(
    name="_conv_weight_grad", infer=_weight_grad_infer, scratch=("columns", "rows", "part"),
    promote="same", layout=contiguous, flops=lambda input, grad, *, kernel, groups, **_: (
        2 * grad.numel * input.shape[1] // groups * prod(kernel)
    ),
    samples=_weight_grad_samples,
)  # fmt: skip
def conv_weight_grad(
    xp, out, columns, rows, part, input, grad, *, kernel, stride, padding, dilation, groups
):  # fmt: skip
    """Correlate ``input`` with ``grad``: the adjoint of ``_conv`` in its weight."""
    plan = Tiling(input.shape, out.shape, grad.shape[2:], stride, padding, dilation, groups)
    _correlate(xp, out, columns, rows, part, input, grad, plan)


@conv_weight_grad.kernel("cpu", when=_depthwise_weight, layout=contiguous, scratch=False)
def _(xp, out, columns, rows, part, input, grad, *, kernel, stride, padding, dilation, groups):
    plan = Tiling(input.shape, out.shape, grad.shape[2:], stride, padding, dilation, groups, "cpu")
    if plan.sliding:
        from ...kernels.cpu.convolution.depthwise_stride1 import slide_weight

        filters = out.reshape(out.shape[0], *plan.kernel)
        low = tuple(p[0] for p in padding)
        threads.parallel_chunks(
            lambda _, start, stop: slide_weight(filters, input, grad, low, dilation, start, stop),
            out.shape[0], min(plan.threads, out.shape[0]),
        )  # fmt: skip
        return
    from ...kernels.cpu.convolution.depthwise import depthwise_weight_grad

    x, w, y = plan.volumes(input), _windows(out, plan), _planes(grad, plan)
    rest = plan.geometry(0, 0)[2:]
    threads.parallel_chunks(
        lambda _, start, stop: depthwise_weight_grad(w, x, y, *rest, start, stop),
        out.shape[0], min(plan.threads, out.shape[0]),
    )  # fmt: skip


@conv_weight_grad.kernel("cpu", when=_directly, layout=contiguous)
def _(xp, out, columns, rows, part, input, grad, *, kernel, stride, padding, dilation, groups):
    plan = weight_grad(
        input.shape, out.shape, grad.shape[2:], stride, padding, dilation, groups, out.itemsize
    )
    plan.fill(out, columns, rows, part, _solid(input), _solid(grad))


def _correlate(xp, out, columns, rows, part, input, grad, plan):
    g, filters, taps = plan.groups, plan.filters, plan.taps
    total, product = out.reshape(g, filters, taps), part.reshape(g, filters, taps)
    source = grad.reshape(plan.batch, g, filters, *plan.out)
    line = prod(plan.out[1:])
    total.fill(0)
    for n, m, r, s in plan.tiles(out.dtype.itemsize, 0, plan.batch):
        # The images of a tile lie side by side, so that each product sums over all of them.
        span = (m - n) * (s - r) * line
        tile = columns[: plan.rows * span]
        unroll(xp, plan, tile, input[n:m], r, s, beside=True)
        lines = rows[: g * filters * span].reshape(g, filters, m - n, s - r, *plan.out[1:])
        xp.copyto(lines, xp.moveaxis(source[n:m, :, :, r:s], 0, 2))
        flat = tile.reshape(g, taps, span)
        xp.matmul(lines.reshape(g, filters, span), flat.swapaxes(1, 2), out=product)
        xp.add(total, product, out=total)


@conv.vjp("input")
def _(g, weight, input_spec, stride, padding, dilation, groups):
    size = tuple(input_spec.shape[2:])
    return conv_input_grad(g, conjugate(weight), size, stride, padding, dilation, groups)


@conv.vjp("weight")
def _(g, input, weight_spec, stride, padding, dilation, groups):
    kernel = tuple(weight_spec.shape[2:])
    return conv_weight_grad(conjugate(input), g, kernel, stride, padding, dilation, groups)


@conv.vjp("bias")
def _(g):
    return g.sum((0, *range(2, g.ndim)))


@conv_input_grad.vjp("grad")
def _(g, weight, grad_spec, stride, padding, dilation, groups):
    found = conv(g, conjugate(weight), None, stride, padding, dilation, groups)
    return _cropped(found, grad_spec.shape)


@conv_input_grad.vjp("weight")
def _(g, grad, weight_spec, stride, padding, dilation, groups):
    kernel = tuple(weight_spec.shape[2:])
    return conv_weight_grad(g, conjugate(grad), kernel, stride, padding, dilation, groups)


@conv_weight_grad.vjp("input")
def _(g, grad, input_spec, stride, padding, dilation, groups):
    size = tuple(input_spec.shape[2:])
    return conv_input_grad(conjugate(grad), g, size, stride, padding, dilation, groups)


@conv_weight_grad.vjp("grad")
def _(g, input, grad_spec, stride, padding, dilation, groups):
    found = conv(conjugate(input), g, None, stride, padding, dilation, groups)
    return _cropped(found, grad_spec.shape)


def _cropped(x, shape):
    # More windows fit than were there, where a transposed one has more output_padding than stride.
    for d in range(2, x.ndim):
        if x.shape[d] != shape[d]:
            x = x.narrow(d, 0, shape[d])
    return x
