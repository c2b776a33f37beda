"""Parametrizations: where the tensor goes, what is checked, and the ready-made ones' properties."""

from __future__ import annotations

import copy
import math
import pickle
import random

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.dtypes import tolerance
from lowtide.nn.utils import parametrizations, parametrize


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).mT

    def right_inverse(self, a):
        return a.triu()


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2


class Pair(nn.Module):
    def forward(self, a, b):
        return a + b

    def right_inverse(self, x):
        return x / 2, x / 2


class Returns(nn.Module):
    """A parametrization that gives whatever it is told to."""

    def __init__(self, forward=None, inverse=None):
        super().__init__()
        self.plain = forward
        if inverse is not None:
            self.right_inverse = inverse

    def forward(self, *x):
        return self.plain(*x) if self.plain else x[0]


def close(a, b, dtype=lt.float64):
    rtol, atol = tolerance(dtype)
    return bool(lt.allclose(a, b, rtol, atol))


# Registering


def test_the_original_moves_below_parametrizations_and_stays_itself():
    net = nn.Linear(3, 3)
    weight = net.weight
    assert parametrize.register_parametrization(net, "weight", Symmetric()) is net
    assert net.parametrizations.weight.original is weight
    assert [n for n, _ in net.named_parameters()] == ["bias", "parametrizations.weight.original"]
    assert list(net.state_dict()) == ["bias", "parametrizations.weight.original"]
    assert type(net).__name__ == "ParametrizedLinear"
    assert isinstance(net, nn.Linear)
    assert type(nn.Linear(3, 3)) is nn.Linear
    assert parametrize.type_before_parametrizations(net) is nn.Linear
    assert parametrize.type_before_parametrizations(nn.ReLU()) is nn.ReLU
    assert lt.equal(net.weight, net.weight.mT)
    assert lt.equal(weight, weight.triu())


def test_gradients_reach_the_original():
    net = parametrize.register_parametrization(nn.Linear(2, 1), "weight", Doubled())
    net(lt.ones(1, 2)).sum().backward()
    assert net.parametrizations.weight.original.grad.tolist() == [[2.0, 2.0]]


def test_several_are_applied_in_order():
    net = nn.Linear(2, 2)
    net.weight = nn.Parameter(lt.ones(2, 2))
    parametrize.register_parametrization(net, "weight", Doubled())
    parametrize.register_parametrization(net, "weight", Returns(lambda x: x + 1))
    assert net.weight.tolist() == [[3.0, 3.0]] * 2
    assert len(net.parametrizations.weight) == 2


def test_assignment_goes_through_the_right_inverse():
    net = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Symmetric())
    original = net.parametrizations.weight.original
    net.weight = lt.tensor([[1.0, 2.0], [2.0, 3.0]])
    assert net.parametrizations.weight.original is original
    assert original.tolist() == [[1.0, 2.0], [0.0, 3.0]]
    assert net.weight.tolist() == [[1.0, 2.0], [2.0, 3.0]]
    other = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Doubled())
    with pytest.raises(RuntimeError, match="does not implement right_inverse"):
        other.weight = lt.ones(2, 2)


def test_several_tensors_may_be_kept():
    net = nn.Linear(2, 2, bias=False)
    before = net.weight.detach().clone()
    parametrize.register_parametrization(net, "weight", Pair())
    assert [n for n, _ in net.named_parameters()] == [
        "parametrizations.weight.original0",
        "parametrizations.weight.original1",
    ]
    assert lt.equal(net.weight, before)
    net.weight = lt.full((2, 2), 4.0)
    assert net.parametrizations.weight.original1.tolist() == [[2.0, 2.0]] * 2
    with pytest.raises(ValueError, match="sequence of tensors"):
        parametrize.remove_parametrizations(net, "weight", leave_parametrized=False)
    parametrize.remove_parametrizations(net, "weight")
    assert isinstance(net.weight, nn.Parameter)
    assert net.weight.tolist() == [[4.0, 4.0]] * 2


