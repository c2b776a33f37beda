"""Private names of torch that libraries call, and classes with ``__torch_function__``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.as_torch.running import answers

SETUP = """
import lowtide.as_torch
import torch
from torch._utils import (
    ExceptionWrapper, _flatten_dense_tensors, _get_device_index, _take_tensors,
    _unflatten_dense_tensors,
)
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.rpc as rpc
import torch.distributed.tensor as plans
import torch.distributed.tensor.parallel as parallel
import torch.nn.utils.stateless
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.optim import optimizer
from torch.utils._contextlib import _DecoratorContextManager

F = torch.nn.functional
plain_add, plain_method = torch.add, torch.Tensor.__add__
xs = [torch.tensor([1.0, 4.0]), torch.tensor([[9.0]])]
values = lambda found: [t.tolist() for t in found]
prefixed = {"module.a": 1, "b": 2}
consume_prefix_in_state_dict_if_present(prefixed, "module.")


class entered(_DecoratorContextManager):
    depth = 0
    def __enter__(self):
        entered.depth += 1
    def __exit__(self, *exc):
        entered.depth -= 1


normed = torch.batch_norm(torch.ones(2, 2), None, None, None, None, True, 0.1, 1e-5, False)
cpu = torch.device("cpu")


def written(function, *args):
    ys = torch._foreach_clone(xs)
    assert function(ys, *args) is ys
    return values(ys)


@entered()
def depth():
    return entered.depth


def reraised():
    try:
        raise ValueError("mine")
    except ValueError:
        wrapper = ExceptionWrapper(where="in worker 1")
    wrapper.reraise()


class SGD(optimizer.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 1.0, "differentiable": False})
    @optimizer._use_grad_for_differentiable
    def step(self):
        return torch.is_grad_enabled()


class Diagonal:
    def __init__(self, values):
        self.values = values
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.matmul or func == torch.Tensor.matmul:
            a, b = args
            return a.values.unsqueeze(-1) * b if isinstance(a, Diagonal) else a * b.values
        if func == torch.cat:
            return "joined"
        return NotImplemented
    def __radd__(self, other):
        return "added"
    def __rmatmul__(self, other):
        return other * self.values

