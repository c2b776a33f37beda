"""Forward and backward of 160 layers and functions beside PyTorch's. The goal is PyTorch's time.

Each runs alone, on float32 tensors of about a million elements where that makes sense: what the sum
of a training step hides shows here. Each library has a process of its own and they take turns, as
in ``training_step.py``. Printed are the least times of each and their ratio (below 1: lowtide is
faster), the worst first, then how many lie where.

    python -m benchmarks.operators [--rounds N] [--threads N] [--only PART] [--json FILE]
"""

import argparse
import importlib
import importlib.util
import json
import math
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np

TURN_S = 0.08  # of each library at a time
PAUSE_S = 0.02  # between turns, until idle threads sleep
MATRIX = (2048, 512)
IMAGES = (16, 64, 32, 32)
HEADS = (8, 8, 256, 32)
POINTWISE_LAYERS = (
    "CELU ELU GELU GLU Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU ReLU ReLU6 "
    "SELU SiLU Sigmoid Softplus Softsign Tanh"
)
POINTWISE = "abs cos erf exp expm1 log1p neg reciprocal rsqrt sigmoid sin sqrt square tanh"


def conv(kernel, stride=1, groups=1, **options):
    """A convolution of IMAGES that keeps their number of channels."""
    return lambda nn: nn.Conv2d(
        64,
        64,
        kernel,
        stride,
        padding=kernel // 2 * options.get("dilation", 1),
        groups=groups,
        **options,
    )


def itself(nn):
    """Attention of a sequence with itself."""
    layer = nn.MultiheadAttention(256, 8, batch_first=True)
    return lambda x: layer(x, x, x, need_weights=False)


