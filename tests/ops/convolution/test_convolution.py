"""Edges of convolution: tiles, what is kept, messages."""

import sys
from functools import lru_cache

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.kernels.runtime import threads, thresholds
from lowtide.framework.ops.convolution import direct, im2col, primitives, routes, sizes
from lowtide.framework.ops.registry import OPS

NAMES = ("_conv", "_conv_input_grad", "_conv_weight_grad")


def chosen_anew(monkeypatch):
    """Let every route from here on be chosen and planned again, for changed settings."""
    monkeypatch.setattr(primitives, "route", lru_cache(routes.route.__wrapped__))
    for n in NAMES:
        monkeypatch.setattr(OPS[n], "plans", {})


def numbers(*shape):
    return lt.tensor(np.random.default_rng(len(shape)).standard_normal(shape), requires_grad=True)


@pytest.mark.parametrize("tile", [1, 500, 1 << 20])
def test_results_do_not_depend_on_the_tile(tile, monkeypatch):
    x, w = numbers(3, 4, 9, 8), numbers(6, 2, 3, 3)
    found = []
    for size in (tile, 1 << 30):
        monkeypatch.setattr(thresholds, "TILE_BYTES", size)
        chosen_anew(monkeypatch)
        out = lt.conv2d(x, w, None, 2, 1, 1, 2)
        found.append([out, *grad(out, [x, w], [out.detach()])])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-12, atol=1e-12)


def test_workspace_does_not_grow_with_the_batch():
    spec = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    sizes = []
    for batch in (32 * threads.LIMIT, 320 * threads.LIMIT):
        x, w = (lt.tensor(np.zeros(s)) for s in ((batch, 16, 32, 32), (8, 16, 3, 3)))
        sizes.append(primitives._conv.op.infer(x._spec, w._spec, None, **spec)[1].nbytes)
    assert sizes[0] == sizes[1] <= 2 * thresholds.TILE_BYTES * threads.LIMIT


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
    "both": ((4, 6, 25, 29), (12, 6, 3, 4), {"stride": 2, "dilation": (2, 3), "padding": (4, 1)}),
    "wider": ((4, 6, 17, 19), (8, 6, 2, 2), {"padding": (1, 2)}),
    "steps beyond": ((4, 6, 17, 19), (9, 6, 2, 2), {"stride": (3, 5)}),
    "few rows": ((4, 18, 9, 70), (3, 18, 3, 3), {"padding": (2, 1)}),
    "one image": ((1, 20, 40, 33), (17, 20, 3, 3), {"padding": 1}),
    "channels": ((2, 300, 5, 6), (11, 300, 3, 3), {"padding": 1}),
    "one channel": ((4, 1, 17, 19), (8, 1, 3, 3), {"padding": 1}),
    "pointwise": ((4, 16, 17, 19), (8, 16, 1, 1), {}),
    "pointwise steps": ((4, 16, 17, 19), (8, 16, 1, 1), {"stride": 2}),
    "groups": ((4, 6, 33, 29), (9, 2, 3, 3), {"groups": 3, "padding": 1}),
    "same": ((4, 6, 21, 20), (9, 6, 4, 2), {"padding": "same"}),
    "signal": ((4, 6, 900), (8, 6, 5), {"padding": 2}),
    "signal steps": ((4, 6, 901), (8, 6, 5), {"stride": 3, "dilation": 2, "padding": 1}),
    "volume": ((2, 6, 7, 11, 17), (5, 6, 3, 2, 3), {"padding": 1}),
    "volume steps": ((2, 6, 9, 11, 17), (10, 3, 3, 2, 3), {"stride": (2, 1, 2), "groups": 2}),
    "depthwise": ((4, 6, 33, 29), (6, 1, 3, 3), {"groups": 6, "padding": 1}),
    "two filters": ((4, 6, 33, 29), (12, 1, 3, 5), {"groups": 6, "stride": (2, 1), "padding": 2}),
    "three strides": ((4, 6, 33, 29), (6, 1, 2, 3), {"groups": 6, "stride": 3, "dilation": 2}),
    "wide windows": (
        (2, 4, 21, 37),
        (8, 1, 4, 5),
        {"groups": 4, "dilation": (2, 3), "padding": (7, 9)},
    ),
    "narrow": ((3, 5, 40, 7), (5, 1, 3, 3), {"groups": 5, "padding": (0, 1)}),
    "kernel beyond": ((4, 30, 3, 3), (30, 1, 7, 7), {"groups": 30, "padding": 3}),
}


