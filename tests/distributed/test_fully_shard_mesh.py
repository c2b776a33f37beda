"""fully_shard over a mesh: shards along its last dim, the same rows along its first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.distributed as dist
import lowtide.distributed.checkpoint as dcp
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.distributed.device_mesh import init_device_mesh
from lowtide.distributed.fsdp import full_state_dict, fully_shard
from lowtide.profiling import estimate

from .ranks import Failed, outcomes, results
from .test_fully_shard import Net, arrays, same, sharded, tokens_of, train


def mesh_of(*sizes: int) -> Any:
    names = ("replicate", "shard") if len(sizes) == 2 else ("shard",)
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def losses_of(net: Any, rank: int, steps: int = 4, rate: float = 0.1) -> list[float]:
    optimizer = optim.SGD(net.parameters(), rate, momentum=0.9)
    losses = []
    for step in range(steps):
        x, y = tokens_of(step, rank)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x).view(-1, 50), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("sizes", [(2, 2), (1, 3), (3, 1), (2, 1)])
def test_all_ranks_train_the_model_of_one_group(sizes: tuple[int, int]) -> None:
    def rank_of(rank: int, size: int) -> Any:
        one, net = Net(), Net()
        sharded(one)
        sharded(net, mesh=mesh_of(*sizes))
        losses = losses_of(one, rank), losses_of(net, rank)
        states = [arrays(full_state_dict(n)) for n in (one, net)]
        shapes = [tuple(p.shape) for p in net.parameters()]
        return losses, states, shapes

    found = results(sizes[0] * sizes[1], rank_of)
    for rank, (losses, states, shapes) in enumerate(found):
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
        for name, value in states[0].items():
            np.testing.assert_allclose(states[1][name], value, rtol=1e-4, atol=1e-6, err_msg=name)
        assert same(states[1], found[0][1][1])  # every rank has the same bits
        assert shapes == found[rank % sizes[1]][2]
    if sizes[0] == 1:
        assert same(found[0][1][0], found[0][1][1])


def test_gradients_of_each_group_are_averaged_and_then_those_of_all() -> None:
    def rank_of(rank: int, size: int) -> Any:
        lt.manual_seed(0)
        net = nn.Linear(300, 300, bias=False)
        fully_shard(net, mesh=mesh_of(2, 2))
        net(lt.full((1, 300), 10.0**rank)).sum().backward()
        return net.weight.grad.numpy()

    expected = np.float32(((1 + 10) / 2 + (100 + 1000) / 2) / 2)
    for g in results(4, rank_of):
        assert g.shape == (150, 300)
        assert (g == expected).all()


@pytest.mark.parametrize("sizes", [(2, 2), (1, 2), (2, 1)])
def test_each_ranks_bytes_are_predicted(sizes: tuple[int, int]) -> None:
    def rank_of(rank: int, size: int) -> Any:
        net = sharded(Net(), mesh=mesh_of(*sizes))
        optimizer = optim.AdamW(net.parameters())

        def step() -> None:
            train(net, optimizer, rank, 1)

        step()
        predicted = estimate(step).peak_bytes
        lt.reset_peak_memory_stats()
        step()
        return predicted, lt.max_memory_allocated()

    for predicted, real in results(sizes[0] * sizes[1], rank_of):
        assert predicted == real


@pytest.mark.parametrize("way", ["mesh of two dims", "one dim of a mesh"])
def test_checkpoints_have_each_row_once(tmp_path: Path, way: str) -> None:
    def shard(net: Any) -> Any:
        mesh = mesh_of(2, 2)
        return sharded(net, mesh=mesh if way == "mesh of two dims" else mesh["shard"])

    def write(rank: int, size: int) -> Any:
        net = shard(Net())
        optimizer = optim.AdamW(net.parameters(), 1e-2)
        if way == "mesh of two dims":
            train(net, optimizer, rank, 2)
        dcp.save({"model": net.state_dict()}, checkpoint_id=tmp_path)
        return arrays(full_state_dict(net))

    def read(rank: int, size: int) -> Any:
        net = Net()
        if size == 4:
            shard(net)
        elif size > 1:
            sharded(net)
        with lt.no_grad():
            for p in net.parameters():
                p.zero_()
        dcp.load({"model": net.state_dict()}, checkpoint_id=tmp_path)
        return arrays(full_state_dict(net))

    expected = results(4, write)[0]
    bytes_there = sum(f.stat().st_size for f in tmp_path.glob("*.safetensors"))
    own = sum(value.nbytes for value in expected.values())
    assert own <= bytes_there < 1.1 * own
    for size in (1, 3, 4):
        assert all(same(expected, got) for got in results(size, read))


def test_groups_that_cut_one_tensor_differently_are_refused(tmp_path: Path) -> None:
    def rank_of(rank: int, size: int) -> Any:
        groups = [dist.new_group([0]), dist.new_group([1, 2])]
        net = nn.Linear(6, 6)
        fully_shard(net, mesh=groups[0 if rank == 0 else 1])
        dcp.save(net.state_dict(), checkpoint_id=tmp_path)

    for found in outcomes(3, rank_of):
        assert isinstance(found, Failed)
        assert found.kind == "ValueError"
        assert "as many ranks in each group" in found.message
    assert not list(tmp_path.glob("index.json"))
