"""The dispatcher: plans, promotion, conversions, results in place and in ``out=``."""

import gc

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.devices import backend
from lowtide.framework.ops import dispatch
from lowtide.framework.ops.registry import OPS, op
from lowtide.framework.ops.signatures import same
from lowtide.framework.tensor import Tensor


@pytest.fixture
def declared():
    """Declares ops for one test and takes them back."""
    before = dict(vars(Tensor))
    made = []

    def declare(**options):
        def decorate(kernel):
            f = op(method=False, public=False, **options)(kernel)
            made.append(f.op.name)
            return f

        return decorate

    yield declare
    for name in made:
        del OPS[name]
    for name in set(vars(Tensor)) - set(before):
        delattr(Tensor, name)


def test_infer_runs_once_per_shapes_dtypes_and_attributes(declared):
    calls = []

    def infer(input, *, k):
        calls.append((input.shape, input.dtype, k))
        return input

    @declared(infer=infer)
    def probe_infer(xp, out, input, *, k=1):
        xp.multiply(input, k, out=out)

    x = lt.ones(2, 3)
    for _ in range(3):
        probe_infer(x)
    assert len(calls) == 1
    probe_infer(x, k=2)
    probe_infer(lt.ones(2, 4))
    probe_infer(lt.ones(2, 3, dtype=lt.float64))
    assert len(calls) == 4


def test_list_attributes_are_frozen_to_tuples(declared):
    seen = []

    def infer(input, *, dims):
        seen.append(dims)
        return input

    @declared(infer=infer)
    def probe_list(xp, out, input, *, dims):
        xp.copyto(out, input)

    probe_list(lt.ones(2), dims=[0, [1, 2]])
    assert seen == [(0, (1, 2))]


def test_plans_are_bounded(declared, monkeypatch):
    monkeypatch.setattr(dispatch, "MAX_PLANS", 8)

    @declared(infer=same)
    def probe_bound(xp, out, input):
        xp.copyto(out, input)

    for n in range(1, 30):
        probe_bound(lt.ones(n))
    assert len(probe_bound.op.plans) <= 8


def test_a_kernel_with_wrong_parameters_is_refused_at_import(declared):
    with pytest.raises(TypeError, match="first parameters must be"):
        declared(infer=same, name="probe_bad")(lambda out, input: None)
    assert "probe_bad" not in OPS


@pytest.mark.parametrize(
    ("argument", "value"),
    [("half", "exakt"), ("promote", "floot"), ("autocast", "half"), ("autocast", {"cpu": "bf16"})],
)
def test_a_misspelled_argument_is_refused_at_import(declared, argument, value):
    with pytest.raises(ValueError, match=rf"probe_bad: {argument} is one of .*; got .*{value!r}"):
        declared(infer=same, name="probe_bad", **{argument: value})(lambda xp, out, input: None)
    assert "probe_bad" not in OPS


def test_a_further_kernel_that_does_not_fit_is_refused_at_import(declared):
    @declared(infer=same, scratch=("work",))
    def probe_kernel(xp, out, work, input, *, limit):
        xp.copyto(out, input)

    for device in ("gpu", lambda xp, out, input: None):
        with pytest.raises(ValueError, match=r"device is one of \('cpu', 'cuda'\); got"):
            probe_kernel.kernel(device)
    with pytest.raises(ValueError, match="dtypes is one of .*; got 'bf16'"):
        probe_kernel.kernel("cpu", dtypes="bf16")
    with pytest.raises(TypeError, match="this one has 3 positional ones instead of 4"):
        probe_kernel.kernel("cpu")(lambda xp, out, input, *, limit: None)
    with pytest.raises(TypeError, match=r"this one has \['limt'\] by keyword instead of \['limit'"):
        probe_kernel.kernel("cpu")(lambda xp, out, work, input, *, limt: None)
    probe_kernel.kernel("cpu")(lambda xp, out, *arrays, **attributes: None)
    probe_kernel.kernel("cpu", scratch=lambda input, **_: ())(lambda xp, out, input, *, limit: None)
    assert len(probe_kernel.op.kernels) == 2


def test_a_rule_with_an_unknown_name_is_refused_at_import(declared):
    @declared(infer=same)
    def probe_rule(xp, out, input):
        xp.copyto(out, input)

    with pytest.raises(TypeError, match="a gradient rule may name"):

        @probe_rule.vjp("input")
        def _(g, inptu):
            return g


def test_conversion_for_promotion_is_workspace_and_the_graph_keeps_the_original():
    mask = lt.tensor([True, False, True, True])
    x = lt.ones(4, requires_grad=True)
    out = x * mask
    (kept,) = out.grad_fn.saved
    assert kept.dtype is lt.bool
    assert kept.nbytes == 4
    out.sum().backward()
    assert x.grad.tolist() == [1.0, 0.0, 1.0, 1.0]


def test_half_precision_is_computed_in_float32_and_rounded_once():
    x = lt.full((1000,), 0.1, dtype=lt.bfloat16)
    exact = np.full(1000, np.float32(x[0].item()), np.float32).sum()
    assert x.sum().dtype is lt.bfloat16
    assert abs(x.sum().item() - exact) <= 0.5  # one rounding: bfloat16 near 100 steps by 0.5


