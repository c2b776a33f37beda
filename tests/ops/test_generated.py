"""What every declared op must hold, on every sample it declares (``tests/samples.py``).

``python -m pytest tests/ops/test_generated.py -k layer_norm`` runs the checks of one op.
"""

import gc
from pathlib import Path

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.autograd.engine import grad
from lowtide.framework.dtypes import bfloat16, float16, float32, float64, tolerance
from lowtide.framework.ops.registry import OPS
from lowtide.framework.tensor import Tensor
from tests.samples import over_samples

SAVED = Path(__file__).with_name("saved_bytes.txt")


def run_with(op, inputs, attributes):
    """The op as a function of its differentiable inputs."""
    chosen = [id(x) for x in testing.differentiable(op, inputs)]

    def function(tensors):
        given = dict(zip(chosen, tensors, strict=True))
        return testing.call(op, [given.get(id(x), x) for x in inputs], attributes)

    return function, testing.differentiable(op, inputs)


def real(outputs):
    return [o for o in outputs if o.requires_grad]


def values(t):
    return np.array(t.detach().to_dense().array, copy=True)


def test_every_op_declares_samples():
    bare = [n for n, op in OPS.items() if op.samples is None]
    assert bare == []


# What samples need not reach, and why.
EDGES_LEFT_OUT = {
    ("_class_mean", "a tensor without elements"): "it is nan, which compares with nothing",
    ("_median", "a tensor without elements"): "it is nan, which compares with nothing",
    ("_group_norm", "axes"): "channels of a group and their elements, always",
    ("_layer_norm", "axes"): "the rows of a matrix, always",
    ("_rms_norm", "axes"): "the rows of a matrix, always",
    ("_sample", "kind"): "the floating kinds draw other words for each dtype: tests/test_random.py",
    ("_view_dtype", "dtype"): "what other types make of the bytes depends on the precision",
    ("clone", "memory_format"): "accepted, and without effect",
}


@pytest.mark.parametrize("name", sorted(OPS))
def test_samples_reach_the_edges(name):
    found = testing.samples(OPS[name], testing.Make())
    tensors = [x for inputs, _ in found for x in inputs if isinstance(x, Tensor)]
    missing = set() if any(t.numel() == 0 for t in tensors) else {"a tensor without elements"}
    for attribute in set(OPS[name].attributes) - {"named"}:  # that is a name for the node
        given = {repr(attributes.get(attribute, "left out")) for _, attributes in found}
        missing |= set() if len(given) > 1 else {attribute}
    assert {what for what in missing if (name, what) not in EDGES_LEFT_OUT} == set()


@over_samples
def test_gradient_agrees_with_finite_differences(op, inputs, attributes):
    inputs = testing.place(inputs, "cpu", op)
    function, tensors = run_with(op, inputs, attributes)
    testing.check_gradient(function, tensors)


@over_samples
def test_second_gradient_agrees_with_finite_differences(op, inputs, attributes):
    inputs = testing.place(inputs, "cpu", op)
    function, tensors = run_with(op, inputs, attributes)
    testing.check_second_gradient(function, tensors)


