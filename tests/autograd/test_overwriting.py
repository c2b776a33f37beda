"""A gradient is written over a value that nothing else can see, and over no other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.autograd import node, overwriting
from lowtide.framework.devices import backend
from lowtide.framework.dtypes import bfloat16, float32, float64
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.ops import rules
from lowtide.framework.ops.convolution import routes
from lowtide.framework.ops.overwrite import write_over
from lowtide.framework.ops.registry import OPS, Op
from lowtide.framework.tensor import Tensor
from lowtide.nn import functional as F
from tests.ops.test_compiled_entries import SMALL, chosen_by, converted
from tests.samples import fresh_start

OVER = sorted(n for n, op in OPS.items() if any(k.overwrites for k in op.kernels) or op.one_write)
WITH_ROOM = sorted(n for n, op in OPS.items() if any(r.room for r in op.rules))
# Ops whose samples cannot be scaled; those in LAYERS are larger.
ONE_SIZE = {"_batch_norm", "_conv", "_cross_entropy", "_cross_entropy_grad", "_group_norm", "_gru"}
ONE_SIZE |= {"_gru_grad", "_instance_norm", "_layer_norm", "_lstm", "_lstm_grad", "_norm_grad"}
ONE_SIZE |= {"_rms_norm"}
LARGE = 1 << 15  # elements, each of which takes 4 bytes: a value worth the question


def bits(x: Any) -> bytes:
    return x.detach().numpy().tobytes() if isinstance(x, Tensor) else b""


def sampled(op: Op, dtype: lt.dtype, scale: int) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    for given, named in testing.samples(op, testing.Make(dtype, scale=scale)):
        inputs = testing.place(tuple(converted(x, dtype) for x in given), "cpu", op)
        inputs = [x.detach() if isinstance(x, Tensor) else x for x in inputs]
        yield inputs, {k: converted(v, dtype) for k, v in named.items()}


# Kernels


@pytest.mark.quick(15)
@pytest.mark.parametrize("name", OVER)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda d: d.name)
def test_a_kernel_writes_over_an_input_what_it_writes_elsewhere(name: str, dtype: Any) -> None:
    op, done = OPS[name], 0
    kernels = [k for k in op.kernels if k.device == "cpu"]
    for scale in (1,) if name in ONE_SIZE else (1, 7, 12):
        for inputs, attributes in sampled(op, dtype, scale):
            with chosen_by(op, SMALL, kernels), fresh_start():
                apart = testing.call(op, inputs, attributes)
                for k, x in enumerate(inputs):
                    if not isinstance(x, Tensor) or x._spec is not apart[0]._spec:
                        continue
                    here = [x.clone() if isinstance(x, Tensor) else x for x in inputs]
                    found = write_over(here[k], op.function, *here, **attributes)
                    found = found if isinstance(found, tuple) else (found,)
                    done += found[0]._storage is here[k]._storage
                    assert [*map(bits, found)] == [*map(bits, apart)], (k, attributes)
    assert done or (dtype is bfloat16 and not any(k.dtypes == "half" for k in kernels))


# Rules


@contextmanager
def rooms_from(op: Op, least: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "LEAST_ROOM", least)
        with chosen_by(op, SMALL, [k for k in op.kernels if k.device == "cpu"]):
            yield


def gradients(op: Op, inputs: list[Any], attributes: dict[str, Any], least: int) -> list[Any]:
    # Of all that requires grad; between the leaves and the op nothing is held.
    leaves = [
        x.clone().requires_grad_(x.dtype.is_differentiable) if isinstance(x, Tensor) else x
        for x in inputs
    ]
    ruled = {n for rule in op.rules for n in rule.inputs}
    for n, x in zip(op.names_of(len(leaves)), leaves, strict=True):
        if isinstance(x, Tensor) and n not in ruled:
            x.requires_grad_(False)
    with rooms_from(op, least), fresh_start():
        passed = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        results = list(testing.call(op, passed, attributes))
        del passed
        random = np.random.default_rng(0)
        total: Any = 0
        while results:
            r = results.pop()
            if r.requires_grad:
                weights = lt.tensor(random.standard_normal(tuple(r.shape)), dtype=r.dtype)
                total = total + (r * weights).sum()
            del r
        if not isinstance(total, Tensor) or not total.requires_grad:
            return []
        total.backward()
    return [x.grad if isinstance(x, Tensor) else None for x in leaves]


@pytest.mark.quick(15)
@pytest.mark.parametrize("name", WITH_ROOM)
@pytest.mark.parametrize("dtype", [float32, float64, bfloat16], ids=lambda d: d.name)
def test_gradients_are_the_same_bits_with_room_and_without(name: str, dtype: lt.dtype) -> None:
    op = OPS[name]
    for scale in (1,) if name in ONE_SIZE else (1, 9):
        for inputs, attributes in sampled(op, dtype, scale):
            written = gradients(op, inputs, attributes, 1)
            apart = gradients(op, inputs, attributes, 1 << 60)
            assert [*map(bits, written)] == [*map(bits, apart)], attributes


def _after(module: Any, shape: tuple[int, ...]) -> Any:
    return lambda x: module(x), shape


def _first(module: Any, shape: tuple[int, ...]) -> Any:
    return lambda x: module(x)[0], shape


def _classified(shape: tuple[int, ...], **options: Any) -> Any:
    def loss(x: Any) -> Any:
        target = lt.randint(0, shape[1], (shape[0], *shape[2:]))
        target.view(-1)[::7] = -100
        weight = lt.rand(shape[1], dtype=x.dtype) if options.get("weighted") else None
        smoothing = options.get("label_smoothing", 0.0)
        return F.cross_entropy(x, target, weight, label_smoothing=smoothing)

    return loss, shape


LAYERS: dict[str, Callable[[], Any]] = {
    "linear": lambda: _after(lt.nn.Linear(70, 50), (9, 33, 70)),
    "conv": lambda: _after(lt.nn.Conv2d(8, 16, 3, padding=1), (3, 8, 17, 19)),
    "depthwise": lambda: _after(lt.nn.Conv2d(8, 8, 3, padding=1, groups=8), (3, 8, 17, 19)),
    "strided": lambda: _after(lt.nn.Conv2d(8, 16, 3, stride=2), (3, 8, 17, 19)),
    "1x1": lambda: _after(lt.nn.Conv2d(8, 16, 1), (3, 8, 17, 19)),
    "layer_norm": lambda: _after(lt.nn.LayerNorm(67), (41, 67)),
    "plain_layer_norm": lambda: _after(lt.nn.LayerNorm(67, elementwise_affine=False), (41, 67)),
    "rms_norm": lambda: _after(lt.nn.RMSNorm(67), (41, 67)),
    "batch_norm": lambda: _after(lt.nn.BatchNorm2d(12), (5, 12, 9, 11)),
    "batch_norm_1d": lambda: _after(lt.nn.BatchNorm1d(130), (37, 130)),
    "group_norm": lambda: _after(lt.nn.GroupNorm(3, 12), (5, 12, 9, 11)),
    "instance_norm": lambda: _after(lt.nn.InstanceNorm2d(12, affine=True), (5, 12, 9, 11)),
    "lstm": lambda: _first(lt.nn.LSTM(20, 36, 2, bidirectional=True), (7, 19, 20)),
    "projected_lstm": lambda: _first(lt.nn.LSTM(20, 36, proj_size=10), (7, 19, 20)),
    "gru": lambda: _first(lt.nn.GRU(20, 36, 2, bidirectional=True), (7, 19, 20)),
    "rnn": lambda: _first(lt.nn.RNN(20, 36, 2), (7, 19, 20)),
    "softmax": lambda: _after(lt.nn.Softmax(-1), (31, 77)),
    "softmax_along": lambda: _after(lt.nn.Softmax(1), (5, 31, 77)),
    "log_softmax": lambda: _after(lt.nn.LogSoftmax(-1), (31, 77)),
    "log_softmax_along": lambda: _after(lt.nn.LogSoftmax(1), (5, 31, 77)),
    "cross_entropy": lambda: _classified((83, 61)),
    "smoothed": lambda: _classified((83, 61), label_smoothing=0.1),
    "weighted": lambda: _classified((83, 61), label_smoothing=0.1, weighted=True),
    "planes": lambda: _classified((3, 21, 43), label_smoothing=0.1),
    "weighted_planes": lambda: _classified((3, 21, 43), label_smoothing=0.1, weighted=True),
}


@pytest.mark.parametrize("dtype", [float32, bfloat16, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_have_the_same_gradients_with_room_and_without(layer: str, dtype: Any) -> None:
    def run(least: int) -> tuple[list[bytes], int]:
        lt.manual_seed(3)
        function, shape = LAYERS[layer]()
        cells = function.__closure__ or ()
        parameters: list[Any] = []
        for cell in cells:
            if isinstance(cell.cell_contents, lt.nn.Module):
                cell.cell_contents.to(dtype)
                parameters += cell.cell_contents.parameters()
        x = lt.randn(*shape).to(dtype).requires_grad_()
        written = []

        def found(values: Any, candidates: Any) -> Any:
            room = overwriting.find_room(values, candidates)
            written.append(room is not None)
            return room

        with pytest.MonkeyPatch.context() as patch:
            for name, value in SMALL.items():
                patch.setattr(thresholds, name, value)
            patch.setattr(rules, "LEAST_ROOM", least)
            patch.setattr(node, "find_room", found)
            for op in OPS.values():
                patch.setattr(op, "plans", {})
            routes.route.cache_clear()
            y = function(x * 1)
            (y * lt.randn_like(y)).sum().backward()
        routes.route.cache_clear()
        return [bits(x.grad), *(bits(p.grad) for p in parameters)], sum(written)

    with_room, count = run(1)
    without, none = run(1 << 60)
    assert with_room == without
    assert count > none == 0


# What is written, and what is not


def peak_of(step: Callable[[], Any], device: str = "cpu") -> int:
    """Bytes above what lived before, at the highest."""
    gc.collect()
    ledger = backend(lt.device(device)).ledger
    before = ledger.live
    ledger.peak = before
    kept = step()
    found = ledger.peak - before
    del kept
    return int(found)


class Step:
    """A step of ``activation(x * 1)`` whose saved value and gradient nothing else holds."""

    def __init__(self, function: Callable[[Any], Any], device: str = "cpu") -> None:
        self.function = function
        self.x = lt.ones(LARGE, device=device, requires_grad=True)
        self.held: list[Any] = []

    def forward(self, hold: Callable[[Any], Any] = lambda h: None) -> Any:
        h = self.x * 1
        self.held.append(hold(h))
        return self.function(h).sum()

    def __call__(self, hold: Callable[[Any], Any] = lambda h: None, **options: Any) -> None:
        self.forward(hold).backward(**options)


# A sum's gradient is one number repeated: the room is the saved value.
BLOCK = 4 * LARGE


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_backward_needs_no_memory_where_nothing_else_sees_the_value(device: str) -> None:
    step = Step(F.gelu, device)
    assert peak_of(step.forward(lambda h: None).backward, device) == 4  # the gradient of the sum
    step = Step(F.gelu, device)
    assert peak_of(step.forward(lambda h: h).backward, device) == BLOCK + 4


HOLDERS = {
    "the tensor": lambda h: h,
    "its detached twin": lambda h: h.detach(),
    "a view": lambda h: h[3:7],
    "a view of a view": lambda h: h.view(2, -1)[1],
    "its data": lambda h: h.data,
    "its array": lambda h: h.detach().numpy(),
    "a slice of its array": lambda h: h.detach().numpy()[5:9],
    "its bytes": lambda h: memoryview(h.detach().numpy()),
    "its storage": lambda h: h.untyped_storage(),
    "DLPack": lambda h: np.from_dlpack(h.detach()),
    "another node": lambda h: h.sin(),
    "a list of a dict": lambda h: [{"h": h}],
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_someone_holds_keeps_its_values(holder: str) -> None:
    step = Step(F.gelu)
    with lt.no_grad():
        step.x.copy_(lt.linspace(-3, 3, LARGE))
    expected = HOLDERS[holder](step.x.detach().clone().requires_grad_())
    step(HOLDERS[holder])
    (found,) = step.held

    def values(x: Any) -> Any:
        if isinstance(x, list):
            x = x[0]["h"]
        if isinstance(x, lt.UntypedStorage):
            return bytes(x)
        return x.detach().numpy().copy() if isinstance(x, Tensor) else np.array(x)

    np.testing.assert_array_equal(values(found), values(expected))


@pytest.mark.parametrize("holder", ["its array", "a slice of its array", "its bytes", "DLPack"])
def test_an_array_of_what_was_viewed_keeps_its_values(holder: str) -> None:
    # What the node saves is a view: its array and the one that is held have one base.
    x = lt.linspace(-3, 3, LARGE).requires_grad_()

    def run() -> tuple[Any, Any]:
        h = x * 1
        return HOLDERS[holder](h), F.gelu(h.view(128, -1)).sum()

    held, loss = run()
    before = np.array(held)
    loss.backward()
    np.testing.assert_array_equal(np.array(held), before)


def test_a_view_is_overwritten_if_nothing_else_sees_its_base() -> None:
    x = lt.ones(LARGE, requires_grad=True)
    loss = F.gelu((x * 1).view(128, -1).transpose(0, 1).transpose(0, 1).view(-1, 64)).sum()
    assert peak_of(loss.backward) == 4


def test_a_gradient_that_is_a_view_is_overwritten() -> None:
    x, scale = lt.ones(LARGE, requires_grad=True), lt.rand(128, LARGE // 128)
    h = x * 1
    loss = (F.gelu(h).view(128, -1) * scale).sum()
    assert peak_of(loss.backward) == BLOCK + 4  # the gradient of the product
    assert bits(h) == bits(lt.ones(LARGE))


def test_a_retained_graph_can_run_again() -> None:
    step = Step(F.gelu)
    loss = step.forward()
    loss.backward(retain_graph=True)
    first = step.x.grad.clone()
    step.x.grad = None
    loss.backward()
    assert bits(step.x.grad) == bits(first)


def test_a_gradient_that_a_hook_or_the_user_has_is_not_overwritten() -> None:
    seen: list[Tensor] = []
    x = lt.linspace(-3, 3, LARGE).requires_grad_()
    h = x * 2
    y = F.gelu(h)
    y.register_hook(seen.append)  # type: ignore[arg-type]
    y.retain_grad()
    given = lt.linspace(0, 1, LARGE)
    copied = given.clone()
    y.backward(given)
    assert bits(given) == bits(copied) == bits(seen[0]) == bits(y.grad)


def test_a_value_that_two_nodes_saved_is_left_to_the_second() -> None:
    def loss(scale: Any) -> Any:
        h = x * scale
        return (F.gelu(h) + F.silu(h)).sum()

    x = lt.linspace(-3, 3, LARGE).requires_grad_()
    loss(1).backward()
    found, x.grad = x.grad, None
    h = x * 1
    total = (F.gelu(h) + F.silu(h)).sum()
    total.backward(retain_graph=True)  # nothing is overwritten
    assert bits(found) == bits(x.grad)


@pytest.mark.parametrize("function", [lt.mul, lt.div, lt.sub, F.linear, F.prelu, lt.atan2])
def test_rules_of_several_inputs_read_what_arrived(function: Any) -> None:
    found = []
    for hooked in (False, True):  # then the node overwrites nothing
        a, b = (lt.linspace(k, 2, LARGE).view(256, 128).requires_grad_() for k in (-3, 1))
        if function is F.prelu:
            b = lt.full((128,), 0.25, requires_grad=True)
        scale = lt.linspace(-1, 1, 256).view(256, 1)
        y = function(a * 1, b * 1)
        if hooked:
            y.register_hook(lambda g: None)
        y.mul(scale).sum().backward()
        found.append((bits(a.grad), bits(b.grad)))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_nodes_with_hooks_overwrite_nothing() -> None:
    step = Step(F.gelu)
    loss = step.forward()
    arrived: list[Any] = []
    node = loss.grad_fn.next_functions[0][0]
    node.register_hook(lambda inputs, outputs: arrived.append((inputs[0], outputs[0])))
    loss.backward()
    ((made, given),) = arrived
    assert made._storage is not given._storage
    assert bits(given) == lt.ones(LARGE).numpy().tobytes()


def test_anomaly_detection_overwrites_nothing_and_a_budget_does() -> None:
    plain = Step(F.gelu)
    plain()
    for context, more in ((lt.memory_budget(1 << 30), 0), (lt.autograd.detect_anomaly(), BLOCK)):
        with context:
            step = Step(F.gelu)
            assert peak_of(step.forward().backward) == more + 4
        assert bits(step.x.grad) == bits(plain.x.grad)


def test_logits_become_their_gradient() -> None:
    lt.manual_seed(0)
    head, x = lt.nn.Linear(64, 4096), lt.randn(256, 64)
    target = lt.randint(0, 4096, (256,))
    logits = 4 * 256 * 4096

    def step(hold: bool) -> Any:
        head.zero_grad()
        z = head(x)
        loss = F.cross_entropy(z, target)
        if not hold:
            del z
        loss.backward()
        return None

    step(False)
    first = head.weight.grad.clone()
    assert logits <= peak_of(lambda: step(False)) < 2 * logits <= peak_of(lambda: step(True))
    assert bits(head.weight.grad) == bits(first)


def test_small_values_are_not_asked_about() -> None:
    assert overwriting.LEAST_ROOM > 4 * 1024
    x = lt.ones(1024, requires_grad=True)
    y = F.gelu(x * 1)
    assert all(places == () for *_, places in y.grad_fn.rules.calls)
