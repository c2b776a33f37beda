"""Orders, and states that lead back to the same place of them."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.data.sampler import SamplerIterator
from lowtide.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

SAMPLERS = {
    "sequential": lambda g: SequentialSampler(range(11)),
    "random": lambda g: RandomSampler(range(11), generator=g),
    "replacement": lambda g: RandomSampler(range(11), True, 17, g),
    "several permutations": lambda g: RandomSampler(range(5), False, 12, g),
    "subset": lambda g: SubsetRandomSampler([3, 1, 4, 1, 5, 9, 2, 6], g),
    "weighted": lambda g: WeightedRandomSampler([1.0, 2.0, 3.0, 0.0], 13, True, g),
    "distributed": lambda g: DistributedSampler(range(11), 2, 1, seed=3),
    "batches": lambda g: BatchSampler(RandomSampler(range(11), generator=g), 3, False),
    "full batches": lambda g: BatchSampler(RandomSampler(range(11), generator=g), 3, True),
}


def generator():
    return lt.Generator().manual_seed(42)


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("own", [True, False], ids=["own generator", "default generator"])
def test_a_state_leads_to_the_same_next_index_at_every_place(kind, own) -> None:
    lt.manual_seed(7)
    sampler = SAMPLERS[kind](generator() if own else None)
    first, second = list(sampler), list(sampler)
    for taken in range(len(first) + 1):
        lt.manual_seed(7)
        sampler = SAMPLERS[kind](generator() if own else None)
        walk = iter(sampler)
        for _ in range(taken):
            next(walk)
        state = json.loads(json.dumps(sampler.state_dict()))
        default = lt.get_rng_state()
        lt.manual_seed(99)
        fresh = SAMPLERS[kind](lt.Generator() if own else None)
        fresh.load_state_dict(state)
        assert fresh.state_dict() == state
        lt.set_rng_state(default)
        rest = list(fresh)
        if taken == 0:  # not begun: the state is that of a sampler at rest
            assert rest == first
        else:
            assert rest == first[taken:]
            assert list(fresh) == second


def test_a_state_stays_small_whatever_the_size() -> None:
    sampler = RandomSampler(range(100_000), generator=generator())
    walk = iter(sampler)
    for _ in range(70_000):
        next(walk)
    assert len(json.dumps(sampler.state_dict())) < 120


def test_an_order_takes_8_bytes_an_index_while_it_is_walked(leak_check) -> None:
    lt.reset_peak_memory_stats()
    before = lt.memory_allocated()
    walk = iter(RandomSampler(range(1000)))
    next(walk)
    by_role = lt.memory_stats("cpu")["by_role"]["input"]
    assert lt.memory_allocated() - before == 8000
    assert by_role >= 8000
    del walk


def test_a_random_order_is_that_of_randperm() -> None:
    order = list(RandomSampler(range(20), generator=generator()))
    assert order == lt.randperm(20, generator=generator()).tolist()


def test_epochs_differ_and_a_seed_repeats_them() -> None:
    sampler = RandomSampler(range(20), generator=generator())
    epochs = [list(sampler), list(sampler)]
    assert epochs[0] != epochs[1]
    again = RandomSampler(range(20), generator=generator())
    assert [list(again), list(again)] == epochs


def test_several_permutations_each_have_every_index() -> None:
    order = list(RandomSampler(range(5), num_samples=12))
    assert sorted(order[:5]) == sorted(order[5:10]) == list(range(5))
    assert len(set(order[10:])) == 2


def test_weights_decide_how_often_an_index_comes() -> None:
    drawn = Counter(WeightedRandomSampler([1, 3, 0], 4000, generator=generator()))
    assert set(drawn) == {0, 1}
    assert 2850 < drawn[1] < 3150  # expected 3000, standard deviation 27
    without = list(WeightedRandomSampler([1.0, 2.0, 3.0], 3, replacement=False))
    assert sorted(without) == [0, 1, 2]


@pytest.mark.parametrize(("n", "ranks"), [(10, 3), (9, 3), (2, 5), (1, 1)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_shares_are_equal_and_cover_all(n, ranks, shuffle) -> None:
    shares = [list(DistributedSampler(range(n), ranks, r, shuffle)) for r in range(ranks)]
    assert len({len(s) for s in shares}) == 1
    assert {i for s in shares for i in s} == set(range(n))
    dropped = [
        list(DistributedSampler(range(n), ranks, r, shuffle, drop_last=True)) for r in range(ranks)
    ]
    everything = [i for s in dropped for i in s]
    assert len(everything) == len(set(everything)) == n // ranks * ranks


def test_set_epoch_changes_the_order_and_without_it_epochs_repeat() -> None:
    sampler = DistributedSampler(range(30), 2, 0)
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_bad_arguments_are_refused_as_pytorch_does() -> None:
    with pytest.raises(ValueError, match="num_samples should be a positive integer"):
        RandomSampler([])
    with pytest.raises(TypeError, match="replacement should be a boolean"):
        RandomSampler([1], replacement=1)
    with pytest.raises(ValueError, match="num_samples should be a positive"):
        WeightedRandomSampler([1.0], True)
    with pytest.raises(ValueError, match="replacement should be a boolean"):
        WeightedRandomSampler([1.0], 1, 0)
    with pytest.raises(ValueError, match="weights should be a 1d sequence"):
        WeightedRandomSampler([[1.0]], 1)
    with pytest.raises(ValueError, match="batch_size should be a positive integer"):
        BatchSampler([1], 0, False)
    with pytest.raises(ValueError, match="drop_last should be a boolean"):
        BatchSampler([1], 1, 1)
    with pytest.raises(ValueError, match="default process group has not been initialized"):
        DistributedSampler([1])
    with pytest.raises(ValueError, match="Invalid rank 2"):
        DistributedSampler([1], 2, 2)
    with pytest.raises(NotImplementedError):
        iter(Sampler())


@pytest.mark.parametrize(
    ("drop", "expected"), [(False, [[0, 1], [2, 3], [4]]), (True, [[0, 1], [2, 3]])]
)
def test_batches_of_indices(drop, expected) -> None:
    sampler = BatchSampler(SequentialSampler(range(5)), 2, drop)
    assert list(sampler) == expected
    assert len(sampler) == len(expected)


class Backwards(Sampler):
    """A user's sampler, without a state; random, from the default generator."""

    def __iter__(self):
        return iter(lt.randperm(9).tolist()[::-1])