def test_a_buffer_can_be_parametrized():
    net = nn.Module()
    net.register_buffer("scale", lt.ones(2))
    parametrize.register_parametrization(net, "scale", Doubled())
    assert net.scale.tolist() == [2.0, 2.0]
    assert [n for n, _ in net.named_buffers()] == ["parametrizations.scale.original"]
    parametrize.remove_parametrizations(net, "scale", leave_parametrized=False)
    assert net._buffers["scale"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("leave", [True, False])
def test_removal_leaves_an_ordinary_parameter(leave):
    net = nn.Linear(2, 2)
    weight = net.weight
    value = weight.detach().clone()
    parametrize.register_parametrization(net, "weight", Doubled())
    assert parametrize.remove_parametrizations(net, "weight", leave_parametrized=leave) is net
    assert type(net) is nn.Linear
    assert net.weight is weight
    assert lt.equal(net.weight, value * (2 if leave else 1))
    assert [n for n, _ in net.named_parameters()] == ["bias", "weight"]
    assert not parametrize.is_parametrized(net)


def test_removing_one_of_two_keeps_the_other():
    net = nn.Linear(2, 2)
    parametrize.register_parametrization(net, "weight", Doubled())
    parametrize.register_parametrization(net, "bias", Doubled())
    parametrize.remove_parametrizations(net, "weight")
    assert parametrize.is_parametrized(net)
    assert parametrize.is_parametrized(net, "bias")
    assert not parametrize.is_parametrized(net, "weight")


def test_a_new_parametrization_takes_over_the_mode():
    net = nn.Linear(2, 2).eval()
    made = Doubled()
    parametrize.register_parametrization(net, "weight", made)
    assert not made.training


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Returns(lambda x: x.double()), "may not change the dtype"),
        (Returns(lambda x: x[:1]), "may not change the shape"),
        (Returns(lambda x: 3), "must return a tensor. Got int"),
        (Returns(inverse=lambda x: x.double()), "may not change the dtype"),
        (Returns(inverse=lambda x: 3), "'right_inverse' must return a Tensor or a Sequence"),
        (Returns(inverse=lambda x: [3]), "element 0"),
    ],
)
def test_a_parametrization_that_does_not_fit_is_refused(made, message):
    net = nn.Linear(2, 2)
    weight = net.weight
    with pytest.raises(ValueError, match=message):
        parametrize.register_parametrization(net, "weight", made)
    assert net.weight is weight
    assert type(net) is nn.Linear
    parametrize.register_parametrization(net, "weight", Doubled())
    if "right_inverse" not in message and "element" not in message:
        with pytest.raises(ValueError, match=message):
            parametrize.register_parametrization(net, "weight", made)
        assert len(net.parametrizations.weight) == 1


def test_an_unsafe_parametrization_may_change_the_shape():
    net = parametrize.register_parametrization(
        nn.Linear(2, 2), "bias", Returns(lambda x: x[:1]), unsafe=True
    )
    assert net.bias.shape == (1,)


def test_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="does not have a parameter, a buffer"):
        parametrize.register_parametrization(nn.ReLU(), "weight", Doubled())
    with pytest.raises(ValueError, match="does not have a parametrization on weight"):
        parametrize.remove_parametrizations(nn.Linear(1, 1), "weight")
    with pytest.raises(ValueError, match="requires one or more modules"):
        parametrize.ParametrizationList([], lt.ones(1))


def test_cached_computes_once_inside():
    calls = []
    counting = Returns(lambda x: calls.append(1) or x * 2)
    net = parametrize.register_parametrization(nn.Linear(2, 2), "weight", counting, unsafe=True)
    with parametrize.cached():
        with parametrize.cached():
            assert net.weight is net.weight
        assert net.weight is net.weight
    assert len(calls) == 1
    assert net.weight is not net.weight


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(lt.ones(1))

    def forward(self, x):
        return x * self.by if self.training else x * self.by * 2

    def right_inverse(self, x):
        return x / 3


