"""Normalization: over the last dimensions, the batch, groups of channels, or each channel.

Layer, group, instance and batch normalization differ only in which elements share a mean. Each is
here one view of the input (``shape``), the axes of that view that are averaged over (``axes``) and
the shape in which weight and bias meet it (``affine``); kernels and gradients are written once.

A node keeps the input, the weight, and two numbers per average: the mean and the reciprocal
standard deviation. What is normalized is computed again in backward from these.
"""

from __future__ import annotations

from math import prod

from ..autograd.modes import no_grad
from ..dtypes import finfo, float32
from ..spec import Spec
from .convolution import contiguous, worth_compiling
from .pooling import avg_pool
from .registry import function, op, per_element

# Kernels on the view: x, out, g and dx have its shape; mean and rstd are 1 along the axes


def _statistics(xp, work, mean, rstd, x, axes) -> None:
    if x.size == 0:
        mean.fill(0)
        rstd.fill(0)
        return
    xp.mean(x, axis=axes, keepdims=True, out=mean)
    xp.subtract(x, mean, out=work)
    xp.multiply(work, work, out=work)  # `out` is its own workspace, so no temporary is born here
    xp.mean(work, axis=axes, keepdims=True, out=rstd)


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
    name="_norm_grad", method=False, public=False, infer=_grad_infer, returns=("dx", "dw", "db"),
    scratch=("work", "row"), half="float32", layout=contiguous, flops=per_element(12),
    samples=_grad_cases,
)  # fmt: skip
def norm_grad(
    xp, dx, dw, db, work, row, grad, input, weight, mean, rstd, *, shape, axes, affine
):  # fmt: skip
    """Gradients of a normalization in its input, weight and bias; ``mean`` None: not centered."""
    x, g, out = input.reshape(shape), grad.reshape(shape), dx.reshape(shape)
    summed = tuple(d for d, n in enumerate(affine) if n != shape[d] or n == 1)
    if x.size == 0:
        dw.fill(0)
        db.fill(0)
        return
    xp.sum(g, axis=summed, keepdims=True, out=db.reshape(affine))
    if mean is not None:
        xp.subtract(x, mean, out=work)
        xp.multiply(work, rstd, out=work)  # what the forward pass made
    else:
        xp.multiply(x, rstd, out=work)
    xp.multiply(g, work, out=out)
    if weight is not None:
        xp.sum(out, axis=summed, keepdims=True, out=dw.reshape(affine))
        xp.multiply(out, weight.reshape(affine), out=out)
    xp.mean(out, axis=axes, keepdims=True, out=row)
    xp.multiply(work, row, out=work)
    if weight is not None:
        xp.multiply(g, weight.reshape(affine), out=out)
    else:
        xp.copyto(out, g)
    if mean is not None:
        xp.mean(out, axis=axes, keepdims=True, out=row)
        xp.subtract(out, row, out=out)
    xp.subtract(out, work, out=out)
    xp.multiply(out, rstd, out=out)


def _gradients(g, needs, input, weight, mean, rstd, shape, axes, affine, weight_spec, bias_spec):
    dx, dw, db = norm_grad(g, input, weight, mean, rstd, shape, axes, affine)
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


# Layer, group and instance normalization: the statistics are nobody else's business


def _declare(name, doc, cases):
    def infer(input, weight, bias, *, shape, axes, affine, eps):
        _check_affine(name, input, affine, weight=weight, bias=bias)
        row = _statistic_spec(input, shape, axes)
        return input, row, row

    @op(
        name=f"_{name}", method=False, public=False, infer=infer, aux=("mean", "rstd"),
        half="float32", layout=contiguous, flops=per_element(8), samples=cases,
    )  # fmt: skip
    def normalize_view(
        xp, out, mean, rstd, input, weight, bias, *, shape, axes, affine, eps
    ):  # fmt: skip
        x, y = input.reshape(shape), out.reshape(shape)
        _statistics(xp, y, mean, rstd, x, axes)
        _invert(xp, rstd, eps)
        xp.subtract(x, mean, out=y)
        xp.multiply(y, rstd, out=y)
        _scale(xp, y, weight, bias, affine)

    normalize_view.__doc__ = normalize_view.op.doc = doc

    @normalize_view.vjp("input", "weight", "bias")  # one joint rule: the three share x_hat
    def _(g, needs, input, weight, mean, rstd, shape, axes, affine, weight_spec, bias_spec):
        return _gradients(
            g, needs, input, weight, mean, rstd, shape, axes, affine, weight_spec, bias_spec
        )

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
    one = {"shape": (2, 1, 3), "axes": (2,), "affine": (1, 1, 3), "eps": 1e-3}
    yield (make(2, 3), make(3), None), one
    yield (make(0, 3), make(3), None), one | {"shape": (0, 1, 3)}


