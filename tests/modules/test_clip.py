"""Clipping of gradients, and parameters as one vector."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend

GRADS = [[3.0, -4.0], [0.0, 12.0, 0.0]]


def parameters(*grads) -> list[nn.Parameter]:
    made = []
    for g in grads or GRADS:
        p = nn.Parameter(lt.zeros(len(g)))
        p.grad = lt.tensor(g)
        made.append(p)
    return made


@pytest.mark.parametrize(
    ("norm_type", "expected"),
    [(2.0, 13.0), (1, 19.0), (math.inf, 12.0), (3, (27 + 64 + 1728) ** (1 / 3)), ("inf", 12.0)],
)
def test_the_norm_is_that_of_one_vector(norm_type, expected):
    found = parameters()
    total = nn.utils.clip_grad_norm_(found, 1.0, norm_type)
    assert total.shape == ()
    assert not total.requires_grad
    assert math.isclose(total.item(), expected, rel_tol=1e-6)
    flat = [x for p in found for x in p.grad.tolist()]
    wanted = np.array([x for g in GRADS for x in g]) / expected
    np.testing.assert_allclose(flat, wanted, rtol=1e-5)


def test_small_gradients_stay_as_they_are():
    found = parameters()
    assert nn.utils.clip_grad_norm_(iter(found), 100.0).item() == 13.0
    assert [p.grad.tolist() for p in found] == GRADS


def test_one_tensor_missing_gradients_and_nothing_at_all():
    p = parameters([3.0, 4.0])[0]
    assert nn.utils.clip_grad_norm_(p, 1.0).item() == 5.0
    empty = nn.Parameter(lt.zeros(3))
    assert nn.utils.clip_grad_norm_([empty], 1.0).item() == 0.0
    assert empty.grad is None
    assert nn.utils.clip_grad_norm_([], 1.0).item() == 0.0
    with pytest.warns(UserWarning, match="empty generator"):
        nn.utils.clip_grad_norm_((p for p in ()), 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_raises_only_if_asked(bad):
    found = parameters([1.0, bad])
    with pytest.raises(RuntimeError, match=r"total norm of order 2.0 .* is non-finite"):
        nn.utils.clip_grad_norm_(found, 1.0, error_if_nonfinite=True)
    np.testing.assert_equal(found[0].grad.tolist(), [1.0, bad])
    assert not math.isfinite(nn.utils.clip_grad_norm_(found, 1.0).item())


def test_the_two_halves_can_be_called_alone():
    found = parameters()
    total = nn.utils.get_total_norm([p.grad for p in found])
    assert total.item() == 13.0
    nn.utils.clip_grads_with_norm_(found, 6.5, total)
    assert found[0].grad.tolist() == pytest.approx([1.5, -2.0], rel=1e-6)
    assert nn.utils.get_total_norm(lt.tensor([3.0, 4.0])).item() == 5.0


def test_values_are_clamped():
    found = parameters()
    nn.utils.clip_grad_value_(found, 3.5)
    assert [p.grad.tolist() for p in found] == [[3.0, -3.5], [0.0, 3.5, 0.0]]
    nn.utils.clip_grad_value_(found[0], 1)
    assert found[0].grad.tolist() == [1.0, -1.0]


def test_clipping_runs_on_meta_so_it_waits_for_no_value():
    net = nn.Linear(3, 3, device="meta")
    net(lt.ones(1, 3, device="meta")).sum().backward()
    assert nn.utils.clip_grad_norm_(net.parameters(), 1.0).is_meta
    nn.utils.clip_grad_value_(net.parameters(), 1.0)


def test_clipping_needs_a_few_numbers_of_memory(leak_check):
    found = [nn.Parameter(lt.zeros(100, 100)) for _ in range(4)]
    for p in found:
        p.grad = lt.ones(100, 100)
    ledger = backend(lt.device("cpu")).ledger
    nn.utils.clip_grad_norm_(found, 1.0)
    ledger.reset_peak()
    live = ledger.live
    nn.utils.clip_grad_norm_(found, 1.0)
    nn.utils.clip_grad_value_(found, 0.5)
    assert ledger.peak - live < 100  # norms, their stack, the total, the factor
    assert ledger.live == live
    del found, p


# One vector


def test_parameters_become_a_vector_and_back():
    net = nn.Linear(2, 3)
    vector = nn.utils.parameters_to_vector(net.parameters())
    assert vector.shape == (9,)
    assert vector.tolist() == [*net.weight.flatten().tolist(), *net.bias.tolist()]
    (vector * lt.arange(9.0)).sum().backward()
    assert net.bias.grad.tolist() == [6.0, 7.0, 8.0]
    weight = net.weight
    nn.utils.vector_to_parameters(lt.arange(9.0), net.parameters())
    assert net.weight is weight
    assert net.weight.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert net.bias.tolist() == [6.0, 7.0, 8.0]


def test_the_parameters_share_the_vectors_memory(leak_check):
    net = nn.Linear(4, 4)
    vector = lt.zeros(20)
    live = lt.memory_allocated("cpu")
    nn.utils.vector_to_parameters(vector, net.parameters())
    assert lt.memory_allocated("cpu") == live - 20 * 4
    vector.fill_(3)
    assert net.bias.tolist() == [3.0] * 4
    del net, vector


def test_devices_may_not_mix():
    mixed = [lt.zeros(2), lt.zeros(2, device="meta")]
    with pytest.raises(TypeError, match="different devices"):
        nn.utils.parameters_to_vector(mixed)
    with pytest.raises(TypeError, match="different devices"):
        nn.utils.vector_to_parameters(lt.zeros(4), mixed)
    with pytest.raises(TypeError, match="list"):
        nn.utils.vector_to_parameters([1.0], [])
