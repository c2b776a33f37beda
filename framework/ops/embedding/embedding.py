"""Embedding: row lookup in a table, and gradients summed per row.

Gradients of a row that occurs several times are added in the order of occurrence, so a repeated
run gives the same bits.
"""

from __future__ import annotations

from math import inf

import numpy as np

from ...dtypes import INT, float32, int64
from ...kernels.common.layout import contiguous, tiles, worth_compiling
from ...kernels.common.scatter_add import scatter_add
from ...kernels.cuda.embedding import add_rows as add_rows_on_gpu
from ...kernels.cuda.kernel import is_float
from ...kernels.runtime import thresholds
from ...modes import no_grad
from ...spec import Spec
from ..autocast_policy import WIDE_ON_CUDA
from ..creation.from_data import tensor
from ..indexing.index_put import take
from ..registry import function, op
from ..sparse.gradients import row_gradient

_TILE = 1 << 12  # numbers at a time on the host
_TILE_ROWS = 256  # rows of the table at a time on the host


def _check_index(index):
    if index.dtype.category != INT:
        raise RuntimeError(
            f"embedding: Expected tensor for argument 'indices' to have an integer dtype; got "
            f"{index.dtype}. Convert it with .to(lowtide.int64)."
        )


def _embedding_infer(weight, index, *, padding, sparse=False):
    if weight.ndim != 2:
        raise RuntimeError(
            f"embedding: 'weight' must be 2-D; got {tuple(weight.shape)}. Pass (rows, features)."
        )
    _check_index(index)
    return Spec((*index.shape, weight.shape[1]), weight.dtype)


def _numbers(values):
    return tensor(values)


def _embedding_samples(make):
    yield (make(5, 3), _numbers([[0, 4, 4], [1, 0, 2]])), {"padding": None}
    yield (make(5, 3), _numbers([0, 4, 4])), {"padding": 3}
    yield (make(5, 3), _numbers([[0, 4, 4], [1, 0, 2]])), {"padding": None, "sparse": True}
    yield (make(5, 3), _numbers(3)), {"padding": None}
    yield (make(5, 3), _numbers([[]]).to(int64)), {"padding": None}


@op(
    infer=_embedding_infer,
    layout=contiguous,
    half="exact",
    samples=_embedding_samples,
    flops=lambda *_, **__: 0,
)
def _embedding(xp, out, weight, index, *, padding, sparse=False):
    """Look up the row of ``weight`` for each index; row ``padding`` gets no gradient.

    ``sparse`` makes the gradient a sparse tensor: indices and rows, nothing for the other rows.
    """
    xp.take(weight, index, axis=0, out=out)


@_embedding.kernel("cpu")
def _(xp, out, weight, index, *, padding, sparse):
    if index.size:
        low, high = index.min(), index.max()
        if low < 0 or high >= weight.shape[0]:
            raise IndexError(
                f"embedding: index out of range in self: indices are in [{low}, {high}], and "
                f"weight has rows 0 to {weight.shape[0] - 1}. Use a larger table, or map unknown "
                "indices first."
            )
    # "clip" writes straight into `out`; checking as it goes would go through a buffer.
    xp.take(weight, index, axis=0, out=out, mode="clip")


@_embedding.vjp("weight")
def _(g, index, weight_spec, padding, sparse):
    if sparse and g._spec.runs is None:  # inside vmap gradients are dense
        return row_gradient(g, index, weight_spec.shape[0], padding)
    return _embedding_grad(g, index, weight_spec.shape[0], padding)


def _row_sums_samples(make):
    g = make(3, 2)
    numbers = _numbers([k * k % 5 for k in range(g.shape[0])])
    yield (g, numbers), {"rows": 5, "padding": None}
    yield (make(2, 2, 3), _numbers([[0, 4], [4, 1]])), {"rows": 6, "padding": 4}
    yield (make(3), _numbers(1)), {"rows": 2, "padding": None}
    yield (make(0, 3), _numbers([]).to(int64)), {"rows": 2, "padding": None}


@op(
    layout=contiguous,
    infer=lambda grad, index, *, rows, padding: grad.like((rows, grad.shape[-1])),
    flops=lambda grad, index, **_: grad.numel,
    samples=_row_sums_samples,
)
def _embedding_grad(xp, out, grad, index, *, rows, padding):
    """Backward of lookup: add each gradient to its row; row ``padding`` stays zero."""
    out.fill(0)
    xp.add.at(out, index.reshape(-1), grad.reshape(index.size, out.shape[1]))
    if padding is not None:
        out[padding].fill(0)


@_embedding_grad.kernel("cpu", when=worth_compiling, layout=contiguous)
def _(xp, out, grad, index, *, rows, padding):
    from ...kernels.cpu.normalization.layer_norm import add_rows

    out.fill(0)
    add_rows(out, grad.reshape(index.size, out.shape[1]), index.reshape(-1))
    if padding is not None:
        out[padding].fill(0)


@_embedding_grad.kernel("cuda", when=lambda grad, index, **_: is_float(grad), layout=contiguous)
def _(xp, out, grad, index, *, rows, padding):
    add_rows_on_gpu(xp, out, grad.reshape(index.size, out.shape[1]), index.reshape(-1))
    if padding is not None:
        out[padding].fill(0)


@_embedding_grad.vjp("grad")
def _(g, index, grad_spec, padding):
    rows = _embedding(g, index, padding)
    if padding is None:
        return rows
    return rows * index.ne(padding).unsqueeze(-1).to(grad_spec.dtype)


