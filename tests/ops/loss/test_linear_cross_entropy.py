"""The fused head and loss: what it takes and keeps to the byte, tiles, edges, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.autograd.engine import grad
from lowtide.framework.devices import backend
from lowtide.framework.dtypes import tolerance
from lowtide.framework.kernels.runtime import threads, thresholds
from lowtide.framework.ops.loss import linear_cross_entropy_backward, linear_cross_entropy_tiling
from lowtide.framework.ops.registry import OPS
from lowtide.nn import functional as F

RNG = np.random.default_rng


def head(tokens, features, classes, dtype=np.float64, scale=1.0, seed=0):
    """Tokens, weight of the head, classes."""
    rng = RNG(seed)
    x = (rng.standard_normal((tokens, features)) * scale).astype(dtype)
    w = (rng.standard_normal((classes, features)) * scale).astype(dtype)
    target = rng.integers(0, classes, tokens)
    return lt.tensor(x, requires_grad=True), lt.tensor(w, requires_grad=True), lt.tensor(target)


def on_meta(tokens, features, classes, dtype=lt.float32, weight_too=True):
    x = lt.empty(tokens, features, dtype=dtype, device="meta", requires_grad=True)
    w = lt.empty(classes, features, dtype=dtype, device="meta", requires_grad=weight_too)
    return x, w, lt.empty(tokens, dtype=lt.int64, device="meta")


def blocks(*nbytes):
    return sum(-(-n // 64) * 64 for n in nbytes)


# Bytes


def peak_of_a_step(loss, *given):
    """The meta ledger's highest level in a forward and backward, with the inputs."""
    ledger = backend(lt.device("meta")).ledger
    start = ledger.live - sum(x._spec.block for x in given)
    ledger.reset_peak()
    loss().backward()
    return ledger.peak - start


def test_the_peak_is_within_two_percent_of_inputs_and_gradients():
    x, w, target = on_meta(8192, 768, 50257)  # GPT-2's head
    bound = 2 * (x.nbytes + w.nbytes) + target.nbytes + 4
    fused = peak_of_a_step(lambda: F.linear_cross_entropy(x, w, target), x, w, target)
    assert bound < fused < 1.02 * bound
    x, w, target = on_meta(8192, 768, 50257)
    plain = peak_of_a_step(lambda: F.cross_entropy(F.linear(x, w), target), x, w, target)
    assert 1 < plain / (8192 * 50257 * 4) < 2  # the gradient of the logits is written over them


def test_16_bit_weights_are_never_converted_as_a_whole():
    x, w, target = on_meta(2048, 1024, 65536, dtype=lt.bfloat16)
    bound = 2 * (x.nbytes + w.nbytes) + target.nbytes
    fused = peak_of_a_step(lambda: F.linear_cross_entropy(x, w, target), x, w, target)
    assert fused < 1.015 * bound + 2 * x.nbytes  # the gradient of x is summed in float32
    assert 1.015 * bound + 2 * x.nbytes < bound + w.nbytes


def test_forward_leaves_three_numbers_for_each_token():
    x, w, target = on_meta(1024, 64, 3000)
    ledger = backend(lt.device("meta")).ledger
    start = ledger.live
    ledger.reset_peak()
    loss = F.linear_cross_entropy(x, w, target, reduction="none")
    assert ledger.live - start == blocks(4096, 4096, 4096)
    # 1 MiB for the tile (512 x 512), and three numbers for each of its rows
    assert ledger.peak - start == blocks(4096, 4096, 4096, 512 * 512 * 4, 3 * 512 * 4)
    kept = {k.label.split(".")[1]: k.nbytes for k in loss.grad_fn.saved}
    assert kept == {
        "input": x.nbytes,
        "linear_weight": w.nbytes,
        "target": target.nbytes,
        "top": 4096,
        "total": 4096,
    }


def test_a_frozen_head_has_no_gradient_and_no_bytes_for_one():
    x, w, target = on_meta(1024, 64, 3000, weight_too=False)
    ledger = backend(lt.device("meta")).ledger
    loss = F.linear_cross_entropy(x, w, target, reduction="sum")
    start = ledger.live
    ledger.reset_peak()
    loss.backward()
    assert w.grad is None
    assert ledger.peak - start < x.nbytes + (1 << 20) + blocks(3 * 4096, 4096, 64)


