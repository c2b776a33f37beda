"""Copies beside kernels: whatever a GPU does first, and what it may do at the same time.

Training steps run on a model of CUDA's queues (``asynchronous.py``). It raises where two pieces of
work could meet in either order, and does the work in the orders that are most likely to hurt.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lowtide as lt
from lowtide.autograd.graph import save_on_cpu
from lowtide.checkpointing import offload, offload_to_disk, pack, policy
from lowtide.framework.checkpointing import offload as offload_module
from tests.checkpointing.asynchronous import Gpu, end_failed, running
from tests.checkpointing.nets import Block, conv_net, gpt
from tests.checkpointing.queues import (
    COPY_BACK,
    COPY_OUT,
    KERNEL,
    Drawn,
    Event,
    Late,
    Order,
    Work,
    orders,
)

Around = Callable[[], Any]  # makes what a program puts around its forward pass
AHEAD = [0, 1, 2, 5]
SIZE = 8000  # bytes of the values of ``chain``


@pytest.fixture(autouse=True)
def nothing_is_left(leak_check: None) -> None:
    """Every program gives all bytes back, on the device and on the host."""


def gradients(model: lt.nn.Module) -> list[Any]:
    found = [None if p.grad is None else p.grad.tolist() for p in model.parameters()]
    model.zero_grad()
    return found


def chain(x: lt.Tensor, n: int = 6) -> lt.Tensor:
    for _ in range(n):
        x = x.exp()  # keeps its result
    return x


def leaf(d: Any) -> lt.Tensor:
    return (lt.rand(SIZE // 4) - 3).to(d).requires_grad_()


# Programs: each returns numbers that must be the same with and without offload


def several_steps(d: Any, around: Around) -> Any:
    model, x = gpt()
    model, x = model.to(d), x.to(d)
    optimizer = lt.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        with around():
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        found = gradients(model)
    return losses, found


def convolutions(d: Any, around: Around) -> Any:
    model, x = conv_net()
    model, x = model.to(d), x.to(d)
    with around():
        loss = model(x).square().mean()
    loss.backward()
    return gradients(model), [b.tolist() for b in model.buffers()]


def twice_through_one_graph(d: Any, around: Around) -> Any:
    model, x = gpt(1)
    model, x = model.to(d), x.to(d)
    with around():
        loss = model(x).square().mean()
    loss.backward(retain_graph=True)
    first = gradients(model)
    loss.backward()
    second = gradients(model)
    assert first == second
    return second


def gradients_of_gradients(d: Any, around: Around) -> Any:
    x = leaf(d)
    with around():
        y = (x.exp().sin() * x.tanh()).sum()
        (first,) = lt.autograd.grad(y, x, create_graph=True)
        z = (first.exp() * first).sum()
    z.backward()
    return x.grad.tolist()


def nested_regions(d: Any, around: Around) -> Any:
    with d:
        blocks = [Block() for _ in range(3)]
    x = lt.randn(2, 8, 32).to(d).requires_grad_()
    with around():
        y = lt.checkpoint(lambda v: lt.checkpoint(blocks[1], blocks[0](v)), x)
        with around():
            y = blocks[2](y)
    y.square().sum().backward()
    return [gradients(b) for b in blocks], x.grad.tolist()


def one_gradient_then_no_more(d: Any, around: Around) -> Any:
    x, w = leaf(d), leaf(d)
    with around():
        y = chain(x * w.sin(), 4)
        z = chain(y, 4).sum()
    (found,) = lt.autograd.grad(z, y, retain_graph=True)
    after = (x.exp() + found).tolist()  # takes the place of what is given back
    del y, z
    return after, chain(w).tolist()


def a_graph_that_is_dropped(d: Any, around: Around) -> Any:
    x = leaf(d)
    for n in (6, 3):
        with around():
            y = chain(x, n)
        del y
    z = chain(x)
    z.sum().backward()
    return x.grad.tolist()


def a_step_that_fails(d: Any, around: Around) -> Any:
    x = leaf(d)

    def fail(_: Any) -> None:
        raise ZeroDivisionError("in the middle of backward")

    with contextlib.suppress(ZeroDivisionError), around():
        chain(x)
        raise ZeroDivisionError("in the middle of forward")
    with around():
        y = chain(x, 3)
        y.register_hook(fail)
        y = chain(y, 3)
    with contextlib.suppress(ZeroDivisionError):
        y.sum().backward()
    del y
    with around():
        y = chain(x)
    y.sum().backward()
    return x.grad.tolist()


def writes_in_place(d: Any, around: Around) -> Any:
    x = leaf(d)
    with around():
        y = x.exp()
        z = y.sin()
        y = y * 2 if around is lt.enable_grad else y.mul_(2)  # plain, sin still needs what it was
        z = z * y
        z[:100] = 0
        z = z.exp().sum() + y.square().sum()
    z.backward()
    return x.grad.tolist()


PROGRAMS = [
    several_steps,
    convolutions,
    twice_through_one_graph,
    gradients_of_gradients,
    nested_regions,
    one_gradient_then_no_more,
    a_graph_that_is_dropped,
    a_step_that_fails,
    writes_in_place,
]
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)


def run(program: Any, order: Order, around: Around) -> tuple[Any, Gpu]:
    """A program's numbers on a model, and the model."""
    gpu = Gpu(order)
    lt.manual_seed(0)
    with running(gpu) as (d,):
        found = program(d, around)
        gc.collect()  # what an exception kept
    return found, gpu


