"""A memory profiler sees a replay as it is: its bytes, and where each was made."""

from __future__ import annotations

import gc
import os
import random
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.framework.attribution import scopes
from lowtide.framework.capture import binding, split_replay
from lowtide.framework.capture import replay as replay_module
from lowtide.framework.devices import backend
from lowtide.framework.memory.events import observe
from lowtide.framework.memory.ledger import ROLES, SAVED
from lowtide.framework.modes import local
from lowtide.profiling.record.recording import OWNER, replay
from tests.capture import test_random_programs as drawn
from tests.capture.compiled_calls import bits

OWN = 1 << 14  # bytes from which a replay gives a value memory of its own


class Gated(nn.Module):
    """A gate between two linear layers, of values that backward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        return self.last(F.silu(h) * h)


class Deep(nn.Module):
    """Two of them; the second one's results are scaled in a scope of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Gated(), Gated()])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block(x)
        with lt.profiling.scope("scaled"):
            return x * 2


def step_of(model: Any, optimizer: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def profiled(call: Callable[[], Any], **options: Any) -> Any:
    """The profile of a call. Its bytes by role are compared with the ledger's at each event."""
    ledger = backend(lt.device("cpu")).ledger
    gc.collect()
    seen: list[list[int]] = []

    def note(event: str, device: str, nbytes: int, *_: int) -> None:
        if nbytes:
            seen.append(ledger.roles[:])

    def overwritten(nbytes: int, role: int, _: int) -> None:  # one is freed, another allocated
        without = ledger.roles[:]
        without[role] -= nbytes
        seen.extend([without, ledger.roles[:]])

    note.sees_replays = True  # type: ignore[attr-defined]
    note.overwritten = overwritten  # type: ignore[attr-defined]
    lt.reset_peak_memory_stats()
    with lt.profiling.MemoryProfiler("cpu", **options) as prof, observe(ledger, note):
        out = call()
        del out
    recording = prof.recording
    found = []
    for (_, books), kind in zip(replay(recording, 0), recording.events.kind, strict=True):
        if kind != OWNER:
            roles = [0] * len(ROLES)
            for (_, role), n in books.cells.items():
                roles[role] += n
            found.append(roles)
    assert found == seen
    assert recording.peaks[0].nbytes == ledger.peak
    return prof


def warm(f: Callable[..., Any], *args: Any) -> Any:
    found = lt.compile(f)
    for _ in range(4):
        found(*args)
    return found


def owners(prof: Any, role: int | None = None) -> set[tuple[Any, ...]]:
    """Owners of what was allocated, without their callers; or of what had a role at its fullest."""
    recording = prof.recording
    if role == SAVED:
        numbers = {owner for owner, _ in recording.fullest[0].holders}
    else:
        numbers = {o for kind, o in zip(recording.events.kind, recording.events.owner, strict=True)
                   if kind == 0}  # fmt: skip
    return {recording.owners[n][:4] for n in numbers}


def test_a_profile_shows_a_replayed_step_as_it_is() -> None:
    model = Deep()
    optimizer = optim.AdamW(model.parameters())
    step, x = step_of(model, optimizer), lt.randn(512, 64)
    step(x)  # then there is the optimizer's state
    written = profiled(lambda: step(x))
    compiled = warm(step, x)
    roles = backend(lt.device("cpu")).ledger.roles
    found = []
    for call in (lambda: compiled(x), lambda: profiled(lambda: compiled(x))):
        call()
        gc.collect()
        found.append(roles[:])
    assert found[0] == found[1]
    replays = compiled.replays
    before = lt.memory_allocated()
    prof = profiled(lambda: compiled(x))
    assert compiled.replays == replays + 1
    peak = prof.recording.peaks[0].nbytes
    told = lt.compiler.explain(compiled, x)
    assert f"at most {peak - before} bytes more" in told
    assert peak < written.recording.peaks[0].nbytes
    small = {owner for owner in owners(prof) if owner[1] == "compiled function"}
    assert len(small) == 1
    assert owners(prof) - small <= owners(written)
    assert {owner[0] for owner in owners(prof)} >= {"blocks.0.first", "blocks.1.last", "blocks.1"}
    assert {owner[2] for owner in owners(prof)} >= {"forward", "backward"}
    saved = owners(prof, SAVED)
    assert saved
    assert saved <= owners(written, SAVED)


def test_a_profile_shows_what_a_replayed_model_keeps() -> None:
    model = Deep()
    x = lt.randn(512, 64)
    model.compile()
    for _ in range(4):
        model(x).sum().backward()
    kept: list[int] = []

    def step() -> None:
        loss = model(x).sum()
        kept.append(backend(lt.device("cpu")).ledger.roles[SAVED])
        loss.backward()

    prof = profiled(step)
    assert prof.recording.fullest[0].nbytes == kept[0] > 0
    found = owners(prof, SAVED)
    assert {owner[0] for owner in found} >= {"blocks.0", "blocks.1"}
    assert all(owner[2] == "forward" for owner in found)
    assert {o[1] for o in owners(prof) if o[2] == "backward"} >= {"LinearBackward0"}


def test_callers_are_those_of_the_replayed_call() -> None:
    def doubled(x: Any) -> Any:
        y = x * 2
        return y.exp()

    x = lt.randn(100, 100)
    compiled = warm(doubled, x)

    def here() -> Any:
        return compiled(x)

    def there() -> Any:
        return compiled(x)

    def stacks(call: Callable[[], Any]) -> Any:
        found = [o for o in profiled(call).recording.owners if o.op == "exp"]
        assert len(found) == 1
        assert found[0].line.endswith(f":{doubled.__code__.co_firstlineno + 2}")
        return found[0].callers

    for call in (here, there):
        assert stacks(call)[0].endswith(f":{call.__code__.co_firstlineno + 1}")


def test_models_have_the_names_that_the_program_gives_them() -> None:
    maker, judge = Gated(), Gated()

    def scores(x: Any) -> Any:
        with lt.no_grad(), lt.profiling.scope("trial"):
            return judge(maker(x))

    x = lt.randn(512, 64)
    compiled = warm(scores, x)
    for call in (scores, compiled):
        with lt.profiling.scope("outer"):
            found = {owner[0] for owner in owners(profiled(lambda call=call: call(x)))}
        names = {"outer.trial.maker.first", "outer.trial.judge.first", "outer.trial.maker"}
        assert names <= found, call


def test_backward_has_the_names_that_the_program_gives_its_models() -> None:
    maker, judge = Gated(), Gated()
    optimizer = optim.SGD([*maker.parameters(), *judge.parameters()], lr=0.1)
    x = lt.randn(512, 64)
    compiled = warm(step_of(lambda x: judge(maker(x)), optimizer), x)
    with lt.profiling.scope("outer"):
        found = owners(profiled(lambda: compiled(x)))
    assert {o[0] for o in found if o[2] == "backward"} >= {
        "outer.maker.first", "outer.judge.first", "outer.judge.last", "outer.judge",
    }  # fmt: skip


@pytest.mark.parametrize("later", [False, True])
def test_a_value_that_its_own_pass_saves_has_the_role(later: bool) -> None:
    weight = lt.randn(200, 200, requires_grad=True)
    matrix = lt.randn(200, 200, requires_grad=True)
    saved = backend(lt.device("cpu")).ledger.roles[SAVED]

    def f(x: Any) -> Any:
        a = (x * weight).exp()
        b = a.sin() * 3
        loss = (a @ matrix).square().sum() + b.sum()
        if later:
            return loss
        loss.backward()
        return loss.detach(), a.detach()

    x = lt.randn(200, 200)

    def step(f: Any) -> None:
        weight.grad = matrix.grad = None
        loss = f(x)
        if later:
            loss.backward()

    compiled = lt.compile(f)
    for _ in range(5):
        step(compiled)
    assert compiled.replays
    prof = profiled(lambda: step(compiled))
    assert {owner[1] for owner in owners(prof, SAVED)} == {"exp", "matmul"}
    assert prof.recording.fullest[0].nbytes - saved == 2 * x.nbytes
    if not later:
        weight.grad = matrix.grad = None
        replays = compiled.replays
        with lt.profiling.MemoryProfiler():
            out = compiled(x)
        assert compiled.replays == replays + 1
        assert backend(lt.device("cpu")).ledger.roles[SAVED] == saved
        del out


def test_what_is_computed_again_is_not_saved() -> None:
    weights = [lt.randn(200, 200, requires_grad=True) for _ in range(3)]

    def f(x: Any) -> Any:
        for w in weights:
            w.grad = None
        gate, up = x @ weights[0], x @ weights[1]
        loss = ((F.silu(gate) * up) @ weights[2]).square().sum()
        loss.backward()
        return loss.detach()

    x = lt.randn(200, 200)
    compiled = warm(f, x)
    assert "twice to keep less" in lt.compiler.explain(compiled, x)
    saved = backend(lt.device("cpu")).ledger.roles[SAVED]
    prof = profiled(lambda: compiled(x))
    assert {owner[1] for owner in owners(prof, SAVED)} == {"matmul", "mul"}  # no "silu"
    assert prof.recording.fullest[0].nbytes - saved == 4 * x.nbytes


def test_a_compiled_module_inside_of_another() -> None:
    model = Deep()
    model.blocks[1].compile()
    x = lt.randn(512, 64)
    with lt.no_grad():
        for _ in range(4):
            model(x)
        found = owners(profiled(lambda: model(x)))
    assert {owner[0] for owner in found} == {"blocks.0", "blocks.0.first", "blocks.0.last",
        "blocks.1", "blocks.1.first", "blocks.1.last", "Deep", "scaled"}  # fmt: skip


def test_a_parameter_in_no_module_has_its_variable_s_name() -> None:
    weight = lt.randn(64, 64, requires_grad=True)

    def step(x: Any) -> Any:
        weight.grad = None
        loss = (x @ weight).square().sum()
        loss.backward()
        return loss.detach()

    x = lt.randn(64, 64)
    compiled = warm(step, x)
    prof = profiled(lambda: compiled(x))
    assert prof.at_peak("module")["weight"] == weight.nbytes


def test_lines_are_left_out_if_they_were_not_asked_for() -> None:
    x = lt.randn(100, 100)
    for calls in (0, 4):  # recorded inside of the profiler, or before
        f = lt.compile(lambda x: (x * 2).exp())
        for _ in range(calls):
            f(x)
        prof = profiled(lambda f=f: [f(x) for _ in range(5)], lines=False)
        assert f.replays
        assert {o.line for o in prof.recording.owners[1:]} == {""}
        assert {o.callers for o in prof.recording.owners} == {()}


def test_a_function_that_is_compiled_inside_a_profiler_is_replayed_there() -> None:
    model = Deep()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    step = step_of(model, optimizer)
    compiled = lt.compile(step)
    x = lt.randn(512, 64)
    prof = profiled(lambda: [compiled(x) for _ in range(6)])
    assert compiled.replays == 3
    steps = [mark.peak[0] for mark in prof.recording.marks if mark.kind == "step"]
    assert len(steps) == 6
    assert max(steps[3:]) < min(steps[1:3])


@pytest.mark.parametrize("seed", range(6))
def test_profiled_replays_have_the_same_bits(seed: int) -> None:
    lt.manual_seed(seed)
    models = [Deep(), Deep()]
    models[1].load_state_dict(models[0].state_dict())
    plain, watched = (
        step_of(m, optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1)) for m in models
    )
    compiled = lt.compile(watched)
    r = random.Random(seed)
    held: list[Any] = []  # so that values lie elsewhere at each call
    for k in range(14):
        held = [lt.empty(512, r.choice([64, 128])) for _ in range(r.randrange(6))]
        held = held[:: r.choice([1, 2])]
        x = lt.randn(512, 64)
        expected = bits(plain(x))
        if (k + seed) % 3:
            assert bits(compiled(x)) == expected
        else:
            results: list[Any] = []
            profiled(lambda x=x, to=results: to.append(compiled(x)))
            assert bits(results[0]) == expected
    assert compiled.replays >= 11
    assert [bits(p) for p in models[0].parameters()] == [bits(p) for p in models[1].parameters()]