def compiled(monkeypatch, wanted):
    """Let every convolution from here on be compiled, or none."""
    monkeypatch.setattr(sizes, "worth_compiling", lambda *_, **__: wanted)
    chosen_anew(monkeypatch)


def convolved(name, arrays, dtype):
    """The result of a geometry, and both gradients of a product with random numbers."""
    options = GEOMETRIES[name][2]
    convolve = (lt.conv1d, lt.conv2d, lt.conv3d)[arrays[0].ndim - 3]
    x, w, b = (lt.tensor(a, requires_grad=True) for a in arrays)
    out = convolve(x, w, b, **options)
    u = lt.tensor(np.random.default_rng(3).standard_normal(out.shape).astype(dtype))
    return [t.detach().numpy() for t in (out, *grad(out, [x, w], [u]))]


@pytest.mark.quick(12)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.compiled
def test_compiled_and_threaded_convolutions_are_the_plain_ones(name, workers, dtype, monkeypatch):
    shape, window, _ = GEOMETRIES[name]
    arrays = [numbers(*s).detach().numpy().astype(dtype) for s in (shape, window, window[:1])]
    monkeypatch.setattr(direct, "TILE", 1 << 14)
    monkeypatch.setattr(direct, "WEIGHT_TILE", 1 << 14)
    monkeypatch.setattr(thresholds, "TILE_BYTES", 1 << 14)
    monkeypatch.setattr(thresholds, "PRODUCT_THREAD", 1)
    monkeypatch.setattr(direct, "POSITIONS", 40)
    monkeypatch.setattr(direct, "PRODUCTS", 100)
    found = []
    for limit, wanted in ((workers, True), (1, False)):
        monkeypatch.setattr(threads, "LIMIT", limit)
        compiled(monkeypatch, wanted)
        found.append(convolved(name, arrays, dtype))
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * 50)


MORE = ("strided", "groups", "volume steps")  # each is compiled anew
FOR_REGISTERS = ["plain", *(pytest.param(n, marks=pytest.mark.deep) for n in MORE)]


def sizes_of(name, dtype):
    """Those of a geometry, for each side, and the shape of the result."""
    shape, window, options = GEOMETRIES[name]
    nd = len(shape) - 2

    def each(value):
        return (value,) * nd if isinstance(value, int) else tuple(value)

    padding = options.get("padding", 0)
    padding = tuple((p, p) for p in each(1 if padding == "same" else padding))
    stride, dilation = each(options.get("stride", 1)), each(options.get("dilation", 1))
    size = tuple(map(im2col.output_size, shape[2:], window[2:], stride, padding, dilation))
    groups = options.get("groups", 1)
    geometry = (shape, window, size, stride, padding, dilation, groups, np.dtype(dtype))
    sides = (sizes.OUT, sizes.INPUT, sizes.WEIGHT)
    return [sizes.Sizes(side, True, *geometry) for side in sides], (shape[0], window[0], *size)


def computed_by(routes, of, x, w, y):
    """The result, and the gradients of both for ``y``, each by its route."""
    found = [np.zeros_like(y), np.zeros_like(x), np.zeros_like(w)]
    given = (x, w, found[0]), (found[1], w, y), (x, found[2], y)
    for route, size, arrays in zip(routes, of, given, strict=True):
        made = route(size)
        made.run(np, [np.empty(s, x.dtype) for s in made.scratch], *arrays)
    return found


def forget_parts(monkeypatch):
    """Let functions that kernels call be compiled anew, in this test and for those after it.

    One that is compiled keeps the size that it was compiled for, and becomes part of all kernels.
    """
    from lowtide.framework.kernels.cpu.compiler.kernel import Kernel

    for name, module in list(sys.modules.items()):
        if name.startswith("lowtide.framework.kernels.cpu"):
            for made in vars(module).values():
                if isinstance(made, Kernel):
                    monkeypatch.setattr(made, "_callee", None)