def changed(rng, net):
    """Change what a parametrized weight is made of, in one of the ways that programs have."""
    kept = net.parametrizations.weight
    way = rng.randrange(8)
    with lt.no_grad():
        if way == 0:
            kept.original.add_(1)
        elif way == 1:
            kept[0].by.mul_(1.5)
        elif way == 2:
            kept.original.data = lt.randn(kept.original.shape, dtype=kept.original.dtype)
        elif way == 3:
            net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()})
        elif way == 4:
            net.to(lt.float64 if kept.original.dtype is lt.float32 else lt.float32)
        elif way == 5:
            net.train(not net.training)
        elif way == 6:
            net.weight = lt.randn(kept.original.shape, dtype=kept.original.dtype)
    if way == 7:
        kept.original.requires_grad_(not kept.original.requires_grad)


@pytest.mark.quick(40)
@pytest.mark.parametrize("seed", range(200))
def test_what_is_cached_is_what_would_be_computed(seed):
    rng = random.Random(seed)

    def made():
        net = nn.Linear(rng.randrange(1, 4), 2)
        return parametrize.register_parametrization(net, "weight", Scaled(), unsafe=True)

    nets = [made() for _ in range(3)]
    with parametrize.cached():
        for _ in range(30):
            k = rng.randrange(3)
            if rng.random() < 0.2:
                nets[k] = made()  # in the memory of the one that goes
            if rng.random() < 0.3:
                changed(rng, nets[k])
            grad = rng.random() < 0.5
            with lt.set_grad_enabled(grad):
                found, right = nets[k].weight, nets[k].parametrizations.weight()
            assert found.dtype is right.dtype
            assert lt.equal(found, right)
            assert found.requires_grad == right.requires_grad == grad
            with lt.set_grad_enabled(grad):
                assert nets[k].weight is found
    assert not any("_cached_parametrizations" in net.__dict__ for net in nets)


def test_a_copy_is_independent_and_a_pickle_refused():
    net = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Doubled())
    twin = copy.deepcopy(net)
    assert lt.equal(twin.weight, net.weight)
    parametrize.remove_parametrizations(net, "weight")
    assert parametrize.is_parametrized(twin, "weight")
    assert twin.weight.shape == (2, 2)
    with pytest.raises(RuntimeError, match="state_dict"):
        pickle.dumps(twin)


def test_the_state_dict_restores_a_parametrized_module():
    a, b = (parametrizations.weight_norm(nn.Linear(3, 2)) for _ in range(2))
    b.load_state_dict(a.state_dict())
    assert lt.equal(a.weight, b.weight)


def test_nothing_leaks(leak_check):
    net = parametrizations.spectral_norm(nn.Linear(3, 3))
    parametrizations.weight_norm(net, "bias")
    with parametrize.cached():
        (net(lt.ones(2, 3)).sum() + net.weight.sum()).backward()
    old = nn.utils.weight_norm(nn.utils.spectral_norm(nn.Linear(3, 3)), "bias")
    old(lt.ones(2, 3)).sum().backward()
    del net, old


# Weight norm


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("form", [parametrizations.weight_norm, nn.utils.weight_norm])
def test_weight_norm_keeps_the_weight_and_separates_its_length(form, dim):
    net = nn.Linear(4, 3, dtype=lt.float64)
    before = net.weight.detach().clone()
    form(net, dim=dim)
    assert close(net.weight, before)
    if form is parametrizations.weight_norm:
        length = net.parametrizations.weight.original0
        assert list(net.state_dict())[1:] == [
            "parametrizations.weight.original0",
            "parametrizations.weight.original1",
        ]
    else:
        length = net.weight_g
        assert list(net.state_dict()) == ["bias", "weight_g", "weight_v"]
    assert length.shape == {0: (3, 1), 1: (1, 4), None: ()}[dim]
    with lt.no_grad():
        length.mul_(2)
    net(lt.ones(1, 4, dtype=lt.float64))
    assert close(net.weight, before * 2)


