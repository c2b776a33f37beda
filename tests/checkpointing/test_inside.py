"""What may go on inside a region: modes, autocast, other devices, hooks."""

from __future__ import annotations

from functools import partial

import pytest

import lowtide as lt
from lowtide import nn
from tests.checkpointing.twice import assert_same, gradients, live, message_of, plain

pytestmark = pytest.mark.usefixtures("leak_check")


def leaf(*shape):
    return lt.randn(*shape, requires_grad=True)


def test_no_grad_and_enable_grad_inside():
    def f(x, w):
        with lt.no_grad():
            scale = (x @ w).exp().sum(-1, keepdim=True)
            with lt.enable_grad():
                h = (x @ w).tanh()
        return h / scale * h.detach().cos()

    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)
        y = region(f, x, w)
        return y, gradients(y, x, w)

    assert_same(step)


def test_inference_mode_inside():
    def f(x):
        with lt.inference_mode():
            shift = x.exp().sum()
        return (x * 2 + shift).exp()

    def step(region):
        x = leaf(3, 4)
        y = region(f, x)
        return y, gradients(y, x)

    assert_same(step)

    def wrong(x):
        with lt.inference_mode():
            scale = x.exp()
        return x * scale

    for region in (plain, lt.checkpoint):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
            region(wrong, leaf(2))


@pytest.mark.parametrize("around", [False, True])
def test_autocast_inside_and_around(around):
    def f(x, layer):
        with lt.autocast("cpu", lt.bfloat16, enabled=not around):
            return layer(layer(x).relu()).softmax(-1)

    def step(region):
        x, layer = leaf(3, 4), nn.Linear(4, 4)
        with lt.autocast("cpu", lt.bfloat16, enabled=around):
            y = region(f, x, layer)
            y = region(f, y, layer)
        return y, gradients(y.float(), x, *layer.parameters())

    assert_same(step)


def test_several_devices():
    def step(region):
        x, w = leaf(3, 4), leaf(4, 4)

        def f(x, w):
            h = (x @ w).tanh().to("sim")
            h = (h * h.exp()).to("cpu")
            return (h * x[:, :1]).sin().exp()

        y = region(f, x, w)
        z = region(lambda v: v.to("sim").exp() * 2, y)
        return y, gradients(z.cpu(), x, w)

    assert_same(step)
    x = leaf(100)
    before = live(), live("sim")
    y = lt.checkpoint(lambda x: x.exp().to("sim").sin().exp(), x)
    assert (live() - before[0], live("sim") - before[1]) == (0, 400)
    y.sum().backward()


def test_hooks_of_values_nodes_and_modules():
    seen = []

    def step(region):
        seen.clear()
        x, layer = leaf(3, 4), nn.Linear(4, 4)
        layer.register_forward_hook(lambda m, a, out: out.sin())
        layer.register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,))

        def f(x):
            h = layer(x.exp())
            h.register_hook(lambda g: g * 2)
            out = h.exp()
            out.grad_fn.register_prehook(lambda g: seen.append(len(g)))
            return out

        y = region(f, x)
        return gradients(y, x, *layer.parameters()), list(seen)

    assert_same(step)


def test_saved_tensors_hooks_inside_a_region_take_what_is_saved_there():
    packed = []

    def pack(t):
        packed.append(tuple(t.shape))
        return t * 1

    def f(x):
        h = x.exp()
        with lt.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            h = h * h.sin()
        return h.exp()

    def step(region):
        packed.clear()
        x = leaf(3)
        return gradients(region(f, x), x), list(packed)

    assert_same(step)


@pytest.mark.parametrize("retain", [False, True])
def test_saved_tensors_hooks_around_regions_take_what_the_regions_keep(retain):
    packed, unpacked = [], []

    def pack(t):
        packed.append(tuple(t.shape))
        return (t * 1).tolist()

    def unpack(numbers):
        unpacked.append(len(numbers))
        return lt.tensor(numbers)

    def f(h):
        return (h.sin() @ h.t()[:, 1:]).exp()

    def step(region):
        x = leaf(4, 5)
        with lt.autograd.graph.saved_tensors_hooks(pack, unpack):
            h = region(lambda x: x * 2, x)
            h = region(f, h[1:])  # a view: its storage is packed, once
            h = region(lambda h: h[:, :2].cos() * h[:, :2], h)
        packed_before, before = len(packed), live()
        h.sum().backward(retain_graph=retain)
        if retain:
            h.sum().backward()
        assert len(packed) == packed_before
        assert live() <= before + 2 * x.nbytes
        return [x.grad]

    assert_same(step)
    del packed[:], unpacked[:]
    step(lt.checkpoint)
    assert packed == [(20,), (3, 2)]
    assert unpacked == [3, 20] * (1 + retain)


def test_a_hook_around_a_region_may_keep_the_value_itself_but_nobody_may_write_it():
    h = leaf(3) * 2

    def through(pack):
        with lt.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            return lt.checkpoint(lambda h: h.exp().sin(), h)

    y = through(lambda t: t)
    message = message_of(lambda: through(lambda t: t.mul_(2)), RuntimeError)
    assert "pack hook is modifying its input in place" in message
    message = message_of(lambda: y.sum().backward(), RuntimeError)
    assert "modified by an inplace operation (mul_ at " in message


def test_what_a_hook_around_a_region_unpacks_must_fit():
    with lt.autograd.graph.saved_tensors_hooks(lambda t: 0, lambda _: lt.ones(2)):
        y = lt.checkpoint(lambda h: h.exp().sin(), leaf(3) * 2)
    message = message_of(lambda: y.sum().backward(), RuntimeError)
    assert message.startswith("The unpack hook must return the tensor of shape (3,)")


def test_a_stash_of_the_users_may_call_ops():
    class Doubled(lt.checkpointing.Stash):
        def stash(self, tensor):
            return UncopiedStorage(tensor.double())

    class UncopiedStorage:
        def __init__(self, tensor):
            self.tensor = tensor
            self.nbytes = tensor.nbytes

        def restore(self):
            return self.tensor.float()._storage

    def step(region):
        x = leaf(3)
        if region is lt.checkpoint:
            region = partial(lt.checkpoint, policy=Doubled())
        y = region(lambda x: x.exp().sin().exp() * lt.rand(3), x)
        return y, gradients(y, x)

    assert_same(step)
