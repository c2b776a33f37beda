"""Transformer layers: encoder, decoder, stacks of them, and the complete model.

Attention here never asks for its weights, so no matrix of (targets, sources) is kept; dropout keeps
16 bytes. A mask is made into numbers to add once per stack, not once per layer. Nested tensors,
which PyTorch takes for a shortcut in evaluation, do not exist: ``enable_nested_tensor`` is accepted
and ignored, and outputs at padded positions are computed like any others.

Source:
    Vaswani et al.: "Attention Is All You Need", 2017; Xiong et al. 2020 (``norm_first``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ..framework.dtypes import get_default_dtype
from ..framework.ops.attention.multihead import additive
from ..framework.ops.creation.fill import full
from ..framework.tensor import Tensor
from . import functional as F
from .attention import MultiheadAttention
from .container import ModuleList
from .dropout import Dropout
from .initialization import init
from .linear import Linear
from .module import Module
from .normalization import LayerNorm

Activation = str | Callable[[Tensor], Tensor]


def _activation(activation: Activation) -> Callable[[Tensor], Tensor]:
    if not isinstance(activation, str):
        return activation
    known: dict[str, Any] = {"relu": F.relu, "gelu": F.gelu}
    if activation not in known:
        raise RuntimeError(f"activation should be relu/gelu, not {activation}")
    found: Callable[[Tensor], Tensor] = known[activation]
    return found


def _causal_mask(size: int, device: Any = None, dtype: Any = None) -> Tensor:
    dtype = get_default_dtype() if dtype is None else dtype
    mask: Tensor = full((size, size), float("-inf"), dtype=dtype, device=device).triu(1)
    return mask


def _is_causal(mask: Tensor | None, hint: bool | None, size: int | None) -> bool:
    """True if a mask is causal, by the hint or by its values.

    On meta there are no values; the hint is all that is known.
    """
    if hint is not None or mask is None or mask.device.type == "meta":
        return hint is True
    size = mask.shape[-2] if size is None else size
    if tuple(mask.shape) != (size, size):
        return False
    return bool((mask == _causal_mask(size, mask.device, mask.dtype)).all())


def _length(x: Tensor, batch_first: bool) -> int | None:
    if x.ndim == 2:
        return x.shape[0]
    return x.shape[1 if batch_first else 0]


def _clones(layer: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


class TransformerEncoderLayer(Module):
    """Transformer encoder layer: self-attention and feed-forward, with residuals and norms.

    Args:
        d_model: Features.
        nhead: Heads of the attention.
        dim_feedforward: Features between the two linear layers.
        dropout: Probability, everywhere.
        activation: "relu", "gelu" or a function.
        layer_norm_eps: Of the norms.
        batch_first: Input and output are (N, L, d_model) instead of (L, N, d_model).
        norm_first: Normalize what goes into a block, not what comes out of the residual.
        bias: Whether linear layers and norms have biases.
        device: Where its parameters lie.
        dtype: Their type.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        like = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias=bias, batch_first=batch_first, **like
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, **like)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **like)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **like)
        self.norm2 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **like)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.activation = _activation(activation)
        known: dict[Any, int] = {F.relu: 1, F.gelu: 2}
        self.activation_relu_or_gelu = known.get(self.activation, 0)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Apply the layer to ``src``.

        Args:
            src: (L, N, d_model), (N, L, d_model) with ``batch_first``, or (L, d_model).
            src_mask: (L, L) or (N nhead, L, L): True hides, or a number added to the scores.
            src_key_padding_mask: (N, L): the same for keys of all queries.
            is_causal: A hint that ``src_mask`` is causal: attention then needs no mask at all.

        Raises:
            RuntimeError: ``is_causal`` without ``src_mask``.
        """
        x = src
        masks = (
            additive(src_mask, "src_mask", src.dtype),
            additive(src_key_padding_mask, "src_key_padding_mask", src.dtype),
        )
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), *masks, is_causal)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(x + self._sa_block(x, *masks, is_causal))
        out: Tensor = self.norm2(x + self._ff_block(x))
        return out

    def _sa_block(
        self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        out, _ = self.self_attn(
            x,
            x,
            x,
            attn_mask=mask,
            key_padding_mask=padding,
            need_weights=False,
            is_causal=is_causal,
        )
        dropped: Tensor = self.dropout1(out)
        return dropped

    def _ff_block(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))
        return out


class TransformerDecoderLayer(Module):
    """Transformer decoder layer: self-attention, cross-attention and feed-forward.

    Arguments: see :class:`TransformerEncoderLayer`.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        like = {"device": device, "dtype": dtype}
        options: dict[str, Any] = {"bias": bias, "batch_first": batch_first, **like}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, **options)
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, **options)
        self.linear1 = Linear(d_model, dim_feedforward, bias, **like)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, **like)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **like)
        self.norm2 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **like)
        self.norm3 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **like)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.dropout3 = Dropout(dropout)
        self.activation = _activation(activation)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Apply the layer to ``tgt`` and ``memory``.

        Args:
            tgt: (L, N, d_model), (N, L, d_model) with ``batch_first``, or (L, d_model).
            memory: The encoder's output, the same with S.
            tgt_mask: (L, L) or (N nhead, L, L): True hides, or a number added to the scores.
            memory_mask: (L, S) or (N nhead, L, S), likewise.
            tgt_key_padding_mask: (N, L), likewise for keys of all queries.
            memory_key_padding_mask: (N, S), likewise for keys of all queries.
            tgt_is_causal: A hint that ``tgt_mask`` is causal.
            memory_is_causal: A hint that ``memory_mask`` is causal.
        """
        x = tgt
        own = (tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        other = (memory_mask, memory_key_padding_mask, memory_is_causal)
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), *own)
            x = x + self._mha_block(self.norm2(x), memory, *other)
            return x + self._ff_block(self.norm3(x))
        x = self.norm1(x + self._sa_block(x, *own))
        x = self.norm2(x + self._mha_block(x, memory, *other))
        out: Tensor = self.norm3(x + self._ff_block(x))
        return out

    def _sa_block(
        self, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
    ) -> Tensor:
        out, _ = self.self_attn(
            x,
            x,
            x,
            attn_mask=mask,
            key_padding_mask=padding,
            is_causal=is_causal,
            need_weights=False,
        )
        dropped: Tensor = self.dropout1(out)
        return dropped

    def _mha_block(
        self, x: Tensor, memory: Tensor, mask: Tensor | None, padding: Tensor | None, causal: bool
    ) -> Tensor:
        out, _ = self.multihead_attn(
            x,
            memory,
            memory,
            attn_mask=mask,
            key_padding_mask=padding,
            is_causal=causal,
            need_weights=False,
        )
        dropped: Tensor = self.dropout2(out)
        return dropped

    def _ff_block(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout3(self.linear2(self.dropout(self.activation(self.linear1(x)))))
        return out


class TransformerEncoder(Module):
    """A stack of encoder layers.

    Args:
        encoder_layer: Copied ``num_layers`` times, values included.
        num_layers: How many.
        norm: Applied to the last output; or None.
        enable_nested_tensor: Ignored.
        mask_check: Ignored.
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = _clones(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.use_nested_tensor = False
        self.mask_check = mask_check

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """Pass ``src`` through all layers.

        Args:
            src: As for the layer.
            mask: ``src_mask`` of every layer.
            src_key_padding_mask: Of every layer.
            is_causal: Whether ``mask`` is causal; None looks at its values.
        """
        mask = additive(mask, "mask", src.dtype)
        padding = additive(src_key_padding_mask, "src_key_padding_mask", src.dtype)
        first: Any = self.layers[0]
        length = _length(src, first.self_attn.batch_first) if hasattr(first, "self_attn") else None
        causal = _is_causal(mask, is_causal, length)
        x = src
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=causal, src_key_padding_mask=padding)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Module):
    """A stack of decoder layers.

    Args:
        decoder_layer: Copied ``num_layers`` times, values included.
        num_layers: How many.
        norm: Applied to the last output; or None.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _clones(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Pass ``tgt`` through all layers; arguments as for the layer.

        ``tgt_is_causal=None`` looks at the values of ``tgt_mask``.
        """
        first: Any = self.layers[0]
        length = _length(tgt, first.self_attn.batch_first) if hasattr(first, "self_attn") else None
        masks: dict[str, Any] = {
            "tgt_mask": tgt_mask,
            "memory_mask": memory_mask,
            "tgt_key_padding_mask": tgt_key_padding_mask,
            "memory_key_padding_mask": memory_key_padding_mask,
        }
        masks = {name: additive(m, name, tgt.dtype) for name, m in masks.items()}
        causal = _is_causal(masks["tgt_mask"], tgt_is_causal, length)
        x = tgt
        for layer in self.layers:
            x = layer(x, memory, **masks, tgt_is_causal=causal, memory_is_causal=memory_is_causal)
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """Transformer model: an encoder and a decoder.

    Args:
        d_model: Features.
        nhead: Heads of the attention.
        num_encoder_layers: Layers of the encoder.
        num_decoder_layers: Layers of the decoder.
        dim_feedforward: Features between the two linear layers of a layer.
        dropout: Probability, everywhere.
        activation: "relu", "gelu" or a function.
        custom_encoder: A module to use instead of the encoder.
        custom_decoder: A module to use instead of the decoder.
        layer_norm_eps: Of the norms.
        batch_first: Input and output are (N, L, d_model) instead of (L, N, d_model).
        norm_first: Normalize what goes into a block, not what comes out of the residual.
        bias: Whether linear layers and norms have biases.
        device: Where its parameters lie.
        dtype: Their type.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        like = {"device": device, "dtype": dtype}
        sizes: Any = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps)
        ways: Any = (batch_first, norm_first, bias, device, dtype)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **like)

        if custom_encoder is not None:
            self.encoder = custom_encoder
        else:
            layer: Module = TransformerEncoderLayer(*sizes, *ways)
            self.encoder = TransformerEncoder(layer, num_encoder_layers, norm())
        if custom_decoder is not None:
            self.decoder = custom_decoder
        else:
            layer = TransformerDecoderLayer(*sizes, *ways)
            self.decoder = TransformerDecoder(layer, num_decoder_layers, norm())
        self._reset_parameters()
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def _reset_parameters(self) -> None:
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Encode ``src`` and decode ``tgt`` with it.

        Args:
            src: (S, N, d_model), (N, S, d_model) with ``batch_first``, or (S, d_model).
            tgt: The same with T.
            src_mask: (S, S): True hides, or a number added to the scores.
            tgt_mask: (T, T), likewise.
            memory_mask: (T, S), likewise.
            src_key_padding_mask: (N, S), likewise for keys of all queries.
            tgt_key_padding_mask: (N, T), likewise.
            memory_key_padding_mask: (N, S), likewise.
            src_is_causal: Whether ``src_mask`` is causal; None looks at its values.
            tgt_is_causal: The same for ``tgt_mask``.
            memory_is_causal: A hint that ``memory_mask`` is causal.

        Returns:
            Tensor like ``tgt``.

        Raises:
            RuntimeError: The batches differ, or the features are not ``d_model``.
        """
        batch = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[batch] != tgt.shape[batch]:
            raise RuntimeError(
                "the batch number of src and tgt must be equal; got "
                f"{src.shape[batch]} and {tgt.shape[batch]}."
            )
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError(
                "the feature number of src and tgt must be equal to d_model; got "
                f"{src.shape[-1]} and {tgt.shape[-1]}, not {self.d_model}."
            )
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        out: Tensor = self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )
        return out

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """Return the causal mask (sz, sz): minus infinity above the diagonal, else zero."""
        return _causal_mask(sz, device, dtype)
