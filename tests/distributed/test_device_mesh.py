"""Meshes of ranks: the groups along their dims, and what trains on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.distributed as dist
from lowtide import nn
from lowtide.distributed.device_mesh import DeviceMesh, init_device_mesh
from lowtide.distributed.fsdp import fully_shard
from lowtide.nn.parallel import DistributedDataParallel

from .ranks import results


def total(value: float, group: Any) -> float:
    x = lt.tensor([value])
    dist.all_reduce(x, group=group)
    return x.item()


def test_a_rank_is_in_a_group_along_each_dim() -> None:
    def rank_of(rank: int, size: int) -> Any:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        sums = [total(10.0**rank, mesh.get_group(d)) for d in ("dp", 1)]
        part = mesh["tp"]
        return {
            "sums": sums,
            "coordinate": mesh.get_coordinate(),
            "local": [mesh.get_local_rank("dp"), mesh.get_local_rank(1)],
            "part": [part.mesh.tolist(), part.get_local_rank(), part.size(), part.ndim],
            "same": part.get_group() is mesh.get_group("tp"),
            "turned": mesh["tp", "dp"].mesh.tolist(),
            "ranks": [mesh.get_rank(), mesh.size(), mesh.size(0), mesh.shape],
            "text": repr(mesh),
            "groups": len(mesh.get_all_groups()),
        }

    found = results(4, rank_of)
    assert [f["sums"] for f in found] == [[101, 11], [1010, 11], [101, 1100], [1010, 1100]]
    assert [f["coordinate"] for f in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [f["local"] for f in found] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert [f["part"][0] for f in found] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [f["part"][1:] for f in found] == [[0, 2, 1], [1, 2, 1]] * 2
    assert all(f["same"] and f["turned"] == [[0, 2], [1, 3]] for f in found)
    assert [f["ranks"] for f in found] == [[r, 4, 2, (2, 2)] for r in range(4)]
    assert found[0]["text"] == "DeviceMesh((dp=2, tp=2), 'cpu')"
    assert found[0]["groups"] == 2


def test_ranks_outside_of_a_mesh_take_part_in_making_it() -> None:
    def rank_of(rank: int, size: int) -> Any:
        mesh = DeviceMesh("cpu", [2, 0])
        if rank == 1:
            with pytest.raises(RuntimeError, match="rank 1 is not in the mesh"):
                mesh.get_local_rank()
            return mesh.get_coordinate(), mesh.mesh.tolist()
        return mesh.get_local_rank(), total(float(rank), mesh.get_group())

    assert results(3, rank_of) == [(1, 2.0), (None, [2, 0]), (0, 2.0)]


def test_models_train_on_a_mesh_as_in_its_group() -> None:
    def gradient(model: Any, rank: int) -> Any:
        x = lt.tensor(np.random.default_rng(rank).normal(size=(4, 6)).astype(np.float32))
        model(x).square().sum().backward()
        grads = [p.grad for p in model.parameters()]
        return [g.full_tensor() if hasattr(g, "full_tensor") else g for g in grads]

    def layer() -> Any:
        lt.manual_seed(0)
        return nn.Linear(6, 4)

    def rank_of(rank: int, size: int) -> Any:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
        with pytest.raises(NotImplementedError, match=r"Take one of them, as in mesh\['dp'\]"):
            fully_shard(layer(), mesh=init_device_mesh("cpu", (2, 2, 1)))
        with pytest.raises(RuntimeError, match="not both"):
            DistributedDataParallel(layer(), process_group=dist.group.WORLD, device_mesh=mesh)
        sharded = fully_shard(layer(), mesh=mesh["shards"])
        rows = [tuple(p.shape) for p in sharded.parameters()]
        copied = DistributedDataParallel(layer(), device_mesh=mesh["shards"])
        a = gradient(copied, rank)
        gradient(sharded, rank)
        b = [p.grad for p in sharded.parameters()]
        first = mesh.get_local_rank("shards") * 2
        own = [x[first : first + 2] for x in a]
        same = all(np.array_equal(x.numpy(), y.numpy()) for x, y in zip(own, b, strict=True))
        return rows, same, a[0].numpy()

    found = results(4, rank_of)
    assert all(rows == [(2, 6), (2,)] and same for rows, same, _ in found)
    assert np.array_equal(found[0][2], found[1][2])
    assert not np.array_equal(found[0][2], found[2][2])


@pytest.fixture
def world_of_two() -> Any:
    dist.init_process_group("fake", rank=1, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world_of_two")
def test_a_mesh_of_the_world_is_the_default_group() -> None:
    mesh = init_device_mesh("cpu", (2,))
    assert mesh.get_group() is dist.group.WORLD
    assert mesh.get_local_rank() == 1
    again = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    assert mesh == again
    assert hash(mesh) == hash(again)
    assert mesh != DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh_dim_names=("dp",))
    assert again.get_group() is dist.group.WORLD
    assert mesh != "cpu"


@pytest.mark.usefixtures("world_of_two")
def test_what_makes_no_mesh_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"a mesh of \(2, 2\) has 4 ranks, and the world has 2"):
        init_device_mesh("cpu", (2, 2))
    for names in (("a",), ("a", "a")):
        with pytest.raises(ValueError, match="must name 2 dims, each once"):
            init_device_mesh("cpu", (1, 2), mesh_dim_names=names)
    for ranks in ([0, 0], [0, 2], [-1]):
        with pytest.raises(ValueError, match="must name ranks of a world of 2, each once"):
            DeviceMesh("cpu", ranks)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))
    with pytest.raises(RuntimeError, match="get_group: the mesh has 2 dims"):
        mesh.get_group()
    with pytest.raises(KeyError, match="there is no dim 'c'"):
        mesh["c"]
    with pytest.raises(NotImplementedError, match="a mesh of several groups"):
        DeviceMesh.from_group([dist.group.WORLD], "cpu")
    with pytest.raises(NotImplementedError, match="backend_override"):
        init_device_mesh("cpu", (2,), backend_override={0: "gloo"})


def test_a_group_is_made_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert init_device_mesh("cpu", (1,)).size() == 1
    assert dist.is_initialized()
    dist.destroy_process_group()
    assert DeviceMesh("cpu", lt.tensor([0])).get_local_rank() == 0
    dist.destroy_process_group()