# Name -> (layer, shapes of what it is given)
LAYERS = {
    **{f"Conv2d {k} x {k}": (conv(k), IMAGES) for k in (1, 3, 5)},
    **{f"Conv2d {k} x {k}, stride 2": (conv(k, 2), IMAGES) for k in (3, 7)},
    "Conv2d 3 x 3, 4 groups": (conv(3, groups=4), IMAGES),
    "Conv2d 3 x 3, depthwise": (conv(3, groups=64), IMAGES),
    "Conv2d 3 x 3, dilated": (conv(3, dilation=2), IMAGES),
    "Conv2d of 3 channels": (lambda nn: nn.Conv2d(3, 64, 7, 2, 3), (8, 3, 128, 128)),
    "Conv1d": (lambda nn: nn.Conv1d(64, 128, 5, padding=2), (16, 64, 512)),
    "Conv1d depthwise": (lambda nn: nn.Conv1d(128, 128, 5, padding=2, groups=128), (16, 128, 512)),
    "Conv3d": (lambda nn: nn.Conv3d(16, 16, 3, padding=1), (2, 16, 16, 32, 32)),
    "ConvTranspose2d": (lambda nn: nn.ConvTranspose2d(64, 32, 4, 2, 1), (16, 64, 16, 16)),
    "MaxPool2d(2)": (lambda nn: nn.MaxPool2d(2), IMAGES),
    "MaxPool2d(3, 2, 1)": (lambda nn: nn.MaxPool2d(3, 2, 1), IMAGES),
    "AvgPool2d(2)": (lambda nn: nn.AvgPool2d(2), IMAGES),
    "AdaptiveAvgPool2d(1)": (lambda nn: nn.AdaptiveAvgPool2d(1), IMAGES),
    "AdaptiveMaxPool2d(4)": (lambda nn: nn.AdaptiveMaxPool2d(4), IMAGES),
    "BatchNorm1d": (lambda nn: nn.BatchNorm1d(512), MATRIX),
    "BatchNorm2d": (lambda nn: nn.BatchNorm2d(64), IMAGES),
    "BatchNorm2d, eval": (lambda nn: nn.BatchNorm2d(64).eval(), IMAGES),
    "GroupNorm": (lambda nn: nn.GroupNorm(8, 64), IMAGES),
    "InstanceNorm2d": (lambda nn: nn.InstanceNorm2d(64), IMAGES),
    "LayerNorm": (lambda nn: nn.LayerNorm(512), MATRIX),
    "RMSNorm": (lambda nn: nn.RMSNorm(512), MATRIX),
    **{n: (lambda nn, n=n: getattr(nn, n)(), MATRIX) for n in POINTWISE_LAYERS.split()},
    "GELU tanh": (lambda nn: nn.GELU(approximate="tanh"), MATRIX),
    "Softmax": (lambda nn: nn.Softmax(-1), MATRIX),
    "Softmax over channels": (lambda nn: nn.Softmax(1), IMAGES),
    "LogSoftmax": (lambda nn: nn.LogSoftmax(-1), MATRIX),
    "Dropout": (lambda nn: nn.Dropout(0.1), MATRIX),
    "Dropout2d": (lambda nn: nn.Dropout2d(0.1), IMAGES),
    "Linear 512": (lambda nn: nn.Linear(512, 512), MATRIX),
    "Linear 32": (lambda nn: nn.Linear(32, 32), (64, 32)),
    "Bilinear": (lambda nn: nn.Bilinear(64, 64, 64), (256, 64), (256, 64)),
    "LSTM": (lambda nn: nn.LSTM(64, 128, batch_first=True), (32, 64, 64)),
    "LSTM, two ways": (lambda nn: nn.LSTM(64, 64, 2, bidirectional=True), (64, 32, 64)),
    "GRU": (lambda nn: nn.GRU(64, 128), (64, 32, 64)),
    "RNN": (lambda nn: nn.RNN(64, 128), (64, 32, 64)),
    "MultiheadAttention": (itself, (8, 128, 256)),
    "TransformerEncoderLayer": (
        lambda nn: nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True),
        (8, 128, 256),
    ),
    "Upsample nearest": (lambda nn: nn.Upsample(scale_factor=2), (16, 64, 16, 16)),
    "Upsample bilinear": (
        lambda nn: nn.Upsample(scale_factor=2, mode="bilinear"),
        (16, 64, 16, 16),
    ),
    "Upsample bicubic": (lambda nn: nn.Upsample(scale_factor=2, mode="bicubic"), (4, 32, 16, 16)),
    "PixelShuffle": (lambda nn: nn.PixelShuffle(2), IMAGES),
    "ZeroPad2d": (lambda nn: nn.ZeroPad2d(1), IMAGES),
    "ReflectionPad2d": (lambda nn: nn.ReflectionPad2d(1), IMAGES),
    "Unfold": (lambda nn: nn.Unfold(3, padding=1), (4, 32, 32, 32)),
}


def gates(t, x):
    """Three parts of a tensor, combined."""
    a, b, c = x.chunk(3, -1)
    return a * b + c


def attention(**options):
    """Attention of eight heads."""
    return lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def masked_attention(t, q, k, v, mask):
    """Attention with a mask that is added, or, of whole numbers, hides where it is 0."""
    mask = mask if mask.is_floating_point() else mask[:, None, None] > 0
    return t.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def ctc(t, x, y):
    """CTC of 16 utterances."""
    return t.nn.functional.ctc_loss(x.log_softmax(-1), y + 1, [100] * 16, [20] * 16)


