"""What a step costs in bytes, and that each road of a step gives the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.ops.views import tiled as cutting
from lowtide.optim.elementwise import Elementwise
from tests.optim.cases import CASES, EXACT, OPTIONS, identity
from tests.optim.runs import run

SIDE = 160  # a parameter of 160 x 160: more than thresholds.COMPILED_STEP elements
NAMES = [  # those of eight bits have a file of their own
    n for n in OPTIONS if issubclass(getattr(lt.optim, n), Elementwise) and n not in EXACT
]
ELEMENTWISE = [c for c in CASES if c[0] in NAMES]
STATE = {  # how many times a parameter's size the state of a case takes
    "SGD": lambda o: bool(o.get("momentum")),
    "Adam": lambda o: 2 + bool(o.get("amsgrad")),
    "AdamW": lambda o: 2 + bool(o.get("amsgrad")),
    "NAdam": lambda o: 2,
    "RAdam": lambda o: 2,
    "Adamax": lambda o: 2,
    "Adagrad": lambda o: 1,
    "Adadelta": lambda o: 2,
    "RMSprop": lambda o: 1 + bool(o["momentum"]) + o["centered"],
    "Rprop": lambda o: 2,
    "ASGD": lambda o: 1,
    "Lion": lambda o: 1,
}


def made(name: str, options: dict[str, Any], device: str = "cpu", dtype: Any = lt.float32) -> Any:
    """A parameter with a gradient, and its optimizer."""
    p = lt.nn.Parameter(lt.ones(SIDE, SIDE, dtype=dtype, device=device))
    p.grad = lt.full((SIDE, SIDE), 0.5, dtype=dtype, device=device)
    return p, getattr(lt.optim, name)([p], **options)


def step_of(optimizer: Any, p: Any) -> Any:
    """The update of a parameter's step, its tensors and its numbers."""
    found = []

    def planned(*given: Any) -> Any:
        found.append(given)
        return (int,)

    optimizer.planned = planned
    optimizer.step()
    del optimizer.planned
    return found[0]


def extra_of(step: Any, device: str = "cpu") -> int:
    """Bytes above what lived before, at the peak of a step."""
    lt.reset_peak_memory_stats(device)
    before = lt.memory_allocated(device)
    step()
    return lt.max_memory_allocated(device) - before


