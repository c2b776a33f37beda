"""Connectionist temporal classification (CTC) loss.

Forward sums the probabilities of all alignments in log space, position by position; backward runs
the same recursion from the other end. Both are vectorized over the batch and the labels, and
sequences that have ended keep their state.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import INT, int64
from ...kernels.common.layout import contiguous
from ...kernels.common.strided_ufuncs import negate
from ...kernels.runtime import threads, thresholds
from ...spec import Spec
from ...tensor import Tensor
from ..creation.from_data import tensor
from ..creation.ranges import arange
from ..indexing.where import _where
from ..manipulation.cat import cat, stack
from ..registry import function, op
from .cross_entropy import reduction_of

LOW = -1e30  # the composition's minus infinity, which has a gradient


def _ctc_infer(log_probs, labels, lengths, ends):
    steps, batch, _ = log_probs.shape
    wide = labels.shape[1]
    row = log_probs.like((batch, wide))
    return (log_probs.like((batch,)), log_probs.like((steps, batch, wide)), row, row, row)


def _labels_of(rows):
    values = [[x for c in row for x in (0, c)] + [0] for row in rows]
    return tensor(values, dtype=int64)


def _ctc_samples(make):
    x = make(5, 2, 4)
    n = x.shape[1]
    t = x.shape[0]
    rows = ([[1, 1], [2, 3]] * n)[:n]
    ends = ([2, 1] * n)[:n]
    lengths = ([t, t - 1] * n)[:n]
    yield (x, _labels_of(rows), tensor(lengths, dtype=int64), tensor(ends, dtype=int64)), {}
    empty = tensor([], dtype=int64)
    yield (make(5, 0, 4), empty.reshape(0, 3), empty, empty), {}


def _skips(xp, labels):
    # Where a path may come from two labels back: at a label that differs from that one.
    allowed = xp.zeros(labels.shape, dtype=bool)
    allowed[:, 3::2] = labels[:, 3::2] != labels[:, 1:-2:2]
    return allowed


def _emitted(xp, log_probs, labels, out):
    # The log probability of each label at one step; ``log_probs`` is (batch, classes).
    rows = xp.arange(labels.shape[0])
    for s in range(labels.shape[1]):
        out[:, s] = log_probs[rows, labels[:, s]]


def _step(xp, new, old, tmp, skips) -> None:
    """``new[s] = logaddexp(old[s], old[s - 1], old[s - 2] where allowed)``."""
    xp.copyto(new, old)
    xp.logaddexp(new[:, 1:], old[:, :-1], out=new[:, 1:])
    tmp.fill(-np.inf)
    xp.copyto(tmp[:, 2:], old[:, :-2], where=skips[:, 2:])
    xp.logaddexp(new, tmp, out=new)


@op(
    infer=_ctc_infer,
    aux=("alpha",),
    scratch=("old", "new", "tmp"),
    layout=contiguous,
    samples=_ctc_samples,
    flops=lambda log_probs, labels, *_: 8 * log_probs.shape[0] * labels.numel,
)
def _ctc(xp, out, alpha, old, new, tmp, log_probs, labels, lengths, ends):
    """Negative log-likelihood of label sequences, with blanks between and around labels."""
    skips = _skips(xp, labels)
    wide = labels.shape[1]
    # Before the first step, a path is about to enter the first blank or the first label.
    old.fill(-np.inf)
    old[:, :1] = 0
    for t in range(log_probs.shape[0]):
        if t:
            _step(xp, new, old, tmp, skips)
        else:
            xp.copyto(new, old)
            new[:, 1:2] = 0
        _emitted(xp, log_probs[t], labels, tmp)
        xp.add(new, tmp, out=new)
        xp.copyto(old, new, where=(t < lengths)[:, None])
        xp.copyto(alpha[t], old)
    rows = xp.arange(labels.shape[0])
    xp.copyto(out, old[rows, 2 * ends])
    if wide > 1:
        last = old[rows, xp.maximum(2 * ends - 1, 0)]
        xp.logaddexp(out, xp.where(ends > 0, last, -np.inf), out=out)
    negate(xp, out, out)


def _compiles(log_probs, labels):
    work = log_probs.shape[0] * labels.numel
    return work >= thresholds.COMPILED and log_probs.dtype.name == "float32"


def _by_sequence(run, log_probs, labels, *arrays):
    # Sequences do not meet, so that threads can share them.
    work = 16 * log_probs.shape[0] * labels.size
    threads.parallel_for(lambda first, last: run(*arrays, first, last), work, labels.shape[0])


@_ctc.kernel(
    "cpu", when=lambda log_probs, labels, *_: _compiles(log_probs, labels), layout=contiguous
)
def _(xp, out, alpha, old, new, tmp, log_probs, labels, lengths, ends):
    from ...kernels.cpu.loss import ctc as alignments

    _by_sequence(
        alignments.forward, log_probs, labels, out, alpha, tmp, log_probs, labels, lengths, ends
    )


@_ctc.vjp("log_probs")
def _(g, log_probs, labels, lengths, ends, out, alpha):
    return _ctc_grad(g, log_probs, labels, lengths, ends, out, alpha)


@_ctc.composite
def _(log_probs, labels, lengths, ends):
    batch, wide = labels.shape
    s = tensor(list(range(wide)), device=labels.device)
    differs = cat([labels[:, :2].ne(labels[:, :2]), labels[:, 2:].ne(labels[:, :-2])], 1)
    skips = differs[:, :wide].logical_and(s.remainder(2).eq(1))
    state = log_probs[0].gather(1, labels).masked_fill(s.gt(1).expand(batch, wide), LOW)
    low = log_probs.detach()[0, :, :1].expand(batch, 2) * 0 + LOW
    for t in range(1, log_probs.shape[0]):
        padded = cat([low, state], 1)
        by_two = padded[:, :wide].masked_fill(skips.logical_not(), LOW)
        ways = stack([state, padded[:, 1 : wide + 1], by_two], 0)
        new = ways.logsumexp(0) + log_probs[t].gather(1, labels)
        state = new.where(lengths.gt(t).unsqueeze(1), state)
    last = state.gather(1, (2 * ends).unsqueeze(1))
    before = state.gather(1, (2 * ends - 1).clamp(min=0).unsqueeze(1))
    before = before.masked_fill(ends.eq(0).unsqueeze(1), LOW)
    return _ctc_aligned(-cat([last, before], 1).logsumexp(1), log_probs, lengths)


def _aligned_samples(make):
    for count in (2, 0):
        x = make(3, count, 4)
        yield (make(count), x, tensor([x.shape[0]] * count, dtype=int64)), {}


@op(
    infer=lambda loss, log_probs, lengths: loss,
    samples=_aligned_samples,
    flops=lambda *_: 0,
)
def _ctc_aligned(xp, out, loss, log_probs, lengths):
    """The loss of the composition; its gradient is NaN where there is no alignment."""
    xp.copyto(out, loss)


@_ctc_aligned.vjp("loss")
def _(g, loss):
    return _where(loss > -LOW / 2, 0, g)


@_ctc_aligned.vjp("log_probs")
def _(g, loss, lengths, log_probs_spec):
    steps = arange(log_probs_spec.shape[0], device=g.device).unsqueeze(1)
    lost = (lengths > steps) & (loss > -LOW / 2) & (g != 0)
    nothing = (g.detach() * 0).expand(lost.shape)
    return _where(lost, float("nan"), nothing).unsqueeze(2).expand(log_probs_spec.shape)


def _ctc_grad_infer(grad, log_probs, labels, lengths, ends, out, alpha):
    row = Spec((labels.shape[0], labels.shape[1]), log_probs.dtype)
    return log_probs, row, row, row


def _ctc_grad_samples(make):
    for (x, labels, lengths, ends), _ in _ctc_samples(make):
        x = x.log_softmax(-1).detach()
        out = _numbers(x, labels, lengths, ends)
        yield (out[0] * 0 + 1, x, labels, lengths, ends, *out), {}


def _numbers(x, labels, lengths, ends):
    # (losses, alpha) of a sample, by the kernel itself.
    alpha = np.empty((x.shape[0], *labels.shape), np.float64)
    out = np.empty(labels.shape[0])
    work = [np.empty(tuple(labels.shape)) for _ in range(3)]
    given = [np.asarray(v.numpy()) for v in (x.double(), labels, lengths, ends)]
    _ctc.op.plain(np, out, alpha, *work, *given)
    return tensor(out, dtype=x.dtype), tensor(np.maximum(alpha, -1e4), dtype=x.dtype)


@op(
    infer=_ctc_grad_infer,
    scratch=("beta", "new", "tmp"),
    layout=contiguous,
    samples=_ctc_grad_samples,
    flops=lambda grad, log_probs, labels, *_: 12 * log_probs.shape[0] * labels.numel,
)
def _ctc_grad(xp, out, beta, new, tmp, grad, log_probs, labels, lengths, ends, loss, alpha):
    """Backward of ctc: minus the probability of being at each label, times the gradient."""
    out.fill(0)
    batch, wide = labels.shape
    skips = _skips(xp, labels)[:, ::-1]
    # From label s one goes on to s + 2 if s + 2 may be entered from s.
    ahead = xp.zeros(labels.shape, dtype=bool)
    ahead[:, 2:] = skips[:, :-2]
    rows, s = xp.arange(batch), xp.arange(wide)
    final = (s == 2 * ends[:, None]) | (s == 2 * ends[:, None] - 1)
    impossible = xp.isinf(loss)
    total = xp.where(impossible, 0, loss)[:, None]
    factor = xp.where(impossible, 0, -grad)[:, None]
    beta.fill(-np.inf)
    for t in range(log_probs.shape[0] - 1, -1, -1):
        _step(xp, new[:, ::-1], beta[:, ::-1], tmp[:, ::-1], ahead)
        running, ending = (t < lengths)[:, None], (t == lengths - 1)[:, None]
        xp.copyto(new, -np.inf, where=ending)
        xp.copyto(new, 0, where=ending & final)
        xp.add(alpha[t], new, out=tmp)  # alpha counts this step's emission, beta does not yet
        xp.add(tmp, total, out=tmp)
        xp.exp(tmp, out=tmp)
        xp.multiply(tmp, factor, out=tmp)
        xp.multiply(tmp, running, out=tmp)
        for k in range(wide):  # a row at a time, so that no label is met twice
            out[t, rows, labels[:, k]] += tmp[:, k]
        _emitted(xp, log_probs[t], labels, tmp)
        xp.add(new, tmp, out=new)
        xp.copyto(beta, new, where=running)
        # A target without an alignment has no gradient, unless zero_infinity cut it off.
        xp.copyto(out[t], xp.nan, where=running & (impossible & (grad != 0))[:, None])


@_ctc_grad.kernel(
    "cpu", when=lambda grad, log_probs, labels, *_: _compiles(log_probs, labels), layout=contiguous
)
def _(xp, out, beta, new, tmp, grad, log_probs, labels, lengths, ends, loss, alpha):
    from ...kernels.cpu.loss import ctc as alignments

    _by_sequence(
        alignments.backward, log_probs, labels, out, beta, new, tmp, grad, log_probs, labels,
        lengths, ends, loss, alpha,
    )  # fmt: skip


# The public function


def _lengths(name, values, batch, device):
    """Return lengths as a tensor and as a list (None where values cannot be read)."""
    if not isinstance(values, Tensor):
        values = tensor([int(v) for v in values], dtype=int64, device=device)
    if values.dtype.category != INT:
        raise RuntimeError(f"ctc_loss: {name} must be integral; got {values.dtype}.")
    if values.numel() != batch:
        raise RuntimeError(
            f"ctc_loss: {name} must be of size batch_size; got {values.numel()} for a batch of "
            f"{batch}."
        )
    return values.to(int64).to(device).reshape(batch)


def _rows(targets, target_lengths, batch):
    """Reshape targets to (batch, longest); padding is arbitrary."""
    counts = target_lengths.tolist()
    if targets.ndim == 2:
        if targets.shape[0] != batch or max(counts, default=0) > targets.shape[1]:
            raise RuntimeError(
                f"ctc_loss: Expected targets of shape (batch, longest target), with a batch of "
                f"{batch} and targets up to {max(counts, default=0)}; got {list(targets.shape)}."
            )
        return targets[:, : max(counts, default=0)], counts
    if targets.ndim != 1:
        raise RuntimeError(f"ctc_loss: targets should be 1-D or 2-D; got {targets.ndim}-D.")
    if targets.shape[0] != sum(counts):
        raise RuntimeError(
            f"ctc_loss: concatenated targets have as many elements as target_lengths add up to "
            f"({sum(counts)}); got {targets.shape[0]}."
        )
    longest, start, places = max(counts, default=0), 0, []
    for n in counts:
        places.append([start + min(k, max(n - 1, 0)) for k in range(longest)])
        start += n
    index = tensor(places, dtype=int64, device=targets.device).clamp(max=max(start - 1, 0))
    return targets[index] if start else index.reshape(batch, longest), counts


@function(autocast="float32")
def ctc_loss(
    log_probs,
    targets,
    input_lengths,
    target_lengths,
    blank=0,
    reduction="mean",
    zero_infinity=False,
):
    """Compute the CTC loss of log-probabilities and label sequences without alignment.

    Args:
        log_probs: (T, N, C) or (T, C): logarithms of the probabilities of C classes.
        targets: (N, S), padded, or all targets one after the other, (sum of target_lengths,).
        input_lengths: (N,), at most T each: a tensor or a sequence of ints.
        target_lengths: (N,), likewise.
        blank: The class that stands for no label.
        reduction: "none", "sum", or "mean": each loss over its target length, then the mean.
        zero_infinity: Sequences too short for their target count as zero.

    Returns:
        0-d Tensor; (N,) for "none".

    Raises:
        RuntimeError: Lengths or shapes do not fit.

    Memory:
        Keeps ``log_probs`` and one number for each step and each of 2 S + 1 positions.

    Source:
        Graves et al.: "Connectionist Temporal Classification: Labelling Unsegmented Sequence Data
        with Recurrent Neural Networks", 2006.
    """
    if log_probs.ndim not in (2, 3):
        raise RuntimeError(
            f"ctc_loss: log_probs should be (T, N, C) or (T, C); got {list(log_probs.shape)}."
        )
    reduction = reduction_of(None, None, reduction)
    single = log_probs.ndim == 2
    if single:
        log_probs = log_probs.unsqueeze(1)
        targets = targets.reshape(1, -1) if targets.ndim < 2 else targets
    if targets.dtype.category != INT:
        raise RuntimeError(f"ctc_loss: targets must be integral; got {targets.dtype}.")
    steps, batch, classes = log_probs.shape
    if not 0 <= blank < classes:
        raise RuntimeError(f"ctc_loss: blank must be in label range 0 to {classes - 1}: {blank}.")
    device = log_probs.device
    lengths = _lengths("input_lengths", input_lengths, batch, device)
    ends = _lengths("target_lengths", target_lengths, batch, device)
    if max(lengths.tolist(), default=0) > steps:
        raise RuntimeError(
            f"ctc_loss: Expected input_lengths to have value at most {steps}, but got value "
            f"{max(lengths.tolist())} (while checking arguments for ctc_loss)"
        )
    rows, counts = _rows(targets.to(int64).to(device), ends, batch)
    if min(counts, default=0) < 0:
        raise RuntimeError(f"ctc_loss: target_lengths must be non-negative; got {min(counts)}.")
    rows = rows.clamp(0, classes - 1)  # what stands behind a target's end may be anything
    blanks = rows.unsqueeze(2) * 0 + blank
    pairs = cat([blanks, rows.unsqueeze(2)], 2).reshape(batch, 2 * rows.shape[1])
    labels = cat([pairs, lengths.unsqueeze(1) * 0 + blank], 1)
    loss = _ctc(log_probs, labels, lengths, ends)
    if zero_infinity:
        loss = loss.masked_fill(loss.isinf(), 0.0)
    if reduction == "mean":
        return (loss / ends.clamp(min=1).to(loss.dtype)).mean()
    if reduction == "sum":
        return loss.sum()
    return loss.squeeze(0) if single else loss
