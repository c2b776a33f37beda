"""Formulas: what is printed of a scalar function computes what the function does."""

from __future__ import annotations

import importlib.util
import math
import random
import textwrap

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.dtypes import float32, float64
from lowtide.framework.kernels.formula.declaration import DECLARED, loop_named
from lowtide.framework.kernels.formula.formula import Formula, formula
from lowtide.framework.kernels.formula.reader import NoFormula
from lowtide.framework.kernels.formula.walks import TILE
from lowtide.framework.ops.registry import OPS
from tests.samples import over_samples

BUFFERED = np.float64(7.7)  # what buffers and results hold before they are written


def variants(f: Formula):
    """All variants of a formula, those that no call has met included."""
    return map(f.variant_of, f.outcomes())


def run_calls(variant, arrays, numbers, over_input=False):
    """The result of the calls of NumPy, into the first input or into an array of its own."""
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    buffers = [
        np.full(shape, True if kind == "bool" else BUFFERED) for kind in variant.calls.buffers
    ]
    out = arrays[0] if over_input else np.full(shape, BUFFERED)
    with np.errstate(all="ignore"):
        variant.numpy(np, out, *buffers, *arrays, *numbers)
    return out


def by_elements(f, arrays, attributes):
    """The same by the function itself, one element at a time."""
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    every = [np.broadcast_to(a, shape).ravel().tolist() for a in arrays]
    return np.array([f(*x, **attributes) for x in zip(*every, strict=True)], float).reshape(shape)


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_a_formula_can_be_printed(name):
    for variant in variants(DECLARED[name]):
        assert variant.calls.text()
        assert variant.loop is loop_named(DECLARED[name].module, variant.name)


