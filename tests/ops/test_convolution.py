"""Edges of convolution: tiles, what is kept, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.ops import convolution
from lowtide.framework.ops.registry import OPS


def numbers(*shape):
    return lt.tensor(np.random.default_rng(len(shape)).standard_normal(shape), requires_grad=True)


@pytest.mark.parametrize("tile", [1, 500, 1 << 20])
def test_results_do_not_depend_on_the_tile(tile, monkeypatch):
    x, w = numbers(3, 4, 9, 8), numbers(6, 2, 3, 3)
    found = []
    for size in (tile, 1 << 30):
        monkeypatch.setattr(convolution, "TILE", size)
        for op in (convolution.conv, convolution.conv_input_grad, convolution.conv_weight_grad):
            op.op.plans.clear()
        out = lt.conv2d(x, w, None, 2, 1, 1, 2)
        found.append([out, *grad(out, [x, w], [out.detach()])])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-12, atol=1e-12)


def test_workspace_does_not_grow_with_the_batch():
    spec = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    sizes = []
    for batch in (64, 640):
        x, w = (lt.tensor(np.zeros(s)) for s in ((batch, 16, 32, 32), (8, 16, 3, 3)))
        sizes.append(convolution.conv.op.infer(x._spec, w._spec, None, **spec)[1].nbytes)
    assert sizes[0] == sizes[1] <= 2 * convolution.TILE


def test_only_what_a_gradient_needs_is_kept():
    x, w = numbers(2, 3, 5, 5), numbers(4, 3, 3, 3)
    assert [k.label for k in lt.conv2d(x, w.detach()).grad_fn.saved] == ["_conv.weight"]
    assert [k.label for k in lt.conv2d(x.detach(), w).grad_fn.saved] == ["_conv.input"]


def test_a_transposed_convolution_is_the_adjoint():
    x, w = numbers(2, 3, 6, 5), numbers(4, 3, 3, 2)
    y = lt.conv2d(x, w, stride=2, padding=1)
    u = numbers(*y.shape)
    back = lt.conv_transpose2d(u, w, stride=2, padding=1, output_padding=(1, 1))
    assert back.shape == x.shape
    np.testing.assert_allclose((y * u).sum().item(), (x * back).sum().item(), rtol=1e-10)


def test_one_image_needs_no_batch_dimension():
    x, w = numbers(3, 6, 5), numbers(4, 3, 3, 2)
    np.testing.assert_array_equal(
        lt.conv2d(x, w).detach().numpy(), lt.conv2d(x.unsqueeze(0), w)[0].detach().numpy()
    )


def test_an_empty_batch_has_an_empty_result_and_a_zero_gradient():
    x, w = numbers(0, 3, 6, 5), numbers(4, 3, 3, 2)
    out = lt.conv2d(x, w)
    assert out.shape == (0, 4, 4, 4)
    (g,) = grad(out.sum(), [w])
    assert not g.numpy().any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (2, 5, 6, 6)}, "must have 3 channels"),
        ({"x": (6, 6)}, "Expected 3D .unbatched. or 4D"),
        ({"bias": (3,)}, "bias must have shape"),
        ({"x": (2, 3, 2, 6)}, "Kernel size can't be greater"),
        ({"padding": "equal"}, "'same', 'valid'"),
        ({"padding": "same", "stride": 2}, "strided"),
        ({"padding": -1}, "negative padding"),
        ({"stride": 0}, "must be positive"),
        ({"stride": (1, 1, 1)}, "expected one value or 2"),
    ],
)
def test_mistakes_are_named(change, message):
    arguments = {"x": (2, 3, 6, 6), "bias": (4,), "stride": 1, "padding": 0} | change
    x, bias = numbers(*arguments.pop("x")), numbers(*arguments.pop("bias"))
    with pytest.raises(RuntimeError, match=message):
        lt.conv2d(x, numbers(4, 3, 3, 3), bias, **arguments)


def test_output_padding_beyond_the_stride_is_refused():
    with pytest.raises(RuntimeError, match="output padding must be smaller"):
        lt.conv_transpose2d(numbers(1, 2, 3, 3), numbers(2, 1, 2, 2), output_padding=1)


def test_flops_count_multiplications_and_additions():
    x, w = numbers(2, 3, 6, 6), numbers(4, 3, 3, 3)
    spec = {"stride": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": 1}
    assert OPS["_conv"].flops(x._spec, w._spec, None, **spec) == 2 * (2 * 4 * 4 * 4) * 27
