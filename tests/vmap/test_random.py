"""Random draws inside vmap: refused, different for each sample, or the same."""

import pytest

import lowtide as lt
from lowtide.func import grad, vmap
from lowtide.nn import functional as F

DRAWS = {
    "rand": lambda a: lt.rand(3),
    "randn": lambda a: lt.randn(3),
    "randint": lambda a: lt.randint(0, 1000, (3,)),
    "rand_like": lambda a: lt.rand_like(a),
    "randn_like": lambda a: lt.randn_like(a),
    "normal_": lambda a: a.clone().normal_(),
    "uniform_": lambda a: a.clone().uniform_(),
    "dropout": lambda a: F.dropout(lt.ones_like(a).repeat(8)),
    "dropout of what samples share": lambda a: F.dropout(lt.ones(24)),
    "bernoulli": lambda a: lt.bernoulli(lt.full_like(a, 0.5).repeat(8)),
    "multinomial": lambda a: lt.multinomial(lt.ones_like(a).repeat(40), 6),
    "poisson": lambda a: lt.poisson(lt.full_like(a, 50.0)),
    "rrelu": lambda a: F.rrelu(-lt.ones_like(a), training=True),
    "feature dropout": lambda a: F.dropout2d(lt.ones_like(a).repeat(8).reshape(1, 24, 1, 1)),
    "attention": lambda a: F.scaled_dot_product_attention(
        *[a.view(1, 1, 3, 1).expand(1, 1, 3, 8)] * 3, dropout_p=0.5
    ),
}


@pytest.fixture
def x():
    lt.manual_seed(3)
    return lt.ones(4, 3)


def rows(out):
    return {tuple(r.reshape(-1).tolist()) for r in out}


@pytest.mark.parametrize("name", DRAWS)
def test_different_draws_differ(x, name):
    assert len(rows(vmap(DRAWS[name], randomness="different")(x))) == 4


@pytest.mark.parametrize("name", DRAWS)
def test_same_draws_are_the_same(x, name):
    assert len(rows(vmap(DRAWS[name], randomness="same")(x))) == 1


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_refused_by_default(x, name):
    with pytest.raises(RuntimeError, match="randomness error mode"):
        vmap(DRAWS[name])(x)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_a_seed_repeats_them(x, randomness):
    def once():
        lt.manual_seed(1)
        return vmap(lambda a: a + lt.rand(3) + F.dropout(a), randomness=randomness)(x)

    assert once().tolist() == once().tolist()


def test_draws_that_follow_are_others(x):
    a, b = vmap(lambda a: (lt.rand(3), lt.rand(3)), randomness="different")(x)
    assert len(rows(a) | rows(b)) == 8


def test_levels_may_differ(x):
    def inner(a):
        return vmap(lambda b: lt.rand(2), randomness="same")(a)

    out = vmap(inner, randomness="different")(x)
    assert len(rows(out)) == 4
    assert all(len(rows(r)) == 1 for r in out)

    def other(a):
        return vmap(lambda b: F.dropout(b.expand(30)), randomness="different")(a)

    out = vmap(other, randomness="same")(x)
    assert len(rows(out)) == 1
    assert len(rows(out[0])) == 3


def test_gradients_see_the_masks_of_the_forward(x):
    f = vmap(lambda a: F.dropout(a * 1.0), randomness="different")
    leaf = x.clone().requires_grad_()
    out = f(leaf)
    out.sum().backward()
    assert leaf.grad.tolist() == out.tolist()  # of ones
    out = vmap(grad(lambda a: F.dropout(a).sum()), randomness="different")(lt.ones(4, 30))
    assert set(out.reshape(-1).tolist()) == {0.0, 2.0}
    assert len(rows(out)) == 4


def test_what_cannot_differ_says_so(x):
    with pytest.raises(RuntimeError, match=r"rand\(n\).argsort\(\)"):
        vmap(lambda a: lt.randperm(5), randomness="different")(x)
    with pytest.raises(RuntimeError, match="is not possible"):
        vmap(lambda a: x.normal_(), randomness="different")(x.clone())
