"""Numbers that Python reads in a compiled call: a replay goes on only if they are as they were."""

from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from tests.capture.steps import Setup, bits


def truth(x: Any) -> Any:
    return x * 2 if (x > 0).all() else x - 1


def sign(x: Any) -> Any:
    if bool(x.sum() > 0):
        return x.sqrt() if bool(x.min() > 0.5) else x.exp()
    return x.abs()


def length(x: Any) -> Any:
    n = (x > 0).sum().item()
    return x[: n + 1] * n


def index(x: Any) -> Any:
    return x[int(x.argmax())] * lt.arange(int((x > 1).sum()) + 1)


def inside_numbers(x: Any) -> Any:
    y = x * 2
    z = y.clone()
    if (y > 100).any():
        z.fill_(0)
    return z + y


def drawn(x: Any) -> Any:
    y = F.dropout(x, 0.5)
    return y * 3 if bool((x > 0).all()) else F.dropout(y, 0.5)


READS = [truth, sign, length, index, inside_numbers, drawn]


def inputs(seed: int, count: int = 24) -> list[Any]:
    rng = np.random.default_rng(seed)
    kinds = [
        np.full(6, 1.0),
        np.full(6, -1.0),
        np.arange(6.0),
        np.arange(6.0) - 3,
        np.full(6, 99.0),
    ]
    return [lt.tensor(kinds[rng.integers(len(kinds))].astype(np.float32)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("f", READS, ids=lambda f: f.__name__)
def test_branches_have_recordings_of_their_own(f: Any, seed: int) -> None:
    compiled = lt.compile(f)
    compiled.quiet = True
    for k, x in enumerate(inputs(seed)):
        found = []
        for g in (f, compiled):
            lt.manual_seed(k)
            found.append((bits(g(x)), lt.rand(2).tolist()))  # the generator is where it would be
        assert found[0] == found[1]
    assert compiled.replays > 0 or compiled.reasons


def test_what_stays_as_it_was_is_replayed() -> None:
    compiled = lt.compile(sign, fullgraph=True)
    for k in range(8):
        x = lt.full((4,), 1.0 + k)
        assert bits(compiled(x)) == bits(sign(x))
    assert (compiled.recordings, compiled.replays) == (1, 5)
    assert "2 numbers that Python reads are compared" in compiled.explain()


def test_both_sides_of_a_branch_are_replayed() -> None:
    compiled = lt.compile(truth, fullgraph=True)
    for k in range(20):
        x = lt.full((4,), 1.0 if k % 2 else -1.0)
        assert bits(compiled(x)) == bits(truth(x))
    assert compiled.recordings == 2
    assert compiled.replays >= 14


def test_a_number_that_differs_each_time_is_named() -> None:
    def scaled(x: Any) -> Any:
        return x * x.sum().item()

    compiled = lt.compile(scaled)
    with pytest.warns(lt.CaptureWarning, match=r"value \(item\) that differs from call to call"):
        found = [compiled(lt.full((2,), 1.0 + k)).tolist() for k in range(6)]
    assert found == [[2.0 * (1 + k) ** 2] * 2 for k in range(6)]
    assert compiled.replays == 0


def test_a_number_that_changes_too_often_ends_replays() -> None:
    def rounded(x: Any) -> Any:
        return x * int(x.sum())

    compiled = lt.compile(rounded)
    values = [1.0] * 5 + [float(k) for k in range(30)]
    with pytest.warns(lt.CaptureWarning, match=r"a number that Python reads \(item\) changes"):
        found = [compiled(lt.full((2,), v)).tolist() for v in values]
    assert found == [[v * int(2 * v)] * 2 for v in values]


def test_a_number_that_changes_from_the_first_call_on_ends_recordings() -> None:
    def rounded(x: Any) -> Any:
        return x * int(x.sum().long())

    compiled = lt.compile(rounded)
    with pytest.warns(lt.CaptureWarning, match=r"recorded 8 times: a number that Python reads"):
        found = [compiled(lt.full((2,), float(k))).tolist() for k in range(20)]
    assert found == [[2.0 * k * k] * 2 for k in range(20)]


def test_nan_is_as_it_was() -> None:
    def f(x: Any) -> Any:
        value = x.sum().item()
        return x + (0.0 if value != value else 1.0)

    compiled = lt.compile(f, fullgraph=True)
    for _ in range(5):
        assert compiled(lt.full((2,), float("nan"))).isnan().all()
    assert compiled.replays == 2
    assert compiled(lt.ones(2)).tolist() == [2.0, 2.0]


def test_the_sign_of_zero_counts() -> None:
    compiled = lt.compile(lambda x: x + math.copysign(1.0, x[0].item()), fullgraph=True)
    for _ in range(5):
        assert compiled(lt.zeros(2)).tolist() == [1.0, 1.0]
    assert compiled.replays == 2
    assert compiled(-lt.zeros(2)).tolist() == [-1.0, -1.0]


class Trains:
    """A step that leaves out batches whose loss is no number."""

    def __init__(self) -> None:
        lt.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
        self.opt = optim.AdamW(self.net.parameters(), lr=1e-2)

    def step(self, x: Any, y: Any) -> Any:
        self.opt.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        if loss.isnan():
            return loss.detach() * 0
        loss.backward()
        if any(bool(p.grad.isinf().any()) for p in self.net.parameters()):
            return loss.detach() * 1
        self.opt.step()
        return loss.detach()

    def state(self) -> list[Any]:
        found = [bits(p) for p in self.net.parameters()]
        found += [None if p.grad is None else bits(p.grad) for p in self.net.parameters()]
        for p in self.net.parameters():
            found += [repr(v) for v in self.opt.state.get(p, {}).values()]
        return found


def test_a_step_that_leaves_out_bad_batches() -> None:
    runs = Trains(), Trains()
    step = lt.compile(runs[1].step, fullgraph=True)
    rng = np.random.default_rng(1)
    for k in range(20):
        values = rng.standard_normal((4, 6)).astype(np.float32)
        if k in (6, 11, 12, 17):
            values[0, 0] = np.nan
        x, y = lt.tensor(values), lt.tensor(rng.integers(0, 3, 4))
        found = []
        for run, f in zip(runs, (runs[0].step, step), strict=True):
            lt.manual_seed(k)
            found.append((bits(f(x, y)), run.state(), lt.rand(1).item()))
        assert found[0] == found[1], k
    assert step.replays >= 12


def test_a_branch_that_reads_an_old_gradient_finds_it() -> None:
    def trained() -> tuple[Any, Any]:
        p = nn.Parameter(lt.ones(3))

        def step(x: Any) -> Any:
            old = p.grad
            p.grad = None
            loss = (p * x).sum()
            if loss > 10:
                return loss.detach() + (0 if old is None else old.sum())
            loss.backward()
            return loss.detach()

        return p, step

    (p, plain), (q, written) = trained(), trained()
    compiled = lt.compile(written)
    compiled.quiet = True
    for value in (1.0, 1.0, 2.0, 1.0, 3.0, 9.0, 1.0, 2.0, 9.0, 9.0, 1.0):
        x = lt.full((3,), value)
        assert bits(compiled(x)) == bits(plain(x))
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or p.grad.tolist() == q.grad.tolist()


def test_a_module_reads_before_a_backward_outside() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            lt.manual_seed(5)
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.a(x).tanh() if x.mean() > 0 else self.b(x).relu()

    nets = Gated(), Gated()
    compiled = lt.compile(nets[1], fullgraph=True)
    rng = np.random.default_rng(2)
    for _ in range(24):
        x = lt.tensor(rng.standard_normal((3, 4)).astype(np.float32))
        for net in nets:
            net.zero_grad()
        (nets[0](x) + nets[0](x * 2)).square().sum().backward()
        (compiled(x) + compiled(x * 2)).square().sum().backward()
        for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            assert p.grad is None or bits(p.grad) == bits(q.grad)
    assert compiled._compiled.replays > 20


def test_a_module_that_draws_before_a_read_puts_the_generator_back() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            lt.manual_seed(5)
            self.a = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            h = F.dropout(self.a(x), 0.5)
            return F.dropout(h, 0.5) if x.mean() > 0 else h * 2

    nets = Noisy(), Noisy()
    compiled = lt.compile(nets[1], fullgraph=True)
    for k in range(20):
        x = lt.full((3, 4), 1.0 if k in (5, 9, 10, 15) else -1.0)
        found = []
        for net, f in zip(nets, (nets[0], compiled), strict=True):
            net.zero_grad()
            lt.manual_seed(k)
            out = f(x)
            out.sum().backward()
            found.append((bits(out), bits(net.a.weight.grad), lt.rand(2).tolist()))
        assert found[0] == found[1], k
    assert compiled._compiled.replays >= 12


def test_a_miss_does_not_count_as_a_write_to_gradients() -> None:
    def accumulating() -> tuple[Any, Any]:
        p = nn.Parameter(lt.ones(3))

        def step(x: Any) -> None:
            if x.sum() > 10:
                return
            (p * x).sum().backward()

        return p, step

    (p, plain), (q, written) = accumulating(), accumulating()
    compiled = lt.compile(written, fullgraph=True)
    for k in range(12):
        x = lt.full((3,), 9.0 if k in (6, 8, 9) else 1.0)
        plain(x)
        compiled(x)
        assert (p.grad.tolist(), p.grad._version) == (q.grad.tolist(), q.grad._version), k
    assert compiled.replays >= 5


def test_a_value_that_is_read_after_a_write_ends_the_recording() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3))

    def f(x: Any) -> Any:
        y = net(x)
        return y * 2 if y.sum() > 100 else y

    text = lt.compiler.explain(f, lt.rand(4, 3))
    assert "after it has changed what was there before the call" in text
    net.eval()
    with lt.no_grad():
        assert "1 numbers that Python reads are compared" in lt.compiler.explain(f, lt.rand(4, 3))


