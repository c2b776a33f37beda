"""Convolution in any number of dimensions, and the two bilinear ops that are its gradients.

``_conv``, ``_conv_input_grad`` and ``_conv_weight_grad`` are one trilinear form seen from its
three sides, so the gradient of each is made of the other two and derivatives of any order close.
A transposed convolution is ``_conv_input_grad`` under its other name.

How a side is computed is one object, chosen for its sizes in ``infer`` (``routes.py``): the kernels
here find it again and run it. The scratch of ``columns``, ``rows`` and ``sums`` is the route's.
"""

from __future__ import annotations

from math import prod

from ...dtypes import float32
from ...kernels.common.layout import contiguous
from ...spec import Spec
from ..elementwise.arithmetic import conjugate
from ..overwrite import write_over
from ..registry import op
from .im2col import output_size
from .routes import route
from .sizes import INPUT, OUT, WEIGHT


def _scratch(side, spec, *sizes):
    # Specs of a route's buffers; they are of the type that is computed with.
    computed = float32 if spec.dtype.is_half else spec.dtype
    found = route(side, spec.on_host, *sizes, computed.np)
    return [Spec(shape, computed) for shape in found.scratch]


def _run(side, cpu, xp, scratch, x, weight, y, bias, *geometry):
    found = route(side, cpu, x.shape, weight.shape, y.shape[2:], *geometry, x.dtype)
    found.run(xp, scratch, x, weight, y, bias)


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
    sizes = (input.shape, weight.shape, size, stride, padding, dilation, groups)
    return out, *_scratch(OUT, input, *sizes)


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
    infer=_conv_infer,
    scratch=("columns",),
    promote="same",
    layout=contiguous,
    flops=_conv_flops,
    samples=_conv_samples,
    autocast="low",
)
def _conv(xp, out, columns, input, weight, bias, *, stride, padding, dilation, groups):
    """Slide ``weight`` over ``input`` and contract channels: cross-correlation, as PyTorch's."""
    geometry = (stride, padding, dilation, groups)
    _run(OUT, False, xp, (columns,), input, weight, out, bias, *geometry)


@_conv.kernel("cpu", layout=contiguous)
def _(xp, out, columns, input, weight, bias, *, stride, padding, dilation, groups):
    geometry = (stride, padding, dilation, groups)
    _run(OUT, True, xp, (columns,), input, weight, out, bias, *geometry)


def _input_grad_infer(grad, weight, *, size, stride, padding, dilation, groups):
    shape = (grad.shape[0], weight.shape[1] * groups, *size)
    sizes = (shape, weight.shape, grad.shape[2:], stride, padding, dilation, groups)
    return Spec(shape, grad.dtype), *_scratch(INPUT, grad, *sizes)


def _input_grad_samples(make):
    base = {"stride": (2, 1), "padding": ((1, 1), (0, 0)), "dilation": (1, 2), "groups": 1}
    yield (make(2, 3, 3, 3), make(3, 2, 3, 2)), base | {"size": (6, 5)}
    yield (make(2, 4, 3, 3), make(4, 2, 3, 2)), base | {"size": (5, 5), "groups": 2}
    base = {"stride": (1,), "padding": ((0, 1),), "dilation": (1,), "groups": 1}
    g, w = make(1, 2, 5), make(2, 1, 2)
    yield (g, w), base | {"size": (g.shape[2] + w.shape[2] - 2,)}
    yield (make(0, 2, 5), make(2, 1, 2)), base | {"size": (5,)}


@op(
    infer=_input_grad_infer,
    scratch=("columns",),
    promote="same",
    layout=contiguous,
    flops=lambda grad, weight, **_: 2 * grad.numel * prod(weight.shape[1:]),
    samples=_input_grad_samples,
    autocast="low",
)
def _conv_input_grad(xp, out, columns, grad, weight, *, size, stride, padding, dilation, groups):
    """Spread ``grad`` back over the windows it came from: the adjoint of ``_conv`` in its input."""
    geometry = (stride, padding, dilation, groups)
    _run(INPUT, False, xp, (columns,), out, weight, grad, None, *geometry)


@_conv_input_grad.kernel("cpu", layout=contiguous)
def _(xp, out, columns, grad, weight, *, size, stride, padding, dilation, groups):
    geometry = (stride, padding, dilation, groups)
    _run(INPUT, True, xp, (columns,), out, weight, grad, None, *geometry)


