"""Memory runs out at any allocation: the books stay exact, and everything there stays usable.

Each scenario runs once for each allocation it makes, and that allocation is refused. Further down:
what the error tells.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend
from lowtide.framework.devices.host import HostBackend
from lowtide.framework.memory.ledger import format_bytes
from lowtide.framework.spec import Spec
from lowtide.profiling import MemoryProfiler, estimate

Leaves = list[lt.Tensor]


def loss_of(w: Leaves) -> lt.Tensor:
    return ((w[0] * w[1]).exp() * w[0]).sum()


def backward(w: Leaves) -> None:
    loss_of(w).backward()


def accumulated(w: Leaves) -> None:
    for _ in range(3):
        loss_of(w).backward()


def in_place(w: Leaves) -> None:
    y = w[0] * w[1]
    y.mul_(w[0])
    y[0].add_(w[1][0])
    y.t()[1].mul_(y[:, 2].clone())
    y.sum().backward()


def views(w: Leaves) -> None:
    base = w[0] * 2
    rows = base[1:3]
    rows.mul_(w[1][1:3])
    flat = base.view(-1)
    flat.add_(1.0)
    base.mul_(base)
    (base.sum() + rows.sum() + flat.sum()).backward()


def second_order(w: Leaves) -> None:
    (g,) = lt.autograd.grad(loss_of(w), w[0], create_graph=True)
    (g * g).sum().backward()


def composed(w: Leaves) -> None:
    ((w[0] @ w[1]).softmax(-1).log() @ w[0].t()).mean().backward()


def converted(w: Leaves) -> None:
    y = (w[0].half() @ w[1].half()).softmax(-1).float()
    y[1:].copy_(w[0][1:].double())
    y.double().add_(w[1]).sum().backward()


def hooked(w: Leaves) -> None:
    y = w[0] * w[1]
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    y.exp().sum().backward()


def packed(w: Leaves) -> None:
    with lt.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        y = (w[0] * w[1]).exp() * w[0]
        y.mul_(w[1])
    y.sum().backward()


class Both(lt.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: lt.Tensor, y: lt.Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return x * y + x, y.exp()

    @staticmethod
    def backward(ctx: Any, g: lt.Tensor, h: lt.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * y + g, g * x + h * y.exp()


def function(w: Leaves) -> None:
    a, b = Both.apply(w[0], w[1])
    (a * b).sum().backward()


SCENARIOS = [
    backward,
    accumulated,
    in_place,
    views,
    second_order,
    composed,
    converted,
    hooked,
    packed,
    function,
]


def leaves() -> Leaves:
    lt.manual_seed(0)
    return [lt.randn(4, 4, requires_grad=True) for _ in range(2)]


@contextmanager
def refusing(number: int) -> Iterator[list[int]]:
    """Refuse the allocation of that number; what is yielded counts them."""
    be = backend(lt.device("cpu"))
    plain, made = type(be).empty, [0]

    def empty(spec: Any, role: int = 0) -> Any:
        made[0] += 1
        if made[0] == number:
            be.ledger.refuse(spec.nbytes)
        return plain(be, spec, role)

    be.empty = empty  # type: ignore[method-assign]
    try:
        yield made
    finally:
        del be.empty


def gradients(w: Leaves) -> list[Any]:
    return [None if x.grad is None else x.grad.numpy().copy() for x in w]


def fails(run: Callable[[Leaves], None], w: Leaves) -> bool:
    try:
        run(w)
    except lt.OutOfMemoryError:
        return True
    return False


@pytest.mark.parametrize("run", SCENARIOS, ids=lambda run: run.__name__)
def test_at_every_allocation_of(run: Callable[[Leaves], None]) -> None:
    ledger = backend(lt.device("cpu")).ledger
    w = leaves()
    with refusing(0) as made:
        run(w)
    expected = gradients(w)
    values = [x.detach().numpy().copy() for x in w]
    del w
    gc.collect()
    gc.disable()
    try:
        start = ledger.live
        for number in range(1, made[0] + 1):
            w = leaves()
            with refusing(number):
                failed = fails(run, w)
            assert failed
            assert sum(ledger.roles) == ledger.live
            assert sum(ledger.peak_roles) == ledger.peak
            kept = sum(x.nbytes + (x.grad.nbytes if x.grad is not None else 0) for x in w)
            assert ledger.live == start + kept
            for x, value in zip(w, values, strict=True):
                np.testing.assert_array_equal(x.detach().numpy(), value)
                x.grad = None
            run(w)
            for g, right in zip(gradients(w), expected, strict=True):
                np.testing.assert_array_equal(g, right)
            del w, x, g
        assert ledger.live == start
    finally:
        gc.enable()
    assert made[0] > 4


@pytest.fixture
def cramped() -> Iterator[tuple[Any, lt.Tensor]]:
    """A model whose forward passes the limit, and its input."""
    gc.collect()
    net = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    x = lt.randn(32, 16)
    lt.set_memory_limit(lt.memory_allocated() + 20_000)  # two results of 8 KiB
    yield net, x
    lt.set_memory_limit(None)


def test_the_error_tells_of_the_pool_and_how_to_see_owners(cramped: Any) -> None:
    net, x = cramped
    pool = backend(lt.device("cpu")).pool
    with pytest.raises(lt.MemoryLimitError) as caught:
        net(x)
    error = caught.value
    assert error.requested_bytes == 32 * 64 * 4
    assert error.owners == {}
    assert error.reserved_bytes == pool.top
    assert error.live_bytes <= error.used_bytes <= error.reserved_bytes
    message = str(error)
    assert "lowtide profile SCRIPT" in message
    assert "lowtide.profiling.advise(step)" in message
    assert f"largest free block has {format_bytes(error.largest_free_bytes)}" in message


def test_the_largest_free_block_is_the_hole() -> None:
    be = HostBackend("cpu", 1 << 24, computes=True)
    blocks = [be.empty(Spec((n,), lt.uint8, lt.device("cpu"))) for n in (640, 6400, 64)]
    del blocks[1]
    with pytest.raises(lt.OutOfMemoryError, match="address space") as caught:
        be.empty(Spec((1 << 25,), lt.uint8, lt.device("cpu")))
    error = caught.value
    assert (error.reserved_bytes, error.used_bytes) == (640 + 6400 + 64, 640 + 64)
    assert (error.largest_free_bytes, error.live_bytes) == (6400, 640 + 64)
    assert "its largest free block has 6.25 KiB" in str(error)


def test_inside_a_profiler_the_error_names_owners(cramped: Any) -> None:
    net, x = cramped
    with pytest.raises(lt.MemoryLimitError) as caught, MemoryProfiler(modules=net):
        net(x)  # this line
    error = caught.value
    by_module, by_line = error.owners["module"], error.owners["line"]
    assert sum(by_module.values()) == sum(by_line.values()) == error.live_bytes
    # Weight and bias of the second, and its result; of the first as well.
    assert by_module["1"] == (64 * 64 + 64) * 4 + 32 * 64 * 4
    assert by_module["0"] == (16 * 64 + 64) * 4 + 32 * 64 * 4
    assert list(by_module.values()) == sorted(by_module.values(), reverse=True)
    (line,) = [name for name in by_line if "test_exhaustion.py" in name]
    assert by_line[line] == 2 * 32 * 64 * 4
    assert f"{line} 16.00 KiB" in str(error)
    assert "lowtide profile SCRIPT" not in str(error)


def test_inside_a_profiler_the_error_says_what_would_have_fitted() -> None:
    gc.collect()
    width, rows = 32, 64
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Tanh()) for _ in range(4)
    )
    net = nn.ModuleDict({"blocks": blocks})
    x = lt.randn(rows, width)
    value = rows * width * 4
    lt.set_memory_limit(lt.memory_allocated() + 7 * value)  # the fourth block's does not fit

    def forward(y: Any) -> Any:
        for block in blocks:
            y = block(y)
        return y

    try:
        with pytest.raises(lt.MemoryLimitError) as caught, MemoryProfiler(modules=net):
            forward(x)
    finally:
        lt.set_memory_limit(None)
    error = caught.value
    # A tanh keeps its result: two of each block. The last of a block flows into the next, which
    # would keep it too; and those of one block come back at a time.
    assert error.remedies == {
        "activation checkpointing of each of blocks": (6 - 2 - 2) * value,
        "no_grad, where no gradient is wanted": 6 * value,
    }
    message = str(error)
    assert (
        "before the rest of the step: activation checkpointing of each of blocks frees" in message
    )
    assert "no_grad, where no gradient is wanted frees" in message
    assert "advise(step)" in message
    assert "%" not in message.partition("frees")[2]  # no share of the batch: advise knows


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_no_grad_is_offered_where_nothing_is_trained(cramped: Any, mode: str) -> None:
    net, x = cramped
    optimizer = lt.optim.SGD(net.parameters(), lr=0.1)
    getattr(net, mode)()
    with pytest.raises(lt.MemoryLimitError) as caught, MemoryProfiler():
        net(x)
    offered = any("no_grad" in change for change in caught.value.remedies)
    assert offered == (mode == "eval") == ("no_grad" in str(caught.value))
    del optimizer


def test_no_grad_is_not_offered_in_backward() -> None:
    gc.collect()
    net, x = (
        nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).eval(),
        lt.randn(64, 64),
    )
    loss = net(x).square().mean()
    lt.set_memory_limit(lt.memory_allocated() + 5000)
    try:
        with pytest.raises(lt.MemoryLimitError) as caught, MemoryProfiler():
            loss.backward()
        assert not any("no_grad" in change for change in caught.value.remedies)
    finally:
        lt.set_memory_limit(None)


def test_an_error_that_is_kept_keeps_no_tensor(cramped: Any) -> None:
    net, x = cramped
    live = lt.memory_allocated()
    gc.disable()
    try:
        with MemoryProfiler():
            try:
                net(x)
            except lt.MemoryLimitError as error:
                kept = error.with_traceback(None)
        assert lt.memory_allocated() == live
    finally:
        gc.enable()
    assert kept.live_bytes == sum(kept.owners["line"].values()) > live
    for held in kept.owners.values():
        assert all(type(name) is str and type(n) is int for name, n in held.items())


def test_what_would_have_fitted_does(world_of_blocks: Any) -> None:
    net, step = world_of_blocks
    whole = estimate(step).peak_bytes
    lt.set_memory_limit(whole - (whole - lt.memory_allocated()) // 4)
    try:
        with pytest.raises(lt.MemoryLimitError) as caught, MemoryProfiler(modules=net):
            step()
        freed = caught.value.remedies["activation checkpointing of each of net.blocks"]
        del caught  # its traceback holds the step's tensors
        net.zero_grad()
        gc.collect()
        for block in net["net"]["blocks"]:
            block.set_checkpointing()
        assert freed > 0
        step()
    finally:
        lt.set_memory_limit(None)


@pytest.fixture
def world_of_blocks() -> Any:
    gc.collect()
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(12)
    )
    net, x = nn.ModuleDict({"net": nn.ModuleDict({"blocks": blocks})}), lt.randn(256, 32)

    def step() -> None:
        y = x
        for block in blocks:
            y = y + block(y)
        y.square().mean().backward()

    return net, step


def test_checkpointing_frees_what_the_message_says(world_of_blocks: Any) -> None:
    net, _ = world_of_blocks
    blocks, x = net["net"]["blocks"], lt.randn(256, 32)

    def forward(limit: int | None) -> int:
        lt.set_memory_limit(limit)
        y = x
        try:
            for block in blocks:
                y = y + block(y)
            return lt.memory_allocated()  # one that was not reached
        finally:
            lt.set_memory_limit(None)

    start = lt.memory_allocated()
    whole = forward(None) - start
    with pytest.raises(lt.MemoryLimitError) as caught, MemoryProfiler(modules=net):
        forward(start + whole - 1)
    freed = caught.value.remedies["activation checkpointing of each of net.blocks"]
    del caught
    gc.collect()
    for block in blocks:
        block.set_checkpointing()
    kept = forward(None) - start
    part = 2 * 256 * 64 * 4  # a gelu's input and result, which come back one block at a time
    assert whole - kept - 2 * part <= freed <= whole - kept - part


def test_an_optimizer_that_finds_no_room_could_step_within_backward() -> None:
    gc.collect()
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    x = lt.randn(2, 64)
    optimizer = lt.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    held = sum(p.nbytes for p in net.parameters())
    lt.set_memory_limit(lt.memory_allocated() + 2 * held - 1)  # gradients and state, but a byte
    try:
        net(x).sum().backward()
        with pytest.raises(lt.MemoryLimitError) as caught, MemoryProfiler(modules=net):
            optimizer.step()
        change = "optim.fuse_into_backward(optimizer), which keeps a gradient at a time,"
        assert caught.value.remedies == {change: held - 64 * 64 * 4}
        assert change in str(caught.value)
        del caught
        net.zero_grad()
        optimizer.state.clear()
        lt.optim.fuse_into_backward(optimizer)
        net(x).sum().backward()
    finally:
        lt.set_memory_limit(None)