@pytest.mark.parametrize("taken", [0, 1, 8, 9])
def test_a_sampler_without_a_state_is_run_again_past_what_was_taken(taken) -> None:
    lt.manual_seed(3)
    whole = list(Backwards())
    lt.manual_seed(3)
    walk = SamplerIterator(Backwards())
    for _ in range(taken):
        next(walk)
    state, default = json.loads(json.dumps(walk.state_dict())), lt.get_rng_state()
    lt.manual_seed(8)
    lt.set_rng_state(default)
    assert list(SamplerIterator(Backwards(), state)) == whole[taken:]
    if taken:
        assert lt.get_rng_state().tolist() == default.tolist()


def shares(n, ranks, state, drop_last, batch, most):
    """What each of some ranks takes in at most so many batches, from a state on; and the states."""
    taken, states = [], []
    for rank in range(ranks):
        sampler = DistributedSampler(range(n), ranks, rank, seed=5, drop_last=drop_last)
        batches = BatchSampler(sampler, batch, False)
        sampler.set_epoch(2)
        if state is not None:
            batches.load_state_dict(state)
        walk, found = iter(batches), []
        for _ in range(most):
            found.append(next(walk, []))
        taken.append(found)
        states.append(batches.state_dict())
    assert all(s == states[0] for s in states)
    return taken, states[0]


@pytest.mark.parametrize("seed", range(40))
def test_any_number_of_ranks_goes_on_where_others_stopped(seed):
    draw = np.random.default_rng(seed)
    n, drop_last = int(draw.integers(1, 60)), bool(draw.integers(2))
    whole = DistributedSampler(range(n), 1, 0, seed=5)
    whole.set_epoch(2)
    order = list(whole)
    state, seen, place = None, [], 0
    for _ in range(int(draw.integers(1, 5))):
        ranks, batch = int(draw.integers(1, 6)), int(draw.integers(1, 5))
        most = min(int(draw.integers(0, 4)), (n - 1 - place) // (ranks * batch))
        taken, state = shares(n, ranks, state, drop_last, batch, most)
        for k in range(most):  # a step of all ranks takes the next part of the order
            step = [i for found in taken for i in found[k]]
            assert sorted(step) == sorted(order[place : place + ranks * batch])
            place += ranks * batch
            seen += step
    ranks = int(draw.integers(1, 6))
    taken, _ = shares(n, ranks, state, drop_last, 3, n + 1)
    assert len({sum(map(len, found)) for found in taken}) == 1
    seen += [i for found in taken for batch in found for i in batch]
    counts = np.bincount(seen, minlength=n)
    if drop_last:
        assert counts.max(initial=0) <= 1
        assert n - counts.sum() < ranks
    else:
        assert counts.min() >= 1
        assert counts.sum() - n < ranks


def test_the_epoch_after_a_shared_one_is_complete():
    first = DistributedSampler(range(20), 4, 0)
    walk = iter(first)
    next(walk), next(walk)
    samplers = [DistributedSampler(range(20), 3, r) for r in range(3)]
    for sampler in samplers:
        sampler.load_state_dict(first.state_dict())
    rest = [i for s in samplers for i in s]
    assert len(rest) == 12
    for sampler in samplers:
        sampler.set_epoch(1)
    assert {i for s in samplers for i in s} == set(range(20))


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_of_other_ranks_go_on(workers):
    def loaders(ranks, batch):
        for rank in range(ranks):
            sampler = DistributedSampler(range(30), ranks, rank, seed=1)
            yield lt.utils.data.DataLoader(
                lt.arange(30), batch_size=batch, sampler=sampler, num_workers=workers
            )

    seen, states = [], []
    for loader in loaders(3, 2):
        walk = iter(loader)
        seen += next(walk).tolist() + next(walk).tolist()
        states.append(loader.state_dict()["sampler"])
        state = loader.state_dict()
    assert states[0] == states[1] == states[2]
    for loader in loaders(2, 3):
        loader.load_state_dict(state)
        seen += [i for batch in loader for i in batch.tolist()]
    assert sorted(seen) == list(range(30))
