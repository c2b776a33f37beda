"""Stores: the same keys and values for all processes, whoever is killed or late."""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lowtide as lt
import lowtide.distributed as dist
from lowtide.framework.distributed import file_store
from lowtide.framework.distributed.stores import Table

from .ranks import free_port

SOON = timedelta(seconds=0.2)
KINDS = ("hash", "tcp", "file", "prefix", "prefix of tcp")


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Any]:
    def made(kind: str) -> Any:
        if kind == "hash":
            return dist.HashStore()
        if kind == "file":
            return dist.FileStore(tmp_path / "store")
        if kind == "prefix":
            return dist.PrefixStore("p", dist.PrefixStore("q", dist.FileStore(tmp_path / "store")))
        store = dist.TCPStore("127.0.0.1", 0, is_master=True)
        return dist.PrefixStore("p", store) if kind.startswith("prefix") else store

    return made


def processes(count: int, work: Callable[[int], Any]) -> list[Any]:
    """What forked processes return, or their exceptions."""
    pipes = []
    for k in range(count):
        read, write = os.pipe()
        if not os.fork():
            code = 1
            try:
                try:
                    found = work(k)
                except Exception as error:
                    found = error
                with os.fdopen(write, "wb") as out:
                    out.write(pickle.dumps(found))
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        pipes.append(os.fdopen(read, "rb"))
    found = [pickle.loads(pipe.read()) for pipe in pipes]
    for pipe in pipes:
        pipe.close()
        os.wait()
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_drawn_calls_do_what_a_table_does(kind: str, seed: int, make: Any) -> None:
    draw = random.Random(seed)
    store, table = make(kind), Table()
    keys = ["a", "b", "c/d", "e\N{GREEK SMALL LETTER ALPHA}"]
    for _ in range(60):
        key, value = draw.choice(keys), draw.randbytes(draw.choice([0, 1, 5, 300]))
        call = draw.choice(["set", "add", "append", "compare", "delete", "check", "get", "list"])
        if call == "set":
            store.set(key, value)
            table.set(key, value)
        elif call == "add" and table.values.get(key, b"0").isdigit():
            assert store.add(key, 3) == table.add(key, 3)
        elif call == "append":
            store.append(key, value)
            table.append(key, value)
        elif call == "compare":
            before = draw.choice([b"", table.values.get(key, b"x")])
            assert store.compare_set(key, before, b"1") == table.compare_set(key, before, b"1")
        elif call == "delete":
            assert store.delete_key(key) == table.delete_key(key)
        elif call == "check":
            assert store.check([key, "a"]) == table.check([key, "a"])
        elif call == "get" and key in table.values:
            assert store.get(key) == table.values[key]
        elif call == "list":
            assert sorted(store.list_keys()) == sorted(table.values)
            assert store.num_keys() == len(table.values)
    assert {key: store.get(key) for key in store.list_keys()} == table.values


@pytest.mark.parametrize("kind", KINDS)
def test_several_keys_at_once(kind: str, make: Any) -> None:
    store = make(kind)
    store.multi_set(["a", "b"], ["1", b"\xff\0"])
    assert store.multi_get(["b", "a"]) == [b"\xff\0", b"1"]
    assert store.has_extended_api()
    with pytest.raises(ValueError, match="1 keys and 2 values"):
        store.multi_set(["a"], ["1", "2"])


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_sets_is_an_error_that_names_it(kind: str, make: Any) -> None:
    store = make(kind)
    store.set("there", "1")
    store.set_timeout(SOON)
    begun = time.monotonic()
    with pytest.raises(dist.DistStoreError, match="absent"):
        store.get("absent")
    with pytest.raises(dist.DistStoreError, match="absent"):
        store.wait(["there", "absent"])
    assert (time.monotonic() - begun > 0.3) == (kind != "hash")
    store.wait(["there"], timedelta(0))
    with pytest.raises(dist.DistStoreError):
        store.wait(["absent"], timedelta(0))


@pytest.mark.parametrize("kind", ["tcp", "file", "prefix of tcp"])
def test_processes_count_together(kind: str, make: Any) -> None:
    store = make(kind)
    store.set("before", "the fork")  # whose connection is this process's own

    def work(k: int) -> Any:
        seen = [store.add("count", 1) for _ in range(100)]
        store.append("all", bytes([65 + k]) * 3)
        store.barrier("end", 4)
        return seen, store.get("all")

    found = processes(4, work)
    assert sorted(n for seen, _ in found for n in seen) == list(range(1, 401))
    texts = {text for _, text in found}
    (text,) = texts
    assert sorted(text[k : k + 3] for k in (0, 3, 6, 9)) == [b"AAA", b"BBB", b"CCC", b"DDD"]


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_who_waits_gets_what_another_sets_later(kind: str, make: Any) -> None:
    store = make(kind)

    def work(k: int) -> Any:
        if k:
            time.sleep(0.2)
            store.set("late", b"\xfe")
            return None
        return store.get("late")

    assert processes(2, work)[0] == b"\xfe"


