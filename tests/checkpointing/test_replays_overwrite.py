"""A replay of a region writes a result over a value that nothing else reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lowtide as lt
from lowtide.framework.autograd.remat.replay import _Replay
from lowtide.nn import functional as F

SIZE = 1 << 14  # elements, of 4 bytes: as much as is asked about
BLOCK = 4 * SIZE


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the calls of replays that write over a value."""
    count = [0]
    usual = _Replay._room

    def counted(self: Any, producer: Any) -> Any:
        room = usual(self, producer)
        count[0] += room is not None
        return room

    monkeypatch.setattr(_Replay, "_room", counted)
    return count


def chain(x: Any) -> Any:
    return F.silu(F.dropout(F.gelu(F.dropout(x * 2, 0.3)), 0.2))


def shared(x: Any) -> Any:
    h = F.gelu(x * 2)  # read by two calls: the first must leave it
    return F.silu(h) * F.dropout(h, 0.5)


def viewed(x: Any) -> Any:
    h = F.gelu(x * 2).view(2, -1)
    return (F.silu(h[0]) * F.dropout(h, 0.5)[1]).repeat(2)


def written(x: Any) -> Any:
    h = F.dropout(x * 2, 0.1)
    h.mul_(0.5)
    return F.gelu(F.silu(h))


def named(x: Any) -> Any:
    h = lt.checkpointing.checkpoint_name(F.gelu(x * 2), "h")
    return F.silu(F.dropout(h, 0.5))


def twice(x: Any) -> Any:
    h = F.dropout(x * 2, 0.5)
    return F.silu(h * h)


PROGRAMS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "chain": (chain, 1),
    "shared": (shared, 0),
    "viewed": (viewed, 0),
    "written": (written, 1),
    "named": (named, 0),
    "twice": (twice, 0),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_without_a_region(name: str, device: str, rooms: list[int]) -> None:
    function, least = PROGRAMS[name]
    found = []
    for region in (False, True):
        lt.manual_seed(1)
        x = lt.linspace(-3, 3, SIZE, device=device).requires_grad_()
        y = lt.checkpoint(function, x) if region else function(x)
        assert rooms[0] == 0
        y.mul(lt.linspace(0, 1, SIZE, device=device)).sum().backward()
        if device == "cpu":
            assert x.grad is not None
            found.append(x.grad.numpy().tobytes())
    assert found[:1] == found[1:]
    assert rooms[0] >= least


def test_nested_regions_and_repeated_replays() -> None:
    def inner(x: Any) -> Any:
        return lt.checkpoint(chain, lt.checkpoint(shared, F.gelu(F.dropout(x * 2, 0.1))))

    found = []
    for times in (0, 1, 3):
        lt.manual_seed(2)
        x = lt.linspace(-3, 3, SIZE).requires_grad_()
        loss = (lt.checkpoint(inner, x) if times else inner(x)).sum()
        for k in range(times or 1):
            x.grad = None
            loss.backward(retain_graph=k + 1 < times)
        assert x.grad is not None
        found.append(x.grad.numpy().tobytes())
    assert found[0] == found[1] == found[2]


def test_a_replay_needs_one_block_where_it_needed_two() -> None:
    def region(x: Any) -> Any:
        return F.dropout(F.dropout(F.dropout(x, 0.1), 0.1), 0.1).sin()

    x = lt.ones(SIZE, requires_grad=True)
    y = lt.checkpoint(region, x)
    g = lt.ones(SIZE)
    before = lt.memory_allocated()
    lt.reset_peak_memory_stats()
    y.backward(g)
    # The recomputed input of sin, its cosine and the product; the replay itself takes one block.
    assert lt.max_memory_allocated() - before == 3 * BLOCK
