"""Updates: what is printed of them gives the new values that the function gives an element."""

from __future__ import annotations

import itertools
import random
import sys
import threading

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import updates
from lowtide.framework.kernels.formula.functions import FLOAT32_ONLY, TABLE, exp
from lowtide.framework.kernels.formula.reader import NoFormula
from lowtide.framework.kernels.formula.update import Update, update
from lowtide.framework.updates import planned_update
from lowtide.optim.adam import adam_step
from tests.kernels.test_formula import drawn_function, imported

ELEMENTS = ["x", "y", "z"]


def drawn_update(draw, name):
    """The text of an update: a drawn formula's assignments, then new values of some inputs."""
    *lines, last = drawn_function(draw, name, ELEMENTS, ["a", "b"]).splitlines()
    value = last.removeprefix("    return ")
    lines.append(f"    first = {value}")
    every = ["first", "start", "scaled", *ELEMENTS]
    changed = draw.sample(ELEMENTS, draw.randint(1, 3))
    for name in changed:
        known = [k for k in every if k != name]
        text = draw.choice(
            [
                f"{draw.choice(known)} - {draw.choice(ELEMENTS)}",
                f"{draw.choice(ELEMENTS)} if {draw.choice(ELEMENTS)} > a else {draw.choice(known)}",
                draw.choice(known),
                f"b * {draw.choice(ELEMENTS)}",
                "0.5",
                "a",
            ]
        )
        lines.append(f"    {name} = {text}")
    draw.shuffle(changed)
    lines.append(f"    return {', '.join(changed)}{',' if len(changed) == 1 else ''}")
    return "\n".join([*lines, ""]), changed


def expected_of(made, names, values, attributes):
    """New arrays by the function itself, one element at a time."""
    found = {n: v.copy() for n, v in zip(ELEMENTS, values, strict=True)}
    for k, x in enumerate(zip(*values.tolist(), strict=True)):
        for name, value in zip(names, made(*x, **attributes), strict=True):
            found[name][k] = value
    return [found[name] for name in ELEMENTS]


@pytest.mark.parametrize("count", [80, pytest.param(1000, marks=pytest.mark.deep)])
def test_drawn_updates_as_calls_of_numpy(tmp_path, count):
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    drawn = [drawn_update(draw, f"f{k}") for k in range(count)]
    module = imported(tmp_path / "drawn_updates.py", "\n\n".join(text for text, _ in drawn))
    values = np.random.default_rng(seed).standard_normal((3, 40))
    for k, (text, names) in enumerate(drawn):
        attributes = {"a": draw.random(), "b": draw.random()}
        made = Update(vars(module)[f"f{k}"], f"f{k}")
        variant = made.variant(attributes)
        kinds = variant.calls.buffers
        buffers = [np.full(40, 7.7) if kind == "float" else np.full(40, True) for kind in kinds]
        arrays = [v.copy() for v in values]
        used = [arrays[j] for j in variant.places]
        with np.errstate(all="ignore"):
            variant.numpy(np, *buffers, *used, *variant.numbers(attributes))
        for found, expected in zip(
            arrays, expected_of(made, names, values, attributes), strict=True
        ):
            close = np.isclose(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
            assert close.all(), f"{text}\n{variant.calls.text()}"


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.deep)])
def test_drawn_updates_as_loops(tmp_path, count):
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    drawn = [drawn_update(draw, f"f{k}") for k in range(count)]
    module = imported(tmp_path / "drawn_loops.py", "\n\n".join(text for text, _ in drawn))
    values = np.random.default_rng(seed).standard_normal((3, 40))
    for k, (text, names) in enumerate(drawn):
        attributes = {"a": draw.random(), "b": draw.random()}
        made = Update(vars(module)[f"f{k}"], f"f{k}", fused=False)
        variant = made.variant(attributes)
        dtype = np.float32 if variant.only_float32 else np.float64
        inputs = values.astype(dtype)
        arrays = [v.copy() for v in inputs]
        variant.loop(*[arrays[j] for j in variant.places], *variant.numbers(attributes))
        expected = expected_of(made, names, inputs, attributes)
        for found, wanted in zip(arrays, expected, strict=True):
            if dtype is np.float64:
                np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9, err_msg=text)
            else:  # where numbers nearly are equal, rounding may decide a comparison
                size = np.abs(wanted).max() + 1
                close = np.isclose(found, wanted, rtol=1e-4, atol=1e-5 * size)
                assert close.mean() > 0.95, text


@update
def grown(p, g, *, rate):
    """The loop of the exponential is for float32 only."""
    return p * exp(-rate * g)


