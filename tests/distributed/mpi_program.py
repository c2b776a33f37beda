"""What ``test_mpi.py`` runs under mpiexec: messages, collectives, training, and failures.

mpiexec -n 3 python -m tests.distributed.mpi_program WHAT
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import lowtide as lt
import lowtide.distributed as dist
from lowtide.framework.distributed import reduction
from lowtide.nn.parallel import DistributedDataParallel
from tests.distributed.test_collectives import COMBINE, allowed, given, in_order, same
from tests.distributed.test_data_parallel import equal, network, trained


def collectives(rank: int, size: int) -> None:
    """Each reduction in the order of ranks, and what is moved."""
    for block in (1000, 4 << 20):
        reduction.BLOCK = block
        for shape in ((), (3,), (2, 0), (5000,)):
            for dtype in ("float32", "bfloat16", "int64", "complex64"):
                for op in COMBINE:
                    if not allowed(op, dtype):
                        continue
                    every = [given(r, shape, dtype) for r in range(size)]
                    own = every[rank].clone()
                    dist.all_reduce(own, op)
                    assert same(own, in_order(every, op)), (op, dtype, shape)
    large = lt.full((3_000_000,), float(rank))
    dist.all_reduce(large)
    assert (large == sum(range(size))).all()
    for root in range(size):
        t = lt.arange(4.0) + rank
        dist.broadcast(t, root)
        assert t.tolist() == [root, root + 1, root + 2, root + 3]
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "x": lt.ones(rank)})
    assert [len(o["x"]) for o in objects] == list(range(size))
    works = [dist.all_reduce(lt.ones(n), async_op=True) for n in (5, 2_000_000, 3)]
    for work in reversed(works):
        work.wait()
        assert work.result()[0][0].item() == size


def messages(rank: int, size: int) -> None:
    """Between two ranks, also of any; and groups of some."""
    ring = [
        dist.P2POp(dist.isend, lt.ones(200_000) * rank, (rank + 1) % size),
        dist.P2POp(dist.irecv, into := lt.empty(200_000), (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(ring):
        work.wait()
    assert (into == (rank - 1) % size).all()
    if rank:
        dist.send(lt.tensor([float(rank)]), 0, tag=3)
    else:
        one = lt.empty(1)
        found = [(dist.recv(one, tag=3), one.item()) for _ in range(size - 1)]
        assert sorted(found) == [(r, float(r)) for r in range(1, size)]
    ends = dist.new_group([size - 1, 0])
    if rank in (0, size - 1):
        t = lt.tensor([float(rank)])
        dist.broadcast(t, size - 1, ends)
        assert t.item() == size - 1


def training(rank: int, size: int) -> None:
    """The model of one process, bit for bit."""
    model = DistributedDataParallel(network())
    found = trained(model, [rank], 2)
    assert equal(found, trained(network(), list(range(size)), 2, divisor=size))


def disagree(rank: int, size: int) -> None:
    """Ranks that call different collectives are told."""
    try:
        dist.all_reduce(lt.ones(2 + rank))
    except dist.DistBackendError as error:
        assert "Ranks disagree" in str(error), error
    else:
        raise AssertionError("no error")


def deadline(rank: int, size: int) -> None:
    """A rank that does not come is named, or has left by then."""
    if rank == 1:
        return
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=1))
    except dist.DistBackendError as error:
        assert "rank" in str(error), error
    else:
        raise AssertionError("no error")


def fail(rank: int, size: int) -> None:
    """One rank raises an exception, and the others wait for it."""
    if rank == 1:
        raise ZeroDivisionError("of rank 1")
    dist.all_reduce(lt.ones(3_000_000))


WHAT = {f.__name__: f for f in (collectives, messages, training, disagree, deadline, fail)}

if __name__ == "__main__":
    dist.init_process_group("mpi")
    for name in sys.argv[1:]:
        WHAT[name](dist.get_rank(), dist.get_world_size())
        if name not in ("disagree", "deadline"):
            dist.barrier()
    dist.destroy_process_group()
    print(f"rank done: {' '.join(sys.argv[1:])}")