def _instance_cases(make):
    x = make(1, 3, 5)
    shape = tuple(x.shape)
    one = {"axes": (2,), "eps": 1e-5}
    yield (x, make(3), make(3)), one | {"shape": shape, "affine": (1, shape[1], 1)}
    one = {"axes": (2, 3), "affine": (1, 2, 1, 1), "eps": 1e-3}
    yield (make(1, 2, 2, 3), None, None), one | {"shape": (1, 2, 2, 3)}
    yield (make(0, 2, 2, 3), None, None), one | {"shape": (0, 2, 2, 3)}


def _rows(input, *_, shape, axes, **__):
    return len(shape) == 2 and axes == (1,) and worth_compiling(input)


def _vector(xp, array, like):
    return xp.empty(0, like.dtype) if array is None else array.reshape(-1)


layer_norm_view = _declare(
    "layer_norm", "Normalize each row to mean 0 and variance 1, then scale and shift.", _layer_cases
)


@layer_norm_view.kernel("cpu", when=_rows, layout=contiguous)
def _(xp, out, mean, rstd, input, weight, bias, *, shape, axes, affine, eps):
    from ..kernels.cpu import rows

    w, b = _vector(xp, weight, input), _vector(xp, bias, input)
    x, y = input.reshape(shape), out.reshape(shape)
    rows.layer_norm(y, mean.reshape(-1), rstd.reshape(-1), x, w, b, eps)


@norm_grad.kernel(
    "cpu",
    when=lambda grad, input, weight, mean, *rest, **a: mean is not None and _rows(grad, **a),
    layout=contiguous,
)
def _(xp, dx, dw, db, work, row, grad, input, weight, mean, rstd, *, shape, axes, affine):
    from ..kernels.cpu import rows

    g, x, out = grad.reshape(shape), input.reshape(shape), dx.reshape(shape)
    w = _vector(xp, weight, input)
    rows.layer_norm_grad(out, dw, db, g, x, w, mean.reshape(-1), rstd.reshape(-1))


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
    return axes == tuple(range(2, len(shape))) and worth_compiling(input)


@group_norm_view.kernel("cpu", when=_grouped, layout=contiguous)
@instance_norm_view.kernel("cpu", when=_grouped, layout=contiguous)
def _compiled_groups(xp, out, mean, rstd, input, weight, bias, *, shape, axes, affine, eps):
    from ..kernels.cpu.planes import group_norm

    x, y = input.reshape(_as_groups(shape)), out.reshape(_as_groups(shape))
    w, b = _vector(xp, weight, input), _vector(xp, bias, input)
    group_norm(y, mean.reshape(shape[:2]), rstd.reshape(shape[:2]), x, w, b, eps)


@norm_grad.kernel(
    "cpu",
    when=lambda grad, input, weight, mean, *rest, **a: mean is not None and _grouped(grad, **a),
    layout=contiguous,
)
def _(xp, dx, dw, db, work, row, grad, input, weight, mean, rstd, *, shape, axes, affine):
    from ..kernels.cpu.planes import group_norm_grad

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
    name="_rms_norm", method=False, public=False, infer=_rms_infer, aux=("rstd",),
    half="float32", layout=contiguous, flops=per_element(5), samples=_rms_cases,
)  # fmt: skip
def rms_norm_view(xp, out, rstd, input, weight, *, shape, axes, affine, eps):
    """Divide each row by its root mean square, then scale."""
    x, y = input.reshape(shape), out.reshape(shape)
    if x.size == 0:
        rstd.fill(0)
        return
    xp.multiply(x, x, out=y)
    xp.mean(y, axis=axes, keepdims=True, out=rstd)
    _invert(xp, rstd, eps)
    xp.multiply(x, rstd, out=y)
    _scale(xp, y, weight, None, affine)


@rms_norm_view.vjp("input", "weight")
def _(g, needs, input, weight, rstd, shape, axes, affine, weight_spec):
    dx, dw, _ = norm_grad(g, input, weight, None, rstd, shape, axes, affine)
    return dx if needs[0] else None, dw.view(weight_spec.shape) if needs[1] else None