@pytest.mark.parametrize("dtype", [lt.float32, lt.float64, lt.bfloat16])
@pytest.mark.parametrize("n", [3, 5000])
def test_functions_of_float32_are_not_taken_for_other_dtypes(n, dtype):
    p, g = (lt.tensor(np.linspace(a, 3, n)).to(dtype) for a in (1, -2))
    expected = p.double().numpy() * np.exp(-0.5 * g.double().numpy())
    run, *arguments = planned_update(grown, (p, g), {"rate": 0.5})
    run(*arguments)
    tolerance = {2: 1e-2, 4: 1e-6, 8: 1e-14}[dtype.itemsize]
    np.testing.assert_allclose(p.double().numpy(), expected, rtol=tolerance)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", sorted(FLOAT32_ONLY))
def test_loops_of_functions_of_float32_do_not_compile_for_others(tmp_path, name):
    hint = ", exp(-0.5 * x * x)" if TABLE[name].second == "hint" else ""
    text = f"def one(x):\n    return {name}(x{hint})\n"
    loop = Update(imported(tmp_path / "one.py", text).one, f"one_{name}").variant({}).loop
    x = np.full(8, 0.25, np.float32)
    loop(x)
    with pytest.raises(Exception, match="functions of float32 take no float64"):
        loop(x.astype(np.float64))


@pytest.fixture
def often_switched():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@update
def mixed(p, g, m, *, share, rate, damped):
    """Two writes, of which the second reads the first."""
    m = share * m + g
    p = p - rate * (m if damped else m + g)
    return p, m


MIXED = {"share": 0.5, "rate": 0.25, "damped": True}


def mixed_tensors(shape, kinds, order="C", device="cpu"):
    draw = np.random.default_rng(3)
    found = []
    for kind, letter in zip(kinds, order * 3 if len(order) == 1 else order, strict=True):
        t = lt.tensor(np.round(draw.standard_normal(shape), 2)).to(kind)
        t = t.to(device)
        found.append(t.T.contiguous().T if letter == "F" else t)
    return found


@pytest.mark.parametrize("order", ["C", "F", "CFC"])
@pytest.mark.parametrize("shape", [(), (1,), (5, 3), (3, 5000), (70, 200), (0, 4)])
@pytest.mark.parametrize(
    "kinds",
    [
        (lt.float32,) * 3,
        (lt.float64,) * 3,
        (lt.bfloat16,) * 3,
        (lt.float16,) * 3,
        (lt.bfloat16, lt.float32, lt.float32),
        (lt.float32, lt.float16, lt.float64),
        (lt.complex64,) * 3,
    ],
)
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_every_layout_and_dtype_gets_the_same_values(shape, order, kinds, device):
    if order != "C" and len(shape) < 2:
        shape = (4, 6)
    p, g, m = mixed_tensors(shape, kinds, order, device)
    wide = lt.float64 if kinds[0] is not lt.complex64 else lt.complex128
    before = [t.detach().cpu().to(wide).numpy().copy() for t in (p, g, m)]
    versions = p._version, g._version, m._version
    run, *arguments = planned_update(mixed, (p, g, m), MIXED)
    assert (p._version, g._version, m._version) == versions, "nothing is written before it runs"
    run(*arguments)
    assert (p._version > versions[0], g._version, m._version > versions[2]) == (
        True,
        versions[1],
        True,
    )
    new_m = 0.5 * before[2] + before[1]
    for t, expected in ((m, new_m), (p, before[0] - 0.25 * new_m)):
        found = t.detach().cpu().to(wide).numpy()
        tolerance = {2: 1e-2, 4: 1e-6, 8: 1e-6}[t.itemsize]
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def test_what_numbers_leave_out_may_be_none():
    p, g, _ = mixed_tensors((4,), (lt.float64,) * 3)
    change = Update(_maybe, "maybe")
    run, *arguments = planned_update(change, (p, g, None), {"use": False})
    expected = p.numpy() + g.numpy()
    run(*arguments)
    np.testing.assert_array_equal(p.numpy(), expected)


def _maybe(p, g, extra, *, use):
    """Reads ``extra`` only with ``use``."""
    p = p + g + extra if use else p + g
    return p, extra


def test_what_repeats_an_element_is_refused_before_anything_is_written():
    p, g, m = mixed_tensors((3, 4), (lt.bfloat16,) * 3)
    before = p.clone()
    wrong = m[:1].expand(3, 4)
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        planned_update(mixed, (p, g, wrong), MIXED)
    assert (p == before).all()
    run, *arguments = planned_update(mixed, (p, g[:1].expand(3, 4), m), MIXED)
    run(*arguments)  # what is only read may repeat


