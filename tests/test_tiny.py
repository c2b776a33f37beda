"""A tour of the whole system in two seconds: if this passes, the house stands."""

from __future__ import annotations

import math

import pytest

import lowtide as lt


def test_a_tensor_is_made_and_read_back() -> None:
    x = lt.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert (x.shape, x.dtype, str(x.device)) == ((2, 2), lt.float32, "cpu")
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert lt.arange(3).dtype is lt.int64


def test_arithmetic_broadcasts_and_promotes_as_pytorch() -> None:
    x = lt.ones(2, 1) * 2 + lt.arange(3)
    assert x.dtype is lt.float32
    assert x.tolist() == [[2.0, 3.0, 4.0], [2.0, 3.0, 4.0]]
    assert (lt.ones(2, dtype=lt.int64) / 2).dtype is lt.float32


def test_backward_fills_the_gradients_of_the_leaves() -> None:
    w = lt.tensor([2.0, 3.0], requires_grad=True)
    ((w * w).sum() * 0.5).backward()
    assert w.grad is not None
    assert w.grad.tolist() == [2.0, 3.0]


def test_a_gradient_of_a_gradient() -> None:
    x = lt.tensor(2.0, requires_grad=True)
    (g,) = lt.autograd.grad(x * x * x, x, create_graph=True)
    (gg,) = lt.autograd.grad(g, x)
    assert (g.item(), gg.item()) == (12.0, 12.0)


def test_a_view_shares_memory_and_a_write_through_it_is_differentiated() -> None:
    x = lt.ones(4, requires_grad=True)
    y = x * 1
    y.view(2, 2)[0].mul_(3)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0, 1.0, 1.0]


def test_a_write_over_a_saved_value_is_caught() -> None:
    x = lt.ones(3, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_no_grad_records_nothing() -> None:
    x = lt.ones(3, requires_grad=True)
    with lt.no_grad():
        assert (x * 2).grad_fn is None


def test_the_ledger_counts_every_byte(leak_check: None) -> None:
    before = lt.memory_allocated("cpu")
    x = lt.ones(1000)
    assert lt.memory_allocated("cpu") - before == 4000
    y = x.view(10, 100)  # a view owns nothing
    assert lt.memory_allocated("cpu") - before == 4000
    del x
    assert lt.memory_allocated("cpu") - before == 4000
    del y
    assert lt.memory_allocated("cpu") == before


def test_a_step_needs_the_same_bytes_on_meta_as_on_the_cpu() -> None:
    def peak(device: str) -> int:
        w = lt.ones(20, 30, device=device, requires_grad=True)
        x = lt.ones(10, 20, device=device)
        lt.reset_peak_memory_stats(device)
        start = lt.memory_allocated(device)
        (x @ w).tanh().sum().backward()
        return lt.max_memory_allocated(device) - start

    assert peak("meta") == peak("cpu") > 0


def test_a_memory_limit_refuses_before_the_device_is_full() -> None:
    old = lt.set_memory_limit(lt.memory_allocated("cpu") + 1000, "cpu")
    try:
        with pytest.raises(lt.MemoryLimitError, match="would pass the limit"):
            lt.ones(1000)
    finally:
        lt.set_memory_limit(old, "cpu")


def test_one_seed_gives_one_stream() -> None:
    lt.manual_seed(7)
    a = lt.randn(100)
    state = lt.get_rng_state()
    b = lt.randn(100)
    lt.set_rng_state(state)
    assert lt.randn(100).tolist() == b.tolist()
    lt.manual_seed(7)
    assert lt.randn(100).tolist() == a.tolist()


def test_a_small_model_learns() -> None:
    lt.manual_seed(0)
    model = lt.nn.Sequential(lt.nn.Linear(2, 16), lt.nn.Tanh(), lt.nn.Linear(16, 2))
    optimizer = lt.optim.Adam(model.parameters(), lr=0.05)
    x = lt.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = lt.tensor([0, 1, 1, 0])
    losses = []
    for _ in range(60):
        loss = lt.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(2), abs=0.4)
    assert losses[-1] < 0.1
    assert model(x).argmax(dim=1).tolist() == [0, 1, 1, 0]
