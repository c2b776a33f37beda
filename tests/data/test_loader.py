"""Batches: the same ones, in the same order, whoever fetches them; and a state to resume from."""

from __future__ import annotations

import importlib
import json
import random
import warnings
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    get_worker_info,
)

loader_module = importlib.import_module("lowtide.framework.data.loader")
WORKERS = [0, 1, 3]


def values(batches):
    return [b.tolist() if isinstance(b, lt.Tensor) else [t.tolist() for t in b] for b in batches]


class Stream(IterableDataset):
    """Numbers, shared out between workers; no state of its own."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        yield from range(first, self.n, step)


class Counting(Stream):
    """The same with a state: where it stands."""

    def __init__(self, n):
        super().__init__(n)
        self.at = 0

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        while first + step * self.at < self.n:
            self.at += 1
            yield first + step * (self.at - 1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Noisy(Dataset):
    """Random numbers of every kind for each sample."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return i, lt.rand(()).item(), random.random(), float(np.random.rand())  # noqa: NPY002


@pytest.mark.quick(3)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True, "shuffle": True}])
def test_batches_do_not_depend_on_the_number_of_workers(workers, options) -> None:
    ds = TensorDataset(lt.randn(50, 3), lt.arange(50))
    lt.manual_seed(5)
    expected = [values(DataLoader(ds, 8, **options)) for _ in range(2)]
    lt.manual_seed(5)
    loader = DataLoader(ds, 8, num_workers=workers, **options)
    assert [values(loader) for _ in range(2)] != [expected[0]] * 2 or not options
    lt.manual_seed(5)
    loaders = [DataLoader(ds, 8, num_workers=workers, **options) for _ in range(2)]
    assert [values(loader) for loader in loaders] == expected


@pytest.mark.quick(1)
@pytest.mark.parametrize("workers", WORKERS)
def test_every_length_ends_right(workers) -> None:
    for n in (1, 7, 8, 9, 16):
        loader = DataLoader(range(n), 8, num_workers=workers)
        assert [x for batch in values(loader) for x in batch] == list(range(n))
        assert len(loader) == len(list(loader)) == -(-n // 8)


@pytest.mark.parametrize("workers", [0, 2])
def test_persistent_workers_and_prefetch_change_nothing(workers) -> None:
    kept = {"persistent_workers": True, "prefetch_factor": 4} if workers else {}
    generator = lt.Generator().manual_seed(2)
    loader = DataLoader(range(30), 4, True, num_workers=workers, generator=generator, **kept)
    plain = DataLoader(range(30), 4, True, generator=lt.Generator().manual_seed(2))
    for _ in range(3):
        assert values(loader) == values(plain)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_left_early_does_not_disturb_the_next(workers) -> None:
    kept = {"persistent_workers": True} if workers else {}
    loader = DataLoader(range(40), 4, num_workers=workers, **kept)
    for _ in range(3):
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]
    assert len(values(loader)) == 10


@pytest.mark.parametrize("workers", [0, 2])
def test_without_a_batch_size_samples_come_one_by_one(workers) -> None:
    loader = DataLoader(np.arange(6).reshape(3, 2), batch_size=None, num_workers=workers)
    assert values(loader) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_sampler_gives_the_lists(workers) -> None:
    loader = DataLoader(range(9), batch_sampler=[[1, 2], [8], [0, 0, 0]], num_workers=workers)
    assert values(loader) == [[1, 2], [8], [0, 0, 0]]
    assert len(loader) == 3


def test_a_collate_function_gets_the_samples() -> None:
    loader = DataLoader(range(5), 2, collate_fn=lambda batch: sum(batch))
    assert list(loader) == [1, 5, 4]


@pytest.mark.parametrize(
    ("n", "drop"), [(10, False), (11, False), (11, True), (3, True), (0, False)]
)
def test_an_iterable_is_batched_to_its_end(n, drop) -> None:
    got = values(DataLoader(Stream(n), 4, drop_last=drop))
    whole = [list(range(k, min(k + 4, n))) for k in range(0, n, 4)]
    assert got == [b for b in whole if len(b) == 4 or not drop]


@pytest.mark.parametrize("cls", [Stream, Counting])
def test_workers_of_an_iterable_take_turns_until_all_are_done(cls) -> None:
    loader = DataLoader(cls(13), 2, num_workers=3)
    expected = [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11], [12]]
    assert values(loader) == expected
    assert values(loader) == expected


