"""softmax, log_softmax and softmin. Backward needs only the result.

The forward kernels work inside their result, with one scratch value per row. Their gradients are
ops of their own, which write one array instead of chaining four, and have gradients in turn.
"""

from __future__ import annotations

from math import prod

from ...dtypes import FLOAT, as_dtype, float32
from ...kernels.common.layout import contiguous, worth_compiling
from ...kernels.common.reduce import largest as find_largest
from ...kernels.common.reduce import total
from ...kernels.common.row_blocks import in_blocks, room_specs
from ...kernels.common.schedule import parallel_rows
from ...kernels.cuda import softmax as on_gpu
from ...kernels.cuda.kernel import is_float
from ...spec import Spec
from ..autocast_policy import WIDE_ON_CUDA
from ..overwrite import write_over
from ..reduction.minmax import one_dim
from ..registry import function, op
from ..signatures import per_element


def _row(input, dim):
    # One value per row along dim.
    work = float32 if input.dtype.is_half else input.dtype
    return Spec(tuple(1 if k == dim else n for k, n in enumerate(input.shape)), work)


def _compiled(input, *_, dim):
    return worth_compiling(input) and input.dtype is float32


def _loops():
    # Compiled loops are imported when they are first used.
    from ...kernels.cpu import attention

    return attention


def _halves(input, *others, dim):
    # Rows of halves, which are converted a block at a time.
    return (
        input.dtype.is_half
        and dim == input.ndim - 1
        and all(s.dtype is input.dtype for s in others)
        and worth_compiling(input.like(dtype=float32))
    )


def _rooms(input, *others, dim):
    return room_specs(prod(input.shape[:-1]), input, input, *others)


def _run_blocks(name, out, rooms, *inputs):
    def compute(*rows):
        parallel_rows(getattr(_loops(), name), rows[0].size, len(rows[0]), *rows)

    out, *given = (a.reshape(-1, out.shape[-1]) for a in (out, *inputs))
    in_blocks(compute, [out], given, rooms)


def _run(name, dim, out, lines, *inputs):
    # By rows where they lie together, else by columns, with a line of sums for each matrix.
    shape = out.shape
    if dim == len(shape) - 1:
        rows = [a.reshape(-1, shape[-1]) for a in (out, *inputs)]
        parallel_rows(getattr(_loops(), name), out.size, len(rows[0]), *rows)
        return
    count, columns = prod(shape[:dim]), prod(shape[dim + 1 :])
    cubes = [a.reshape(count, shape[dim], columns) for a in (out, *inputs)]
    lines = [a.reshape(count, columns) for a in lines]
    run = getattr(_loops(), name + "_along")
    parallel_rows(run, out.size, count, cubes[0], *lines, *cubes[1:])


def _softmax_infer(input, *, dim):
    if input.dtype.category != FLOAT:
        raise NotImplementedError(
            f"softmax is not implemented for {input.dtype}: it needs a floating dtype. Pass "
            "dtype=float32, or convert with .to()."
        )
    return input, _row(input, dim)


def _log_softmax_infer(input, *, dim):
    out, row = _softmax_infer(input, dim=dim)
    return out, row, row


def _softmax_samples(make):
    for shape, dim in (((3, 4), 1), ((2, 3, 4), 0), ((2, 3, 4), 1), ((), 0), ((0, 3), 1)):
        yield (make(*shape),), {"dim": dim}


def _pair_infer(incoming, output, *, dim):
    return output, _row(output, dim)


def _pair_samples(make):
    for shape, dim in (((3, 4), 1), ((2, 3, 4), 0), ((0, 3), 1)):
        yield (make(*shape), make(*shape)), {"dim": dim}


@op(
    infer=_softmax_infer,
    scratch=("row",),
    flops=per_element(5),
    samples=_softmax_samples,
    autocast=WIDE_ON_CUDA,
)
def _softmax(xp, out, row, input, *, dim):
    """Softmax along ``dim``: exponentiate and divide by the sum, the maximum subtracted first."""
    if not input.size:
        return
    axis = dim if input.ndim else ()
    find_largest(xp, input, axis, row)
    xp.subtract(input, row, out=out)
    xp.exp(out, out=out)
    total(xp, out, axis, row)
    xp.divide(out, row, out=out)


@_softmax.kernel("cpu", dtypes="half", when=_halves, layout=contiguous, scratch=_rooms)
def _(xp, out, room, other, input, *, dim):
    _run_blocks("softmax", out, [room, other], input)


@_softmax.kernel("cpu", when=_compiled, layout=contiguous)
def _(xp, out, row, input, *, dim):
    _run("softmax", dim, out, [row], input)


@_softmax.kernel("cuda", when=is_float, layout=contiguous, scratch=False)
def _(xp, out, input, *, dim):
    on_gpu.forward(xp, out, input, dim, logarithm=False)


@_softmax.vjp("input", room=("g", "out"))
def _(g, out, dim, room):
    return write_over(room, _softmax_gradient, g, out, dim=dim)


_READ = ("incoming", "output")
_HALF_GRADIENT = {
    "dtypes": "half",
    "when": _halves,
    "layout": contiguous,
    "scratch": _rooms,
    "overwrites": _READ,
}


@op(
    infer=_pair_infer,
    promote="same",
    scratch=("row",),
    flops=per_element(4),
    samples=_pair_samples,
)
def _softmax_gradient(xp, out, row, incoming, output, *, dim):
    """Backward of softmax: ``(incoming - sum(incoming * output)) * output``."""
    axis = dim if output.ndim else ()
    xp.multiply(incoming, output, out=out)
    total(xp, out, axis, row)
    xp.subtract(incoming, row, out=out)
    xp.multiply(out, output, out=out)


