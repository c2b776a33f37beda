"""Models whose layers are written as ops, as research code writes them: beside matrix products
there are chains of elementwise ops on tensors of some hundred thousand elements.
"""

from __future__ import annotations

from typing import Any

from benchmarks.training_models import Library, start_alike


def llama(lib: Library) -> Any:
    """4 blocks of 256 with RMS norms, rotary positions and SwiGLU, 4 heads, 128 tokens, batch 8."""
    nn, functional, module = lib.nn, lib.functional, lib.module
    width, heads, length, batch, vocabulary, hidden = 256, 4, 128, 8, 1000, 672
    each = width // heads

    class RmsNorm(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(module.ones(width))

        def forward(self, x: Any) -> Any:
            scale = module.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
            return x * scale * self.weight

    def turned(x: Any) -> Any:
        a, b = x.chunk(2, -1)
        return module.cat((-b, a), -1)

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = RmsNorm(), RmsNorm()
            self.q, self.k, self.v, self.out = (
                nn.Linear(width, width, bias=False) for _ in range(4)
            )
            self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            h = self.norm1(x)
            q, k, v = (
                layer(h).view(batch, length, heads, each).transpose(1, 2)
                for layer in (self.q, self.k, self.v)
            )
            q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
            h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(h.transpose(1, 2).reshape(batch, length, width))
            h = self.norm2(x)
            return x + self.down(functional.silu(self.gate(h)) * self.up(h))

    class Llama(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList([Block() for _ in range(4)])
            self.norm, self.head = RmsNorm(), nn.Linear(width, vocabulary, bias=False)
            rates = 1 / 10000 ** (module.arange(0, each, 2).float() / each)
            angles = module.outer(module.arange(length).float(), rates).repeat(1, 2)
            self.register_buffer("cos", angles.cos())
            self.register_buffer("sin", angles.sin())

        def forward(self, x: Any) -> Any:
            x = self.embed(x)
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            return self.head(self.norm(x))

    model = start_alike(lib, Llama())
    x, y = lib.classes(vocabulary, batch, length), lib.classes(vocabulary, batch * length)
    return model, lambda: functional.cross_entropy(model(x).view(-1, vocabulary), y)


def flow(lib: Library) -> Any:
    """A normalizing flow: 8 affine couplings of 64 numbers, hidden 64, batch 4096."""
    nn, module = lib.nn, lib.module
    width, hidden, batch = 64, 64, 4096

    class Coupling(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(width // 2, hidden), nn.Linear(hidden, width)
            self.scale = nn.Parameter(module.ones(width // 2))

        def forward(self, x: Any) -> Any:
            still, moved = x.chunk(2, 1)
            s, t = self.last(self.first(still).tanh()).chunk(2, 1)
            s = (s * 0.5).tanh() * self.scale
            moved = (moved + t) * s.exp()
            return module.cat([moved, still], 1), s.sum(1)

    class Flow(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.couplings = nn.ModuleList([Coupling() for _ in range(8)])

        def forward(self, x: Any) -> Any:
            volume = x.new_zeros(batch)
            for coupling in self.couplings:
                x, more = coupling(x)
                volume = volume + more
            return (0.5 * x * x + 0.9189385).sum(1) - volume

    model = start_alike(lib, Flow())
    x = lib.floats(batch, width)
    return model, lambda: model(x).mean()


def diffusion(lib: Library) -> Any:
    """A denoiser in ops: 6 residual layers of 512 with scale and shift by time, batch 1024."""
    nn, functional, module = lib.nn, lib.functional, lib.module
    width, layers, batch = 512, 6, 1024

    class Layer(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.time = nn.Linear(width, width), nn.Linear(32, 3 * width)

        def forward(self, x: Any, time: Any) -> Any:
            shift, scale, gate = self.time(time).chunk(3, 1)
            mean = x.mean(1, keepdim=True)
            low = x - mean
            h = low * module.rsqrt((low * low).mean(1, keepdim=True) + 1e-5)
            h = h * (1 + scale) + shift
            h = self.mix(h)
            h = 0.5 * h * (1 + module.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))
            return x + gate * h

    class Denoiser(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer() for _ in range(layers)])

        def forward(self, x: Any, time: Any) -> Any:
            for layer in self.layers:
                x = layer(x, time)
            return x

    model = start_alike(lib, Denoiser())
    x, noise, time = (
        lib.floats(batch, width),
        lib.floats(batch, width, seed=3),
        lib.floats(batch, 32),
    )
    level = time[:, :1].sigmoid()

    def loss() -> Any:
        noisy = level.sqrt() * x + (1 - level).sqrt() * noise
        return functional.mse_loss(model(noisy, time), noise)

    return model, loss


IN_OPS = {f.__name__: f for f in (llama, flow, diffusion)}
