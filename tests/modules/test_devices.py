"""Modules on each device: built there or moved there, they compute what they compute on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend
from lowtide.framework.dtypes import tolerance
from lowtide.nn import init
from lowtide.nn.utils import parametrizations, parametrize


def model() -> nn.Module:
    lt.manual_seed(3)
    net = nn.Sequential(
        nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(3, 2)
    )
    parametrizations.weight_norm(net[0])
    parametrizations.orthogonal(net[2])
    parametrizations.spectral_norm(net[3])
    nn.utils.spectral_norm(net[4])
    return net.double()


def step(where: lt.device) -> list[lt.Tensor]:
    """Everything that one step of training shows, moved to the CPU unless it is meta."""
    net = model().to(where)
    if where.type != "meta":  # from the CPU's tensors
        net.load_state_dict({k: v + 0.25 for k, v in model().state_dict().items()})
    seen: list[lt.Tensor] = []
    for module in net:
        module.register_full_backward_hook(lambda m, gi, go: seen.extend([*gi, *go]))
    x = lt.linspace(-1, 1, 20, dtype=lt.float64).reshape(5, 4).to(where).requires_grad_()
    with parametrize.cached():
        y = net(x)
        (y * y).sum().backward()
    total = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    nn.utils.clip_grad_value_(net.parameters(), 0.1)
    gradients = [p.grad for p in net.parameters()]
    vector = nn.utils.parameters_to_vector(net.parameters())
    nn.utils.vector_to_parameters(vector * 2, net.parameters())
    found = [y, x.grad, total, vector, *seen, *gradients, *net.state_dict().values()]
    assert {t.device for t in found} == {where}
    return found if where.type == "meta" else [t.detach().to("cpu") for t in found]


def test_a_step_is_the_same_as_on_the_cpu(device):
    rtol, atol = tolerance(lt.float64)
    for found, expected in zip(step(device), step(lt.device("cpu")), strict=True):
        assert found.shape == expected.shape
        if device.type != "meta":
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol, atol)


@pytest.mark.parametrize(
    "fill",
    [
        init.uniform_,
        init.normal_,
        init.trunc_normal_,
        init.xavier_uniform_,
        init.kaiming_normal_,
        init.orthogonal_,
        init.eye_,
        lambda t: init.sparse_(t, 0.3),
        lambda t: init.constant_(t, 2.0),
        lambda t: init.dirac_(t.view(6, 2, 2)),
    ],
)
def test_initial_values_are_the_same_as_on_the_cpu(device, fill):
    if device.type == "meta":
        pytest.skip("meta has no values")
    rtol, atol = tolerance(lt.float32)
    filled = []
    for where in (device, lt.device("cpu")):
        lt.manual_seed(11)
        t = lt.empty(6, 4, device=where)
        fill(t)
        filled.append(t.to("cpu").numpy())
    np.testing.assert_allclose(*filled, rtol, atol)


def test_a_module_is_built_and_emptied_where_it_shall_be(device, leak_check):
    ledger = backend(device).ledger
    live = ledger.live
    with device:
        net = nn.Linear(10, 10, bias=False)
    assert net.weight.device is device
    assert ledger.live - live == 400
    other = lt.device("cpu" if device.type == "meta" else "meta")
    net.to_empty(device=other)
    assert ledger.live == live
    assert net.weight.device is other
    net.to_empty(device=device)
    assert ledger.live - live == 400
    del net


def test_what_skip_init_makes_lies_on_the_device(device):
    assert nn.utils.skip_init(nn.Linear, 2, 2, device=device).weight.device is device