@over_samples(of=lambda op: op.formula is not None)
def test_arrays_get_what_the_function_gives_an_element(op, inputs, attributes):
    arrays = [x.detach().double().numpy() for x in testing.place(inputs, "cpu", op)]
    attributes = op.attributes | attributes
    expected = by_elements(op.formula, arrays, attributes)
    variant = op.formula.variant(attributes)
    numbers = variant.numbers(attributes)
    found = run_calls(variant, arrays, numbers)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    if op.inplace and arrays:
        over = run_calls(variant, [arrays[0].copy(), *arrays[1:]], numbers, over_input=True)
        np.testing.assert_array_equal(over, found)
    if len({a.shape for a in arrays}) == 1:
        flat = [a.ravel().astype(np.float32) for a in arrays]
        out = np.empty_like(flat[0])
        variant.loop(out, *flat, *numbers)
        np.testing.assert_allclose(out, expected.ravel(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [float32, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("size", [1, 3, 31, 1 << 14, (1 << 16) + 7])
def test_sizes_and_a_gradient_that_is_one_number(dtype, size):
    op = OPS["_gelu_backward"]
    x, draw = np.linspace(-4, 4, size), np.random.default_rng(1)
    for grad in (np.broadcast_to(0.3, size), draw.standard_normal(size)):
        given = lt.tensor(grad[:1]).to(dtype).expand(size) if not any(grad.strides) else grad
        given = given if isinstance(given, lt.Tensor) else lt.tensor(given).to(dtype)
        found = op.function(given, lt.tensor(x).to(dtype), approximate="none").numpy()
        expected = by_elements(op.formula, [grad[-9:], x[-9:]], {"approximate": "none"})
        tolerance = 1e-12 if dtype is float64 else 1e-6
        np.testing.assert_allclose(found[-9:], expected, rtol=tolerance, atol=tolerance)


# Drawn formulas


def drawn_function(draw, name, elements, attributes):
    """The text of a formula: assignments, and a result that reads several of them."""
    known = [*elements, *attributes]
    conditions = []
    lines = [f"def {name}({', '.join(elements)}, *, {', '.join(attributes)}):"]
    lines.append(f"    start = {' + '.join(elements)}")
    lines.append(f"    scaled = start * ({' + '.join(attributes)})")
    known += ["start", "scaled"]

    def operand():
        return draw.choice([*known, "0.5", "2", f"maximum({draw.choice(elements)}, 0.25)"])

    def condition():
        test = f"{draw.choice(elements)} {draw.choice(['<', '>=', '!='])} {operand()}"
        return draw.choice([test, f"not {test}", f"({test} and start > 0)", *conditions])

    for k in range(draw.randint(1, 6)):
        target = f"v{k}"
        kind = draw.randrange(5)
        if kind == 0:
            lines.append(f"    test{k} = {draw.choice(elements)} <= {operand()}")
            conditions.append(f"test{k}")
            continue
        if kind == 1:
            text = f"{operand()} if {condition()} else {operand()}"
        elif kind == 2:
            text = f"{draw.choice(['abs', '-', 'exp'])}({draw.choice(elements)})"
        elif kind == 3:
            text = f"({operand()} {draw.choice('+-*')} {operand()}) * {draw.choice(elements)}"
        else:
            text = f"{operand()} {draw.choice('+-*')} ({operand()} - {operand()})"
        if draw.random() < 0.2:
            test = f"{draw.choice(attributes)} > 0.5"
            lines += [f"    if {test}:", f"        {target} = {text}", "    else:"]
            lines += [f"        {target} = start"]
        else:
            lines.append(f"    {target} = {text}")
        known.append(target)
    lines.append(
        f"    return {' + '.join(draw.sample(known, min(3, len(known))))} * {elements[-1]}"
    )
    return "\n".join([*lines, ""])


def imported(path, text):
    path.write_text(f"from lowtide.framework.kernels.formula.functions import *\n{text}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("count", [60, pytest.param(600, marks=pytest.mark.deep)])
def test_drawn_formulas_as_calls_of_numpy(tmp_path, count):
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    texts = [drawn_function(draw, f"f{k}", ["x", "y"], ["a", "b"]) for k in range(count)]
    module = imported(tmp_path / "drawn_formulas.py", "\n\n".join(texts))
    values = np.random.default_rng(seed).standard_normal((2, 40))
    for k, text in enumerate(texts):
        attributes = {"a": draw.random(), "b": draw.random()}
        made = Formula(vars(module)[f"f{k}"], f"f{k}", True, lambda *_, **__: False)
        expected = by_elements(made, list(values), attributes)
        for over_input in (False, True):
            made = Formula(vars(module)[f"f{k}"], f"f{k}", True, lambda *_, **__: False)
            made.over_input = over_input
            variant = made.variant(attributes)
            arrays = [a.copy() for a in values]
            found = run_calls(variant, arrays, variant.numbers(attributes), over_input)
            close = np.isclose(found, expected, rtol=1e-9, atol=1e-9, equal_nan=True)
            assert close.all(), f"{text}\n{variant.calls.text()}"
            assert over_input or (arrays[0] == values[0]).all(), "an input was written"
            assert (arrays[1] == values[1]).all(), "an input was written"


@pytest.mark.deep
def test_drawn_formulas_as_loops(tmp_path):
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    texts = [drawn_function(draw, f"f{k}", ["x", "y"], ["a", "b"]) for k in range(12)]
    module = imported(tmp_path / "drawn_loops.py", "\n\n".join(texts))
    values = np.random.default_rng(seed).standard_normal((2, 40)).astype(np.float32)
    for k, text in enumerate(texts):
        attributes = {"a": draw.random(), "b": draw.random()}
        made = Formula(vars(module)[f"f{k}"], f"f{k}", False, lambda *_, **__: False)
        variant = made.variant(attributes)
        out = np.empty(40, np.float32)
        variant.loop(out, *values, *variant.numbers(attributes))
        expected = by_elements(made, list(values.astype(float)), attributes)
        size = np.abs(expected).max() + 1
        assert np.isclose(out, expected, rtol=1e-4, atol=1e-5 * size).mean() > 0.95, text


# What is refused


REFUSED = {
    "x = x + 1\nreturn y": "x is not used|y is no|no parameter",
    "return x ** 2": "no such operator",
    "return math.sin(x)": "no such expression",
    "return sin(x)": "sin is no function of formulas",
    "for i in range(3):\n    x = x + i\nreturn x": "no such statement",
    "if x > 0:\n    return x\nreturn -x": "an if statement tests numbers of the call",
    "return x if x else 0": "a condition is a comparison",
    "return minimum(x, x)": "minimum takes an element, and a number",
    "return normal_cdf(x)": "normal_cdf takes an element, and another",
    "return x + unknown": "no parameter, nothing assigned, no number of the module",
    "return x[0]": "no such expression",
    "x = x + 1": "no value is returned",
    "return (x, x)": "no such expression",
    "return 0 < x < 1": "no such expression",
    "return x + True": "a bool",
    "return 1": "x is not used",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_no_formula_holds_is_refused_with_its_line(tmp_path, body):
    text = "import math\nfrom math import sin\n\n\ndef wrong(x):\n" + textwrap.indent(body, "    ")
    path = tmp_path / f"wrong_{abs(hash(body))}.py"
    module = imported(path, text + "\n")
    made = formula(module.wrong)
    with pytest.raises(NoFormula, match=REFUSED[body]) as caught:
        made.variant({})
    assert f"{path}:" in str(caught.value)


def test_parameters_are_elements_and_numbers(tmp_path):
    module = imported(tmp_path / "parameters.py", "def wrong(*x):\n    return x\n")
    with pytest.raises(NoFormula, match="parameters are elements of arrays, and behind"):
        formula(module.wrong).variant({})


def test_a_file_that_changes_after_the_declaration_does_not_count(tmp_path):
    path = tmp_path / "changed.py"
    module = imported(path, "def changed(x):\n    return x + 1\n")
    made = formula(module.changed)
    path.write_text(path.read_text().replace("x + 1", "x - 1"))
    assert run_calls(made.variant({}), [np.ones(1)], ())[0] == 2


def test_a_file_that_changes_before_the_declaration_is_refused(tmp_path):
    path = tmp_path / "changed.py"
    module = imported(path, "def changed(x):\n    return x + 1\n")
    path.write_text(path.read_text().replace("x + 1", "x - 12"))
    with pytest.raises(NoFormula, match="is not what was imported: it has changed"):
        formula(module.changed).variant({})


def test_a_formula_calls_another(tmp_path):
    text = """
from lowtide.framework.kernels.formula.formula import formula

@formula
def square(x):
    y = x * x
    return y

@formula
def sum_of_squares(x, y):
    y_1 = square(y)
    return square(x) + y_1
"""
    module = imported(tmp_path / "calling.py", text)
    arrays = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    variant = module.sum_of_squares.variant({})
    np.testing.assert_array_equal(run_calls(variant, arrays, ()), [10.0, 20.0])
    assert module.sum_of_squares(1.0, 3.0) == 10.0


def test_buffers_are_used_again():
    # `_silu` and `_mish` may write over their input, which they read last.
    wanted = {"_silu": ["float"], "_silu_backward": ["float"], "sigmoid": []}
    wanted["_mish"] = ["float", "float"]
    assert {n: OPS[n].formula.variant({}).calls.buffers for n in wanted} == wanted


def test_the_plain_functions_take_what_arrays_hold():
    functions = DECLARED["lowtide.framework.ops.activation.gelu _silu"].function.__globals__
    assert functions["exp"](1000.0) == math.inf
    assert functions["minimum"](math.nan, 1.0) != functions["minimum"](math.nan, 1.0)
    assert functions["maximum"](2.0, 3.0) == 3.0


@pytest.mark.parametrize("shape", [(3, 5, 700), (2, 5, 30, 40), (1200, 5), (1, 5, 5000)])
@pytest.mark.parametrize("repeated", [False, True])
def test_a_number_for_each_channel(shape, repeated):
    draws = np.random.default_rng(len(shape))
    x, t = draws.standard_normal(shape), draws.random(shape)
    w = np.linspace(0.1, 0.9, 5)
    g = np.full(shape, 0.3) if repeated else draws.standard_normal(shape)
    arriving = lt.tensor(np.float32(0.3)).expand(shape) if repeated else lt.tensor(g.astype("f4"))
    wide = w.reshape(5, *[1] * (len(shape) - 2))

    leaf = lt.tensor(x.astype("f4"), requires_grad=True)
    out = lt.nn.functional.prelu(leaf, lt.tensor(w.astype("f4")))
    np.testing.assert_allclose(out.detach().numpy(), np.where(x > 0, x, wide * x), rtol=1e-5)
    out.backward(arriving)
    np.testing.assert_allclose(leaf.grad.numpy(), np.where(x > 0, g, wide * g), rtol=1e-5)

    leaf.grad = None
    loss = lt.nn.functional.binary_cross_entropy_with_logits(
        leaf,
        lt.tensor(t.astype("f4")),
        pos_weight=lt.tensor(wide.astype("f4")),
        reduction="none",
    )
    factor, spread = (wide - 1) * t + 1, np.log1p(np.exp(-x))
    exact = (1 - t) * x + factor * spread
    np.testing.assert_allclose(loss.detach().numpy(), exact, rtol=1e-4, atol=1e-5)
    loss.backward(arriving)
    slope = g * (1 - t - factor / (1 + np.exp(x)))
    np.testing.assert_allclose(leaf.grad.numpy(), slope, rtol=1e-4, atol=1e-5)


@formula
def weighted(grad, x, *, scale):
    return 0 if x > 0.5 else grad * x * scale


@pytest.mark.parametrize("one", [False, True], ids=["gradients", "one gradient"])
@pytest.mark.parametrize(
    "shape", [(3, 4, 5), (1, 2, 9001), (7, 5000, 1), (2, 3, 4096), (2, 3, 4097), (1, 1, 1)]
)
def test_sums_for_each_channel_and_of_all(shape, one):
    draw = np.random.default_rng(1)
    x = draw.standard_normal(shape).astype(np.float32)
    grad = draw.standard_normal((1, 1, 1) if one else shape).astype(np.float32)
    each = np.where(x > 0.5, 0, grad.astype(np.float64) * x * 0.25)
    variant = weighted.variant({"scale": 0.25})
    channels = shape[1]
    found = np.full(channels, 7.0)
    cut = channels // 2
    for first, last in ((0, cut), (cut, channels)):  # as threads share them
        variant.channel_sums(found, grad, x, 0.25, first, last)
    np.testing.assert_allclose(found, each.sum((0, 2)), rtol=1e-5, atol=1e-4)
    tiles = -(-x.size // TILE)
    sums = np.full(tiles, 7.0)
    variant.sums(sums, grad.reshape(-1), x.reshape(-1), 0.25, 0, tiles)
    expected = [each.reshape(-1)[k * TILE : (k + 1) * TILE].sum() for k in range(tiles)]
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-4)
