"""Writes in place: through tensors, views, views of views; what is followed and what is refused."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import pytest

import lowtide as lt


def leaf(*values: float) -> lt.Tensor:
    return lt.tensor(list(values), dtype=lt.float64, requires_grad=True)


def constant(*values: float) -> lt.Tensor:
    return lt.tensor(list(values), dtype=lt.float64)


# What is refused


def test_a_leaf_that_requires_grad_is_not_written():
    w = leaf(1.0)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        w.add_(1)
    assert w.tolist() == [1.0]


def test_a_view_of_a_leaf_is_not_written():
    w = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        w[0].add_(1)
    with pytest.raises(RuntimeError, match=r"a view of a leaf|a leaf Variable"):
        w[0] = 3.0
    assert w.tolist() == [1.0, 2.0]


def test_a_view_that_is_itself_a_leaf_is_not_written():
    v = lt.ones(3, dtype=lt.float64)[:2]
    v.requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        v.mul_(2)


def test_a_leaf_is_written_under_no_grad():
    w = leaf(1.0)
    with lt.no_grad():
        w.add_(1)
        w[0] += 1
    assert w.tolist() == [3.0]
    assert w.is_leaf


def test_a_view_made_under_no_grad_is_not_written_with_grad():
    base = leaf(1.0, 2.0) * 1
    with lt.no_grad():
        view = base[:1]
    with pytest.raises(RuntimeError, match="no_grad"):
        view.mul_(2)


def test_an_overlapping_tensor_is_not_written():
    with pytest.raises(RuntimeError, match="more than one element"):
        lt.zeros(1).expand(3).add_(1)


def test_a_result_of_another_shape_is_not_written():
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        lt.zeros(1).add_(lt.ones(3))


def test_a_float_result_is_not_written_into_integers():
    with pytest.raises(RuntimeError, match="can't be cast"):
        lt.zeros(2, dtype=lt.int64).mul_(1.5)


# Saved values that were overwritten


def test_an_overwritten_saved_input_is_noticed():
    a = leaf(2.0) * 1
    y = a * a
    a.add_(1)
    with pytest.raises(lt.GradientError, match="modified by an inplace operation"):
        y.sum().backward()


def test_an_overwritten_saved_output_is_noticed():
    y = leaf(2.0).exp()
    z = y * 1
    y.add_(1)
    with pytest.raises(RuntimeError, match=r"ExpBackward0.*modified by an inplace operation"):
        z.sum().backward()


def test_the_message_names_op_value_shape_and_both_versions():
    a = leaf(2.0, 3.0) * 1
    y = a * leaf(1.0, 1.0)
    a.add_(1)
    a.add_(1)
    with pytest.raises(
        RuntimeError, match=r"MulBackward0 \(mul\.\w+, shape \(2,\)\).*version 0 then, 2 now.*clone"
    ):
        y.sum().backward()


def test_a_value_that_no_rule_needs_may_be_overwritten():
    a = leaf(2.0) * 1
    y = a + 1
    a.mul_(5)
    y.sum().backward()
    assert y.tolist() == [3.0]


def test_a_write_through_a_view_is_noticed():
    a = leaf(2.0, 3.0) * 1
    y = a * a
    a[0] = 7.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_write_through_the_base_is_noticed_by_a_saved_view():
    a = leaf(2.0, 3.0) * 1
    v = a[:1]
    y = v * v
    a.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_write_through_detach_is_noticed():
    a = leaf(2.0) * 1
    y = a * a
    a.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_write_under_no_grad_is_noticed():
    w = leaf(2.0)
    y = w * w
    with lt.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_versions_count_writes_and_are_shared():
    a = lt.zeros(3)
    view, detached = a[:2], a.detach()
    assert a._version == 0
    a.add_(1)
    view.add_(1)
    assert (a._version, view._version, detached._version) == (2, 2, 2)
    assert a.clone()._version == 0


def test_increment_version_counts_as_a_write():
    a = leaf(2.0) * 1
    y = a * a
    lt.autograd.graph.increment_version(a)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# History


def test_a_chain_of_writes():
    w = leaf(3.0)
    y = w * 1
    y.mul_(2).add_(1).mul_(y.detach() * 0 + 5)
    y.sum().backward()
    assert y.tolist() == [35.0]
    assert w.grad.tolist() == [10.0]


def test_multiplying_a_tensor_by_itself_in_place():
    w = leaf(3.0)
    y = w * 1
    y.mul_(y)
    y.sum().backward()
    assert y.tolist() == [9.0]
    assert w.grad.tolist() == [6.0]


def test_multiplying_in_place_by_something_made_of_it():
    w = leaf(3.0)
    y = w * 1
    y.mul_(y * 2)
    y.sum().backward()
    assert w.grad.tolist() == [12.0]


def test_multiplying_a_view_by_its_neighbor_in_place():
    w = leaf(3.0, 5.0)
    y = w * 1
    y[0].mul_(y[1])
    y.sum().backward()
    assert y.tolist() == [15.0, 5.0]
    assert w.grad.tolist() == [5.0, 4.0]


def test_operators_write_in_place():
    w = leaf(3.0)
    y = w * 1
    before = y
    y += 2
    y *= w
    assert y is before
    y.sum().backward()
    assert w.grad.tolist() == [8.0]


def test_a_write_into_a_plain_tensor_makes_it_part_of_the_graph():
    w = leaf(3.0)
    y = lt.zeros(1, dtype=lt.float64)
    y.add_(w * w)
    assert y.requires_grad
    assert not y.is_leaf
    y.sum().backward()
    assert w.grad.tolist() == [6.0]


def test_assigning_an_element_of_zeros():
    x = lt.tensor([[2.0, 3.0]], dtype=lt.float64, requires_grad=True)
    m = lt.zeros(2, 2, dtype=lt.float64)
    m[0, 0] = x[0, 0] ** 2
    m[1, 1] = x[0, 1] * 10
    assert m.grad_fn.name() == "CopySlices"
    m.sum().backward()
    assert x.grad.tolist() == [[4.0, 10.0]]


def test_an_overwritten_element_gets_no_gradient():
    w = leaf(1.0, 2.0, 3.0)
    y = w * 2
    y[1] = 5.0
    y.sum().backward()
    assert y.tolist() == [2.0, 5.0, 6.0]
    assert w.grad.tolist() == [2.0, 0.0, 2.0]


def test_a_write_into_a_view_reaches_base_and_other_views():
    w = leaf(1.0, 2.0, 3.0)
    base = w * 1
    first, other = base[:2], base[1:]
    first.mul_(10)
    other.sum().backward(retain_graph=True)
    assert other.tolist() == [20.0, 3.0]
    assert w.grad.tolist() == [0.0, 10.0, 1.0]
    w.grad = None
    base.sum().backward()
    assert w.grad.tolist() == [10.0, 10.0, 1.0]


def test_a_write_into_the_base_reaches_its_views():
    w = leaf(1.0, 2.0)
    base = w * 1
    view = base[:1]
    base.mul_(base.detach() * 0 + 3)
    assert view.grad_fn.name() != "MulBackward0"
    view.sum().backward()
    assert w.grad.tolist() == [3.0, 0.0]


def test_a_write_into_a_view_of_a_view():
    w = lt.ones(2, 3, dtype=lt.float64, requires_grad=True)
    base = w * 1
    row = base[1]
    row[1:].mul_(4)
    row.transpose(0, 0).mul_(2)
    base.sum().backward()
    assert base.tolist() == [[1.0, 1.0, 1.0], [2.0, 8.0, 8.0]]
    assert w.grad.tolist() == [[1.0, 1.0, 1.0], [2.0, 8.0, 8.0]]


def test_a_write_into_a_transposed_view():
    w = lt.ones(2, 3, dtype=lt.float64, requires_grad=True)
    base = w * 1
    base.transpose(0, 1)[0].mul_(constant(5.0, 7.0))
    base.sum().backward()
    assert w.grad.tolist() == [[5.0, 1.0, 1.0], [7.0, 1.0, 1.0]]


def test_a_write_that_depends_on_a_leaf_makes_a_plain_base_require_grad():
    w = leaf(2.0)
    base = lt.ones(3, dtype=lt.float64)
    base[1:2].mul_(w)
    assert base.requires_grad
    base.sum().backward()
    assert w.grad.tolist() == [1.0]


def test_a_write_into_a_view_keeps_second_derivatives():
    x = leaf(2.0, 3.0)
    y = x * x
    y[0] = x[0] * x[0] * x[0]
    (g,) = lt.autograd.grad(y.sum(), x, create_graph=True)
    assert g.tolist() == [12.0, 6.0]
    (h,) = lt.autograd.grad(g.sum(), x)
    assert h.tolist() == [12.0, 2.0]


def test_a_saved_out_value_of_a_write_in_place():
    w = leaf(0.0, 1.0)
    y = w * 1
    y.exp_()
    y.sum().backward()
    assert w.grad.tolist() == pytest.approx([1.0, 2.718281828459045])


def test_a_loop_that_fills_a_buffer():
    w = leaf(2.0)
    buffer = lt.zeros(4, dtype=lt.float64)
    state = w
    for k in range(4):
        state = state * w
        buffer[k] = state.sum()
    buffer.sum().backward()
    assert buffer.tolist() == [4.0, 8.0, 16.0, 32.0]
    assert w.grad.tolist() == [4.0 + 12.0 + 32.0 + 80.0]


def test_a_write_under_no_grad_into_a_base_keeps_the_views_history():
    w = leaf(1.0, 2.0)
    base = w * 1
    view = base[:1]
    with lt.no_grad():
        base.mul_(3)
    view.sum().backward()
    assert w.grad.tolist() == [1.0, 0.0]


def test_detach_shares_memory_and_leaves_the_graph():
    w = leaf(1.0, 2.0)
    y = w * 1
    d = y.detach()
    assert not d.requires_grad
    d.mul_(3)
    assert y.tolist() == [3.0, 6.0]


def test_detach_in_place_cuts_the_history():
    y = leaf(1.0) * 2
    assert y.detach_() is y
    assert y.is_leaf
    assert not y.requires_grad


def test_detach_in_place_refuses_a_view():
    view = (leaf(1.0, 2.0) * 2)[:1]
    with pytest.raises(RuntimeError, match="Can't detach views in-place"):
        view.detach_()


def test_data_writes_without_history_but_not_unnoticed():
    w = leaf(1.0)
    w.data.add_(5)
    assert w.tolist() == [6.0]
    assert w.grad_fn is None


def test_replacing_data_between_forward_and_backward_differentiates_the_old_value():
    w = leaf(3.0)
    y = (w * w).sum()
    w.data = constant(100.0)
    y.backward()
    assert w.grad.tolist() == [6.0]


def test_a_view_remembers_its_base():
    base = lt.zeros(4)
    view = base[1:][1:]
    assert view._base is base
    assert base._base is None
    assert view._is_view()


# What is refused is refused before a byte is written


def test_a_no_grad_view_of_a_constant_refuses_an_operand_that_requires_grad_before_the_write():
    base = lt.zeros(4)
    with lt.no_grad():
        view = base[:2]
    with pytest.raises(RuntimeError, match="a view was created in no_grad mode"):
        view.add_(lt.ones(2, requires_grad=True))
    assert base.tolist() == [0.0, 0.0, 0.0, 0.0]
    assert base._version == 0
    view.add_(1)  # without a graph it is an ordinary write
    assert base.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_an_inference_operand_that_would_be_kept_is_refused_before_the_write():
    with lt.inference_mode():
        a = lt.full((3,), 2.0)
    y = lt.ones(3, requires_grad=True) * 2
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        y.mul_(a)
    assert y.tolist() == [2.0, 2.0, 2.0]
    assert y._version == 0


def test_a_pack_hook_that_fails_leaves_the_target_as_it_was():
    def fail(value: lt.Tensor) -> None:
        raise OSError("the disk is full")

    y = leaf(1.0, 2.0) * 2
    w = leaf(3.0, 3.0)
    with lt.autograd.graph.saved_tensors_hooks(fail, fail), pytest.raises(OSError, match="full"):
        y.mul_(w)
    assert y.tolist() == [2.0, 4.0]
    assert y._version == 0
    assert y.grad_fn.name() == "MulBackward0"


def test_a_write_that_finds_no_memory_changes_neither_bytes_nor_version():
    y = lt.ones(1000, dtype=lt.float32)
    other = lt.ones(1000, dtype=lt.float64)
    limit = lt.set_memory_limit(lt.memory_allocated("cpu") + 100, "cpu")
    try:
        with pytest.raises(lt.OutOfMemoryError):
            y.add_(other)  # computed in float64 first
    finally:
        lt.set_memory_limit(limit, "cpu")
    assert y._version == 0
    assert y.sum().item() == 1000


DEVICES = pytest.mark.parametrize("where", ["cpu", "sim"])


@DEVICES
@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[1:].add_(x[:-1]),
        lambda x: x[1:].copy_(x[:-1]),
        lambda x: x.view(2, 3).mul_(x[:3]),
        lambda x: x[:4].view(2, 2).add_(x[:4].view(2, 2).t()),
    ],
)
def test_an_operand_that_overlaps_the_target_in_part_is_refused(write, where):
    x = lt.arange(6.0, device=where)
    with pytest.raises(RuntimeError, match="refer to a single memory location.*clone"):
        write(x)
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert x._version == 0


@DEVICES
def test_an_operand_that_is_the_target_or_lies_beside_it_is_taken(where):
    x = lt.arange(6.0, device=where)
    x.add_(x)
    x.mul_(x.detach())
    x[:3].add_(x[3:])
    x[1:1].add_(x[2:2])
    grid = lt.arange(4.0, device=where).view(2, 2)
    grid[:, 0].add_(grid[:, 1])
    assert x.tolist() == [36.0, 68.0, 116.0, 36.0, 64.0, 100.0]
    assert grid.tolist() == [[1.0, 1.0], [5.0, 3.0]]


def test_one_value_may_be_written_into_an_expanded_tensor():
    x = lt.zeros(3, 1)
    x.expand(3, 4).fill_(2.0)
    assert x.tolist() == [[2.0], [2.0], [2.0]]
    x.expand(3, 4).zero_()
    assert x.sum().item() == 0
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        x.expand(3, 4).add_(1)


def test_a_copy_of_a_tensor_into_itself_is_no_write():
    x = lt.ones(3)
    assert x.copy_(x) is x
    assert x._version == 0
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.requires_grad_().copy_(x)


def test_a_composed_write_copies_its_target_only_for_a_graph():
    w = lt.zeros(1000, requires_grad=True)
    g = lt.ones(1000)
    with lt.no_grad():
        w.addcdiv_(g, g, value=1.0)
        lt.reset_peak_memory_stats("cpu")
        before = lt.memory_allocated("cpu")
        w.lerp_(g, 0.5)
        w.addcmul_(g, g, value=1.0)
        assert lt.max_memory_allocated("cpu") - before <= 2 * 4000
    y = (leaf(2.0) * 1.0).addcmul_(w_ := leaf(3.0), w_, value=2.0)
    y.sum().backward()
    assert w_.grad.tolist() == [12.0]


def test_a_view_with_a_history_of_a_base_without_one_is_not_written():
    w = leaf(1.0, 2.0)
    v = w[1:]
    w.requires_grad_(False)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        v.mul_(2)
    c = constant(1.0, 2.0)
    d = c[:].requires_grad_()
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        d[1:].mul_(2)
    assert w.tolist() == c.tolist() == [1.0, 2.0]


# Long chains of views


def calls_of(function, *args) -> int:
    """How many Python and C functions a call calls: its work, without a clock."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return count


