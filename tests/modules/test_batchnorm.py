"""Batch and instance normalization: running averages in place, their role, and old state dicts."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.memory.ledger import BUFFER


def batch(*shape, seed=0):
    return lt.tensor(np.random.default_rng(seed).standard_normal(shape))


def test_running_averages_are_what_numpy_says():
    layer = nn.BatchNorm1d(3, momentum=0.3).double()
    mean, var = np.zeros(3), np.ones(3)
    for seed in range(3):
        x = batch(5, 3, 4, seed=seed)
        layer(x)
        rows = x.numpy().transpose(1, 0, 2).reshape(3, -1)
        mean = 0.7 * mean + 0.3 * rows.mean(1)
        var = 0.7 * var + 0.3 * rows.var(1, ddof=1)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(layer.running_var.numpy(), var, rtol=1e-12)
    assert layer.num_batches_tracked.item() == 3


def test_without_momentum_the_averages_are_means_over_batches():
    layer = nn.BatchNorm2d(2, momentum=None).double()
    batches = [batch(3, 2, 4, 4, seed=s) for s in range(4)]
    for x in batches:
        layer(x)
    means = [x.numpy().mean((0, 2, 3)) for x in batches]
    np.testing.assert_allclose(layer.running_mean.numpy(), np.mean(means, 0), rtol=1e-12)


@pytest.mark.parametrize("name", ["BatchNorm1d", "InstanceNorm1d"])
def test_averages_are_written_in_place_and_outside_the_graph(name):
    layer = getattr(nn, name)(3, affine=True, track_running_stats=True).double()
    buffers = {n: (b, b._storage) for n, b in layer.named_buffers()}
    for seed in range(3):
        layer(batch(4, 3, 5, seed=seed)).sum().backward()
    for n, b in layer.named_buffers():
        assert b is buffers[n][0]
        assert b._storage is buffers[n][1]
        assert b._storage.role == BUFFER
        assert b.grad_fn is None
        assert not b.requires_grad
    assert layer.running_mean._version > 0


@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_steps_leave_no_bytes_behind(momentum):
    layer = nn.BatchNorm2d(3, momentum=momentum)
    x = lt.randn(4, 3, 5, 5)
    live = []
    for _ in range(4):
        layer.zero_grad()
        layer(x).sum().backward()
        live.append(lt.memory_allocated("cpu"))
    assert live[1:] == live[:1] * 3


def test_evaluation_changes_nothing():
    layer = nn.BatchNorm1d(3)
    layer(lt.randn(4, 3))
    layer.eval()
    before = {n: b.tolist() for n, b in layer.named_buffers()}
    layer(lt.randn(4, 3))
    assert {n: b.tolist() for n, b in layer.named_buffers()} == before


def test_reset_forgets_the_batches():
    layer = nn.BatchNorm1d(3)
    layer(lt.randn(4, 3))
    layer.reset_running_stats()
    assert layer.running_mean.tolist() == [0.0] * 3
    assert layer.running_var.tolist() == [1.0] * 3
    assert layer.num_batches_tracked.item() == 0


def test_a_state_dict_from_before_the_count_loads():
    old = nn.BatchNorm1d(3).state_dict()
    del old["num_batches_tracked"]
    layer = nn.BatchNorm1d(3)
    layer(lt.randn(4, 3))
    layer.load_state_dict(old)
    assert layer.running_mean.tolist() == [0.0] * 3
    assert layer.num_batches_tracked.item() == 1  # what it was


def test_the_count_stays_an_integer_when_the_layer_is_converted():
    layer = nn.BatchNorm1d(3).to(lt.bfloat16)
    assert layer.running_mean.dtype is lt.bfloat16
    assert layer.num_batches_tracked.dtype is lt.int64


def test_a_module_without_affine_or_averages_has_none_of_them():
    layer = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
    assert list(layer.state_dict()) == []
    assert (layer.weight, layer.bias, layer.running_mean, layer.num_batches_tracked) == (None,) * 4


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (nn.BatchNorm1d(3), (3,), r"BatchNorm1d: expected 2D or 3D input \(got 1D input\)"),
        (nn.BatchNorm2d(3), (2, 3, 4), r"BatchNorm2d: expected 4D input \(got 3D input\)"),
        (nn.BatchNorm3d(3), (2, 3, 4, 5), r"BatchNorm3d: expected 5D input"),
        (nn.BatchNorm1d(3), (1, 3), "more than 1 value per channel"),
        (nn.InstanceNorm1d(3), (3,), "InstanceNorm1d: expected 2D or 3D input"),
        (nn.InstanceNorm2d(3, affine=True), (2, 4, 5, 5), "dim=1 to match num_features"),
        (nn.InstanceNorm1d(3), (2, 3, 1), "more than 1 spatial element"),
    ],
)
def test_a_bad_input_is_refused_with_its_shape(layer, shape, message):
    with pytest.raises(ValueError, match=message):
        layer(lt.zeros(shape))
    assert layer.running_mean is None or layer.running_mean.tolist() == [0.0] * 3


def test_instance_norm_warns_about_unused_features():
    with pytest.warns(UserWarning, match="num_features"):
        nn.InstanceNorm1d(3)(lt.randn(2, 4, 5))