@pytest.mark.parametrize("case", ELEMENTWISE, ids=identity)
def test_a_compiled_step_takes_not_one_byte(case):
    _, optimizer = made(*case)
    optimizer.step()  # makes the state
    assert [extra_of(optimizer.step) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("case", ELEMENTWISE, ids=identity)
def test_the_first_step_takes_the_state_and_nothing_else(case):
    name, options = case
    p, optimizer = made(name, options)
    before = lt.memory_stats("cpu")["by_role"]["optimizer"]
    assert extra_of(optimizer.step) == STATE[name](options) * p.nbytes
    after = lt.memory_stats("cpu")["by_role"]["optimizer"]
    assert after - before == STATE[name](options) * p.nbytes


@pytest.mark.parametrize("case", ELEMENTWISE, ids=identity)
def test_a_step_that_is_not_compiled_takes_not_one_byte_on_the_cpu(case, monkeypatch):
    monkeypatch.setattr(thresholds, "COMPILED_STEP", 1 << 60)
    _, optimizer = made(*case)
    optimizer.step()
    assert extra_of(optimizer.step) == 0


@pytest.mark.parametrize("name", NAMES)
def test_elsewhere_it_takes_its_buffers_of_a_tile(name, monkeypatch):
    monkeypatch.setattr(thresholds, "TILE_BYTES_ELSEWHERE", 8 * 1024)
    p, optimizer = made(name, OPTIONS[name][0], "sim", lt.bfloat16)
    optimizer.step()
    update, tensors, numbers = step_of(optimizer, p)
    variant, _ = update.of_call(numbers)
    kinds = variant.calls.buffers
    rows, masks = kinds.count("float") + len(variant.places), kinds.count("bool")
    assert all(t is not None for t in (tensors[k] for k in variant.places))
    assert extra_of(optimizer.step, "sim") == 1024 * (4 * rows + masks)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("road", ["compiled", "plain"])
def test_meta_foretells_the_bytes_of_a_step(name, road, monkeypatch):
    if road == "plain":
        monkeypatch.setattr(thresholds, "COMPILED_STEP", 1 << 60)
    found = []
    for device in ("cpu", "meta"):
        _, optimizer = made(name, OPTIONS[name][0], device)
        found.append([extra_of(optimizer.step, device) for _ in range(2)])
    assert found[0] == found[1]


def test_meta_foretells_the_bytes_of_adafactor_and_muon():
    for name in ("Adafactor", "Muon"):
        found = []
        for device in ("cpu", "meta"):
            _, optimizer = made(name, {}, device)
            found.append([extra_of(optimizer.step, device) for _ in range(2)])
        assert found[0] == found[1]


def test_adafactor_keeps_rows_and_columns_and_a_compiled_step_takes_no_more():
    p, optimizer = made("Adafactor", {})
    assert extra_of(optimizer.step) == 2 * SIDE * p.itemsize
    assert extra_of(optimizer.step) == 0


def test_adafactor_works_on_pieces_where_it_is_not_compiled(monkeypatch):
    monkeypatch.setattr(thresholds, "TILE", 1024)
    monkeypatch.setattr(thresholds, "COMPILED_STEP", 1 << 60)
    p, optimizer = made("Adafactor", {})
    before = lt.memory_stats("cpu")["by_role"]["optimizer"]
    optimizer.step()
    assert lt.memory_stats("cpu")["by_role"]["optimizer"] - before == 2 * SIDE * p.itemsize
    rows = 1024 // SIDE * SIDE  # a piece is whole rows
    assert extra_of(optimizer.step) <= 3 * rows * p.itemsize + 8 * SIDE * p.itemsize


def test_muon_takes_what_its_docstring_says_and_gives_it_back():
    p, optimizer = made("Muon", {})
    optimizer.step()
    before = lt.memory_allocated()
    # Square, so the Gram matrix is as large: four in bfloat16 and a copy of one, and what the last
    # product of an iteration computes in, five matrices of float32.
    assert extra_of(optimizer.step) <= (5 * 2 + 5 * 4) * p.numel()
    assert lt.memory_allocated() == before


@pytest.mark.parametrize("case", ELEMENTWISE, ids=identity)
def test_compiled_and_plain_steps_agree_in_float32(case, monkeypatch):
    ends = []
    for least in (0, 1 << 60):
        monkeypatch.setattr(thresholds, "COMPILED_STEP", least)
        ends.append(run(lt, *case, np.float32)[0])
    for key, value in ends[0].items():
        np.testing.assert_allclose(value, ends[1][key], rtol=0, atol=5e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_strided_parameter_takes_the_steps_of_a_contiguous_one(name, monkeypatch):
    monkeypatch.setattr(thresholds, "TILE", 50)
    monkeypatch.setattr(thresholds, "COMPILED_STEP", 0)
    values = np.random.default_rng(0).standard_normal((12, 9))
    ends = []
    for strided in (False, True):
        p = lt.tensor(values)
        p = (p.T.contiguous().T if strided else p).detach().requires_grad_()
        assert p.is_contiguous() is not strided
        optimizer = getattr(lt.optim, name)([p], **OPTIONS[name][0])
        for k in range(3):
            p.grad = lt.tensor(np.cos(values + k))
            optimizer.step()
        ends.append(p.detach().numpy())
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-12)


@pytest.mark.parametrize("dtype", [lt.bfloat16, lt.float16])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_parameters_move_as_float32_ones_do(name, dtype):
    options = {k: v for k, v in OPTIONS[name][0].items() if k != "lr"}
    options["eps"] = 1e-3  # float16 rounds the usual one to 0
    if name in ("SGD", "Rprop", "ASGD", "Lion"):
        del options["eps"]
    ends = []
    for kind in (lt.float32, dtype):
        p = lt.full((4,), 1.0, dtype=kind).requires_grad_()
        optimizer = getattr(lt.optim, name)([p], lr=0.1, **options)
        for _ in range(3):
            p.grad = lt.full((4,), 0.5, dtype=kind)
            optimizer.step()
        assert p.dtype is kind
        ends.append(p.detach().float().numpy())
    np.testing.assert_allclose(ends[1], ends[0], rtol=0.03)


def test_pieces_cover_every_element_once_and_are_no_larger_than_the_limit(monkeypatch):
    monkeypatch.setattr(thresholds, "TILE", 7)
    for x in (lt.zeros(5, 4, 3), lt.zeros(3, 40).T, lt.zeros(6), lt.zeros(()), lt.zeros(0, 3)):
        for part, other, nothing in cutting.tiles(x, lt.zeros(x.shape), None):
            assert part.numel() <= 7
            assert part.shape == other.shape
            assert nothing is None
            part.add_(1)
        assert x.numel() == 0 or (x == 1).all()


def test_a_step_counts_as_a_write_to_what_the_graph_holds():
    p, optimizer = made("Adam", {})
    loss = (p * p).sum()
    before = p._version
    optimizer.step()
    assert p._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation|written|in place"):
        loss.backward()


def test_an_infinite_parameter_stays_infinite_without_weight_decay():
    for least in (0, 1 << 60):
        p = lt.tensor([float("inf"), 1.0], requires_grad=True)
        optimizer = lt.optim.SGD([p], lr=0.1)
        optimizer.elements = least
        p.grad = lt.zeros(2)
        optimizer.step()
        assert p.tolist() == [float("inf"), 1.0]


@pytest.mark.parametrize("place", ["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", [*OPTIONS, "LBFGS"])
def test_steps_on_another_device_are_those_of_the_cpu(name, place):
    if place == "cuda" and not lt.cuda.is_available():
        pytest.skip("no cuda device")
    options = OPTIONS[name][0] if name in OPTIONS else {"lr": 0.1, "max_iter": 3}
    values = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    ends = []
    for device in ("cpu", place):
        p = lt.tensor(values).to(device).requires_grad_()
        optimizer = getattr(lt.optim, name)([p], **options)

        def closure(p=p, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (p * p).sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        ends.append(p.detach().cpu().numpy())
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-5, atol=1e-6)


def test_lbfgs_keeps_two_vectors_and_two_for_each_pair():
    n = 1000
    p = lt.linspace(-1, 1, n).requires_grad_()
    weights = lt.linspace(1, 3, n)
    optimizer = lt.optim.LBFGS([p], lr=0.1, max_iter=3, history_size=2)

    def closure():
        optimizer.zero_grad()
        loss = (weights * p * p).sum()
        loss.backward()
        return loss

    before = lt.memory_stats("cpu")["by_role"]["optimizer"]
    held = []
    for _ in range(3):
        optimizer.step(closure)
        held.append(lt.memory_stats("cpu")["by_role"]["optimizer"] - before)
    # the first step ends with one pair, at its third evaluation; then the history is full
    assert held == [4 * n * (2 + 2 * pairs) for pairs in (1, 2, 2)]
