"""A predicted peak is the real one: 0 bytes from the ledger, 0 from the pool, and at most 1 % from
what the system says of the process, beyond a constant.

For each model a fresh process builds it, makes two steps (gradients, optimizer state, compiled
kernels), estimates the third, makes it, and compares: the estimate's peak with the ledger's, its
reserved bytes with the pool's, and constant + reserved bytes with the highest resident set of that
step. The constant, printed along, is what the process holds outside of the pool's
mapping before that step: interpreter, libraries, compiled kernels. So the last comparison says that
no memory of any size is taken past the pool. Pages that an earlier step touched stay with the
process, so the pool counts with what it holds resident, if that is more.

``--large`` estimates the training step of a transformer of 70 billion parameters, built on meta.

    python -m benchmarks.prediction [--only NAME] [--large] [--json FILE]
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework.devices import backend
from lowtide.nn import functional as F
from lowtide.profiling import estimate

MODELS = {}


def model(make):
    MODELS[make.__name__] = make
    return make


def training(net, loss_of, make=optim.AdamW, **options):
    optimizer = make(net.parameters(), lr=1e-3, **options)

    def step():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def classifying(net, *shape, classes=10, **options):
    x, y = lt.randn(*shape), lt.randint(0, classes, (shape[0],))
    return training(net, lambda: F.cross_entropy(net(x), y), **options)


@model
def perceptron():
    layers = [nn.Linear(1024, 4096), nn.GELU(), nn.Dropout(0.1), nn.Linear(4096, 1024), nn.ReLU()]
    return classifying(nn.Sequential(*layers, nn.Linear(1024, 10)), 2048, 1024)


@model
def perceptron_sgd():
    net = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 10))
    return classifying(net, 2048, 2048, make=optim.SGD, momentum=0.9)


def _conv(inputs, outputs, stride=1):
    norm = nn.BatchNorm2d(outputs)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first, self.second = _conv(inputs, outputs, stride), _conv(outputs, outputs)
        self.around = _conv(inputs, outputs, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.around(x))


@model
def convolutions():
    net = nn.Sequential(
        _conv(3, 32),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        _conv(32, 64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 64, 10),
    )
    return classifying(net, 256, 3, 32, 32)


@model
def residual_network():
    net = nn.Sequential(
        _conv(3, 32),
        nn.ReLU(),
        Residual(32, 32, 1),
        Residual(32, 64, 2),
        Residual(64, 128, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    return classifying(net, 128, 3, 32, 32, make=optim.SGD, momentum=0.9)


@model
def autoencoder():
    down = nn.Sequential(nn.Linear(784, 1024), nn.SiLU(), nn.Linear(1024, 64))
    up = nn.Sequential(nn.Linear(32, 1024), nn.SiLU(), nn.Linear(1024, 784))
    net, x = nn.ModuleList([down, up]), lt.rand(8192, 784)

    def loss():
        mean, log_variance = down(x).chunk(2, dim=1)
        code = mean + lt.randn_like(mean) * (0.5 * log_variance).exp()
        bound = F.binary_cross_entropy_with_logits(up(code), x, reduction="sum")
        return bound + 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum()

    return training(net, loss, optim.Adam)


@model
def recurrent():
    lstm, head = nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 10)
    x, y = lt.randn(64, 100, 128), lt.randint(0, 10, (64,))
    net = nn.ModuleList([lstm, head])
    return training(net, lambda: F.cross_entropy(head(lstm(x)[0][:, -1]), y))


@model
def transformer_encoder():
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    net = nn.TransformerEncoder(layer, 3)
    x = lt.randn(16, 128, 256)
    return training(net, lambda: net(x).square().mean())


class Block(nn.Module):
    """Of GPT: attention and a perceptron, each added to what came in."""

    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .view(B, T, 3, self.heads, C // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=8192, width=256, depth=4, heads=8, dropout=0.0):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*[Block(width, heads, dropout) for _ in range(depth)])
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        return self.head(self.blocks(self.token(x)))


def language(net, batch=8, length=128):
    x, y = lt.randint(0, 8192, (batch, length)), lt.randint(0, 8192, (batch * length,))
    return net, lambda: F.cross_entropy(net(x).flatten(0, 1), y)


@model
def gpt():
    return training(*language(GPT(dropout=0.1)))


@model
def gpt_accumulating():
    net, loss_of = language(GPT(), batch=4)
    optimizer = optim.AdamW(net.parameters())

    def step():
        for _ in range(3):
            (loss_of() / 3).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


@model
def gpt_autocast():
    net, loss_of = language(GPT())

    def loss():
        with lt.autocast("cpu", dtype=lt.bfloat16):
            return loss_of()

    return training(net, loss)


@model
def gpt_evaluated():
    _, loss_of = language(GPT().eval())

    def step():
        with lt.no_grad():
            return loss_of().item()

    return step


@model
def embedding_bag():
    net = nn.EmbeddingBag(200_000, 64)
    x = lt.randint(0, 200_000, (4096, 32))
    return training(net, lambda: net(x).square().mean(), optim.Adagrad)


@model
def gradient_penalty():
    net = nn.Sequential(nn.Linear(512, 2048), nn.Tanh(), nn.Linear(2048, 1))
    x = lt.randn(4096, 512)

    def loss():
        y = x.detach().requires_grad_()
        out = net(y).sum()
        (g,) = lt.autograd.grad(out, y, create_graph=True)
        return out + (g.norm(dim=1) - 1).square().mean()

    return training(net, loss, optim.Adam)


@model
def data_loader():
    from lowtide.utils.data import DataLoader, TensorDataset

    data = TensorDataset(lt.randn(16384, 784), lt.randint(0, 10, (16384,)))
    loader = DataLoader(data, batch_size=4096, shuffle=True)
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = optim.Adam(net.parameters())

    def step():
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()

    return step


def resident(field):
    """VmRSS (now) or VmHWM (the highest) of this process, in bytes, as Linux counts them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; this benchmark needs Linux")


