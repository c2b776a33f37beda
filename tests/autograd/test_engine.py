"""The engine: what arrives where, how often, in which order, and whose memory it is."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide.framework.devices import backend


def leaf(*values: float, dtype: lt.dtype = lt.float64) -> lt.Tensor:
    return lt.tensor(list(values), dtype=dtype, requires_grad=True)


def test_two_paths_add_up():
    x = leaf(3.0)
    y = x * x + x * 2
    y.sum().backward()
    assert x.grad.tolist() == [8.0]


def test_a_deep_diamond_runs_each_node_once():
    x = leaf(1.0)
    y = x * 1
    calls = []
    y.register_hook(lambda g: calls.append(g.tolist()))
    z = y
    for _ in range(20):
        z = z + z
    z.sum().backward()
    assert calls == [[2.0**20]]


def test_several_roots_add_up():
    x = leaf(1.0, 2.0)
    lt.autograd.backward([x * 2, x * x], [lt.ones(2, dtype=lt.float64)] * 2)
    assert x.grad.tolist() == [4.0, 6.0]


def test_a_root_that_is_a_leaf_gets_its_own_gradient():
    x = leaf(1.0)
    x.backward()
    assert x.grad.tolist() == [1.0]


def test_a_root_that_is_also_an_input_counts_both_ways():
    x = lt.tensor(2.0, requires_grad=True)
    (g,) = lt.autograd.grad([x, x * 3], [x])
    assert g.item() == 4.0
    lt.autograd.backward([x, x * 3], inputs=[x])
    assert x.grad.item() == 4.0


def test_the_same_root_twice_counts_twice():
    x = lt.tensor(2.0, requires_grad=True)
    y = x * 3
    lt.autograd.backward([y, y])
    assert x.grad.item() == 6.0


def test_grad_tensors_weigh_the_roots():
    x = leaf(1.0, 2.0)
    (x * x).backward(lt.tensor([1.0, 10.0], dtype=lt.float64))
    assert x.grad.tolist() == [2.0, 40.0]


def test_a_gradient_of_another_shape_is_refused():
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        (leaf(1.0, 2.0) * 2).backward(lt.ones(3, dtype=lt.float64))


def test_more_than_one_element_needs_a_gradient():
    with pytest.raises(
        RuntimeError, match="grad can be implicitly created only for scalar outputs"
    ):
        (leaf(1.0, 2.0) * 2).backward()


def test_no_graph_is_refused():
    with pytest.raises(RuntimeError, match="does not require grad and does not have a grad_fn"):
        lt.ones(2).sum().backward()


def test_backward_into_inputs_leaves_the_others_alone():
    x, y = leaf(1.0), leaf(2.0)
    (x * y).sum().backward(inputs=[x])
    assert x.grad.tolist() == [2.0]
    assert y.grad is None


def test_backward_into_an_input_that_is_no_leaf():
    x = leaf(2.0)
    y = x * x
    (y * 3).sum().backward(inputs=[y])
    assert y.grad.tolist() == [3.0]
    assert x.grad is None


def test_backward_into_the_same_input_twice_counts_once():
    x = leaf(2.0)
    (x * 3).sum().backward(inputs=[x, x])
    assert x.grad.tolist() == [3.0]


def test_backward_with_no_inputs_is_refused():
    with pytest.raises(RuntimeError, match="cannot be empty"):
        leaf(1.0).sum().backward(inputs=[])


def test_backward_into_a_constant_is_refused():
    x = leaf(1.0)
    with pytest.raises(RuntimeError, match="does not require grad"):
        (x * 1).sum().backward(inputs=[lt.ones(1)])


def test_grad_returns_and_does_not_accumulate():
    x, y = leaf(3.0), leaf(4.0)
    gx, gy = lt.autograd.grad((x * x * y).sum(), [x, y])
    assert (gx.tolist(), gy.tolist()) == ([24.0], [9.0])
    assert x.grad is None
    assert y.grad is None


def test_grad_of_an_intermediate_value_and_of_what_made_it():
    x = leaf(3.0)
    y = x * x
    gy, gx = lt.autograd.grad((y * y).sum(), [y, x])
    assert (gy.tolist(), gx.tolist()) == ([18.0], [108.0])


def test_grad_runs_nothing_that_does_not_lead_to_an_input():
    x, w = leaf(3.0), leaf(2.0)
    side = w * 2
    side.register_hook(lambda g: pytest.fail("this branch leads nowhere"))
    (g,) = lt.autograd.grad((x * side).sum(), x)
    assert g.tolist() == [4.0]


def test_an_unused_input_needs_allow_unused():
    x, unused = leaf(1.0), leaf(1.0)
    y = (x * 2).sum()
    with pytest.raises(RuntimeError, match="allow_unused=True"):
        lt.autograd.grad(y, [x, unused], retain_graph=True)
    g, nothing = lt.autograd.grad(y, [x, unused], retain_graph=True, allow_unused=True)
    assert g.tolist() == [2.0]
    assert nothing is None
    _, zeros = lt.autograd.grad(y, [x, unused], materialize_grads=True)
    assert zeros.tolist() == [0.0]


def test_materialize_grads_contradicts_refusing_unused_inputs():
    x = leaf(1.0)
    with pytest.raises(ValueError, match="materialize_grads"):
        lt.autograd.grad(x.sum(), x, allow_unused=False, materialize_grads=True)


def test_grad_of_a_constant_is_refused():
    x = leaf(1.0)
    with pytest.raises(RuntimeError, match="does not require grad"):
        lt.autograd.grad((x * 2).sum(), lt.ones(1))


def test_a_retained_graph_runs_again():
    x = leaf(2.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [12.0]


def test_a_freed_graph_says_so():
    x = leaf(2.0)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(lt.GradientError, match=r"freed.*second time.*retain_graph=True"):
        y.backward()


def test_batched_gradients_equal_one_pass_per_row():
    x = leaf(1.0, 2.0)
    y = x * x
    (jacobian,) = lt.autograd.grad(y, x, lt.eye(2, dtype=lt.float64), is_grads_batched=True)
    assert jacobian.tolist() == [[2.0, 0.0], [0.0, 4.0]]


def test_derivatives_up_to_the_fourth():
    x = lt.tensor(2.0, dtype=lt.float64, requires_grad=True)
    y = x * x * x * x
    for expected in (32.0, 48.0, 48.0, 24.0):
        (y,) = lt.autograd.grad(y, x, create_graph=True)
        assert y.item() == expected
    assert not y.requires_grad


def test_backward_with_create_graph_keeps_the_graph_of_grad():
    x = lt.tensor(3.0, dtype=lt.float64, requires_grad=True)
    (x * x * x).backward(create_graph=True)
    (second,) = lt.autograd.grad(x.grad, x)
    assert second.item() == 18.0


@pytest.mark.deep
def test_a_chain_of_100000_nodes_runs_backward_and_dies_without_recursion():
    x = leaf(1.0)
    y = x
    for _ in range(100_000):
        y = y * 1.0
    y.sum().backward()
    assert x.grad.tolist() == [1.0]
    before = backend(lt.device("cpu")).ledger.live
    del y
    assert backend(lt.device("cpu")).ledger.live <= before


@pytest.mark.deep
def test_an_unused_chain_of_100000_nodes_dies_without_recursion():
    x = leaf(1.0)
    y = x
    for _ in range(100_000):
        y = y * y
    del y
    assert x.grad is None


def test_grad_accumulates_into_the_same_tensor():
    x = leaf(1.0)
    (x * 2).sum().backward()
    first = x.grad
    (x * 3).sum().backward()
    assert x.grad is first
    assert first.tolist() == [5.0]


def test_gradients_of_two_leaves_never_share_memory():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (a + b).backward(lt.ones(2, dtype=lt.float64))
    assert a.grad.data_ptr() != b.grad.data_ptr()
    a.grad.mul_(5)
    assert b.grad.tolist() == [1.0, 1.0]


def test_the_gradient_passed_to_backward_is_not_taken_over():
    x = leaf(1.0, 2.0)
    g = lt.ones(2, dtype=lt.float64)
    x.clone().backward(g)
    x.grad.mul_(7)
    assert g.tolist() == [1.0, 1.0]


def test_an_expanded_gradient_is_made_real():
    x = leaf(1.0, 2.0, 3.0)
    x.sum().backward()
    assert x.grad.is_contiguous()
    x.grad[0] = 9.0
    assert x.grad.tolist() == [9.0, 1.0, 1.0]


def test_a_gradient_held_by_a_hook_is_safe_from_accumulation():
    x = leaf(1.0, 2.0)
    seen = []
    x.register_hook(seen.append)
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    assert [g.tolist() for g in seen] == [[2.0, 2.0], [3.0, 3.0]]
    assert x.grad.tolist() == [5.0, 5.0]


def test_the_array_of_a_gradient_held_by_a_hook_is_safe_from_accumulation():
    x = leaf(1.0, 2.0)
    seen = []
    x.register_hook(lambda g: seen.append(g.array))
    (x * 2.0 + x * 1.0).sum().backward()
    (x * 3.0).sum().backward()
    assert seen[0].tolist() == [3.0, 3.0]


def steals(make_loss, *leaves: lt.Tensor) -> list[bool]:
    """Whether each leaf's grad is the memory that the last rule wrote."""
    made: list[int] = []
    for t in leaves:
        t.register_hook(lambda g: made.append(g.data_ptr()))
    make_loss().backward()
    return [t.grad.data_ptr() in made for t in leaves]


