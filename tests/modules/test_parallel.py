"""Wrappers of parallel training in one process: what they wrap computes, and nothing is added."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.nn.parallel import DataParallel, DistributedDataParallel, parallel_apply, scatter


@pytest.fixture
def group() -> Iterator[None]:
    lt.distributed.init_process_group("gloo", rank=0, world_size=1)
    yield
    lt.distributed.destroy_process_group()


def network() -> Any:
    lt.manual_seed(0)
    return nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Flatten())


def step(model: Any, bare: Any) -> list[Any]:
    generator = lt.Generator().manual_seed(1)
    x = lt.randn(4, 2, 6, generator=generator)
    out = model(x)
    out.square().sum().backward()
    arrays = [out.detach(), *(p.grad for p in bare.parameters()), *bare.buffers()]
    return [a.numpy() for a in arrays]


@pytest.mark.parametrize("wrapper", [DataParallel, DistributedDataParallel])
def test_a_wrapped_module_computes_what_it_computes_alone(wrapper: Any, group: None) -> None:
    alone, inner = network(), network()
    wrapped = wrapper(inner)
    assert wrapped.module is inner
    assert [f"module.{k}" for k in alone.state_dict()] == list(wrapped.state_dict())
    for a, b in zip(step(alone, alone), step(wrapped, inner), strict=True):
        assert np.array_equal(a, b)
    wrapped.eval()
    assert not inner.training
    again = wrapper(network())
    again.load_state_dict(wrapped.state_dict())
    for a, b in zip(again.parameters(), wrapped.parameters(), strict=True):
        assert np.array_equal(a.detach().numpy(), b.detach().numpy())


@pytest.mark.parametrize("wrapper", [DataParallel, DistributedDataParallel])
def test_a_wrapper_takes_no_byte(wrapper: Any, group: None) -> None:
    peaks = []
    for wrap in (lambda m: m, wrapper):
        inner = network()
        model = wrap(inner)
        before = lt.memory_allocated()
        lt.reset_peak_memory_stats()
        out = model(lt.ones(4, 2, 6))
        out.sum().backward()
        peaks.append((lt.max_memory_allocated() - before, lt.memory_allocated() - before))
        del out, model, inner
    assert peaks[0] == peaks[1]


def test_gradients_add_up_under_no_sync(group: None) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1))
    with model.no_sync():
        assert not model.require_backward_grad_sync
        model(lt.ones(1, 2)).sum().backward()
    assert model.require_backward_grad_sync
    model(lt.ones(1, 2)).sum().backward()
    assert model.module.weight.grad.tolist() == [[2.0, 2.0]]
    with pytest.raises(ZeroDivisionError), model.no_sync():
        raise ZeroDivisionError
    assert model.require_backward_grad_sync
    with model.join():
        model(lt.ones(1, 2))


def test_distributed_data_parallel_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="has not been initialized"):
        DistributedDataParallel(nn.Linear(1, 1))
    lt.distributed.init_process_group("gloo", rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="no parameter of the module takes a gradient"):
            DistributedDataParallel(nn.ReLU())
        with pytest.raises(ValueError, match="2 devices"):
            DistributedDataParallel(nn.Linear(1, 1), device_ids=[0, 1])
        with pytest.raises(NotImplementedError, match="mixed_precision"):
            DistributedDataParallel(nn.Linear(1, 1), mixed_precision=object())
        with pytest.raises(TypeError, match="must be callable"):
            DistributedDataParallel(nn.Linear(1, 1)).register_comm_hook(None, None)
    finally:
        lt.distributed.destroy_process_group()
    with pytest.raises(ValueError, match="2 devices"):
        DataParallel(nn.Linear(1, 1), device_ids=[0, 1])


def test_the_pieces_of_data_parallel() -> None:
    tree = {"x": lt.ones(2), "y": [lt.zeros(1), 3], "z": (lt.ones(1),)}
    (moved,) = scatter(tree, ["cpu"])
    assert moved["x"].tolist() == [1.0, 1.0]
    assert moved["y"][1] == 3
    assert isinstance(moved["z"], tuple)
    layer = nn.Linear(2, 1)
    a, b = parallel_apply([layer, layer], [lt.ones(1, 2), (lt.zeros(1, 2),)])
    assert np.array_equal(a.detach().numpy(), layer(lt.ones(1, 2)).detach().numpy())
    assert np.array_equal(b.detach().numpy(), layer(lt.zeros(1, 2)).detach().numpy())
    assert nn.parallel.replicate(layer, ["cpu"]) == [layer]
    assert nn.parallel.gather([lt.ones(1)], "cpu").tolist() == [1.0]
    one = nn.parallel.data_parallel(layer, lt.ones(1, 2))
    assert np.array_equal(one.detach().numpy(), a.detach().numpy())
    with pytest.raises(ValueError, match="output of one device; got 2"):
        nn.parallel.gather([lt.ones(1), lt.ones(1)], "cpu")
    with pytest.raises(ValueError, match="1 modules, 2 inputs"):
        parallel_apply([layer], [lt.ones(1, 2), lt.ones(1, 2)])


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 4), (2, 3, 2, 2, 2)])
def test_synchronized_batch_norm_is_batch_norm(shape: tuple[int, ...]) -> None:
    plain = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    layers = nn.SyncBatchNorm(3, momentum=None), plain[len(shape)](3, momentum=None)
    generator = lt.Generator().manual_seed(0)
    x = lt.randn(shape, generator=generator)
    for layer in layers:
        for _ in range(2):
            layer(x).square().sum().backward()
        layer.eval()
    rows = [
        [layer(x).detach(), layer.weight.grad, layer.bias.grad, *layer.buffers()]
        for layer in layers
    ]
    for a, b in zip(*rows, strict=True):
        assert np.array_equal(a.numpy(), b.numpy())


def test_synchronized_batch_norm_takes_the_place_of_others() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Sequential(nn.BatchNorm2d(2, affine=False)))
    model.add_module("last", nn.BatchNorm1d(2, bias=False))
    model[1].eval()
    tensors = dict(model.state_dict(keep_vars=True))
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    for layer in (model[0], model[1][0], model[2]):
        assert type(layer) is nn.SyncBatchNorm
    found = model.state_dict(keep_vars=True)
    assert list(found) == list(tensors)
    assert all(found[name] is tensors[name] for name in tensors)
    assert model[0].training
    assert not model[1][0].training
    with pytest.raises(ValueError, match="at least 2D"):
        model[0](lt.ones(3))


def test_wrappers_travel(group: None) -> None:
    model = DataParallel(network())
    other = copy.deepcopy(model)
    buffer = io.BytesIO()
    lt.save(model.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(lt.load(buffer))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert np.array_equal(a.detach().numpy(), b.detach().numpy())
