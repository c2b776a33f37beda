"""Every kernel for CUDA gives what the CPU gives, on every sample of its op; run by g++ here."""

from __future__ import annotations

import copy
import linecache
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices.sim.array import SimArray
from lowtide.framework.devices.sim.backend import SIM
from lowtide.framework.dtypes import bfloat16, float32, float64, tolerance
from lowtide.framework.kernels.cpu.compiler.kernel import Kernel
from lowtide.framework.kernels.cuda import matmul
from lowtide.framework.kernels.cuda.bits import printed_bits
from lowtide.framework.kernels.cuda.kernel import CudaKernel
from lowtide.framework.kernels.cuda.printer import Unprintable, printed
from lowtide.framework.kernels.formula.bits import Bits
from lowtide.framework.kernels.formula.declaration import DECLARED
from lowtide.framework.kernels.formula.update import Update
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.ops.convolution import routes
from lowtide.framework.random import philox
from tests.devices import cuda_on_cpu
from tests.devices.test_twins import assert_equal, run
from tests.kernels.test_formula import variants
from tests.optim.cases import OPTIONS
from tests.samples import over_samples

EIGHT_BITS = {"Adam8bit", "AdamW8bit"}  # they have loops of their own
pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="there is no g++")


def has_kernel(op: Any) -> bool:
    """True for an op with a kernel of its own on GPUs."""
    return any(k.device == "cuda" for k in op.kernels)


@pytest.mark.quick(20)
@over_samples(of=has_kernel)
@pytest.mark.parametrize("dtype", [float32, float64, bfloat16], ids=lambda d: d.name)
def test_kernels_give_what_the_cpu_gives(op: Any, inputs: Any, attributes: Any, dtype: Any) -> None:
    outputs, gradients, saved = run(op, inputs, attributes, lt.device("cpu"))
    with cuda_on_cpu.cuda_kernels():
        there, gradients_there, saved_there = run(op, inputs, attributes, lt.device("sim"))
    # A GPU rounds the product, and its sum with the bias; the CPU rounds once.
    steps = 1 if dtype is bfloat16 and op.name == "linear" else 0
    assert_equal(there, outputs, dtype, steps)
    assert_equal(gradients_there, gradients, dtype)
    assert saved_there == saved


# Loops that are no walk over flat arrays of one type, each with its own kernel or none.
NOT_PRINTED = {
    "optim.unscale": set(),
}


@pytest.mark.parametrize("name", NOT_PRINTED)
def test_all_other_loops_are_printed(name: str) -> None:
    module = import_module(f"lowtide.framework.kernels.cpu.{name}")
    refused = set()
    for key, loop in vars(module).items():
        if type(loop) is Kernel and loop.py_func.__module__ == module.__name__:
            try:
                printed(loop)
            except Unprintable:
                refused.add(key)
    assert refused == NOT_PRINTED[name]


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_the_loops_of_formulas_are_printed(name: str) -> None:
    for variant in variants(DECLARED[name]):
        if isinstance(DECLARED[name], Bits):
            arrays = ["out", *variant.made, *variant.elements]
            assert printed_bits(variant.loop).arrays == len(arrays)
            continue
        inputs = getattr(variant, "elements", ["out", *DECLARED[name].reader.elements])
        assert printed(variant.loop).arrays == len(inputs)


def test_a_cleared_cache_of_lines_does_not_matter() -> None:
    made = Update(_sum_update, "cleared")
    loop = made.variant({}).loop
    linecache.clearcache()
    assert "lt_cleared" in printed(loop).kernel.source


def _sum_update(x: Any, y: Any) -> Any:
    return x + y


def _summed(x: Any) -> Any:
    total = 0.0
    for i in range(x.size):
        total += x[i]
    return total


def _summed_into(out: Any, x: Any) -> None:
    total = 0.0
    for i in range(x.size):
        total += x[i]
    out[0] = total


def _numbers_first(scale: Any, x: Any) -> None:
    for i in range(x.size):
        x[i] = x[i] * scale


def _strided(out: Any, x: Any) -> None:
    for i in range(0, x.size, 2):
        out[i] = x[i]


