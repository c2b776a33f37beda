"""A process group of one process: who is in it, what collectives write, what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import distributed as dist


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


COLLECTIVES: dict[str, Any] = {
    "all_reduce": lambda t: dist.all_reduce(t),
    "broadcast": lambda t: dist.broadcast(t, 0),
    "reduce": lambda t: dist.reduce(t, 0),
    "all_gather": lambda t: dist.all_gather([t.clone()], t),
    "all_gather_into_tensor": lambda t: dist.all_gather_into_tensor(t.clone(), t),
    "gather": lambda t: dist.gather(t, [t.clone()]),
    "scatter": lambda t: dist.scatter(t, [t.clone()]),
    "reduce_scatter": lambda t: dist.reduce_scatter(t.clone(), [t]),
    "reduce_scatter_tensor": lambda t: dist.reduce_scatter_tensor(t.clone(), t),
    "all_to_all": lambda t: dist.all_to_all([t.clone()], [t]),
    "all_to_all_single": lambda t: dist.all_to_all_single(t.clone(), t),
    "barrier": lambda t: dist.barrier(),
    "all_gather_object": lambda t: dist.all_gather_object([None], 1),
    "broadcast_object_list": lambda t: dist.broadcast_object_list([1], 0),
    "send": lambda t: dist.send(t, 0),
    "nn.all_reduce": lambda t: dist.nn.all_reduce(t),
    "new_group": lambda t: dist.new_group(),
    "get_rank": lambda t: dist.get_rank(),
    "get_world_size": lambda t: dist.get_world_size(),
    "get_backend": lambda t: dist.get_backend(),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_without_a_group_every_call_says_so(name: str) -> None:
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="has not been initialized"):
        COLLECTIVES[name](lt.ones(2))


def test_the_only_rank(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dist.is_available()
    assert dist.is_backend_available("gloo")
    assert not dist.is_backend_available("nccl")
    assert dist.is_initialized()
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "gloo")
    world = dist.group.WORLD
    assert world is not None
    assert (world.rank(), world.size(), world.name()) == (0, 1, "gloo")
    assert dist.get_process_group_ranks(world) == [0]
    assert dist.get_global_rank(world, 0) == dist.get_group_rank(world, 0) == 0
    with pytest.raises(ValueError, match="rank 1 does not exist"):
        dist.broadcast(lt.ones(1), 1)
    other = dist.new_group([0], backend="nccl")
    assert dist.get_backend(other) == "nccl"
    nobody = dist.new_group([])
    assert dist.get_rank(nobody) == dist.get_world_size(nobody) == -1
    with pytest.raises(ValueError, match="the only rank is 0"):
        dist.new_group([0, 1])
    dist.destroy_process_group(other)
    with pytest.raises(ValueError, match="was destroyed"):
        dist.all_reduce(lt.ones(1), group=other)
    with pytest.raises(ValueError, match="there already"):
        dist.init_process_group("gloo", rank=0, world_size=1)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(RuntimeError, match="fallback_rank=0"):
        dist.get_node_local_rank()
    assert dist.get_node_local_rank(3) == 3
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert dist.get_node_local_rank() == 2


def test_where_rank_and_size_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match="RANK, which is not set"):
        dist.init_process_group()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "port")
    with pytest.raises(ValueError, match="MASTER_PORT must be a number; it is 'port'"):
        dist.init_process_group("nccl")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ValueError, match="MASTER_ADDR, which is not set. Start the script with"):
        dist.init_process_group("nccl")
    assert not dist.is_initialized()
    monkeypatch.setenv("WORLD_SIZE", "1")
    for given in (
        {},
        {"init_method": "env://"},
        {"init_method": "tcp://localhost:1?rank=0&world_size=1"},
        {"init_method": "tcp://localhost:1", "rank": 0, "world_size": 1},
        {"store": dist.HashStore(), "rank": 0, "world_size": 1},
    ):
        dist.init_process_group("nccl", **given)
        assert dist.get_world_size() == 1
        dist.destroy_process_group()
    with pytest.raises(ValueError, match="rank 1 of world_size 1"):
        dist.init_process_group(rank=1, world_size=1)
    with pytest.raises(ValueError, match="none of env://"):
        dist.init_process_group(init_method="smoke://", rank=0, world_size=1)
    with pytest.raises(ValueError, match="not a backend"):
        dist.init_process_group("carrier pigeon", rank=0, world_size=1)
    with pytest.raises(ValueError, match="needs rank and world_size"):
        dist.init_process_group(store=dist.HashStore())
    with pytest.raises(ValueError, match="never made, or destroyed"):
        dist.destroy_process_group()


def test_what_collectives_write(group: None) -> None:
    x = lt.tensor([1.0, 2.0])
    into = lt.zeros(2)
    assert dist.all_reduce(x) is None
    assert x.tolist() == [1.0, 2.0]
    for call in (
        lambda: dist.all_gather([into], x),
        lambda: dist.all_gather_into_tensor(into, x),
        lambda: dist.all_gather_into_tensor(into.view(1, 2), x),
        lambda: dist.gather(x, [into]),
        lambda: dist.scatter(into, [x]),
        lambda: dist.reduce_scatter(into, [x], dist.ReduceOp.MAX),
        lambda: dist.reduce_scatter_tensor(into, x),
        lambda: dist.all_to_all([into], [x]),
        lambda: dist.all_to_all_single(into, x, [2], [2]),
    ):
        into.zero_()
        call()
        assert into.tolist() == [1.0, 2.0]
    made: list[Any] = [None]
    obj = {"a": [1]}
    dist.all_gather_object(made, obj)
    assert made == [obj]
    assert made[0] is not obj
    dist.scatter_object_list(made, [obj])
    assert made == [obj]
    assert made[0] is not obj
    dist.gather_object(obj, made)
    dist.broadcast_object_list(made, 0)
    assert made == [obj]
    dist.monitored_barrier()


def test_a_write_of_a_leaf_that_takes_gradients_is_not_recorded(group: None) -> None:
    parameter = lt.nn.Parameter(lt.zeros(2))
    dist.scatter(parameter, [lt.ones(2)])
    assert parameter.is_leaf
    assert parameter.tolist() == [1.0, 1.0]


def test_a_handle_is_done(group: None) -> None:
    x = lt.ones(2)
    work = dist.all_reduce(x, async_op=True)
    assert work.is_completed()
    assert work.wait()
    assert work.result()[0] is x
    future = work.get_future()
    assert isinstance(future, lt.futures.Future)
    assert future.then(lambda f: f.wait()[0] * 2).wait().tolist() == [2.0, 2.0]


def test_what_does_not_fit_is_refused_and_nothing_is_written(group: None) -> None:
    x, into = lt.ones(2), lt.zeros(3)
    with pytest.raises(ValueError, match=r"shape \(2,\) and dtype"):
        dist.all_gather([into], x)
    with pytest.raises(ValueError, match="one tensor a rank, so 1; it has 2"):
        dist.all_gather([into, into], x)
    with pytest.raises(ValueError, match="int64; it has"):
        dist.scatter(lt.zeros(2, dtype=lt.int64), [x])
    with pytest.raises(TypeError, match="expected a tensor; got list"):
        dist.all_reduce([1.0])
    with pytest.raises(RuntimeError, match="BAND works on integers"):
        dist.all_reduce(x, dist.ReduceOp.BAND)
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT, dist.ReduceOp.BOR):
        with pytest.raises(ValueError, match=f"{op.name} does not work on complex"):
            dist.all_reduce(lt.ones(2, dtype=lt.complex64), op)
    with pytest.raises(ValueError, match="none of"):
        dist.all_reduce(x, "sum")
    with pytest.raises(ValueError, match="needs scatter_list"):
        dist.scatter(x)
    with pytest.raises(ValueError, match="needs gather_list"):
        dist.gather(x)
    with pytest.raises(ValueError, match=r"output_split_sizes=\[1, 1\]"):
        dist.all_to_all_single(into, x, [1, 1])
    for call in (dist.send, dist.recv, dist.isend, dist.irecv):
        with pytest.raises(ValueError, match="no rank to exchange with"):
            call(x, 0)
    with pytest.raises(ValueError, match="one entry a rank"):
        dist.all_gather_object([], 1)
    assert into.tolist() == [0.0, 0.0, 0.0]


def test_gradients_pass(group: None) -> None:
    x = lt.randn(3, dtype=lt.float64, requires_grad=True)
    for call in (
        lambda t: dist.nn.all_reduce(t),
        lambda t: dist.nn.broadcast(t, 0),
        lambda t: dist.nn.reduce(t, 0),
        lambda t: dist.nn.all_gather(t)[0],
        lambda t: dist.nn.gather(t)[0],
        lambda t: dist.nn.scatter([t]),
        lambda t: dist.nn.reduce_scatter(t.detach().clone(), [t]),
        lambda t: dist.nn.all_to_all([t.detach().clone()], [t])[0],
        lambda t: dist.nn.all_to_all_single(t.detach().clone(), t),
    ):
        out = call(x * 2)
        assert np.array_equal(out.detach().numpy(), (x * 2).detach().numpy())
        (gradient,) = lt.autograd.grad(out.sum(), x)
        assert gradient.tolist() == [2.0, 2.0, 2.0]


def test_stores() -> None:
    store = dist.HashStore()
    store.set("a", "1")
    assert store.get("a") == b"1"
    assert store.add("n", 2) == 2
    assert store.add("n", 3) == 5
    assert store.compare_set("a", "1", "2") == b"2"
    assert store.compare_set("a", "1", "3") == b"2"
    assert store.compare_set("new", "", "x") == b"x"
    assert store.check(["a", "n"])
    assert not store.check(["b"])
    assert store.num_keys() == 3
    assert store.delete_key("new")
    assert not store.delete_key("new")
    store.append("a", "b")
    store.multi_set(["x", "y"], ["1", "2"])
    assert store.multi_get(["a", "x", "y"]) == [b"2b", b"1", b"2"]
    with pytest.raises(RuntimeError, match="no other process that could set it"):
        store.wait(["absent"])
    below = dist.PrefixStore("p", store)
    below.set("k", "v")
    assert store.get("p/k") == b"v"
    assert below.num_keys() == 1
    assert below.add("c", 1) == 1


def test_futures_wait_for_another_thread() -> None:
    first, second = lt.futures.Future(), lt.futures.Future()
    both = lt.futures.collect_all([first, second])
    assert not both.done()
    with pytest.raises(RuntimeError, match=r"Call wait\(\)"):
        first.value()
    threads = [
        threading.Thread(target=f.set_result, args=(n,)) for n, f in enumerate([first, second])
    ]
    for thread in threads:
        thread.start()
    assert lt.futures.wait_all([first, second]) == [0, 1]
    assert both.wait() == [first, second]
    for thread in threads:
        thread.join()
    with pytest.raises(RuntimeError, match="completed already"):
        first.set_result(2)
    failed = first.then(lambda f: 1 // f.value())
    with pytest.raises(ZeroDivisionError):
        failed.wait()
    broken = lt.futures.Future()
    broken.set_exception(KeyError("k"))
    with pytest.raises(KeyError):
        broken.wait()
    assert lt.futures.collect_all([]).wait() == []


def test_wrappers_are_attributes_of_nn_parallel() -> None:
    assert lt.nn.parallel.DistributedDataParallel.__name__ == "DistributedDataParallel"
    assert lt.nn.parallel.__name__ == "lowtide.nn.parallel"
