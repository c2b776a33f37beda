"""Multi-head attention as a module."""

from __future__ import annotations

from typing import Any

from ..framework.ops.creation.fill import empty
from ..framework.tensor import Tensor
from . import functional as F
from .initialization import init
from .linear import NonDynamicallyQuantizableLinear
from .module import Module
from .parameter import Parameter


class MultiheadAttention(Module):
    """Multi-head attention: project, attend in each head, project back.

    Args:
        embed_dim: Features of queries and of the result.
        num_heads: A divisor of ``embed_dim``.
        dropout: Probability with which a weight is dropped in training.
        bias: Whether the projections have biases.
        add_bias_kv: Learn one more key and value that every query may attend to.
        add_zero_attn: One more key and value of zeros.
        kdim: Features of keys; None for ``embed_dim``.
        vdim: Features of values; None for ``embed_dim``.
        batch_first: Input and output are (N, L, features) instead of (L, N, features).
        device: Where its parameters lie.
        dtype: Their type.

    Attributes:
        in_proj_weight: (3 embed_dim, embed_dim), the projections of query, key and value one above
            the other, Xavier uniform; None if ``kdim`` or ``vdim`` differs.
        q_proj_weight: (embed_dim, embed_dim), with ``k_proj_weight`` (embed_dim, kdim) and
            ``v_proj_weight`` (embed_dim, vdim), in its place then.
        in_proj_bias: (3 embed_dim,), zeros; or None.
        out_proj: The projection of the result.
        bias_k: (1, 1, embed_dim), Xavier normal; or None. ``bias_v`` alike.

    Raises:
        ValueError: ``embed_dim`` or ``num_heads`` is not positive.
        AssertionError: ``num_heads`` does not divide ``embed_dim``.
    """

    in_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and "
                f"num_heads={num_heads} instead"
            )
        if embed_dim % num_heads:
            raise AssertionError(
                f"embed_dim must be divisible by num_heads; got {embed_dim} and {num_heads}."
            )
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        like = {"device": device, "dtype": dtype}
        joint = self._qkv_same_embed_dim
        shapes = {
            "q_proj_weight": None if joint else (embed_dim, embed_dim),
            "k_proj_weight": None if joint else (embed_dim, self.kdim),
            "v_proj_weight": None if joint else (embed_dim, self.vdim),
            "in_proj_weight": (3 * embed_dim, embed_dim) if joint else None,
            "in_proj_bias": (3 * embed_dim,) if bias else None,
        }
        for name, shape in shapes.items():
            self.register_parameter(
                name, None if shape is None else Parameter(empty(shape, **like))
            )
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias, **like)
        for name in ("bias_k", "bias_v"):
            more = Parameter(empty(1, 1, embed_dim, **like)) if add_bias_kv else None
            self.register_parameter(name, more)
        self.add_zero_attn = add_zero_attn
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Reinitialize the parameters from PyTorch's distributions."""
        projections = (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight)
        for weight in (*projections, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for more in (self.bias_k, self.bias_v):
            if more is not None:
                init.xavier_normal_(more)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention of queries to keys and values.

        Args:
            query: (L, N, embed_dim), (N, L, embed_dim) with ``batch_first``, or (L, embed_dim).
            key: The same with S and ``kdim``.
            value: The same with S and ``vdim``.
            key_padding_mask: (N, S) or (S,): True hides a key, or a number added to its scores.
            need_weights: Return the weights too; they are then computed and kept completely.
            attn_mask: (L, S) or (N num_heads, L, S): True hides, or a number added to the scores.
            average_attn_weights: Return the mean of the weights over heads.
            is_causal: A hint that ``attn_mask`` is causal.

        Returns:
            (output like ``query``, weights (N, L, S), (N, num_heads, L, S) or None).

        Raises:
            AssertionError: Shapes do not fit.

        Memory:
            With ``need_weights=False`` no (L, S) matrix is kept.
        """
        turned = self.batch_first and query.ndim == 3
        if turned:  # what was one tensor stays one: its projections are one product
            alike, same = query is key, key is value
            query = query.transpose(0, 1)
            key = query if alike else key.transpose(0, 1)
            value = key if same else value.transpose(0, 1)
        # Programs lend this method to objects that have the weights of one of the two ways only.
        apart = not self._qkv_same_embed_dim
        q, k, v = (
            (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            if apart
            else (None, None, None)
        )
        out, weights = F.multi_head_attention_forward(
            query, key, value, self.embed_dim, self.num_heads, self.in_proj_weight,
            self.in_proj_bias, self.bias_k, self.bias_v, self.add_zero_attn, self.dropout,
            self.out_proj.weight, self.out_proj.bias, training=self.training,
            key_padding_mask=key_padding_mask, need_weights=need_weights, attn_mask=attn_mask,
            use_separate_proj_weight=apart, q_proj_weight=q, k_proj_weight=k, v_proj_weight=v,
            average_attn_weights=average_attn_weights, is_causal=is_causal,
        )  # fmt: skip
        return out.transpose(0, 1) if turned else out, weights