@rms_norm_view.composite
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
    one = {"shape": shape, "axes": (0, 2), "affine": (1, shape[1], 1), "eps": 1e-5}
    yield (x, make(3), make(3)), one
    one = {"shape": (4, 3), "axes": (0,), "affine": (1, 3), "eps": 1e-3}
    yield (make(4, 3), None, None), one
    yield (make(3, 0), None, make(0)), one | {"shape": (3, 0), "affine": (1, 0)}


@op(
    name="_batch_norm", method=False, public=False, infer=_batch_infer,
    returns=("out", "mean", "var"), aux=("rstd",), half="float32", layout=contiguous,
    flops=per_element(8), samples=_batch_cases,
)  # fmt: skip
def batch_norm_view(
    xp, out, mean, var, rstd, input, weight, bias, *, shape, axes, affine, eps
):  # fmt: skip
    """Normalize each channel over the batch; the mean and the biased variance are results too."""
    x, y = input.reshape(shape), out.reshape(shape)
    _statistics(xp, y, mean, var, x, axes)
    xp.copyto(rstd, var)
    _invert(xp, rstd, eps)
    xp.subtract(x, mean, out=y)
    xp.multiply(y, rstd, out=y)
    _scale(xp, y, weight, bias, affine)


def _planes(input, *_, axes, **__):
    return axes == (0, 2) and worth_compiling(input)


@batch_norm_view.kernel("cpu", when=_planes, layout=contiguous)
def _(xp, out, mean, var, rstd, input, weight, bias, *, shape, axes, affine, eps):
    from ..kernels.cpu.planes import batch_norm

    x, y = input.reshape(shape), out.reshape(shape)
    w, b = _vector(xp, weight, input), _vector(xp, bias, input)
    batch_norm(y, mean.reshape(-1), var.reshape(-1), rstd.reshape(-1), x, w, b, eps)


@norm_grad.kernel(
    "cpu",
    when=lambda grad, input, weight, mean, *rest, **a: mean is not None and _planes(grad, **a),
    layout=contiguous,
)
def _(xp, dx, dw, db, work, row, grad, input, weight, mean, rstd, *, shape, axes, affine):
    from ..kernels.cpu.planes import batch_norm_grad

    g, x, out = grad.reshape(shape), input.reshape(shape), dx.reshape(shape)
    w = _vector(xp, weight, input)
    batch_norm_grad(out, dw, db, g, x, w, mean.reshape(-1), rstd.reshape(-1))


@batch_norm_view.vjp("input", "weight", "bias")
def _(
    g_out, g_mean, g_var, needs, input, weight, mean, rstd, shape, axes, affine, weight_spec,
    bias_spec,
):  # fmt: skip
    if g_out is not None:
        gradients = _gradients(
            g_out, needs, input, weight, mean, rstd, shape, axes, affine, weight_spec, bias_spec
        )
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


@batch_norm_view.composite
def _(input, weight, bias, *, shape, axes, affine, eps):
    x = input.reshape(shape)
    mean = x.mean(axes, True)
    centered = x - mean
    out = _plain(input, weight, bias, shape, axes, affine, eps)
    return out, mean, (centered * centered).mean(axes, True)


# The public functions


@function()
def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    """Normalize the last dimensions to mean 0 and variance 1, then scale and shift.

    Args:
        input: (*, normalized_shape).
        normalized_shape: Sizes of the last dimensions, which are averaged over.
        weight: Of that shape, or None.
        bias: Of that shape, or None.
        eps: Added to the variance.
        cudnn_enable: Accepted and ignored.

    Returns:
        Tensor of the shape of ``input``.

    Memory:
        Keeps input, weight, and two numbers per row.

    Source:
        Ba, Kiros, Hinton: "Layer Normalization", 2016.
    """
    wanted = _normalized("layer_norm", input, normalized_shape, weight=weight, bias=bias)
    n = prod(wanted)
    rows = prod(input.shape[: input.ndim - len(wanted)])
    return layer_norm_view(input, weight, bias, (rows, n), (1,), (1, n), eps)