def written_on_the_way(n, recorded):
    w = lt.ones(4, requires_grad=recorded)
    v = w * 1
    for _ in range(n):
        v = v[:]
        v.mul_(1.5)
    return v


def test_a_view_of_a_view_costs_one_link_however_deep_it_is():
    x = lt.ones(4)
    tracemalloc.start()
    try:
        views = [x]
        taken = []
        for _ in range(4):
            before = tracemalloc.get_traced_memory()[0]
            views.extend([None] * 500)  # the list's own growth beside the views'
            before = tracemalloc.get_traced_memory()[0]
            for k in range(len(views) - 500, len(views)):
                views[k] = views[k - 1][:]
            taken.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    assert max(taken[1:]) < 1.2 * min(taken[1:])


@pytest.mark.deep
def test_a_chain_of_300000_views_is_made_and_freed():
    x = lt.ones(4)
    v = x
    for _ in range(300_000):  # about a second; 13 minutes if each view copied its chain
        v = v.view(4)
    assert v._base is x
    v.add_(1)
    assert x.tolist() == [2.0] * 4
    gc.collect()
    del v  # no recursion: the links end one after another
    w = x.view(2, 2)
    for _ in range(50_000):
        w = w.t()
    x.zero_()
    assert not w.requires_grad
    assert w.sum().item() == 0


