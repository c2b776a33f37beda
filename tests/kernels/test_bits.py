"""Formulas of bits: NumPy, the compiled loop and CUDA C++ compute what the function says."""

from __future__ import annotations

import random
import textwrap
from typing import Any

import numpy as np
import pytest

from lowtide.framework.kernels.cuda.bits import printed_bits
from lowtide.framework.kernels.formula import bits as formulas
from lowtide.framework.kernels.formula.bits import Bits
from lowtide.framework.kernels.formula.declaration import DECLARED
from lowtide.framework.kernels.formula.reader import NoFormula
from lowtide.framework.ops.elementwise.bitmask import compute_bits, work_specs
from lowtide.framework.spec import Spec
from tests.devices import cuda_on_cpu
from tests.kernels.test_formula import imported

BITS = {
    name: f for name, f in DECLARED.items() if isinstance(f, Bits) and name.startswith("lowtide.")
}
NUMBERS = {"negative_slope": 0.25, "min_val": -0.5, "max_val": 0.75, "low": -0.5, "high": 0.75}
NUMBERS |= {"threshold": 0.25, "value": 20.0, "inside": 0.5, "outside": 0.125}
SIZES = (1, 7, 8, 4095, 4096, 4097, 9001, 3 * 4096)
EDGES = [0.0, -0.0, 0.25, -0.5, 0.75, 1.0, 3.0, -3.0, np.nan, np.inf, -np.inf]