def test_workspace_is_given_back():
    ledger = backend(lt.device("cpu")).ledger
    a, b = lt.ones(64, 64), lt.ones(64, 64, dtype=lt.float64)
    start = ledger.live
    out = a * b
    assert ledger.live - start == out.nbytes
    assert ledger.roles[lt.framework.memory.ledger.WORKSPACE] == 0


def test_results_in_out_keep_their_tensor():
    a, b, out = lt.ones(3), lt.full((3,), 2.0), lt.zeros(3)
    address = out.data_ptr()
    assert lt.mul(a, b, out=out) is out
    assert out.tolist() == [2.0, 2.0, 2.0]
    assert out.data_ptr() == address


def test_out_refuses_gradients():
    a = lt.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="out=... arguments don't support automatic"):
        lt.mul(a, a, out=lt.zeros(3))


def test_in_place_keeps_a_copy_of_what_it_destroys():
    w = lt.tensor([2.0, 3.0], requires_grad=True)
    x = w * 1
    x.mul_(x)
    x.sum().backward()
    assert w.grad.tolist() == [4.0, 6.0]


def test_calls_leave_no_garbage():
    a, b = lt.ones(3, 4), lt.ones(3, 4)

    def calls():
        for _ in range(20):
            a.add_(b).mul_(0.5).clamp_(min=0.1)
            a[0] = b[1]
            lt.sum(a.transpose(0, 1), [0, 1])
            lt.add(a, b, out=b)

    calls()
    gc.collect()
    gc.disable()
    try:
        calls()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_in_place_refuses_a_wider_result():
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        lt.ones(1, 3).mul_(lt.ones(2, 3))
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        lt.ones(2, dtype=lt.int64).mul_(1.5)


def test_in_place_refuses_memory_that_repeats():
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        lt.ones(1, 3).expand(2, 3).mul_(2)


def test_devices_do_not_mix_except_for_0d_cpu_tensors():
    a, m = lt.ones(2), lt.ones(2, device="meta")
    with pytest.raises(RuntimeError, match="all tensors on one device"):
        a * m
    assert (m * lt.tensor(2.0)).device.type == "meta"


def test_numpy_scalars_are_python_scalars():
    assert (lt.ones(2) * np.float64(2)).dtype is lt.float32
    assert (lt.ones(2) * np.int64(2)).dtype is lt.float32


def test_a_strange_operand_is_named():
    with pytest.raises(TypeError, match="takes Tensors and Python scalars; got str"):
        lt.mul(lt.ones(2), "2")


def test_inference_results_are_marked_on_every_road():
    x, y = lt.ones(2, 2), lt.ones(2, 2)
    x * y
    with lt.inference_mode():
        for result in (x * y, x * 2, -x, x.view(4), x.sum()):
            assert result.is_inference()
    assert not (x * y).is_inference()


def test_floating_point_errors_are_values_and_never_warnings():
    big = lt.full((2,), 3e38)
    with np.errstate(all="raise"):  # whatever the user told NumPy
        assert (big * 10).tolist() == [float("inf")] * 2
        assert (lt.zeros(1) / 0).isnan().all()
        assert lt.tensor([-1.0]).sqrt().isnan().all()
        assert lt.tensor([1e30]).half().isinf().all()
        with pytest.raises(FloatingPointError):
            np.ones(1) / np.zeros(1)


def test_an_op_called_in_the_middle_of_a_kernel_runs(declared):
    @declared(infer=same)
    def probe_nested(xp, out, input):
        xp.copyto(out, (lt.ones(2) * 2).numpy())  # as a signal handler or a debugger might

    assert probe_nested(lt.zeros(2)).tolist() == [2.0, 2.0]


def test_a_kernel_that_raises_says_so_and_leaves_nothing_behind(declared):
    @declared(infer=same)
    def probe_raises(xp, out, input):
        raise RuntimeError("the kernel's own words")

    x = lt.ones(1000)
    ledger = backend(lt.device("cpu")).ledger
    start = ledger.live
    try:
        probe_raises(x)
    except RuntimeError as error:
        said = str(error)  # the error itself holds the frames, and they the result
    assert said == "the kernel's own words"
    assert ledger.live == start


def test_no_input_of_an_op_may_be_named_out():
    with pytest.raises(TypeError, match="may not be named out"):

        @op(name="badly_named", returns=("y",))
        def badly_named(xp, y, out):
            """Never declared."""


def test_writing_into_another_dtype_warns_of_nothing():
    x = lt.tensor([60000.0], dtype=lt.float16)
    x += lt.tensor([60000.0], dtype=lt.float32)
    assert x.tolist() == [float("inf")]


def test_samples_that_stop_inside_no_grad_leave_the_mode_alone(declared):
    def samples(make):
        with lt.no_grad():
            yield (make(3, 4),), {}
            yield (make(0, 4),), {}

    @declared(infer=same, samples=samples)
    def probe_samples(xp, out, input):
        xp.copyto(out, input)

    assert testing.scaled_sample(probe_samples.op, 0) is not None
    assert lt.is_grad_enabled()


def test_a_number_may_not_stand_for_an_input_declared_a_tensor(declared):
    @declared(infer=same, tensors=("input",), promote="arith")
    def probe_tensors(xp, out, input, other):
        xp.copyto(out, input)

    assert probe_tensors(lt.ones(2), 3).tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match=r"probe_tensors\(\): argument 'input' \(position 1\) must"):
        probe_tensors(3, lt.ones(2))
