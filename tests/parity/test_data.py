"""Data sets, samplers, collation and the loader behave as PyTorch's."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import numpy as np
import pytest

import lowtide as lt
import lowtide.utils.data as ours

torch = pytest.importorskip("torch")
import torch.utils.data as theirs  # noqa: E402

pytestmark = pytest.mark.parity

Point = namedtuple("Point", "x y")


def plain(value):
    """The same structure with tensors as (dtype, values)."""
    if isinstance(value, torch.Tensor | lt.Tensor):
        return str(value.dtype).rpartition(".")[2], value.tolist()
    if isinstance(value, dict):
        return type(value), {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    return value


def outcome(call):
    try:
        return plain(call())
    except Exception as error:
        return type(error)


BATCHES = [
    [1, 2], [1.5, 2.0], [True, False], ["a", "b"], [b"a"], [(1, "a"), (2, "b")], [[1, 2], [3, 4]],
    [[1, 2], [3]], [{"a": 1}, {"a": 2}], [{"a": 1}, {"b": 2}], [OrderedDict(a=1)], [Point(1, 2.0)],
    [np.float32(1)], [np.float64(2)], [np.int8(3)], [np.array(2.0)], [np.array([1, 2], np.int16)],
    [np.array("x")], [np.array([None])], [None], [1j], [slice(2)], [range(2), range(2)], [()], [[]],
    [(1, [2.0, {"k": "v"}])] * 2, [np.ones(2), np.ones(3)], [],
]  # fmt: skip


@pytest.mark.parametrize("batch", BATCHES, ids=lambda b: repr(b)[:40])
def test_default_collate(batch) -> None:
    assert outcome(lambda: ours.default_collate(batch)) == outcome(
        lambda: theirs.default_collate(batch)
    )


@pytest.mark.parametrize(
    "data",
    [
        1,
        "a",
        np.ones(2),
        np.float32(3),
        np.array(["a"]),
        (1, np.ones(1)),
        [np.ones(1)],
        {"a": np.ones(1)},
        Point(np.ones(1), 2),
        None,
    ],
    ids=lambda d: repr(d)[:40],
)
def test_default_convert(data) -> None:
    assert outcome(lambda: ours.default_convert(data)) == outcome(
        lambda: theirs.default_convert(data)
    )


OPTIONS = [
    {}, {"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None},
    {"sampler": [4, 2, 0]}, {"batch_sampler": [[1], [2, 3]]}, {"num_workers": -1},
    {"prefetch_factor": 2}, {"persistent_workers": True}, {"sampler": [1], "shuffle": True},
    {"batch_sampler": [[1]], "batch_size": 2}, {"batch_size": None, "drop_last": True},
    {"batch_size": 0}, {"batch_size": 2.0}, {"batch_size": True}, {"timeout": -1},
    {"multiprocessing_context": "fork"}, {"batch_size": 2, "num_workers": 2},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_of_a_data_set(options) -> None:
    data = [(i, float(i)) for i in range(7)]
    assert outcome(lambda: list(ours.DataLoader(data, **options))) == outcome(
        lambda: list(theirs.DataLoader(data, **options))
    )


def streams(module):
    class Stream(module.IterableDataset):
        def __init__(self, sizes):
            self.sizes = sizes

        def __iter__(self):
            info = module.get_worker_info()
            me = info.id if info else 0
            return iter(range(100 * me, 100 * me + self.sizes[me]))

    return Stream


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("sizes", [(7,), (0,), (5, 2, 9), (0, 3, 1), (4, 4, 4)])
@pytest.mark.parametrize("options", [{"batch_size": 2}, {"batch_size": 2, "drop_last": True}])
def test_the_order_of_workers_of_an_iterable(sizes, options) -> None:
    workers = len(sizes) if len(sizes) > 1 else 0
    got, expected = (
        outcome(lambda m=m: list(m.DataLoader(streams(m)(sizes), num_workers=workers, **options)))
        for m in (ours, theirs)
    )
    assert got == expected


@pytest.mark.parametrize(
    "lengths", [[3, 7], [0.3, 0.3, 0.4], [0.5, 0.5], [1.0], [11], [-0.5, 1.5], [0.2]]
)
def test_sizes_of_a_random_split(lengths) -> None:
    def sizes(module):
        return [len(p) for p in module.random_split(range(10), lengths)]

    assert outcome(lambda: sizes(ours)) == outcome(lambda: sizes(theirs))


@pytest.mark.parametrize("n", [0, 1, 5, 8])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}])
def test_shares_of_a_distributed_sampler(n, options) -> None:
    def shares(module):
        samplers = [
            module.DistributedSampler(range(n), 3, r, shuffle=False, **options) for r in range(3)
        ]
        return [(len(s), list(s)) for s in samplers]

    assert outcome(lambda: shares(ours)) == outcome(lambda: shares(theirs))


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.RandomSampler([]),
        lambda m: m.RandomSampler([1], 3),
        lambda m: m.RandomSampler([1, 2], num_samples=0),
        lambda m: len(m.RandomSampler([1, 2], num_samples=5)),
        lambda m: len(list(m.RandomSampler([1, 2], num_samples=5))),
        lambda m: m.WeightedRandomSampler([1.0], 0),
        lambda m: m.WeightedRandomSampler([[1.0]], 1),
        lambda m: list(m.WeightedRandomSampler([0.0, 1.0], 3)),
        lambda m: list(m.WeightedRandomSampler([0.0, 1.0], 3, False)),
        lambda m: m.BatchSampler([1], -1, False),
        lambda m: m.BatchSampler([1], 1, None),
        lambda m: list(m.BatchSampler(iter(range(5)), 2, False)),
        lambda m: m.ConcatDataset([]),
        lambda m: m.StackDataset(),
        lambda m: m.StackDataset([1], [1, 2]),
        lambda m: m.Subset(range(5), [4, 0])[1],
        lambda m: m.ConcatDataset([[1, 2], [3]])[-3],
        lambda m: m.ConcatDataset([[1, 2], [3]])[-4],
        lambda m: m.ConcatDataset([[1, 2], [3]])[3],
        lambda m: m.Dataset()[0],
        lambda m: m.DistributedSampler([1], 2, 2),
        lambda m: m.DistributedSampler([1], 1, -1),
    ],
)
def test_edges_of_samplers_and_data_sets(call) -> None:
    assert outcome(lambda: call(ours)) == outcome(lambda: call(theirs))


def test_the_names_of_pytorch_are_there() -> None:
    pipes = (
        "DataPipe",
        "DataChunk",
        "functional_datapipe",
        "deterministic",
        "determinism",
        "_validation",
        "runtime_validation_disabled",
        "_DatasetKind",
    )
    wanted = [n for n in theirs.__all__ if not any(p in n for p in pipes)]
    assert [n for n in wanted if not hasattr(ours, n)] == []