# Name -> (function of the library and tensors, what these are: a shape of normal numbers, or
# (shape, n) for integers below n)
CALLS = {
    "attention": (attention(), *[HEADS] * 3),
    "attention, causal": (attention(is_causal=True), *[HEADS] * 3),
    "attention, dropout": (attention(dropout_p=0.1), *[HEADS] * 3),
    "attention, padding mask": (masked_attention, *[HEADS] * 3, ((8, 256), 4)),
    "attention, bias": (masked_attention, *[HEADS] * 3, (8, 256, 256)),
    "attention of short sequences, causal": (attention(is_causal=True), *[(32, 4, 32, 32)] * 3),
    "embedding": (
        lambda t, w, i: t.nn.functional.embedding(i, w), (10000, 256), ((64, 128), 10000),
    ),
    "embedding_bag": (
        lambda t, w, i: t.nn.functional.embedding_bag(i, w), (10000, 64), ((512, 20), 10000),
    ),
    "cross_entropy": (
        lambda t, x, y: t.nn.functional.cross_entropy(x, y), (2048, 1000), ((2048,), 1000),
    ),
    "cross_entropy of pixels": (
        lambda t, x, y: t.nn.functional.cross_entropy(x, y), (8, 21, 64, 64), ((8, 64, 64), 21),
    ),
    "cross_entropy of 64 x 10": (
        lambda t, x, y: t.nn.functional.cross_entropy(x, y), (64, 10), ((64,), 10),
    ),
    **{
        n: (lambda t, x, y, n=n: getattr(t.nn.functional, n)(x, y), MATRIX, MATRIX)
        for n in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cosine_similarity")
    },
    "binary_cross_entropy_with_logits": (
        lambda t, x, y: t.nn.functional.binary_cross_entropy_with_logits(x, y.detach()),
        MATRIX, MATRIX,
    ),
    "kl_div": (
        lambda t, x, y: t.nn.functional.kl_div(x.log_softmax(-1), y.softmax(-1).detach()),
        (512, 512), (512, 512),
    ),
    "triplet_margin_loss": (
        lambda t, a, p, n: t.nn.functional.triplet_margin_loss(a, p, n), *[(2048, 256)] * 3,
    ),
    "ctc_loss": (ctc, (100, 16, 40), ((16, 20), 39)),
    "normalize": (lambda t, x: t.nn.functional.normalize(x), MATRIX),
    "cdist": (lambda t, x, y: t.cdist(x, y), (512, 64), (512, 64)),
    "grid_sample": (
        lambda t, x, g: t.nn.functional.grid_sample(x, g.tanh(), align_corners=False),
        (8, 32, 32, 32), (8, 32, 32, 2),
    ),
    **{n: (lambda t, x, n=n: getattr(t, n)(x.abs() + 1), MATRIX) for n in POINTWISE.split()},
    "add": (lambda t, x, y: x + y, MATRIX, MATRIX),
    "add a row": (lambda t, x, y: x + y, MATRIX, (512,)),
    "multiply by a column": (lambda t, x, y: x * y, MATRIX, (2048, 1)),
    "divide": (lambda t, x, y: x / (y.abs() + 1), MATRIX, MATRIX),
    "power 1.5": (lambda t, x: x.abs() ** 1.5, MATRIX),
    "where": (lambda t, x, y: t.where(x > 0, x, y), MATRIX, MATRIX),
    "clamp": (lambda t, x: x.clamp(-1, 1), MATRIX),
    "maximum": (lambda t, x, y: t.maximum(x, y), MATRIX, MATRIX),
    "masked_fill": (lambda t, x: x.masked_fill(x > 0, 0.0), MATRIX),
    **{
        f"{n} of rows": (lambda t, x, n=n: getattr(x, n)(1), MATRIX)
        for n in ("sum", "mean", "var", "prod", "logsumexp", "cumsum")
    },
    "sum of columns": (lambda t, x: x.sum(0), MATRIX),
    "std": (lambda t, x: x.std(), MATRIX),
    "norm": (lambda t, x: x.norm(), MATRIX),
    "max of rows": (lambda t, x: x.max(1)[0], MATRIX),
    "max of columns": (lambda t, x: x.max(0)[0], MATRIX),
    "sort": (lambda t, x: x.sort(1)[0], (512, 512)),
    "topk": (lambda t, x: x.topk(10, 1)[0], (512, 2048)),
    "median": (lambda t, x: x.median(1)[0], (512, 512)),
    "transpose, copied": (lambda t, x: x.t().contiguous(), MATRIX),
    "permute, copied": (lambda t, x: x.permute(0, 2, 3, 1).contiguous(), IMAGES),
    "cat": (lambda t, x, y: t.cat([x, y], 1), MATRIX, MATRIX),
    "stack": (lambda t, x, y: t.stack([x, y]), MATRIX, MATRIX),
    "split": (lambda t, x: sum(x.split(128, 1)), MATRIX),
    "chunk and combine": (gates, (2048, 768)),
    "roll": (lambda t, x: x.roll(1, 1), MATRIX),
    "flip": (lambda t, x: x.flip(1), MATRIX),
    "repeat": (lambda t, x: x.repeat(4, 1), (512, 512)),
    "repeat_interleave": (lambda t, x: x.repeat_interleave(4, 0), (512, 512)),
    "tril": (lambda t, x: x.tril(), (1024, 1024)),
    "gather": (lambda t, x, i: x.gather(1, i), MATRIX, ((2048, 128), 512)),
    "scatter_add": (
        lambda t, x, i: t.zeros(2048, 512).scatter_add(1, i, x), (2048, 128), ((2048, 128), 512),
    ),
    "index_select": (lambda t, x, i: x.index_select(0, i), MATRIX, ((4096,), 2048)),
    "index by numbers": (lambda t, x, i: x[i], MATRIX, ((4096,), 2048)),
    "index by a mask": (lambda t, x: x[x > 0], MATRIX),
    "index_add": (
        lambda t, x, i: t.zeros(512, 256).index_add(0, i, x), (4096, 256), ((4096,), 512),
    ),
    "matmul of stacks": (lambda t, x, y: x @ y, (64, 128, 64), (64, 64, 128)),
    "matmul of many small": (lambda t, x, y: x @ y, (1024, 16, 16), (1024, 16, 16)),
    "matmul, one of them shared": (lambda t, x, y: x @ y, (32, 64, 256), (256, 256)),
    "matrix times vector": (lambda t, x, y: x @ y, MATRIX, (512,)),
    "einsum bqhd,bkhd->bhqk": (
        lambda t, x, y: t.einsum("bqhd,bkhd->bhqk", x, y), (8, 128, 8, 32), (8, 128, 8, 32),
    ),
    "linalg.solve": (
        lambda t, x, y: t.linalg.solve(x + 40 * t.eye(256), y), (256, 256), (256, 16),
    ),
    "linalg.inv": (lambda t, x: t.linalg.inv(x + 40 * t.eye(256)), (256, 256)),
    "linalg.cholesky": (lambda t, x: t.linalg.cholesky(x @ x.mT + t.eye(256)), (256, 256)),
    "linalg.eigh": (lambda t, x: t.linalg.eigh(x + x.mT)[0], (128, 128)),
    "linalg.qr": (lambda t, x: t.linalg.qr(x)[1], (128, 128)),
    "linalg.det of many": (lambda t, x: t.linalg.det(x), (512, 4, 4)),
    "fft.rfft": (lambda t, x: t.fft.rfft(x).abs(), (256, 1024)),
    "to bfloat16 and back": (lambda t, x: x.to(t.bfloat16).to(t.float32), MATRIX),
    "bfloat16 multiply": (lambda t, x, y: x.to(t.bfloat16) * y.to(t.bfloat16), MATRIX, MATRIX),
    "bfloat16 matmul": (
        lambda t, x, y: x.to(t.bfloat16) @ y.to(t.bfloat16), (256, 256), (256, 256),
    ),
    "one_hot": (lambda t, i: t.nn.functional.one_hot(i, 512), ((4096,), 512)),
    "argmax": (lambda t, x: x.detach().argmax(1), MATRIX),
    "unique": (lambda t, i: t.unique(i), ((20000,), 1000)),
    "bincount": (lambda t, i: t.bincount(i), ((100000,), 1000)),
    "rand": (lambda t: t.rand(MATRIX),),
    "randn": (lambda t: t.randn(MATRIX),),
    "randint": (lambda t: t.randint(0, 10, MATRIX),),
    "randperm": (lambda t: t.randperm(100000),),
    "bernoulli_": (lambda t: t.empty(MATRIX).bernoulli_(0.5),),
    "multinomial": (lambda t, x: t.multinomial(x.detach().softmax(-1), 4), (256, 1000)),
}  # fmt: skip
CASES = LAYERS.keys() | CALLS.keys()


