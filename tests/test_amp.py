"""Autocast converts what the declarations say, costs nothing outside, and its gradients fit."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn
from lowtide.amp import GradScaler, autocast, custom_bwd, custom_fwd
from lowtide.framework.amp import autocast as amp
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.modes import local
from lowtide.framework.ops import autocast_policy
from lowtide.framework.ops.registry import OPS
from lowtide.optim import SGD

BF16, F16, F32, F64 = lt.bfloat16, lt.float16, lt.float32, lt.float64


@pytest.fixture(autouse=True)
def closed():
    """Whatever a test does, afterwards its thread is outside of any region."""
    yield
    assert lt.is_autocast_enabled("cpu") is False
    assert local.state.autocast is None


# Which ops


def test_products_run_in_lower_precision_and_losses_in_float32():
    x, w = lt.randn(3, 4), lt.randn(4, 4, requires_grad=True)
    with autocast("cpu"):
        y = x @ w
        assert y.dtype is BF16
        assert F.linear(x, w).dtype is lt.mm(x, w).dtype is lt.einsum("ij,jk", x, w).dtype is BF16
        assert F.conv1d(lt.randn(1, 2, 5), lt.randn(3, 2, 2)).dtype is BF16
        assert F.conv_transpose2d(lt.randn(1, 2, 5, 5), lt.randn(2, 3, 2, 2)).dtype is BF16
        q = lt.randn(1, 2, 3, 4)
        assert F.scaled_dot_product_attention(q, q, q).dtype is BF16
        assert y.relu().dtype is y.softmax(-1).dtype is (y + 1).dtype is BF16  # as they are given
        assert F.mse_loss(y, x).dtype is F.cross_entropy(y, lt.tensor([0, 1, 2])).dtype is F32
        assert lt.cat([y, x]).dtype is F32
    assert (x @ w).dtype is F32


@pytest.mark.parametrize(
    ("op", "device", "before", "inside"),
    [(lt.matmul, "cpu", F32, BF16), (lt.matmul, "sim", F32, F16), (lt.pow, "sim", F16, F32)],
)
def test_what_ran_before_a_region_is_converted_inside_and_not_after_it(op, device, before, inside):
    """Calls of two operands whose plan is known take a shorter way through the dispatcher."""
    a, b = (lt.rand(3, 3).to(device, before) for _ in range(2))
    for _ in range(2):
        assert op(a, b).dtype is before
    for _ in range(2):
        with autocast(device):
            assert op(a, b).dtype is inside
        assert op(a, b).dtype is before


def test_float64_and_integers_are_left_alone():
    with autocast("cpu"):
        assert (lt.ones(2, 2, dtype=F64) @ lt.ones(2, 2, dtype=F64)).dtype is F64
        assert (lt.ones(2, 2, dtype=lt.int64) @ lt.ones(2, 2, dtype=lt.int64)).dtype is lt.int64


def test_devices_have_lists_of_their_own():
    x = lt.randn(2, 3).to("sim")
    with autocast("sim"):
        y = x @ x.T
        assert y.dtype is F16
        assert y.softmax(-1).dtype is y.exp().dtype is y.sum().dtype is F32
        assert F.layer_norm(y, (2,)).dtype is F32
        assert (x.cpu() @ x.cpu().T).dtype is F32, "a region is for one device type"
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(y.sigmoid(), y.sigmoid())
    with autocast("cpu"):
        z = x.cpu() @ x.cpu().T
        assert z.softmax(-1).dtype is z.exp().dtype is BF16
        p = z.sigmoid()
        assert F.binary_cross_entropy(p, p).dtype is F32


def test_mixed_inputs_of_an_op_that_wants_one_type_take_the_widest():
    low, wide = lt.zeros(4, dtype=BF16), lt.ones(4)
    index = lt.tensor([0, 1, 2, 3])
    with autocast("cpu"):
        assert low.scatter_add(0, index, wide).dtype is F32
        assert low.scatter_add(0, index, low).dtype is BF16


def test_every_policy_is_one_that_amp_knows():
    known = {"low", "float32", "promote", "refuse"}
    policies = [op.autocast for op in OPS.values() if op.autocast is not None]
    for policy in policies:
        assert set(policy.values() if isinstance(policy, dict) else [policy]) <= known
    assert len(policies) > 30


# Regions


def test_regions_nest_and_can_be_switched_off_inside():
    x = lt.ones(2, 2)
    with autocast("cpu"):
        with autocast("cpu", dtype=F16):
            assert (x @ x).dtype is F16
            assert lt.get_autocast_dtype("cpu") is F16
            with autocast("cpu", enabled=False):
                assert (x @ x).dtype is F32
                assert not lt.is_autocast_enabled("cpu")
            assert (x @ x).dtype is F16
        assert (x @ x).dtype is BF16
        assert lt.is_autocast_enabled("cpu")
        assert not lt.is_autocast_enabled("cuda")


def test_a_region_ends_with_an_error_inside():
    with pytest.raises(ZeroDivisionError), autocast("cpu"):
        _ = 1 / 0
    assert (lt.ones(2, 2) @ lt.ones(2, 2)).dtype is F32


def test_one_region_object_may_be_entered_inside_itself():
    x, region = lt.ones(2, 2), autocast("cpu")
    with region:
        with region:
            assert (x @ x).dtype is BF16
        assert (x @ x).dtype is BF16
    assert (x @ x).dtype is F32


def test_it_decorates_functions():
    @autocast("cpu")
    def product(x, *, y):
        return x @ y

    assert product(lt.ones(2, 2), y=lt.ones(2, 2)).dtype is BF16
    assert product.__name__ == "product"
    with pytest.raises(TypeError, match="callable"):
        autocast("cpu")(3)


def test_another_thread_is_not_in_the_region():
    found = []
    with autocast("cpu"):
        other = threading.Thread(target=lambda: found.append((lt.ones(2, 2) @ lt.ones(2, 2)).dtype))
        other.start()
        other.join()
    assert found == [F32]


def test_two_threads_may_be_inside_at_once():
    inside, leave, found = threading.Barrier(2), threading.Barrier(2), []

    def work(last):
        with autocast("cpu"):
            inside.wait(600)
            if not last:
                leave.wait(600)
        if last:
            leave.wait(600)
        found.append((lt.ones(2, 2) @ lt.ones(2, 2)).dtype)

    threads = [threading.Thread(target=work, args=(k,)) for k in (True, False)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [F32, F32]


def test_bad_arguments():
    with pytest.raises(ValueError, match="device_type"):
        autocast(3)
    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'tpu'"):
        autocast("tpu")
    with pytest.warns(UserWarning, match="Disabling autocast"):
        region = autocast("cpu", dtype=F64)
    with region:
        assert (lt.ones(2, 2) @ lt.ones(2, 2)).dtype is F32


def test_a_gpu_that_is_not_there_disables_with_a_warning(monkeypatch):
    monkeypatch.setattr(amp, "_has_cuda", lambda: False)
    with pytest.warns(UserWarning, match="CUDA is not available"):
        region = autocast("cuda")
    with region:
        assert not lt.is_autocast_enabled("cuda")
    autocast("cuda", enabled=False)  # no warning


def test_the_functions_of_pytorch_around_it():
    assert lt.get_autocast_dtype("cuda") is F16
    assert lt.amp.is_autocast_available("cpu")
    assert not lt.amp.is_autocast_available("tpu")
    lt.set_autocast_dtype("cpu", F16)
    lt.set_autocast_enabled("cpu", True)
    try:
        assert (lt.ones(2, 2) @ lt.ones(2, 2)).dtype is F16
        lt.set_autocast_dtype("cpu", BF16)
        assert (lt.ones(2, 2) @ lt.ones(2, 2)).dtype is BF16
    finally:
        lt.set_autocast_enabled("cpu", False)
    with lt.cpu.amp.autocast():
        assert (lt.ones(2, 2) @ lt.ones(2, 2)).dtype is BF16
        assert lt.is_autocast_cache_enabled()


# Gradients


def test_gradients_have_the_types_of_the_parameters_and_nearly_the_values():
    lt.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(144),
        nn.Linear(144, 5),
    )
    x, y = lt.randn(8, 1, 8, 8), lt.arange(8) % 5
    found = []
    for enabled in (False, True):
        net.zero_grad()
        with autocast("cpu", enabled=enabled):
            out = net(x)
            loss = F.cross_entropy(out, y)
        assert out.dtype is (BF16 if enabled else F32)
        loss.backward()
        assert {p.grad.dtype for p in net.parameters()} == {F32}
        found.append([p.grad.numpy() for p in net.parameters()])
    for exact, cast in zip(*found, strict=True):  # bfloat16 has 8 bits
        assert np.linalg.norm(cast - exact) < 0.2 * np.linalg.norm(exact) + 0.02


def test_a_backward_inside_a_region_computes_what_one_outside_does():
    def gradient(inside):
        w = lt.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()
        with autocast("cpu"):
            loss = ((lt.ones(3, 4) @ w).softmax(-1) @ w).float().pow(2).sum()
            if inside:
                loss.backward()
                assert (w @ w).dtype is BF16, "the region goes on after backward"
        if not inside:
            loss.backward()
        return w.grad.tolist()

    assert gradient(True) == gradient(False)


def test_rules_of_wider_tensors_are_not_rounded_by_a_backward_inside():
    w = lt.full((2, 2), 1 / 3, requires_grad=True)
    with autocast("cpu", enabled=False):
        y = w @ w
    with autocast("cpu"):
        y.sum().backward()
    assert w.grad.tolist() == [[pytest.approx(4 / 3, abs=1e-6)] * 2] * 2


def test_a_function_runs_its_backward_in_the_forward_s_region():
    class Product(lt.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu")
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            product = g.float() @ x.float()
            seen.append(product.dtype)
            return product.float() * 2

    seen = []
    x = lt.ones(2, 2, requires_grad=True)
    with autocast("cpu"):
        out = Product.apply(x)
    assert out.dtype is BF16
    out.float().sum().backward()
    Product.apply(x).sum().backward()
    assert seen == [BF16, F32]


def test_a_function_with_cast_inputs_runs_without_autocast():
    class Exact(lt.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=F32)
        def forward(ctx, x, other):
            return x @ other["w"]

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, g):
            return g, None

    low = lt.ones(2, 2, dtype=BF16)
    with autocast("cpu"):
        assert Exact.apply(low, {"w": low}).dtype is F32
    assert Exact.apply(low, {"w": low}).dtype is BF16


# The cache of weights


def test_a_weight_is_converted_once_in_a_region():
    w, x = nn.Parameter(lt.ones(64, 64)), lt.ones(1, 64, requires_grad=True)
    with autocast("cpu"):
        a = x @ w
        before = lt.memory_allocated()
        b = x @ w
        assert lt.memory_allocated() - before < w.nbytes // 2
    assert a.tolist() == b.tolist()
    assert not autocast_policy.thread.cache
    del a, b
    with autocast("cpu", cache_enabled=False):
        first = x @ w
        before = lt.memory_allocated()
        second = x @ w
        assert lt.memory_allocated() - before >= w.nbytes // 2
    assert first.tolist() == second.tolist()


def test_gradients_through_a_shared_conversion_add_up():
    w = nn.Parameter(lt.ones(2, 2))
    with autocast("cpu"):
        (lt.eye(2) @ w + lt.eye(2) @ w).sum().backward()
    assert w.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_weight_that_was_written_is_converted_again():
    w = nn.Parameter(lt.ones(2, 2))
    with autocast("cpu"):
        assert (lt.eye(2) @ w).tolist() == [[1.0, 1.0], [1.0, 1.0]]
        with lt.no_grad():
            w.mul_(3)
        assert (lt.eye(2) @ w).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_a_conversion_without_a_graph_is_not_used_where_a_gradient_is_wanted():
    w = nn.Parameter(lt.ones(2, 2))
    with autocast("cpu"):
        with lt.no_grad():
            _ = lt.eye(2) @ w
        (lt.eye(2) @ w).sum().backward()
    assert w.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]


# Bytes


def test_meta_foretells_the_bytes_of_a_step_with_autocast():
    found = []
    for device in ("cpu", "meta"):
        net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)).to(device)
        x, y = lt.ones(32, 64, device=device), (lt.arange(32) % 8).to(device)
        peaks = []
        for _ in range(2):
            net.zero_grad()
            lt.reset_peak_memory_stats(device)
            before = lt.memory_allocated(device)
            with autocast("cpu"):
                loss = F.cross_entropy(net(x), y)
            loss.backward()
            del loss
            peaks.append(lt.max_memory_allocated(device) - before)
        found.append(peaks)
    assert found[0] == found[1]


def test_what_backward_keeps_is_half_as_large():
    x, w = lt.ones(32, 64, requires_grad=True), nn.Parameter(lt.ones(64, 64))
    with autocast("cpu"):
        y = x @ w
    assert sorted(s.nbytes for s in y.grad_fn.saved) == [32 * 64 * 2, 64 * 64 * 2]


# The scaler


def scaled(values, growth_interval=2, **options):
    """A scaler after one loss, and an optimizer whose gradients are given."""
    p = lt.zeros(len(values), requires_grad=True)
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=growth_interval, **options)
    scaler.scale(lt.ones(()))
    p.grad = lt.tensor(values)
    return p, SGD([p], lr=1.0), scaler


def test_a_loss_is_scaled_and_its_gradients_unscaled():
    w = lt.tensor([2.0], requires_grad=True)
    optimizer = SGD([w], lr=0.1)
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.scale((w * 3).sum()).backward()
    assert w.grad.tolist() == [12.0]
    scaler.unscale_(optimizer)
    assert w.grad.tolist() == [3.0]
    scaler.step(optimizer)
    assert w.tolist() == [pytest.approx(1.7)]
    assert scaler.scale([lt.ones(()), (lt.ones(1),)])[1][0].tolist() == [4.0]
    with pytest.raises(ValueError, match="iterable of Tensors"):
        scaler.scale(3)


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), -float("inf")])
@pytest.mark.parametrize("road", ["compiled", "plain"])
def test_a_step_with_an_infinite_gradient_is_skipped(bad, road, monkeypatch):
    monkeypatch.setattr(thresholds, "COMPILED_STEP", 0 if road == "compiled" else 1 << 60)
    p, optimizer, scaler = scaled([8.0, bad, 16.0])
    assert scaler.step(optimizer) is None
    assert p.tolist() == [0.0, 0.0, 0.0]
    scaler.update()
    assert scaler.get_scale() == 4.0
    p.grad = lt.tensor([4.0, 8.0, 0.0])
    scaler.step(optimizer)
    scaler.update()
    assert p.tolist() == [-1.0, -2.0, 0.0]


def test_the_scale_grows_after_good_steps():
    p, optimizer, scaler = scaled([8.0])
    scales = []
    for _ in range(5):
        p.grad = lt.tensor([1.0])
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [8.0, 16.0, 16.0, 32.0, 32.0]
    scaler.update(5.0)
    assert scaler.get_scale() == 5.0
    scaler.update(lt.tensor(7.0))
    assert scaler.get_scale() == 7.0


def test_the_scale_does_not_grow_to_infinity():
    p, optimizer, scaler = scaled([1.0], growth_interval=1)
    scaler.update(2.0**127)
    p.grad = lt.tensor([1.0])
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**127


def test_calls_out_of_order_are_refused():
    p, optimizer, scaler = scaled([8.0])
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="after step"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="Closure"):
        scaler.step(optimizer, closure=lambda: None)
    fresh = GradScaler("cpu")
    for call in (lambda: fresh.step(optimizer), fresh.update, lambda: fresh.unscale_(optimizer)):
        with pytest.raises(AssertionError, match="_scale is None"):
            call()
    scaler.update()
    p.grad = None
    with pytest.raises(AssertionError, match="no gradients"):
        scaler.step(optimizer)
    for bad in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}):
        with pytest.raises(AssertionError, match="factor"):
            GradScaler("cpu", **bad)


def test_float16_gradients_are_refused():
    p = lt.zeros(2, dtype=F16, requires_grad=True)
    scaler = GradScaler("cpu")
    scaler.scale(lt.ones(()))
    p.grad = lt.ones(2, dtype=F16)
    with pytest.raises(ValueError, match="FP16"):
        scaler.unscale_(SGD([p]))


def test_a_disabled_scaler_does_what_a_script_without_one_does():
    p, optimizer, _ = scaled([1.0])
    scaler = GradScaler("cpu", enabled=False)
    loss = lt.ones(())
    assert scaler.scale(loss) is loss
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert p.tolist() == [-1.0]
    assert (scaler.get_scale(), scaler.state_dict(), scaler.is_enabled()) == (1.0, {}, False)


def test_a_scaler_is_saved_and_loaded():
    p, optimizer, scaler = scaled([8.0])
    scaler.step(optimizer)
    scaler.update()
    saved = scaler.state_dict()
    assert saved == {
        "scale": 8.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2,
        "_growth_tracker": 1,
    }
    again = GradScaler("cpu")
    again.load_state_dict(saved)
    again.scale(lt.ones(()))
    p.grad = lt.tensor([1.0])
    again.step(optimizer)
    again.update()
    assert again.get_scale() == 16.0
    with pytest.raises(RuntimeError, match="empty"):
        again.load_state_dict({})


def test_unscaling_takes_one_number():
    p = lt.nn.Parameter(lt.ones(200, 200))
    scaler = GradScaler("cpu")
    p.grad = lt.ones(200, 200)
    scaler.scale(lt.ones(()))
    optimizer = SGD([p])
    lt.reset_peak_memory_stats()
    before = lt.memory_allocated()
    scaler.unscale_(optimizer)
    assert lt.max_memory_allocated() - before == 4


def test_the_loop_of_pytorch_trains():
    lt.manual_seed(0)
    x = lt.randn(64, 8)
    y = (x[:, 0] > 0).long()
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = lt.optim.AdamW(net.parameters(), lr=0.02)
    scaler = GradScaler("cpu", init_scale=1024.0)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        with autocast("cpu", dtype=F16):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