@pytest.mark.deep
@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("name", FOR_REGISTERS)
def test_registers_of_each_size_give_the_same_sums(name, size, monkeypatch):
    # Processors have registers of 64 bytes or smaller ones: the loop is written for both.
    from lowtide.framework.kernels.cpu.compiler.kernel import Kernel
    from lowtide.framework.kernels.cpu.convolution import direct as kernels
    from lowtide.framework.kernels.cpu.support import jit, microkernel

    of, result = sizes_of(name, np.float32)
    draw = np.random.default_rng(5)
    arrays = [draw.standard_normal(s).astype(np.float32) for s in (*GEOMETRIES[name][:2], result)]
    exact, _ = sizes_of(name, np.float64)
    expected = computed_by([im2col.Columns] * 3, exact, *[a.astype(np.float64) for a in arrays])
    monkeypatch.setattr(direct.processor, "register_bytes", lambda: size)
    for module in (microkernel, kernels):
        monkeypatch.setattr(module, "GROUP", size)
    monkeypatch.setattr(microkernel, "_AT_ONCE", {32: 4, 64: 8}[size])
    monkeypatch.setattr(microkernel, "_STEPS", 20)
    remade = [name for name, k in vars(kernels).items() if type(k) is Kernel]
    assert {"accumulate", "convolve", "sum_windows"} < set(remade)
    forget_parts(monkeypatch)
    for name in remade:  # those made before have the usual size in them
        again = jit.compiled(getattr(kernels, name).py_func)
        monkeypatch.setattr(kernels, name, again)
    routes = [direct.Direct, direct.Direct, direct.DirectWeight]
    for found, value in zip(computed_by(routes, of, *arrays), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [n for n in GEOMETRIES if "groups" not in GEOMETRIES[n][2]])
@pytest.mark.compiled
def test_no_kernel_writes_beyond_its_workspace(name, dtype):
    of, result = sizes_of(name, dtype)

    def guarded(shape):
        whole = np.full((2, np.prod(shape)), 7, dtype)  # the second half is not to be written
        return whole, whole[0].reshape(shape)

    x, w, y = (np.ones(s, dtype) for s in (*GEOMETRIES[name][:2], result))
    for size in of:
        route = direct.DirectWeight if size.side == sizes.WEIGHT else direct.Direct
        found = route(size)
        buffers = [guarded(s) for s in found.scratch]
        found.run(np, [inner for _, inner in buffers], x, w, y)
        for whole, _ in buffers:
            assert (whole[1] == 7).all()


@pytest.mark.parametrize(("side", "way"), [(16, im2col.Columns), (17, direct.DirectWeight)])
def test_the_weight_of_one_element_is_a_product_where_images_are_small(side, way):
    size = (side, side)
    geometry = ((8, 64, *size), (32, 64, 1, 1), size, (1, 1), ((0, 0),) * 2, (1, 1), 1)
    assert type(routes.route(sizes.WEIGHT, True, *geometry, np.dtype(np.float32))) is way


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_the_windows_that_see_it(value, monkeypatch):
    compiled(monkeypatch, True)
    x, w = (numbers(*s).detach().float() for s in ((1, 3, 12, 21), (8, 3, 3, 3)))
    x[0, 1, 5, 16] = value
    seen = ~np.isfinite(lt.conv2d(x, w, padding=1).numpy())
    expected = np.zeros_like(seen)
    expected[:, :, 4:7, 15:18] = True
    np.testing.assert_array_equal(seen, expected)


def test_a_depthwise_window_leaves_out_what_is_beyond_the_image(monkeypatch):
    compiled(monkeypatch, True)
    x, w = lt.ones(2, 3, 9, 20), lt.ones(3, 1, 3, 3)
    w[:, :, 0, 0] = float("inf")  # times a padding of 0 would be no number
    out = lt.conv2d(x, w, padding=1, groups=3).numpy()
    assert np.isfinite(out[:, :, 0]).all()
    assert np.isfinite(out[:, :, :, 0]).all()
    assert np.isinf(out[:, :, 1:, 1:]).all()


@pytest.mark.parametrize("batch", [1, 5])
def test_the_bits_of_a_result_do_not_depend_on_the_threads(batch, monkeypatch):
    x, w = (numbers(*s).detach().float() for s in ((batch, 24, 20, 21), (40, 24, 3, 3)))
    monkeypatch.setattr(thresholds, "PRODUCT_THREAD", 1)
    found = []
    for limit in (1, 2, 3):
        monkeypatch.setattr(threads, "LIMIT", limit)
        compiled(monkeypatch, True)
        x.requires_grad_()
        out = lt.conv2d(x, w, padding=1)
        found.append((out.detach().numpy(), grad(out.sum(), [x])[0].numpy()))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_workspace_is_what_was_foretold(monkeypatch):
    compiled(monkeypatch, True)
    peaks = []
    for device in ("cpu", "meta"):
        x, w = (
            lt.ones(*s, device=device, requires_grad=True)
            for s in ((4, 20, 30, 31), (24, 20, 3, 3))
        )
        before = lt.memory_allocated(device)
        lt.reset_peak_memory_stats(device)
        lt.conv2d(x, w, stride=2, padding=1).sum().backward()
        peaks.append(lt.max_memory_allocated(device) - before)
    assert peaks[0] == peaks[1]


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", [lt.float32, lt.float64])
def test_a_threaded_gradient_repeats_its_bits(dtype, monkeypatch):
    monkeypatch.setattr(threads, "LIMIT", 3)
    monkeypatch.setattr(thresholds, "PRODUCT_THREAD", 1)
    chosen_anew(monkeypatch)
    x, w = (numbers(*s).detach().to(dtype) for s in ((9, 4, 30, 30), (8, 4, 3, 3)))
    x.requires_grad_(), w.requires_grad_()
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