# Tiles


def everything(function, *tensors):
    """Value and gradients."""
    value = function()
    return [value.detach().numpy(), *(g.numpy() for g in grad(value, list(tensors)))]


@pytest.mark.parametrize("large", [8, 64, 96])
def test_tiles_in_what_is_not_yet_written_change_nothing(large, monkeypatch):
    """The gradient of the weight is room for tiles until it is made itself."""
    monkeypatch.setattr(thresholds, "TILE_BYTES", 1 << 10)
    monkeypatch.setattr(linear_cross_entropy_backward, "LARGE", large)
    found, space = [], linear_cross_entropy_backward._space

    def noted(unwritten, tokens, start, tile, work, products):
        chosen = space(unwritten, tokens, start, tile, work, products)
        found.append(chosen[0] == tile)
        return chosen

    monkeypatch.setattr(linear_cross_entropy_backward, "_space", noted)
    x, w, target = head(70, 40, 400)
    b = lt.randn(400, dtype=lt.float64, requires_grad=True)
    ours = everything(lambda: F.linear_cross_entropy(x, w, target, linear_bias=b), x, w, b)
    # As large as asked until the end is near; then in the workspace
    assert found[-1]
    assert found == sorted(found)
    assert all(found) == (large == 8)
    plain = everything(lambda: F.cross_entropy(F.linear(x, w, b), target), x, w, b)
    for a, e in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [1, 7, 33, 1000])
