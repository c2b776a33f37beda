"""``lowtide.formula``: elementwise functions of one's own, with derived gradients."""

from __future__ import annotations

import math
import random
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import lowtide as lt
from lowtide.formula import NoFormula, erf, exp, formula, log, maximum, minimum, normal_cdf
from lowtide.framework import testing
from lowtide.framework.devices import backend
from lowtide.framework.kernels.formula.formula import Formula
from lowtide.framework.kernels.formula.functions import TABLE
from lowtide.framework.ops.registry import OPS
from tests.kernels.test_formula import drawn_function, imported, run_calls


@pytest.fixture(autouse=True)
def no_op_stays():
    """Declare ops for one test only: others go through all that there are."""
    before = set(OPS)
    yield
    for name in set(OPS) - before:
        del OPS[name]


@pytest.fixture
def made():
    """Formulas: ``swish``, ``two_sided`` and ``rational``."""

    @formula
    def swish(x, *, slope=1.0):
        """``x / (1 + exp(-slope x))``."""
        return x / (1 + exp(-slope * x))

    @formula
    def two_sided(x, y, *, a, kind="p"):
        d = x - y * a
        s = d * d if d > 0 else -d * y
        if kind == "p":
            s = abs(d) + exp(minimum(d, 2))
        return maximum(s, 0.1) * y / (1 + x * x)

    @formula
    def rational(x):
        return (erf(x) + log(1 + x * x)) * normal_cdf(x, exp(-0.5 * x * x))

    return SimpleNamespace(swish=swish, two_sided=two_sided, rational=rational)


def drawn(*shape):
    return lt.randn(*shape, dtype=lt.float64, requires_grad=True)


def checks(f, *inputs):
    return lt.autograd.gradcheck(f, inputs) and lt.autograd.gradgradcheck(f, inputs)


def test_derived_gradients_of_first_and_second_order(made):
    lt.manual_seed(3)
    assert checks(lambda x: made.swish(x, slope=1.5), drawn(7))
    assert checks(made.rational, drawn(7))
    for kind in "pq":
        assert checks(lambda x, y: made.two_sided(x, y, a=0.3, kind=kind), drawn(4), drawn(3, 4))


def test_a_third_derivative(made):
    x = lt.tensor(0.7, dtype=lt.float64, requires_grad=True)
    y = made.swish(x)
    for _ in range(3):
        (y,) = lt.autograd.grad(y, x, create_graph=True)
    h = 1e-3
    s = [made.swish(lt.tensor(0.7 + k * h, dtype=lt.float64)).item() for k in (-2, -1, 1, 2)]
    assert y.item() == pytest.approx((s[3] - 2 * s[2] + 2 * s[1] - s[0]) / (2 * h**3), rel=1e-3)


def test_it_is_a_function_of_tensors_like_another(made):
    x = lt.randn(5, 3)
    expected = x / (1 + (-1.5 * x).exp())
    assert lt.allclose(made.swish(x, slope=1.5), expected)
    assert made.swish.__name__ == "swish"
    assert made.swish.__doc__.startswith("``x / (1 + exp(-slope x))``")
    assert made.swish(x.half(), slope=1.5).dtype is lt.float16
    assert made.swish(x.to("meta"), slope=1.5).shape == (5, 3)
    assert lt.allclose(made.swish(x.t(), slope=1.5), expected.t())
    assert made.two_sided(x, 2.0, a=0.1).shape == (5, 3)
    assert lt.allclose(lt.vmap(lambda row: made.swish(row, slope=1.5))(x), expected)
    assert made.swish.op.formula(2.0, slope=0.0) == 1.0


def test_backward_keeps_what_the_derivative_reads():
    @formula
    def line(x, y, *, a):
        return a * x + y

    @formula
    def product(x, y):
        return x * y

    x, y = lt.randn(1000, requires_grad=True), lt.randn(1000, requires_grad=True)
    out = line(x, y, a=2.0)
    assert testing.saved_of([out]) == []
    assert [label for label, *_ in testing.saved_of([product(x, y)])] == [
        "_formula_product.y",
        "_formula_product.x",
    ]
    out.sum().backward()
    assert lt.equal(x.grad, lt.full((1000,), 2.0))
    product(x, y).sum().backward()
    assert lt.equal(x.grad, 2.0 + y)


