"""Small nets with everything that recomputation could get wrong: dropout, batch statistics."""

from __future__ import annotations

import lowtide as lt
from lowtide import nn

F = nn.functional


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self, width: int = 32, heads: int = 4, p: float = 0.1) -> None:
        super().__init__()
        self.heads = heads
        self.p = p
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(p)
        )

    def forward(self, x: lt.Tensor) -> lt.Tensor:
        b, t, c = x.shape
        parts = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.p if self.training else 0.0
        )
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


def gpt(blocks: int = 2) -> tuple[nn.Module, lt.Tensor]:
    """Blocks of a GPT, and an input."""
    return nn.Sequential(*[Block() for _ in range(blocks)]), lt.randn(2, 8, 32)


def conv_net() -> tuple[nn.Module, lt.Tensor]:
    """Convolutions with batch normalization, and an input."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(8 * 6 * 6, 5),
    )
    return net, lt.randn(4, 3, 12, 12)
