"""PowerSGD: gradients travel as two thin matrices, whose product is near their average.

Source: T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical Low-Rank Gradient
Compression for Distributed Optimization", 2019. The interface is that of PyTorch's
``torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook``.

For a gradient M of n rows and m columns, and Q of m rows and r columns, the same in all ranks::

    P = average over ranks of M Q, with orthonormal columns
    Q = average over ranks of M' P
    the average of M is taken to be P Q'

So r (n + m) numbers travel instead of n m. What a rank's M has beyond P Q' is its error, which it
adds to its next gradient: nothing is lost, it comes later.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any, NamedTuple

from ..dtypes import float32, float64
from ..ops.creation.fill import empty, zeros
from ..ops.linalg.cholesky_qr import qr
from ..ops.random.draw import randn
from ..random.generator import Generator
from ..tensor import Tensor
from . import collectives
from .collectives import ReduceOp
from .communication_hooks import allreduce_hook
from .futures import Future
from .gradient_reduction import GradBucket
from .work import Work


class PowerSGDState:
    """What PowerSGD keeps from step to step, and its options.

    Args:
        process_group: The ranks; the default group if None.
        matrix_approximation_rank: Columns r of the thin matrices: more are closer, and larger.
        start_powerSGD_iter: Passes that average gradients as without it, at the start.
        min_compression_rate: A gradient travels as it is if it would shrink by no more than this.
        use_error_feedback: Add a step's error to the next gradient. It takes the bytes of the
            gradients that are compressed.
        warm_start: Begin with the Q of the step before.
        orthogonalization_epsilon: Accepted: a QR decomposition needs none.
        random_seed: Of the first Q; the same in all ranks.
        compression_stats_logging_frequency: Accepted: see :meth:`compression_stats`.
        batch_tensors_with_same_shape: Accepted: matrices are computed one after the other.

    Attributes:
        iter: Passes so far.
        error_dict: Errors of the compressed gradients of a bucket, flat.
        q_memory_dict: Q of the compressed gradients of a bucket, one after the other, flat.

    Raises:
        ValueError: ``start_powerSGD_iter`` is below 2, though errors or Q are to be kept: buckets
            change after the first pass.
    """

    def __init__(
        self,
        process_group: Any,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10_000,
        batch_tensors_with_same_shape: bool = False,
    ) -> None:
        if (use_error_feedback or warm_start) and start_powerSGD_iter <= 1:
            raise ValueError(
                f"PowerSGDState: start_powerSGD_iter is {start_powerSGD_iter}; with "
                "use_error_feedback or warm_start it is 2 or more, because buckets change after "
                "the first pass."
            )
        self.process_group = process_group
        self.matrix_approximation_rank = matrix_approximation_rank
        self.start_powerSGD_iter = start_powerSGD_iter
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback = use_error_feedback
        self.warm_start = warm_start
        self.orthogonalization_epsilon = orthogonalization_epsilon
        self.random_seed = random_seed
        self.compression_stats_logging_frequency = max(1, compression_stats_logging_frequency)
        self.batch_tensors_with_same_shape = batch_tensors_with_same_shape
        self.error_dict: dict[int, Tensor] = {}
        self.q_memory_dict: dict[int, Tensor] = {}
        self.iter = 0
        self.total_numel_before_compression = 0
        self.total_numel_after_compression = 0
        self._drawn = 0  # how often Q was drawn

    def compression_stats(self) -> tuple[float, int, int]:
        """Return how much smaller gradients became, their elements before, and those after."""
        before, after = self.total_numel_before_compression, self.total_numel_after_compression
        return before / after if after else 0, before, after

    def maybe_increase_iter(self, bucket: GradBucket) -> None:
        """Count a pass, at its last bucket."""
        if bucket.is_last():
            self.iter += 1

    def generator(self) -> Generator:
        """Return a generator for another Q; in all ranks the same."""
        self._drawn += 1
        return Generator().manual_seed(self.random_seed + 1_000_003 * self._drawn)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the process group, which belongs to this process."""
        return {key: value for key, value in vars(self).items() if key != "process_group"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a state, for the default group."""
        vars(self).update(state, process_group=None)


class _Matrix(NamedTuple):
    """A gradient that is compressed: a view of it, its P, its Q and its error."""

    gradient: Tensor
    p: Tensor
    q: Tensor
    error: Tensor | None


class _Later(Future):
    """A value that is computed when it is waited for.

    So all ranks call the collectives of a bucket in the order in which they wait for buckets. What
    follows the end of a collective would come in another order in each rank.
    """

    def __init__(self, compute: Callable[[], Any]) -> None:
        super().__init__()
        self._compute: Callable[[], Any] | None = compute

    def hasten(self) -> None:
        """Compute the value."""
        compute, self._compute = self._compute, None
        if compute is None:
            return
        try:
            found = compute()
        except BaseException as error:  # who waits again gets it, too
            self.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.set_result(found)


def powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future:
    """Average the gradients of a bucket by PowerSGD, each matrix by itself.

    A gradient of more than two dims is a matrix with a row for each entry of the first. Vectors,
    and what would hardly shrink, are averaged as they are.

    Args:
        state: See :class:`PowerSGDState`.
        bucket: The gradients.
    """
    return _hook(state, bucket, bucket.gradients())


def batched_powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future:
    """Average the gradients of a bucket by PowerSGD, all of them as one square matrix.

    That is faster and further from the average than :func:`powerSGD_hook`.

    Args:
        state: See :class:`PowerSGDState`.
        bucket: The gradients.
    """
    if state.iter < state.start_powerSGD_iter:
        return _hook(state, bucket, [])
    flat = bucket.buffer()
    side = isqrt(max(flat.numel() - 1, 0)) + 1
    if side * side == flat.numel():
        return _hook(state, bucket, [flat.view(side, side)])
    square: Tensor = zeros(side * side, dtype=flat.dtype, device=flat.device)
    square[: flat.numel()].copy_(flat)
    future = _hook(state, bucket, [square.view(side, side)])
    return _Later(lambda: (future.wait(), flat.copy_(square[: flat.numel()]))[1])


def _hook(state: PowerSGDState, bucket: GradBucket, gradients: list[Tensor]) -> Future:
    if state.iter < state.start_powerSGD_iter:
        state.maybe_increase_iter(bucket)
        return allreduce_hook(state.process_group, bucket)
    flat = bucket.buffer()
    matrices, others = _sorted_out(state, bucket.index(), gradients)
    plain: Tensor = empty(sum(t.numel() for t in others), dtype=flat.dtype, device=flat.device)
    _copy(plain, others, into_flat=True)
    works = [_begin(plain, state)] if others else []
    for gradient, p, q, error in matrices:
        if error is not None:
            gradient.add_(error)
            error.copy_(gradient)
        p.copy_(gradient @ q)
        works.append(_begin(p, state))

    def end() -> Tensor:
        for work in works:
            work.wait()
        _copy(plain, others, into_flat=False)
        for gradient, p, q, _ in matrices:
            p.copy_(_orthonormal(p))
            q.copy_(gradient.T @ p)
        for work in [_begin(q, state) for _, _, q, _ in matrices]:
            work.wait()
        for gradient, p, q, error in matrices:
            gradient.copy_(p @ q.T)
            if error is not None:
                error.sub_(gradient)
        return flat

    if not state.warm_start:
        state.q_memory_dict.pop(bucket.index(), None)
    state.maybe_increase_iter(bucket)
    return _Later(end)


def _begin(tensor: Tensor, state: PowerSGDState) -> Work:
    work = collectives.all_reduce(tensor, ReduceOp.AVG, state.process_group, async_op=True)
    assert isinstance(work, Work)
    return work


def _sorted_out(
    state: PowerSGDState, index: int, gradients: list[Tensor]
) -> tuple[list[_Matrix], list[Tensor]]:
    # What is compressed, and what is not.
    chosen: list[tuple[Tensor, int]] = []
    others = []
    for gradient in gradients:
        rows = gradient.shape[0] if gradient.ndim else 1
        matrix = gradient.view(rows, -1)
        n, m = matrix.shape
        rank = min(n, m, state.matrix_approximation_rank)
        smaller = (n + m) * rank
        compresses = smaller * state.min_compression_rate < n * m
        state.total_numel_before_compression += n * m
        state.total_numel_after_compression += smaller if compresses else n * m
        if compresses:
            chosen.append((matrix, rank))
        else:
            others.append(gradient)
    return _with_memory(state, index, chosen), others


def _with_memory(
    state: PowerSGDState, index: int, chosen: list[tuple[Tensor, int]]
) -> list[_Matrix]:
    # What is kept of each matrix: the error and Q, which is drawn where there is none that fits.
    if not chosen:
        return []
    like = {"dtype": chosen[0][0].dtype, "device": chosen[0][0].device}
    sizes = [matrix.shape[1] * rank for matrix, rank in chosen]
    q = state.q_memory_dict.get(index)
    drawn = q is None or q.numel() != sum(sizes)
    if drawn:
        q = state.q_memory_dict[index] = empty(sum(sizes), **like)
    error = state.error_dict.get(index)
    elements = [matrix.numel() for matrix, _ in chosen]
    if state.use_error_feedback and (error is None or error.numel() != sum(elements)):
        error = state.error_dict[index] = zeros(sum(elements), **like)
    generator = state.generator() if drawn else None
    assert q is not None
    found = []
    qs, errors = q.split(sizes), error.split(elements) if error is not None else None
    for k, (matrix, rank) in enumerate(chosen):
        own = qs[k].view(matrix.shape[1], rank)
        if generator is not None:
            own.copy_(randn(*own.shape, generator=generator))
        own.copy_(_orthonormal(own))
        p: Tensor = empty(matrix.shape[0], rank, **like)
        wrong = errors[k].view(matrix.shape) if errors is not None else None
        found.append(_Matrix(matrix, p, own, wrong))
    return found


def _orthonormal(matrix: Tensor) -> Tensor:
    # Orthonormal columns that span what the matrix's columns do; any others where these are 0.
    precise = matrix if matrix.dtype in (float32, float64) else matrix.to(float32)
    return qr(precise)[0].to(matrix.dtype)  # type: ignore[no-any-return]


def _copy(flat: Tensor, tensors: list[Tensor], into_flat: bool) -> None:
    parts = flat.split([t.numel() for t in tensors]) if tensors else ()
    for part, t in zip(parts, tensors, strict=True):
        if into_flat:
            part.view(t.shape).copy_(t)
        else:
            t.copy_(part.view(t.shape))