class Flickering(dist.HashStore):
    """A store in which a key is deleted twice just after it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = 3

    def _run(self, name: str, *args: Any) -> Any:
        if name == "get" and self.gone:
            self.gone -= 1
            return None
        return super()._run(name, *args)


def test_a_key_that_is_deleted_meanwhile_is_waited_for_again() -> None:
    store = Flickering()
    store.set("a", "b")
    assert store.get("a") == b"b"
    assert store.gone == 0


# By TCP


def test_threads_take_clones() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=20))
    found: list[Any] = []
    waits = threading.Thread(target=lambda: found.append(store.clone().get("key")))
    waits.start()
    time.sleep(0.05)
    store.set("key", "value")  # the one that waits keeps nobody else
    waits.join(10)
    assert found == [b"value"]
    assert store.clone().timeout == timedelta(seconds=20)


def test_workers_are_waited_for() -> None:
    port = free_port()

    def work(k: int) -> Any:
        store = dist.TCPStore("127.0.0.1", port, 3, is_master=k == 0)
        there = int(store.get("lowtide/workers"))
        store.barrier("end", 3)
        if k == 0:
            time.sleep(0.2)  # the others have heard
        return there, store.list_keys()

    for there, keys in processes(3, work):
        assert there == 3
        assert all(key.startswith("end/") for key in keys)


def test_a_worker_that_does_not_come_is_counted() -> None:
    with pytest.raises(dist.DistStoreError, match=r"1 of 2 processes have made a store"):
        dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=SOON)
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=SOON, wait_for_workers=False)
    assert store.num_keys() == 0


def test_without_a_master_there_is_an_error() -> None:
    port = free_port()
    with pytest.raises(dist.DistNetworkError, match=f"no master at 127.0.0.1:{port}"):
        dist.TCPStore("127.0.0.1", port, timeout=SOON).set("a", "b")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(dist.DistNetworkError, match="cannot listen"):
            dist.TCPStore("127.0.0.1", taken.getsockname()[1], is_master=True)


def test_values_go_with_their_master() -> None:
    master = dist.TCPStore("127.0.0.1", 0, is_master=True)
    other = dist.TCPStore("127.0.0.1", master.port)
    other.set("a", "b")
    other.set_timeout(SOON)
    del master
    with pytest.raises(dist.DistNetworkError, match="does not answer|no master"):
        other.get("a")
    with pytest.raises(dist.DistNetworkError, match="no master"):
        other.get("a")


def test_a_stranger_does_no_harm() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x02\0\0\0{}", b'\x08\0\0\0["pop"]]', b""):
        with socket.create_connection(("127.0.0.1", store.port)) as stranger:
            stranger.sendall(words)
    with pytest.raises(dist.DistStoreError, match="no call"):
        store._run("__init__x")
    store.set("a", "text")
    with pytest.raises(dist.DistStoreError, match="add"):
        store.add("a", 1)
    store.set("a", "b")
    assert store.get("a") == b"b"


# In a file


def test_a_writer_that_is_killed_costs_its_own_entry_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = dist.FileStore(path)
    store.set("a", "first")
    whole = path.stat().st_size
    store.set("key", "value of some length")
    data = path.read_bytes()
    for size in range(whole, len(data)):
        path.write_bytes(data[:size])
        assert dist.FileStore(path).list_keys() == ["a"]
        store.set("b", "after")
        assert {key: store.get(key) for key in store.list_keys()} == {"a": b"first", "b": b"after"}
        assert path.stat().st_size == whole + 8 + len("b") + len("after")


def test_the_last_process_removes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def work(k: int) -> Any:
        store = dist.FileStore(path, 3)
        store.barrier("end", 3)
        found = path.exists(), sorted(store.list_keys())
        del store
        return found

    assert processes(3, work) == [(True, ["end/complete", "end/count"])] * 3
    assert not path.exists()
    kept = dist.FileStore(path)
    kept.set("a", "b")
    del kept
    assert path.exists()


def test_a_file_that_was_removed_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, removed = dist.FileStore(tmp_path / "store"), []

    def flock(file: Any, kind: int) -> None:
        if not removed:
            removed.append((tmp_path / "store").unlink())
        fcntl.flock(file, kind)

    monkeypatch.setattr(file_store, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=fcntl.LOCK_EX))
    store.set("a", "b")
    assert removed
    assert dist.FileStore(tmp_path / "store").get("a") == b"b"


def test_a_killed_process_holds_no_lock(tmp_path: Path) -> None:
    code = (
        "import fcntl, os, signal\n"
        f"f = open({str(tmp_path / 'store')!r}, 'r+b')\n"
        "fcntl.flock(f, fcntl.LOCK_EX)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    store = dist.FileStore(tmp_path / "store")
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    store.set("a", "b")
    assert store.get("a") == b"b"


# Groups that meet in one


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[dict[str, Callable[[int], Any]]]:
    port = free_port()
    return {
        "tcp": lambda rank: dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0),
        "file": lambda rank: dist.FileStore(tmp_path / "store", 2),
        "prefix": lambda rank: dist.PrefixStore("job", dist.FileStore(tmp_path / "store")),
    }


@pytest.mark.parametrize("kind", ["tcp", "file", "prefix"])
def test_ranks_meet_in_a_store_again_and_again(kind: str, stores: Any) -> None:
    def work(rank: int) -> Any:
        store, found = stores[kind](rank), []
        for _ in range(3):
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
            x = lt.tensor([1.0 + rank])
            dist.all_reduce(x)
            found.append(x.item())
            dist.destroy_process_group()
        store.barrier("end", 2)
        if rank == 0:
            time.sleep(0.2)
        return found

    assert processes(2, work) == [[3.0, 3.0, 3.0]] * 2


def test_a_store_of_one_process_is_no_meeting_place() -> None:
    with pytest.raises(ValueError, match="Let several meet in a TCPStore or a FileStore"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=2)
    assert not dist.is_initialized()


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    store = dist.FileStore(tmp_path / "store")
    with pytest.raises(dist.DistNetworkError, match="rank 1 did not come to the address in the"):
        dist.init_process_group("gloo", timeout=SOON, store=store, rank=0, world_size=2)
    store = dist.FileStore(tmp_path / "other")
    with pytest.raises(dist.DistNetworkError, match="did not reach rank 0 at an address in the"):
        dist.init_process_group("gloo", timeout=SOON, store=store, rank=1, world_size=3)