def test_who_needs_the_graph_sees_the_call_as_it_is_written() -> None:
    model = Deep()
    model.compile()
    x = lt.randn(512, 64)
    for _ in range(4):
        model(x).sum().backward()
    table = lt.profiling.saved_tensors(model, x)
    assert "silu" in str(table)


def test_leaks_are_looked_for_in_replays() -> None:
    model = Deep()
    model.compile()
    x = lt.randn(512, 64)
    for _ in range(4):
        model(x).sum().backward()
    kept = []

    def run(keep: bool) -> None:
        for _ in range(6):
            out = model(x)
            if keep:
                kept.append(out)
            else:
                out.sum().backward()

    prof = profiled(lambda: run(False), leaks=True)
    assert prof.recording.findings == []
    assert prof.recording.peaks[0].nbytes == profiled(lambda: run(False)).recording.peaks[0].nbytes
    prof = profiled(lambda: run(True), leaks=True)
    assert prof.recording.findings


@pytest.mark.parametrize("later", [False, True])
def test_a_profiled_replay_that_is_refused_leaves_nothing(later: bool) -> None:
    model = Deep()
    optimizer = optim.SGD(model.parameters(), lr=0.0)
    x = lt.randn(512, 64)
    if later:
        model.compile()
    step = step_of(model, optimizer)
    compiled = step if later else lt.compile(step)
    for _ in range(5):
        compiled(x)
    expected = bits(compiled(x))
    ledger = backend(lt.device("cpu")).ledger
    optimizer.zero_grad()
    gc.collect()
    before, refused = ledger.roles[:], 0
    for room in range(20_000, 3_000_000, 150_000):
        with lt.profiling.MemoryProfiler("cpu", warn=False):
            lt.set_memory_limit(lt.memory_allocated() + room)
            try:
                compiled(x)
            except lt.OutOfMemoryError:
                refused += 1
            finally:
                lt.set_memory_limit(None)
        state = local.state
        assert (state.phase, state.site, state.scope) == (None, None, None)
        optimizer.zero_grad()
        gc.collect()
        assert ledger.roles == before, room
    assert 5 < refused < 20
    assert bits(compiled(x)) == expected


