"""Convolution in any number of dimensions, and the two bilinear ops that are its gradients.

``_conv``, ``_conv_input_grad`` and ``_conv_weight_grad`` are one trilinear form seen from its
three sides, so the gradient of each is made of the other two and derivatives of any order close.
A transposed convolution is ``_conv_input_grad`` under its other name.

Images are unrolled into columns tile by tile: a few images at a time, or a few rows of one image,
so that the columns stay in the cache and the workspace is a constant, whatever the batch. One
batched matrix product per tile does the arithmetic.

Not optimal: a depthwise convolution is unrolled too, though its products have a single row.
"""

from __future__ import annotations

from itertools import product
from math import prod

from ..spec import Spec
from .registry import function, op

TILE = 1 << 20  # bytes of columns at a time; about half of a core's second-level cache


def contiguous(array) -> bool:
    """True for an array in C order: kernels here reshape without copying."""
    return array.flags.c_contiguous


def worth_compiling(input, *_, **__) -> bool:
    """True for operands large enough that a compiled kernel repays its import."""
    return input.numel >= 1 << 14 and input.dtype.name in ("float32", "float64")


def output_size(n: int, k: int, stride: int, padding: tuple[int, int], dilation: int) -> int:
    """How many positions a window of ``k`` has along a dimension of ``n``."""
    return (n + sum(padding) - dilation * (k - 1) - 1) // stride + 1


