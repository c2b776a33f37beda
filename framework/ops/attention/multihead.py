"""Multi-head attention: projections around ``scaled_dot_product_attention``."""

from __future__ import annotations

from typing import Any

from ...dtypes import BOOL
from ..creation.fill import zeros, zeros_like
from ..linalg.linear import linear
from ..manipulation.cat import cat
from ..manipulation.pad import pad
from ..random.dropout import dropout
from ..registry import function
from .sdpa import ROWS_FIRST, attended


def _check(query, key, value, padding, mask, heads):
    ndim = query.ndim
    if ndim not in (2, 3):
        raise AssertionError(
            f"query should be unbatched 2D or batched 3D tensor but received {ndim}-D query tensor"
        )
    kind = "batched (3-D)" if ndim == 3 else "unbatched (2-D)"
    if not key.ndim == value.ndim == ndim:
        raise AssertionError(
            f"For {kind} `query`, expected `key` and `value` to be {ndim}-D but found {key.ndim}-D "
            f"and {value.ndim}-D tensors respectively"
        )
    if padding is not None and padding.ndim != ndim - 1:
        raise AssertionError(
            f"For {kind} `query`, expected `key_padding_mask` to be `None` or {ndim - 1}-D but "
            f"found {padding.ndim}-D tensor instead"
        )
    if mask is not None and mask.ndim not in (2, 3):
        raise AssertionError(
            f"For {kind} `query`, expected `attn_mask` to be `None`, 2-D or 3-D but found "
            f"{mask.ndim}-D tensor instead"
        )
    if mask is not None and mask.ndim == 3 and ndim == 2:
        expected = (heads, query.shape[0], key.shape[0])
        if tuple(mask.shape) != expected:
            raise AssertionError(
                f"Expected `attn_mask` shape to be {expected} but got {tuple(mask.shape)}"
            )


def additive(mask: Any, name: str, dtype: Any) -> Any:
    """Convert a mask to a number that is added to the scores."""
    if mask is None or mask.is_floating_point():
        return mask
    if mask.dtype.category != BOOL:
        raise AssertionError(f"only bool and floating types of {name} are supported")
    return zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


def _projected(query, key, value, weight, bias, q_weight, k_weight, v_weight, separate):
    embed = query.shape[-1]
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    if separate:
        weights = (q_weight, k_weight, v_weight)
        for name, w in zip("qkv", weights, strict=True):
            if w is None:
                raise AssertionError(
                    f"use_separate_proj_weight is True but {name}_proj_weight is None"
                )
    else:
        if weight is None:
            raise AssertionError("use_separate_proj_weight is False but in_proj_weight is None")
        if query is key and key is value:  # one product instead of three
            return linear(query, weight, bias).split(embed, -1)
        weights = weight.chunk(3)
    inputs = (query, key, value)
    return tuple(linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True))


@function(public=False)
def multi_head_attention_forward(
    query, key, value, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v,
    add_zero_attn, dropout_p, out_proj_weight, out_proj_bias, training=True, key_padding_mask=None,
    need_weights=True, attn_mask=None, use_separate_proj_weight=False, q_proj_weight=None,
    k_proj_weight=None, v_proj_weight=None, static_k=None, static_v=None,
    average_attn_weights=True, is_causal=False,
):  # fmt: skip
    """Compute multi-head attention: project, attend in each head, project back.

    Args:
        query: (L, N, E) or (L, E).
        key: (S, N, E_k) or (S, E_k).
        value: (S, N, E_v) or (S, E_v).
        embed_dim_to_check: E.
        num_heads: A divisor of E.
        in_proj_weight: (3 E, E), the three projections one above the other.
        in_proj_bias: (3 E,), or None.
        bias_k: (1, 1, E), one more key for every sequence, or None.
        bias_v: (1, 1, E), its value, or None.
        add_zero_attn: One more key and value of zeros.
        dropout_p: Probability with which a weight is dropped in training.
        out_proj_weight: (E, E).
        out_proj_bias: (E,), or None.
        training: Drop out.
        key_padding_mask: (N, S): True hides a key, or a number added to its scores.
        need_weights: Return the weights too; they are then computed and kept completely.
        attn_mask: (L, S) or (N heads, L, S): True hides, or a number added to the scores.
        use_separate_proj_weight: Take the next three instead of ``in_proj_weight``.
        q_proj_weight: (E, E).
        k_proj_weight: (E, E_k).
        v_proj_weight: (E, E_v).
        static_k: (N heads, S, E / heads): keys as they are, in place of projected ones.
        static_v: Likewise values.
        average_attn_weights: Return the mean of the weights over heads.
        is_causal: A hint that ``attn_mask`` is causal.

    Returns:
        (output (L, N, E), weights (N, L, S) or None).

    Memory:
        With ``need_weights=False`` no (L, S) matrix is kept; see ``scaled_dot_product_attention``.

    Source:
        Vaswani et al.: "Attention Is All You Need", 2017.
    """
    _check(query, key, value, key_padding_mask, attn_mask, num_heads)
    batched = query.ndim == 3
    if not batched:
        same = query is key and key is value
        query = query.unsqueeze(1)
        key, value = (query, query) if same else (key.unsqueeze(1), value.unsqueeze(1))
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
    length, batch, embed = query.shape
    source = key.shape[0]
    key_padding_mask = additive(key_padding_mask, "key_padding_mask", query.dtype)
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module "
            "method `generate_square_subsequent_mask` to create this mask."
        )
    if is_causal and not need_weights:  # the causal mask need not exist
        attn_mask = None
    else:
        attn_mask = additive(attn_mask, "attn_mask", query.dtype)
        is_causal = False
    _check_sizes(query, key, value, embed_dim_to_check, num_heads, use_separate_proj_weight)
    size = embed // num_heads
    q, k, v = _projected(
        query,
        key,
        value,
        in_proj_weight,
        in_proj_bias,
        q_proj_weight,
        k_proj_weight,
        v_proj_weight,
        use_separate_proj_weight,
    )
    attn_mask = _shaped(attn_mask, batch, num_heads, length, source)
    _check_given(bias_k, bias_v, static_k, static_v, batch * num_heads, size)
    if bias_k is not None:
        k = cat([k, bias_k.repeat(1, batch, 1)])
        v = cat([v, bias_v.repeat(1, batch, 1)])
        attn_mask, key_padding_mask = _widened(attn_mask), _widened(key_padding_mask)
    q = _heads(q, batch * num_heads, size)
    k = _heads(k, batch * num_heads, size) if static_k is None else static_k
    v = _heads(v, batch * num_heads, size) if static_v is None else static_v
    if add_zero_attn:
        more = zeros(batch * num_heads, 1, size, dtype=k.dtype, device=k.device)
        k, v = cat([k, more], 1), cat([v, more], 1)
        attn_mask, key_padding_mask = _widened(attn_mask), _widened(key_padding_mask)
    attn_mask = _with_padding(attn_mask, key_padding_mask, batch, k.shape[1])
    p = dropout_p if training else 0.0
    shape = (batch, num_heads, length, k.shape[1])
    mixed, weights = _attended(q, k, v, attn_mask, p, is_causal, need_weights, shape)
    out = linear(
        mixed.transpose(0, 1).reshape(length, batch, embed), out_proj_weight, out_proj_bias
    )
    if weights is not None:
        weights = weights.reshape(shape)
        if average_attn_weights:
            weights = weights.mean(1)
    if not batched:
        out = out.squeeze(1)
        weights = None if weights is None else weights.squeeze(0)
    return out, weights