def _neighbors(out: Any, x: Any) -> None:
    for i in range(x.size):
        out[i] = x[i + 1]


@pytest.mark.parametrize("loop", [_summed, _summed_into, _numbers_first, _strided, _neighbors])
def test_what_a_gpu_would_compute_otherwise_is_refused(loop: Any) -> None:
    with pytest.raises(Unprintable, match=rf"{loop.__name__}, line \d+: "):
        printed(Kernel(loop, {}))


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", [n for n in OPTIONS if n not in EIGHT_BITS])
def test_an_optimizer_steps_as_on_the_cpu(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((33, 41)).astype(np.float32)
    for options in OPTIONS[name]:
        ends = []
        for where in ("cpu", "sim"):
            with cuda_on_cpu.cuda_kernels():
                p = lt.tensor(values).to(where).requires_grad_()
                optimizer = getattr(lt.optim, name)([p], **options)
                for _ in range(3):
                    optimizer.zero_grad()
                    (p * p).sum().backward()
                    optimizer.step()
                ends.append(p.detach().cpu().numpy())
        # Muon's bfloat16 products are summed in another order where the processor has tiles for
        # them: a last bit of three steps of up to 0.13.
        apart = 3 * 0.13 * 2**-7 if name == "Muon" else 1e-6
        np.testing.assert_allclose(*ends, rtol=1e-5, atol=apart)


def test_a_step_takes_no_memory() -> None:
    with cuda_on_cpu.cuda_kernels():
        p = lt.ones(100, device="sim").requires_grad_()
        optimizer = lt.optim.AdamW([p])
        p.grad = lt.ones(100, device="sim")
        optimizer.step()  # makes the state
        lt.reset_peak_memory_stats("sim")
        before = lt.memory_allocated("sim")
        optimizer.step()
        assert lt.max_memory_allocated("sim") == before


@pytest.mark.parametrize("dtype", [lt.float8_e4m3fn, lt.float8_e5m2], ids=str)
def test_eight_bit_floats_have_the_bits_of_the_cpu(dtype: Any) -> None:
    random = np.random.default_rng(0)
    drawn = random.standard_normal(4000) * 10.0 ** random.uniform(-7, 7, 4000)
    ties = np.arange(256, dtype=np.uint8).view(dtype.np).astype(np.float64)
    between = (ties[1:] + ties[:-1]) / 2  # halfway from one number to the next
    values = np.concatenate([drawn, ties, between, [np.inf, -np.inf, np.nan, 448, 464, 465, 61440]])
    x = lt.tensor(values.astype(np.float32))
    with cuda_on_cpu.cuda_kernels():
        there = x.to("sim")
        packed = there.to(dtype)
        assert lt.equal(packed.cpu().view(lt.uint8) & 0x7F, x.to(dtype).view(lt.uint8) & 0x7F)
        for wanted in (lt.float32, lt.float64, lt.int32, lt.bfloat16, lt.bool):
            some = x.abs().clamp(max=400.0).nan_to_num()  # an integer has no more
            expected = some.to(dtype).to(wanted)
            assert lt.equal(some.to("sim").to(dtype).to(wanted).cpu(), expected)
        strided = packed[::3].clone()
        assert strided.cpu().view(lt.uint8).tolist() == packed.cpu().view(lt.uint8)[::3].tolist()
        filled = lt.empty(3, dtype=dtype, device="sim").fill_(1.5)
        assert filled.float().tolist() == [1.5] * 3


SHAPES = [(3, 5), (2, 6, 7), (2, 6, 3, 5), (40, 300)]
NORMALIZATIONS = [
    *[(kind, shape) for kind in ("layer", "batch", "rms") for shape in SHAPES],
    *[("group", shape) for shape in SHAPES if shape[1] % 2 == 0],
    *[("instance", shape) for shape in SHAPES if len(shape) > 2],
]


@pytest.mark.quick(5)
@pytest.mark.parametrize(("kind", "shape"), NORMALIZATIONS, ids=str)
def test_normalizations_of_every_shape(kind: str, shape: Any) -> None:
    planes = len(shape) - 2
    made = {
        "layer": lambda: lt.nn.LayerNorm(shape[-1]),
        "group": lambda: lt.nn.GroupNorm(2, shape[1]),
        "instance": lambda: getattr(lt.nn, f"InstanceNorm{planes}d")(shape[1], affine=True),
        "batch": lambda: getattr(lt.nn, f"BatchNorm{max(1, planes)}d")(shape[1]),
        "rms": lambda: lt.nn.RMSNorm(shape[-1]),
    }
    x = lt.randn(*shape, dtype=lt.float64)
    g = lt.randn(*shape, dtype=lt.float64)
    made_once = made[kind]().double()
    for p in made_once.parameters():
        p.data.normal_()
    found = {}
    for where in ("cpu", "sim"):
        with cuda_on_cpu.cuda_kernels():
            norm = copy.deepcopy(made_once).to(where)
            here = x.detach().to(where).requires_grad_()
            out = norm(here)
            out.backward(g.to(where))
            kept = [here.grad, *[p.grad for p in norm.parameters()], *norm.buffers()]
            found[where] = [t.cpu().numpy() for t in (out.detach(), *kept)]
    for a, b in zip(*found.values(), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-11)


DONE = 329  # of 400 drawn products; the others have neither rows nor columns side by side


def drawn_product(random: Any, kind: Any) -> tuple[Any, Any, Any]:
    """Operands and a result of a product, with any strides that NumPy has views for."""
    m, n, k = random.integers(1, 6, 3)
    stack = tuple(random.integers(1, 4, random.integers(0, 4)))

    def array(*shape: int) -> Any:
        order = list(random.permutation(len(shape)))
        if random.random() < 0.5:
            order = list(range(len(shape)))
        if random.random() < 0.5 and len(shape) >= 2:
            order[-2:] = order[-2:][::-1]
        larger = [shape[d] + random.integers(0, 3) * (random.random() < 0.5) for d in order]
        made = random.standard_normal(larger).astype(kind)
        made = made[tuple(slice(0, shape[d]) for d in order)]
        return made.transpose(np.argsort(order))

    def some(shape: tuple[int, ...]) -> tuple[int, ...]:
        kept = shape[random.integers(0, len(shape) + 1) :]
        return tuple(1 if random.random() < 0.3 else s for s in kept)

    return array(*some(stack), m, k), array(*some(stack), k, n), array(*stack, m, n)


@pytest.mark.parametrize("kind", [lt.float32, lt.float64, lt.float16, lt.bfloat16], ids=str)
def test_products_of_any_strides(kind: Any) -> None:
    random, done = np.random.default_rng(0), 0
    with cuda_on_cpu.cuda_kernels():
        for _ in range(400):
            a, b, out = drawn_product(random, kind.np)
            alpha, beta = random.choice([1.0, 0.5]), random.choice([0.0, 1.0, -2.0])
            wide = np.float64
            expected = alpha * (a.astype(wide) @ b.astype(wide))
            expected = np.broadcast_to(expected, out.shape) + beta * out.astype(wide)
            before = out.copy()
            given = [SimArray(x) for x in (a, b, out)]
            if not matmul.multiply(SIM, *given, alpha=alpha, beta=beta):
                np.testing.assert_array_equal(out, before)
                continue
            done += 1
            rtol, atol = tolerance(kind)
            found = out.astype(wide)
            np.testing.assert_allclose(found, expected, rtol=4 * rtol, atol=8 * atol)
    assert done == DONE


@pytest.mark.quick(10)
@pytest.mark.parametrize("limit", [1 << 25, 4096, 1024, 128], ids="{} bytes".format)
@pytest.mark.parametrize("case", range(12))
def test_attention_of_any_shape_and_workspace(
    case: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "TILE_BYTES_ELSEWHERE", limit)
    random = np.random.default_rng(case)
    batch, key_heads, shared, rows, columns = (int(n) for n in random.integers(1, 5, 5))
    columns += int(random.integers(0, 70))
    size, width = (int(n) for n in random.integers(1, 9, 2))
    heads = key_heads * (shared if case % 2 else 1)
    q = lt.randn(batch, rows, heads, size, dtype=lt.float64).transpose(1, 2)
    k = lt.randn(batch, key_heads, columns, size, dtype=lt.float64)
    v = lt.randn(batch, columns, key_heads, width, dtype=lt.float64).transpose(1, 2)
    masks = [
        None,
        lt.rand(rows, columns) < 0.6,
        lt.randn(batch, 1, 1, columns, dtype=lt.float64),
        lt.rand(1, heads, rows, 1) < 0.7,
    ]
    mask = masks[case % 4]
    options = {"is_causal": mask is None, "enable_gqa": heads != key_heads}
    options["dropout_p"] = 0.4 if case % 5 > 2 else 0.0
    g = lt.randn(batch, heads, rows, width, dtype=lt.float64)
    found = []
    for where in ("cpu", "sim"):
        with cuda_on_cpu.cuda_kernels():
            given = [x.detach().to(where).requires_grad_() for x in (q, k, v)]
            there = None if mask is None else mask.to(where)
            lt.manual_seed(case)
            out = lt.nn.functional.scaled_dot_product_attention(*given, there, **options)
            out.backward(g.to(where))
            found.append([t.detach().cpu().numpy() for t in (out, *[x.grad for x in given])])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("limit", [1 << 25, 2000], ids="{} bytes".format)
@pytest.mark.parametrize("case", range(14))
def test_convolutions_of_any_shape_and_workspace(
    case: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "TILE_BYTES_ELSEWHERE", limit)
    routes.route.cache_clear()
    random = np.random.default_rng(case)
    nd = case % 3 + 1
    groups, batch = int(random.integers(1, 3)), int(random.integers(1, 5))
    window, stride, dilation, padding = (
        tuple(int(n) for n in random.integers(low, high, nd))
        for low, high in ((1, 4), (1, 3), (1, 3), (0, 3))
    )
    image = [
        d * (k - 1) + 1 + int(random.integers(0, 9)) for k, d in zip(window, dilation, strict=True)
    ]
    x = lt.randn(batch, 2 * groups, *image, dtype=lt.float64)
    w = lt.randn(3 * groups, 2, *window, dtype=lt.float64)
    b = lt.randn(3 * groups, dtype=lt.float64)
    f = getattr(lt.nn.functional, f"conv{nd}d")
    found = []
    for where in ("cpu", "sim"):
        with cuda_on_cpu.cuda_kernels():
            given = [t.detach().to(where).requires_grad_() for t in (x, w, b)]
            out = f(*given, stride, padding, dilation, groups)
            lt.manual_seed(case)
            out.backward(lt.randn(*out.shape, dtype=lt.float64).to(where))
            found.append([t.detach().cpu().numpy() for t in (out, *[t.grad for t in given])])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-10)
    routes.route.cache_clear()