def packed(on: Any) -> Any:
    """Booleans as bits, in the order that the module's docstring gives."""
    parts = []
    for start in range(0, on.size, 4096):
        tile = on[start : start + 4096]
        count = -(-tile.size // 8)
        room = np.zeros(8 * count, bool)
        room[: tile.size] = tile
        parts.append((room.reshape(8, count) << np.arange(8)[:, None]).sum(0))
    return np.concatenate(parts).astype(np.uint8)


def drawn(f: Any, size: int, dtype: Any, seed: int, one: bool = False) -> tuple[Any, Any]:
    """Inputs as elements, and as the kernels take them."""
    draw, elements, given = np.random.default_rng(seed), [], []
    for name in f.reader.elements:
        if name in f.reader.conditions:
            x = draw.random(size) < 0.5
            given.append(packed(x))
        else:
            x = (draw.standard_normal(size) * 3).astype(dtype)
            places = draw.integers(0, size, size // 5 + 1)
            x[places] = draw.choice(EDGES, places.size)
            if one and name == "grad":
                x = np.broadcast_to(x[:1], size)
            given.append(x[:1].copy() if one and name == "grad" else x)
        elements.append(x)
    return elements, given


def expected(f: Any, elements: Any, numbers: dict[str, float], dtype: Any) -> Any:
    """The function's own values, an element at a time, and its bits."""
    kind = np.dtype(dtype).type
    numbers = {k: float(kind(v)) for k, v in numbers.items()}
    with np.errstate(all="ignore"):
        each = [f(*map(_plain, e), **numbers) for e in zip(*elements, strict=True)]
    each = [e if isinstance(e, tuple) else (e,) for e in each]
    values, *tests = zip(*each, strict=True)
    return np.array(values, dtype), [packed(np.array(t, bool)) for t in tests]


def _plain(x: Any) -> Any:
    return bool(x) if isinstance(x, np.bool_) else x


def by_numpy(f: Any, given: Any, size: int, dtype: Any, numbers: dict[str, float]) -> Any:
    out = np.full(size, 7, dtype)
    count = len(f.variant(numbers).made)
    made = [np.full(-(-size // 8), 255, np.uint8) for _ in range(count)]
    specs = work_specs(f, Spec((size,), _dtype(dtype)), **numbers)
    work = [np.empty(s.shape, s.dtype.np) for s in specs]
    with np.errstate(all="ignore"):
        compute_bits(np, f, out, made, *work, given, **numbers)
    return out, made


def _dtype(dtype: Any) -> Any:
    import lowtide as lt

    return {np.float32: lt.float32, np.float64: lt.float64}[dtype]


def by_loop(f: Any, given: Any, size: int, dtype: Any, numbers: dict[str, float]) -> Any:
    out, made, run, values = _arguments(f, size, dtype, numbers)
    run(out, *made, *given, *values, 0, -(-size // formulas.TILE))
    return out, made


def on_gpu(f: Any, given: Any, size: int, dtype: Any, numbers: dict[str, float]) -> Any:
    from lowtide.framework.devices.sim.array import SimArray
    from lowtide.framework.devices.sim.backend import SIM

    out, made, run, values = _arguments(f, size, dtype, numbers)
    with cuda_on_cpu.cuda_kernels():
        printed_bits(run)(SIM, *map(SimArray, [out, *made, *given]), *values)
    return out, made


def _arguments(f: Any, size: int, dtype: Any, numbers: dict[str, float]) -> Any:
    run, values = f.loop_of(numbers)
    count = len(f.variant(numbers).made)
    made = [np.full(-(-size // 8), 255, np.uint8) for _ in range(count)]
    return np.full(size, 7, dtype), made, run, values


def assert_same(found: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(found[0], wanted[0])
    for a, b in zip(found[1], wanted[1], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(BITS))
def test_all_ways_compute_what_the_function_says(name: str, dtype: Any) -> None:
    f = BITS[name]
    numbers = {k: NUMBERS[k] for k in f.reader.attributes}
    ways = [by_numpy, by_loop] + [on_gpu] * (cuda_on_cpu.COMPILER is not None)
    for k, size in enumerate(SIZES):
        elements, given = drawn(f, size, dtype, k)
        wanted = expected(f, elements, numbers, dtype)
        for way in ways:
            assert_same(way(f, given, size, dtype, numbers), wanted)


@pytest.mark.parametrize(
    "name", sorted(n for n, f in BITS.items() if f.reader.elements[0] == "grad")
)
def test_a_gradient_that_is_one_number(name: str) -> None:
    f = BITS[name]
    for outside in (0.125, 0.0):
        numbers = {k: (NUMBERS | {"outside": outside})[k] for k in f.reader.attributes}
        for size in SIZES:
            elements, given = drawn(f, size, np.float32, size, one=True)
            wanted = expected(f, elements, numbers, np.float32)
            for way in [by_loop] + [on_gpu] * (cuda_on_cpu.COMPILER is not None):
                assert_same(way(f, given, size, np.float32, numbers), wanted)


def drawn_text(draw: random.Random) -> str:
    """A formula of bits: two inputs, a bit, a number, and one to three results."""
    values = ["x", "y", "0.5"]
    tests = ["on"]

    def value() -> str:
        a, b = draw.choice(values), draw.choice(values[:2])
        kinds = [f"{a} * {b}", f"{a} + {b}", f"abs({b})", f"-{b}", f"maximum({b}, 0.25)"]
        return draw.choice([*kinds, f"{b} * scale", f"({a} if {test()} else {b})"])

    def test() -> str:
        plain = (
            f"{draw.choice(values[:2])} {draw.choice(['<', '<=', '>', '!='])} {draw.choice(values)}"
        )
        known = draw.choice(tests)
        return draw.choice([plain, f"not {plain}", known, f"({plain} and {known})", f"not {known}"])

    lines = []
    for k in range(draw.randint(1, 5)):
        if draw.random() < 0.5:
            lines.append(f"v{k} = {value()}")
            values.insert(2, f"v{k}")
        else:
            lines.append(f"t{k} = {test()}")
            tests.append(f"t{k}")
    read = f"(x + y * scale if on else {draw.choice(values[:-1])})"
    made = [
        f"{draw.choice(values[:2])} {s} {read}"
        for s in draw.sample(["<", ">", "!="], draw.randint(0, 2))
    ]
    body = textwrap.indent("\n".join([*lines, f"return {', '.join([read, *made])}"]), "    ")
    head = "from lowtide.framework.kernels.formula.functions import maximum\n\n\n"
    return f"{head}def drawn(x, y, on: bool, *, scale):\n{body}\n"


@pytest.mark.quick(6)
@pytest.mark.parametrize("case", range(60))
def test_drawn_formulas(case: int, tmp_path: Any) -> None:
    draw = random.Random(case)
    text = drawn_text(draw)
    f = formulas.bits(imported(tmp_path / "bits.py", text).drawn)
    for size in (5, 4096 + 31):
        elements, given = drawn(f, size, np.float64, case)
        for x in elements[:2]:  # what is infinite or NaN may differ in sign
            x[~np.isfinite(x)] = 0.5
        wanted = expected(f, elements, {"scale": 0.75}, np.float64)
        for way in (by_numpy, by_loop) if case % 10 == 0 else (by_numpy,):
            assert_same(way(f, given, size, np.float64, {"scale": 0.75}), wanted)


def test_a_bit_is_no_number(tmp_path: Any) -> None:
    module = imported(
        tmp_path / "wrong.py", "def wrong(x, on: bool):\n    return x if on else 0, x * 2\n"
    )
    with pytest.raises(NoFormula, match="a condition is a comparison"):
        formulas.bits(module.wrong).variant({})


def test_only_a_return_calls_a_formula_of_bits(tmp_path: Any) -> None:
    text = """
        from lowtide.framework.kernels.formula.bits import bits

        @bits
        def inner(x):
            return x * 2, x > 0

        def outer(x):
            return inner(x)

        def wrong(x):
            return inner(x) + 1, x > 0
    """
    module = imported(tmp_path / "calls.py", textwrap.dedent(text))
    outer = formulas.bits(module.outer)
    x = np.linspace(-1, 1, 4097)
    assert_same(by_numpy(outer, [x], x.size, np.float64, {}), (x * 2, [packed(x > 0)]))
    with pytest.raises(NoFormula, match="only a return calls a formula of bits"):
        formulas.bits(module.wrong).variant({})