def _check_sizes(query, key, value, embed_dim_to_check, num_heads, use_separate_proj_weight):
    embed = query.shape[2]
    if embed != embed_dim_to_check:
        raise AssertionError(
            f"was expecting embedding dimension of {embed_dim_to_check}, but got {embed}"
        )
    if embed % num_heads:
        raise AssertionError(f"embed_dim {embed} not divisible by num_heads {num_heads}")
    if use_separate_proj_weight and key.shape[:2] != value.shape[:2]:
        raise AssertionError(
            f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}"
        )
    if not use_separate_proj_weight and key.shape != value.shape:
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")


def _check_given(bias_k, bias_v, static_k, static_v, count, size):
    # Keys and values that come instead of, or beside, the projected ones.
    if (bias_k is None) != (bias_v is None):
        given, missing = ("k", "v") if bias_v is None else ("v", "k")
        raise AssertionError(f"bias_{given} is set but bias_{missing} is None")
    if bias_k is not None and (static_k is not None or static_v is not None):
        which = "key" if static_k is not None else "value"
        raise AssertionError(f"bias cannot be added to static {which}.")
    for name, given in (("k", static_k), ("v", static_v)):
        if given is None:
            continue
        for d, n in ((0, count), (2, size)):
            if given.shape[d] != n:
                raise AssertionError(
                    f"expecting static_{name}.size({d}) of {n}, but got {given.shape[d]}"
                )


def _with_padding(mask, padding, batch, source):
    # The mask of the scores, with that of the keys.
    if padding is None:
        return mask
    if tuple(padding.shape) != (batch, source):
        raise AssertionError(
            f"expecting key_padding_mask shape of {(batch, source)}, but got {tuple(padding.shape)}"
        )
    padding = padding.reshape(batch, 1, 1, source)
    return padding if mask is None else mask + padding


def _attended(q, k, v, mask, p, is_causal, need_weights, shape):
    # The weighted values, (heads, length, size), and the weights where they are wanted.
    size = q.shape[2]
    if need_weights:
        scores = (q * size**-0.5) @ k.transpose(-2, -1)
        if mask is not None:
            scores = (scores.reshape(shape) + mask).reshape(scores.shape)
        weights = scores.softmax(-1)
        if p > 0.0:
            weights = dropout(weights, p)
        return weights @ v, weights
    split = [x.reshape(*shape[:2], x.shape[1], size) for x in (q, k, v)]
    mixed = attended(*split, mask, p, is_causal, size**-0.5, ROWS_FIRST)
    return mixed.reshape(q.shape), None


def _heads(x, count, size):
    return x.reshape(x.shape[0], count, size).transpose(0, 1)


def _widened(mask):
    return None if mask is None else pad(mask, (0, 1))


def _shaped(mask, batch, heads, length, source):
    """Reshape to (batch, heads, length, source), with 1 where broadcast."""
    if mask is None:
        return None
    wanted = (length, source) if mask.ndim == 2 else (batch * heads, length, source)
    if tuple(mask.shape) != wanted:
        raise RuntimeError(
            f"The shape of the {mask.ndim}D attn_mask is {tuple(mask.shape)}, but should be "
            f"{wanted}."
        )
    lead = (1, 1) if mask.ndim == 2 else (batch, heads)
    return mask.reshape(*lead, length, source)
