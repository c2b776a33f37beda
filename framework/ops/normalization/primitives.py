"""Normalization kernels: over the last dims, the batch, or groups of channels.

Layer, group, instance and batch normalization differ only in which elements share a mean. Each is
here one view of the input (``shape``), the axes of that view that are averaged over (``axes``) and
the shape in which weight and bias meet it (``affine``); kernels and gradients are written once.

A node keeps the input, the weight, and two numbers per average: the mean and the reciprocal
standard deviation. What is normalized is computed again in backward from these.
"""

from __future__ import annotations

from math import prod

from ...dtypes import float32
from ...kernels.common.layout import contiguous, heavy
from ...kernels.common.reduce import average, total
from ...kernels.common.schedule import parallel_range
from ...kernels.cuda import normalization as on_gpu
from ...kernels.cuda.kernel import is_float
from ...spec import Spec
from ..overwrite import write_over
from ..registry import op
from ..signatures import per_element

# Kernels on the view: x, out, g and dx have its shape; mean and rstd are 1 along the axes


def _statistics(xp, work, mean, rstd, x, axes) -> None:
    if x.size == 0:
        mean.fill(0)
        rstd.fill(0)
        return
    average(xp, x, axes, mean)
    xp.subtract(x, mean, out=work)
    xp.multiply(work, work, out=work)  # `out` is its own workspace, so no temporary is born here
    average(xp, work, axes, rstd)


def _invert(xp, rstd, eps) -> None:
    xp.add(rstd, eps, out=rstd)
    xp.sqrt(rstd, out=rstd)
    xp.reciprocal(rstd, out=rstd)


def _scale(xp, out, weight, bias, affine) -> None:
    if weight is not None:
        xp.multiply(out, weight.reshape(affine), out=out)
    if bias is not None:
        xp.add(out, bias.reshape(affine), out=out)


def _reduced(shape, axes):
    return tuple(1 if d in axes else n for d, n in enumerate(shape))


def _statistic_spec(input, shape, axes):
    return Spec(_reduced(shape, axes), float32 if input.dtype.is_half else input.dtype)


def _check_affine(name, input, affine, **values):
    count = prod(affine)
    for which, spec in values.items():
        if spec is None:
            continue
        if spec.numel != count:
            raise RuntimeError(
                f"{name}: Expected {which} to have {count} elements, one per normalized channel "
                f"or element; got {which} {tuple(spec.shape)} for input {tuple(input.shape)}."
            )
        if spec.dtype is not input.dtype and not (input.dtype.is_half and spec.dtype is float32):
            raise RuntimeError(
                f"{name}: expected {which} in the dtype of input, {input.dtype.name} (or float32 "
                f"beside a half type); got {spec.dtype.name}. Convert one with .to()."
            )


# The gradient, shared


def _grad_cases(make):
    x, g = make(4, 6), make(4, 6)
    row = x[:, :1] * 0.1
    shape = tuple(x.shape)
    base = {"shape": shape, "axes": (1,), "affine": (1, shape[1])}
    yield (g, x, make(6), row, row * row + 1), base
    yield (g, x, None, None, row * row + 1), base
    g, x, row = make(2, 3, 2), make(2, 3, 2), make(1, 3, 1, low=0.5, high=2.0)
    channels = {"shape": tuple(x.shape), "axes": (0, 2), "affine": (1, x.shape[1], 1)}
    yield (g, x, make(3), row * 0.1, row), channels
    g, x, row = make(1, 4, 3), make(1, 4, 3), make(1, 2, 1, 1, low=0.5, high=2.0)
    groups = {"shape": (1, 2, 2, x.shape[2]), "axes": (2, 3), "affine": (1, 2, 2, 1)}
    yield (g, x, make(4), row * 0.1, row), groups
    empty = {"shape": (0, 6), "axes": (1,), "affine": (1, 6)}
    yield (make(0, 6), make(0, 6), make(6), None, make(0, 1)), empty


def _grad_infer(grad, input, weight, mean, rstd, *, shape, axes, affine):
    count = prod(affine)
    empty = Spec((0,), grad.dtype)
    full = Spec(shape, float32 if grad.dtype.is_half else grad.dtype)
    row = Spec(_reduced(shape, axes), full.dtype)
    dw = empty if weight is None else Spec((count,), weight.dtype)
    return input, dw, Spec((count,), grad.dtype if weight is None else weight.dtype), full, row