@pytest.mark.parametrize("recorded", [False, True])
def test_a_loop_of_views_each_written_does_work_that_grows_as_the_loop(recorded):
    written_on_the_way(50, recorded)
    once = calls_of(written_on_the_way, 200, recorded)
    thrice = calls_of(written_on_the_way, 600, recorded)
    assert thrice < 3.1 * once


def test_views_held_along_a_chain_are_refreshed_by_work_that_grows_as_their_number():
    def refreshed(n):
        base = v = leaf(1.0, 2.0) * 1
        held = [v := v[:] for _ in range(n)]
        base.mul_(3)
        assert all(x.grad_fn is not None for x in held)

    refreshed(50)
    assert calls_of(refreshed, 600) < 3.1 * calls_of(refreshed, 200)


def test_backward_of_a_loop_of_views_each_written_does_work_that_grows_as_the_loop():
    def pulled(n):
        loss = written_on_the_way(n, True).sum()
        return calls_of(loss.backward)

    pulled(50)
    assert pulled(600) < 3.1 * pulled(200)


def test_a_tensor_turned_in_place_a_thousand_times_keeps_one_base_and_its_gradient():
    w = lt.arange(6.0, dtype=lt.float64).view(2, 3).requires_grad_()
    x = w * 1
    for _ in range(1001):
        x.t_()
    assert x.shape == (3, 2)
    x.mul_(2)
    x[0].mul_(3)
    x.sum().backward()
    assert w.grad.tolist() == [[6.0, 2.0, 2.0], [6.0, 2.0, 2.0]]