def gpu_fetched(gpu: Gpu) -> int:
    return sum(w.kind == COPY_BACK for w in gpu.queued)


# In every order


@pytest.mark.quick(1)
@each_program
def test_in_every_order_the_numbers_are_those_of_the_plain_run(program: Any) -> None:
    expected, _ = run(program, Order(), lt.enable_grad)
    for ahead in AHEAD:
        for order in orders() if ahead == 2 else orders()[:2]:  # all give what one gives: no races
            found, gpu = run(program, order, lambda a=ahead: offload(ahead=a, min_bytes=0))
            assert found == expected, f"ahead={ahead}, {order}"
            sent = sum(w.kind == COPY_OUT for w in gpu.queued)
            assert sent >= 3, "nothing was offloaded"
            assert ahead or program is a_graph_that_is_dropped or gpu_fetched(gpu) >= 3


@pytest.mark.quick(2)
@pytest.mark.parametrize("order", orders(), ids=repr)
def test_offloaded_recomputed_and_packed_in_one_region(order: Order) -> None:
    def program(d: Any, around: Around) -> Any:
        model, x = gpt()
        model, x = model.to(d), x.to(d).requires_grad_()
        with around():
            loss = model(x).square().mean()
        loss.backward()
        return gradients(model), x.grad.tolist()

    expected, _ = run(program, Order(), lt.enable_grad)
    for ahead in AHEAD:
        chosen = policy(
            {
                "op:linear": offload(ahead=ahead, min_bytes=0),
                "op:gelu": pack(),
                "op:layer_norm": "recompute",
            }
        )
        found, gpu = run(program, order, lambda chosen=chosen: lt.checkpointing(chosen))
        assert found == expected, f"ahead={ahead}"
        assert sum(w.kind == COPY_OUT for w in gpu.queued) >= 4