def _weight_grad_infer(input, grad, *, kernel, stride, padding, dilation, groups):
    shape = (grad.shape[1], input.shape[1] // groups, *kernel)
    sizes = (input.shape, shape, grad.shape[2:], stride, padding, dilation, groups)
    return Spec(shape, grad.dtype), *_scratch(WEIGHT, grad, *sizes)


def _weight_grad_samples(make):
    base = {"stride": (2, 1), "padding": ((1, 1), (0, 0)), "dilation": (1, 2), "groups": 1}
    yield (make(2, 2, 6, 5), make(2, 3, 3, 3)), base | {"kernel": (3, 2)}
    yield (make(2, 4, 6, 5), make(2, 4, 3, 3)), base | {"kernel": (3, 2), "groups": 2}
    base = {"stride": (1,), "padding": ((0, 1),), "dilation": (1,), "groups": 1}
    x, g = make(1, 2, 7), make(1, 2, 5)
    yield (x, g), base | {"kernel": (x.shape[2] - g.shape[2] + 2,)}
    yield (make(0, 2, 5), make(0, 3, 5)), base | {"kernel": (2,)}


@op(
    infer=_weight_grad_infer,
    scratch=("columns", "rows", "sums"),
    promote="same",
    layout=contiguous,
    flops=lambda input, grad, *, kernel, groups, **_: (
        2 * grad.numel * input.shape[1] // groups * prod(kernel)
    ),
    samples=_weight_grad_samples,
)
def _conv_weight_grad(
    xp, out, columns, rows, sums, input, grad, *, kernel, stride, padding, dilation, groups
):
    """Correlate ``input`` with ``grad``: the adjoint of ``_conv`` in its weight."""
    geometry = (stride, padding, dilation, groups)
    _run(WEIGHT, False, xp, (columns, rows, sums), input, out, grad, None, *geometry)


@_conv_weight_grad.kernel("cpu", layout=contiguous)
def _(xp, out, columns, rows, sums, input, grad, *, kernel, stride, padding, dilation, groups):
    geometry = (stride, padding, dilation, groups)
    _run(WEIGHT, True, xp, (columns, rows, sums), input, out, grad, None, *geometry)


@_conv.vjp("weight")
def _(g, input, weight_spec, stride, padding, dilation, groups):
    kernel = tuple(weight_spec.shape[2:])
    return _conv_weight_grad(conjugate(input), g, kernel, stride, padding, dilation, groups)


@_conv.vjp("bias")
def _(g):
    return g.sum((0, *range(2, g.ndim)))


@_conv.vjp("input", room=("input",))  # the last, which may write over what the weight's has read
def _(g, weight, input_spec, stride, padding, dilation, groups, room):
    given = {"size": tuple(input_spec.shape[2:]), "stride": stride, "padding": padding}
    given |= {"dilation": dilation, "groups": groups}
    return write_over(room, _conv_input_grad, g, conjugate(weight), **given)


@_conv_input_grad.vjp("grad")
def _(g, weight, grad_spec, stride, padding, dilation, groups):
    found = _conv(g, conjugate(weight), None, stride, padding, dilation, groups)
    return _cropped(found, grad_spec.shape)


@_conv_input_grad.vjp("weight")
def _(g, grad, weight_spec, stride, padding, dilation, groups):
    kernel = tuple(weight_spec.shape[2:])
    return _conv_weight_grad(g, conjugate(grad), kernel, stride, padding, dilation, groups)


@_conv_weight_grad.vjp("input")
def _(g, grad, input_spec, stride, padding, dilation, groups):
    size = tuple(input_spec.shape[2:])
    return _conv_input_grad(conjugate(grad), g, size, stride, padding, dilation, groups)


@_conv_weight_grad.vjp("grad")
def _(g, input, grad_spec, stride, padding, dilation, groups):
    found = _conv(conjugate(input), g, None, stride, padding, dilation, groups)
    return _cropped(found, grad_spec.shape)


def _cropped(x, shape):
    # More windows fit than were there, where a transposed one has more output_padding than stride.
    for d in range(2, x.ndim):
        if x.shape[d] != shape[d]:
            x = x.narrow(d, 0, shape[d])
    return x