@_softmax_gradient.kernel("cpu", **_HALF_GRADIENT)
def _(xp, out, room, other, third, incoming, output, *, dim):
    _run_blocks("softmax_grad", out, [room, other, third], incoming, output)


@_softmax_gradient.kernel("cpu", when=_compiled, layout=contiguous, overwrites=_READ)
def _(xp, out, row, incoming, output, *, dim):
    _run("softmax_grad", dim, out, [row], incoming, output)


@_softmax_gradient.kernel("cuda", when=is_float, layout=contiguous, scratch=False)
def _(xp, out, incoming, output, *, dim):
    on_gpu.backward(xp, out, incoming, output, dim, logarithm=False)


@_softmax_gradient.vjp("incoming")
def _(g, output, dim):
    return _softmax_gradient(g, output, dim=dim)  # the Jacobian is symmetric


@_softmax_gradient.vjp("output")
def _(g, incoming, output, dim):
    rows = dim if output.ndim else None
    centered = incoming - (incoming * output).sum(rows, True)
    return g * centered - incoming * (g * output).sum(rows, True)


@op(
    infer=_log_softmax_infer,
    scratch=("largest", "row"),
    flops=per_element(5),
    samples=_softmax_samples,
    autocast=WIDE_ON_CUDA,
)
def _log_softmax(xp, out, largest, row, input, *, dim):
    """Subtract the logarithm of the sum of exponentials along ``dim``."""
    if not input.size:
        return
    axis = dim if input.ndim else ()
    find_largest(xp, input, axis, largest)
    xp.subtract(input, largest, out=out)
    xp.exp(out, out=out)  # the result is the workspace of its own sum
    total(xp, out, axis, row)
    xp.log(row, out=row)
    xp.subtract(input, largest, out=out)
    xp.subtract(out, row, out=out)


@_log_softmax.kernel("cpu", dtypes="half", when=_halves, layout=contiguous, scratch=_rooms)
def _(xp, out, room, other, input, *, dim):
    _run_blocks("log_softmax", out, [room, other], input)


@_log_softmax.kernel("cpu", when=_compiled, layout=contiguous)
def _(xp, out, largest, row, input, *, dim):
    _run("log_softmax", dim, out, [largest, row], input)


@_log_softmax.kernel("cuda", when=is_float, layout=contiguous, scratch=False)
def _(xp, out, input, *, dim):
    on_gpu.forward(xp, out, input, dim, logarithm=True)


@_log_softmax.vjp("input", room=("g", "out"))
def _(g, out, dim, room):
    return write_over(room, _log_softmax_gradient, g, out, dim=dim)


@op(
    infer=_pair_infer,
    promote="same",
    scratch=("row",),
    flops=per_element(4),
    samples=_pair_samples,
)
def _log_softmax_gradient(xp, out, row, incoming, output, *, dim):
    """Backward of log_softmax: ``incoming - exp(output) * sum(incoming)``."""
    total(xp, incoming, dim if output.ndim else (), row)
    xp.exp(output, out=out)
    xp.multiply(out, row, out=out)
    xp.subtract(incoming, out, out=out)


@_log_softmax_gradient.kernel("cpu", **_HALF_GRADIENT)
def _(xp, out, room, other, third, incoming, output, *, dim):
    _run_blocks("log_softmax_grad", out, [room, other, third], incoming, output)


@_log_softmax_gradient.kernel("cpu", when=_compiled, layout=contiguous, overwrites=_READ)
def _(xp, out, row, incoming, output, *, dim):
    _run("log_softmax_grad", dim, out, [row], incoming, output)


@_log_softmax_gradient.kernel("cuda", when=is_float, layout=contiguous, scratch=False)
def _(xp, out, incoming, output, *, dim):
    on_gpu.backward(xp, out, incoming, output, dim, logarithm=True)


@_log_softmax_gradient.vjp("incoming")
def _(g, output, dim):
    return g - (g * output.exp()).sum(dim if output.ndim else None, True)


@_log_softmax_gradient.vjp("output")
def _(g, incoming, output, dim):
    return -g * output.exp() * incoming.sum(dim if output.ndim else None, True)


def _prepared(name, input, dim, dtype):
    if dtype is not None and as_dtype(dtype) is not input.dtype:
        input = input.to(dtype)
    return input, one_dim(name, dim, input.ndim)


@function(method=True)
def softmax(input, dim, dtype=None, *, out=None):
    """Apply the softmax along ``dim``: ``exp(x) / sum(exp(x))``.

    Args:
        input: Scores, floating point, any shape.
        dim: Along which the result adds up to 1.
        dtype: Convert to this dtype first.
        out: Where to write the result.

    Returns:
        Tensor of the same shape. A row of which all scores are -inf is NaN.

    Memory:
        Keeps the result.
    """
    input, d = _prepared("softmax", input, dim, dtype)
    return _softmax(input, dim=d, out=out)


@function(method=True)
def log_softmax(input, dim, dtype=None, *, out=None):
    """Apply the logarithm of the softmax along ``dim``, without overflow.

    Args:
        input: Scores, floating point, any shape.
        dim: Along which the exponentials add up to 1.
        dtype: Convert to this dtype first.
        out: Where to write the result.

    Memory:
        Keeps the result.
    """
    input, d = _prepared("log_softmax", input, dim, dtype)
    return _log_softmax(input, dim=d, out=out)


@function()
def softmin(input, dim, dtype=None):
    """Apply the softmax to ``-input`` along ``dim``.

    Memory:
        Keeps the result.
    """
    return softmax(-input, dim, dtype)