d, m = Diagonal(torch.tensor([2.0, 3.0])), torch.ones(2, 2)
c = torch.ones(1, 1, 3, 3)
"""

TRUE = """
values(torch._foreach_add(xs, 1)) == [[2.0, 5.0], [[10.0]]]
values(torch._foreach_add(xs, xs, alpha=2)) == [[3.0, 12.0], [[27.0]]]
values(torch._foreach_mul(xs, [2, 3])) == [[2.0, 8.0], [[27.0]]]
values(torch._foreach_mul(xs, torch.tensor(2.0))) == [[2.0, 8.0], [[18.0]]]
values(torch._foreach_sqrt(xs)) == [[1.0, 2.0], [[3.0]]]
values(torch._foreach_norm(xs, 1)) == [5.0, 9.0]
values(torch._foreach_maximum(xs, 3.0)) == [[3.0, 4.0], [[9.0]]]
values(torch._foreach_addcmul(xs, xs, xs, 0.5)) == [[1.5, 12.0], [[49.5]]]
values(torch._foreach_lerp(xs, torch._foreach_mul(xs, 0.0), 0.5)) == [[0.5, 2.0], [[4.5]]]
values(torch._foreach_pow(xs, 2)) == [[1.0, 16.0], [[81.0]]]
written(torch._foreach_add_, 1) == [[2.0, 5.0], [[10.0]]]
written(torch._foreach_zero_) == [[0.0, 0.0], [[0.0]]]
written(torch._foreach_copy_, [torch.ones(2), torch.zeros(1)]) == [[1.0, 1.0], [[0.0]]]
values(xs) == [[1.0, 4.0], [[9.0]]]
_flatten_dense_tensors(xs).tolist() == [1.0, 4.0, 9.0]
values(_unflatten_dense_tensors(torch.arange(3), xs)) == [[0, 1], [[2]]]
[len(g) for g in _take_tensors([torch.ones(4)] * 3 + [torch.ones(4).long()], 32)] == [2, 1, 1]
prefixed == {"a": 1, "b": 2}
depth() == 1 and entered.depth == 0
SGD([torch.ones(1, requires_grad=True)]).step() is False
_get_device_index("cuda:1") == 1
torch.embedding(torch.eye(3), torch.tensor([1])).tolist() == [[0.0, 1.0, 0.0]]
torch.equal(normed, F.batch_norm(torch.ones(2, 2), None, None, training=True))
torch.kl_div(m, m, 2).item() == F.kl_div(m, m, reduction="sum").item()
torch.frobenius_norm(m).item() == 2
[t.shape for t in torch.native_layer_norm(m, (2,), None, None, 1e-5)] == [(2, 2), (2, 1), (2, 1)]
torch.get_device_module("cpu") is torch.cpu
torch.sym_int(3.0) == 3 and not isinstance(3, torch.SymInt)
torch._C._nn._parse_to("cpu", torch.half, True) == (cpu, torch.half, True, None)
torch._C._nn._parse_to(torch.float64) == (None, torch.float64, False, None)
torch._C._nn.gelu is F.gelu
torch._VF.lstm is not None if hasattr(torch, "lstm") else torch._VF.add is not None
torch.jit._script_if_tracing(F.relu) is F.relu
torch.ops.mine.thing if hasattr(torch.ops.mine, "thing") else True
torch.add == plain_add and hash(torch.add) == hash(plain_add) and torch.add is not plain_add
torch.matmul(d, m).tolist() == [[2.0, 2.0], [3.0, 3.0]]
m.matmul(d).tolist() == [[2.0, 3.0], [2.0, 3.0]]
(m @ d).tolist() == [[2.0, 3.0], [2.0, 3.0]]
m + d == "added"
torch.cat([m, d]) == "joined"
(m + m).tolist() == [[2.0, 2.0], [2.0, 2.0]]
torch.add(m, m).tolist() == [[2.0, 2.0], [2.0, 2.0]]
torch.is_tensor(d) is False
str(plans.Shard(1)) == "S(1)" and plans.Shard(1).is_shard(1) and plans.Shard(1) == plans.Shard(1)
repr(plans.Partial()) == "Partial(sum)" and not plans.Partial().is_replicate()
parallel.ColwiseParallel().output_layouts == (plans.Shard(-1),)
parallel.PrepareModuleInput(input_layouts=None).use_local_output is None
isinstance(m, plans.DTensor) is False
isinstance(m, torch.distributed.fsdp.FullyShardedDataParallel) is False
not rpc.is_available() and not hasattr(rpc, "api")
torch.cuda.is_current_stream_capturing() is False
issubclass(torch.cuda.CUDAGraph, object) and issubclass(torch.Stream, object)
torch.nn.modules.conv.LazyConv2d is torch.nn.LazyConv2d
torch.nn.modules.batchnorm._BatchNorm in torch.nn.SyncBatchNorm.__mro__
torch.nn.utils.stateless.functional_call is torch.func.functional_call
torch.convolution(c, c, None, 1, 0, 1, False, 0, 1).item() == 9
torch.convolution(c, c, None, 1, 0, 1, True, 0, 1).sum().item() == 81
torch.dropout_(torch.ones(3), 0.5, False).tolist() == [1.0, 1.0, 1.0]
torch.rrelu(torch.tensor([-1.0]), 0.5, 0.5).item() == -0.5
""".strip().splitlines()

REFUSED = {
    "torch._foreach_add(xs, [1])": ("RuntimeError", "same number of tensors, got 2 and 1"),
    "torch._foreach_add([], 1)": ("RuntimeError", "must have at least one tensor"),
    "torch._foreach_add([1], 1)": ("TypeError", "takes a list of tensors; got a int"),
    "torch._foreach_add_(xs, [torch.ones(2), torch.ones(2)])": ("RuntimeError", "an equal shape"),
    "torch._foreach_mul_([torch.ones(1).long()], 0.5)": ("RuntimeError", "can't be cast"),
    "torch._assert(False, 'mine')": ("AssertionError", "mine"),
    "torch._check(False, lambda: 'mine')": ("RuntimeError", "mine"),
    "torch._check_value(False)": ("ValueError", "Expected cond to be True"),
    "_unflatten_dense_tensors(torch.arange(2), xs)": ("RuntimeError", "flat has 2 elements"),
    "_get_device_index('cpu')": ("ValueError", "Expected a torch.device"),
    "reraised()": ("ValueError", "Caught ValueError in worker 1"),
    "torch.set_default_tensor_type('torch.cuda.FloatTensor')": ("TypeError", "set_default_device"),
    "torch.ops.load_library('x.so')": ("OSError", "compiled against PyTorch"),
    "torch.ops.torchvision.nms": ("AttributeError", "torch.library.custom_op"),
    "torch.ops.aten.nonsense(1)": ("NotImplementedError", "torch.ops.aten.nonsense"),
    "torch._C.parse_schema('f()')": ("NotImplementedError", "docs/add_an_op.md"),
    "torch.export.export(None)": ("NotImplementedError", "torch.export.export"),
    "torch.ao.quantization.prepare(None)": ("NotImplementedError", "no quantized tensors"),
    "torch.distributed.fsdp.FullyShardedDataParallel(None)": (
        "NotImplementedError",
        "FullyShardedDataParallel is not there",
    ),
    "torch.distributed.checkpoint.DefaultSavePlanner()": (
        "NotImplementedError",
        "DefaultSavePlanner is not there",
    ),
    "plans.distribute_tensor(m, None)": ("NotImplementedError", "distribute_tensor is not there"),
    "parallel.RowwiseParallel()._apply(None, None)": ("NotImplementedError", "parallelize_module"),
    "torch.cuda.CUDAGraph()": ("NotImplementedError", "does not capture CUDA graphs"),
    "torch.rrelu(m, generator=torch.Generator())": ("NotImplementedError", "leave it out"),
    "torch.add(d, 1)": ("TypeError", "no implementation found for 'torch.add' on types that"),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return answers(SETUP, [*TRUE, *REFUSED, "values(xs) == [[1.0, 4.0], [[9.0]]]"])


@pytest.mark.parametrize("claim", TRUE)
def test_private_names_compute(found: dict[str, Any], claim: str) -> None:
    assert found[claim] is True


@pytest.mark.parametrize("call", REFUSED)
def test_wrong_calls_are_refused(found: dict[str, Any], call: str) -> None:
    kind, text = found[call]
    assert kind == REFUSED[call][0]
    assert REFUSED[call][1] in text


def test_nothing_looks_for_overrides_before_a_class_has_them() -> None:
    setup = """
    import builtins
    import lowtide.as_torch, torch
    watching = builtins.__build_class__
    class Plain: pass
    class Image(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs)
    same = builtins.__build_class__ is watching
    relu, add = torch.relu, torch.Tensor.add
    class Foreign:
        def __torch_function__(self): pass
    """
    questions = [
        "same",
        "type(relu).__name__",
        "builtins.__build_class__ is watching",
        "type(torch.relu).__name__",
        "torch.Tensor.add is add",
    ]
    found = answers(setup, questions)
    assert list(found.values()) == [True, "'function'", False, "'Overridable'", False]