def test_results_do_not_depend_on_the_tile(chunk, smoothing, monkeypatch):
    monkeypatch.setattr(thresholds, "TILE_BYTES", 1 << 10)
    x, w, target = head(70, 5, 131)
    tiles = linear_cross_entropy_tiling.tiles_of(70, 131, 5, lt.float64)
    assert all(columns < 131 for _, columns in tiles)
    b, factors = lt.randn(131, dtype=lt.float64, requires_grad=True), lt.rand(131).double()
    target[3:9] = -100
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)
    common = {"weight": factors, "label_smoothing": smoothing}
    fused = everything(
        lambda: F.linear_cross_entropy(x, w, target, linear_bias=b, options=options, **common),
        x,
        w,
        b,
    )
    plain = everything(lambda: F.cross_entropy(F.linear(x, w, b), target, **common), x, w, b)
    for a, e in zip(fused, plain, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_compiled_passes_are_the_plain_ones(smoothing, weighted, monkeypatch):
    monkeypatch.setattr(thresholds, "TILE_BYTES", 1 << 14)
    x, w, target = head(150, 6, 211, np.float32)
    target[10] = -100
    b = lt.randn(211, requires_grad=True)
    factors = lt.rand(211) if weighted else None

    def loss():
        return F.linear_cross_entropy(
            x, w, target, linear_bias=b, weight=factors, label_smoothing=smoothing
        )

    fast = everything(loss, x, w, b)
    for name in ("_linear_cross_entropy", "_linear_cross_entropy_grad"):
        assert any(p.kernel is not OPS[name].plain for p in OPS[name].plans.values())
        monkeypatch.setattr(OPS[name], "kernels", {})
        monkeypatch.setattr(OPS[name], "plans", {})
    rtol, atol = tolerance(lt.float32)
    for a, e in zip(fast, everything(loss, x, w, b), strict=True):
        np.testing.assert_allclose(a, e, rtol=20 * rtol, atol=20 * atol)


def test_several_threads_give_the_bits_of_one(monkeypatch):
    x, w, target = head(150, 6, 211, np.float32)

    def loss():
        return F.linear_cross_entropy(x, w, target, label_smoothing=0.1)

    one = everything(loss, x, w)
    monkeypatch.setattr(thresholds, "THREAD", 1 << 10)
    monkeypatch.setattr(threads, "_wanted", 3)
    for a, e in zip(everything(loss, x, w), one, strict=True):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("tokens", [3, 200])  # plain, compiled
def test_infinite_logits_stay_in_their_token(tokens):
    x, w = np.zeros((tokens, 2), np.float32), np.ones((100, 2), np.float32)
    x[:, 0] = 1e4  # all logits are equal, and large
    x[1, 0] = -np.inf
    target = lt.tensor(RNG(0).integers(0, 100, tokens))
    losses = F.linear_cross_entropy(lt.tensor(x), lt.tensor(w), target, reduction="none").numpy()
    assert np.isnan(losses[1])
    np.testing.assert_allclose(np.delete(losses, 1), np.log(100), rtol=1e-3)


@pytest.mark.parametrize("tokens", [3, 2000])
def test_a_first_tile_of_minus_infinity_counts_for_nothing(tokens, monkeypatch):
    monkeypatch.setattr(thresholds, "TILE_BYTES", 1 << 6)  # tiles of 32 columns
    b = np.zeros(64, np.float32)
    b[:40] = -np.inf
    x, w = lt.ones(tokens, 1) * -200, lt.ones(64, 1)
    target = lt.full((tokens,), 50)
    losses = F.linear_cross_entropy(x, w, target, linear_bias=lt.tensor(b), reduction="none")
    np.testing.assert_allclose(losses.numpy(), np.log(24), rtol=1e-5)


def test_tokens_that_are_ignored_count_for_nothing():
    x, w, target = head(6, 4, 9)
    target[1], target[4] = -100, -100
    kept = [0, 2, 3, 5]
    some = everything(lambda: F.linear_cross_entropy(x, w, target), x, w)
    few = everything(lambda: F.linear_cross_entropy(x[kept], w, target[kept]), x, w)
    for a, e in zip(some, few, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-12)
    assert not some[1][[1, 4]].any()


def test_a_mean_over_nothing_is_nan():
    x, w, _ = head(2, 3, 4)
    assert np.isnan(F.linear_cross_entropy(x, w, lt.tensor([-100, -100])).item())
    assert np.isnan(F.linear_cross_entropy(x[:0], w, lt.tensor([], dtype=lt.int64)).item())


# The graph


def test_backward_can_be_repeated_and_gives_the_same():
    x, w, target = head(9, 4, 12)
    loss = F.linear_cross_entropy(x, w, target)
    first = grad(loss, [x, w], retain_graph=True)
    for a, b in zip(first, grad(loss, [x, w]), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_each_token_may_have_a_gradient_of_its_own():
    x, w, target = head(9, 4, 12)
    g = lt.tensor(RNG(3).standard_normal(9))

    def gradients(losses):
        return [d.numpy() for d in grad(losses, [x, w], [g])]

    fused = gradients(F.linear_cross_entropy(x, w, target, reduction="none"))
    plain = gradients(F.cross_entropy(F.linear(x, w), target, reduction="none"))
    for a, e in zip(fused, plain, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-11, atol=1e-14)


def test_float16_is_computed_in_float32():
    x, w, target = head(40, 16, 500, np.float16, scale=20)  # logits beyond float16's range
    value = F.linear_cross_entropy(x, w, target)
    assert value.dtype is lt.float16
    wide = F.cross_entropy(F.linear(x.double(), w.double()), target)
    assert np.isfinite(value.item())
    assert value.item() == pytest.approx(wide.item(), rel=2e-3)
    value.backward()
    assert x.grad.dtype is w.grad.dtype is lt.float16
    assert np.isfinite(w.grad.float().numpy()).all()


def test_autocast_computes_in_float32():
    x, w, target = head(9, 4, 12, np.float32)
    with lt.autocast("cpu"):
        inside = F.linear_cross_entropy(x, w, target)
        low = F.linear_cross_entropy(x.bfloat16(), w, target)
    assert inside.dtype is low.dtype is lt.float32
    assert inside.item() == F.linear_cross_entropy(x, w, target).item()


def test_the_layer_ties_its_weight_to_an_embedding():
    loss, embedding = nn.LinearCrossEntropyLoss(4, 12), nn.Embedding(12, 4)
    loss.linear.weight = embedding.weight
    tokens = lt.tensor([1, 5, 11, 3])
    loss(embedding(tokens), lt.tensor([5, 11, 3, 0])).backward()
    assert embedding.weight.grad.shape == (12, 4)
    assert [n for n, _ in loss.named_parameters()] == ["linear.weight"]


# Mistakes


@pytest.mark.parametrize("bad", [12, -1])
def test_a_class_out_of_range_is_an_index_error(bad):
    x, w, target = head(5, 4, 12)
    target[2] = bad
    with pytest.raises(IndexError, match=f"Target {bad} is out of bounds"):
        F.linear_cross_entropy(x, w, target)


def fused(x=(5, 4), w=(12, 4), target=(5,), bias=None, kind=lt.int64, **given):
    return F.linear_cross_entropy(
        lt.zeros(x),
        lt.zeros(w),
        lt.zeros(target, dtype=kind),
        linear_bias=None if bias is None else lt.zeros(bias),
        **given,
    )


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"x": (2, 5, 4)}, RuntimeError, "dimensionality 1 or 2, got 3. Flatten"),
        ({"w": (4,)}, RuntimeError, "at least 2, got 1"),
        ({"w": (12, 3)}, RuntimeError, r"got input \(5, 4\) and linear_weight \(12, 3\)"),
        ({"bias": (11,)}, RuntimeError, r"linear_bias shape \(12,\), got \(11,\)"),
        ({"x": (4,), "w": (12, 2, 4)}, RuntimeError, "requires batched input"),
        ({"target": (4,)}, ValueError, "batch_size to match target batch_size"),
        ({"kind": lt.float32}, RuntimeError, "scalar type Long"),
        ({"weight": lt.ones(11)}, RuntimeError, "all 12 classes"),
        ({"label_smoothing": 1.5}, RuntimeError, "between 0.0 and 1.0"),
        ({"reduction": "max"}, ValueError, "not a valid value"),
        ({"target": (5, 12), "kind": lt.float32, "ignore_index": 1}, RuntimeError, "probabilities"),
    ],
)
def test_mistakes_are_named(given, error, message):
    with pytest.raises(error, match=message):
        fused(**given)


