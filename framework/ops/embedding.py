"""Embedding: rows of a table by number, and the sum of gradients for each row.

Gradients of a row that occurs several times are added in the order of occurrence, so a repeated
run gives the same bits.
"""

from __future__ import annotations

from ..autograd.modes import no_grad
from ..dtypes import INT
from ..spec import Spec
from .convolution import contiguous, worth_compiling
from .registry import function, op


def _check_index(index):
    if index.dtype.category != INT:
        raise RuntimeError(
            f"embedding: Expected tensor for argument 'indices' to have an integer dtype; got "
            f"{index.dtype}. Convert it with .to(lowtide.int64)."
        )


def _embedding_infer(weight, index, *, padding):
    if weight.ndim != 2:
        raise RuntimeError(
            f"embedding: 'weight' must be 2-D; got {tuple(weight.shape)}. Pass (rows, features)."
        )
    _check_index(index)
    return Spec((*index.shape, weight.shape[1]), weight.dtype)


def _numbers(values):
    from .creation import tensor

    return tensor(values)


def _embedding_samples(make):
    yield (make(5, 3), _numbers([[0, 4, 4], [1, 0, 2]])), {"padding": None}
    yield (make(5, 3), _numbers([0, 4, 4])), {"padding": 3}
    yield (make(5, 3), _numbers(3)), {"padding": None}


@op(
    name="_embedding", method=False, public=False, infer=_embedding_infer, layout=contiguous,
    samples=_embedding_samples, flops=lambda *_, **__: 0,
)  # fmt: skip
def lookup(xp, out, weight, index, *, padding):
    """The row of ``weight`` for each number; row ``padding`` gets no gradient."""
    xp.take(weight, index, axis=0, out=out)


@lookup.kernel("cpu")
def _(xp, out, weight, index, *, padding):
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


@lookup.vjp("weight")
def _(g, index, weight_spec, padding):
    return row_sums(g, index, weight_spec.shape[0], padding)


def _row_sums_samples(make):
    g = make(3, 2)
    numbers = _numbers([k * k % 5 for k in range(g.shape[0])])
    yield (g, numbers), {"rows": 5, "padding": None}
    yield (make(2, 2, 3), _numbers([[0, 4], [4, 1]])), {"rows": 5, "padding": 3}


@op(
    name="_embedding_grad", method=False, public=False, half="float32", layout=contiguous,
    infer=lambda grad, index, *, rows, padding: grad.like((rows, grad.shape[-1])),
    flops=lambda grad, index, **_: grad.numel,
    samples=_row_sums_samples,
)  # fmt: skip
def row_sums(xp, out, grad, index, *, rows, padding):
    """Add each gradient to the row it was looked up from; row ``padding`` stays zero."""
    out.fill(0)
    xp.add.at(out, index.reshape(-1), grad.reshape(-1, out.shape[1]))
    if padding is not None:
        out[padding].fill(0)


@row_sums.kernel("cpu", when=worth_compiling, layout=contiguous)
def _(xp, out, grad, index, *, rows, padding):
    from ..kernels.cpu.rows import add_rows

    out.fill(0)
    add_rows(out, grad.reshape(-1, out.shape[1]), index.reshape(-1))
    if padding is not None:
        out[padding].fill(0)


@row_sums.vjp("grad")
def _(g, index, grad_spec, padding):
    rows = lookup(g, index, padding)
    if padding is None:
        return rows
    return rows * index.ne(padding).unsqueeze(-1).to(grad_spec.dtype)


@op(
    name="_index_shares", method=False, public=False,
    infer=lambda index, *, dtype: index.like(dtype=dtype),
    samples=lambda make: iter([((_numbers([0, 4, 4]),), {"dtype": make(1).dtype})]),
)  # fmt: skip
def shares(xp, out, index, *, dtype):
    """For each number, one over how often it occurs."""
    _, where, counts = xp.unique(index, return_inverse=True, return_counts=True)
    xp.divide(1.0, counts[where].reshape(out.shape), out=out, casting="unsafe")


