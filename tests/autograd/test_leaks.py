"""Nothing outlives its last reference: with the collector off, the ledger returns to where it was.

Every test here runs twice, and its second run is measured: the first one fills caches.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

import lowtide as lt
from lowtide.framework.devices import backend


def left_after(run: Callable[[], object]) -> int:
    """Live bytes that a run leaves behind without help from the collector."""
    ledger = backend(lt.device("cpu")).ledger
    run()
    gc.collect()
    gc.disable()
    try:
        before = ledger.live
        run()
        return ledger.live - before
    finally:
        gc.enable()


def weights() -> tuple[lt.Tensor, lt.Tensor]:
    return lt.ones(16, 16, requires_grad=True), lt.ones(16, 16, requires_grad=True)


def forward_only() -> None:
    a, b = weights()
    ((a * b).exp() * a).sum()


def backward() -> None:
    a, b = weights()
    ((a * b).exp() * a).sum().backward()


def retained() -> None:
    a, b = weights()
    loss = ((a * b).exp() * a).sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)


def create_graph() -> None:
    a, b = weights()
    loss = ((a * b).exp() * a).sum()
    ga, gb = lt.autograd.grad(loss, [a, b], create_graph=True)
    lt.autograd.grad((ga * gb).sum(), [a, b])


def create_graph_without_second_backward() -> None:
    a, b = weights()
    lt.autograd.grad((a * b * a).sum(), [a, b], create_graph=True)


def views_and_writes() -> None:
    a, b = weights()
    base = a * b
    row, column = base[0], base[:, 1]
    row.mul_(2)
    column.add_(row)
    base.mul_(base)
    (base.sum() + column.sum()).backward()


def hooks() -> None:
    a, b = weights()
    y = a * b
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    a.register_hook(lambda g: g + 1)
    a.register_post_accumulate_grad_hook(lambda t: None)
    y.grad_fn.register_prehook(lambda g: None)
    y.grad_fn.register_hook(lambda i, o: None)
    y.exp().sum().backward()


def accumulate_hooks() -> None:
    a, b = weights()
    y = a * b
    y.grad_fn.next_functions[0][0].register_hook(lambda i, o: None)
    y.sum().backward()


def saved_hooks() -> None:
    a, b = weights()
    with lt.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = (a * b).exp()
    y.sum().backward()


def saved_hooks_without_backward() -> None:
    a, b = weights()
    with lt.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        (a * b).exp().sum()


class Exp(lt.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, g):
        _, out = ctx.saved_tensors
        return g * out


def function() -> None:
    a, b = weights()
    Exp.apply(a * b).sum().backward()


def function_without_backward() -> None:
    a, b = weights()
    Exp.apply(a * b).sum()


def function_twice() -> None:
    a, b = weights()
    (g,) = lt.autograd.grad(Exp.apply(a * b).sum(), a, create_graph=True)
    lt.autograd.grad(g.sum(), a)


def error_in_forward() -> None:
    a, b = weights()
    with pytest.raises(RuntimeError):
        (a * b) * lt.ones(3)


def error_in_backward() -> None:
    a, b = weights()
    y = a * b
    z = y * y
    y.add_(1)
    try:
        z.sum().backward()
    except RuntimeError:
        pass
    else:
        pytest.fail("the write must be noticed")


def error_in_a_hook() -> None:
    a, b = weights()
    y = a * b

    def fail(g: lt.Tensor) -> None:
        raise KeyError("hook")

    y.register_hook(fail)
    try:
        y.exp().sum().backward()
    except KeyError:
        pass
    else:
        pytest.fail("the hook must run")


def anomaly() -> None:
    a, b = weights()
    with lt.autograd.detect_anomaly():
        ((a * b).exp() * a).sum().backward()


def reentrant() -> None:
    a, b = weights()
    y = a * b

    def again(g: lt.Tensor) -> lt.Tensor:
        with lt.enable_grad():  # as reentrant activation checkpointing does
            inner = a.detach().requires_grad_()
            (inner * inner).exp().sum().backward()
        return g * inner.grad

    y.register_hook(again)
    y.exp().sum().backward()


def error_in_a_reentrant_backward() -> None:
    a, b = weights()
    y = a * b

    def fail(g: lt.Tensor) -> None:
        with lt.enable_grad():
            z = a.detach().requires_grad_() * 2
            z.register_hook(lambda g: 1 / 0)
            z.sum().backward()

    y.register_hook(fail)
    try:
        y.exp().sum().backward()
    except ZeroDivisionError:
        pass
    else:
        pytest.fail("the inner hook must run")


def error_in_a_function() -> None:
    class Fails(lt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            raise KeyError(x.shape)

    a, b = weights()
    try:
        Fails.apply(a * b).sum().backward()
    except KeyError:
        pass
    else:
        pytest.fail("backward must run")


def kept_gradients() -> None:
    a, b = weights()
    kept = []
    y = a * b
    y.register_hook(kept.append)
    a.register_hook(kept.append)
    loss = y.exp().sum()
    loss.backward(retain_graph=True)
    first = a.grad
    loss.backward()
    assert first is a.grad
    kept.append(first)


def views_of_written_views() -> None:
    a, b = weights()
    base = a * 1
    for k in range(8):
        view = base[k].view(4, 4).t()
        view.mul_(b[k].view(4, 4))
        base.view(-1)[k::16].add_(view.sum())
    base.sum().backward()
    with lt.no_grad():
        base[0].zero_()


def written_without_backward() -> None:
    a, b = weights()
    base = a * 1
    base[1:].mul_(b[1:])
    base.t().add_(base[0].clone())


def multi_grad_hook() -> None:
    a, b = weights()
    y, z = a * b, a.exp()
    lt.autograd.graph.register_multi_grad_hook([y, z, a], lambda gradients: None)
    y.sum().backward(retain_graph=True)
    (y + z).sum().backward()


def functional() -> None:
    a, _ = weights()
    lt.autograd.functional.hvp(lambda x: (x * x * x).sum(), a, lt.ones(16, 16))
    lt.func.grad(lambda x: (x * x).exp().sum())(a)


@pytest.mark.quick(8)
@pytest.mark.parametrize(
    "run",
    [
        forward_only,
        backward,
        retained,
        create_graph,
        create_graph_without_second_backward,
        views_and_writes,
        hooks,
        accumulate_hooks,
        saved_hooks,
        saved_hooks_without_backward,
        function,
        function_without_backward,
        function_twice,
        error_in_forward,
        error_in_backward,
        error_in_a_hook,
        anomaly,
        reentrant,
        error_in_a_reentrant_backward,
        error_in_a_function,
        kept_gradients,
        multi_grad_hook,
        views_of_written_views,
        written_without_backward,
        functional,
    ],
    ids=lambda run: run.__name__,
)
def test_nothing_is_left(run):
    assert left_after(run) == 0


def test_saved_values_go_during_backward_not_after_it():
    ledger = backend(lt.device("cpu")).ledger
    x = lt.zeros(1000, requires_grad=True)
    y = x
    live = []
    for _ in range(4):
        y = y.exp()
        y.register_hook(lambda g: live.append(ledger.by_role()["saved"]))
    loss = y.sum()
    del y
    loss.backward()
    assert live == sorted(live, reverse=True)
    assert live[0] > live[-1]


def test_deleting_the_loss_frees_the_graph():
    ledger = backend(lt.device("cpu")).ledger
    x = lt.ones(1000, requires_grad=True)
    gc.disable()
    try:
        before = ledger.live
        loss = (x.exp() * x).sum()
        assert ledger.live > before
        del loss
        assert ledger.live == before
    finally:
        gc.enable()
