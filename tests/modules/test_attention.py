"""Attention and the Transformer: weights, memory, masks, copies; values are in the case table."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide.modules.transformer import _is_causal

L, N, E, H = 64, 2, 16, 4


def values(t):
    return t.detach().numpy()


def kept_shapes(run):
    """Shapes of the tensors that the graph keeps."""
    shapes = []

    def pack(t):
        shapes.append(tuple(t.shape))
        return t

    with lt.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run()
    return shapes


def test_without_weights_no_matrix_of_scores_is_kept():
    layer = lt.nn.MultiheadAttention(E, H, dropout=0.1)
    x = lt.randn(L, N, E)
    mask = lt.nn.Transformer.generate_square_subsequent_mask(L)
    shapes = kept_shapes(lambda: layer(x, x, x, need_weights=False, attn_mask=mask, is_causal=True))
    assert shapes
    assert not [s for s in shapes if s[-2:] == (L, L)]
    assert (L, L) in {s[-2:] for s in kept_shapes(lambda: layer(x, x, x))}


@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
def test_no_layer_of_a_transformer_keeps_a_matrix_of_scores(kind):
    layer = getattr(lt.nn, f"Transformer{kind}Layer")(E, H, 32)
    x = lt.randn(L, N, E)
    padding = lt.zeros(N, L, dtype=lt.bool)
    if kind == "Encoder":
        shapes = kept_shapes(lambda: layer(x))
    else:
        shapes = kept_shapes(lambda: layer(x, x, memory_key_padding_mask=padding))
    assert not [s for s in shapes if s[-2:] == (L, L) and len(s) > 2 and s[1] == H]


def test_a_padding_mask_costs_a_number_per_key():
    layer = lt.nn.MultiheadAttention(E, H, device="meta")
    x = lt.empty(L, N, E, device="meta")
    padding = lt.empty(N, L, dtype=lt.bool, device="meta")
    kept = []
    for mask in (None, padding):
        before = lt.memory_allocated("meta")
        out, _ = layer(x, x, x, key_padding_mask=mask, need_weights=False)
        kept.append(lt.memory_allocated("meta") - before)
        del out
    assert kept[1] - kept[0] == N * L * 4


def test_with_a_causal_hint_no_mask_of_pairs_exists_beside_padding():
    layer = lt.nn.MultiheadAttention(E, H, device="meta")
    x = lt.empty(L, N, E, device="meta")
    mask = lt.nn.Transformer.generate_square_subsequent_mask(L, device="meta")
    padding = lt.empty(N, L, dtype=lt.bool, device="meta")
    given = {"attn_mask": mask, "need_weights": False}
    kept = []
    for more in ({"is_causal": True}, {"is_causal": True, "key_padding_mask": padding}):
        before = lt.memory_allocated("meta")
        out, _ = layer(x, x, x, **given, **more)
        kept.append(lt.memory_allocated("meta") - before)
        del out
    assert kept[1] - kept[0] == N * L * 4


def test_padding_and_a_causal_hint_equal_both_masks():
    layer = lt.nn.MultiheadAttention(E, H).double()
    x = lt.randn(6, N, E, dtype=lt.float64)
    mask = lt.nn.Transformer.generate_square_subsequent_mask(6, dtype=lt.float64)
    padding = lt.tensor([[False] * 6, [False, False, False, True, True, True]])
    given = {"attn_mask": mask, "key_padding_mask": padding, "need_weights": False}
    found = []
    for hint in (False, True):
        layer.zero_grad()
        out, _ = layer(x, x, x, is_causal=hint, **given)
        (out**2).sum().backward()
        found.append([out, *[p.grad for p in layer.parameters()]])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(values(a), values(b), rtol=1e-10, atol=1e-12)


def test_weights_are_a_mean_of_heads_and_sum_to_one():
    layer = lt.nn.MultiheadAttention(E, H).double()
    x, y = lt.randn(5, N, E, dtype=lt.float64), lt.randn(7, N, E, dtype=lt.float64)
    out, mean = layer(x, y, y)
    again, each = layer(x, y, y, average_attn_weights=False)
    assert mean.shape == (N, 5, 7)
    assert each.shape == (N, H, 5, 7)
    np.testing.assert_array_equal(values(out), values(again))
    np.testing.assert_allclose(values(each).mean(1), values(mean), rtol=1e-12)
    np.testing.assert_allclose(values(mean).sum(-1), 1, rtol=1e-12)
    bare, none = layer(x, y, y, need_weights=False)
    assert none is None
    np.testing.assert_allclose(values(bare), values(out), rtol=1e-10)


def test_batch_first_is_the_transposed_call():
    layer = lt.nn.MultiheadAttention(E, H)
    other = lt.nn.MultiheadAttention(E, H, batch_first=True)
    other.load_state_dict(layer.state_dict())
    x = lt.randn(5, N, E)
    out, weights = layer(x, x, x)
    turned, same = other(*[x.transpose(0, 1)] * 3)
    np.testing.assert_allclose(values(turned.transpose(0, 1)), values(out), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values(same), values(weights), rtol=1e-5, atol=1e-6)


def test_the_future_has_no_part_in_a_causal_layer():
    layer = lt.nn.TransformerEncoderLayer(E, H, 32, 0.0).double()
    x = lt.randn(6, N, E, dtype=lt.float64, requires_grad=True)
    mask = lt.nn.Transformer.generate_square_subsequent_mask(6, dtype=lt.float64)
    layer(x, mask, is_causal=True)[2].sum().backward()
    reached = values(x.grad.abs().sum((1, 2))) > 0
    assert reached.tolist() == [True, True, True, False, False, False]


def test_a_stack_holds_copies_that_begin_alike():
    layer = lt.nn.TransformerEncoderLayer(E, H, 32)
    stack = lt.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    first, second, _ = stack.layers
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert a is not b
        np.testing.assert_array_equal(values(a), values(b))
    assert len({id(p) for p in stack.parameters()}) == 3 * len(list(layer.parameters()))


def test_a_causal_mask_is_recognized_by_its_values():
    mask = lt.nn.Transformer.generate_square_subsequent_mask(4)
    assert mask[0].tolist() == [0.0, -np.inf, -np.inf, -np.inf]
    assert _is_causal(mask, None, 4)
    assert not _is_causal(mask.T, None, 4)
    assert not _is_causal(mask, None, 5)
    assert not _is_causal(mask, False, 4)
    assert _is_causal(None, True, 4)
    assert not _is_causal(None, None, 4)
    assert not _is_causal(mask.to("meta"), None, 4)  # no values to look at


@pytest.mark.parametrize("dtype", [lt.float32, lt.bool])
def test_stacks_find_a_causal_mask_and_keep_none(dtype):
    mask = lt.ones(L, L, dtype=lt.bool).triu(1)
    if dtype is lt.float32:
        mask = lt.zeros(L, L).masked_fill(mask, float("-inf"))
    x = lt.randn(L, N, E)
    encoder = lt.nn.TransformerEncoder(lt.nn.TransformerEncoderLayer(E, H, 32), 1)
    decoder = lt.nn.TransformerDecoder(lt.nn.TransformerDecoderLayer(E, H, 32), 1)
    for run in (lambda: encoder(x, mask), lambda: decoder(x, x, tgt_mask=mask)):
        assert (L, L) not in {s[-2:] for s in kept_shapes(run)}


def test_a_model_on_meta_has_the_bytes_of_the_real_one():
    stories = []
    for device in ("cpu", "meta"):
        model = lt.nn.Transformer(E, H, 1, 1, 32, device=device)
        src, tgt = lt.zeros(7, N, E, device=device), lt.zeros(5, N, E, device=device)
        mask = model.generate_square_subsequent_mask(5, device=device)
        lt.reset_peak_memory_stats(device)
        before = lt.memory_allocated(device)
        loss = model(src, tgt, tgt_mask=mask, tgt_is_causal=True).sum()
        story = [lt.memory_allocated(device) - before]
        loss.backward()
        del loss
        story += [lt.memory_allocated(device) - before, lt.max_memory_allocated(device) - before]
        stories.append(story)
    assert stories[0] == stories[1]


def test_mistakes_are_named():
    with pytest.raises(RuntimeError, match="activation should be relu/gelu, not tanh"):
        lt.nn.TransformerEncoderLayer(E, H, activation="tanh")
    with pytest.raises(AssertionError, match="embed_dim must be divisible by num_heads"):
        lt.nn.MultiheadAttention(6, 4)
    with pytest.raises(ValueError, match="must be greater than 0"):
        lt.nn.MultiheadAttention(0, 4)
    model = lt.nn.Transformer(E, H, 1, 1, 32)
    with pytest.raises(RuntimeError, match="batch number"):
        model(lt.zeros(3, 2, E), lt.zeros(3, 1, E))
    with pytest.raises(RuntimeError, match="feature number"):
        model(lt.zeros(3, 2, E + 1), lt.zeros(3, 2, E))


def test_forward_reads_only_the_weights_of_its_way():
    module = lt.nn.MultiheadAttention(4, 2)
    for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        delattr(module, name)
    x = lt.ones(3, 1, 4)
    assert module(x, x, x)[0].shape == (3, 1, 4)
    assert "NonDynamicallyQuantizableLinear" in repr(module)