def _ones_samples(make):
    yield (make(2, 3), make(1, 1) * 0 + 1), {}


@op(
    name="_scale_gradient", method=False, public=False, infer=lambda input, scale: input,
    samples=_ones_samples,
)  # fmt: skip
def scale_gradient(xp, out, input, scale):
    """The same values; the gradient is multiplied by ``scale``."""
    xp.copyto(out, input)


@scale_gradient.vjp("input")
def _(g, scale):
    return g * scale


@scale_gradient.vjp("scale")
def _(g):
    return None


@op(
    name="_renormalize_rows", method=False, public=False, inplace="_renormalize_rows_",
    infer=lambda weight, index, **_: weight, half="float32",
    samples=lambda make: iter(
        [((make(5, 3), _numbers([0, 4, 4])), {"max_norm": 1.0, "norm_type": 2.0})]
    ),
)  # fmt: skip
def renormalize(xp, out, weight, index, *, max_norm, norm_type):
    """Shrink the rows that ``index`` names to a norm of at most ``max_norm``."""
    if out is not weight:
        xp.copyto(out, weight)
    for k in xp.unique(index).tolist():
        row = out[k]
        norm = float(xp.linalg.norm(row, norm_type))
        if norm > max_norm:
            xp.multiply(row, max_norm / (norm + 1e-7), out=row)


@function(public=False)
def embedding(
    input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False,
    sparse=False,
):  # fmt: skip
    """Look up a row of ``weight`` for each number in ``input``.

    Args:
        input: Row numbers of any shape (*), an integer dtype.
        weight: (rows, features).
        padding_idx: A row that gets no gradient.
        max_norm: Rows that are looked up are first shrunk, in place, to at most this norm.
        norm_type: Which norm.
        scale_grad_by_freq: Divide the gradient of each row by how often it occurs.
        sparse: Accepted; gradients are dense.

    Returns:
        Tensor (*, features).

    Raises:
        IndexError: A number is not a row (on the CPU).

    Memory:
        Keeps ``input``.
    """
    rows = weight.shape[0]
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise AssertionError(
                f"embedding: Padding_idx must be within num_embeddings: {padding_idx} is not in "
                f"[-{rows}, {rows - 1}]."
            )
        padding_idx %= rows
    if max_norm is not None:
        with no_grad():
            weight._renormalize_rows_(input, float(max_norm), float(norm_type))
    out = lookup(weight, input, padding_idx)
    if scale_grad_by_freq:
        out = scale_gradient(out, shares(input, weight.dtype).unsqueeze(-1))
    return out


@function(public=False)
def embedding_bag(
    input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False,
    mode="mean", sparse=False, per_sample_weights=None, include_last_offset=False,
    padding_idx=None,
):  # fmt: skip
    """Reduce bags of rows: their sum, mean or maximum.

    Args:
        input: (B, N) row numbers, one bag per line. Bags of unequal length (1-D ``input`` with
            ``offsets``) are not supported.
        weight: (rows, features).
        offsets: Must be None.
        max_norm: As for :func:`embedding`.
        norm_type: As for :func:`embedding`.
        scale_grad_by_freq: As for :func:`embedding`.
        mode: "sum", "mean" or "max".
        sparse: Accepted; gradients are dense.
        per_sample_weights: (B, N) factors, for mode "sum".
        include_last_offset: Must be False.
        padding_idx: Must be None.

    Returns:
        Tensor (B, features).
    """
    if offsets is not None or input.ndim != 2 or include_last_offset or padding_idx is not None:
        raise NotImplementedError(
            "embedding_bag takes input of shape (bags, length) without offsets and padding_idx. "
            "Use embedding and reduce its result for bags of unequal length."
        )
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"mode has to be one of sum, mean or max; got {mode!r}.")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None; it is only supported for mode='sum' "
            f"(got mode={mode!r}). Pass mode='sum'."
        )
    rows = embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if mode == "max":
        return rows.amax(1)
    return rows.sum(1) if mode == "sum" else rows.mean(1)
