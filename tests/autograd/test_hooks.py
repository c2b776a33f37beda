"""Hooks on tensors, on nodes, after accumulation: when they run and what they may change."""

from __future__ import annotations

import gc
import weakref

import pytest

import lowtide as lt


def leaf(*values: float) -> lt.Tensor:
    return lt.tensor(list(values), dtype=lt.float64, requires_grad=True)


def test_a_hook_on_a_leaf_sees_the_whole_gradient_once():
    x = leaf(2.0)
    seen = []
    x.register_hook(lambda g: seen.append(g.tolist()))
    (x * x + x).sum().backward()
    assert seen == [[5.0]]


def test_a_hook_on_a_result_sees_the_whole_gradient_once():
    x = leaf(2.0)
    y = x * 1
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    (y * y + y).sum().backward()
    assert seen == [[5.0]]


def test_what_a_hook_returns_replaces_the_gradient():
    x = leaf(2.0)
    y = x * 3
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    y.sum().backward()
    assert x.grad.tolist() == [31.0]


def test_hooks_run_in_the_order_of_registration():
    x = leaf(1.0)
    x.register_hook(lambda g: g + 1)
    x.register_hook(lambda g: g * 10)
    (x * 1).sum().backward()
    assert x.grad.tolist() == [20.0]


def test_a_removed_hook_does_not_run():
    x = leaf(1.0)
    handle = x.register_hook(lambda g: g * 100)
    handle.remove()
    handle.remove()
    with x.register_hook(lambda g: g * 7):
        (x * 1).sum().backward()
    (x * 1).sum().backward()
    assert x.grad.tolist() == [8.0]


def test_a_hook_may_not_change_the_shape():
    x = leaf(1.0, 2.0)
    x.register_hook(lambda g: g.sum())
    with pytest.raises(RuntimeError, match="has changed the size of value"):
        (x * 1).sum().backward()


def test_a_hook_returns_a_tensor_or_nothing():
    x = leaf(1.0)
    x.register_hook(lambda g: 3.0)
    with pytest.raises(TypeError, match="must return a Tensor or None"):
        (x * 1).sum().backward()


def test_a_hook_needs_a_tensor_that_requires_grad():
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        lt.ones(1).register_hook(print)


def test_a_hook_works_with_grad_and_with_inputs():
    x = leaf(2.0)
    y = x * 3
    y.register_hook(lambda g: g * 10)
    gx, gy = lt.autograd.grad(y.sum(), [x, y])
    assert (gx.tolist(), gy.tolist()) == ([30.0], [10.0])


def test_a_hook_of_create_graph_is_differentiable():
    x = leaf(2.0)
    y = x * x
    y.register_hook(lambda g: g * y)
    (g,) = lt.autograd.grad(y.sum(), x, create_graph=True)
    assert g.tolist() == [16.0]
    (h,) = lt.autograd.grad(g.sum(), x)
    # The hook on y runs for the second backward too.
    assert h.tolist() == [2 * 4.0 + 2 * 2.0 * 4.0 * 4.0]


def test_retain_grad_keeps_the_gradient_of_a_result():
    x = leaf(2.0)
    y = x * 3
    y.retain_grad()
    y.retain_grad()
    assert y.retains_grad
    (y * y).sum().backward(retain_graph=True)
    assert y.grad.tolist() == [12.0]
    (y + 1).sum().backward()
    assert y.grad.tolist() == [13.0]


def test_retain_grad_shows_what_the_hooks_made_of_it():
    x = leaf(2.0)
    y = x * 3
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
    assert y.grad.tolist() == [2.0]


def test_retain_grad_follows_a_write_in_place():
    x = leaf(1.0)
    y = x * 1
    y.retain_grad()
    y.mul_(3)
    (y * 5).sum().backward()
    assert (y.grad.tolist(), x.grad.tolist()) == ([5.0], [15.0])


def test_a_hook_stays_with_the_value_before_a_write_in_place():
    x = leaf(1.0)
    y = x * 1
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.mul_(3)
    (y * 5).sum().backward()
    assert seen == [[15.0]]


def test_retain_grad_of_a_leaf_changes_nothing_and_of_a_constant_is_refused():
    x = leaf(1.0)
    x.retain_grad()
    assert not x.retains_grad
    with pytest.raises(RuntimeError, match="requires_grad=False"):
        lt.ones(1).retain_grad()


def test_retain_grad_does_not_keep_the_tensor_alive():
    x = leaf(1.0)
    y = x * 1
    y.retain_grad()
    z = y * 2
    gone = weakref.ref(y)
    gc.disable()
    try:
        del y
        assert gone() is None
    finally:
        gc.enable()
    z.sum().backward()
    assert x.grad.tolist() == [2.0]


def test_a_post_accumulate_hook_runs_after_each_accumulation():
    x = leaf(1.0)
    seen = []
    handle = x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    handle.remove()
    (x * 4).sum().backward()
    assert seen == [[2.0], [5.0]]


def test_a_post_accumulate_hook_may_free_the_gradient():
    x, w = leaf(1.0), leaf(2.0)
    order = []

    def step(t: lt.Tensor) -> None:
        order.append(t is w)
        with lt.no_grad():
            t.add_(t.grad, alpha=-0.5)
        t.grad = None

    for t in (x, w):
        t.register_post_accumulate_grad_hook(step)
    (x * 2 + w * 4).sum().backward()
    assert sorted(order) == [False, True]
    assert (x.tolist(), w.tolist()) == ([0.0], [0.0])
    assert x.grad is None