def _share_samples(make):
    x = make(3)
    yield (_numbers([k * k % 5 for k in range(x.numel())]),), {"rows": 5, "dtype": x.dtype}
    yield (_numbers(1),), {"rows": 2, "dtype": float32}
    yield (_numbers([]).to(int64),), {"rows": 5, "dtype": x.dtype}


@op(
    infer=lambda index, *, rows, dtype: (index.like(dtype=dtype), Spec((rows,), int64)),
    scratch=("counts",),
    layout=contiguous,
    half="exact",
    flops=lambda index, **_: 2 * index.numel,
    samples=_share_samples,
)
def _index_shares(xp, out, counts, index, *, rows, dtype):
    """Return one over the frequency of each index."""
    counts.fill(0)
    flat, target = index.reshape(-1), out.reshape(-1)
    scatter_add(xp, counts, flat, 1)
    for here in tiles(flat.shape[0], _TILE if xp is np else thresholds.tile_elements(False)):
        xp.true_divide(1.0, counts[flat[here]], out=target[here], casting="unsafe")


def _frequency_samples(make):
    x = make(3, 2)
    yield (
        (x, _numbers(list(range(x.shape[0])))),
        {"rows": x.shape[0]},
    )  # each once: all shares are 1
    yield (make(2), _numbers(1)), {"rows": 2}
    yield (make(0, 3), _numbers([]).to(int64)), {"rows": 4}


@op(
    infer=lambda input, index, *, rows: input,
    half="exact",
    flops=lambda *_, **__: 0,
    samples=_frequency_samples,
)
def _scale_gradient(xp, out, input, index, *, rows):
    """The identity, whose gradient is divided by the frequency of each row of ``index``."""
    xp.copyto(out, input)


@_scale_gradient.vjp("input")
def _(g, index, rows):
    return g * _index_shares(index, rows, g.dtype).unsqueeze(-1)


def _renormalize_samples(make):
    yield (make(5, 3), _numbers([0, 4, 4])), {"max_norm": 1.0, "norm_type": 2.0}
    yield (make(5, 3), _numbers(3)), {"max_norm": 0.7, "norm_type": 1.0}
    yield (make(5, 3), _numbers([]).to(int64)), {"max_norm": 0.7, "norm_type": 1.0}


def _renormalize_infer(weight, index, *, max_norm, norm_type):
    most = _TILE_ROWS
    if not weight.on_host:
        most = max(1, thresholds.tile_elements(False) // max(1, weight.shape[1]))
    tile = weight.like((min(most, index.numel), weight.shape[1]))
    return weight, tile, tile


@op(
    inplace="_renormalize_rows_",
    infer=_renormalize_infer,
    scratch=("rows", "powers"),
    flops=lambda weight, index, **_: 4 * index.numel * weight.shape[1],
    samples=_renormalize_samples,
    autocast=WIDE_ON_CUDA,
)
def _renormalize_rows(xp, out, rows, powers, weight, index, *, max_norm, norm_type):
    """Renormalize the rows that ``index`` names to a norm of at most ``max_norm``."""
    if out is not weight:
        xp.copyto(out, weight)
    flat = index.reshape(-1)
    for some in tiles(flat.shape[0], max(1, rows.shape[0])):
        # A row that comes again in another tile is short enough by then.
        here = xp.unique(flat[some])
        tile, work = rows[: here.shape[0]], powers[: here.shape[0]]
        take(xp, out, here, 0, tile)
        xp.absolute(tile, out=work)
        if norm_type == inf:
            size = xp.max(work, axis=1)
        else:
            xp.power(work, norm_type, out=work)
            size = xp.sum(work, axis=1) ** (1 / norm_type)
        shrink = xp.where(size > max_norm, max_norm / (size + 1e-7), 1).astype(tile.dtype)
        xp.multiply(tile, shrink[:, None], out=tile)
        out[here] = tile


@function(public=False)
def embedding(
    input,
    weight,
    padding_idx=None,
    max_norm=None,
    norm_type=2.0,
    scale_grad_by_freq=False,
    sparse=False,
):
    """Look up the row of ``weight`` for each index in ``input``.

    Args:
        input: Row numbers of any shape (*), an integer dtype.
        weight: (rows, features).
        padding_idx: A row that gets no gradient.
        max_norm: Rows that are looked up are first shrunk, in place, to at most this norm.
        norm_type: Which norm.
        scale_grad_by_freq: Divide the gradient of each row by how often it occurs.
        sparse: The gradient of ``weight`` is a sparse tensor: one entry for each look-up, 8 bytes
            and a row, where a dense one has all rows. ``SparseAdam``, ``SGD`` and ``Adagrad`` take
            it.

    Returns:
        Tensor (*, features).

    Raises:
        IndexError: A number is not a row (on the CPU).

    Memory:
        Keeps ``input``.
    """
    if weight.ndim != 2:
        raise RuntimeError(
            f"embedding: 'weight' must be 2-D, (rows, features); got {tuple(weight.shape)}."
        )
    rows = weight.shape[0]
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise AssertionError(
                f"embedding: Padding_idx must be within num_embeddings: {padding_idx} is not in "
                f"[-{rows}, {rows - 1}]."
            )
        padding_idx %= rows
    if max_norm is not None and weight.numel():
        with no_grad():
            weight._renormalize_rows_(input, float(max_norm), float(norm_type))
    out = _embedding(weight, input, padding_idx, bool(sparse))
    if scale_grad_by_freq:
        out = _scale_gradient(out, input, rows)
    return out
