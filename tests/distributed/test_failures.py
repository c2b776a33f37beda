"""What goes wrong between processes is an error that says which ranks, in every rank, at once."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import lowtide as lt
import lowtide.distributed as dist
from lowtide import nn
from lowtide.nn.parallel import DistributedDataParallel

from .ranks import Failed, outcomes, results

SHORT = timedelta(seconds=1)

DIFFERENT: dict[str, Any] = {
    "op": lambda rank, t: dist.all_reduce(t) if rank else dist.broadcast(t, 0),
    "shape": lambda rank, t: dist.all_reduce(t[: rank + 1]),
    "dtype": lambda rank, t: dist.all_gather(
        [t] * 3 if not rank else [t.int()] * 3, t if not rank else t.int()
    ),
    "how": lambda rank, t: dist.all_reduce(t, [dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank % 2]),
    "root": lambda rank, t: dist.broadcast(t, min(rank, 1)),
    "list": lambda rank, t: dist.all_reduce_coalesced([t] * (1 + rank)),
    "large": lambda rank, t: dist.all_reduce(lt.ones(2_000_000 + rank)),
    "nothing": lambda rank, t: dist.barrier() if rank else dist.all_reduce(lt.ones(0)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_call_different_collectives_are_told_before_anything_is_written(
    name: str,
) -> None:
    def rank_of(rank: int, size: int) -> Any:
        t = lt.full((4,), float(rank))
        with pytest.raises(dist.DistBackendError) as caught:
            DIFFERENT[name](rank, t)
        return str(caught.value), t.tolist()

    for rank, (message, values) in enumerate(results(3, rank_of)):
        assert "Ranks disagree about call 1 of the group" in message
        assert "by rank" in message
        assert "Nothing was written" in message
        assert values == [rank] * 4


@pytest.mark.deep
def test_a_deadline_names_the_rank_that_did_not_come() -> None:
    def rank_of(rank: int, size: int) -> Any:
        if rank == 1:
            time.sleep(2.5)
            return None
        begun = time.monotonic()
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(lt.ones(3))
        return time.monotonic() - begun, str(caught.value)

    found = results(3, rank_of, timeout=SHORT)
    for rank in (0, 2):
        seconds, message = found[rank]
        assert 0.9 < seconds < 2.4
        if "waited" in message:
            assert f"rank {rank} waited 1 s for rank 1" in message
            assert "all_reduce SUM of float32 (3,), call 1 of the group" in message


def test_after_an_error_the_group_says_why_it_is_broken() -> None:
    def rank_of(rank: int, size: int) -> Any:
        words = []
        for _ in range(2):
            with pytest.raises(dist.DistBackendError) as caught:
                dist.all_reduce(lt.ones(1 + rank))
            words.append(str(caught.value))
        dist.destroy_process_group()
        return words

    for first, second in results(2, rank_of):
        assert "Ranks disagree" in first
        assert "the group is broken: Ranks disagree" in second
        assert "init_process_group() again" in second


@pytest.mark.parametrize("end", ["raise", "exit", "kill", "_exit"])
def test_ranks_that_wait_for_one_that_ended_are_told_at_once(end: str) -> None:
    def rank_of(rank: int, size: int) -> Any:
        dist.barrier()
        if rank == 1:
            if end == "raise":
                raise ZeroDivisionError
            if end == "exit":
                raise SystemExit(3)
            if end == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        begun = time.monotonic()
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(lt.ones(3_000_000))
        return time.monotonic() - begun, str(caught.value)

    found = outcomes(3, rank_of)
    for rank in (0, 2):
        assert not isinstance(found[rank], Failed), found[rank].trace
        seconds, message = found[rank]
        assert seconds < 5
        assert "is gone" in message
    assert "rank 1 is gone: its process ended or left the group" in found[0][1] + found[2][1]


def interrupting(ready: Path) -> Any:
    """What interrupts rank 0 once it has written a file and is waiting."""

    def interrupt(pids: list[int]) -> None:
        while not ready.exists():
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(pids[0], signal.SIGINT)

    return interrupt


def test_a_rank_that_is_interrupted_leaves_and_the_others_are_told(tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def rank_of(rank: int, size: int) -> Any:
        if rank == 0:
            ready.touch()
            with pytest.raises(KeyboardInterrupt):
                dist.recv(lt.ones(1), 1)
            with pytest.raises(dist.DistBackendError, match=r"interrupted \(KeyboardInterrupt\)"):
                dist.barrier()
            return None
        with pytest.raises(dist.DistBackendError, match="is gone"):
            dist.barrier()
        return None

    found = outcomes(2, rank_of, during=interrupting(ready))
    assert found == [None, None], found


@pytest.mark.deep
def test_an_interrupted_backward_leaves_the_model_to_the_next_group(tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def rank_of(rank: int, size: int) -> Any:
        layer = nn.Linear(3, 1, bias=False)
        model = DistributedDataParallel(layer)
        if rank == 0:
            ready.touch()
            with pytest.raises(KeyboardInterrupt):
                model(lt.ones(1, 3)).sum().backward()
        else:
            while not ready.exists():
                time.sleep(0.01)
            time.sleep(2)
        dist.destroy_process_group()
        model.zero_grad()
        alone = layer(lt.ones(1, 3)).sum()
        model.reducer.armed = False
        alone.backward()
        return layer.weight.grad.tolist()

    assert outcomes(2, rank_of, during=interrupting(ready)) == [[[1.0, 1.0, 1.0]]] * 2


def test_a_message_of_another_shape_or_dtype_is_refused() -> None:
    def rank_of(rank: int, size: int) -> Any:
        if rank == 0:
            dist.send(lt.ones(3), 1)
            return None
        into = lt.zeros(2)
        with pytest.raises(dist.DistBackendError) as caught:
            dist.recv(into, 0)
        return str(caught.value), into.tolist()

    message, values = outcomes(2, rank_of)[1]
    assert "rank 0 sent float32 (3,); expected float32 (2,)" in message
    assert values == [0, 0]


def test_a_forked_child_is_no_rank_and_ends_without_harm() -> None:
    def rank_of(rank: int, size: int) -> Any:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(lt.ones(1))
            except dist.DistBackendError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        t = lt.ones(2)
        dist.all_reduce(t)
        return os.read(read, 4096).decode(), t.tolist()

    for message, values in results(2, rank_of):
        assert "forked from a rank" in message
        assert values == [2, 2]


def test_loader_workers_do_not_hide_that_a_rank_died() -> None:
    def rank_of(rank: int, size: int) -> Any:
        if rank == 1:
            for _ in lt.utils.data.DataLoader(range(100), num_workers=1):
                os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(dist.DistBackendError, match="is gone"):
            dist.barrier()
        return time.monotonic() - begun

    assert outcomes(2, rank_of)[0] < 10


def meeting(**changed: Any) -> list[Any]:
    """Outcomes of two ranks that meet again, with other arguments."""
    from .ranks import free_port

    port = free_port()

    def rank_of(rank: int, size: int) -> None:
        dist.destroy_process_group()
        given = {"rank": rank, "world_size": size, "init_method": f"tcp://127.0.0.1:{port}"}
        given |= {name: value(rank) for name, value in changed.items()}
        dist.init_process_group("gloo", timeout=timedelta(seconds=1.5), **given)

    return outcomes(2, rank_of)


@pytest.mark.deep
def test_processes_that_do_not_meet_are_told_what_is_wrong() -> None:
    first, _ = meeting(world_size=lambda rank: 3)
    assert "rank 2 did not come to 127.0.0.1 in time" in repr(first)
    for found in meeting(rank=lambda rank: 0):
        assert found.kind == "DistNetworkError"
    first, second = meeting(world_size=lambda rank: 2 + rank)
    assert "rank 1 says world_size=3, and rank 0 says 2" in repr(first)
    assert "rank 1 says world_size=3, and rank 0 says 2" in repr(second)
    _, second = meeting(init_method=lambda rank: f"tcp://127.0.0.1:{[2, 1][rank]}")
    assert "rank 1 did not reach rank 0 at 127.0.0.1:1" in repr(second)


@pytest.mark.deep
def test_other_jobs_and_strangers_at_the_address_do_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import socket

    from .ranks import free_port

    port = free_port()

    def rank_of(rank: int, size: int) -> Any:
        dist.destroy_process_group()
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "a",
        }
        if rank == 2:  # of another job
            os.environ |= {"RANK": "1", "TORCHELASTIC_RUN_ID": "b"}
            with pytest.raises(dist.DistNetworkError, match="another job meets at this address"):
                dist.init_process_group()
            for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100):
                with socket.create_connection(("127.0.0.1", port)) as sock:
                    sock.sendall(words)
            return None
        if rank == 1:
            time.sleep(1.5)
        dist.init_process_group(timeout=timedelta(seconds=30))
        t = lt.ones(1)
        dist.all_reduce(t)
        return t.item()

    assert outcomes(3, rank_of) == [2.0, 2.0, None]