def test_a_post_accumulate_hook_is_for_leaves():
    with pytest.raises(RuntimeError, match="non-leaf"):
        (leaf(1.0) * 1).register_post_accumulate_grad_hook(print)


def test_node_hooks_see_and_replace_gradients():
    x = leaf(1.0)
    y = x * 3
    seen = []
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 2,))

    def post(inputs, outputs):
        seen.append((inputs[0].tolist(), outputs[0].tolist()))
        return (inputs[0] + 1,)

    handle = y.grad_fn.register_hook(post)
    y.sum().backward(retain_graph=True)
    handle.remove()
    assert seen == [([6.0], [2.0])]
    assert x.grad.tolist() == [7.0]


def test_tensor_hooks_run_before_node_prehooks_before_the_node():
    x = leaf(1.0)
    order = []
    y = x * 3
    y.grad_fn.register_hook(lambda i, o: order.append("post"))
    y.grad_fn.register_prehook(lambda o: order.append("pre"))
    y.register_hook(lambda g: order.append("tensor"))
    x.register_hook(lambda g: order.append("leaf"))
    x.register_post_accumulate_grad_hook(lambda t: order.append("accumulated"))
    y.sum().backward()
    assert order == ["tensor", "pre", "post", "leaf", "accumulated"]


def test_hooks_on_accumulate_grad():
    x = leaf(1.0)
    y = x * 2
    accumulate = y.grad_fn.next_functions[0][0]
    seen = []
    accumulate.register_prehook(lambda outputs: seen.append(outputs[0].tolist()))
    accumulate.register_hook(lambda inputs, outputs: seen.append("after"))
    y.sum().backward()
    assert seen == [[2.0], "after"]


def test_metadata_of_a_node_is_the_users():
    y = leaf(1.0) * 2
    y.grad_fn.metadata["layer"] = 3
    assert y.grad_fn.metadata == {"layer": 3}


def test_a_multi_grad_hook_runs_when_all_gradients_are_known():
    x, y = leaf(1.0), leaf(2.0)
    a, b = x * 2, y * 3
    seen = []
    handle = lt.autograd.graph.register_multi_grad_hook(
        [a, b], lambda grads: seen.append([g.tolist() for g in grads])
    )
    (a * b).sum().backward(retain_graph=True)
    handle.remove()
    (a * b).sum().backward()
    assert seen == [[[6.0], [2.0]]]


def test_backward_inside_a_hook():
    x, w = leaf(3.0), leaf(5.0)
    y = x * 2

    def inner(g: lt.Tensor) -> None:
        with lt.enable_grad():
            (w * w).sum().backward()

    y.register_hook(inner)
    y.sum().backward()
    assert (x.grad.tolist(), w.grad.tolist()) == ([2.0], [10.0])


def test_a_prehook_on_accumulate_grad_may_return_a_tensor_or_a_tuple():
    x = leaf(1.0, 1.0)
    y = x * 2
    accumulate = y.grad_fn.next_functions[0][0]
    accumulate.register_prehook(lambda outputs: outputs[0] * 3)
    accumulate.register_prehook(lambda outputs: (outputs[0] + 1,))
    y.sum().backward()
    assert x.grad.tolist() == [7.0, 7.0]


@pytest.mark.parametrize("register", ["register_hook", "register_prehook"])
@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ((), RuntimeError, "incorrect number of values"),
        ((None, None, None), RuntimeError, "got 3, but"),
        ((1.0, 2.0), (TypeError, RuntimeError), "must return Tensors|incorrect number"),
    ],
)
def test_a_node_hook_returns_one_value_for_each(register, returned, error, message):
    x = leaf(1.0, 2.0)
    y = x * leaf(2.0, 2.0)
    getattr(y.grad_fn, register)(lambda *gradients: returned)
    with pytest.raises(error, match=message):
        y.sum().backward()


def test_a_node_hook_may_not_change_the_shape():
    y = leaf(1.0, 2.0) * 2
    y.grad_fn.register_prehook(lambda outputs: (outputs[0][:1],))
    with pytest.raises(RuntimeError, match="has changed the size of value"):
        y.sum().backward()


def test_a_multi_grad_hook_waits_only_for_what_this_backward_computes():
    x = leaf(1.0)
    y, z = x * 2, x * 3
    got = []
    handle = lt.autograd.graph.register_multi_grad_hook(
        [y, z, x], lambda gs: got.append([None if g is None else g.item() for g in gs])
    )
    y.sum().backward(retain_graph=True)
    (y * 5 + z).sum().backward(retain_graph=True)
    lt.autograd.grad((y + z).sum(), z, retain_graph=True)
    assert got == [[1.0, None, 2.0], [5.0, 1.0, 13.0], [None, 1.0, None]]
    handle.remove()
    y.sum().backward()
    assert len(got) == 3


def test_a_multi_grad_hook_on_any_runs_once_in_each_backward():
    x = leaf(1.0)
    y, z = x * 2, x * 3
    got = []
    lt.autograd.graph.register_multi_grad_hook([y, z], got.append, mode="any")
    (y + z).sum().backward(retain_graph=True)
    (y + z).sum().backward()
    assert len(got) == 2
