"""Steps of many parameters in one compiled call: the numbers of a call for each, bit for bit."""

from __future__ import annotations

import _thread
from collections import Counter
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import listed_updates
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.modes import local
from lowtide.optim import elementwise
from tests.optim.cases import CASES, EXACT, identity

ELEMENTWISE = [
    c
    for c in CASES
    if issubclass(getattr(lt.optim, c[0]), elementwise.Elementwise) and c[0] not in EXACT
]
SHAPES = [(3, 4), (5,), (), (0, 3), (70, 11), (1, 1), (2, 3, 4)]
KINDS = ["plain", "plain", "plain", "float64", "bfloat16", "strided", "expanded", "complex"]


def drawn(rng: np.random.Generator, kinds: list[str]) -> list[Any]:
    """Parameters of drawn shapes and kinds; the same draw gives the same ones."""
    found = []
    for k, kind in enumerate([*rng.choice(kinds, 9), "plain"]):
        shape = SHAPES[rng.integers(len(SHAPES))] if k < 9 else (70, 11)
        values = lt.tensor(rng.standard_normal(shape).astype(np.float32))
        if kind in ("float64", "bfloat16"):
            values = values.to(getattr(lt, kind))
        elif kind == "complex":
            values = lt.complex(values, values * 0.5)
        elif kind == "strided":
            values = lt.tensor(rng.standard_normal((4, 6)).astype(np.float32)).t()
        p = lt.nn.Parameter(values)
        p.kind = str(kind)
        found.append(p)
    return found


def give_gradients(params: list[Any], rng: np.random.Generator) -> None:
    """Give most parameters a gradient: so their counters come to differ."""
    for p in params:
        chosen = rng.random() < 0.8
        g = lt.tensor(rng.standard_normal(tuple(p.shape)).astype(np.float32)).to(p.dtype)
        if p.kind == "expanded" and p.numel():
            g = g.sum().expand(p.shape)
        p.grad = g if chosen else None


def bits_of(params: list[Any], optimizer: Any) -> list[Any]:
    """Values of parameters and state, as texts and numbers."""
    found: list[Any] = []
    for p in params:
        found.append(raw(lt.view_as_real(p) if p.is_complex() else p))
        for key, v in sorted(optimizer.state.get(p, {}).items()):
            if isinstance(v, lt.Tensor):
                v = raw(lt.view_as_real(v) if v.is_complex() else v)
            found.append((key, v))
    return found


def numbers_of(found: list[Any]) -> list[float]:
    """The numbers of tensors in what ``bits_of`` returns."""
    texts = [x[1] if isinstance(x, tuple) else x for x in found]
    text = " ".join(t for t in texts if isinstance(t, str))
    return [float(n) for n in text.translate(str.maketrans("[],", "   ")).split()]


def raw(t: Any) -> Any:
    """The values of a tensor as nested lists, which tell -0 and NaN apart as text."""
    return repr(t.detach().tolist())


def taken(case: Any, seed: int, monkeypatch: Any, listed: bool) -> Any:
    """Bits after five steps of two groups of drawn parameters."""
    name, options = case
    rng = np.random.default_rng(seed)
    kind = getattr(lt.optim, name)
    kinds = [k for k in KINDS if k != "complex"] if name == "Rprop" else KINDS
    params = drawn(rng, kinds)
    rate = options["lr"] / 2
    groups = [{"params": params[:5]}, {"params": params[5:], "lr": rate}]
    optimizer = kind(groups, **options)
    with monkeypatch.context() as m:
        m.setattr(kind, "_listed", listed)
        for _ in range(5):
            give_gradients(params, rng)
            optimizer.step()
            optimizer.param_groups[0]["lr"] *= 0.9
    return bits_of(params, optimizer)


@pytest.mark.quick(10)
@pytest.mark.parametrize("case", ELEMENTWISE, ids=identity)
def test_listed_steps_equal_steps_of_one_parameter_each(case, monkeypatch):
    for seed in range(3):
        found = [taken(case, seed, monkeypatch, listed) for listed in (True, False)]
        assert found[0] == found[1]


