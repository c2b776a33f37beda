"""PowerSGD: what travels is small, what is lost comes later, and all ranks have the same."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.distributed as dist
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.distributed.algorithms.ddp_comm_hooks import default_hooks
from lowtide.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (
    PowerSGDState,
    batched_powerSGD_hook,
    powerSGD_hook,
)
from lowtide.framework.distributed import power_sgd
from lowtide.nn.parallel import DistributedDataParallel

from .ranks import results
from .test_data_parallel import batch, equal, network, values

BOTH = [powerSGD_hook, batched_powerSGD_hook]


class Bucket(dist.GradBucket):
    """Gradients that belong to no model."""

    def __init__(self, arrays: list[np.ndarray], index: int = 0, last: bool = True) -> None:
        parameters = [nn.Parameter(lt.from_numpy(a)) for a in arrays]
        flat = lt.cat([p.detach().reshape(-1) for p in parameters])
        super().__init__(index, parameters, flat, last)


def started(**options: Any) -> PowerSGDState:
    state = PowerSGDState(None, start_powerSGD_iter=2, **options)
    state.iter = 2
    return state


def drawn(rank: int, step: int, *shapes: tuple[int, ...], columns: int = 99) -> list[np.ndarray]:
    """Matrices of a rank, those of two dims of low rank: the same columns in all ranks."""
    found = []
    for k, shape in enumerate(shapes):
        common = np.random.default_rng(k)
        own = np.random.default_rng(100 * rank + 10 * step + k + 1)
        if len(shape) == 2:
            columns = min(columns, *shape)
            made = common.normal(size=(shape[0], columns)) @ own.normal(size=(columns, shape[1]))
        else:
            made = np.asarray(own.normal(size=shape))
        found.append(made)
    return found


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("rank", [1, 3])
def test_gradients_of_low_rank_are_averaged_exactly(rank: int, dtype: Any) -> None:
    def rank_of(me: int, size: int) -> Any:
        state = started(matrix_approximation_rank=rank)
        found = []
        for step in range(2):
            arrays = drawn(me, step, (20, 30), (7,), (40, 16), columns=rank)
            bucket = Bucket([a.astype(dtype) for a in arrays])
            powerSGD_hook(state, bucket).wait()
            found.append([g.numpy().copy() for g in bucket.gradients()])
        return found, state.compression_stats()

    ranks = results(2, rank_of)
    tolerance = 1e-12 if dtype is np.float64 else 2e-5
    for step in range(2):
        every = [drawn(me, step, (20, 30), (7,), (40, 16), columns=rank) for me in range(2)]
        for k, pair in enumerate(zip(*every, strict=True)):
            mean = (pair[0].astype(dtype) + pair[1].astype(dtype)) / 2
            for found, _ in ranks:
                np.testing.assert_allclose(found[step][k], mean, tolerance, tolerance)
    assert equal(ranks[0][0][0], ranks[1][0][0])
    before, after = 20 * 30 + 7 + 40 * 16, (20 + 30) * rank + 7 + (40 + 16) * rank
    assert ranks[0][1] == (before / after, 2 * before, 2 * after)


@pytest.mark.parametrize("hook", BOTH)
def test_what_a_step_loses_is_in_the_errors(hook: Any) -> None:
    def rank_of(me: int, size: int) -> Any:
        state = started()
        given, got = np.zeros((12, 30)), np.zeros((12, 30))
        for step in range(5):
            (array,) = drawn(me, step, (12, 30))
            given += array
            bucket = Bucket([array])
            hook(state, bucket).wait()
            got += bucket.gradients()[0].numpy()
        (error,) = state.error_dict.values()
        return given, got, error.numpy()[: 12 * 30].reshape(12, 30)

    ranks = results(2, rank_of)
    np.testing.assert_array_equal(ranks[0][1], ranks[1][1])
    given, errors = ((ranks[0][k] + ranks[1][k]) / 2 for k in (0, 2))
    assert np.abs(errors).max() > 0.1
    np.testing.assert_allclose(ranks[0][1] + errors, given, 1e-12, 1e-12)


@pytest.mark.parametrize("hook", BOTH)
def test_the_first_passes_average_as_without_it(hook: Any) -> None:
    def rank_of(me: int, size: int) -> Any:
        found = []
        for chosen in (hook, None):
            model = DistributedDataParallel(network())
            state = PowerSGDState(None, start_powerSGD_iter=3)
            if chosen is not None:
                model.register_comm_hook(state, chosen)
            optimizer = optim.SGD(model.parameters(), lr=0.1)
            for step in range(4):
                optimizer.zero_grad()
                x, y = batch(step, me)
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                if step == 2:
                    found.append(values(model.module))
            assert state.iter == (4 if chosen is not None else 0)
            found.append(values(model.module))
        return found

    before, after, plain, later = results(2, rank_of)[0]
    assert equal(before, plain)
    assert not equal(after, later)


@pytest.mark.quick(1)
@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("hook", BOTH)
def test_training_comes_as_far_and_ranks_stay_equal(hook: Any, in_backward: bool) -> None:
    def rank_of(me: int, size: int) -> Any:
        losses = []
        for chosen in (None, hook):
            lt.manual_seed(0)
            net = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 30))
            optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
            if in_backward:
                optim.fuse_into_backward(optimizer)
            model = DistributedDataParallel(net)
            state = PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1)
            if chosen is not None:
                model.register_comm_hook(state, chosen)
            lt.manual_seed(1)
            target = lt.randn(40, 30) / 6
            lt.manual_seed(2 + me)
            for _ in range(120):
                x = lt.randn(64, 40)
                loss = F.mse_loss(model(x), x @ target)
                loss.backward()
                if not in_backward:
                    optimizer.step()
                    optimizer.zero_grad()
            losses.append(loss.item())
            assert state.iter == (120 if chosen is not None else 0)
        return losses, values(net), state.compression_stats()[0]

    found = results(2, rank_of)
    assert equal(found[0][1], found[1][1])
    plain, compressed = found[0][0]
    assert plain < 0.3
    assert compressed < 2 * plain
    assert found[0][2] > 3


def test_a_warm_start_keeps_q_and_a_cold_one_draws_another() -> None:
    def rank_of(me: int, size: int) -> Any:
        found = []
        for warm in (True, False):
            state = started(warm_start=warm, use_error_feedback=False)
            arrays = drawn(0, 0, (12, 30))
            averages = []
            for _ in range(8):
                bucket = Bucket(arrays)
                powerSGD_hook(state, bucket).wait()
                averages.append(bucket.gradients()[0].numpy().copy())
            assert (0 in state.q_memory_dict, state.error_dict) == (warm, {})
            found.append([np.linalg.norm(arrays[0] - a) for a in averages])
        return found

    warm, cold = results(1, rank_of)[0]
    # A warm start is a power iteration: it comes to the best approximation of this rank.
    (array,) = drawn(0, 0, (12, 30))
    best = np.sqrt((np.linalg.svd(array)[1][1:] ** 2).sum())
    assert warm == sorted(warm, reverse=True)
    assert best - 1e-9 <= warm[-1] < best * 1.05
    assert len({round(one, 6) for one in cold}) == 8


def test_small_gradients_travel_as_they_are() -> None:
    def rank_of(me: int, size: int) -> Any:
        shapes = (4, 4), (3,), (8, 2, 2), ()
        found = []
        # (8, 4) of rank 1 has 12 numbers: 32 / 12 is less than 3
        for rate, kept in ((3, False), (2, True)):
            state = started(min_compression_rate=rate)
            bucket = Bucket(drawn(me, 0, *shapes))
            powerSGD_hook(state, bucket).wait()
            found.append([g.numpy() for g in bucket.gradients()])
            assert (0 in state.error_dict) == kept
        return found

    shapes = (4, 4), (3,), (8, 2, 2), ()
    pair = [drawn(me, 0, *shapes) for me in range(2)]
    exact = [(a + b) / 2 for a, b in zip(*pair, strict=True)]
    plain, compressed = results(2, rank_of)[1]
    assert equal(plain, exact)
    assert [np.array_equal(a, b) for a, b in zip(compressed, exact, strict=True)] == [
        True,
        True,
        False,
        True,
    ]


def test_gradients_of_zero_stay_zero() -> None:
    def rank_of(me: int, size: int) -> Any:
        state = started(matrix_approximation_rank=2)
        bucket = Bucket([np.zeros((9, 20))])
        powerSGD_hook(state, bucket).wait()
        return bucket.buffer().numpy()

    for found in results(2, rank_of):
        np.testing.assert_array_equal(found, np.zeros(180))


def test_a_gradient_after_zeros_is_averaged_as_if_they_had_not_been() -> None:
    def rank_of(me: int, size: int) -> Any:
        state = started(matrix_approximation_rank=2)
        powerSGD_hook(state, Bucket([np.zeros((9, 20))])).wait()
        bucket = Bucket(drawn(me, 0, (9, 20), columns=2))
        powerSGD_hook(state, bucket).wait()
        return bucket.gradients()[0].numpy()

    pair = [drawn(me, 0, (9, 20), columns=2)[0] for me in range(2)]
    for found in results(2, rank_of):
        np.testing.assert_allclose(found, (pair[0] + pair[1]) / 2, 1e-9, 1e-9)


def test_it_works_in_sixteen_bits() -> None:
    def rank_of(me: int, size: int) -> Any:
        hook = default_hooks.bf16_compress_wrapper(powerSGD_hook)
        state = started()
        bucket = Bucket([a.astype(np.float32) for a in drawn(me, 0, (20, 30), columns=1)])
        flat = bucket.buffer()
        assert hook(state, bucket).wait() is flat
        assert state.q_memory_dict[0].dtype == lt.bfloat16
        return flat.numpy()

    pair = [drawn(me, 0, (20, 30), columns=1)[0].reshape(-1) for me in range(2)]
    found = results(2, rank_of)[0]
    np.testing.assert_allclose(found, (pair[0] + pair[1]) / 2, 0.05, 0.05)


def test_a_bucket_with_other_gradients_begins_anew() -> None:
    state = started()

    def rank_of(me: int, size: int) -> Any:
        for shape in ((20, 30), (20, 40), (25, 30), (20, 30)):
            bucket = Bucket(drawn(me, 0, shape, columns=1))
            powerSGD_hook(state, bucket).wait()
        return bucket.buffer().numpy()

    pair = [drawn(me, 0, (20, 30), columns=1)[0].reshape(-1) for me in range(2)]
    np.testing.assert_allclose(results(2, rank_of)[0], (pair[0] + pair[1]) / 2, 1e-9, 1e-9)


def test_its_state_is_stored_without_the_group() -> None:
    state = started(matrix_approximation_rank=3)
    state.process_group = object()
    state.error_dict[1] = lt.ones(4)
    back = pickle.loads(pickle.dumps(state))
    assert (back.process_group, back.iter, back.matrix_approximation_rank) == (None, 2, 3)
    assert back.error_dict[1].tolist() == [1.0] * 4


def test_errors_need_buckets_that_do_not_change() -> None:
    with pytest.raises(ValueError, match="start_powerSGD_iter is 1"):
        PowerSGDState(None, start_powerSGD_iter=1)
    assert PowerSGDState(
        None, start_powerSGD_iter=0, use_error_feedback=False, warm_start=False
    ).compression_stats() == (0, 0, 0)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_what_interrupts_a_wait_is_raised_by_later_ones(kind: Any) -> None:
    def fail() -> None:
        raise kind("stop")

    later = power_sgd._Later(fail)
    for _ in range(2):
        with pytest.raises(kind, match="stop"):
            later.wait()
