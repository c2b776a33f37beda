"""What programs written for PyTorch rely on, each found in one: behaviour that is easily missed."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn
from lowtide.utils.data import RandomSampler


@pytest.fixture
def x() -> lt.Tensor:
    return lt.arange(24.0).reshape(4, 6)


A, B = [0, 1], [2, 3]
LISTS = {
    "tensors": [lt.tensor(A), lt.tensor(B)],
    "lists": [A, B],
    "arrays": [np.array(A), np.array(B)],
    "mixed": [lt.tensor(A), B],
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_sequences_is_a_tuple_with_a_warning(x, name):
    with pytest.warns(UserWarning, match="non-tuple sequence") as told:
        assert x[LISTS[name]].tolist() == [2.0, 9.0]
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="non-tuple sequence"):
        x[LISTS[name]] = -1.0
    assert (x < 0).nonzero().tolist() == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ([slice(0, 2), 1], (2,)),
        ([None, 0], (1, 6)),
        ([Ellipsis, 0], (4,)),
        ([lt.tensor(0), lt.tensor(1)], ()),
        ([lt.tensor(A)], (2, 6)),
    ],
)
def test_so_is_a_list_with_anything_but_numbers(x, key, shape):
    with pytest.warns(UserWarning, match="non-tuple sequence"):
        assert tuple(x[key].shape) == shape


def test_a_list_of_numbers_or_a_long_one_is_an_index(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuple(x[[0, 1]].shape) == (2, 6)
        assert tuple(x[[True, False, True, False]].shape) == (2, 6)
        assert tuple(x[[[0], [1]] * 16].shape) == (32, 1, 6)
        assert tuple(x[(A, B)].shape) == (2,)


def test_grad_takes_only_inputs():
    w = lt.ones(3, requires_grad=True)
    (g,) = lt.autograd.grad((w * w).sum(), w, None, None, False, True)
    assert g.tolist() == [2.0, 2.0, 2.0]
    with pytest.warns(FutureWarning, match="only_inputs"):
        lt.autograd.grad((w * w).sum(), w, only_inputs=False)


def test_a_sampler_with_replacement_draws_as_it_goes():
    sampler = RandomSampler(
        range(1000), replacement=True, num_samples=10**10, generator=lt.Generator().manual_seed(3)
    )
    assert len(sampler) == 10**10
    lt.reset_peak_memory_stats()
    before = lt.memory_allocated()
    walk = iter(sampler)
    found = list(itertools.islice(walk, 10_000))
    assert lt.max_memory_allocated() - before < 1 << 20
    assert set(found) <= set(range(1000))
    assert len(set(found)) > 990
    state = sampler.state_dict()
    rest = list(itertools.islice(walk, 5000))
    other = RandomSampler(range(1000), True, 10**10, generator=lt.Generator())
    other.load_state_dict(state)
    assert list(itertools.islice(iter(other), 5000)) == rest
    second = list(itertools.islice(iter(sampler), 10_000))
    assert second != found


def test_a_large_sampler_ends():
    from lowtide.framework.data import sampler as home

    drawn = home._Draws(7, 10_000, lt.Generator().manual_seed(0))
    parts = [drawn[k : k + home._AT_ONCE].tolist() for k in range(0, 10_000, home._AT_ONCE)]
    assert sum(map(len, parts)) == 10_000
    assert drawn[5000:9096].tolist()[:100] == parts[1][904:1004]


def test_unknown_print_profiles_change_nothing():
    before = str(lt.rand(3) * 0 + 0.123456789)
    try:
        lt.set_printoptions(profile="long")
        assert str(lt.rand(3) * 0 + 0.123456789) == before
        lt.set_printoptions(precision=2)
        lt.set_printoptions(profile="nonsense")
        assert "0.12," in str(lt.rand(3) * 0 + 0.123456789)
    finally:
        lt.set_printoptions(profile="default")


@pytest.mark.parametrize("rows", [2, 4000])  # the second: compiled
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"weight": lt.ones(9)}], ids=str)
def test_a_batch_whose_every_target_is_ignored_has_no_gradient(rows, options):
    z = lt.randn(rows, 9, requires_grad=True)
    ignored = lt.full((rows,), -100)
    loss = F.cross_entropy(z, ignored, **options)
    loss.backward()
    assert loss.isnan()
    assert z.grad is not None
    assert (z.grad == 0).all()
    z.grad = None
    F.nll_loss(z.log_softmax(1), ignored).backward()
    assert (z.grad == 0).all()


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.BatchNorm1d, (0, 3)), (nn.BatchNorm2d, (0, 3, 2, 2))]
)
def test_an_empty_batch_leaves_running_statistics_alone(layer, shape):
    m = layer(3)
    assert m(lt.empty(shape)).shape == shape
    assert m.running_mean.tolist() == [0.0] * 3
    assert m.running_var.tolist() == [1.0] * 3
    assert m.num_batches_tracked == 1


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_classes_are_int64_or_uint8(loss):
    z = lt.randn(2, 3)
    assert loss(z, lt.tensor([1, 2], dtype=lt.uint8)) == loss(z, lt.tensor([1, 2]))
    with pytest.raises(RuntimeError, match=r"Long or Byte .*int32.*int64"):
        loss(z, lt.tensor([1, 2], dtype=lt.int32))


@pytest.mark.parametrize("loss", [F.binary_cross_entropy, F.binary_cross_entropy_with_logits])
@pytest.mark.parametrize("dtype", [lt.int64, lt.bool])
def test_targets_of_binary_cross_entropy_are_floating(loss, dtype):
    with pytest.raises(RuntimeError, match=r"Found dtype .* but expected .*float32.*\.to\("):
        loss(lt.rand(2), lt.tensor([1, 0]).to(dtype))