def on_both(run: Any, *values: Any) -> list[list[Any]]:
    """What ``run`` of tensors returns, and their gradients, on the CPU and by CUDA kernels."""
    found = []
    for where in ("cpu", "sim"):
        with cuda_on_cpu.cuda_kernels():
            given = [x.detach().to(where) for x in values]
            real = [x.requires_grad_() for x in given if x.is_floating_point()]
            out = run(*given)
            lt.manual_seed(0)
            out.backward(lt.randn(*out.shape, dtype=out.dtype).to(where))
            results = [out.detach(), *[x.grad for x in real if x.grad is not None]]
            found.append([t.cpu().numpy() for t in results])
    return found


@pytest.mark.parametrize(
    "shape", [(5, 7), (4, 300), (3, 1500), (2, 40, 3), (2, 300, 2, 3)], ids=str
)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_any_shape(shape: Any, smoothing: float, weighted: bool) -> None:
    x = lt.randn(*shape, dtype=lt.float64) * 3
    classes = lt.randint(0, shape[1], (shape[0], *shape[2:]))
    classes.view(-1)[1] = -100
    weight = lt.rand(shape[1], dtype=lt.float64) if weighted else None

    def run(x: Any, classes: Any) -> Any:
        w = None if weight is None else weight.to(x.device)
        options = {"reduction": "none", "label_smoothing": smoothing}
        return lt.nn.functional.cross_entropy(x, classes, w, **options)

    for a, b in zip(*on_both(run, x, classes), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_cross_entropy_of_logits_that_are_not_finite(smoothing: float, reduction: str) -> None:
    x = lt.randn(8, 300, 2, dtype=lt.float64)
    classes = lt.randint(3, 300, (8, 2))
    x[0] = -float("inf")  # no class is possible
    x[1, :3] = -float("inf")  # some classes are impossible
    x[2, 5] = float("inf")
    x[3, 7, 1] = float("nan")
    x[4:6] = float("nan")
    x[6] = float("inf")
    classes[4:7] = -100  # what a row holds that is ignored does not matter
    if reduction == "mean":
        x, classes = x[4:], classes[4:]

    def run(x: Any, classes: Any) -> Any:
        options = {"reduction": reduction, "label_smoothing": smoothing}
        return lt.nn.functional.cross_entropy(x, classes, **options).view(-1)

    for a, b in zip(*on_both(run, x, classes), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)


SHAPES_AND_DIMS = [
    ((7,), 0),
    ((5, 33), 1),
    ((4, 300), 1),
    ((3, 1500), 1),
    ((300, 5), 0),
    ((1031, 2), 0),
    ((2, 40, 3), 1),
    ((2, 3, 261, 5), 2),
]


@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS, ids=str)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_softmax_of_any_shape(shape: Any, dim: int, name: str) -> None:
    x = lt.randn(*shape, dtype=lt.float64) * 5
    x.select(dim, 2)[...] = float("inf") if name == "softmin" else -float("inf")

    def run(x: Any) -> Any:
        # An infinite result would make the gradient NaN.
        return getattr(lt.nn.functional, name)(x, dim).clamp(min=-1e6)

    for a, b in zip(*on_both(run, x), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("special", [-float("inf"), float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_a_row_without_a_number_is_nan_and_no_other(name: str, special: float) -> None:
    x = lt.randn(5, 300, 2, dtype=lt.float64)
    x[3, :, 1] = special
    found = on_both(lambda x: getattr(lt.nn.functional, name)(x, 1), x)
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)
        expected = np.zeros((5, 300, 2), bool)
        expected[3, :, 1] = True
        np.testing.assert_array_equal(np.isnan(b), expected)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_views_and_of_gradients_that_are_one_number(name: str) -> None:
    x = lt.randn(3, 40, 70, dtype=lt.float64)

    def run(x: Any) -> Any:
        y = getattr(lt.nn.functional, name)(x.transpose(1, 2)[:, ::2], 1)
        return (y.sum() + (y * y).sum()).view(1)

    for a, b in zip(*on_both(run, x), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_has_second_derivatives(name: str) -> None:
    def run(x: Any) -> Any:
        y = getattr(lt.nn.functional, name)(x, 1)
        (g,) = lt.autograd.grad((y * y * y).sum(), x, create_graph=True)
        return g

    for a, b in zip(*on_both(run, lt.randn(3, 270, 2, dtype=lt.float64)), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-11)


def test_a_class_out_of_range_makes_its_row_nan_and_no_other() -> None:
    with cuda_on_cpu.cuda_kernels():
        x = lt.randn(4, 3, device="sim").requires_grad_()
        classes = lt.tensor([0, 3, -1, 2], device="sim")
        loss = lt.nn.functional.cross_entropy(x, classes, reduction="none")
        loss.backward(lt.ones(4, device="sim"))
        assert loss.isnan().tolist() == [False, True, True, False]
        assert x.grad.isnan().any(1).tolist() == [False, True, True, False]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("hidden", [3, 300])
@pytest.mark.parametrize("given", [False, True])
def test_recurrent_nets_of_both_directions(kind: str, hidden: int, given: bool) -> None:
    options = {"bidirectional": True, "bias": given, "num_layers": 2}
    if kind == "LSTM" and given and hidden == 3:
        options["proj_size"] = 2
    made_once = getattr(lt.nn, kind)(5, hidden, **options).double()
    size = options.get("proj_size", hidden)
    x, h = lt.randn(4, 2, 5, dtype=lt.float64), lt.randn(4, 2, size, dtype=lt.float64)
    c = lt.randn(4, 2, hidden, dtype=lt.float64)

    def run(x: Any, h: Any, c: Any) -> Any:
        net = copy.deepcopy(made_once).to(x.device)
        state = (h if kind == "GRU" else (h, c)) if given else None
        out, last = net(x, state)
        return out + (last if kind == "GRU" else last[1]).sum()

    for a, b in zip(*on_both(run, x, h, c), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("count", [1, 3, 4, 1021, 5000])
@pytest.mark.parametrize("seed", [0, 3, (1 << 64) - 5])
def test_random_words_are_those_of_the_cpu(count: int, seed: int) -> None:
    expected = np.empty(count, np.uint32)
    found = np.empty_like(expected)
    for rng, first in ((philox.Rng(seed, (5 << 32) + 7), 0), (philox.Rng(seed, (1 << 64) - 2), 8)):
        philox.bits(np, expected, rng, first)
        with cuda_on_cpu.cuda_kernels():
            philox.bits(SIM, SimArray(found), rng, first)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "dropout1d"])
def test_dropout_drops_what_the_cpu_drops(p: float, name: str) -> None:
    def run(x: Any) -> Any:
        lt.manual_seed(1)
        return getattr(lt.nn.functional, name)(x, p)

    for a, b in zip(*on_both(run, lt.randn(30, 41, 5, dtype=lt.float64)), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


@pytest.mark.parametrize("kind", [lt.float32, lt.float64], ids=str)
@pytest.mark.parametrize("wrong", [None, float("inf"), float("nan")])
def test_a_scaler_unscales_and_sees_what_is_not_finite(kind: Any, wrong: float | None) -> None:
    with cuda_on_cpu.cuda_kernels():
        p = lt.ones(700, dtype=kind, device="sim").requires_grad_()
        optimizer = lt.optim.SGD([p], lr=1.0)
        scaler = lt.amp.GradScaler("sim", init_scale=8.0)
        p.grad = lt.full((700,), 4.0, dtype=kind, device="sim")
        if wrong is not None:
            p.grad[613] = wrong
        scaler.scale(lt.ones(1, device="sim"))  # makes the scale
        scaler.step(optimizer)
        scaler.update()
        expected = 0.5 if wrong is None else 1.0
        assert p.detach().cpu().tolist() == [expected] * 700
        assert scaler.get_scale() == (8.0 if wrong is None else 4.0)


def test_arrays_of_several_dtypes_are_refused() -> None:
    kernel = printed(import_module("lowtide.framework.kernels.cpu.optim.unscale").unscale)
    arrays = SimArray(np.zeros(3)), SimArray(np.zeros(1, np.float32))
    with cuda_on_cpu.cuda_kernels(), pytest.raises(TypeError, match="arrays of one dtype"):
        kernel(SIM, *arrays, 2.0)


@pytest.mark.parametrize("width", [1, 5, 300])
def test_a_row_of_an_embedding_adds_up_in_the_order_of_its_indices(width: int) -> None:
    index = lt.randint(0, 7, (4, 50))
    index[0] = 6  # a row of many, and perhaps one of none

    def run(weight: Any, index: Any) -> Any:
        return lt.nn.functional.embedding(index, weight, padding_idx=2)

    found = on_both(run, lt.randn(9, width, dtype=lt.float64), index)
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-13)


def test_a_kernel_that_does_not_compile_leaves_parameters_and_state_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare = CudaKernel.prepare

    def broken(kernel: CudaKernel, xp: Any, dtype: Any) -> Any:
        if kernel.name == "lt_adamax_step_0" and dtype == np.float64:
            raise RuntimeError("NVRTC: no")
        return prepare(kernel, xp, dtype)

    monkeypatch.setattr(CudaKernel, "prepare", broken)
    with cuda_on_cpu.cuda_kernels():
        some = [lt.ones(3, dtype=d, device="sim").requires_grad_() for d in (float32, float64)]
        optimizer = lt.optim.Adamax(some)
        for p in some:
            p.grad = lt.ones_like(p)
        with pytest.raises(RuntimeError, match="NVRTC"):
            optimizer.step()
        assert [p.tolist() for p in some] == [[1.0] * 3] * 2
        assert not optimizer.state