def test_the_bias_of_a_transposed_convolution_needs_no_second_result():
    x, w, b = (
        lt.ones(*s, device="meta", requires_grad=True) for s in ((2, 8, 9, 9), (8, 4, 2, 2), (4,))
    )
    peaks = []
    for bias in (None, b):
        before = lt.memory_allocated("meta")
        lt.reset_peak_memory_stats("meta")
        lt.conv_transpose2d(x, w, bias, stride=2)
        peaks.append(lt.max_memory_allocated("meta") - before)
    assert peaks[0] == peaks[1]


def test_autocast_decides_the_type_of_a_transposed_convolution_with_bias():
    x, w, b = lt.ones(1, 2, 3, 3), lt.ones(2, 2, 2, 2), lt.ones(2)
    with lt.autocast("cpu", dtype=lt.bfloat16):
        assert lt.conv_transpose2d(x, w, b).dtype == lt.bfloat16


def test_every_place_of_a_transposed_convolution_is_filled_where_windows_are_one_element():
    x, w = numbers(1, 2, 3, 4), numbers(2, 3, 1, 1)
    y = lt.conv_transpose2d(x, w, output_padding=1, dilation=2)
    assert not y[:, :, 3:].detach().numpy().any()
    assert not y[:, :, :, 4:].detach().numpy().any()
    plain = lt.conv_transpose2d(x, w)
    np.testing.assert_array_equal(y[:, :, :3, :4].detach().numpy(), plain.detach().numpy())
    gx, gw = grad(y[:, :, :3, :4].sum(), [x, w])
    for a, b in zip((gx, gw), grad(plain.sum(), [x, w]), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)


def test_small_integers_are_convolved_in_tiles_of_their_workspace():
    x, w = lt.ones(2, 16, 40, 40, dtype=lt.int8), lt.ones(4, 16, 2, 2, dtype=lt.int8)
    assert (lt.conv2d(x, w).numpy() == 64).all()


def test_an_image_without_channels_gives_zeros_and_an_empty_gradient():
    x, w = numbers(2, 0, 5, 5), numbers(3, 0, 2, 2)
    y = lt.conv2d(x, w)
    assert y.shape == (2, 3, 4, 4)
    assert not y.detach().numpy().any()
    assert [g.shape for g in grad(y.sum(), [x, w])] == [x.shape, w.shape]


SIZES = {  # route: input, weight, stride
    "Sliding": ((4, 8, 32, 32), (8, 1, 3, 3), 1),
    "SmallPlanes": ((16, 16, 9, 9), (16, 1, 3, 3), 2),
    "SlidingStrided": ((4, 8, 72, 72), (8, 1, 3, 3), 2),
    "Depthwise": ((4, 8, 4096), (8, 1, 3), 1),
    "Winograd": ((4, 24, 32, 32), (16, 24, 3, 3), 1),
    "Direct": ((4, 8, 32, 32), (8, 8, 3, 3), 1),
    "Pointwise": ((4, 8, 32, 32), (8, 8, 1, 1), 1),
    "Columns": ((4, 8, 8, 8), (8, 8, 3, 3), 1),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_table_says_which_route_computes_a_convolution(name):
    shape, window, step = SIZES[name]
    dims = len(shape) - 2
    size = ((shape[2] - window[2]) // step + 1,) * dims
    groups = shape[1] // window[1]
    around, ones = ((0, 0),) * dims, (1,) * dims
    rest = (shape, window, size, (step,) * dims, around, ones, groups, np.dtype("f"))
    names = [type(routes.route(s, True, *rest)).__name__ for s in routes.ALL]
    others = {"Winograd": "WinogradWeight", "Direct": "DirectWeight", "Pointwise": "DirectWeight"}
    assert names == [name, name, others.get(name, name)]
    anywhere = "Pointwise" if name == "Pointwise" else "Columns"
    names = [type(routes.route(s, False, *rest)).__name__ for s in routes.ALL]
    assert names == [anywhere, anywhere, "Columns"]