@pytest.mark.parametrize("kind", [lt.int64, lt.bool, lt.complex64])
def test_numbers_without_a_softmax_are_refused(kind):
    x, w, target = lt.ones(5, 4).to(kind), lt.ones(12, 4).to(kind), lt.zeros(5, dtype=lt.int64)
    with pytest.raises(NotImplementedError, match=f"is not implemented for .*{kind}. Convert"):
        F.linear_cross_entropy(x, w, target)
    with pytest.raises(NotImplementedError, match=f"cross_entropy is not implemented for {kind}"):
        F.cross_entropy(w, lt.zeros(12, dtype=lt.int64))


def test_tokens_and_weight_of_two_types_are_refused():
    x, w, target = head(5, 4, 12)
    with pytest.raises(RuntimeError, match="same dtype; got input .*float32, linear_weight"):
        F.linear_cross_entropy(x.float(), w, target)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_chunk_size": 0}, "positive int"),
        ({"chunking_method": "halves"}, "invalid chunking_method: 'halves'"),
        ({"chunking_method": "aspect_ratio:0"}, "invalid chunking_method"),
        ({"acc_policy": "quick"}, "invalid acc_policy: 'quick'"),
        ({"acc_dtype": lt.int64}, "floating dtype"),
    ],
)
def test_options_that_pytorch_does_not_know_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        nn.LinearCrossEntropyOptions(**given)


def test_options_take_what_pytorch_takes():
    for method in (None, "auto", "aspect_ratio", "aspect_ratio:4"):
        assert nn.LinearCrossEntropyOptions(chunking_method=method).chunking_method == method


def test_the_layer_refuses_settings_out_of_range():
    with pytest.raises(RuntimeError, match=r"expected weight shape to be \(12,\), got \(11,\)"):
        nn.LinearCrossEntropyLoss(4, 12, weight=lt.ones(11))
    with pytest.raises(RuntimeError, match=r"range \[0, 1\], got -0.1"):
        nn.LinearCrossEntropyLoss(4, 12, label_smoothing=-0.1)
