"""Edges of normalization: what is kept, running averages, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.dtypes import bfloat16, float32, float64, tolerance
from lowtide.framework.ops.normalization import primitives
from lowtide.nn import functional as F


def numbers(*shape, dtype=float64):
    values = np.random.default_rng(len(shape)).standard_normal(shape)
    return lt.tensor(values, dtype=dtype, requires_grad=True)


def kept(out):
    return {k.label.split(".")[1]: k.nbytes for k in out.grad_fn.saved}


def test_layer_norm_keeps_its_input_and_two_numbers_per_row():
    found = F.layer_norm(numbers(8, 6), 6, numbers(6), numbers(6))
    node = found.grad_fn
    while "Norm" not in node.name():
        node = node.next_functions[0][0]
    labels = {k.label.split(".")[1]: k.nbytes for k in node.saved}
    assert labels == {"input": 8 * 6 * 8, "weight": 6 * 8, "mean": 64, "rstd": 64}


@pytest.mark.parametrize("dtype", [lt.float16, lt.bfloat16])
def test_half_precision_adds_the_epsilon_of_float32(dtype):
    x = (lt.randn(5, 6) * 0.01).to(dtype)
    expected = F.rms_norm(x, 6, eps=2.0**-23)
    assert lt.equal(F.rms_norm(x, 6), expected)
    assert lt.equal(lt.nn.RMSNorm(6).to(dtype)(x), expected)
    assert 0.5 < float(expected.float().square().mean()) <= 1.0


def test_rms_norm_keeps_one_number_per_row():
    assert kept(F.rms_norm(numbers(8, 6), 6)) == {"input": 8 * 6 * 8, "rstd": 64}


def test_statistics_of_half_types_are_float32():
    x = numbers(4, 64, dtype=bfloat16)
    out = F.layer_norm(x, 64, numbers(64, dtype=float32), None)
    assert out.dtype is bfloat16
    assert kept(out)["rstd"] == 4 * 4
    wide = F.layer_norm(x.detach().to(float64), 64, numbers(64), None)
    rtol, _ = tolerance(bfloat16)
    np.testing.assert_allclose(
        out.detach().to(float64).numpy(), wide.detach().numpy(), rtol=rtol, atol=rtol
    )


def test_a_large_mean_does_not_spoil_the_variance():
    x = numbers(4, 64, dtype=float32).detach()
    shifted = F.layer_norm(x + 1000.0, 64)
    np.testing.assert_allclose(shifted.numpy(), F.layer_norm(x, 64).numpy(), atol=1e-3)


def test_running_averages_carry_no_graph():
    mean, var = lt.zeros(3), lt.ones(3)
    out = F.batch_norm(numbers(4, 3, dtype=float32), mean, var, training=True)
    assert out.requires_grad
    assert not mean.requires_grad
    assert not var.requires_grad
    assert mean.numpy().any()


def test_evaluation_leaves_the_running_averages():
    mean, var = lt.zeros(3), lt.ones(3)
    F.batch_norm(numbers(4, 3, dtype=float32), mean, var)
    assert mean.tolist() == [0.0] * 3
    assert var.tolist() == [1.0] * 3


def test_empty_batches_pass():
    assert F.layer_norm(lt.zeros(0, 4), 4).shape == (0, 4)
    assert F.rms_norm(lt.zeros(0, 4), 4).shape == (0, 4)
    assert F.group_norm(lt.zeros(0, 4, 2), 2).shape == (0, 4, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.layer_norm(numbers(2, 3), 4), RuntimeError, "Given normalized_shape"),
        (lambda: F.layer_norm(numbers(2, 3), ()), RuntimeError, "at least 1-dimensional"),
        (lambda: F.layer_norm(numbers(2, 3), 3, numbers(4)), RuntimeError, "same shape"),
        (
            lambda: F.layer_norm(numbers(2, 3), 3, numbers(3, dtype=float32)),
            RuntimeError,
            "in the dtype of input",
        ),
        (lambda: F.group_norm(numbers(2, 3), 2), RuntimeError, "divisible by num_groups"),
        (lambda: F.group_norm(numbers(2, 4), 2, numbers(3)), RuntimeError, "4 elements"),
        (lambda: F.batch_norm(numbers(2, 3), None, None), RuntimeError, "to be defined"),
        (lambda: F.batch_norm(numbers(2, 3), numbers(4), None), RuntimeError, "3 elements"),
        (
            lambda: F.batch_norm(numbers(1, 3), None, None, training=True),
            ValueError,
            "more than 1 value per channel",
        ),
        (lambda: F.instance_norm(numbers(1, 3, 1)), ValueError, "more than 1 spatial"),
        (lambda: F.local_response_norm(numbers(1, 3), 2), ValueError, "3D or higher"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("affine", [True, False])
def test_the_compiled_kernel_equals_the_plain_one(affine, monkeypatch):
    x = numbers(300, 70)
    w, b = (numbers(70), numbers(70)) if affine else (None, None)
    sources = [t for t in (x, w, b) if t is not None]
    found = []
    for kernels in (None, {}):
        for op in (primitives.layer_norm_view.op, primitives._norm_grad.op):
            op.plans.clear()
            if kernels is not None:
                monkeypatch.setattr(op, "kernels", kernels)
        out = F.layer_norm(x, 70, w, b)
        found.append([out, *grad(out, sources, [out.detach() * out.detach()])])
        for op in (primitives.layer_norm_view.op, primitives._norm_grad.op):
            op.plans.clear()
    for a, c in zip(*found, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), c.detach().numpy(), rtol=1e-9, atol=1e-11)
