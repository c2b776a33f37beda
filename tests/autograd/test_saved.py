"""What the graph keeps for backward, and the hooks through which it is kept."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide.autograd.graph import (
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)
from lowtide.framework.devices import backend


def labels(t: lt.Tensor) -> list[str]:
    return sorted(v.label for v in t.grad_fn.saved)


def test_mul_keeps_only_what_the_wanted_gradients_need():
    a = lt.ones(2, 3, requires_grad=True)
    b = lt.ones(3)
    assert labels(a * b) == ["mul.other"]
    assert labels(b * a) == ["mul.input"]
    assert labels(a * a) == ["mul.input", "mul.other"]
    assert labels(a * 2.0) == []
    assert labels(a + b) == []
    assert labels(a.sum()) == []


def test_exp_keeps_its_result():
    assert labels(lt.ones(3, requires_grad=True).exp()) == ["exp.out"]


def test_saved_values_tell_shape_dtype_and_bytes():
    a = lt.ones(2, 3, requires_grad=True)
    b = lt.ones(8, 3)[2:3]
    (kept,) = (a * b).grad_fn.saved
    assert (kept.label, kept.shape, kept.dtype) == ("mul.other", (1, 3), lt.float32)
    assert (kept.nbytes, kept.held_bytes) == (12, 96)


def test_saved_values_are_gone_after_backward():
    a = lt.ones(2, requires_grad=True)
    y = (a * a).sum()
    node = y.grad_fn.next_functions[0][0]
    assert len(node.saved) == 2
    y.backward()
    assert node.saved == ()


def test_saved_values_by_pytorch_names():
    a = lt.tensor([2.0], requires_grad=True)
    b = lt.tensor([3.0])
    node = (a * b).grad_fn
    assert node._saved_other.tolist() == [3.0]
    with pytest.raises(AttributeError):
        _ = node._saved_self
    with pytest.raises(AttributeError):
        _ = node.anything


def test_the_ledger_moves_saved_bytes_into_their_role_and_back():
    ledger = backend(lt.device("cpu")).ledger
    before = ledger.by_role()["saved"]
    a = lt.ones(1000, requires_grad=True)
    b = a * 2
    y = b * b
    assert ledger.by_role()["saved"] - before == 4000
    y.sum().backward()
    assert ledger.by_role()["saved"] == before


def test_pack_and_unpack_see_every_saved_value():
    packed, unpacked = [], []

    def pack(t: lt.Tensor) -> list[float]:
        packed.append(t.tolist())
        return t.tolist()

    def unpack(values: list[float]) -> lt.Tensor:
        unpacked.append(values)
        return lt.tensor(values)

    a = lt.tensor([2.0], requires_grad=True)
    b = lt.tensor([3.0], requires_grad=True)
    with saved_tensors_hooks(pack, unpack):
        y = a * b
    y.sum().backward()
    assert sorted(packed) == sorted(unpacked) == [[2.0], [3.0]]
    assert (a.grad.tolist(), b.grad.tolist()) == ([3.0], [2.0])


def test_the_innermost_hooks_win_and_end_with_their_context():
    seen = []
    a = lt.ones(1, requires_grad=True)

    def noting(name: str) -> saved_tensors_hooks:
        return saved_tensors_hooks(lambda t: seen.append(name) or t, lambda t: t)

    with noting("outer"):
        with noting("inner"):
            a * a
        a.exp()
    a * a
    assert seen == ["inner", "inner", "outer"]


def test_unpacked_values_are_what_backward_uses():
    a = lt.tensor([2.0], requires_grad=True)
    with saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t * 10):
        y = a * a
    y.sum().backward()
    assert a.grad.tolist() == [40.0]


def test_a_packed_copy_survives_a_write_to_the_leaf():
    a = lt.tensor([2.0], requires_grad=True)
    with saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = a * a
    with lt.no_grad():
        a.fill_(100.0)
    y.sum().backward()
    assert a.grad.tolist() == [4.0]


def test_double_backward_through_packed_values():
    a = lt.tensor([2.0], dtype=lt.float64, requires_grad=True)
    with saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = (a * a * a).exp()
        (g,) = lt.autograd.grad(y.sum(), a, create_graph=True)
    (h,) = lt.autograd.grad(g.sum(), a)
    e = 2.718281828459045**8
    assert g.tolist() == pytest.approx([12 * e])
    assert h.tolist() == pytest.approx([12 * e + 144 * e])


def test_a_hook_that_keeps_the_tensor_itself_is_still_checked():
    a = lt.tensor([2.0], requires_grad=True) * 1
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        y = a * a
    a.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_pack_hook_may_not_write():
    a = lt.tensor([2.0], requires_grad=True) * 1
    hooks = saved_tensors_hooks(lambda t: t.detach().add_(1), lambda t: t)
    with hooks, pytest.raises(RuntimeError, match="modifying its input in place"):
        a * a


def test_an_unpack_hook_returns_a_tensor_of_the_shape():
    a = lt.ones(2, requires_grad=True)
    with saved_tensors_hooks(lambda t: t, lambda t: lt.ones(3)):
        y = a * a
    with pytest.raises(RuntimeError, match=r"shape \(2,\)"):
        y.sum().backward()


def test_hooks_can_be_forbidden():
    hooks = saved_tensors_hooks(lambda t: t.tolist(), lt.tensor)
    forbidden = disable_saved_tensors_hooks("not in here")
    with forbidden, pytest.raises(RuntimeError, match="not in here"), hooks:
        pass
    a = lt.ones(1, requires_grad=True)
    with hooks:
        y = a * a
    y.sum().backward()
    assert a.grad.tolist() == [2.0]


def test_save_on_cpu_changes_no_gradient():
    a = lt.tensor([2.0, 3.0], requires_grad=True)
    with save_on_cpu(pin_memory=True):
        y = (a * a).exp()
    y.sum().backward()
    expected = lt.tensor([2.0, 3.0], requires_grad=True)
    (expected * expected).exp().sum().backward()
    assert a.grad.tolist() == expected.grad.tolist()


def test_what_pack_hooks_return_counts_as_saved_while_the_graph_holds_it():
    roles = lt.memory_stats("cpu")["by_role"]
    x, y = lt.randn(100, requires_grad=True), lt.ones(100, requires_grad=True)

    def saved():
        return lt.memory_stats("cpu")["by_role"]["saved"] - roles["saved"]

    for pack, unpack, held in (
        (lambda t: t.clone(), lambda t: t, 400),
        (lambda t: (t.shape, t.clone()), lambda packed: packed[1], 400),
        (lambda t: {"half": t.half()}, lambda packed: packed["half"].float(), 200),
        (lambda t: t.numpy().copy(), lt.tensor, 0),
    ):
        with lt.autograd.graph.saved_tensors_hooks(pack, unpack):
            z = x.exp() * 2.0
        assert saved() == held
        assert [v.held_bytes for v in z.grad_fn.next_functions[0][0].saved] == [held]
        z.sum().backward()
        assert saved() == 0
    with lt.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        z = (x * y).sum()
    assert saved() == 800  # plain leaves are temporaries: the graph holds them now
    del z
    assert saved() == 0