@function()
def rms_norm(input, normalized_shape, weight=None, eps=None):
    """Divide the last dimensions by their root mean square, then scale.

    Args:
        input: (*, normalized_shape).
        normalized_shape: Sizes of the last dimensions, which are averaged over.
        weight: Of that shape, or None.
        eps: Added to the mean square; None means the machine epsilon of the dtype.

    Returns:
        Tensor of the shape of ``input``.

    Memory:
        Keeps input, weight, and one number per row.

    Source:
        Zhang, Sennrich: "Root Mean Square Layer Normalization", 2019.
    """
    wanted = _normalized("rms_norm", input, normalized_shape, weight=weight)
    n = prod(wanted)
    rows = prod(input.shape[: input.ndim - len(wanted)])
    if eps is None:
        eps = finfo(input.dtype).eps
    return rms_norm_view(input, weight, (rows, n), (1,), (1, n), eps)


def _normalized(name, input, normalized_shape, **values):
    wanted = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not wanted:
        raise RuntimeError(
            f"{name}: Expected normalized_shape to be at least 1-dimensional; got (). Pass the "
            "sizes of the last dimensions."
        )
    for which, value in values.items():
        if value is not None and tuple(value.shape) != wanted:
            raise RuntimeError(
                f"{name}: Expected {which} to be of same shape as normalized_shape {wanted}; got "
                f"{tuple(value.shape)}. Reshape it."
            )
    if tuple(input.shape[-len(wanted) :]) != wanted:
        raise RuntimeError(
            f"{name}: Given normalized_shape={list(wanted)}, expected input with shape "
            f"[*, {', '.join(map(str, wanted))}], but got input of size {list(input.shape)}. Pass "
            "the sizes of its last dimensions."
        )
    return wanted