def test_the_older_weight_norm_is_removed_and_not_put_twice():
    net = nn.utils.weight_norm(nn.Linear(4, 3))
    with pytest.raises(RuntimeError, match="two weight_norm hooks"):
        nn.utils.weight_norm(net)
    value = net.weight.detach().clone()
    assert nn.utils.remove_weight_norm(net) is net
    assert [n for n, _ in net.named_parameters()] == ["bias", "weight"]
    assert close(net.weight, value, lt.float32)
    assert not net._forward_pre_hooks
    with pytest.raises(ValueError, match="weight_norm of 'weight' not found"):
        nn.utils.remove_weight_norm(net)


def test_a_state_dict_of_the_older_weight_norm_loads_into_the_newer():
    old, new = nn.utils.weight_norm(nn.Linear(4, 3)), parametrizations.weight_norm(nn.Linear(4, 3))
    new.load_state_dict(old.state_dict())
    assert lt.equal(new.weight, old.weight)


# Spectral norm


@pytest.mark.parametrize("form", [parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_spectral_norm_divides_by_the_largest_singular_value(form):
    net = nn.Linear(6, 4, bias=False, dtype=lt.float64)
    before = net.weight.detach().clone()
    form(net, n_power_iterations=200)
    net(lt.ones(1, 6, dtype=lt.float64))
    assert close(net.weight, before / lt.linalg.svdvals(before)[0])


@pytest.mark.parametrize("form", [parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_the_vectors_move_in_training_only(form):
    net = form(nn.Linear(6, 4))
    u = next(b for n, b in net.named_buffers() if n.endswith("_u"))
    assert u.shape == (4,)
    before = u.tolist()
    net.eval()(lt.ones(1, 6))
    assert u.tolist() == before
    net.train()(lt.ones(1, 6))
    assert u.tolist() != before
    assert math.isclose(u.norm().item(), 1.0, rel_tol=1e-6)


def test_two_forwards_in_training_have_one_backward():
    for form in (parametrizations.spectral_norm, nn.utils.spectral_norm):
        net = form(nn.Linear(3, 3))
        (net(lt.ones(1, 3)) + net(lt.ones(1, 3))).sum().backward()
        assert all(p.grad is not None for p in net.parameters())


def test_a_vector_is_divided_by_its_norm():
    net = parametrizations.spectral_norm(nn.Linear(3, 2), "bias")
    assert math.isclose(net.bias.norm().item(), 1.0, rel_tol=1e-6)


def test_a_transposed_convolution_has_its_outputs_in_the_second_dimension():
    net = parametrizations.spectral_norm(nn.ConvTranspose2d(5, 3, 2))
    assert net.parametrizations.weight[0]._u.shape == (3,)
    old = nn.utils.spectral_norm(nn.ConvTranspose2d(5, 3, 2))
    assert (old.weight_u.shape, old.weight_v.shape) == ((3,), (20,))


def test_the_older_spectral_norm_is_removed():
    net = nn.utils.spectral_norm(nn.Linear(3, 3))
    assert list(net.state_dict()) == ["bias", "weight_orig", "weight_u", "weight_v"]
    with pytest.raises(RuntimeError, match="two spectral_norm hooks"):
        nn.utils.spectral_norm(net)
    net(lt.ones(1, 3))
    value = net.weight.detach().clone()
    nn.utils.remove_spectral_norm(net)
    assert list(net.state_dict()) == ["bias", "weight"]
    assert close(net.weight, value, lt.float32)
    with pytest.raises(ValueError, match="spectral_norm of 'weight' not found"):
        nn.utils.remove_spectral_norm(net)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: parametrizations.spectral_norm(nn.ReLU()), ValueError),
        (lambda: parametrizations.spectral_norm(nn.Linear(2, 2), n_power_iterations=0), ValueError),
        (lambda: parametrizations.spectral_norm(nn.Linear(2, 2), dim=2), IndexError),
        (lambda: nn.utils.spectral_norm(nn.Linear(2, 2), n_power_iterations=0), ValueError),
        (lambda: nn.utils.spectral_norm(nn.Linear(2, 2, bias=False), "bias"), ValueError),
        (lambda: parametrizations.orthogonal(nn.ReLU()), ValueError),
        (lambda: parametrizations.orthogonal(nn.Linear(2, 2), "bias"), ValueError),
        (lambda: parametrizations.orthogonal(nn.Linear(2, 2), orthogonal_map="x"), ValueError),
    ],
)
def test_what_cannot_be_normalized_is_refused(call, error):
    with pytest.raises(error):
        call()


# Orthogonal


MAPS = ["matrix_exp", "cayley", "householder"]


def assert_orthogonal(w: lt.Tensor) -> None:
    m = w if w.shape[-2] <= w.shape[-1] else w.mT
    product = m @ m.mT
    assert close(product, lt.eye(m.shape[-2], dtype=m.dtype).expand(product.shape))


@pytest.mark.parametrize("trivialized", [True, False])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
@pytest.mark.parametrize("name", MAPS)
def test_the_weight_is_orthogonal_and_stays_so(name, shape, trivialized):
    net = nn.Linear(shape[1], shape[0], bias=False, dtype=lt.float64)
    if name == "householder" and not trivialized:  # the signs of the diagonal
        nn.init.orthogonal_(net.weight)
    parametrizations.orthogonal(net, orthogonal_map=name, use_trivialization=trivialized)
    assert_orthogonal(net.weight)
    sgd = lt.optim.SGD(net.parameters(), lr=0.3)
    before = net.weight.detach().clone()
    (net(lt.randn(8, shape[1], dtype=lt.float64)) ** 3).sum().backward()
    sgd.step()
    assert_orthogonal(net.weight)
    assert not close(net.weight, before)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
@pytest.mark.parametrize("name", MAPS)
def test_an_orthogonal_weight_can_be_assigned(name, shape):
    net = parametrizations.orthogonal(
        nn.Linear(shape[1], shape[0], dtype=lt.float64), orthogonal_map=name
    )
    wanted = nn.init.orthogonal_(lt.empty(*shape, dtype=lt.float64))
    net.weight = wanted
    assert close(net.weight, wanted)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
def test_householder_reflections_of_an_orthogonal_matrix_give_it_back(shape):
    net = nn.Linear(shape[1], shape[0], dtype=lt.float64)
    wanted = nn.init.orthogonal_(net.weight).detach().clone()
    parametrizations.orthogonal(net, orthogonal_map="householder", use_trivialization=False)
    assert close(net.weight, wanted)
    turned = lt.eye(*shape, dtype=lt.float64)  # nothing to reflect: only signs
    net.weight = turned
    assert close(net.weight, turned)


def test_without_trivialization_the_other_maps_cannot_be_assigned():
    net = nn.Linear(3, 3)
    parametrizations.orthogonal(net, orthogonal_map="cayley", use_trivialization=False)
    with pytest.raises(NotImplementedError, match="not possible to assign"):
        net.weight = lt.eye(3)
    with pytest.raises(ValueError, match=r"shape \(3, 3\)"):
        net.weight = lt.ones(2, 3)


def test_the_default_map_follows_the_shape():
    square = parametrizations.orthogonal(nn.Linear(3, 3))
    assert square.parametrizations.weight[0].orthogonal_map == "matrix_exp"
    tall = parametrizations.orthogonal(nn.Linear(3, 4))
    assert tall.parametrizations.weight[0].orthogonal_map == "householder"


def test_batches_of_matrices_are_orthogonal():
    net = nn.Module()
    net.weight = nn.Parameter(lt.randn(2, 4, 3, dtype=lt.float64))
    parametrizations.orthogonal(net)
    assert_orthogonal(net.weight)
