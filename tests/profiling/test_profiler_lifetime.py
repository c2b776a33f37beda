"""A profiler keeps nothing alive and leaves nothing behind, crashes and threads included."""

from __future__ import annotations

import threading
import weakref

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.attribution import scopes
from lowtide.profiling import MemoryProfiler

from .owners import Tower, births


def test_it_records_once():
    prof = MemoryProfiler()
    with prof:
        pass
    with pytest.raises(RuntimeError, match="records once"):
        prof.start()
    prof.stop()


def test_nothing_is_left_behind_when_the_last_one_stops():
    plain, init = nn.Module.__call__, lt.framework.autograd.node.OpNode.__init__
    held = lt.framework.autograd.saved.Held.__init__
    with MemoryProfiler(), MemoryProfiler():
        assert nn.Module.__call__ is not plain
    assert nn.Module.__call__ is plain
    assert lt.framework.autograd.node.OpNode.__init__ is init
    assert lt.framework.autograd.saved.Held.__init__ is held
    x = lt.ones(2, requires_grad=True) * 2.0
    assert not hasattr(x.grad_fn, "_site")


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
