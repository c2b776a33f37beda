"""The proof tool: it finds what differs, says where, and leaves everything as it was."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.checkpointing import Stash, pack, verify
from lowtide.framework.checkpointing.stash import UncopiedStorage
from tests.checkpointing.nets import conv_net, gpt

LAYER = nn.Linear(4, 4)  # a function may reach what it uses through its globals


class Spoiled(Stash):
    """Loses: one element of each value comes back as zero."""

    def stash(self, tensor: lt.Tensor) -> Any:
        """Keep a copy with a fault."""
        copy = tensor.detach().clone()
        copy.view(-1)[1] = 0.0
        return UncopiedStorage(copy._storage)


def test_an_honest_net_is_equal_in_all_there_is() -> None:
    model, x = conv_net()
    report = verify(model, x)
    buffers = [f"buffer {n}" for n, _ in model.named_buffers()]
    expected = [
        "output",
        *[f"gradient of {n}" for n, _ in model.named_parameters()],
        *buffers,
        *[f"value of {n}" for n, _ in model.named_parameters()],
    ]
    assert report.compared[: len(expected)] == tuple(expected)
    assert any(n.startswith("generator 0 of cpu") for n in report.compared)
    assert report.equal
    assert report.gradient_error == 0.0
    assert "values equal bit for bit; peak " in str(report)


def test_everything_is_as_it_was_before() -> None:
    model, x = conv_net()
    x.requires_grad_()
    x.grad = lt.ones_like(x)
    weight = next(iter(model.parameters()))
    weight.grad = lt.full_like(weight, 2)
    versions = [p._version for p in model.parameters()]
    before = {k: v.tolist() for k, v in model.state_dict().items()}
    random, live, peak = lt.get_rng_state().tolist(), lt.memory_allocated(), 10**9
    ledger = lt.framework.devices.backend(lt.device("cpu")).ledger
    ledger.peak = peak
    verify(model, x)
    assert ledger.peak == peak
    ledger.reset_peak()
    assert {k: v.tolist() for k, v in model.state_dict().items()} == before
    assert lt.get_rng_state().tolist() == random
    assert lt.memory_allocated() == live
    assert x.grad.tolist() == lt.ones_like(x).tolist()
    assert weight.grad.tolist() == lt.full_like(weight, 2).tolist()
    assert [p._version for p in model.parameters()] == versions


def test_the_first_difference_is_named() -> None:
    x = lt.randn(3, 4, requires_grad=True)

    def f(x: lt.Tensor) -> Any:
        return {"a": x.exp().sum(), "b": [x * 2]}

    with pytest.raises(
        lt.CheckpointError,
        match=r"changed 1 of \d+ values, first gradient of args\[0\] \(shape \(3, 4\)\) differs "
        r"in 1 of 12 elements, by .* first at \(0, 1\)",
    ):
        verify(f, x, policy=Spoiled())
    report = verify(f, x, policy=Spoiled(), strict=False)
    (found,) = report.differences
    assert found.name == "gradient of args[0]"
    lost = math.exp(x.detach()[0, 1].item())
    assert found.error == pytest.approx(lost, rel=1e-5)
    assert report.gradient_error == pytest.approx(lost / report.gradient_norm, rel=1e-5)
    assert not report.equal
    assert report.compared[:3] == ("output['a']", "output['b'][0]", "gradient of args[0]")


def test_memory_of_both_runs_is_told() -> None:
    x = lt.zeros(1000, device="meta", requires_grad=True)

    def f(x: lt.Tensor) -> lt.Tensor:
        for _ in range(5):
            x = x.exp()
        return x.sum()

    report = verify(f, x)
    assert report.plain.saved_bytes == 5 * 4000
    assert report.checkpointed.saved_bytes == 4000  # what flowed in
    assert verify(f, x, policy=pack("bfloat16"), strict=False).checkpointed.saved_bytes == 5 * 2000
    # A copy of x; then, plain, five results, of which the last needs none besides.
    assert report.plain.peak_bytes >= report.checkpointed.peak_bytes >= 6 * 4000


def through_globals(x: lt.Tensor) -> lt.Tensor:
    return LAYER(x).exp()


def test_parameters_are_found_wherever_a_function_has_them() -> None:
    inner = nn.Linear(4, 4)
    free = lt.randn(4, requires_grad=True)
    x = lt.randn(2, 4)

    class Holder:
        def __init__(self) -> None:
            self.named_parameters = inner.named_parameters
            self.named_buffers = inner.named_buffers

        def call(self, x: lt.Tensor) -> lt.Tensor:
            return inner(x).exp()

    def closure(x: lt.Tensor, scale: Any = None) -> lt.Tensor:
        return inner(x) * free

    forms: list[tuple[Any, set[str]]] = [
        (inner, {"weight", "bias"}),
        (inner.forward, {"weight", "bias"}),
        (Holder().call, {"weight", "bias"}),
        (closure, {"inner.weight", "inner.bias", "free"}),
        (functools.partial(closure, scale=[free]), {"inner.weight", "inner.bias", "free"}),
        (through_globals, {"LAYER.weight", "LAYER.bias"}),
    ]
    for function, names in forms:
        report = verify(function, x)
        found = {n.removeprefix("gradient of ") for n in report.compared if n.startswith("grad")}
        assert found == names, function


def test_generators_of_the_program_begin_alike() -> None:
    generator = lt.Generator().manual_seed(7)
    generator.draw(5)
    state = generator.get_state().tolist()

    def f(x: lt.Tensor) -> lt.Tensor:
        return (x * lt.rand(4, generator=generator)).exp()

    assert verify(f, lt.randn(4, requires_grad=True)).equal
    assert generator.get_state().tolist() == state


def test_a_function_that_differs_from_call_to_call_is_found() -> None:
    calls = []

    def f(x: lt.Tensor) -> lt.Tensor:
        calls.append(1)
        return x * len(calls)

    with pytest.raises(lt.CheckpointError, match="must do the same when called twice"):
        verify(f, lt.ones(3))

    def g(x: lt.Tensor) -> lt.Tensor:
        calls.append(1)
        return x.sum() if len(calls) % 2 else x

    report = verify(g, lt.ones(3), strict=False)
    assert "has shape" in report.differences[0].what


def test_nan_equals_itself_and_zeros_have_signs() -> None:
    assert verify(lambda x: x * math.nan, lt.ones(2, requires_grad=True)).equal
    signs = [0.0, -0.0]
    report = verify(lambda x: x * signs.pop(), lt.ones(2), strict=False)
    assert [d.name for d in report.differences] == ["output"]


def test_keyword_tensors_nested_arguments_and_none() -> None:
    x, y = (lt.randn(3, requires_grad=True) for _ in range(2))

    def f(pair: Any, *, other: Any, flag: bool) -> Any:
        assert flag
        assert pair["x"] is other[1]  # one tensor stays one
        return pair["x"].exp() * other[0].sin(), None

    report = verify(f, {"x": x}, other=[y, x], flag=True)
    assert report.equal
    names = {n for n in report.compared if n.startswith("gradient")}
    assert names == {"gradient of args[0]['x']", "gradient of other[0]"}


def test_without_gradients_results_are_compared() -> None:
    report = verify(lambda x: x + 1, lt.arange(3))
    assert report.equal
    assert report.compared[0] == "output"
    model, x = gpt()
    with lt.no_grad():
        assert verify(model, x).equal


def test_dataclasses_named_tuples_and_mappings_are_looked_into() -> None:
    @dataclasses.dataclass(frozen=True)
    class Batch:
        x: Any
        size: int

    Pair = collections.namedtuple("Pair", "first second")
    first, second = (lt.randn(3, requires_grad=True) for _ in range(2))

    def f(batch: Batch, pair: Any) -> Any:
        assert isinstance(pair, Pair)
        assert isinstance(batch, Batch)
        assert batch.size == 3
        pair.second.detach().mul_(2)  # of a copy
        out = batch.x.exp() * pair.second
        return Batch(out, 3), collections.OrderedDict(y=Pair(out.sin(), None))

    before = second.tolist()
    report = verify(f, Batch(first, 3), Pair(first, second))
    assert report.compared[:4] == (
        "output[0].x",
        "output[1]['y'][0]",
        "gradient of args[0].x",
        "gradient of args[1][1]",
    )
    assert second.tolist() == before


def test_a_function_that_returns_no_tensor_is_refused() -> None:
    for result in (None, 3, object()):
        with pytest.raises(TypeError, match=f"in {type(result).__name__} it found none"):
            verify(lambda x, result=result: result, lt.ones(3))
