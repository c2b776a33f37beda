"""Transformers and attention in their many forms."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.testbed.training import Rows, filled, listed, program, trained


def next_token(model: Any, tokens: Any, vocabulary: int) -> Any:
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.reshape(-1, vocabulary), tokens[:, 1:].reshape(-1))


@program("x-transformers")
def decoder() -> Rows:
    from x_transformers import Decoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=32,
        max_seq_len=24,
        attn_layers=Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, rotary_pos_emb=True),
    )
    tokens = listed(32, 4, 17)
    return trained(model, lambda: next_token(model, tokens, 32))


@program("x-transformers")
def encoder_with_memory() -> Rows:
    from x_transformers import Encoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=32,
        max_seq_len=24,
        num_memory_tokens=3,
        attn_layers=Encoder(
            dim=32,
            depth=2,
            heads=4,
            attn_dim_head=8,
            ff_glu=True,
            use_rmsnorm=True,
            alibi_pos_bias=True,
        ),
    )
    tokens = listed(32, 4, 16)
    mask = torch.ones(4, 16, dtype=torch.bool)
    mask[0, 9:] = False
    return trained(model, lambda: model(tokens, mask=mask).square().mean())


@program("perceiver-pytorch")
def perceiver() -> Rows:
    from perceiver_pytorch import Perceiver

    model = Perceiver(
        input_channels=3,
        input_axis=2,
        num_freq_bands=4,
        max_freq=8.0,
        depth=2,
        num_latents=8,
        latent_dim=16,
        cross_heads=1,
        latent_heads=2,
        cross_dim_head=8,
        latent_dim_head=8,
        num_classes=5,
        weight_tie_layers=True,
    )
    images, labels = filled(2, 8, 8, 3), listed(5, 2)
    return trained(model, lambda: F.cross_entropy(model(images), labels))


@program("nystrom-attention")
def nystromformer() -> Rows:
    from nystrom_attention import Nystromformer

    model = Nystromformer(dim=16, depth=2, dim_head=8, heads=2, num_landmarks=4, pinv_iterations=4)
    x = filled(2, 16, 16)
    return trained(model, lambda: model(x).square().mean())


@program("linformer")
def linformer() -> Rows:
    from linformer import LinformerLM

    model = LinformerLM(num_tokens=20, dim=16, seq_len=12, depth=2, heads=2, k=4)
    tokens = listed(20, 2, 12)
    return trained(model, lambda: F.cross_entropy(model(tokens).transpose(1, 2), tokens))


@program("linformer")
def linformer_reversible() -> Rows:
    from linformer import LinformerLM

    model = LinformerLM(num_tokens=20, dim=16, seq_len=12, depth=2, heads=2, k=4, reversible=True)
    tokens = listed(20, 2, 12)
    return trained(model, lambda: F.cross_entropy(model(tokens).transpose(1, 2), tokens))


@program("local-attention", tolerance=1e-5)
def local_transformer() -> Rows:
    from local_attention import LocalTransformer

    model = LocalTransformer(
        num_tokens=24,
        dim=16,
        depth=2,
        max_seq_len=32,
        local_attn_window_size=8,
        heads=2,
        dim_head=8,
    )
    tokens = listed(24, 2, 25)
    return trained(model, lambda: model(tokens, return_loss=True))


@program("linear-attention-transformer")
def linear_attention() -> Rows:
    from linear_attention_transformer import LinearAttentionTransformerLM

    model = LinearAttentionTransformerLM(
        num_tokens=24, dim=16, depth=2, heads=2, max_seq_len=32, causal=True, blindspot_size=1
    )
    tokens = listed(24, 2, 33)
    return trained(model, lambda: next_token(model, tokens, 24))


@program("rotary-embedding-torch")
def rotary() -> Rows:
    from rotary_embedding_torch import RotaryEmbedding

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rotary = RotaryEmbedding(dim=8, learned_freq=True)
            self.project = torch.nn.Linear(16, 48)

        def forward(self, x: Any) -> Any:
            q, k, v = (t.view(2, -1, 2, 8).transpose(1, 2) for t in self.project(x).chunk(3, -1))
            q, k = (self.rotary.rotate_queries_or_keys(t) for t in (q, k))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    model, x = Attention(), filled(2, 10, 16)
    return trained(model, lambda: model(x).square().mean())


@program("g-mlp-pytorch")
def gated_mlp() -> Rows:
    from g_mlp_pytorch import gMLP

    model = gMLP(num_tokens=20, dim=16, depth=2, seq_len=12, causal=True)
    tokens = listed(20, 2, 12)
    return trained(model, lambda: F.cross_entropy(model(tokens).transpose(1, 2), tokens))


@program("performer-pytorch")
def performer() -> Rows:
    from performer_pytorch import PerformerLM

    model = PerformerLM(
        num_tokens=20,
        max_seq_len=16,
        dim=16,
        depth=2,
        heads=2,
        dim_head=8,
        causal=False,
        nb_features=8,
    )
    tokens = listed(20, 2, 16)
    return trained(model, lambda: F.cross_entropy(model(tokens).transpose(1, 2), tokens))


@program("vit-pytorch")
def vision_transformer() -> Rows:
    from vit_pytorch import ViT

    model = ViT(
        image_size=16, patch_size=4, num_classes=5, dim=16, depth=2, heads=2, mlp_dim=32, dim_head=8
    )
    images, labels = filled(3, 3, 16, 16), listed(5, 3)
    return trained(model, lambda: F.cross_entropy(model(images), labels))


@program("vit-pytorch")
def compact_transformer() -> Rows:
    from vit_pytorch.cct import CCT

    model = CCT(
        img_size=16, embedding_dim=16, n_conv_layers=2, kernel_size=3, stride=2, padding=1,
        pooling_kernel_size=3, pooling_stride=2, pooling_padding=1, num_layers=2, num_heads=2,
        mlp_ratio=2.0, num_classes=5, positional_embedding="learnable", dropout_rate=0.0,
        attention_dropout=0.0, stochastic_depth_rate=0.0,
    )  # fmt: skip
    images, labels = filled(3, 3, 16, 16), listed(5, 3)
    return trained(model, lambda: F.cross_entropy(model(images), labels))


@program("colt5-attention")
def routed_feed_forward() -> Rows:
    from colt5_attention import ConditionalRoutedFeedForward

    model = ConditionalRoutedFeedForward(
        16, num_heavy_tokens=4, light_ff_mult=0.5, heavy_ff_mult=2, use_triton=False
    )
    x = filled(2, 12, 16)
    return trained(model, lambda: model(x).square().mean())


@program("reformer-pytorch")
def reversible_sequence() -> Rows:
    from reformer_pytorch.reversible import ReversibleSequence

    def block() -> Any:
        return torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 16), torch.nn.Tanh())

    blocks = torch.nn.ModuleList([torch.nn.ModuleList([block(), block()]) for _ in range(3)])
    model = ReversibleSequence(blocks, layer_dropout=0.0, reverse_thres=0, send_signal=False)
    x = filled(2, 6, 32).requires_grad_()
    return trained(model, lambda: model(x).square().mean())