def of_the_pool():
    """Resident bytes of the pool's mapping."""
    be = backend(lt.device("cpu"))
    first, last = be.ledger.base, be.ledger.base + be.pool.capacity
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        found = re.match(r"([0-9a-f]+)-[0-9a-f]+ ", line)
        if found:
            inside = first <= int(found[1], 16) < last
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def measure(name):
    """In a fresh process: predictions and what happened."""
    lt.manual_seed(0)
    step = MODELS[name]()
    step()
    estimate(step)  # BLAS answers a fork by taking new buffers: some megabytes, once
    step()
    held = of_the_pool()
    constant = resident("VmRSS") - held
    begin = time.perf_counter()
    found = estimate(step)
    seconds = time.perf_counter() - begin
    Path("/proc/self/clear_refs").write_text("5")  # the highest starts again from now
    lt.reset_peak_memory_stats()
    begin = time.perf_counter()
    step()
    real_seconds = time.perf_counter() - begin
    predicted = constant + max(held, found.devices[0].reserved_bytes)
    return {
        "model": name,
        "predicted": found.peak_bytes,
        "ledger": lt.max_memory_allocated() - found.peak_bytes,
        "pool": lt.max_memory_reserved() - found.devices[0].reserved_bytes,
        "constant": constant,
        "predicted_rss": predicted,
        "rss": resident("VmHWM") - predicted,
        "seconds": seconds,
        "real_seconds": real_seconds,
    }


def large():
    """Seconds to build and estimate a transformer of 70 billion parameters on meta."""
    begin = time.perf_counter()
    with lt.device("meta"):
        net = Llama().to(lt.bfloat16)
        x = lt.zeros(1, 4096, dtype=lt.int64)
    optimizer = optim.AdamW(net.parameters())

    def step():
        loss = F.cross_entropy(net(x).flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    size = sum(p.numel() for p in net.parameters())
    built = time.perf_counter() - begin
    found = estimate(step)
    print(f"{size / 1e9:.1f} billion parameters, built in {built:.1f} s")
    print(found)
    print(found.at_peak("module", depth=1))
    print(f"{time.perf_counter() - begin:.1f} s in all")
    return {"parameters": size, "seconds": time.perf_counter() - begin, "peak": found.peak_bytes}


class Layer(nn.Module):
    """Of Llama (Touvron et al. 2023): grouped heads, rotated positions, a gated perceptron."""

    def __init__(self, width, heads, groups, inner):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x, turn):
        B, T, C = x.shape
        y = self.norm1(x)
        q = rotated(self.query(y).view(B, T, self.heads, self.size).transpose(1, 2), turn)
        k = rotated(self.key(y).view(B, T, self.groups, self.size).transpose(1, 2), turn)
        v = self.value(y).view(B, T, self.groups, self.size).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotated(x, turn):
    cosine, sine = turn
    a, b = x.chunk(2, dim=-1)
    return lt.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)


class Llama(nn.Module):
    """The shape of Llama 3 70B."""

    def __init__(self, width=8192, depth=80, heads=64, groups=8, inner=28672, vocabulary=128_256):
        super().__init__()
        self.half = width // heads // 2
        self.token = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([Layer(width, heads, groups, inner) for _ in range(depth)])
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.token(tokens)
        steps = lt.arange(tokens.shape[1], device=x.device)[:, None]
        speeds = 5e5 ** (-lt.arange(self.half, device=x.device) / self.half)
        turn = [f.to(x.dtype) for f in ((steps * speeds).cos(), (steps * speeds).sin())]
        for layer in self.layers:
            x = layer(x, turn)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=MODELS, help="this model, in this process, as JSON")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args.only)))
        return
    rows = []
    if not args.large:
        head = f"{'model':<22}{'peak':>11}{'ledger':>9}{'pool':>6}{'RSS':>9}{'constant':>13}"
        print(f"{head}{'estimate':>11}{'step':>8}")
        for name in MODELS:
            command = [sys.executable, "-m", "benchmarks.prediction", "--only", name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(r := json.loads(done.stdout.splitlines()[-1]))
            print(
                f"{name:<22}{r['predicted'] / 2**20:>7.1f} MiB{r['ledger']:>7} B{r['pool']:>4} B"
                f"{r['rss'] / r['predicted_rss']:>+9.2%}{r['constant'] / 2**20:>9.0f} MiB"
                f"{r['seconds']:>9.3f} s{r['real_seconds']:>6.2f} s"
            )
        worst = max(max(abs(r["ledger"]), abs(r["pool"])) for r in rows)
        rss = max(abs(r["rss"]) / r["predicted_rss"] for r in rows)
        print(f"worst difference from ledger and pool: {worst} bytes; from the RSS: {rss:.2%}")
    else:
        rows.append(large())
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