@pytest.mark.quick(8)
@pytest.mark.parametrize("case", ELEMENTWISE, ids=identity)
def test_listed_steps_agree_with_calls_of_numpy(case, monkeypatch):
    for seed in range(2):
        found = [numbers_of(taken(case, seed, monkeypatch, True))]
        with monkeypatch.context() as m:
            m.setattr(thresholds, "COMPILED_STEP", 1 << 60)
            found.append(numbers_of(taken(case, seed, m, True)))
        assert len(found[0]) == len(found[1]) > 100
        for a, b in zip(*found, strict=True):
            assert a == pytest.approx(b, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_rows_are_shared_out_among_threads(name, monkeypatch):
    case = next(c for c in reversed(ELEMENTWISE) if c[0] == name)
    before = lt.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            lt.set_num_threads(threads)
            for value in (1 << 17, 16):
                monkeypatch.setattr(thresholds, "CHUNK", value)
                monkeypatch.setattr(thresholds, "THREAD", value)
                monkeypatch.setattr(thresholds, "SHARED", value)
                found.append(taken(case, 7, monkeypatch, True))
    finally:
        lt.set_num_threads(before)
    assert all(f == found[0] for f in found)


def calls_of(step: Any) -> Counter[str]:
    """How often each kernel is called by a step."""
    state, seen = local.state, Counter[str]()
    usual = state.run_kernel

    def counted(f: Any, *args: Any) -> Any:
        seen[getattr(f, "__name__", type(f).__name__)] += 1
        return usual(f, *args)

    state.run_kernel = counted
    try:
        step()
    finally:
        state.run_kernel = usual
    return seen


@pytest.mark.parametrize("name", ["AdamW", "SGD", "ASGD"])
def test_ctrl_c_within_a_listed_step_comes_after_it(name, monkeypatch):
    ends = []
    for interrupted in (False, True):
        rng = np.random.default_rng(2)
        params = drawn(rng, ["plain", "float64", "strided"])
        optimizer = getattr(lt.optim, name)(params, lr=0.1)
        for _ in range(3):
            give_gradients(params, rng)
            optimizer.step()
        usual = local.state.run_kernel

        def run(f: Any, *args: Any, usual: Any = usual) -> Any:
            _thread.interrupt_main()
            return usual(f, *args)

        if interrupted:
            monkeypatch.setattr(local.state, "run_kernel", run)
            with pytest.raises(KeyboardInterrupt):
                optimizer.step()
            monkeypatch.undo()
        else:
            optimizer.step()
        ends.append(bits_of(params, optimizer))
    assert ends[0] == ends[1]


def test_a_step_of_many_parameters_is_one_call():
    params = [lt.nn.Parameter(lt.randn(4, k)) for k in range(1, 30)]
    optimizer = lt.optim.AdamW(params)
    for p in params:
        p.grad = lt.ones_like(p)
    optimizer.step()
    assert calls_of(optimizer.step) == {"adam_step_00_listed": 1}
    params[3].grad = None
    optimizer.step()
    params[3].grad = lt.ones_like(params[3])
    assert calls_of(optimizer.step) == {"adam_step_00_listed": 2}  # one has another count


def test_the_first_step_is_listed_too():
    params = [lt.nn.Parameter(lt.randn(4, k)) for k in range(1, 9)]
    optimizer = lt.optim.RMSprop(params)
    for p in params:
        p.grad = lt.ones_like(p)
    lt.optim.RMSprop([params[0]], lr=0.0).step()  # compiles
    seen = calls_of(optimizer.step)
    assert [n for name, n in seen.items() if name.startswith("rmsprop_step")] == [1]
    assert all(optimizer.state[p]["step"] == 1 for p in params)


def test_an_update_of_ones_own_gets_a_call_for_each_parameter():
    class Mine(lt.optim.AdamW):
        seen = 0

        def prepare(self, p, g, state, group):
            self.seen += 1
            return super().prepare(p, g, state, group)

    params = [lt.nn.Parameter(lt.randn(3)) for _ in range(4)]
    optimizer = Mine(params)
    for p in params:
        p.grad = lt.ones_like(p)
    optimizer.step()
    assert optimizer.seen == 4


def test_a_number_of_ones_own_in_the_state_is_not_shared():
    class Scaled(lt.optim.AdamW):
        def advance(self, state, group):
            held, numbers = super().advance(state, group)
            numbers["rate"] *= state.get("factor", 1.0)
            return held, numbers

    params = [lt.nn.Parameter(lt.zeros(3)) for _ in range(4)]
    optimizer = Scaled(params, lr=1.0, weight_decay=0.0)
    for p in params:
        p.grad = lt.ones_like(p)
    optimizer.step()
    before = [p.detach().clone() for p in params]
    optimizer.state[params[1]]["factor"] = 0.0
    optimizer.state[params[3]]["factor"] = 2.0
    optimizer.step()
    moved = [float((b - p.detach())[0]) for b, p in zip(before, params, strict=True)]
    assert moved[1] == 0
    assert moved[0] == moved[2] != 0
    assert moved[3] == pytest.approx(2 * moved[0], rel=1e-6)


def test_a_refused_state_leaves_all_as_it_was():
    params = [lt.nn.Parameter(lt.randn(64, 64)) for _ in range(3)]
    optimizer = lt.optim.AdamW(params)
    for p in params[:2]:
        p.grad = lt.ones_like(p)
    optimizer.step()
    for p in params:
        p.grad = lt.ones_like(p)
    before, live = bits_of(params, optimizer), lt.memory_allocated()
    params.append(lt.nn.Parameter(lt.randn(2)))
    params[3].grad = lt.ones(2)
    optimizer.add_param_group({"params": params[3:]})
    live = lt.memory_allocated()
    optimizer.param_groups.reverse()  # its state is made before that of the third is refused
    limit = lt.set_memory_limit(live + 20_000)  # room for one of the two states of the third
    try:
        with pytest.raises(lt.OutOfMemoryError) as caught:
            optimizer.step()
    finally:
        lt.set_memory_limit(limit)
    assert lt.memory_allocated() == live  # though the error's frames are still there
    assert caught.value
    assert bits_of(params[:3], optimizer) == before
    assert params[2] not in optimizer.state
    optimizer.step()
    assert [optimizer.state[p]["step"] for p in params] == [2, 2, 1, 1]


def test_memory_that_a_tensor_got_since_is_what_is_written():
    params = [lt.nn.Parameter(lt.zeros(5)) for _ in range(2)]
    optimizer = lt.optim.AdamW(params, lr=0.1)
    for p in params:
        p.grad = lt.ones_like(p)
    optimizer.step()
    old = params[0].data
    params[0].data = lt.full((5,), 3.0)
    optimizer.state[params[1]]["exp_avg"] = lt.zeros(5)
    kept = old.clone()
    optimizer.step()
    assert old.tolist() == kept.tolist()
    assert all(2.8 < v < 3 for v in params[0].tolist())
    assert optimizer.state[params[1]]["exp_avg"].tolist() == pytest.approx([0.1] * 5)


def test_parameters_over_one_storage_are_stepped_in_order(monkeypatch):
    monkeypatch.setattr(thresholds, "THREAD", 1)

    def calls(views: list[Any]) -> Any:
        optimizer = lt.optim.SGD(views, lr=0.1, weight_decay=0.5)
        for v in views:
            v.grad = lt.ones_like(v)
        return calls_of(optimizer.step)

    whole = lt.arange(8.0)
    expected = whole.numpy().copy()
    for part in (slice(0, 6), slice(2, 8)):
        expected[part] -= np.float32(0.1) * (1 + np.float32(0.5) * expected[part])
    shared = calls([lt.nn.Parameter(whole[:6]), lt.nn.Parameter(whole[2:])])
    assert whole.tolist() == pytest.approx(expected.tolist())
    assert "parallel_range" not in shared  # no two threads may write the same elements
    assert "parallel_range" in calls([lt.nn.Parameter(lt.ones(6)), lt.nn.Parameter(lt.ones(6))])


def test_each_step_counts_once_in_versions():
    params = [lt.nn.Parameter(lt.zeros(5)) for _ in range(2)]
    optimizer = lt.optim.Adam(params, lr=0.1)
    for p in params:
        p.grad = lt.ones_like(p)
    optimizer.step()
    states = [v for p in params for v in optimizer.state[p].values()]
    tensors = [t for t in [*params, *states] if isinstance(t, lt.Tensor)]
    before = [t._version for t in tensors]
    for _ in range(3):
        optimizer.step()
    assert len(tensors) == 6
    assert [t._version - v for t, v in zip(tensors, before, strict=True)] == [3] * 6
    assert [p.grad._version for p in params] == [0, 0]


def test_a_graph_that_kept_a_parameter_notices_the_step():
    w = lt.nn.Parameter(lt.ones(3))
    optimizer = lt.optim.Adam([w, lt.nn.Parameter(lt.ones(2))])
    out = (w * w).sum()
    w.grad = lt.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_nothing_of_a_step_is_kept():
    p = lt.nn.Parameter(lt.zeros(5))
    optimizer = lt.optim.AdamW([p])
    p.grad = lt.ones(5)
    optimizer.step()
    before = lt.memory_allocated()
    p.grad = None
    optimizer.state.clear()
    assert before - lt.memory_allocated() == 3 * 5 * 4
    assert not any(isinstance(v, lt.Tensor) for v in vars(listed_updates).values())