def test_large_operands_take_one_pass_and_no_memory_beside(made):
    x = lt.randn(1 << 17, requires_grad=True)
    ledger = backend(lt.device("cpu")).ledger
    made.swish(x).sum().backward()  # compiles
    x.grad = None
    ledger.reset_peak()
    before = ledger.live
    y = made.swish(x)
    assert ledger.peak - before == y.nbytes
    y.sum().backward()
    s = 1 / (1 + (-x.detach()).exp())
    assert lt.allclose(x.grad, s * (1 + x.detach() * (1 - s)), atol=1e-6)


def test_a_gradient_written_by_hand(made):
    @formula
    def steep_gradient(grad, x, *, slope):
        s = 1 / (1 + exp(-slope * x))
        return grad * s * (1 + slope * x * (1 - s))

    @formula(gradient={"x": steep_gradient})
    def steep(x, *, slope=1.0):
        return x / (1 + exp(-slope * x))

    far = lt.tensor([-200.0], dtype=lt.float64, requires_grad=True)
    made.swish(far, slope=5.0).backward()
    assert far.grad.isnan().all()  # as autograd's of the same operations
    far.grad = None
    steep(far, slope=5.0).backward()
    assert far.grad.item() == 0.0
    assert checks(lambda x: steep(x, slope=1.5), drawn(7))

    with pytest.raises(TypeError, match=r"a gradient takes grad, and inputs and numbers"):

        @formula(gradient={"x": steep_gradient})
        def other(x):
            return x * 2


# A number in the domain of each function.
ARGUMENTS = {
    "abs": -0.7,
    "exp": 0.4,
    "expm1_of_negative": -0.8,
    "log": 1.7,
    "log1p_of_fraction": 0.3,
    "log_of_rest": 0.6,
    "sqrt": 1.3,
    "erf": 0.9,
    "normal_cdf": 0.5,
    "minimum": 0.2,
    "maximum": 0.7,
}


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_function_has_a_derivative(name, tmp_path):
    more = {"number": ", 0.45", "hint": ", exp(-0.5 * x * x)"}.get(TABLE[name].second, "")
    module = imported(tmp_path / f"of_{name}.py", f"def f(x):\n    return {name}(x{more}) * x\n")
    function = formula(module.f)
    x = lt.tensor([ARGUMENTS[name]], dtype=lt.float64, requires_grad=True)
    assert checks(function, x)


def test_complex_numbers_are_refused(made):
    with pytest.raises(NotImplementedError, match="complex"):
        made.swish(lt.randn(3, dtype=lt.complex64))


def test_threads_that_differentiate_at_once(made):
    def work(results, k, start):
        x = lt.tensor([0.3, -0.4], dtype=lt.float64, requires_grad=True)
        (g,) = lt.autograd.grad(made.swish(x).sum(), x, create_graph=True)
        start.wait(timeout=60)
        results[k] = lt.autograd.grad(g.sum(), x)[0].tolist()

    results, start = [None] * 4, threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(results, k, start)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [results[0]] * 4
    assert results[0] is not None


def test_what_no_formula_holds_is_refused_where_it_is_declared():
    with pytest.raises(NoFormula, match=r"no such operator: x \*\* 3"):

        @formula
        def cube(x):
            return x**3


def test_a_formula_calls_another(made):
    rational = made.rational

    @formula
    def with_rational(x, y):
        return rational(x * y) + x

    x, y = drawn(5), drawn(5)
    assert lt.allclose(with_rational(x, y), made.rational(x * y) + x)
    assert checks(with_rational, x, y)