@pytest.mark.quick(6)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("taken", [1, 4, 5])
@pytest.mark.parametrize("later", WORKERS)
def test_a_resumed_loader_yields_the_next_batch(workers, taken, later) -> None:
    ds = TensorDataset(lt.arange(19))
    lt.manual_seed(11)
    loader = DataLoader(ds, 4, shuffle=True)
    first, second = values(loader), values(loader)
    lt.manual_seed(11)
    loader = DataLoader(ds, 4, shuffle=True, num_workers=workers)
    for _, batch in zip(range(taken), loader, strict=False):
        assert batch
        state, default = json.loads(json.dumps(loader.state_dict())), lt.get_rng_state()
    lt.manual_seed(0)
    lt.set_rng_state(default)
    resumed = DataLoader(ds, 4, shuffle=True, num_workers=later)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert values(resumed) == first[taken:]
    assert values(resumed) == second


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_between_epochs_leads_to_the_next_epoch(workers) -> None:
    generator = lt.Generator().manual_seed(3)
    loader = DataLoader(range(10), 4, True, num_workers=workers, generator=generator)
    begun = json.loads(json.dumps(loader.state_dict()))
    first = values(loader)
    between = json.loads(json.dumps(loader.state_dict()))
    second = values(loader)
    for state, expected in ((begun, first), (between, second)):
        other = DataLoader(range(10), 4, True, num_workers=workers, generator=lt.Generator())
        other.load_state_dict(state)
        assert values(other) == expected


def test_a_state_after_leaving_a_loop_is_that_of_the_loop() -> None:
    loader = DataLoader(range(10), 2, num_workers=2)
    for batch in loader:
        if 4 in batch.tolist():
            break
    other = DataLoader(range(10), 2)
    other.load_state_dict(loader.state_dict())
    assert values(other) == [[6, 7], [8, 9]]


@pytest.mark.quick(2)
@pytest.mark.parametrize("cls", [Stream, Counting])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("taken", [1, 3, 6, 7])
def test_a_resumed_iterable_goes_on(cls, workers, taken) -> None:
    whole = values(DataLoader(cls(13), 2, num_workers=workers))
    loader = DataLoader(cls(13), 2, num_workers=workers)
    for _, batch in zip(range(taken), loader, strict=False):
        assert len(batch)
        state = json.loads(json.dumps(loader.state_dict()))
    resumed = DataLoader(cls(13), 2, num_workers=workers)
    resumed.load_state_dict(state)
    assert values(resumed) == whole[taken:]
    assert values(resumed) == whole


class Own(IterableDataset):
    """Its iterator has the state, not the data set."""

    def __iter__(self):
        return Walker()


