"""Where rank 0 and a store's master listen: others reach them, by whatever name they use."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from datetime import timedelta
from typing import Any

import pytest

import lowtide as lt
import lowtide.distributed as dist
from lowtide.framework.distributed import listening
from lowtide.framework.distributed.listening import listen_at, own_address

from .ranks import free_port
from .test_stores import processes


def named(monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    """Let names mean addresses, as /etc/hosts says it."""
    known = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        return known(names.get(host, host), *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def bound(host: str) -> str:
    with contextlib.closing(listen_at(host, 0)) as listener:
        return str(listener.getsockname()[0])


def test_a_name_is_heard_on_all_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, node0="127.0.1.1")
    assert bound("node0") == "0.0.0.0"
    assert bound("127.0.0.1") == "127.0.0.1"
    assert bound("localhost") in ("127.0.0.1", "::1")


def test_the_address_of_a_router_is_heard_on_all_interfaces() -> None:
    assert bound("192.0.2.7") == "0.0.0.0"  # an address of no machine (RFC 5737)


def test_a_port_in_use_is_an_error() -> None:
    with contextlib.closing(listen_at("127.0.0.1", 0)) as listener:
        with pytest.raises(OSError, match="in use") as error:
            listen_at("127.0.0.1", listener.getsockname()[1])
        assert error.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(
    ("told", "found"), [("10.1.2.3", "10.1.2.3"), ("127.0.1.1", "10.9.9.9"), (None, "10.9.9.9")]
)
def test_the_own_address_is_one_that_others_reach(
    told: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Probe(socket.socket):
        def connect(self, address: Any) -> None:
            pass

        def getsockname(self) -> Any:
            return "10.9.9.9", 1

    def gethostbyname(name: str) -> str:
        if told is None:
            raise OSError("unknown")
        return told

    monkeypatch.setattr(socket, "gethostbyname", gethostbyname)
    monkeypatch.setattr(listening.socket, "socket", Probe)
    assert own_address() == found


def test_without_a_network_it_is_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any) -> Any:
        raise OSError("no network")

    monkeypatch.setattr(socket, "gethostbyname", unreachable)
    monkeypatch.setattr(listening.socket, "socket", unreachable)
    assert own_address() == "127.0.0.1"


def test_ranks_meet_at_a_name_that_means_loopback_in_rank_zero_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on two machines: rank 0's name is 127.0.1.1 there, and another address elsewhere."""
    port = free_port()

    def work(rank: int) -> Any:
        named(monkeypatch, node0="127.0.1.1" if rank == 0 else "127.0.0.1")
        os.environ.update(MASTER_ADDR="node0", MASTER_PORT=str(port))
        dist.init_process_group("gloo", timeout=timedelta(seconds=20), rank=rank, world_size=2)
        x = lt.tensor([1.0 + rank])
        dist.all_reduce(x)
        dist.destroy_process_group()
        return x.item()

    assert processes(2, work) == [3.0, 3.0]