@pytest.mark.parametrize("n", [4, 5000])
@pytest.mark.parametrize("wrong", [lambda n: lt.ones(1), lambda n: lt.ones(n, device="sim")])
def test_tensors_of_another_shape_or_device_are_refused_before_anything_is_written(n, wrong):
    p, m = lt.ones(n), lt.ones(n)
    with pytest.raises(RuntimeError, match="mixed: tensors have one shape and one device; got"):
        planned_update(mixed, (p, wrong(n), m), MIXED)
    assert (p == 1).all()


def test_averages_of_other_shapes_are_refused_and_left_alone():
    average = lt.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    ours = [lt.ones(3), lt.ones(5000)]
    with pytest.raises(RuntimeError, match="one shape"):
        average(ours, [lt.zeros(3), lt.zeros(1)], 1)
    assert all((t == 1).all() for t in ours)


def test_a_refusal_of_the_scratch_comes_before_anything_is_written():
    p, g, m = mixed_tensors((4096,), (lt.bfloat16,) * 3, device="sim")
    before = p.cpu().tolist()
    lt.set_memory_limit(lt.memory_allocated("sim") + 1000, "sim")
    try:
        with pytest.raises(lt.OutOfMemoryError):
            planned_update(mixed, (p, g, m), MIXED)
    finally:
        lt.set_memory_limit(None, "sim")
    assert p.cpu().tolist() == before


def test_threads_that_read_at_once_read_the_same(often_switched):
    change = adam_step.function
    outcomes = list(itertools.product([False, True], repeat=2))
    expected = [adam_step.variant_of(o) for o in outcomes]
    for _ in range(20):
        made = Update(change, "read_at_once")
        assert made.reader.tests
        start, found = threading.Barrier(4), [None] * 4

        def read(k, made=made, start=start, found=found):
            start.wait(timeout=60)
            found[k] = made.variant_of(outcomes[k])

        threads = [threading.Thread(target=read, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(timeout=60)
        for one, other in zip(found, expected, strict=True):
            assert one.steps == other.steps


def test_scratch_has_room_for_every_update():
    from lowtide.framework.kernels.formula.declaration import DECLARED

    every = [d for d in DECLARED.values() if type(d) is Update and d.module.startswith("lowtide.")]
    assert len(every) >= 16
    for declared in every:
        for outcome in declared.outcomes():
            variant = declared.variant_of(outcome)
            assert len(variant.calls.buffers) + len(variant.elements) <= updates.ROWS


def test_an_update_returns_parameters(tmp_path):
    module = imported(tmp_path / "wrong.py", "def wrong(x, y):\n    d = x + y\n    return x, d\n")
    with pytest.raises(NoFormula, match="an update returns parameters that have new values"):
        update(module.wrong).variant({})


def test_an_update_changes_something(tmp_path):
    text = "def wrong(x, y, *, a):\n    x = x + y if a else x\n    return x, y\n"
    change = update(imported(tmp_path / "nothing.py", text).wrong)
    assert change.variant({"a": True}).written == ["x"]
    with pytest.raises(NoFormula, match="gives no parameter a new value"):
        change.variant({"a": False})


def test_numbers_of_a_formula_that_is_called(tmp_path):
    text = """
from lowtide.framework.kernels.formula.formula import formula

BASE = 3

@formula
def inner(x, *, power, off=1):
    return x * (power + BASE) if off != 0 else x

@formula
def outer(x, y, *, power, off):
    return inner(x, power=2 * power, off=off) + inner(y, power=0.5)
"""
    module = imported(tmp_path / "calls.py", text)
    arrays = [np.array([1.0, 2.0]), np.array([10.0, 20.0])]
    for off, expected in ((0, [36.0, 72.0]), (1, [46.0 - 4, 92.0 - 8])):
        attributes = {"power": 2.0, "off": off}
        variant = module.outer.variant(attributes)
        out = np.empty(2)
        buffers = [np.empty(2) for _ in variant.calls.buffers]
        variant.numpy(np, out, *buffers, *arrays, *variant.numbers(attributes))
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("inner(x)", "takes these numbers, by keyword: power"),
        ("inner(x, power=x)", "a number of a formula is one of the call"),
        ("inner(x, 2, power=1)", "takes 1 elements"),
        ("inner(x, power=2, other=1)", "takes these numbers, by keyword: power"),
        ("outer(x)", "a formula does not call itself"),
        ("maximum(x, power=2)", "maximum takes an element, and a number"),
    ],
)
def test_wrong_calls_of_a_formula_are_refused(tmp_path, call, message):
    text = f"""
from lowtide.framework.kernels.formula.formula import formula

@formula
def inner(x, *, power):
    return x * power

@formula
def outer(x):
    return {call}
"""
    name = f"wrong_{abs(hash(call))}"
    module = imported(tmp_path / f"{name}.py", text)
    with pytest.raises(NoFormula, match=message):
        module.outer.variant({})