def test_a_gradient_that_nobody_else_sees_is_taken_over_without_a_copy():
    w, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    x = lt.tensor([5.0, 6.0], dtype=lt.float64)
    assert steals(lambda: (w * x + b * x).sum(), w, b) == [True, True]


def test_a_sum_of_gradients_is_taken_over_without_a_copy():
    w = leaf(1.0, 2.0)
    x = lt.tensor([5.0, 6.0], dtype=lt.float64)
    assert steals(lambda: (w * x + w * x + w * x).sum(), w) == [True]


def test_a_linear_layer_takes_over_both_gradients():
    w = lt.randn(4, 3, dtype=lt.float64).requires_grad_()
    b = lt.zeros(4, dtype=lt.float64, requires_grad=True)
    x = lt.randn(5, 3, dtype=lt.float64)
    assert steals(lambda: lt.linear(x, w, b).sum(), w, b) == [True, True]


def test_a_gradient_that_two_edges_share_is_copied():
    a = leaf(1.0, 2.0)
    middle = leaf(1.0, 2.0) * 1.0
    seen = []
    middle.register_hook(lambda g: seen.append(g))
    (a + middle).backward(lt.ones(2, dtype=lt.float64))
    assert seen[0].data_ptr() != a.grad.data_ptr()


def test_accumulating_allocates_one_gradient_and_no_more():
    w = lt.ones(1000, dtype=lt.float64, requires_grad=True)
    x = lt.ones(1000, dtype=lt.float64)
    ledger = backend(lt.device("cpu")).ledger
    y = w * x
    g = lt.ones(1000, dtype=lt.float64)
    before = ledger.allocations
    y.backward(g)
    assert ledger.allocations - before == 1