class Walker:
    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 9:
            raise StopIteration
        self.at += 1
        return self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_state_of_an_iterator_is_used_too(workers) -> None:
    loader = DataLoader(Own(), 2, num_workers=workers)
    walk = iter(loader)
    assert [next(walk).tolist(), next(walk).tolist()] == [[1, 2], [3, 4]]
    resumed = DataLoader(Own(), 2, num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    assert values(resumed) == [[5, 6], [7, 8], [9]]


def test_an_iterable_cannot_change_its_number_of_workers() -> None:
    loader = DataLoader(Stream(9), num_workers=2)
    next(iter(loader))
    with pytest.raises(ValueError, match="must be as many"):
        DataLoader(Stream(9)).load_state_dict(loader.state_dict())


class Shuffled(Sampler):
    """A user's sampler, without a state."""

    def __iter__(self):
        yield from lt.randperm(12).tolist()

    def __len__(self):
        return 12


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("as_batches", [False, True])
def test_a_loader_with_a_users_sampler_resumes(workers, as_batches) -> None:
    def make():
        if as_batches:
            chosen = ([i] for i in Shuffled())
            return DataLoader(range(12), batch_sampler=_Again(lambda: chosen), num_workers=workers)
        return DataLoader(range(12), 1, sampler=Shuffled(), num_workers=workers)

    lt.manual_seed(4)
    whole = values(make())
    lt.manual_seed(4)
    loader = make()
    walk = iter(loader)
    for _ in range(5):
        next(walk)
    state, default = loader.state_dict(), lt.get_rng_state()
    lt.manual_seed(9)
    lt.set_rng_state(default)
    resumed = make()
    resumed.load_state_dict(state)
    assert values(resumed) == whole[5:]


class _Again:
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return ([i] for i in lt.randperm(12).tolist())


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("taken", [2, 3])
def test_a_resumed_run_draws_the_same_random_numbers_in_its_workers(workers, taken) -> None:
    lt.manual_seed(6)
    whole = values(DataLoader(Noisy(), 4, num_workers=workers))
    lt.manual_seed(6)
    loader = DataLoader(Noisy(), 4, num_workers=workers)
    for _, _batch in zip(range(taken), loader, strict=False):
        state = loader.state_dict()
    resumed = DataLoader(Noisy(), 4, num_workers=workers)
    resumed.load_state_dict(state)
    assert values(resumed) == whole[taken:]
    drawn = [x for batch in whole for column in batch[1:] for x in column]
    assert len(set(drawn)) == len(drawn)


def test_a_state_is_small_json_whatever_the_size() -> None:
    loader = DataLoader(range(100_000), 10, shuffle=True)
    walk = iter(loader)
    for _ in range(50):
        next(walk)
    text = json.dumps(loader.state_dict())
    assert len(text) < 400
    assert json.loads(text) == loader.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_counted_as_input_to_the_byte(workers, leak_check) -> None:
    ds = TensorDataset(lt.zeros(64, 100, 100), lt.arange(64))
    before = lt.memory_stats("cpu")["by_role"]["input"]
    loader = iter(DataLoader(ds, 16, num_workers=workers, sampler=range(64)))
    x, y = next(loader)
    after = lt.memory_stats("cpu")["by_role"]["input"]
    assert after - before == x.nbytes + y.nbytes == 16 * 40_000 + 16 * 8
    del x, y, loader


def test_what_the_workers_fetch_ahead_is_not_counted_here(leak_check) -> None:
    ds = TensorDataset(lt.zeros(64, 100, 100))
    before = lt.memory_allocated()
    lt.reset_peak_memory_stats()
    count = 0
    for batch in DataLoader(ds, 16, num_workers=2, prefetch_factor=4):
        count += 1
        del batch
    assert count == 4
    assert lt.max_memory_allocated() - before == 16 * 40_000


def test_bad_options_are_refused_as_pytorch_does() -> None:
    def refused(match, error=ValueError, dataset=range(3), **options):
        with pytest.raises(error, match=match):
            DataLoader(dataset, **options)

    refused("num_workers option should be non-negative", num_workers=-1)
    refused("timeout option should be non-negative", timeout=-1)
    refused("prefetch_factor option could only", prefetch_factor=2)
    refused("prefetch_factor option should be", prefetch_factor=-1, num_workers=1)
    refused("persistent_workers option needs", persistent_workers=True)
    refused("expected unspecified shuffle", dataset=Stream(1), shuffle=True)
    refused("expected unspecified sampler", dataset=Stream(1), sampler=[0])
    refused("expected unspecified batch_sampler", dataset=Stream(1), batch_sampler=[[0]])
    refused("sampler option is mutually exclusive with shuffle", sampler=[0], shuffle=True)
    refused("batch_sampler option is mutually", batch_sampler=[[0]], batch_size=2)
    refused("batch_size=None option disables", batch_size=None, drop_last=True)
    refused("only be used with multi-process", multiprocessing_context="fork")
    refused("valid start method", multiprocessing_context="no", num_workers=1)
    refused("valid context object", TypeError, multiprocessing_context=3, num_workers=1)
    refused("num_samples should be a positive", dataset=[], shuffle=True)


def test_what_the_order_depends_on_cannot_be_set_later() -> None:
    loader = DataLoader(range(3))
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set"):
            setattr(loader, name, None)
    loader.timeout = 3


def test_pin_memory_without_a_gpu_warns_and_does_nothing(monkeypatch: Any) -> None:
    if lt.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(loader_module, "_told_of_pinning", [])
    with pytest.warns(UserWarning, match="no accelerator is found"):
        assert values(DataLoader(range(2), 2, pin_memory=True)) == [[0, 1]]


def test_a_loader_of_nothing_yields_nothing() -> None:
    assert list(DataLoader([])) == []
    assert list(DataLoader([], num_workers=1)) == []


def test_two_loops_over_one_loader_do_not_disturb_each_other() -> None:
    loader = DataLoader(range(4), 2)
    assert [(a.tolist(), b.tolist()) for a in loader for b in loader] == [
        ([0, 1], [0, 1]),
        ([0, 1], [2, 3]),
        ([2, 3], [0, 1]),
        ([2, 3], [2, 3]),
    ]


def test_a_stop_iteration_of_the_data_set_does_not_end_the_loop_silently() -> None:
    class Bad(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            raise StopIteration

    for workers in (0, 1):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            list(DataLoader(Bad(), num_workers=workers))


def test_replacement_and_numbers_of_samples_pass_through() -> None:
    sampler = RandomSampler(range(3), replacement=True, num_samples=10)
    assert sum(len(b) for b in DataLoader(range(3), 4, sampler=sampler)) == 10


def test_pin_memory_without_a_gpu_warns_once_for_all_loaders_and_epochs(monkeypatch: Any) -> None:
    if lt.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(loader_module, "_told_of_pinning", [])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            loader = DataLoader(range(4), 2, pin_memory=True)
            for _ in range(2):
                assert values(loader) == [[0, 1], [2, 3]]
    assert [w.filename for w in seen] == [__file__]


def test_a_subclass_may_hand_the_dataset_whole_batches():
    class Batched(DataLoader):
        @property
        def _auto_collation(self):
            return False

        @property
        def _index_sampler(self):
            return self.batch_sampler if super()._auto_collation else self.sampler

    asked = []

    class Rows(Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            asked.append(index)
            return lt.tensor(index)

    loader = Batched(Rows(), batch_size=2, collate_fn=lambda rows: rows)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]] == asked
    other = importlib.import_module("lowtide.utils.data.dataloader")
    assert other.RandomSampler is RandomSampler
