"""``Module.set_checkpointing``: each call in a region, through hooks, copies and pickles."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.checkpointing import everything, pack, policy, save_matmuls, verify
from tests.checkpointing.nets import Block, conv_net, gpt


def kept(model: nn.Module, x: lt.Tensor) -> int:
    before = lt.memory_allocated(x.device)
    y = model(x)
    return lt.memory_allocated(x.device) - before - y.nbytes


@pytest.fixture
def block() -> tuple[nn.Module, lt.Tensor]:
    with lt.device("meta"):
        return Block(), lt.randn(2, 8, 32)


def test_a_module_keeps_what_its_policy_says(block: Any) -> None:
    model, x = block
    plain = kept(model, x)
    assert model.set_checkpointing() is model
    assert kept(model, x) == 0
    model.set_checkpointing(save_matmuls)
    products = kept(model, x)
    assert 0 < products < plain
    model.set_checkpointing(policy({"module:mlp.0": "save"}))
    assert kept(model, x) == 4 * x.nbytes
    with lt.profiling.MemoryProfiler():
        assert kept(model, x) == 4 * x.nbytes
    model.set_checkpointing(enabled=False)
    assert kept(model, x) == plain


def test_paths_begin_at_the_module_wherever_it_stands(block: Any) -> None:
    outer = nn.Sequential(block[0].set_checkpointing(policy({"module:mlp.0": "save"})))
    wrong = nn.Sequential(block[0])
    size = block[1].nbytes
    assert kept(outer, block[1]) == 4 * size
    with lt.profiling.MemoryProfiler():
        assert kept(outer, block[1]) == 4 * size
    block[0].set_checkpointing(policy({"module:0.mlp.0": "save"}))
    assert kept(wrong, block[1]) == 0
    with lt.profiling.MemoryProfiler():
        assert kept(wrong, block[1]) == 0


@pytest.mark.parametrize("net", [gpt, conv_net])
def test_gradients_are_those_of_the_plain_module(net: Any) -> None:
    model, x = net()
    other = copy.deepcopy(model)
    for child in other:
        child.set_checkpointing()
    found = []
    for each in (model, other):
        lt.manual_seed(5)
        for _ in range(3):
            each(x).square().mean().backward()
        state = [t.tolist() for t in (*each.buffers(), *[p.grad for p in each.parameters()])]
        found.append((state, lt.get_rng_state().tolist()))
    assert found[0] == found[1]
    assert verify(other, x).equal


def test_the_fast_path_comes_back() -> None:
    model = nn.Linear(2, 2)
    assert model._call_hooks is None
    model.set_checkpointing(enabled=False)
    assert model._call_hooks is None
    model.set_checkpointing().set_checkpointing(everything)
    assert model._call_hooks is not None
    model.set_checkpointing(enabled=False)
    assert model._call_hooks is None
    assert "_call_hooks" not in vars(model)


def test_hooks_and_the_region_leave_each_other_alone() -> None:
    seen = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).set_checkpointing()
    first = model.register_forward_hook(lambda m, args, out: seen.append("forward"))
    second = model.register_forward_pre_hook(lambda m, args: seen.append("before"))
    third = model.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
    x = lt.randn(2, 4, requires_grad=True)
    before = lt.memory_allocated()
    y = model(x)
    assert lt.memory_allocated() - before == y.nbytes
    y.sum().backward()
    assert seen == ["before", "forward", "backward"]
    for hook in (first, second, third):
        hook.remove()
    assert model._call_hooks is not None
    model.set_checkpointing(enabled=False)
    assert model._call_hooks is None
    hook = model.register_forward_hook(lambda m, args, out: seen.append("again"))
    model.set_checkpointing().set_checkpointing(enabled=False)
    model(x)
    assert seen[-1] == "again"
    hook.remove()
    assert model._call_hooks is None


def test_hooks_of_every_module_do_not_end_it() -> None:
    model = nn.Tanh().set_checkpointing()
    x = lt.randn(100, requires_grad=True)
    seen = []
    with nn.modules.module.register_module_forward_hook(lambda m, a, o: seen.append(m)):
        y = (model(x) * 1).sum()
    assert seen == [model]
    assert kept(lambda x: (model(x) * 1).sum(), x) == 0  # type: ignore[arg-type]
    y.backward()


@pytest.mark.parametrize("through", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_have_it_too(through: Any, block: Any) -> None:
    model = through(nn.Sequential(block[0].set_checkpointing(pack("bfloat16"))))
    assert kept(model, block[1]) == kept(nn.Sequential(block[0]), block[1]) > 0
    model[0].set_checkpointing(enabled=False)
    assert model[0]._call_hooks is None
    assert block[0]._call_hooks is not None


def test_where_no_graph_is_recorded_nothing_changes() -> None:
    model = nn.Linear(4, 4).set_checkpointing()
    with lt.no_grad():
        y = model(lt.ones(2, 4))
    assert y.grad_fn is None
    with lt.inference_mode():
        assert model(lt.ones(2, 4)).is_inference()


def test_a_call_that_raises_closes_its_region() -> None:
    class Broken(nn.Module):
        def forward(self, x: lt.Tensor) -> lt.Tensor:
            raise KeyError("inside")

    model = Broken().set_checkpointing(policy({"module:x": "save"}))
    for _ in range(2):
        with pytest.raises(KeyError, match="inside"):
            model(lt.ones(1))
    x = lt.ones(10, requires_grad=True)
    y = x.exp()
    assert y.grad_fn.saved[0].held_bytes == 40
    assert not lt.framework.attribution.scopes.listening()


def test_a_module_may_call_itself() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(lt.ones(3))

        def forward(self, x: lt.Tensor, depth: int = 2) -> lt.Tensor:
            return self(x * self.w, depth - 1).exp() if depth else x.sin()

    model = Twice()
    x = lt.randn(3)
    model(x).sum().backward()
    expected, model.w.grad = model.w.grad.tolist(), None
    model.set_checkpointing()
    model(x).sum().backward()
    assert model.w.grad.tolist() == expected


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(TypeError, match="a policy is called with each value; got str"):
        nn.Linear(2, 2).set_checkpointing("save")


def test_modules_that_are_never_called_are_refused() -> None:
    blocks = [nn.Linear(2, 2), nn.Linear(2, 2)]
    for container in (nn.ModuleList(blocks), nn.ModuleDict({"a": blocks[0]})):
        with pytest.raises(TypeError, match="is never called, so this would change nothing"):
            container.set_checkpointing()
        container.set_checkpointing(enabled=False)
    own = nn.Module()
    own.forward = lambda x: x.exp().sin()  # type: ignore[method-assign]
    own.set_checkpointing()
    x = lt.ones(1000, requires_grad=True)
    before = lt.memory_allocated()
    y = own(x)
    assert lt.memory_allocated() - before == y.nbytes


def test_false_in_place_of_a_policy_ends_it() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), lt.ones(8, 4)

    def kept() -> int:
        before = lt.memory_allocated()
        y = net(x)
        return lt.memory_allocated() - before - y.nbytes

    plain = kept()
    assert net.set_checkpointing(True) is net
    assert kept() < plain
    assert net.set_checkpointing(False) is net
    assert kept() == plain
