"""``Tensor.data``: the same bytes, outside the graph, under a version of their own."""

from __future__ import annotations

import random
import warnings

import pytest

import lowtide as lt
from lowtide.framework.autograd import saved


@pytest.fixture(autouse=True)
def _no_line_has_warned(monkeypatch):
    monkeypatch.setattr(saved, "_warned", set())


WRITTEN = r"written through \.data.* after it was kept.*Write after backward"


def test_writes_through_data_are_not_counted():
    x = lt.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    x.data.mul_(3.0)
    with pytest.warns(UserWarning, match=WRITTEN) as found:
        y.sum().backward()
    assert "kept by MulBackward0 (mul." in str(found[0].message)
    assert "(mul_ at" in str(found[0].message)
    assert x._version == 0
    assert x.grad.tolist() == [6.0, 12.0]  # of the values that are there now, as in PyTorch


def test_writes_through_a_view_of_data_are_not_counted():
    x = lt.ones(2, 3, requires_grad=True)
    y = (x * x).sum()
    with lt.no_grad():
        x.data[0].fill_(2.0)
        x.data.t()[1] += 1
    with pytest.warns(UserWarning, match=WRITTEN):
        y.backward()
    assert x._version == 0
    assert x.grad.tolist() == [[4.0, 6.0, 4.0], [2.0, 4.0, 2.0]]


def test_writes_through_detach_are_noticed():
    x = lt.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    x.detach().mul_(3.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_is_kept_of_data_has_its_own_count():
    x, w = lt.tensor([1.0, 2.0]), lt.ones(2, requires_grad=True)
    alias = x.data
    y = w * alias
    x.add_(1)  # the other count
    assert (x._version, alias._version) == (1, 0)
    y.sum().backward()
    assert w.grad.tolist() == [2.0, 3.0]
    y = w * alias
    alias.add_(1)
    assert (x._version, alias._version, x.data._version) == (1, 1, 0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_data_takes_no_bytes_and_keeps_those_it_has():
    before = lt.memory_allocated("cpu")
    x = lt.ones(1000)
    alias = x.data
    assert lt.memory_allocated("cpu") == before + 4000
    assert alias.data_ptr() == x.data_ptr()
    del x
    assert lt.memory_allocated("cpu") == before + 4000
    assert alias.sum().item() == 1000
    del alias
    assert lt.memory_allocated("cpu") == before


def test_overlaps_with_the_source_are_seen():
    x = lt.arange(4.0)
    with pytest.raises(RuntimeError, match="single memory location"):
        x.data[1:].copy_(x[:-1])
    with pytest.raises(RuntimeError, match="single memory location"):
        x[1:].copy_(x.data[:-1])
    assert x.untyped_storage() == x.data.untyped_storage()


def test_setting_data_to_data_shares_the_bytes():
    x, y = lt.nn.Parameter(lt.ones(3)), lt.zeros(3)
    x.data = y.data
    y.add_(2)
    assert x.tolist() == [2.0, 2.0, 2.0]
    assert lt.memory_stats("cpu")["by_role"]["parameter"] >= 12


def test_a_gradient_returned_as_data_is_not_taken_over():
    class Pass(lt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            kept.append(g)
            return g.data

    kept = []
    x = lt.ones(3, requires_grad=True)
    Pass.apply(x).sum().backward()
    x.grad.add_(1)
    assert kept[0].tolist() == [1.0, 1.0, 1.0]


def test_inside_a_region_writes_are_noticed():
    x = lt.ones(3, requires_grad=True)

    def region(x):
        y = x * 2
        y.data.add_(1)
        return y.sin()

    plain = lt.autograd.grad(region(x).sum(), x)[0]
    again = lt.autograd.grad(lt.utils.checkpoint.checkpoint(region, x).sum(), x)[0]
    assert lt.equal(plain, again)


def test_a_line_that_writes_through_data_warns_once():
    x = lt.ones(2, requires_grad=True)

    def step():
        for _ in range(3):
            y = x * x
            x.data.add_(1)
            y.sum().backward()

    with pytest.warns(UserWarning, match=WRITTEN) as found:
        step()
    assert len(found) == 1


WRITES = {
    "copy_": lambda p: p.data.copy_(lt.full_like(p.data, 2.0)),
    "mul_": lambda p: p.data.mul_(2.0),
    "clamp_": lambda p: p.data.clamp_(-0.1, 0.1),
    "a row": lambda p: p.data[:1].fill_(3.0),
    "an index": lambda p: p.data.__setitem__(0, 3.0),
    "augmented": lambda p: p.data.__iadd__(1.0),
}
KEPT = {
    "square": (lambda p: p * p, True),
    "exp of a view": (lambda p: p[1:].exp() * p[1:], True),
    "product": (lambda p: p @ lt.ones(p.shape[-1], 2, requires_grad=True, dtype=p.dtype), True),
    "sum": (lambda p: p.sum() * 2, False),
    "scaled": (lambda p: p * 3.0 + 1, False),
    "a constant": (lambda p: p @ lt.ones(p.shape[-1], 2, dtype=p.dtype), False),
    "detached": (lambda p: (p + 0) ** 2, False),
}


@pytest.mark.parametrize("seed", range(4))
def test_random_writes_through_data(seed):
    """A warning where backward reads the new values, and gradients else as without the write."""
    draw = random.Random(seed)
    for _ in range(60):
        saved._warned.clear()
        dtype = draw.choice([lt.float32, lt.float64])
        p, q = (lt.full((3, 2), 0.5, dtype=dtype, requires_grad=True) for _ in range(2))
        if draw.random() < 0.3:
            p = p.detach().mT.contiguous().mT.requires_grad_()
        write = WRITES[draw.choice(list(WRITES))]
        compute, keeps = KEPT[draw.choice(list(KEPT))]
        when = draw.choice(["before", "between", "swapped", "after"])
        if when == "before":
            write(p)
            with lt.no_grad():
                q.copy_(p)
        loss = compute(p).sum()
        if when == "between":
            write(p)
        if when == "swapped":
            p.data = p.data + 1
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            loss.backward()
        if when == "after":
            write(p)
        compute(q).sum().backward()
        assert len(found) == (keeps and when == "between")
        if not found:
            assert lt.equal(p.grad, q.grad)