def values(rng, what):
    """Normal numbers in a shape, or integers for (shape, below)."""
    if what and isinstance(what[0], tuple):
        return rng.integers(0, what[1], what[0])
    return rng.standard_normal(what).astype(np.float32)


def run_of(library, name):
    """Forward, and backward where the result has a graph."""
    library.manual_seed(0)
    function, *given = LAYERS[name] if name in LAYERS else CALLS[name]
    rng = np.random.default_rng(0)
    arrays = [values(rng, what) for what in given]
    tensors = [library.tensor(a, requires_grad=a.dtype == np.float32) for a in arrays]
    layer = function(library.nn) if name in LAYERS else None

    def run():
        for x in tensors:
            x.grad = None
        out = layer(*tensors) if layer else function(library, *tensors)
        out = out[0] if isinstance(out, tuple) else out
        if out.requires_grad:
            (out.sum() if out.ndim else out).backward()

    return run


def serve(pipe, name, threads, build):
    """Run in a process of its own: build a case for each message, time calls when told to."""
    library = importlib.import_module(name)
    library.set_num_threads(threads)
    run = None
    while (message := pipe.recv()) is not None:
        if isinstance(message, str):
            run = build(library, message)
            run()  # compiles
            start = time.perf_counter()
            run()
            pipe.send(time.perf_counter() - start)
        else:
            run()  # what another process did to the caches
            pipe.send(min(seconds_of(run) for _ in range(message)))
            time.sleep(PAUSE_S)


