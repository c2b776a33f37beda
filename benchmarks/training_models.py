"""Models that a benchmark trains with two libraries, each written once over modules of one API.

Each function takes a library's namespaces and returns a module that maps no input to a loss: its
batch is made once, of NumPy's numbers, as are its weights (:func:`start_alike`), so both libraries
compute the same losses.
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np


class Library:
    """What models need of a library, under one set of names."""

    def __init__(self, module: Any, functional: Any, optim: Any) -> None:
        self.module, self.nn, self.functional, self.optim = module, module.nn, functional, optim

    def floats(self, *shape: int, seed: int = 1) -> Any:
        """Normal values."""
        values = np.random.default_rng(seed).standard_normal(shape)
        return self.module.tensor(values.astype(np.float32))

    def classes(self, count: int, *shape: int, seed: int = 2) -> Any:
        """Numbers below ``count``."""
        return self.module.tensor(np.random.default_rng(seed).integers(0, count, shape))


def start_alike(lib: Library, model: Any) -> Any:
    """Set all parameters to values that depend on their order and shapes only."""
    rng = np.random.default_rng(0)
    with lib.module.no_grad():
        for name, p in model.named_parameters():
            shape = tuple(p.shape)
            values = np.full(shape, 0.0 if "bias" in name else 1.0)
            if len(shape) > 1:
                values = rng.standard_normal(shape) / sqrt(np.prod(shape[1:]))
            p.copy_(lib.module.tensor(values.astype(np.float32)))
    return model


def classifier(lib: Library, body: Any, x: Any, classes: int) -> Any:
    """A module's loss on one batch."""
    y = lib.classes(classes, x.shape[0])
    start_alike(lib, body)
    return body, lambda: lib.functional.cross_entropy(body(x), y)


def perceptron(lib: Library, sizes: list[int], between: str, batch: int) -> Any:
    """Linear layers with an activation between them."""
    nn, layers = lib.nn, []
    for n, m in pairwise(sizes):
        layers += [nn.Linear(n, m), getattr(nn, between)()]
    return classifier(lib, nn.Sequential(*layers[:-1]), lib.floats(batch, sizes[0]), sizes[-1])


def tiny(lib: Library) -> Any:
    """16-32-32-4, tanh, batch 16."""
    return perceptron(lib, [16, 32, 32, 4], "Tanh", 16)


def mlp(lib: Library) -> Any:
    """784-256-128-10, ReLU, batch 128."""
    return perceptron(lib, [784, 256, 128, 10], "ReLU", 128)


def deepmlp(lib: Library) -> Any:
    """48 layers of 512, GELU, batch 512."""
    return perceptron(lib, [512] * 49, "GELU", 512)


def resnet(lib: Library) -> Any:
    """3 stages of 3 residual blocks, width 32-64-128, 32 x 32, batch 64."""
    nn = lib.nn

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, n: int, m: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(n, m, 3, stride, 1, bias=False)
            self.norm1 = nn.BatchNorm2d(m)
            self.second = nn.Conv2d(m, m, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(m)
            alike = n == m and stride == 1
            self.around = nn.Identity() if alike else nn.Conv2d(n, m, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            h = lib.functional.relu(self.norm1(self.first(x)))
            return lib.functional.relu(self.norm2(self.second(h)) + self.around(x))

    blocks, n = [], 32
    for m in (32, 64, 128):
        for k in range(3):
            blocks.append(Block(n, m, 2 if k == 0 and m > 32 else 1))
            n = m
    stem = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)]
    return classifier(lib, nn.Sequential(*stem, *blocks, *head), lib.floats(64, 3, 32, 32), 10)


