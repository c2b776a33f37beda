"""What families of ops keep for backward: the smallest set that suffices, to the byte."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F

N = 4 * 6 * 8 * 8  # elements of `x` below
WHOLE = 4 * N


def kept(function, *shapes, low=0.1):
    """{label: bytes} of what the graph keeps of a function of tensors that nobody else has."""
    leaves = [(lt.rand(*shape) * 0.8 + low).requires_grad_() for shape in shapes]
    saved = lt.profiling.saved_tensors(lambda: function(*[x.clone() for x in leaves]))
    return {s.label: s.kept_bytes for s in saved if s.kept_bytes}


# Random masks


MASKS = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "dropout1d": lambda x: F.dropout1d(x.flatten(2), 0.5),
    "dropout2d": lambda x: F.dropout2d(x, 0.5),
    "dropout3d": lambda x: F.dropout3d(x.unsqueeze(0), 0.5),
    "feature_dropout": lambda x: lt.feature_dropout(x, 0.5, True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.5, True),
    "rnn": lambda x: lt.nn.LSTM(64, 5, num_layers=2, dropout=0.5)(x.flatten(2))[0],
}


@pytest.mark.parametrize("name", MASKS)
def test_no_mask_of_dropout_is_kept(name):
    found = kept(MASKS[name], (4, 6, 8, 8))
    assert not [label for label in found if "dropout" in label or "mul" in label]
    if name != "rnn":
        assert found == {}


@pytest.mark.parametrize("name", [n for n in MASKS if n not in ("rnn", "dropout3d")])
def test_the_mask_drawn_again_is_the_one_that_was_used(name):
    x = (lt.rand(4, 6, 8, 8) + 1).requires_grad_()
    y = MASKS[name](x)
    y.sum().backward()
    slope = x.grad.unique()
    assert len(slope) == 2
    assert slope[0] == 0
    dropped = x.grad == 0
    values = y.detach().reshape(x.shape)
    if "alpha" in name:
        assert len(values[dropped].unique()) == 1
    else:
        assert bool((values == x.detach() * x.grad).all())
    if name not in ("dropout", "alpha_dropout"):  # whole channels
        assert bool((dropped.all(-1).all(-1) == dropped.any(-1).any(-1)).all())


def test_channels_are_those_of_a_mask_of_ones():
    x = lt.randn(4, 6, 8, 8)
    lt.manual_seed(3)
    got = F.dropout2d(x, 0.3)
    lt.manual_seed(3)
    noise = F.dropout(lt.ones(4, 6, 1, 1), 0.3)
    assert bool((got == x * noise).all())
    lt.manual_seed(3)
    assert bool((F.dropout2d(x.clone(), 0.3, inplace=True) == got).all())


def test_random_slopes_are_drawn_again():
    assert kept(lambda x: F.rrelu(x, training=True), (4, 6, 8, 8)) == {"rrelu.bitmask": N // 8}
    x = (lt.rand(5, 1001) - 0.5).requires_grad_()
    y = F.rrelu(x, 0.2, 0.4, training=True)
    y.sum().backward()
    above = x.detach() > 0
    assert bool((x.grad[above] == 1).all())
    assert bool((y.detach() == x.detach() * x.grad).all())
    slopes = x.grad[above.logical_not()]
    assert 0.2 <= slopes.min() < 0.21
    assert 0.39 < slopes.max() <= 0.4
    assert abs(slopes.mean().item() - 0.3) < 0.01
    again = F.rrelu(x, 0.2, 0.4, training=True)
    assert not bool((again == y).all())


def test_every_channel_dropped_or_none():
    x = lt.randn(2, 3, 4, 4).requires_grad_()
    F.dropout2d(x, 1.0).sum().backward()
    assert bool((x.grad == 0).all())
    assert F.dropout2d(x, 0.0) is x


# Pooling


POOLS = {  # name: (function, shape, bytes of one index, elements of the result)
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), (4, 6, 64), 1, 4 * 6 * 32),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (4, 6, 8, 8), 1, 4 * 6 * 16),
    "indices asked for": (
        lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
        (4, 6, 8, 8),
        1,
        4 * 6 * 16,
    ),
    "wide window": (lambda x: F.max_pool2d(x, 17), (1, 1, 17, 34), 2, 2),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), (4, 6, 4, 4, 4), 1, 4 * 6 * 8),
    "adaptive, even": (lambda x: F.adaptive_max_pool2d(x, 4), (4, 6, 8, 8), 1, 4 * 6 * 16),
    "adaptive1d": (lambda x: F.adaptive_max_pool1d(x, 5), (4, 6, 64), 1, 4 * 6 * 5),
    "adaptive2d": (lambda x: F.adaptive_max_pool2d(x, 5), (4, 6, 8, 8), 1, 4 * 6 * 25),
    "adaptive3d": (lambda x: F.adaptive_max_pool3d(x, 3), (2, 2, 8, 8, 8), 2, 2 * 2 * 27),
    "fractional2d": (
        lambda x: F.fractional_max_pool2d(x, 2, output_size=5),
        (4, 6, 8, 8),
        1,
        4 * 6 * 25,
    ),
    "fractional3d": (
        lambda x: F.fractional_max_pool3d(x, 2, output_size=3),
        (2, 2, 8, 8, 8),
        2,
        2 * 2 * 27,
    ),
}


@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_keeps_the_smallest_integers(name):
    function, shape, width, count = POOLS[name]
    found = kept(function, shape)
    assert list(found.values()) == [width * count]
    assert next(iter(found)).endswith(".index")


def test_planes_of_more_elements_take_wider_integers():
    for side, width in ((16, 1), (17, 2), (182, 4)):
        found = kept(lambda x: F.adaptive_max_pool2d(x, 3), (1, 1, side, side))
        assert found == {"adaptive_max_pool.index": 9 * width}
    y, index = F.adaptive_max_pool2d(lt.rand(1, 1, 16, 16), 3, return_indices=True)
    assert index.dtype is lt.int64
    y, index = F.fractional_max_pool2d(lt.rand(1, 1, 16, 16), 2, 5, return_indices=True)
    assert index.dtype is lt.int64
    plane = lt.arange(256.0).reshape(1, 1, 16, 16).requires_grad_()
    y, index = F.adaptive_max_pool2d(plane, 3, return_indices=True)
    assert y.detach().flatten().tolist() == index.flatten().tolist()
    y.sum().backward()
    assert bool((plane.grad.flatten()[index.flatten()] == 1).all())
    assert plane.grad.sum() == 9


def test_means_keep_nothing():
    for function in (lambda x: F.avg_pool2d(x, 2), lambda x: F.adaptive_avg_pool2d(x, 3)):
        assert kept(function, (4, 6, 8, 8)) == {}


# Losses


LOSSES = {
    "mse_loss": (F.mse_loss, {}),
    "l1_loss": (F.l1_loss, {}),
    "smooth_l1_loss": (F.smooth_l1_loss, {"beta": 0.5}),
    "huber_loss": (F.huber_loss, {"delta": 0.7}),
    "binary_cross_entropy": (F.binary_cross_entropy, {}),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, {}),
    "pos_weight": (F.binary_cross_entropy_with_logits, {"pos_weight": lt.full((50,), 2.0)}),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_keeps_its_operands_and_no_difference(name, reduction):
    function, options = LOSSES[name]

    def run(x, y):
        return function(x, y, reduction=reduction, **options)

    found = kept(run, (3, 50), (3, 50))
    assert list(found.values()) == [600, 600]
    x, y = lt.rand(3, 50).requires_grad_(), lt.rand(3, 50)
    saved = lt.profiling.saved_tensors(run, x, y)
    assert saved.total_bytes == 0  # both were there before


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"])
def test_a_loss_has_the_gradient_of_its_definition(name):
    function, options = LOSSES[name]
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 4, 25))
    a[0, 0] = b[0, 0]
    for dtype in (np.float64, np.float32):
        x = lt.tensor(a.astype(dtype)).requires_grad_()
        y = lt.tensor(b.astype(dtype)).requires_grad_()
        function(x, y, reduction="sum", **options).backward()
        d = a.astype(dtype) - b.astype(dtype)
        slope = {
            "mse_loss": 2 * d,
            "l1_loss": np.sign(d),
            "smooth_l1_loss": np.clip(d / dtype(0.5), -1, 1),
            "huber_loss": np.clip(d, dtype(-0.7), dtype(0.7)),
        }[name]
        np.testing.assert_array_equal(x.grad.numpy(), slope)
        np.testing.assert_array_equal(y.grad.numpy(), -slope)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_keeps_the_logits_and_two_numbers_for_each_row(smoothing):
    target = lt.zeros(64, dtype=lt.int64)
    found = kept(
        lambda x: F.cross_entropy(x, target, reduction="sum", label_smoothing=smoothing), (64, 100)
    )
    rows = {"cross_entropy.top": 64 * 4, "cross_entropy.total": 64 * 4}
    assert found == {"cross_entropy.input": 64 * 100 * 4, **rows}
    found = kept(lambda x: F.nll_loss(x.log_softmax(-1), target, reduction="sum"), (64, 100))
    assert found == {"log_softmax.out": 64 * 100 * 4}


# One value each


ONE = {  # name: (function, label of what is kept, or of nothing)
    "gelu": (F.gelu, "gelu.input"),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu.input"),
    "silu": (F.silu, "silu.input"),
    "mish": (F.mish, "mish.input"),
    "softplus": (F.softplus, "softplus.input"),
    "hardswish": (F.hardswish, "hardswish.input"),
    "sigmoid": (F.sigmoid, "sigmoid.out"),
    "tanh": (F.tanh, "tanh.out"),
    "elu": (F.elu, "elu.out"),
    "selu": (F.selu, "elu.out"),
    "logsigmoid": (F.logsigmoid, "logsigmoid.out"),
    "glu": (F.glu, "glu.input"),
    "logit": (lambda x: x.logit(), "logit.input"),
    "softmax": (lambda x: x.softmax(-1), "softmax.out"),
    "log_softmax": (lambda x: x.log_softmax(1), "log_softmax.out"),
    "exp": (lambda x: x.exp(), "exp.out"),
    "square": (lambda x: x**2, "pow.input"),
    "x * x": (lambda x: x * x, "mul.other"),
    "abs": (lambda x: x.abs(), "abs.input"),
    "neg": (lambda x: -x, None),
    "times a number": (lambda x: x * 2.0, None),
    "sum": (lambda x: x.sum(1), None),
    "mean": (lambda x: x.mean(), None),
    "x + x": (lambda x: x + x, None),
    "cat": (lambda x: lt.cat([x, x]), None),
    "transpose": (lambda x: x.transpose(0, 1).reshape(-1), None),
    "pad": (lambda x: F.pad(x, (1, 1)), None),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), None),
}


@pytest.mark.parametrize("name", ONE)
def test_an_op_keeps_its_input_or_its_result_or_nothing(name):
    function, label = ONE[name]
    assert kept(function, (4, 6, 8, 8)) == ({label: WHOLE} if label else {})


NORMS = {  # name: (function, rows of statistics, statistics of each)
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), N // 8, 2),
    "rms_norm": (lambda x: F.rms_norm(x, (8,)), N // 8, 1),
    "group_norm": (lambda x: F.group_norm(x, 3), 4 * 3, 2),
    "instance_norm": (F.instance_norm, 4 * 6, 2),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), 6, 2),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_keeps_its_input_and_statistics(name):
    function, rows, statistics = NORMS[name]
    found = kept(function, (4, 6, 8, 8))
    assert found.pop(f"{name}.input") == WHOLE
    assert list(found.values()) == [4 * rows] * statistics
    assert name + ".out" not in found


SELECTED = {  # name: (function, bytes of what is kept)
    "where": (lambda x: lt.where(x.detach() > 0.5, x, 0.0), {"where.condition": N}),
    "masked_fill": (lambda x: x.masked_fill(x.detach() > 0.5, 0.0), {"masked_fill.mask": N}),
    "max": (lambda x: x.max(-1)[0], {"max_dim.indices": 8 * N // 8}),
    "sort": (lambda x: x.sort(-1)[0], {"sort.indices": 8 * N}),
    "topk": (lambda x: x.topk(2, -1)[0], {"topk.indices": 8 * N // 4}),
    "mode": (lambda x: x.mode(-1)[0], {"gather.index": 8 * N // 8}),
}


@pytest.mark.parametrize("name", SELECTED)
def test_what_chooses_keeps_what_it_chose(name):
    function, expected = SELECTED[name]
    assert kept(function, (4, 6, 8, 8)) == expected


def test_embedding_keeps_the_indices():
    index = lt.zeros(5, 7, dtype=lt.int64)
    assert kept(lambda w: F.embedding(index, w), (10, 3)) == {}
    assert kept(lambda w: F.embedding(index * 1, w), (10, 3)) == {"embedding.index": 8 * 35}


# Attention


T, HEADS, SIZE = 48, 3, 8
QKV = 4 * 2 * T * HEADS * SIZE  # bytes of a query
BIAS = lt.zeros(T, T)
MASKED = {
    "plain": {},
    "causal": {"is_causal": True},
    "dropout": {"dropout_p": 0.2},
    "causal dropout": {"is_causal": True, "dropout_p": 0.2},
    "bool mask": {"attn_mask": lt.ones(T, T, dtype=lt.bool).tril()},
    "mask of numbers, dropout": {"attn_mask": BIAS, "dropout_p": 0.2},
    "mask of keys": {"attn_mask": lt.ones(2, 1, 1, T, dtype=lt.bool)},
}


@pytest.mark.parametrize("large", [False, True])  # the plain kernel, and the compiled one
@pytest.mark.parametrize("name", MASKED)
def test_attention_keeps_its_operands_its_result_and_a_number_for_each_row(name, large):
    shape = (2, HEADS, T, SIZE)
    expected = {
        "attention.query": QKV,
        "attention.key": QKV,
        "attention.value": QKV,
        "attention.out": QKV,
        "attention.lse": 4 * 2 * T * HEADS,
    }
    options = MASKED[name]
    if large:
        shape = (8, *shape[1:])
        expected = {label: 4 * n for label, n in expected.items()}
        if "keys" in name:
            options = {"attn_mask": options["attn_mask"][:1]}
    found = kept(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), *[shape] * 3)
    assert found == expected


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_attention_lies_in_memory_as_the_query_does(order):
    shape = [(2, HEADS, T, SIZE)[d] for d in order]
    q, k, v = (lt.randn(*shape).permute(*order).requires_grad_() for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert out.shape == (2, HEADS, T, SIZE)
    assert out.permute(*order).is_contiguous()
    scores = (q @ k.mT * SIZE**-0.5).masked_fill(lt.ones(T, T).triu(1) > 0, -math.inf)
    expected = scores.softmax(-1) @ v
    np.testing.assert_allclose(out.detach(), expected.detach(), rtol=2e-5, atol=2e-6)
    g = lt.randn(*out.shape)
    for a, b in zip(
        lt.autograd.grad(out, (q, k, v), g), lt.autograd.grad(expected, (q, k, v), g), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_merging_heads_after_attention_keeps_no_copy():
    weight = lt.randn(HEADS * SIZE, HEADS * SIZE).requires_grad_()

    def run(x):
        q = x.view(2, T, HEADS, SIZE).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, q, q)
        return out.transpose(1, 2).reshape(2, T, -1) @ weight

    found = kept(run, (2, T, HEADS * SIZE))
    statistic = {"attention.lse": 4 * 2 * T * HEADS}
    assert found == {"attention.query": QKV, "attention.out": QKV, **statistic}


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("masked", ["nothing", "causal", "padding"])
def test_multihead_attention_without_weights_keeps_no_matrix(masked, batch_first):
    layer = lt.nn.MultiheadAttention(HEADS * SIZE, HEADS, dropout=0.1, batch_first=batch_first)
    options = {
        "nothing": {},
        "causal": {"attn_mask": lt.ones(T, T, dtype=lt.bool).triu(1), "is_causal": True},
        "padding": {"key_padding_mask": lt.zeros(2, T, dtype=lt.bool)},
    }[masked]
    shape = (2, T, HEADS * SIZE) if batch_first else (T, 2, HEADS * SIZE)
    found = kept(lambda x: layer(x, x, x, need_weights=False, **options)[0], shape)
    extra = {"attention.attn_mask": 4 * 2 * T} if masked == "padding" else {}
    assert found == {
        "linear.input": QKV,
        "attention.query": QKV,
        "attention.key": QKV,
        "attention.value": QKV,
        "attention.out": QKV,
        "attention.lse": 4 * 2 * T * HEADS,
        **extra,
    }
