"""Edges of convolution: tiles, what is kept, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.kernels.cpu import threads
from lowtide.framework.ops import correlation, tiles
from lowtide.framework.ops.registry import OPS


def numbers(*shape):
    return lt.tensor(np.random.default_rng(len(shape)).standard_normal(shape), requires_grad=True)


@pytest.mark.parametrize("tile", [1, 500, 1 << 20])
def test_results_do_not_depend_on_the_tile(tile, monkeypatch):
    x, w = numbers(3, 4, 9, 8), numbers(6, 2, 3, 3)
    found = []
    for size in (tile, 1 << 30):
        monkeypatch.setattr(tiles, "TILE", size)
        for op in (correlation.conv, correlation.conv_input_grad, correlation.conv_weight_grad):
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
        sizes.append(correlation.conv.op.infer(x._spec, w._spec, None, **spec)[1].nbytes)
    assert sizes[0] == sizes[1] <= 2 * tiles.TILE * threads.LIMIT


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


GEOMETRIES = {
    "plain": ((4, 6, 17, 19), (8, 6, 3, 3), {"padding": 1}),
    "strided": ((4, 6, 33, 19), (8, 6, 3, 2), {"stride": (2, 3), "padding": (2, 0)}),
    "dilated": ((4, 6, 25, 29), (8, 6, 3, 3), {"dilation": (2, 3), "padding": (4, 1)}),
    "wider": ((4, 6, 17, 19), (8, 6, 2, 2), {"padding": (1, 2)}),
    "pointwise": ((4, 16, 17, 19), (8, 16, 1, 1), {}),
    "groups": ((4, 6, 33, 29), (9, 2, 3, 3), {"groups": 3, "padding": 1}),
    "depthwise": ((4, 6, 33, 29), (6, 1, 3, 3), {"groups": 6, "padding": 1}),
    "two filters": ((4, 6, 33, 29), (12, 1, 3, 5), {"groups": 6, "stride": (2, 1), "padding": 2}),
    "three strides": ((4, 6, 33, 29), (6, 1, 2, 3), {"groups": 6, "stride": 3, "dilation": 2}),
    "kernel beyond": ((4, 30, 3, 3), (30, 1, 7, 7), {"groups": 30, "padding": 3}),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_compiled_and_threaded_convolutions_are_the_plain_ones(name, workers, dtype, monkeypatch):
    shape, window, options = GEOMETRIES[name]
    arrays = [numbers(*s).detach().numpy().astype(dtype) for s in (shape, window, window[:1])]
    monkeypatch.setattr(tiles, "TILE", 1 << 14)
    monkeypatch.setattr(tiles, "_WORTH", 1)
    ops = [OPS[n] for n in ("_conv", "_conv_input_grad", "_conv_weight_grad")]

    def always(*_, **__):
        return True

    big_enough = correlation.worth_compiling
    monkeypatch.setattr(correlation, "worth_compiling", always)

    def run(limit, kernels=True):
        monkeypatch.setattr(threads, "LIMIT", limit)
        for op in ops:
            found = [
                (kernel, always if when is big_enough else when, layout)
                for kernel, when, layout in op.kernels["cpu"]
            ]
            monkeypatch.setattr(op, "plans", {})
            monkeypatch.setattr(op, "kernels", {"cpu": found} if kernels else {})
        x, w, b = (lt.tensor(a, requires_grad=True) for a in arrays)
        out = lt.conv2d(x, w, b, **options)
        u = lt.tensor(np.random.default_rng(3).standard_normal(out.shape).astype(dtype))
        return [t.detach().numpy() for t in (out, *grad(out, [x, w], [u]))]

    found, plain = run(workers), run(1, kernels=False)
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    for a, b in zip(found, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * 50)


def test_a_signal_and_a_volume_take_the_same_compiled_loops(monkeypatch):
    for shape, window in (((4, 6, 2000), (8, 6, 5)), ((2, 4, 13, 11, 17), (5, 4, 3, 2, 3))):
        x, w = (
            lt.tensor(numbers(*s).detach().numpy(), requires_grad=True) for s in (shape, window)
        )
        convolve = lt.conv1d if len(shape) == 3 else lt.conv3d
        found = []
        for kernels in (True, False):
            for n in ("_conv", "_conv_input_grad", "_conv_weight_grad"):
                monkeypatch.setattr(OPS[n], "plans", {})
                if not kernels:
                    monkeypatch.setattr(OPS[n], "kernels", {})
            out = convolve(x, w, None, 2, 1)
            found.append([out, *grad(out, [x, w], [out.detach()])])
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(
                a.detach().numpy(), b.detach().numpy(), rtol=1e-11, atol=1e-9
            )


def test_a_threaded_gradient_repeats_its_bits(monkeypatch):
    monkeypatch.setattr(threads, "LIMIT", 3)
    monkeypatch.setattr(tiles, "_WORTH", 1)
    for n in ("_conv", "_conv_input_grad", "_conv_weight_grad"):
        monkeypatch.setattr(OPS[n], "plans", {})
    x, w = numbers(9, 4, 30, 30), numbers(8, 4, 3, 3)
    found = [[g.numpy() for g in grad(lt.conv2d(x, w).sum(), [x, w])] for _ in range(3)]
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_depthwise_convolution_takes_no_workspace():
    for device in ("cpu", "meta"):
        x = lt.ones(2, 16, 40, 40, device=device, requires_grad=True)
        w = lt.ones(16, 1, 3, 3, device=device, requires_grad=True)
        before = lt.memory_allocated(device)
        lt.reset_peak_memory_stats(device)
        out = lt.conv2d(x, w, padding=1, groups=16)
        assert lt.max_memory_allocated(device) - before == out.nbytes


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_complex_convolutions_are_conjugated(transposed):
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)

    function = lt.conv_transpose1d if transposed else lt.conv1d
    x = lt.tensor(drawn(1, 1, 6), requires_grad=True)
    w = lt.tensor(drawn(1, 1, 3), requires_grad=True)
    y = function(x, w)
    g = lt.tensor(drawn(*y.shape))
    gx, gw = grad(y, [x, w], g)
    # The convolution is a matrix times x and another times w; gradients are their adjoints' work.
    with lt.no_grad():
        of_x = np.stack(
            [function(e.reshape(1, 1, 6), w)[0, 0].numpy() for e in lt.eye(6).to(x.dtype)], 1
        )
        of_w = np.stack(
            [function(x, e.reshape(1, 1, 3))[0, 0].numpy() for e in lt.eye(3).to(x.dtype)], 1
        )
    np.testing.assert_allclose(gx[0, 0].numpy(), of_x.conj().T @ g[0, 0].numpy())
    np.testing.assert_allclose(gw[0, 0].numpy(), of_w.conj().T @ g[0, 0].numpy())


def test_output_padding_beyond_the_stride_leaves_the_gradient_its_shape():
    x = lt.ones(1, 1, 4, dtype=lt.float64, requires_grad=True)
    w = lt.ones(1, 1, 2, dtype=lt.float64, requires_grad=True)
    y = lt.conv_transpose1d(x, w, stride=2, output_padding=3, dilation=4)
    y.sum().backward()
    assert x.grad.tolist() == [[[2.0] * 4]]
    assert w.grad.tolist() == [[[4.0] * 2]]