@function()
def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True):
    """Normalize each group of channels of each example, then scale and shift per channel.

    Args:
        input: (N, C, *).
        num_groups: Groups that the C channels are divided into.
        weight: (C,), or None.
        bias: (C,), or None.
        eps: Added to the variance.
        cudnn_enabled: Accepted and ignored.

    Returns:
        Tensor of the shape of ``input``.

    Memory:
        Keeps input, weight, and two numbers per group of each example.

    Source:
        Wu, He: "Group Normalization", 2018.
    """
    if input.ndim < 2:
        raise RuntimeError(
            f"group_norm: Expected at least 2 dimensions for input tensor but received "
            f"{input.ndim}. Pass (N, C, *)."
        )
    n, c = input.shape[:2]
    if num_groups < 1 or c % num_groups:
        raise RuntimeError(
            f"group_norm: Expected number of channels in input to be divisible by num_groups, but "
            f"got input of shape {list(input.shape)} and num_groups={num_groups}."
        )
    shape = (n, num_groups, c // num_groups, prod(input.shape[2:]))
    affine = (1, num_groups, c // num_groups, 1)
    return group_norm_view(input, weight, bias, shape, (2, 3), affine, eps)


@function(public=False)
def batch_norm(
    input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1,
    eps=1e-5,
):  # fmt: skip
    """Normalize each channel over the batch, or by running averages.

    Args:
        input: (N, C, *).
        running_mean: (C,), or None; updated in place when training.
        running_var: (C,), or None; updated in place when training, with the unbiased variance.
        weight: (C,), or None.
        bias: (C,), or None.
        training: Use the batch's own statistics.
        momentum: Share of the new statistics in the running ones.
        eps: Added to the variance.

    Returns:
        Tensor of the shape of ``input``.

    Raises:
        ValueError: Training on a single value per channel.

    Memory:
        Keeps input, weight, and two numbers per channel.

    Source:
        Ioffe, Szegedy: "Batch Normalization", 2015.
    """
    if input.ndim < 2:
        raise ValueError(f"batch_norm: expected (N, C, *) input; got {tuple(input.shape)}.")
    channels = input.shape[1]
    for which, value in (("running_mean", running_mean), ("running_var", running_var)):
        if value is not None and value.numel() != channels:
            raise RuntimeError(
                f"batch_norm: {which} should contain {channels} elements not {value.numel()}. "
                "Make it for the number of channels of input."
            )
    if not training:
        if running_mean is None or running_var is None:
            raise RuntimeError(
                "batch_norm: Expected running_mean and running_var to be defined when "
                "training=False. Pass both, or training=True."
            )
        return _by_running(input, running_mean, running_var, weight, bias, eps)
    count = input.numel() // max(channels, 1)
    if count == 1:
        raise ValueError(
            "Expected more than 1 value per channel when training, got input size "
            f"{list(input.shape)}. Use a larger batch, or training=False."
        )
    shape = (input.shape[0], channels, prod(input.shape[2:]))
    out, mean, var = batch_norm_view(
        input, weight, bias, shape, (0, 2), (1, channels, 1), eps
    )  # fmt: skip
    _update(running_mean, running_var, mean, var, count, momentum)
    return out


def _by_running(input, running_mean, running_var, weight, bias, eps):
    channels = (-1, *[1] * (input.ndim - 2))
    scale = (running_var + eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    shift = -running_mean * scale
    if bias is not None:
        shift = shift + bias
    out = input * scale.view(channels) + shift.view(channels)
    return out if out.dtype is input.dtype else out.to(input.dtype)


def _update(running_mean, running_var, mean, var, count, momentum):
    m = 0.0 if momentum is None else momentum
    with no_grad():
        if running_mean is not None:
            running_mean.mul_(1 - m).add_(mean.detach().view(-1), alpha=m)
        if running_var is not None:
            unbiased = count / max(count - 1, 1)
            running_var.mul_(1 - m).add_(var.detach().view(-1), alpha=m * unbiased)


@function(public=False)
def instance_norm(
    input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True,
    momentum=0.1, eps=1e-5,
):  # fmt: skip
    """Normalize each channel of each example by itself, or by running averages.

    Args:
        input: (N, C, *).
        running_mean: (C,), or None; updated in place with the average over the batch.
        running_var: (C,), or None; likewise, with the unbiased variances.
        weight: (C,), or None.
        bias: (C,), or None.
        use_input_stats: Normalize by the input's own statistics.
        momentum: Share of the new statistics in the running ones.
        eps: Added to the variance.

    Returns:
        Tensor of the shape of ``input``.

    Source:
        Ulyanov, Vedaldi, Lempitsky: "Instance Normalization", 2016.
    """
    n, channels = input.shape[:2]
    count = prod(input.shape[2:])
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise RuntimeError(
                "instance_norm: Expected running_mean and running_var to be defined when "
                "use_input_stats=False. Pass both."
            )
        return _by_running(input, running_mean, running_var, weight, bias, eps)
    if count == 1:
        raise ValueError(
            "Expected more than 1 spatial element when training, got input size "
            f"{list(input.shape)}. Use a larger input."
        )
    if running_mean is not None or running_var is not None:
        with no_grad():
            x = input.detach().reshape(n, channels, count)
            var, mean = x.var(-1, correction=0), x.mean(-1)
            _update(running_mean, running_var, mean.mean(0), var.mean(0), count, momentum)
    shape, affine = (n, channels, count), (1, channels, 1)
    return instance_norm_view(input, weight, bias, shape, (2,), affine, eps)


@function(public=False)
def local_response_norm(input, size, alpha=1e-4, beta=0.75, k=1.0):
    """Divide each element by a power of the mean square of its channel's neighbors.

    Args:
        input: (N, C, *).
        size: Number of neighboring channels, this one included.
        alpha: Factor of the mean square.
        beta: Exponent.
        k: Added to the mean square.

    Returns:
        Tensor of the shape of ``input``.
    """
    if input.ndim < 3:
        raise ValueError(
            f"Expected 3D or higher dimensionality input (got {input.ndim} dimensions)."
        )
    n, c = input.shape[:2]
    squares = (input * input).reshape(n, 1, c, -1)
    # Zeros before and after the channels: windows of `size` that count them.
    before = size // 2
    padded = _pad_channels(squares, before, (size - 1) // 2)
    mean = avg_pool(padded, (size, 1), (1, 1), (0, 0), False, True, None)
    return input / (mean * alpha + k).pow(beta).reshape(input.shape)


def _pad_channels(x, before, after):
    from . import pad

    return pad(x, (0, 0, before, after))


@function(public=False)
def normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    """Divide by the ``p``-norm along ``dim``: ``input / max(norm, eps)``.

    Args:
        input: Any shape.
        p: Exponent of the norm.
        dim: Dimension, or several, whose norm becomes 1.
        eps: The least divisor.
        out: Where to leave the result.

    Returns:
        Tensor of the shape of ``input``.
    """
    from . import div

    norm = input.norm(p, dim, keepdim=True).clamp_min(eps)
    return div(input, norm, out=out) if out is not None else input / norm
