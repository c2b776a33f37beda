"""Function transforms: structure, nesting, what stays connected and what does not."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    value_and_grad,
    vjp,
)


def t(*values: float) -> lt.Tensor:
    return lt.tensor(list(values), dtype=lt.float64)


def cubes(x: lt.Tensor) -> lt.Tensor:
    return (x * x * x).sum()


def test_grad():
    g = grad(cubes)(t(1.0, 2.0))
    assert g.tolist() == [3.0, 12.0]
    assert not g.requires_grad


def test_grad_nests():
    x = t(2.0)
    assert grad(lambda x: grad(cubes)(x).sum())(x).tolist() == [12.0]
    assert grad(lambda x: grad(lambda x: grad(cubes)(x).sum())(x).sum())(x).tolist() == [6.0]


def test_grad_of_several_arguments():
    def f(x, y, scale):
        return (x * y * scale).sum()

    gx, gy = grad(f, argnums=(0, 1))(t(2.0), t(3.0), scale=10.0)
    assert (gx.tolist(), gy.tolist()) == ([30.0], [20.0])
    assert grad(f, argnums=1)(t(2.0), t(3.0), 10.0).tolist() == [20.0]


def test_grad_of_a_tree():
    def loss(params, x):
        return (params["w"] * x + params["b"][0]).sum()

    found = grad(loss)({"w": t(2.0), "b": [t(1.0)]}, t(5.0))
    assert found["w"].tolist() == [5.0]
    assert found["b"][0].tolist() == [1.0]


def test_values_and_extras():
    def f(x):
        return cubes(x), {"double": x * 2}

    g, (value, aux) = grad_and_value(f, has_aux=True)(t(2.0))
    assert (g.tolist(), value.item(), aux["double"].tolist()) == ([12.0], 8.0, [4.0])
    assert not aux["double"].requires_grad
    (value, _), g = value_and_grad(f, has_aux=True)(t(2.0))
    assert (g.tolist(), value.item()) == ([12.0], 8.0)
    g, _ = grad(f, has_aux=True)(t(2.0))
    assert g.tolist() == [12.0]


def test_the_function_must_return_a_scalar():
    with pytest.raises(RuntimeError, match="scalar"):
        grad(lambda x: x * 2)(t(1.0, 2.0))


def test_an_argument_that_is_not_there():
    with pytest.raises(RuntimeError, match="argnum=3"):
        grad(cubes, argnums=3)(t(1.0))


def test_an_independent_argument_has_zero_gradient():
    assert grad(lambda x, y: cubes(y))(t(1.0), t(2.0)).tolist() == [0.0]


def test_a_result_stays_connected_to_the_users_own_graph():
    w = t(3.0).requires_grad_()
    g = grad(lambda x: (x * x * w).sum())(t(2.0))
    assert g.requires_grad
    g.sum().backward()
    assert w.grad.tolist() == [4.0]


def test_an_argument_that_requires_grad_stays_connected():
    x = t(2.0).requires_grad_()
    grad(cubes)(x).sum().backward()
    assert x.grad.tolist() == [12.0]


def test_grad_inside_no_grad():
    x = t(2.0).requires_grad_()
    with lt.no_grad():
        g = grad(cubes)(x)
    assert g.tolist() == [12.0]
    assert not g.requires_grad


def test_vjp():
    out, pull = vjp(lambda x, y: x * y, t(2.0, 3.0), t(5.0, 7.0))
    assert out.tolist() == [10.0, 21.0]
    gx, gy = pull(t(1.0, 10.0))
    assert (gx.tolist(), gy.tolist()) == ([5.0, 70.0], [2.0, 30.0])
    assert pull(t(0.0, 1.0))[0].tolist() == [0.0, 7.0]


def test_vjp_with_extras_and_trees():
    out, pull, aux = vjp(lambda x: ({"a": x * 2, "b": x * x}, "aux"), t(3.0), has_aux=True)
    assert out["b"].tolist() == [9.0]
    assert aux == "aux"
    assert pull({"a": t(1.0), "b": t(1.0)})[0].tolist() == [8.0]


def test_vjp_checks_its_cotangents():
    _, pull = vjp(lambda x: x * 2, t(1.0, 2.0))
    with pytest.raises(RuntimeError, match="cotangents"):
        pull(t(1.0))


def test_jvp():
    out, product = jvp(lambda x, y: x * y, (t(2.0), t(3.0)), (t(1.0), t(10.0)))
    assert (out.tolist(), product.tolist()) == ([6.0], [23.0])
    with pytest.raises(RuntimeError, match="tangents"):
        jvp(cubes, (t(2.0),), (t(1.0, 2.0),))


@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_jacobians(transform):
    assert transform(lambda x: x * x)(t(1.0, 2.0)).tolist() == [[2.0, 0.0], [0.0, 4.0]]
    by_x, by_y = transform(lambda x, y: x * y, argnums=(0, 1))(t(2.0), t(3.0))
    assert (by_x.tolist(), by_y.tolist()) == ([[3.0]], [[2.0]])
    found, aux = transform(lambda x: (x * x, "aux"), has_aux=True)(t(3.0))
    assert (found.tolist(), aux) == ([[6.0]], "aux")


def test_hessian():
    assert hessian(cubes)(t(1.0, 2.0)).tolist() == [[6.0, 0.0], [0.0, 12.0]]


class Child:
    def __init__(self, weight: lt.Tensor) -> None:
        self._parameters = {"weight": weight}
        self._buffers = {"offset": t(1.0)}
        self._modules: dict[str, object] = {}


class Net(Child):
    """As much of a module as functional_call asks for."""

    def __init__(self) -> None:
        super().__init__(t(2.0).requires_grad_())
        self._modules = {"child": Child(t(3.0).requires_grad_())}
        self._parameters["tied"] = self._parameters["weight"]

    def named_parameters(self, remove_duplicate=True):
        yield "weight", self._parameters["weight"]
        if not remove_duplicate:
            yield "tied", self._parameters["tied"]
        yield "child.weight", self._modules["child"]._parameters["weight"]

    def named_buffers(self, remove_duplicate=True):
        yield "offset", self._buffers["offset"]
        yield "child.offset", self._modules["child"]._buffers["offset"]

    def __call__(self, x, fail=False):
        if fail:
            raise ValueError("inside")
        child = self._modules["child"]
        hidden = x * self._parameters["weight"] * child._parameters["weight"]
        return hidden + self._parameters["tied"] * 100 + child._buffers["offset"]


def test_functional_call_swaps_and_restores():
    net = Net()
    own = dict(net.named_parameters())
    out = functional_call(net, {"child.weight": t(10.0), "child.offset": t(0.0)}, t(1.0))
    assert out.tolist() == [220.0]
    assert all(own[name] is p for name, p in net.named_parameters())
    with pytest.raises(ValueError, match="inside"):
        functional_call(net, {"weight": t(5.0)}, (t(1.0),), {"fail": True})
    assert all(own[name] is p for name, p in net.named_parameters())


def test_functional_call_replaces_tied_parameters_together():
    net = Net()
    assert functional_call(net, {"weight": t(1.0)}, t(1.0)).tolist() == [104.0]
    untied = functional_call(net, {"weight": t(1.0)}, t(1.0), tie_weights=False)
    assert untied.tolist() == [204.0]


def test_functional_call_takes_several_dicts_without_overlap():
    net = Net()
    out = functional_call(net, ({"weight": t(1.0)}, {"child.weight": t(1.0)}), t(1.0))
    assert out.tolist() == [102.0]
    with pytest.raises(ValueError, match="two dictionaries"):
        functional_call(net, ({"weight": t(1.0)}, {"weight": t(1.0)}), t(1.0))


def test_functional_call_in_strict_mode_names_what_is_missing():
    with pytest.raises(RuntimeError, match=r"Missing key\(s\).*Unexpected key\(s\): \['nope'\]"):
        functional_call(Net(), {"nope": t(1.0)}, t(1.0), strict=True)


def test_functional_call_refuses_unknown_names():
    with pytest.raises(KeyError, match="nope"):
        functional_call(Net(), {"nope": t(1.0)}, t(1.0))


def test_gradients_of_a_functional_call():
    net = Net()

    def loss(params):
        return functional_call(net, params, t(1.0)).sum()

    found = grad(loss)({"child.weight": t(5.0)})
    assert found["child.weight"].tolist() == [2.0]
    assert all(p.grad is None for _, p in net.named_parameters())