def test_a_tensor_turned_in_place_under_no_grad_keeps_its_gradient():
    w = lt.arange(6.0, dtype=lt.float64).view(2, 3).requires_grad_()
    x = w * 2
    with lt.no_grad():
        x.t_()
    assert x.requires_grad
    (x * lt.arange(6.0, dtype=lt.float64).view(3, 2)).sum().backward()
    assert w.grad.tolist() == [[0.0, 4.0, 8.0], [2.0, 6.0, 10.0]]


DEEP = {
    "slices": lambda v: v[:],
    "turns": lambda v: v.t(),
    "shapes": lambda v: v.reshape(*v.shape[::-1]) if v.is_contiguous() else v.t(),
    "new dims": lambda v: v.unsqueeze(0)[0],
    "windows": lambda v: v.unfold(0, 1, 1)[..., 0],
    "strides": lambda v: v.as_strided(v.shape, v.stride(), v.storage_offset()),
}


@pytest.mark.parametrize("step", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("depth", [14, 16, 40])
def test_a_write_through_a_deep_view_has_the_gradients_of_a_shallow_one(step, depth):
    def gradients(times):
        w = lt.arange(24.0, dtype=lt.float64).view(6, 4).requires_grad_()
        f = lt.tensor([[2.0], [3.0], [5.0]], dtype=lt.float64).expand(3, 2).clone()
        f.requires_grad_()
        base = w * w
        v = base[1:4, 2:]
        for _ in range(times):
            v = step(v)
        other = base[2:, 1:]
        v.mul_(f if v.shape == f.shape else f.reshape(v.shape))
        loss = (base * base).sum() + (v * other.sum()).sum()
        first = lt.autograd.grad(loss, (w, f), create_graph=True)
        second = lt.autograd.grad(sum((g * g).sum() for g in first), (w, f))
        return [g.tolist() for g in (*first, *second)]

    assert gradients(depth) == gradients(2)  # the same view, reached by many steps or by two


def test_a_deep_view_that_was_bytes_of_another_type_on_the_way_stays_cut_off():
    base = leaf(1.0, 2.0) * 1
    v = base.view(lt.int64)
    for _ in range(40):
        v = v[:]
    v = v.view(lt.float64)
    same = base.view(lt.float64)
    for _ in range(40):
        same = same[:]
    base.mul_(2)
    assert not v.requires_grad
    assert not same.requires_grad


def test_a_deep_view_of_real_parts_gets_its_gradient():
    z = lt.tensor([1 + 2j, 3 - 1j], dtype=lt.complex128, requires_grad=True)
    base = z * 1
    v = lt.view_as_real(base)
    for _ in range(40):
        v = v[:]
    v.mul_(3)
    (base * base.conj()).real.sum().backward()
    assert z.grad.tolist() == [18 + 36j, 54 - 18j]


def test_a_deep_view_of_a_base_with_gaps_gets_its_gradient():
    w = lt.ones(2, 3, dtype=lt.float64, requires_grad=True)
    base = lt.empty_strided((2, 3), (1, 2), dtype=lt.float64).copy_(w)
    v = base[:, 1:]
    for _ in range(40):
        v = v[:]
    v.mul_(3)
    base.sum().backward()
    assert w.grad.tolist() == [[1.0, 3.0, 3.0]] * 2


def test_a_deep_view_of_a_base_that_begins_inside_its_storage_gets_its_gradient():
    w = lt.ones(4, dtype=lt.float64, requires_grad=True)
    base = lt.zeros(10, dtype=lt.float64)[6:].detach()
    assert base.storage_offset() == 6
    base.copy_(w)
    v = base[1:3]
    for _ in range(40):
        v = v[:]
    v.mul_(3)
    base.sum().backward()
    assert w.grad.tolist() == [1.0, 3.0, 3.0, 1.0]


def test_a_view_of_a_view_made_under_no_grad_is_refused_like_that():
    y = lt.ones(4, requires_grad=True) * 1
    with lt.no_grad():
        view = y.view(-1)
    with pytest.raises(RuntimeError, match="a view was created in no_grad mode"):
        view.view(2, 2).add_(1)
    assert y.tolist() == [1.0] * 4


def test_a_view_that_is_a_leaf_of_its_own_is_refused_as_one():
    y = lt.ones(4, requires_grad=True) * 1
    with lt.no_grad():
        view = y.view(-1)
    view.requires_grad_()
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        view.add_(1)
    assert y.tolist() == [1.0] * 4