def seconds_of(run):
    """Wall time of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measured(pipes, name, rounds):
    """The least seconds of a case, for each library."""
    calls = {}
    for library, pipe in pipes.items():
        pipe.send(name)
        calls[library] = max(1, int(TURN_S / pipe.recv()))
    least = dict.fromkeys(pipes, math.inf)
    for _ in range(rounds):
        for library, pipe in pipes.items():
            pipe.send(calls[library])
            least[library] = min(least[library], pipe.recv())
    return least


def compare(cases, build, args):
    """Measure cases in a process for each library; return the least seconds of each.

    Args:
        cases: Their names.
        build: Takes a library and a name; returns what is timed.
        args: What :func:`options` has parsed.
    """
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    names = ["lowtide"] + ["torch"] * (importlib.util.find_spec("torch") is not None)
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name in names:
        pipes[name], theirs = context.Pipe()
        given = (theirs, name, args.threads, build)
        processes.append(context.Process(target=serve, args=given, daemon=True))
        processes[-1].start()
    found = {n: measured(pipes, n, args.rounds) for n in cases if args.only in n}
    for pipe in pipes.values():
        pipe.send(None)
    for process in processes:
        process.join()
    report(found)
    if args.json:
        args.json.write_text(json.dumps({"least_s": found, "threads": args.threads}, indent=1))


def options(doc):
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main():
    """Run, print, store."""
    compare(sorted(CASES), run_of, options(__doc__))


def report(found):
    """Print a line for each case, the worst first, and how many lie where."""
    ratios = {n: t["lowtide"] / t.get("torch", math.nan) for n, t in found.items()}
    print(f"{'':34}{'lowtide ms':>12}{'torch ms':>10}{'ratio':>8}")
    for name in sorted(found, key=lambda n: -ratios[n]):
        mine, other = found[name]["lowtide"], found[name].get("torch", math.nan)
        print(f"{name:34}{mine * 1e3:12.3f}{other * 1e3:10.3f}{ratios[name]:8.2f}")
    if ratios and "torch" in next(iter(found.values())):
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        below = {bound: sum(r <= bound for r in ratios.values()) for bound in (1, 1.25, 1.5, 2)}
        print(f"\n{len(ratios)} cases, geometric mean {mean:.2f}; at most", end=" ")
        print(", ".join(f"{bound}: {count}" for bound, count in below.items()))


if __name__ == "__main__":
    main()