@over_samples(of=lambda op: op.composition is not None)
def test_fused_op_equals_its_composition(op, inputs, attributes):
    inputs = testing.place(inputs, "cpu", op)
    function, tensors = run_with(op, inputs, attributes)
    fused = function(tensors)
    plain = op.composition(*inputs, **attributes)
    plain = (plain,) if isinstance(plain, Tensor) else tuple(plain)
    for f, p in zip(fused, plain, strict=True):
        np.testing.assert_allclose(values(f), values(p), rtol=1e-9, atol=1e-11)
    if not real(fused):
        return
    u = [lt.tensor(np.random.default_rng(k).standard_normal(o.shape)) for k, o in enumerate(fused)]
    pairs = [(f, p, g) for f, p, g in zip(fused, plain, u, strict=True) if f.requires_grad]
    ours = grad([f for f, _, _ in pairs], tensors, [g for *_, g in pairs], allow_unused=True)
    theirs = grad([p for _, p, _ in pairs], tensors, [g for *_, g in pairs], allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        a = np.zeros(()) if a is None else values(a)
        b = np.zeros(()) if b is None else values(b)
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def trace(op, inputs, attributes, device):
    """Shapes, dtypes and bytes at each stage of forward and backward on a device."""
    inputs = testing.place(inputs, device, op)
    ledger = lt.framework.devices.backend(lt.device(device)).ledger
    start = ledger.live
    ledger.reset_peak()
    outputs = testing.call(op, inputs, attributes)
    story = [("out", o.dtype.name, tuple(o.shape), o.stride()) for o in outputs]
    story.append(("forward", ledger.live - start, ledger.peak - start))
    story += testing.saved_of(outputs)
    sources = [x for x in testing.differentiable(op, inputs) if x.requires_grad]
    floats = [o for o in outputs if o.requires_grad]
    if floats and sources:
        cotangents = [lt.ones_like(o) for o in floats]
        ledger.reset_peak()
        gradients = grad(floats, sources, cotangents, allow_unused=True)
        for g in gradients:
            story.append(("grad", None) if g is None else ("grad", g.dtype.name, tuple(g.shape)))
        story.append(("backward", ledger.live - start, ledger.peak - start))
    return story


def has_meta(op):
    """Whether the shape of its result does not depend on values, which meta has none of."""
    return not op.adopt or op.infer is not None


@pytest.mark.quick(500)
@over_samples(of=has_meta)
@pytest.mark.parametrize("dtype", [float64, float32, bfloat16], ids=lambda d: d.name)
def test_meta_equals_cpu_in_shapes_dtypes_and_live_bytes(op, inputs, attributes, dtype):
    assert trace(op, inputs, attributes, "meta") == trace(op, inputs, attributes, "cpu")


def saved_lines():
    """What each sample keeps, a line each, by name: the order of declarations does not matter."""
    lines = []
    for name, number in sorted(testing.sample_ids()):
        op = OPS[name]
        inputs, attributes = testing.samples(op, testing.Make(float32))[number]
        inputs = testing.place(inputs, "cpu", op)
        kept = testing.saved_of(testing.call(op, inputs, attributes))
        text = ", ".join(f"{label} {d}{list(shape)}" for label, d, shape, _ in kept) or "nothing"
        lines.append(f"{name}-{number}: {sum(n for *_, n in kept)} bytes: {text}")
    return lines


def test_saved_bytes_are_as_reviewed():
    assert SAVED.read_text().splitlines() == saved_lines(), (
        "What some op keeps for backward has changed. If that is meant, rewrite the file with "
        "`python -m tests.ops.test_generated` and review the difference."
    )


@over_samples
def test_outputs_are_filled_whatever_the_pool_held(op, inputs, attributes):
    inputs = testing.place(inputs, "cpu", op)

    def everything():
        outputs = testing.call(op, inputs, attributes)
        sources = [x for x in testing.differentiable(op, inputs) if x.requires_grad]
        if real(outputs) and sources:
            ones = [lt.ones_like(o) for o in real(outputs)]
            found = grad(real(outputs), sources, ones, allow_unused=True)
        else:
            found = ()
        return [values(o) for o in (*outputs, *found) if o is not None]

    clean = everything()
    with testing.poisoned():
        dirty = everything()
    for c, d in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(c, d)


@over_samples
def test_inputs_are_unchanged_and_need_not_be_contiguous(op, inputs, attributes):
    inputs = testing.place(inputs)
    before = [values(x) if isinstance(x, Tensor) else x for x in inputs]
    expected = [values(o) for o in testing.call(op, inputs, attributes)]
    for x, b in zip(inputs, before, strict=True):
        if isinstance(x, Tensor):
            np.testing.assert_array_equal(values(x), b)
    if op.view and op.name not in ("_permute",):
        return  # a view op may require the strides it is given
    for k, x in enumerate(inputs):
        if isinstance(x, Tensor) and x.ndim >= 2:
            order = list(range(x.ndim))[::-1]
            inputs[k] = x.permute(order).clone().permute(order)
    for o, e in zip(testing.call(op, inputs, attributes), expected, strict=True):
        np.testing.assert_allclose(values(o), e, rtol=1e-12, atol=1e-13)


@pytest.mark.quick(500)
@over_samples
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=lambda d: d.name)
def test_lower_precision_rounds_the_float64_result(op, inputs, attributes, dtype):
    inputs = testing.place(inputs)
    if any(value in (float64,) for value in attributes.values() if not isinstance(value, tuple)):
        return  # the sample fixes its own dtype
    low = testing.call(op, inputs, attributes)
    wide = [x.to(float64) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    high = testing.call(op, wide, attributes)
    rtol, atol = tolerance(dtype)
    for a, b in zip(low, high, strict=True):
        if b.dtype is not float64:
            np.testing.assert_array_equal(values(a), values(b))
            continue
        x, y = values(a).astype(np.float64), values(b)
        np.testing.assert_allclose(x, y, rtol=8 * rtol, atol=8 * max(atol, rtol))


@over_samples
def test_a_repeated_call_does_not_infer_again(op, inputs, attributes):
    inputs = testing.place(inputs)
    testing.call(op, inputs, attributes)

    def refuse(*args, **kwargs):
        raise AssertionError("infer ran again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op, "infer", refuse)
        testing.call(op, inputs, attributes)
        op.plans.clear()
        if not op.adopt:
            with pytest.raises(AssertionError, match="infer ran again"):
                testing.call(op, inputs, attributes)


@over_samples
def test_flops_are_a_count(op, inputs, attributes):
    inputs = testing.place(inputs)
    if op.flops is None:
        return
    specs = [x._spec if isinstance(x, Tensor) else None for x in inputs]
    count = op.flops(*specs, **attributes)
    assert isinstance(count, int)
    assert count >= 0


@pytest.fixture
def no_collector():
    """Nothing is freed but by its last reference: neither cycles of ours nor of earlier tests."""
    gc.disable()
    yield
    gc.enable()


@over_samples
@pytest.mark.usefixtures("no_collector")
def test_nothing_is_left_behind(op, inputs, attributes):
    inputs = testing.place(inputs, "cpu", op)
    start = testing.live_bytes()
    outputs = testing.call(op, inputs, attributes)
    sources = [x for x in testing.differentiable(op, inputs) if x.requires_grad]
    found = None
    if real(outputs) and sources:
        ones = [lt.ones_like(o) for o in real(outputs)]
        found = grad(real(outputs), sources, ones, allow_unused=True)
        del ones
    del outputs, found
    assert testing.live_bytes() == start


# NumPy's own buffers for casts and odd strides have a fixed size; no operand here is as small.
HIDDEN_LIMIT = 144 << 10

# A sample must grow to this many elements, or it could hide nothing from the test.
LARGE = testing.LARGEST // 8

# Ops none of whose samples can be scaled up, and what ties their sizes down.
FIXED_SIZE: dict[str, str] = {}


@pytest.mark.quick(90)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", sorted(OPS))
def test_kernels_allocate_nothing_outside_the_ledger(name, whole):
    op = OPS[name]
    if op.adopt:
        pytest.skip("the library allocates its result; the ledger adopts it")
    if op.view:
        pytest.skip("a view allocates nothing")
    if name in FIXED_SIZE:
        pytest.skip(FIXED_SIZE[name])
    largest = 0
    for number in range(len(testing.samples(op, testing.Make()))):
        found = testing.scaled_sample(op, number)
        if found is not None:
            inputs, attributes = found
            outputs = testing.call(op, inputs, attributes)
            tensors = [x for x in (*inputs, *outputs) if isinstance(x, Tensor)]
            largest = max(largest, *[x.numel() for x in tensors])
            hidden = testing.hidden_allocation(op, inputs, attributes)
            assert hidden < HIDDEN_LIMIT, f"sample {number}: {hidden} bytes beside the pool"
        if largest >= LARGE and not whole:  # one that is large will do
            return
    assert largest >= LARGE, "no sample grows: declare one, or list the op in FIXED_SIZE"


if __name__ == "__main__":
    SAVED.write_text("\n".join(saved_lines()) + "\n")
