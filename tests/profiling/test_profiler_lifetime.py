"""A profiler keeps nothing alive and leaves nothing behind, crashes and threads included."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.attribution import scopes
from lowtide.framework.autograd.function_context import FunctionCtx
from lowtide.framework.autograd.node import Alias, OpNode
from lowtide.framework.autograd.saved import Held
from lowtide.profiling import MemoryProfiler

from .owners import Tower, births


def test_it_records_once():
    prof = MemoryProfiler()
    with prof:
        pass
    with pytest.raises(RuntimeError, match="records once"):
        prof.start()
    prof.stop()


def test_profiling_exchanges_no_methods():
    """The code one reads runs with and without a profiler; only leaks add a finalizer to nodes."""
    node = lt.autograd.graph.Node
    classes = (nn.Module, nn.Linear, node, OpNode, Alias, FunctionCtx, Held, lt.Tensor)

    def methods():
        return [
            {name: f for name, f in vars(cls).items() if cls is Held or name != "__del__"}
            for cls in classes
        ]

    before = methods()
    with MemoryProfiler(), MemoryProfiler(), lt.autocast("cpu"):
        assert methods() == before
    assert methods() == before


def test_nothing_is_left_behind_when_the_last_one_stops():
    with MemoryProfiler(), MemoryProfiler():
        assert scopes.recording.on
        x = lt.ones(2, requires_grad=True) * 2.0
        assert hasattr(x.grad_fn, "_site")
    assert not scopes.recording.on
    assert not hasattr(lt.autograd.graph.Node, "__del__")
    x = lt.ones(2, requires_grad=True) * 2.0
    assert not hasattr(x.grad_fn, "_site")


KINDS_OF_NODES = {
    "op": lambda x: x * 2.0,
    "function": lambda x: Doubled.apply(x),
    "to a device": lambda x: x.to("sim"),
    "split": lambda x: x.split(1)[0],
    "a write through a view": lambda x: written(x * 1.0),
    "vmap": lambda x: lt.vmap(lambda row: row * 2.0)(x),
}


@pytest.mark.parametrize("kind", KINDS_OF_NODES)
def test_every_kind_of_node_knows_its_line_and_is_told_once(kind):
    x = lt.ones(2, 2, requires_grad=True)
    made = []
    scopes.listen(True, made=made.append)
    try:
        node = KINDS_OF_NODES[kind](x).grad_fn
    finally:
        scopes.unlisten(True, made=made.append)
    assert node in made
    assert len(made) == len(set(map(id, made)))
    assert Path(__file__).name in node._site[1].line


class Doubled(lt.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, g):
        return g * 2.0


def written(x):
    x[0].mul_(2.0)
    return x


def test_a_profiler_keeps_nothing_alive(leak_check):
    def profiled():
        net = Tower()
        optimizer = lt.optim.Adam(net.parameters())
        prof = MemoryProfiler(modules=net)
        with prof:
            local = Local()
            loss = net(lt.randn(2, 4)).sum()
            loss.backward()
            optimizer.step()
        return prof, weakref.ref(net), weakref.ref(local), weakref.ref(optimizer)

    class Local:
        """Stands for the frame: it dies with it."""

    prof, *references = profiled()
    assert [r() for r in references] == [None] * 3
    assert prof.peak_bytes > 0


def test_while_recording_it_keeps_nothing_alive_either(leak_check):
    with MemoryProfiler() as prof:
        net = Tower()
        reference = weakref.ref(net)
        net(lt.randn(2, 4)).sum().backward()
        live = prof.growth("start", None, "role").total if prof.marks[1:] else 0
        del net
        assert reference() is None
        prof.mark("gone")
    assert live == 0
    assert prof.growth("start", "gone").as_dict() == {}


def test_a_crash_still_gives_the_report_up_to_it():
    prof = MemoryProfiler()

    def crash():
        with prof:
            kept.append(lt.ones(1000))
            raise ZeroDivisionError

    kept = []
    with pytest.raises(ZeroDivisionError):
        crash()
    assert prof.growth("start", "stop", "op")["ones"] == 4000
    assert "ones" in str(prof.at_peak("op"))
    assert not scopes.listening()
    assert scopes.current() is None


def test_a_crash_inside_a_module_leaves_no_scope_open():
    class Bad(nn.Module):
        def forward(self, x):
            raise KeyError("inside")

    with MemoryProfiler() as prof:
        with pytest.raises(KeyError):
            nn.Sequential(Bad())(lt.ones(2))
        lt.ones(3)
    assert [(o.module, n) for o, n in births(prof)] == [("", 8), ("", 12)]


def test_a_device_that_is_not_there_leaves_nothing_behind():
    prof = MemoryProfiler("cuda:77")
    with pytest.raises(RuntimeError):
        prof.start()
    prof.stop()
    assert not scopes.listening()


def test_a_profiler_in_a_thread_and_devices_met_later():
    found = []

    def work():
        with MemoryProfiler("meta") as prof:
            lt.ones(10, device="meta")
            lt.ones(10)
        found.append(prof)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0].recording.devices == ["meta"]
    assert found[0].peak_bytes >= 40
    with pytest.raises(ValueError, match="no device 'cpu'"):
        found[0].at_peak(device="cpu")


def test_profilers_of_several_threads_come_and_go():
    errors, peaks = [], []

    def work():
        try:
            for _ in range(5):
                with MemoryProfiler("cpu") as prof:
                    Tower()(lt.randn(2, 4)).sum().backward()
                peaks.append(prof.at_peak().total)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
    assert min(peaks) > 480
    assert not scopes.listening()
    assert not lt.framework.devices.backend(lt.device("cpu")).ledger.observers