@op(
    infer=_grad_infer,
    returns=("dx", "dw", "db"),
    scratch=("work", "row"),
    layout=contiguous,
    flops=per_element(12),
    samples=_grad_cases,
)
def _norm_grad(xp, dx, dw, db, work, row, grad, input, weight, mean, rstd, *, shape, axes, affine):
    """Backward of a normalization: input, weight and bias; ``mean`` None is not centered."""
    x, g, out = input.reshape(shape), grad.reshape(shape), dx.reshape(shape)
    summed = tuple(d for d, n in enumerate(affine) if n != shape[d] or n == 1)
    if x.size == 0:
        # Groups of no elements: PyTorch multiplies nothing by a mean of nothing, which is NaN.
        grouped = mean is not None and mean.size and len(shape) == 4
        dw.fill(xp.nan if grouped else 0)
        db.fill(0)
        return
    total(xp, g, summed, db.reshape(affine))
    if mean is not None:
        xp.subtract(x, mean, out=work)
        xp.multiply(work, rstd, out=work)  # what the forward pass made
    else:
        xp.multiply(x, rstd, out=work)
    xp.multiply(g, work, out=out)
    if weight is not None:
        total(xp, out, summed, dw.reshape(affine))
        xp.multiply(out, weight.reshape(affine), out=out)
    average(xp, out, axes, row)
    xp.multiply(work, row, out=work)
    if weight is not None:
        xp.multiply(g, weight.reshape(affine), out=out)
    else:
        xp.copyto(out, g)
    if mean is not None:
        average(xp, out, axes, row)
        xp.subtract(out, row, out=out)
    xp.subtract(out, work, out=out)
    xp.multiply(out, rstd, out=out)


def _on_gpu(*specs, shape, axes, **_):
    return is_float(*specs) and on_gpu.supported(shape, axes)


@_norm_grad.kernel("cuda", when=_on_gpu, layout=contiguous, scratch=False)
def _(xp, dx, dw, db, grad, input, weight, mean, rstd, *, shape, axes, affine):
    view = on_gpu.View(shape, axes, affine)
    on_gpu.backward(xp, view, dx, dw, db, grad, input, weight, mean, rstd)


def _gradients(
    room, g, needs, input, weight, mean, rstd, shape, axes, affine, weight_spec, bias_spec
):
    view = {"shape": shape, "axes": axes, "affine": affine}
    dx, dw, db = write_over(room, _norm_grad, g, input, weight, mean, rstd, **view)
    return (
        dx if needs[0] else None,
        dw.view(weight_spec.shape) if needs[1] else None,
        db.view(bias_spec.shape) if needs[2] else None,
    )


def _plain(input, weight, bias, shape, axes, affine, eps):
    # The definition: oracle of the kernels, and the path of double backward.
    x = input.reshape(shape)
    x = x - x.mean(axes, True)
    out = x * ((x * x).mean(axes, True) + eps).rsqrt()
    if weight is not None:
        out = out * weight.reshape(affine)
    if bias is not None:
        out = out + bias.reshape(affine)
    return out.reshape(input.shape)


# Layer, group and instance normalization: no one else needs the statistics


def _declare(name, doc, cases):
    def infer(input, weight, bias, *, shape, axes, affine, eps):
        _check_affine(name, input, affine, weight=weight, bias=bias)
        row = _statistic_spec(input, shape, axes)
        return input, row, row

    @op(
        name=f"_{name}",
        infer=infer,
        aux=("mean", "rstd"),
        layout=contiguous,
        flops=per_element(8),
        samples=cases,
    )
    def normalize_view(xp, out, mean, rstd, input, weight, bias, *, shape, axes, affine, eps):
        x, y = input.reshape(shape), out.reshape(shape)
        _statistics(xp, y, mean, rstd, x, axes)
        _invert(xp, rstd, eps)
        xp.subtract(x, mean, out=y)
        xp.multiply(y, rstd, out=y)
        _scale(xp, y, weight, bias, affine)

    normalize_view.__doc__ = normalize_view.op.doc = doc

    # One joint rule: the three share x_hat.
    @normalize_view.vjp("input", "weight", "bias", room=("g", "input"))
    def _(g, needs, input, weight, mean, rstd, shape, axes, affine, weight_spec, bias_spec, room):
        return _gradients(
            room, g, needs, input, weight, mean, rstd, shape, axes, affine, weight_spec, bias_spec
        )

    @normalize_view.kernel("cuda", when=_on_gpu, layout=contiguous)
    def _(xp, out, mean, rstd, input, weight, bias, *, shape, axes, affine, eps):
        view = on_gpu.View(shape, axes, affine)
        on_gpu.forward(xp, view, out, mean, None, rstd, input, weight, bias, eps)

    @normalize_view.composite
    def _(input, weight, bias, *, shape, axes, affine, eps):
        return _plain(input, weight, bias, shape, axes, affine, eps)

    return normalize_view