def test_a_miss_leaves_no_bytes_and_no_versions() -> None:
    w = lt.ones(1000, requires_grad=True)

    def f(x: Any) -> Any:
        y = x * 2 + w.detach()
        return y.sum() if y.max() < 100 else y.mean()

    compiled = lt.compile(f, fullgraph=True)
    for _ in range(5):
        compiled(lt.ones(1000))
    kept = (w * w).sum()
    gc.collect()  # what earlier tests have left
    live, version = lt.memory_allocated(), w._version
    x = lt.full((1000,), 99.0)
    before = lt.memory_allocated()
    out = compiled(x)
    assert out.item() == 199.0
    assert lt.memory_allocated() == before + out.nbytes
    assert w._version == version
    del x, out
    assert lt.memory_allocated() == live
    kept.backward()


def test_the_whole_of_a_step_is_replayed_around_its_reads() -> None:
    s, t = Setup(), Setup()

    def stepper(o: Setup) -> Any:
        def step(x: Any, y: Any) -> Any:
            o.opt.zero_grad()
            if not x.isfinite().all():
                raise ValueError("bad batch")
            loss = F.cross_entropy(o.net.last(o.net.first(x).relu()), y)
            if not loss.isfinite():
                raise ValueError("bad loss")
            loss.backward()
            nn.utils.clip_grad_norm_(o.net.parameters(), 1.0, error_if_nonfinite=True)
            o.opt.step()
            return loss.detach()

        return step

    plain, compiled = stepper(s), lt.compile(stepper(t), fullgraph=True)
    y = lt.tensor([0, 1, 2, 0])
    for k in range(10):
        x = lt.full((4, 6), 0.1 * k)
        if k == 7:
            x[0, 0] = float("inf")
            for f in (plain, compiled):
                with pytest.raises(ValueError, match="bad batch"):
                    f(x, y)
            continue
        assert bits(plain(x, y)) == bits(compiled(x, y))
        assert s.state() == t.state()
    assert compiled.replays == 5  # after the bad batch there are no gradients: recorded anew