def reach(offset: int, n: int, out: int, stride: int, low: int) -> tuple[slice, slice]:
    """Where one window element falls inside the input, along one dimension.

    Args:
        offset: Of the element in the window, dilation included.
        n: Size of the input.
        out: Number of window positions.
        stride: Between them.
        low: Padding before the input.

    Returns:
        (positions, elements): slices of equal length into the output and the input.
    """
    first = max(0, -((offset - low) // stride))  # ceil((low - offset) / stride)
    last = min(out, (n - 1 + low - offset) // stride + 1)
    if last <= first:
        return slice(0, 0), slice(0, 0)
    start = first * stride + offset - low
    return slice(first, last), slice(start, start + (last - first - 1) * stride + 1, stride)


class _Plan:
    """Sizes of a convolution, and its tiles."""

    def __init__(self, input, weight, out, stride, padding, dilation, groups) -> None:
        self.batch, self.channels, *self.size = input
        self.kernel = tuple(weight[2:])
        self.out = tuple(out)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.per_group = self.channels // groups  # input channels
        self.filters = weight[0] // groups  # output channels of a group
        self.rows = self.channels * prod(self.kernel)  # of the columns of one image
        self.taps = self.rows // groups
        self.pointwise = prod(self.kernel) == 1 and prod(stride) == 1 and not any(map(any, padding))

    def tile(self, itemsize: int) -> tuple[int, int]:
        """Images per tile, and rows of the first output dimension per tile."""
        line = max(1, self.rows * prod(self.out[1:]) * itemsize)
        lines = max(1, TILE // line)
        # Matrix products want a few hundred columns, also where that breaks the cache.
        lines = max(lines, -(-128 // max(1, prod(self.out[1:]))))
        if lines >= self.out[0]:
            return max(1, min(self.batch, lines // max(1, self.out[0]))), max(1, self.out[0])
        return 1, -(-self.out[0] // -(-self.out[0] // lines))  # tiles of about equal height

    def columns(self, itemsize: int) -> int:
        """Elements of the columns of one tile."""
        images, lines = self.tile(itemsize)
        return self.rows * images * lines * prod(self.out[1:])

    def tiles(self, itemsize: int):
        """(first image, last, first line, last) of each tile."""
        images, lines = self.tile(itemsize)
        for n in range(0, self.batch, images):
            for r in range(0, self.out[0], lines):
                yield n, min(n + images, self.batch), r, min(r + lines, self.out[0])

    def shifts(self, first: int, last: int):
        """For each window element and the output lines ``first:last``.

        Yields (index, positions, elements): the element's index in the window; slices into the
        tile's output positions; slices into the input.
        """
        axes = []
        for d, k in enumerate(self.kernel):
            low, n, out, s = self.padding[d][0], self.size[d], self.out[d], self.stride[d]
            if d == 0:  # as if the input began where these lines look
                low, out = low - first * s, last - first
            axes.append([(j, *reach(j * self.dilation[d], n, out, s, low)) for j in range(k)])
        for taps in product(*axes):
            yield (
                tuple(t[0] for t in taps), tuple(t[1] for t in taps), tuple(t[2] for t in taps)
            )  # fmt: skip


def _unroll(xp, plan, columns, image, first, last, axis) -> None:
    # columns[.., window element, .., output position] = the input there, 0 in the padding.
    # `axis` is where the window's dims begin in `columns`; batch and channels are around them.
    lead = (slice(None),) * axis
    tail = (slice(None),) * (columns.ndim - axis - 2 * len(plan.kernel))
    full = (slice(0, last - first), *[slice(0, n) for n in plan.out[1:]])
    for taps, positions, elements in plan.shifts(first, last):
        target = columns[(*lead, *taps, *tail)]
        if positions != full:
            target.fill(0)
        xp.copyto(target[(..., *positions)], image[(..., *elements)])


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
    plan = _Plan(input.shape, weight.shape, size, stride, padding, dilation, groups)
    itemsize = max(4, input.dtype.itemsize)  # half types are computed in float32
    spec = Spec((0 if plan.pointwise else plan.columns(itemsize),), _computed(input.dtype))
    return out, spec


def _computed(dtype):
    from ..dtypes import float32

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
    name="_conv", method=False, public=False, infer=_conv_infer, scratch=("columns",),
    promote="same", half="float32", layout=contiguous, flops=_conv_flops, samples=_conv_samples,
)  # fmt: skip
def conv(xp, out, columns, input, weight, bias, *, stride, padding, dilation, groups):
    """Slide ``weight`` over ``input`` and contract channels: cross-correlation, as PyTorch's."""
    plan = _Plan(input.shape, weight.shape, out.shape[2:], stride, padding, dilation, groups)
    g, per, filters = plan.groups, plan.per_group, plan.filters
    matrix = weight.reshape(g, filters, plan.taps)
    if plan.batch == 0:
        return
    if plan.pointwise:
        image = input.reshape(plan.batch, g, per, -1)
        xp.matmul(matrix, image, out=out.reshape(plan.batch, g, filters, -1))
    else:
        result = out.reshape(plan.batch, g, filters, plan.out[0], -1)
        channels = input.reshape(plan.batch, g, per, *plan.size)
        for n, m, r, s in plan.tiles(out.dtype.itemsize):
            shape = (m - n, g, per, *plan.kernel, s - r, *plan.out[1:])
            tile = columns[: prod(shape)].reshape(shape)
            moved = xp.moveaxis(tile, range(3, 3 + len(plan.kernel)), range(len(plan.kernel)))
            _unroll(xp, plan, moved, channels[n:m], r, s, 0)
            flat = tile.reshape(m - n, g, plan.taps, -1)
            if s - r == plan.out[0]:
                target = result.reshape(plan.batch, g, filters, -1)[n:m]
            else:  # one image, some of its lines: rows of a matrix, with a gap between them
                line = prod(plan.out[1:])
                target = result.reshape(plan.batch, g, filters, -1)[n:m, :, :, r * line : s * line]
            xp.matmul(matrix, flat, out=target)
    if bias is not None:
        xp.add(out, bias.reshape(-1, *[1] * len(plan.kernel)), out=out)


def _input_grad_infer(grad, weight, *, size, stride, padding, dilation, groups):
    shape = (grad.shape[0], weight.shape[1] * groups, *size)
    plan = _Plan(shape, weight.shape, grad.shape[2:], stride, padding, dilation, groups)
    count = 0 if plan.pointwise else plan.columns(max(4, grad.dtype.itemsize))
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
    name="_conv_input_grad", method=False, public=False, infer=_input_grad_infer,
    scratch=("columns",), promote="same", half="float32", layout=contiguous,
    flops=lambda grad, weight, **_: 2 * grad.numel * prod(weight.shape[1:]),
    samples=_input_grad_samples,
)  # fmt: skip
def conv_input_grad(
    xp, out, columns, grad, weight, *, size, stride, padding, dilation, groups
):  # fmt: skip
    """Spread ``grad`` back over the windows it came from: the adjoint of ``_conv`` in its input."""
    plan = _Plan(out.shape, weight.shape, grad.shape[2:], stride, padding, dilation, groups)
    g, per, filters = plan.groups, plan.per_group, plan.filters
    if plan.batch == 0:
        return
    matrix = weight.reshape(g, filters, plan.taps).swapaxes(1, 2)
    source = grad.reshape(plan.batch, g, filters, -1)
    if plan.pointwise:
        xp.matmul(matrix, source, out=out.reshape(plan.batch, g, per, -1))
        return
    out.fill(0)
    channels = out.reshape(plan.batch, g, per, *plan.size)
    line = prod(plan.out[1:])
    nd = len(plan.kernel)
    for n, m, r, s in plan.tiles(out.dtype.itemsize):
        shape = (m - n, g, per, *plan.kernel, s - r, *plan.out[1:])
        tile = columns[: prod(shape)].reshape(shape)
        part = source[n:m, :, :, r * line : s * line]
        xp.matmul(matrix, part, out=tile.reshape(m - n, g, plan.taps, -1))
        moved = xp.moveaxis(tile, range(3, 3 + nd), range(nd))
        image = channels[n:m]
        for taps, positions, elements in plan.shifts(r, s):
            view = image[(..., *elements)]
            xp.add(view, moved[taps][(..., *positions)], out=view)


def _weight_grad_infer(input, grad, *, kernel, stride, padding, dilation, groups):
    shape = (grad.shape[1], input.shape[1] // groups, *kernel)
    plan = _Plan(input.shape, shape, grad.shape[2:], stride, padding, dilation, groups)
    computed = _computed(grad.dtype)
    count = plan.columns(max(4, grad.dtype.itemsize))
    return (
        Spec(shape, grad.dtype),
        Spec((count,), computed),
        Spec((count // max(1, plan.rows) * grad.shape[1],), computed),
        Spec((prod(shape),), computed),
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
    name="_conv_weight_grad", method=False, public=False, infer=_weight_grad_infer,
    scratch=("columns", "rows", "part"), promote="same", half="float32", layout=contiguous,
    flops=lambda input, grad, *, kernel, groups, **_: (
        2 * grad.numel * input.shape[1] // groups * prod(kernel)
    ),
    samples=_weight_grad_samples,
)  # fmt: skip
def conv_weight_grad(
    xp, out, columns, rows, part, input, grad, *, kernel, stride, padding, dilation, groups
):  # fmt: skip
    """Correlate ``input`` with ``grad``: the adjoint of ``_conv`` in its weight."""
    plan = _Plan(input.shape, out.shape, grad.shape[2:], stride, padding, dilation, groups)
    g, per, filters, nd = plan.groups, plan.per_group, plan.filters, len(kernel)
    out.fill(0)
    total = out.reshape(g, filters, plan.taps)
    part = part.reshape(g, filters, plan.taps)
    source = grad.reshape(plan.batch, g, filters, *plan.out)
    channels = input.reshape(plan.batch, g, per, *plan.size)
    for n, m, r, s in plan.tiles(out.dtype.itemsize):
        # The images of a tile lie side by side, so that each product sums over all of them.
        shape = (g, per, *kernel, m - n, s - r, *plan.out[1:])
        tile = columns[: prod(shape)].reshape(shape)
        moved = xp.moveaxis(tile, range(2, 2 + nd), range(nd))  # (*kernel, g, per, m - n, ..)
        image = xp.moveaxis(channels[n:m], 0, 2)
        _unroll(xp, plan, moved, image, r, s, 0)
        shape = (g, filters, m - n, s - r, *plan.out[1:])
        lines = rows[: prod(shape)].reshape(shape)
        xp.copyto(lines, xp.moveaxis(source[n:m, :, :, r:s], 0, 2))
        flat = tile.reshape(g, plan.taps, -1)
        xp.matmul(lines.reshape(g, filters, -1), flat.swapaxes(1, 2), out=part)
        xp.add(total, part, out=total)


@conv.vjp("input")
def _(g, weight, input_spec, stride, padding, dilation, groups):
    size = tuple(input_spec.shape[2:])
    return conv_input_grad(g, weight, size, stride, padding, dilation, groups)


@conv.vjp("weight")
def _(g, input, weight_spec, stride, padding, dilation, groups):
    kernel = tuple(weight_spec.shape[2:])
    return conv_weight_grad(input, g, kernel, stride, padding, dilation, groups)


@conv.vjp("bias")
def _(g):
    return g.sum((0, *range(2, g.ndim)))


@conv_input_grad.vjp("grad")
def _(g, weight, stride, padding, dilation, groups):
    return conv(g, weight, None, stride, padding, dilation, groups)


@conv_input_grad.vjp("weight")
def _(g, grad, weight_spec, stride, padding, dilation, groups):
    kernel = tuple(weight_spec.shape[2:])
    return conv_weight_grad(g, grad, kernel, stride, padding, dilation, groups)


@conv_weight_grad.vjp("input")
def _(g, grad, input_spec, stride, padding, dilation, groups):
    size = tuple(input_spec.shape[2:])
    return conv_input_grad(grad, g, size, stride, padding, dilation, groups)


@conv_weight_grad.vjp("grad")
def _(g, input, stride, padding, dilation, groups):
    return conv(input, g, None, stride, padding, dilation, groups)


# The public functions: PyTorch's arguments


def several(name: str, value, nd: int) -> tuple[int, ...]:
    """One int per spatial dimension, from an int or a sequence.

    Raises:
        RuntimeError: The sequence has another length.
    """
    if isinstance(value, int):
        return (value,) * nd
    value = tuple(int(v) for v in value)
    if len(value) == 1:
        return value * nd
    if len(value) != nd:
        raise RuntimeError(
            f"{name}: expected one value or {nd} for {nd} spatial dimensions; got {value}."
        )
    return value


def _convolve(name, nd, input, weight, bias, stride, padding, dilation, groups):
    stride, dilation = several(name, stride, nd), several(name, dilation, nd)
    if input.ndim not in (nd + 1, nd + 2) or weight.ndim != nd + 2:
        raise RuntimeError(
            f"Expected {nd + 1}D (unbatched) or {nd + 2}D (batched) input to {name} and "
            f"{nd + 2}D weight; got input {tuple(input.shape)} and weight "
            f"{tuple(weight.shape)}. Add or remove a dimension."
        )
    if isinstance(padding, str):
        pairs = _named_padding(name, padding, weight.shape[2:], stride, dilation)
    else:
        pairs = tuple((p, p) for p in several(name, padding, nd))
    batched = input if input.ndim == nd + 2 else input.unsqueeze(0)
    out = conv(batched, weight, bias, stride, pairs, dilation, groups)
    return out if batched is input else out.view(out.shape[1:])


def _named_padding(name, padding, kernel, stride, dilation):
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding != "same":
        raise RuntimeError(f"{name}: padding must be 'same', 'valid' or numbers; got {padding!r}.")
    if any(s != 1 for s in stride):
        raise RuntimeError(
            f"{name}: padding='same' is not supported for strided convolutions; got stride "
            f"{stride}. Pass numbers."
        )
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return tuple((t // 2, t - t // 2) for t in totals)


@function()
def conv1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolve signals: cross-correlation along the last dimension.

    Args:
        input: (N, C, L), or (C, L) for one signal.
        weight: (O, C / groups, K).
        bias: (O,), or None.
        stride: Between window positions.
        padding: Zeros on both sides; or "same" or "valid".
        dilation: Between the elements of the window.
        groups: Independent blocks of channels.

    Returns:
        Tensor (N, O, L_out).

    Memory:
        Keeps input (for the weight's gradient) and weight (for the input's). Workspace: the
        columns of one tile, at most about 1 MiB beyond a few rows, whatever the batch.
    """
    return _convolve("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@function()
def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolve images: cross-correlation along the last two dimensions.

    Args:
        input: (N, C, H, W), or (C, H, W) for one image.
        weight: (O, C / groups, KH, KW).
        bias: (O,), or None.
        stride: Between window positions; one int or two.
        padding: Zeros on each side; one int or two; or "same" or "valid".
        dilation: Between the elements of the window; one int or two.
        groups: Independent blocks of channels.

    Returns:
        Tensor (N, O, H_out, W_out).

    Memory:
        Keeps input (for the weight's gradient) and weight (for the input's). Workspace: the
        columns of one tile, at most about 1 MiB beyond a few rows, whatever the batch.
    """
    return _convolve("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@function()
def conv3d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Convolve volumes: cross-correlation along the last three dimensions.

    The arguments are those of :func:`conv2d`, with one more spatial dimension.
    """
    return _convolve("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


def _transpose(name, nd, input, weight, bias, stride, padding, output_padding, groups, dilation):
    stride, dilation = several(name, stride, nd), several(name, dilation, nd)
    padding, extra = several(name, padding, nd), several(name, output_padding, nd)
    if input.ndim not in (nd + 1, nd + 2) or weight.ndim != nd + 2:
        raise RuntimeError(
            f"Expected {nd + 1}D (unbatched) or {nd + 2}D (batched) input to {name} and "
            f"{nd + 2}D weight; got input {tuple(input.shape)} and weight "
            f"{tuple(weight.shape)}. Add or remove a dimension."
        )
    if input.shape[-nd - 1] != weight.shape[0] or weight.shape[0] % groups:
        raise RuntimeError(
            f"{name}: weight {tuple(weight.shape)} takes {weight.shape[0]} input channels in "
            f"{groups} groups; got input {tuple(input.shape)}. Pass channels in the dimension "
            "before the spatial ones."
        )
    if any(e >= s and e >= d for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise RuntimeError(
            f"{name}: output padding must be smaller than either stride or dilation; got "
            f"output_padding {extra}, stride {stride}, dilation {dilation}."
        )
    batched = input if input.ndim == nd + 2 else input.unsqueeze(0)
    size = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, s, p, d, k, e in zip(
            batched.shape[2:], stride, padding, dilation, weight.shape[2:], extra, strict=True
        )
    )
    if any(n < 1 for n in size):
        raise RuntimeError(f"{name}: the result would have spatial size {size}. Use less padding.")
    out = conv_input_grad(
        batched, weight, size, stride, tuple((p, p) for p in padding), dilation, groups
    )
    if bias is not None:
        out = out + bias.view(-1, *[1] * nd)
    return out if batched is input else out.view(out.shape[1:])


@function()
def conv_transpose1d(
    input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    """Convolve signals backwards: the adjoint of :func:`conv1d` applied to ``input``.

    Args:
        input: (N, C, L), or (C, L).
        weight: (C, O / groups, K).
        bias: (O,), or None.
        stride: Of the convolution this is the adjoint of: it spreads ``input`` out.
        padding: Of that convolution: it crops the result on both sides.
        output_padding: Extra size on one side, where several inputs lead to one output size.
        groups: Independent blocks of channels.
        dilation: Between the elements of the window.

    Returns:
        Tensor (N, O, L_out).
    """
    return _transpose(
        "conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups,
        dilation,
    )  # fmt: skip


@function()
def conv_transpose2d(
    input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    """Convolve images backwards: the adjoint of :func:`conv2d` applied to ``input``.

    The arguments are those of :func:`conv_transpose1d`, with one more spatial dimension.
    """
    return _transpose(
        "conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups,
        dilation,
    )  # fmt: skip


@function()
def conv_transpose3d(
    input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1
):
    """Convolve volumes backwards: the adjoint of :func:`conv3d` applied to ``input``.

    The arguments are those of :func:`conv_transpose1d`, with two more spatial dimensions.
    """
    return _transpose(
        "conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups,
        dilation,
    )  # fmt: skip