@pytest.mark.parametrize("order", orders(), ids=repr)
def test_memory_that_is_not_pinned_is_waited_for(order: Order, tmp_path: Path) -> None:
    # The host's pool may give it away as soon as Python lets go of it.
    def program(d: Any, around: Around) -> Any:
        found = []
        for _ in range(2):
            x = leaf(d)
            with around():
                y = chain(x)
            y.sum().backward()
            del y
            reused = lt.zeros(SIZE // 4)  # on the host
            found.append(x.grad.tolist())
            assert not reused.any()
        return found

    expected, _ = run(program, Order(), lt.enable_grad)
    for around in (save_on_cpu, lambda: offload_to_disk(tmp_path)):
        assert run(program, order, around)[0] == expected


@pytest.mark.parametrize("order", orders(), ids=repr)
def test_what_is_moved_to_the_device_may_be_written_at_once(order: Order) -> None:
    with running(Gpu(order)) as (d,):
        x = lt.ones(1000)
        y = x.to(d)
        x.zero_()
        assert y.sum().item() == 1000.0


def test_steps_on_streams_of_the_users() -> None:
    for order in orders():
        gpu = Gpu(order)
        with running(gpu) as (d,):
            streams = [gpu.Stream(non_blocking=True) for _ in range(2)]
            x = leaf(d)
            x.grad = lt.zeros_like(x)
            for k in range(4):
                now = gpu.get_current_stream()
                event = Event()
                event.record(now)
                with streams[k % 2] as stream:
                    stream.wait_event(event)
                    with offload(ahead=1):
                        y = chain(x)
                    y.sum().backward()
                    del y
                event.record(stream)
                now.wait_event(event)
            expected = lt.zeros_like(x)
            for _ in range(4):
                expected += lt.autograd.grad(chain(x).sum(), x)[0]
            assert x.grad.tolist() == expected.tolist(), str(order)


def test_steps_on_streams_that_know_nothing_of_each_other() -> None:
    # They share the pinned blocks: a block that one has given back is the next one's.
    for order in orders():
        gpu = Gpu(order)
        with running(gpu) as (d,):
            xs = [leaf(d), leaf(d)]
            gpu.wait(gpu.get_current_stream())
            streams = [gpu.Stream(non_blocking=True) for _ in xs]
            found: list[Any] = [[], []]
            for k in (0, 1, 0, 1):
                with streams[k]:
                    with offload(ahead=2):
                        y = chain(xs[k])
                    found[k] += lt.autograd.grad(y.sum(), xs[k])
                    del y
            for k, x in enumerate(xs):
                with streams[k]:
                    (expected,) = lt.autograd.grad(chain(x).sum(), x)
                    assert [f.tolist() for f in found[k]] == [expected.tolist()] * 2, str(order)
                    del expected, found[k][:]
            assert len(gpu.pinned) == 1


def test_a_forward_on_one_stream_and_its_backward_on_another() -> None:
    # The second forward sends the first one's last values away, and the backward knows only of
    # what came before.
    for order in orders():
        gpu = Gpu(order)
        with running(gpu) as (d,):
            x = leaf(d)
            gpu.wait(gpu.get_current_stream())
            one, two = (gpu.Stream(non_blocking=True) for _ in range(2))
            event = Event()
            with one:
                with offload(ahead=2):
                    y = chain(x)
                event.record(one)
                with offload(ahead=2):
                    z = chain(x)
            with two:
                two.wait_event(event)
                (found,) = lt.autograd.grad(y, x, lt.ones_like(y))
            event.record(two)
            with one:
                one.wait_event(event)
                (expected,) = lt.autograd.grad(z, x, lt.ones_like(z))
                assert found.tolist() == expected.tolist(), str(order)
                del y, z, expected
            del found


def test_a_graph_that_another_thread_drops() -> None:
    # Its current stream is another, and the memory is that of the stream that computed.
    gpu = Gpu(Late(KERNEL, COPY_BACK, COPY_OUT))
    with running(gpu) as (d,):
        x = leaf(d)
        with offload(ahead=2):
            kept = [chain(x)]
        stream = gpu.Stream(non_blocking=True)

        def drop() -> None:
            with stream:
                kept.clear()

        thread = threading.Thread(target=drop)
        thread.start()
        thread.join()
        chain(x)


@pytest.mark.parametrize("program", [convolutions, a_step_that_fails, writes_in_place])
def test_several_gpus(program: Any) -> None:
    # Each has streams, and pinned blocks, of its own, and kernels run where their tensors are.
    expected, _ = run(program, Order(), lt.enable_grad)
    gpu = Gpu(Late(KERNEL, COPY_BACK, COPY_OUT))
    with running(gpu, 2) as (first, second):
        for k, d in enumerate((first, second, first)):
            lt.manual_seed(0)
            assert program(d, lambda: offload(ahead=1, min_bytes=0)) == expected
            gc.collect()
            assert len(gpu.pinned) == min(k + 1, 2)
        assert {w.stream.device for w in gpu.queued} == {0, 1}


# Beside each other


def slow_copies(work: Work) -> float:
    return {KERNEL: 4.0, COPY_OUT: 3.0, COPY_BACK: 3.0}[work.kind] if work.nbytes else 0.0


def a_step(order: Order, around: Around, n: int = 10) -> Gpu:
    """The work of one step through a chain: copies and kernels are of one size."""
    gpu = Gpu(order)
    with running(gpu) as (d,):
        x = leaf(d)
        gpu.wait(gpu.get_current_stream())
        gpu.queued.clear()
        for stream in gpu.streams:  # the timeline begins here
            stream.clock[:] = 0
        gpu.done[:] = gpu.host[:] = 0
        gpu.device_memory.touched[:] = 0
        gpu.waits = 0
        with around():
            y = chain(x, n)
        y.backward(lt.ones_like(y))
        assert (gpu.waits, gpu.looked) == (0, [])
        del x, y
        log = gpu.queued[:]
    gpu.queued = log
    return gpu


def test_the_host_never_waits() -> None:
    # ``a_step`` asserts it: neither for copies nor for kernels.
    for ahead in AHEAD:
        gpu = a_step(Order(), lambda a=ahead: offload(ahead=a))
        assert sum(w.kind == COPY_OUT for w in gpu.queued) == 10


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_each_copy_runs_beside_kernels(ahead: int) -> None:
    gpu = a_step(Order(), lambda: offload(ahead=ahead))
    out = [w for w in gpu.queued if w.kind == COPY_OUT]
    back = [w for w in gpu.queued if w.kind == COPY_BACK]
    assert (len(out), len(back)) == (10, 10 - ahead)
    # A value may be leaving until ``ahead`` more were sent: so many kernels run meanwhile, and the
    # last ones leave while backward begins.
    for k, w in enumerate(out):
        assert len(gpu.beside(w)) >= min(ahead, 10 - k), k
    # The first that is fetched is one of those sent early; it comes while others are still read.
    for k, w in enumerate(back):
        assert len(gpu.beside(w)) >= 1, k
    # Both at once never: what comes back left long ago, and nothing leaves any more.
    assert all(o.precedes(b) for o in out for b in back)


def test_without_ahead_nothing_runs_beside() -> None:
    gpu = a_step(Order(), lambda: offload(ahead=0))
    copies = [w for w in gpu.queued if w.kind != KERNEL]
    assert len(copies) == 19  # the result itself is still alive
    assert not any(gpu.beside(w) for w in copies)


def length(gpu: Gpu) -> float:
    return max(end for _, end in gpu.timeline(slow_copies).values())


def test_copies_shorter_than_kernels_cost_nothing() -> None:
    plain = length(a_step(Order(), lt.enable_grad))
    for ahead in (1, 2, 5):
        assert length(a_step(Order(), lambda a=ahead: offload(ahead=a))) == plain
    # One after the other: 10 copies out and 9 back, of 3 s each.
    assert length(a_step(Order(), lambda: offload(ahead=0))) == plain + 57


def test_lanes_on_blocking_streams_would_run_beside_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Kernels run on CUDA's legacy stream unless told otherwise, and that one waits for all others.
    plain = Gpu.Stream
    monkeypatch.setattr(Gpu, "Stream", lambda self, null=False, non_blocking=False: plain(self))
    gpu = a_step(Order(), lambda: offload(ahead=2))
    assert not any(gpu.beside(w) for w in gpu.queued if w.kind != KERNEL)


# The model finds what is missing


def mutated(line: str, instead: str, within: Any) -> Any:
    """A class of the package with one line replaced."""
    source = textwrap.dedent(inspect.getsource(within))
    assert source.count(line) == 1, line
    scope = dict(vars(offload_module))
    exec(compile(source.replace(line, instead), "<mutant>", "exec"), scope)
    return scope[within.__name__]


STREAMS = {
    "out begins before the kernels": ("self.out.wait_event(self._so_far(now))", "pass"),
    "out begins before the block was read": (
        "self.out.wait_event(self._so_far(self.back))",
        "pass",
    ),
    "back begins before it left": ("self.back.wait_event(self._so_far(self.out))", "pass"),
    "back begins while the memory is used": ("self.back.wait_event(self._so_far(now))", "pass"),
    "nobody knows when it has left": (
        "return self._so_far(self.out), now",
        "return self.cuda.Event(disable_timing=True), now",
    ),
    "nobody knows when it is back": (
        "return self._so_far(self.back), now",
        "return self.cuda.Event(disable_timing=True), now",
    ),
    "kernels do not wait": ("now.wait_event(done)", "pass"),
    "the stream that asked does not wait": ("asked.wait_event(done)", "pass"),
    "events are not recorded": ("event.record(stream)", "pass"),
    "pageable memory is not waited for": ("stream.synchronize()", "pass"),
}
SENT = {
    "memory goes before it was copied": ("self.transfers.copier.wait(self.ticket)", "pass"),
    "a value is read before it is back": ("self.transfers.copier.wait(ticket)", "pass"),
    "what nobody took is not waited for": (
        "        if self.back is not None:\n            self._arrived()",
        "        pass",
    ),
}


def everything() -> Iterator[Callable[[], Any]]:
    """What the tests above run, in one order."""
    yield lambda: run(one_gradient_then_no_more, Order(), save_on_cpu)
    yield test_steps_on_streams_of_the_users
    yield test_steps_on_streams_that_know_nothing_of_each_other
    yield test_a_forward_on_one_stream_and_its_backward_on_another
    yield test_a_graph_that_another_thread_drops
    for program in reversed(PROGRAMS):
        for ahead in (0, 2):
            yield lambda p=program, a=ahead: run(p, Order(), lambda: offload(ahead=a, min_bytes=0))


@pytest.mark.quick(5)
@pytest.mark.parametrize("what", [*STREAMS, *SENT])
def test_a_wait_that_is_left_out_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    within = offload_module.StreamCopier if what in STREAMS else offload_module.OffloadedStorage
    line, instead = {**STREAMS, **SENT}[what]
    monkeypatch.setattr(offload_module, within.__name__, mutated(line, instead, within))
    found = False
    for program in everything():
        try:
            program()
        except AssertionError:  # a Race, or other numbers
            found = True
            break
    end_failed()
    assert found, "every program ran as if nothing were missing"


def test_the_orders_are_felt(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without looking for races: late copies, and what is drawn, give other numbers by themselves.
    monkeypatch.setattr(offload_module.StreamCopier, "wait", lambda self, ticket: None)
    monkeypatch.setattr("tests.checkpointing.queues.Memory.touch", lambda *_, **__: None)
    expected, _ = run(several_steps, Order(), lt.enable_grad)
    found = {
        repr(order): run(several_steps, order, lambda: offload(ahead=2, min_bytes=0))[0] == expected
        for order in [Order(), Late(KERNEL, COPY_BACK, COPY_OUT), Drawn(0)]
    }
    assert list(found.values()) == [True, False, False]
