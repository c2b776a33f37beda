"""Collectives between processes: each against what NumPy makes of the tensors of all ranks."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.distributed as dist
from lowtide.distributed import ReduceOp
from lowtide.framework.distributed import reduction

from .ranks import outcomes, results

COMBINE: dict[ReduceOp, Any] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}
OF_BITS = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
SHAPES = [(), (1,), (3,), (2, 0), (5, 7), (4096,), (4097,)]
DTYPES = ["float32", "float64", "int64", "int32", "uint8", "float16", "bfloat16", "complex64"]


def given(rank: int, shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """The tensor of a rank."""
    draw = np.random.default_rng([seed, rank])
    kind = getattr(lt, dtype)
    if dtype.startswith(("int", "uint")):
        return lt.tensor(draw.integers(0, 50, shape)).to(kind)
    values = draw.standard_normal(shape)
    if dtype == "complex64":
        values = values + 1j * draw.standard_normal(shape)
    return lt.tensor(values).to(kind)


def in_order(tensors: list[Any], op: ReduceOp) -> Any:
    """The reduction in the order of ranks, by ops of one process."""
    name = {"SUM": "add", "AVG": "add", "PRODUCT": "mul", "MIN": "minimum", "MAX": "maximum"}
    name |= {"BAND": "bitwise_and", "BOR": "bitwise_or", "BXOR": "bitwise_xor"}
    total = tensors[0].clone()
    for t in tensors[1:]:
        total = getattr(lt, name[op.name])(total, t)
    return total / len(tensors) if op is ReduceOp.AVG else total


def same(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and a.shape == b.shape and lt.equal(a, b))


def allowed(op: ReduceOp, dtype: str) -> bool:
    whole = dtype.startswith(("int", "uint"))
    if op in OF_BITS:
        return whole
    if op is ReduceOp.AVG:
        return not whole
    return dtype != "complex64" or op is ReduceOp.SUM


@pytest.mark.parametrize("size", [2, 3, pytest.param(5, marks=pytest.mark.deep)])
def test_reductions_are_those_in_the_order_of_ranks_bit_for_bit(size: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)

    def rank_of(rank: int, size: int) -> list[str]:
        wrong = []
        draw = random.Random(seed)
        for shape in SHAPES:
            # Blocks of any size give the same bits; those of the product need large tensors.
            reduction.BLOCK = draw.choice([1000, 4 << 20])
            reduction.SMALL = draw.choice([0, 100, 16 << 10])
            for dtype in draw.sample(DTYPES, 4):
                op = draw.choice([o for o in COMBINE if allowed(o, dtype)])
                every = [given(r, shape, dtype, seed) for r in range(size)]
                expected = in_order(every, op)
                own, root = every[rank].clone(), draw.randrange(size)
                dist.all_reduce(own, op)
                if not same(own, expected):
                    wrong.append(f"all_reduce {op} {dtype} {shape}")
                own = every[rank].clone()
                dist.reduce(own, root, op)
                if not same(own, expected if rank == root else every[rank]):
                    wrong.append(f"reduce {op} {dtype} {shape}")
                lists = [
                    [given(r * 10 + k, shape, dtype, seed) for k in range(size)]
                    for r in range(size)
                ]
                out, before = lt.empty_like(own), [t.clone() for t in lists[rank]]
                dist.reduce_scatter(out, lists[rank], op)
                if not same(out, in_order([one[rank] for one in lists], op)):
                    wrong.append(f"reduce_scatter {op} {dtype} {shape}")
                if not all(map(same, before, lists[rank])):
                    wrong.append(f"reduce_scatter wrote its input: {op} {dtype} {shape}")
        return wrong

    assert results(size, rank_of) == [[]] * size


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.deep)])
def test_what_is_moved_arrives(size: int) -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        wrong: list[Any] = []

        def check(name: str, found: Any, expected: Any) -> None:
            if not same(found, expected):
                wrong.append((name, found, expected))

        for shape in [(), (3,), (2, 3), (0, 2), (1 << 18,)]:
            for dtype in ("float32", "bfloat16", "int64", "bool"):
                every = [given(r, shape, "int64").to(getattr(lt, dtype)) for r in range(size)]
                for root in range(size):
                    t = every[rank].clone()
                    dist.broadcast(t, root)
                    check("broadcast", t, every[root])
                    out = [lt.empty_like(t) for _ in range(size)] if rank == root else None
                    dist.gather(every[rank], out, root)
                    for k, found in enumerate(out or ()):
                        check("gather", found, every[k])
                    t = lt.empty_like(t)
                    dist.scatter(t, every if rank == root else None, root)
                    check("scatter", t, every[rank])
                out = [lt.empty_like(t) for _ in range(size)]
                dist.all_gather(out, every[rank])
                for k, found in enumerate(out):
                    check("all_gather", found, every[k])
                stacked = lt.empty((size, *shape), dtype=every[0].dtype)
                dist.all_gather_into_tensor(stacked, every[rank])
                check("all_gather_into_tensor", stacked, lt.stack(every))
                dist.all_to_all(out, [every[rank]] * size)
                for k, found in enumerate(out):
                    check("all_to_all", found, every[k])
        sums = lt.empty(2, 3)
        dist.reduce_scatter_tensor(sums, lt.arange(size * 6.0).view(size * 2, 3) * (rank + 1))
        total = lt.arange(size * 6.0).view(size, 2, 3)[rank] * (size * (size + 1) / 2)
        check("reduce_scatter_tensor", sums, total)
        # Rank r sends r + k + 1 rows to rank k.
        rows = [rank + k + 1 for k in range(size)]
        sent = lt.cat([lt.full((n, 2), 10.0 * rank + k) for k, n in enumerate(rows)])
        into = lt.empty(sum(rows), 2)
        dist.all_to_all_single(into, sent, rows, rows)
        check(
            "all_to_all_single",
            into,
            lt.cat([lt.full((n, 2), 10.0 * k + rank) for k, n in enumerate(rows)]),
        )
        return wrong

    assert results(size, rank_of) == [[]] * size


def test_views_leaves_and_other_devices() -> None:
    def rank_of(rank: int, size: int) -> bool:
        base = lt.arange(6.0).view(2, 3) * (rank + 1)
        dist.all_reduce(base.t())
        ok = base.tolist() == (lt.arange(6.0).view(2, 3) * 3).tolist()
        part = lt.arange(6.0)
        dist.all_reduce(part[1:4])
        ok &= part.tolist() == [0, 2, 4, 6, 4, 5]
        leaf = lt.ones(2, requires_grad=True)
        dist.broadcast(leaf, 1)
        dist.all_reduce(leaf)
        ok &= leaf.is_leaf and leaf.tolist() == [2, 2]
        far = lt.full((3,), float(rank), device="sim")
        dist.all_reduce(far)
        ok &= far.device.type == "sim" and far.tolist() == [1, 1, 1]
        x = lt.ones(3, requires_grad=True)
        y = (x * 2).exp()  # keeps its result
        dist.all_reduce(y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        return ok

    assert results(2, rank_of) == [True, True]


def test_work_under_way_together_and_waited_for_in_any_order() -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        tensors = [lt.ones(n) * (rank + n) for n in (3, 300_000, 10, 2_000_000, 5)]
        works = [dist.all_reduce(t, async_op=True) for t in tensors]
        future = works[3].get_future().then(lambda f: f.value()[0][7].item())
        if rank == 0:
            works.reverse()
        for work in works:
            assert work.wait()
            assert work.is_success()
        assert works[0].result()[0] is tensors[4 if rank == 0 else 0]
        return [[t[0].item(), t[-1].item()] for t in tensors] + [future.wait()]

    expected = [[2 * n + 1.0] * 2 for n in (3, 300_000, 10, 2_000_000, 5)]
    assert results(2, rank_of) == [[*expected, 4_000_001.0]] * 2


def test_a_future_is_completed_by_who_waits_for_it() -> None:
    def rank_of(rank: int, size: int) -> float:
        works = [dist.all_reduce(lt.ones(3) * k, async_op=True) for k in (1, 2)]
        both = lt.futures.collect_all([work.get_future() for work in works])
        return float(sum(f.value()[0].sum().item() for f in both.wait()))

    assert results(2, rank_of) == [18.0, 18.0]


def test_groups_of_some_ranks() -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        outer = dist.new_group([2, 0])
        inner = dist.new_group([1, 2])
        found: list[Any] = [dist.get_rank(outer), dist.get_rank(inner)]
        for group, ranks in ((outer, [2, 0]), (inner, [1, 2])):
            if rank in ranks:
                t = lt.ones(2) * (rank + 1)
                dist.all_reduce(t, group=group)
                dist.broadcast(t, ranks[0], group)
                found.append(t[0].item())
                assert dist.get_process_group_ranks(group) == ranks
                assert dist.get_global_rank(group, 0) == ranks[0]
                with pytest.raises(ValueError, match="does not exist; the group has the ranks"):
                    dist.broadcast(t, 3 - sum(ranks), group)
            else:
                with pytest.raises(ValueError, match="not a member"):
                    dist.all_reduce(lt.ones(1), group=group)
        dist.barrier()
        return found

    assert results(3, rank_of) == [[1, -1, 4.0], [-1, 0, 5.0], [0, 1, 4.0, 5.0]]


def test_messages_between_two_ranks() -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        large = lt.arange(3_000_000.0)
        found: list[Any] = []
        if rank == 0:
            dist.send(lt.tensor([1.0, 2.0]), 1)
            dist.send(lt.tensor([3.0, 4.0]), 1)
            dist.send(lt.tensor([5]), 1, tag=4)
            dist.send(large, 1)  # both send before they receive
            into = lt.empty(3_000_000)
            found.append(dist.recv(into, 1))
            found.append(lt.equal(into, large * 2))
            for _ in range(2):
                one = lt.empty(1)
                found.append((dist.recv(one), one.item()))
            found[2:] = sorted(found[2:])
        elif rank == 1:
            dist.send(large * 2, 0)
            tagged = lt.empty(1, dtype=lt.int64)
            work = dist.irecv(tagged, 0, tag=4)
            one = lt.empty(2)
            dist.recv(one, 0)
            found.append(one.tolist())
            dist.recv(one, 0)
            found.append(one.tolist())
            work.wait()
            found += [work.source_rank(), tagged.item()]
            into = lt.empty(3_000_000)
            dist.recv(into, 0)
            found.append(lt.equal(into, large))
        if rank:
            dist.send(lt.tensor([float(rank)]), 0)
        dist.barrier()
        ring = [
            dist.P2POp(dist.isend, lt.ones(2) * rank, (rank + 1) % size),
            dist.P2POp(dist.irecv, into := lt.empty(2), (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(ring):
            work.wait()
        found.append(into[0].item())
        return found

    assert results(3, rank_of) == [
        [1, True, (1, 1.0), (2, 2.0), 2.0],
        [[1, 2], [3, 4], 0, 5, True, 0.0],
        [1.0],
    ]


def test_objects_travel_without_pickle() -> None:
    class Own:
        def __reduce__(self) -> Any:
            raise AssertionError("it was pickled")

    def rank_of(rank: int, size: int) -> list[Any]:
        every: list[Any] = [None] * size
        dist.all_gather_object(every, {"rank": rank, "x": lt.ones(rank), "t": (1, None, "a")})
        found: list[Any] = [[e["rank"] for e in every], [len(e["x"]) for e in every]]
        into = [None] * size if rank == 1 else None
        dist.gather_object([rank] * 3, into, 1)
        found.append(into)
        objects = [f"of {rank}", {"k": rank}]
        dist.broadcast_object_list(objects, 2)
        found.append(objects)
        out: list[Any] = [None]
        dist.scatter_object_list(out, [{"for": k} for k in range(size)] if rank == 1 else None, 1)
        found.append(out)
        with pytest.raises(Exception, match="Own"):
            dist.all_gather_object([None] * size, Own())
        return found

    gathered = [[0] * 3, [1] * 3, [2] * 3]
    assert results(3, rank_of) == [
        [[0, 1, 2], [0, 1, 2], gathered if r == 1 else None, ["of 2", {"k": 2}], [{"for": r}]]
        for r in range(3)
    ]


def test_gradients_of_collectives() -> None:
    """A loss of all ranks' outputs has the gradient that one process computes."""

    def of_one_process(size: int, combine: Any) -> list[Any]:
        xs = [given(r, (size, 2), "float64").requires_grad_() for r in range(size)]
        outs = combine(xs)
        loss = sum((o * (k + 1)).square().sum() for k, o in enumerate(outs))
        grads = lt.autograd.grad(loss, xs, allow_unused=True, materialize_grads=True)
        return [g.numpy() for g in grads]

    def of_rank(rank: int, size: int, call: Any) -> Any:
        x = given(rank, (size, 2), "float64").requires_grad_()
        out = call(x)
        (out * (rank + 1)).square().sum().backward()
        return x.grad.numpy()

    calls = {
        "all_reduce": (dist.nn.all_reduce, lambda xs: [sum(xs)] * len(xs)),
        "reduce": (
            lambda x: dist.nn.reduce(x, 1) * (dist.get_rank() == 1),
            lambda xs: [sum(xs) * (k == 1) for k in range(len(xs))],
        ),
        "broadcast": (lambda x: dist.nn.broadcast(x, 1), lambda xs: [xs[1]] * len(xs)),
        "all_gather": (
            lambda x: lt.stack(dist.nn.all_gather(x)),
            lambda xs: [lt.stack(xs)] * len(xs),
        ),
        "gather": (
            lambda x: lt.stack(dist.nn.gather(x, 0)),
            lambda xs: [lt.stack(xs) * (k == 0) for k in range(len(xs))],
        ),
        "scatter": (
            lambda x: dist.nn.scatter(list(x), 1),
            lambda xs: list(xs[1]),
        ),
        "all_to_all": (
            lambda x: lt.stack(dist.nn.all_to_all(list(x.detach()), list(x))),
            lambda xs: [lt.stack([x[k] for x in xs]) for k in range(len(xs))],
        ),
        "all_to_all_single": (
            lambda x: dist.nn.all_to_all_single(x.detach(), x),
            lambda xs: [lt.stack([x[k] for x in xs]) for k in range(len(xs))],
        ),
        "reduce_scatter": (
            lambda x: dist.nn.reduce_scatter(x[0].detach(), list(x)),
            lambda xs: [sum(x[k] for x in xs) for k in range(len(xs))],
        ),
    }

    def rank_of(rank: int, size: int) -> dict[str, Any]:
        return {name: of_rank(rank, size, call) for name, (call, _) in calls.items()}

    found = results(3, rank_of)
    for name, (_, combine) in calls.items():
        for rank, expected in enumerate(of_one_process(3, combine)):
            np.testing.assert_allclose(found[rank][name], expected, rtol=1e-12, err_msg=name)