def test_a_broadcast_input_gets_a_gradient_of_its_own_shape():
    a = lt.ones(3, 1, dtype=lt.float64, requires_grad=True)
    b = lt.ones(4, dtype=lt.float64, requires_grad=True)
    c = lt.ones(2, 1, 4, dtype=lt.float64, requires_grad=True)
    (a * b * c).sum().backward()
    assert a.grad.tolist() == [[8.0]] * 3
    assert b.grad.tolist() == [6.0] * 4
    assert c.grad.tolist() == [[[3.0] * 4]] * 2


def test_a_gradient_has_the_dtype_of_its_leaf():
    x = lt.ones(2, dtype=lt.float32, requires_grad=True)
    y = lt.ones(2, dtype=lt.float64, requires_grad=True)
    (x * y).sum().backward()
    assert (x.grad.dtype, y.grad.dtype) == (lt.float32, lt.float64)


def test_setting_grad_checks_its_shape():
    x = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="shape"):
        x.grad = lt.ones(3, dtype=lt.float64)
    x.grad = None
    assert x.grad is None


def test_grad_of_a_non_leaf_warns():
    y = leaf(1.0) * 2
    with pytest.warns(UserWarning, match="not a leaf"):
        assert y.grad is None


def test_nodes_show_their_names_and_what_comes_next():
    x = leaf(1.0)
    y = (x * 2).sum()
    assert y.grad_fn.name() == "SumBackward0"
    (mul, index), *_ = y.grad_fn.next_functions
    assert (mul.name(), index) == ("MulBackward0", 0)
    (accumulate, _), *_ = mul.next_functions
    assert accumulate.name() == "AccumulateGrad"
    assert accumulate.variable is x


def test_backward_works_on_meta():
    x = lt.ones(3, 4, device="meta", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.shape == (3, 4)
    assert x.grad.is_meta


def test_backward_inside_no_grad_works():
    x = leaf(2.0)
    y = (x * x).sum()
    with lt.no_grad():
        y.backward()
    assert x.grad.tolist() == [4.0]


def test_a_graph_of_views_keeps_nothing_and_may_run_twice():
    x = lt.ones(3, 4, requires_grad=True)
    y = x.narrow(0, 1, 2).select(1, 2).t()
    y.backward(lt.ones(2))
    y.backward(lt.ones(2))
    assert x.grad.sum().item() == 4


def test_a_long_chain_runs_and_dies_without_recursion():
    x = lt.ones(2, requires_grad=True)
    y = x
    for _ in range(50_000):
        y = y + 1.0
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    del y
    y = x
    for _ in range(50_000):
        y = y + 1.0
    del y  # never differentiated: the chain of nodes is what dies here
    assert x.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: (x * 2).backward(3.0), TypeError, "either Tensors or None, but got float"),
        (lambda x: x.sum().backward([1.0]), TypeError, "either Tensors or None, but got float"),
        (lambda x: lt.autograd.grad(3, x), TypeError, "take Tensors; got int"),
        (lambda x: lt.autograd.grad(x.sum(), []), RuntimeError, "grad cannot be empty"),
        (lambda x: lt.ones(2, device="meta") + x, RuntimeError, "^add needs all tensors on one"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(lt.ones(2, requires_grad=True))
