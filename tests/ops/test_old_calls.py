"""Calls with the factor among the tensors, as programs of 2018 to 2020 write them."""

import inspect
import random
import warnings

import pytest

import lowtide as lt
from lowtide.framework.ops import old_calls

SHAPES = {
    "addmm": ((3, 2), (3, 4), (4, 2)),
    "addmv": ((3,), (3, 4), (4,)),
    "addr": ((3, 2), (3,), (2,)),
    "addbmm": ((3, 2), (5, 3, 4), (5, 4, 2)),
    "baddbmm": ((5, 3, 2), (5, 3, 4), (5, 4, 2)),
    "addcmul": ((3, 2), (3, 2), (2,)),
    "addcdiv": ((3, 2), (3, 2), (2,)),
    "add": ((3, 2), (2,)),
    "sub": ((3, 2), (2,)),
}
FACTORS = {"add": ("alpha",), "sub": ("alpha",), "addcmul": ("value",), "addcdiv": ("value",)}


@pytest.fixture(autouse=True)
def first_warning(monkeypatch):
    monkeypatch.setitem(old_calls._state, "warned", False)


def case(name, seed):
    """Draw the tensors and factors of a call, and the arguments of its two old forms."""
    rng = random.Random(f"{name} {seed}")
    lt.manual_seed(seed)
    tensors = [lt.rand(*shape) + 0.5 for shape in SHAPES[name]]
    numbers = FACTORS.get(name, ("beta", "alpha")[: rng.choice((1, 2))])
    factors = {n: rng.choice((2, -1, 0.5, 1, 0)) for n in numbers}
    given = list(factors.values())
    if seed % 5 == 0:
        given[0] = lt.tensor(float(given[0]))  # a tensor of one element stands for a number
    input, *rest = tensors
    by_method = [*given, *rest]
    by_function = [given[0], input, *given[1:], *rest] if "beta" in factors else [input, *by_method]
    return tensors, factors, by_method, by_function


@pytest.mark.filterwarnings("ignore:This overload")
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("name", SHAPES)
def test_an_old_call_is_the_call_by_name(name, seed):
    tensors, factors, by_method, by_function = case(name, seed)
    input, *rest = tensors
    expected = getattr(lt, name)(*tensors, **factors)
    assert lt.equal(getattr(lt, name)(*by_function), expected)
    assert lt.equal(getattr(lt, name)(*by_function, out=lt.empty(expected.shape)), expected)
    assert lt.equal(getattr(input, name)(*by_method), expected)
    if expected.shape == input.shape:
        written = input.clone()
        assert getattr(written, f"{name}_")(*by_method) is written
        assert lt.allclose(written, getattr(input.clone(), f"{name}_")(*rest, **factors))
        assert lt.allclose(written, expected, rtol=1e-5)


def test_the_old_call_of_an_optimizer_gives_gradients():
    x, y = lt.ones(2, requires_grad=True), lt.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="This overload of add is deprecated"):
        lt.add(x, 3, y).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    assert y.grad.tolist() == [3.0, 3.0]


def test_it_warns_once_with_both_forms():
    x = lt.ones(2)
    text = (
        r"This overload of add_ is deprecated:\n\tadd_\(Number alpha, Tensor other\)\n"
        r"Consider using one of the following signatures instead:\n"
        r"\tadd_\(Tensor other, \*, Number alpha = 1\)"
    )
    with pytest.warns(UserWarning, match=text) as found:
        x.add_(2, lt.ones(2))
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.add_(2, lt.ones(2))
        lt.addmm(2, lt.eye(2), lt.eye(2), lt.eye(2))


def test_what_is_neither_form_is_refused():
    x, m = lt.ones(2), lt.eye(2)
    for call in (
        lambda: lt.add(x, x, 3),
        lambda: x.add_(x, 3),
        lambda: lt.add(x, 2, 3),
        lambda: x.addcmul_(x, x, 3),
        lambda: lt.addcmul(x, x, x, 3),
        lambda: lt.addmm(m, m, m, 2),
        lambda: lt.addmm(2, m, 3, 4, m, m),
        lambda: lt.add(x, 2, x, alpha=3),
    ):
        with pytest.raises(TypeError, match=r"or the old form \w+\(.*Number.*by name"):
            call()


def test_the_signature_does_not_show_the_old_form():
    for name in SHAPES:
        parameters = inspect.signature(getattr(lt, name)).parameters.values()
        assert not any(p.kind is p.VAR_POSITIONAL for p in parameters), name


def test_clip_grad_norm_is_an_old_name():
    p = lt.nn.Parameter(lt.ones(4))
    p.grad = lt.ones(4)
    with pytest.warns(FutureWarning, match="use `nn.utils.clip_grad_norm_`"):
        assert lt.nn.utils.clip_grad_norm([p], 1.0).item() == 2.0
    assert p.grad.norm().item() == pytest.approx(1.0, rel=1e-5)