def test_names_around_a_formula_are_numbers_and_formulas(made):
    def scaled_by(factor: float):
        @formula
        def scaled(x: float, *, power: float = 1.0) -> float:
            return x * (factor * power) if factor > 0 else x

        return scaled

    assert scaled_by(3.0)(lt.ones(2), power=2.0).tolist() == [6.0, 6.0]
    assert scaled_by(-3.0)(lt.ones(2), power=2.0).tolist() == [1.0, 1.0]
    with pytest.raises(NoFormula, match="no parameter, nothing assigned, no number of the module"):
        scaled_by(lt.ones(2))


def test_what_lives_in_its_backward_is_told_by_the_line_of_the_call(made):
    x = lt.randn(1 << 15, requires_grad=True)

    def step():
        x.grad = None
        made.swish(x * 2).sum().backward()

    with pytest.raises(lt.InfeasibleBudget, match=r"In backward of Formula.*test_formula_op\.py:"):
        lt.fit(step, budget=lt.memory_allocated() + 1000, of="tensors")


# Drawn formulas, against forward-mode differentiation


class Dual:
    """A number and its derivative."""

    def __init__(self, v, d=0.0):
        self.v, self.d = v, d

    def __add__(self, o):
        o = dual(o)
        return Dual(self.v + o.v, self.d + o.d)

    def __mul__(self, o):
        o = dual(o)
        return Dual(self.v * o.v, self.d * o.v + self.v * o.d)

    def __neg__(self):
        return Dual(-self.v, -self.d)

    def __sub__(self, o):
        return self + -dual(o)

    def __rsub__(self, o):
        return dual(o) - self

    __radd__, __rmul__ = __add__, __mul__

    def __abs__(self):
        return self if self.v > 0 else -self if self.v < 0 else Dual(0.0)

    def __lt__(self, o):
        return self.v < dual(o).v

    def __le__(self, o):
        return self.v <= dual(o).v

    def __gt__(self, o):
        return self.v > dual(o).v

    def __ge__(self, o):
        return self.v >= dual(o).v

    def __ne__(self, o):
        return self.v != dual(o).v

    __hash__ = None


def dual(x):
    return x if isinstance(x, Dual) else Dual(x)


def dual_exp(x):
    e = math.exp(x.v)
    return Dual(e, e * x.d)


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.deep)])
def test_derivatives_of_drawn_formulas(tmp_path, count):
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    texts = [drawn_function(draw, f"f{k}", ["x", "y"], ["a", "b"]) for k in range(count)]
    module = imported(tmp_path / "derived.py", "\n\n".join(texts))
    duals = imported(tmp_path / "with_duals.py", "\n\n".join(texts))
    duals.exp, duals.maximum = dual_exp, lambda x, n: Dual(n) if dual(x).v < n else dual(x)
    values = np.random.default_rng(seed).standard_normal((2, 25))
    for k, text in enumerate(texts):
        attributes = {"a": draw.random(), "b": draw.random()}
        made = Formula(vars(module)[f"f{k}"], f"f{k}", True, lambda *_, **__: False)
        for which in (0, 1):
            derived = made.derivative("xy"[which])
            variant = derived.variant(attributes)
            known = dict(zip(["x", "y"], values, strict=True))
            arrays = [np.full(25, 0.7), *[known[e] for e in derived.reader.inputs]]
            found = run_calls(variant, arrays, variant.numbers(attributes))
            expected = []
            for x, y in values.T:
                pair = Dual(x, 0.7 * (which == 0)), Dual(y, 0.7 * (which == 1))
                expected.append(dual(vars(duals)[f"f{k}"](*pair, **attributes)).d)
            close = np.isclose(found, expected, rtol=1e-9, atol=1e-9)
            assert close.all(), f"{text}\nby {'xy'[which]}\n{variant.calls.text()}"
            by_elements = [
                derived(0.7, *[known[e][i] for e in derived.reader.inputs], **attributes)
                for i in range(25)
            ]
            np.testing.assert_allclose(by_elements, expected, rtol=1e-9, atol=1e-9)