def test_processes_meet_in_a_file(tmp_path: Any) -> None:
    where = f"file://{tmp_path}/meeting"
    (tmp_path / "meeting").write_text("127.0.0.1 1\n")  # of a job that was killed

    def rank_of(rank: int, size: int) -> float:
        dist.destroy_process_group()
        dist.init_process_group("gloo", where, rank=rank, world_size=size)
        t = lt.ones(1)
        dist.all_reduce(t)
        return t.item()

    assert results(2, rank_of) == [2.0, 2.0]


def test_a_group_again_at_the_same_address() -> None:
    def rank_of(rank: int, size: int) -> list[float]:
        found = []
        where = dist.group.WORLD.channel  # ended below
        for _ in range(3):
            t = lt.ones(1)
            dist.all_reduce(t)
            found.append(t.item())
            dist.destroy_process_group()
            assert where.ended
            dist.init_process_group("gloo", ADDRESS, rank=rank, world_size=size)
        return found

    from .ranks import free_port

    ADDRESS = f"tcp://127.0.0.1:{free_port()}"
    assert results(2, rank_of) == [[2.0] * 3] * 2


def test_workspace_is_a_block_however_large_the_tensor() -> None:
    def rank_of(rank: int, size: int) -> int:
        t = lt.ones(8 << 20)
        dist.barrier()
        lt.reset_peak_memory_stats()
        before = lt.memory_allocated()
        dist.all_reduce(t)
        assert lt.memory_allocated() == before
        return lt.max_memory_allocated() - before

    assert results(2, rank_of) == [2 << 20] * 2
    part = -(-(1 << 20) // 3)  # of three ranks; the last one needs less, and takes the same
    assert results(3, rank_of) == [2 * 4 * part] * 3


def test_a_timeout_of_its_own() -> None:
    def rank_of(rank: int, size: int) -> None:
        if rank == 0:
            dist.monitored_barrier(timeout=timedelta(seconds=0.3))

    first, second = outcomes(2, rank_of)
    assert first.kind == "DistBackendError"
    assert second is None