def test_an_interrupt_in_a_recorded_call_ends_the_recording() -> None:
    stops: list[int] = []

    def f(x: Any) -> Any:
        y = x * 2
        if stops:
            os.kill(os.getpid(), stops.pop())
        return y + 1

    x = lt.randn(10)
    for calls in (1, 2):
        compiled = lt.compile(f, fullgraph=True)
        for _ in range(calls):
            compiled(x)
        stops.append(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            compiled(x)
        assert not scopes.listening()
        assert not backend(lt.device("cpu")).ledger.observers
        assert local.state.capture is None


def test_a_replay_that_is_refused_memory_names_who_has_it() -> None:
    model = Deep()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    step, x = step_of(model, optimizer), lt.randn(512, 64)
    compiled = warm(step, x)
    gc.collect()
    with lt.profiling.MemoryProfiler("cpu", warn=False):
        limit = lt.memory_allocated() + 400_000
        lt.set_memory_limit(limit)
        try:
            with pytest.raises(lt.OutOfMemoryError) as raised:
                compiled(x)
        finally:
            lt.set_memory_limit(None)
    assert "blocks.0" in str(raised.value)
    assert "test_watched_replays.py" in str(raised.value)


@pytest.mark.quick(1)
@pytest.mark.parametrize("split", [False, True])
def test_drawn_programs_are_profiled(split: bool, monkeypatch: Any) -> None:
    for module in (binding, replay_module, split_replay):
        monkeypatch.setattr(module, "OWN", 1)  # the least values have memory of their own
    replays = 0
    for seed in range(10):
        net, other = drawn.pair(seed, split)
        compiled = lt.compile(other)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lt.CaptureWarning)
            for k in range(12):
                try:
                    expected = drawn.call(net, net, k)
                except lt.GradientError:  # a write hits what backward needs
                    break
                found: list[Any] = []
                profiled(lambda: found.append(drawn.call(other, compiled, k)), warn=False)
                assert found == [expected], (seed, k)
        replays += compiled._compiled.replays
    assert replays > 10