def _layer_cases(make):
    x = make(4, 6)
    shape = tuple(x.shape)
    one = {"shape": shape, "axes": (1,), "affine": (1, shape[1]), "eps": 1e-5}
    yield (x, make(6), make(6)), one
    one = {"shape": (3, 4), "axes": (1,), "affine": (1, 4), "eps": 1e-3}
    yield (make(3, 2, 2), None, None), one
    yield (make(0, 4), make(4), None), one | {"shape": (0, 4)}


def _group_cases(make):
    x = make(2, 4, 1)
    n, c, length = x.shape
    shape, affine = (n, 2, c // 2, length), (1, 2, c // 2, 1)
    yield (x, make(4), make(4)), {"shape": shape, "axes": (2, 3), "affine": affine, "eps": 1e-5}
    one = {"shape": (2, 1, 3, 1), "axes": (2, 3), "affine": (1, 1, 3, 1), "eps": 1e-3}
    yield (make(2, 3), make(3), None), one
    yield (make(0, 3), make(3), None), one | {"shape": (0, 1, 3, 1)}


def _instance_cases(make):
    x = make(1, 3, 5)
    shape = tuple(x.shape)
    one = {"axes": (2,), "eps": 1e-5}
    yield (x, make(3), make(3)), one | {"shape": shape, "affine": (1, shape[1], 1)}
    one = {"axes": (2, 3), "affine": (1, 2, 1, 1), "eps": 1e-3}
    yield (make(1, 2, 2, 3), None, None), one | {"shape": (1, 2, 2, 3)}
    yield (make(0, 2, 2, 3), None, None), one | {"shape": (0, 2, 2, 3)}


def _rows(input, *_, shape, axes, **__):
    return len(shape) == 2 and axes == (1,) and heavy(input)


def _vector(xp, array, like):
    return xp.empty(0, like.dtype) if array is None else array.reshape(-1)


layer_norm_view = _declare(
    "layer_norm", "Normalize each row to mean 0 and variance 1, then scale and shift.", _layer_cases
)


@layer_norm_view.kernel("cpu", when=_rows, layout=contiguous)
def _(xp, out, mean, rstd, input, weight, bias, *, shape, axes, affine, eps):
    from ...kernels.cpu.normalization.layer_norm import normalize

    w, b = _vector(xp, weight, input), _vector(xp, bias, input)
    x, y = input.reshape(shape), out.reshape(shape)
    normalize(y, mean.reshape(-1), rstd.reshape(-1), x, w, b, eps)


@_norm_grad.kernel(
    "cpu",
    when=lambda grad, *_, **a: _rows(grad, **a),
    layout=contiguous,
    scratch=False,
    overwrites=("grad", "input"),
)
def _(xp, dx, dw, db, grad, input, weight, mean, rstd, *, shape, axes, affine):
    from ...kernels.cpu.normalization.layer_norm import normalize_grad

    g, x, out = grad.reshape(shape), input.reshape(shape), dx.reshape(shape)
    w, m = _vector(xp, weight, input), _vector(xp, mean, input)
    normalize_grad(out, dw, db, g, x, w, m, rstd.reshape(-1))


group_norm_view = _declare(
    "group_norm", "Normalize each group of channels of each example.", _group_cases
)
instance_norm_view = _declare(
    "instance_norm", "Normalize each channel of each example.", _instance_cases
)


def _as_groups(shape):
    # An example's channels are groups of one.
    return shape if len(shape) == 4 else (*shape[:2], 1, shape[2])


def _grouped(input, *_, shape, axes, **__):
    return axes == tuple(range(2, len(shape))) and heavy(input)


@group_norm_view.kernel("cpu", when=_grouped, layout=contiguous)
@instance_norm_view.kernel("cpu", when=_grouped, layout=contiguous)
def _compiled_groups(xp, out, mean, rstd, input, weight, bias, *, shape, axes, affine, eps):
    from ...kernels.cpu.normalization.batch_norm import group_norm

    x, y = input.reshape(_as_groups(shape)), out.reshape(_as_groups(shape))
    w, b = _vector(xp, weight, input), _vector(xp, bias, input)
    group_norm(y, mean.reshape(shape[:2]), rstd.reshape(shape[:2]), x, w, b, eps)


@_norm_grad.kernel(
    "cpu",
    when=lambda grad, input, weight, mean, *rest, **a: mean is not None and _grouped(grad, **a),
    layout=contiguous,
    scratch=False,
    overwrites=("grad", "input"),
)
def _(xp, dx, dw, db, grad, input, weight, mean, rstd, *, shape, axes, affine):
    from ...kernels.cpu.normalization.batch_norm import group_norm_grad

    g, x, out = (a.reshape(_as_groups(shape)) for a in (grad, input, dx))
    w = _vector(xp, weight, input)
    group_norm_grad(out, dw, db, g, x, w, mean.reshape(shape[:2]), rstd.reshape(shape[:2]))


# RMS normalization: not centered


def _rms_infer(input, weight, *, shape, axes, affine, eps):
    _check_affine("rms_norm", input, affine, weight=weight)
    return input, _statistic_spec(input, shape, axes)


def _rms_cases(make):
    x = make(4, 6)
    shape = tuple(x.shape)
    one = {"shape": shape, "axes": (1,), "affine": (1, shape[1]), "eps": 1e-5}
    yield (x, make(6)), one
    one = {"shape": (3, 4), "axes": (1,), "affine": (1, 4), "eps": 1e-3}
    yield (make(3, 2, 2), None), one
    yield (make(0, 4), make(4)), one | {"shape": (0, 4)}


@op(
    infer=_rms_infer,
    aux=("rstd",),
    layout=contiguous,
    flops=per_element(5),
    samples=_rms_cases,
)
def _rms_norm(xp, out, rstd, input, weight, *, shape, axes, affine, eps):
    """Divide each row by its root mean square, then scale."""
    x, y = input.reshape(shape), out.reshape(shape)
    if x.size == 0:
        rstd.fill(0)
        return
    xp.multiply(x, x, out=y)
    average(xp, y, axes, rstd)
    _invert(xp, rstd, eps)
    xp.multiply(x, rstd, out=y)
    _scale(xp, y, weight, None, affine)


@_rms_norm.kernel("cpu", when=_rows, layout=contiguous)
def _(xp, out, rstd, input, weight, *, shape, axes, affine, eps):
    from ...kernels.cpu.normalization.layer_norm import normalize

    w, none = _vector(xp, weight, input), _vector(xp, None, input)
    x, y = input.reshape(shape), out.reshape(shape)
    normalize(y, none, rstd.reshape(-1), x, w, none, eps)


@_rms_norm.kernel("cuda", when=_on_gpu, layout=contiguous)
def _(xp, out, rstd, input, weight, *, shape, axes, affine, eps):
    view = on_gpu.View(shape, axes, affine)
    on_gpu.forward(xp, view, out, None, None, rstd, input, weight, None, eps)


@_rms_norm.vjp("input", "weight", room=("g", "input"))
def _(g, needs, input, weight, rstd, shape, axes, affine, weight_spec, room):
    view = {"shape": shape, "axes": axes, "affine": affine}
    dx, dw, _ = write_over(room, _norm_grad, g, input, weight, None, rstd, **view)
    return dx if needs[0] else None, dw.view(weight_spec.shape) if needs[1] else None


@_rms_norm.composite
def _(input, weight, *, shape, axes, affine, eps):
    x = input.reshape(shape)
    out = x * ((x * x).mean(axes, True) + eps).rsqrt()
    if weight is not None:
        out = out * weight.reshape(affine)
    return out.reshape(input.shape)


# Batch normalization: the mean and the variance are results, for the running averages


def _batch_infer(input, weight, bias, *, shape, axes, affine, eps):
    _check_affine("batch_norm", input, affine, weight=weight, bias=bias)
    row = _statistic_spec(input, shape, axes)
    return input, row, row, row


def _batch_cases(make):
    x = make(4, 3, 1)
    shape = tuple(x.shape)
    base = {"shape": shape, "axes": (0, 2), "affine": (1, shape[1], 1), "eps": 1e-5}
    yield (x, make(3), make(3)), base
    yield (make(2, 3, 4), make(3), make(3)), base | {"shape": (2, 3, 4)}
    one = {"shape": (4, 3), "axes": (0,), "affine": (1, 3), "eps": 1e-3}
    yield (make(4, 3), None, None), one
    yield (make(3, 0), None, make(0)), one | {"shape": (3, 0), "affine": (1, 0)}


@op(
    infer=_batch_infer,
    returns=("out", "mean", "var"),
    aux=("rstd",),
    layout=contiguous,
    flops=per_element(8),
    samples=_batch_cases,
)
def _batch_norm(xp, out, mean, var, rstd, input, weight, bias, *, shape, axes, affine, eps):
    """Normalize each channel over the batch; the mean and the biased variance are results too."""
    x, y = input.reshape(shape), out.reshape(shape)
    _statistics(xp, y, mean, var, x, axes)
    xp.copyto(rstd, var)
    _invert(xp, rstd, eps)
    xp.subtract(x, mean, out=y)
    xp.multiply(y, rstd, out=y)
    _scale(xp, y, weight, bias, affine)


def _planes(input, *_, axes, **__):
    return axes == (0, 2) and heavy(input)


@_batch_norm.kernel("cpu", when=_planes, layout=contiguous)
def _(xp, out, mean, var, rstd, input, weight, bias, *, shape, axes, affine, eps):
    from ...kernels.cpu.normalization.batch_norm import batch_norm

    x, y = input.reshape(shape), out.reshape(shape)
    w, b = _vector(xp, weight, input), _vector(xp, bias, input)
    numbers = mean.reshape(-1), var.reshape(-1), rstd.reshape(-1)
    if x.shape[2] == 1:
        _by_channels("batch_norm", x, y[..., 0], *numbers, x[..., 0], w, b, eps)
        return
    batch_norm(y, *numbers, x, w, b, eps)


def _by_channels(name, x, *arrays):
    # Planes of one element: channels lie side by side.
    from ...kernels.cpu.normalization import batch_norm_2d

    run, channels = getattr(batch_norm_2d, name), x.shape[1]
    parallel_range(run, x.size, -(-channels // batch_norm_2d.TILE), *arrays)


@_norm_grad.kernel(
    "cpu",
    when=lambda grad, input, weight, mean, *rest, **a: mean is not None and _planes(grad, **a),
    layout=contiguous,
    scratch=False,
    overwrites=("grad", "input"),
)
def _(xp, dx, dw, db, grad, input, weight, mean, rstd, *, shape, axes, affine):
    from ...kernels.cpu.normalization.batch_norm import batch_norm_grad

    g, x, out = grad.reshape(shape), input.reshape(shape), dx.reshape(shape)
    w = _vector(xp, weight, input)
    numbers = mean.reshape(-1), rstd.reshape(-1)
    if x.shape[2] == 1:
        planes = out[..., 0], dw, db, g[..., 0], x[..., 0], w
        _by_channels("batch_norm_grad", x, *planes, *numbers)
        return
    batch_norm_grad(out, dw, db, g, x, w, *numbers)


@_batch_norm.kernel("cuda", when=_on_gpu, layout=contiguous)
def _(xp, out, mean, var, rstd, input, weight, bias, *, shape, axes, affine, eps):
    view = on_gpu.View(shape, axes, affine)
    on_gpu.forward(xp, view, out, mean, var, rstd, input, weight, bias, eps)


@_batch_norm.vjp("input", "weight", "bias", room=("g_out", "input"))
def _(
    g_out, g_mean, g_var, needs, input, weight, mean, rstd, shape, axes, affine, weight_spec,
    bias_spec, room,
):  # fmt: skip
    if g_mean is not None or g_var is not None:
        room = None  # below, the input is read again
    if g_out is not None:
        gradients = _gradients(
            room, g_out, needs, input, weight, mean, rstd, shape, axes, affine, weight_spec,
            bias_spec,
        )  # fmt: skip
    else:
        gradients = (None, None, None)
    if not needs[0] or (g_mean is None and g_var is None):
        return gradients
    count = prod(shape[d] for d in axes)  # someone uses the statistics themselves
    through = 0.0 if g_mean is None else g_mean / count
    if g_var is not None:
        through = through + (input.reshape(shape) - mean) * (g_var * (2 / count))
    through = through.expand(shape).reshape(input.shape)
    return (through if gradients[0] is None else gradients[0] + through, *gradients[1:])


@_batch_norm.composite
def _(input, weight, bias, *, shape, axes, affine, eps):
    x = input.reshape(shape)
    mean = x.mean(axes, True)
    centered = x - mean
    out = _plain(input, weight, bias, shape, axes, affine, eps)
    return out, mean, (centered * centered).mean(axes, True)