def _block(lib: Library, width: int, heads: int, causal: bool) -> Any:
    nn = lib.nn

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            qkv = self.qkv(self.norm1(x)).split(width, 2)
            parts = [t.view(batch, length, heads, width // heads).transpose(1, 2) for t in qkv]
            h = lib.functional.scaled_dot_product_attention(*parts, is_causal=causal)
            x = x + self.out(h.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(lib.functional.gelu(self.up(self.norm2(x))))

    return Block()


def transformer(
    lib: Library, blocks: int, width: int, heads: int, length: int, batch: int, vocabulary: int
) -> Any:
    """Pre-norm blocks of causal attention and a GELU MLP over tokens."""
    nn = lib.nn

    class Gpt(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.place = nn.Embedding(length, width)
            self.blocks = nn.Sequential(*[_block(lib, width, heads, True) for _ in range(blocks)])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.blocks(self.embed(x) + self.place.weight)))

    model = start_alike(lib, Gpt())
    x, y = lib.classes(vocabulary, batch, length), lib.classes(vocabulary, batch * length)
    return model, lambda: lib.functional.cross_entropy(model(x).view(-1, vocabulary), y)


def gpt(lib: Library) -> Any:
    """4 blocks of 128, 4 heads, 64 tokens, batch 12."""
    return transformer(lib, 4, 128, 4, 64, 12, 64)


def gpt_mid(lib: Library) -> Any:
    """6 blocks of 384, 6 heads, 256 tokens, batch 8."""
    return transformer(lib, 6, 384, 6, 256, 8, 64)


def gpt_vocab(lib: Library) -> Any:
    """2 blocks of 256, 8 heads, vocabulary 16384, 256 tokens, batch 8."""
    return transformer(lib, 2, 256, 8, 256, 8, 16384)


def _recurrent(lib: Library, kind: str) -> Any:
    nn = lib.nn

    class Net(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = getattr(nn, kind)(256, 256, batch_first=True)
            self.head = nn.Linear(256, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.net(x)[0][:, -1])

    return classifier(lib, Net(), lib.floats(32, 64, 256), 10)


def lstm(lib: Library) -> Any:
    """One layer of 256, 64 steps, batch 32."""
    return _recurrent(lib, "LSTM")


def gru(lib: Library) -> Any:
    """One layer of 256, 64 steps, batch 32."""
    return _recurrent(lib, "GRU")


def vit(lib: Library) -> Any:
    """Patches of 4 x 4 of 32 x 32, 4 blocks of 192, 4 heads, batch 32."""
    nn = lib.nn

    class Patches(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cut = nn.Conv2d(3, 192, 4, 4)
            self.place = nn.Embedding(64, 192)

        def forward(self, x: Any) -> Any:
            return self.cut(x).flatten(2).transpose(1, 2) + self.place.weight

    class Mean(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x.mean(1)

    blocks = [_block(lib, 192, 4, False) for _ in range(4)]
    body = nn.Sequential(Patches(), *blocks, nn.LayerNorm(192), Mean(), nn.Linear(192, 10))
    return classifier(lib, body, lib.floats(32, 3, 32, 32), 10)


def mobilenet(lib: Library) -> Any:
    """7 inverted residuals with depthwise convolutions, 32 x 32, batch 32."""
    nn = lib.nn

    class Inverted(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, n: int, m: int, stride: int) -> None:
            super().__init__()
            wide, self.alike = 4 * n, n == m and stride == 1
            self.body = nn.Sequential(
                nn.Conv2d(n, wide, 1, bias=False),
                nn.BatchNorm2d(wide),
                nn.ReLU6(),
                nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
                nn.BatchNorm2d(wide),
                nn.ReLU6(),
                nn.Conv2d(wide, m, 1, bias=False),
                nn.BatchNorm2d(m),
            )

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.alike else self.body(x)

    sizes = [(16, 24, 1), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    blocks = [Inverted(*s) for s in [*sizes, (80, 96, 1)]]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)]
    return classifier(lib, nn.Sequential(*stem, *blocks, *head), lib.floats(32, 3, 32, 32), 10)


def unet(lib: Library) -> Any:
    """3 levels of 16-32-64 with skip connections, 64 x 64, batch 8."""
    nn = lib.nn

    def twice(n: int, m: int) -> Any:
        first = [nn.Conv2d(n, m, 3, 1, 1), nn.GroupNorm(4, m), nn.SiLU()]
        return nn.Sequential(*first, nn.Conv2d(m, m, 3, 1, 1), nn.GroupNorm(4, m), nn.SiLU())

    class Unet(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2, self.low = twice(3, 16), twice(16, 32), twice(32, 64)
            self.rise2, self.rise1 = (
                nn.ConvTranspose2d(64, 32, 2, 2),
                nn.ConvTranspose2d(32, 16, 2, 2),
            )
            self.up2, self.up1, self.head = twice(64, 32), twice(32, 16), nn.Conv2d(16, 3, 1)

        def forward(self, x: Any) -> Any:
            pool, cat = lib.functional.max_pool2d, lib.module.cat
            one = self.down1(x)
            two = self.down2(pool(one, 2))
            h = self.low(pool(two, 2))
            h = self.up2(cat([self.rise2(h), two], 1))
            return self.head(self.up1(cat([self.rise1(h), one], 1)))

    model = start_alike(lib, Unet())
    x, y = lib.floats(8, 3, 64, 64), lib.floats(8, 3, 64, 64, seed=3)
    return model, lambda: lib.functional.mse_loss(model(x), y)


def ntm(lib: Library) -> Any:
    """A neural Turing machine: 20 steps on a memory of 32 x 16, 6,000 small kernels."""
    nn, functional, module = lib.nn, lib.functional, lib.module
    slots, width, hidden, inputs = 32, 16, 64, 8

    class Machine(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(inputs + width, hidden)
            self.read, self.write = nn.Linear(hidden, width + 6), nn.Linear(hidden, 3 * width + 6)
            self.out = nn.Linear(hidden + width, inputs)
            self.memory = nn.Parameter(lib.floats(slots, width))

        def address(self, p: Any, memory: Any, before: Any) -> Any:
            key, rest = p[:, :width].tanh(), p[:, width:]
            strength, gate = functional.softplus(rest[:, :1]), rest[:, 1:2].sigmoid()
            shift, sharp = functional.softmax(rest[:, 2:5], 1), 1 + functional.softplus(rest[:, 5:])
            alike = functional.cosine_similarity(memory + 1e-16, key.unsqueeze(1) + 1e-16, dim=-1)
            w = gate * functional.softmax(strength * alike, 1) + (1 - gate) * before
            turned = [module.roll(w, k, 1) * shift[:, k + 1 : k + 2] for k in (-1, 0, 1)]
            w = sum(turned) ** sharp
            return w / (w.sum(1, keepdim=True) + 1e-16)

        def forward(self, x: Any) -> Any:
            batch = x.shape[1]
            memory = self.memory.expand(batch, slots, width)
            h = c = x.new_zeros(batch, hidden)
            reading = writing = x.new_zeros(batch, slots)
            found, results = x.new_zeros(batch, width), []
            for now in x:
                h, c = self.cell(module.cat([now, found], 1), (h, c))
                p = self.write(h)
                writing = self.address(p[:, : width + 6], memory, writing)
                erase, add = p[:, width + 6 : 2 * width + 6].sigmoid(), p[:, 2 * width + 6 :]
                memory = memory * (1 - writing.unsqueeze(2) * erase.unsqueeze(1))
                memory = memory + writing.unsqueeze(2) * add.unsqueeze(1)
                reading = self.address(self.read(h), memory, reading)
                found = (reading.unsqueeze(1) @ memory).squeeze(1)
                results.append(self.out(module.cat([h, found], 1)))
            return module.stack(results)

    model = start_alike(lib, Machine())
    x, y = lib.floats(20, 4, inputs), lib.floats(20, 4, inputs, seed=3)
    return model, lambda: functional.mse_loss(model(x), y)


MODELS = {
    f.__name__: f
    for f in (
        tiny, mlp, deepmlp, resnet, gpt, gpt_mid, gpt_vocab, lstm, gru, vit, mobilenet, unet, ntm,
    )
}  # fmt: skip


def training_step(lib: Library, name: str, models: Any = None) -> Any:
    """Return a function that makes one step of AdamW and returns the loss."""
    model, loss_of = (models or MODELS)[name](lib)
    optimizer = lib.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return step
