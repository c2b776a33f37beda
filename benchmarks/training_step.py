"""A training step beside PyTorch's eager mode, on as many threads. The goal is PyTorch's time.

Forward, backward and optimizer of an MLP, a small convolutional network and a stack of GPT blocks,
each written once and run with both libraries, from the same weights. Each library has a process of
its own, and they take turns of a few steps: in one process the threads of one library, which spin
for a while after each product, would take the other's cores. Printed are medians, the ratio of
medians and of minima (below 1: lowtide is faster; minima say more on a busy machine), and the
peak of lowtide's ledger: parameters, gradients, optimizer state, activations and workspace.

``--busy N`` starts N processes that do nothing but compute beside it, as loaders do; then means are
printed too, for a step that waits for a thread which the system has not scheduled is rare and long.

    python -m benchmarks.training_step [--rounds N] [--threads N] [--busy N] [--only NAME]
                                       [--json FILE]
"""

import argparse
import gc
import importlib.util
import json
import multiprocessing
import os
import statistics
import time
from pathlib import Path

import numpy as np

import lowtide as lt
import lowtide.nn.functional as lt_functional

WARM = 4  # steps before anything is measured
STEPS = 6  # in a turn
PAUSE_S = 0.05  # between turns, until idle threads sleep


class Library:
    """What the models need of a library, under one set of names."""

    def __init__(self, module, functional, optim):
        self.module, self.functional, self.optim = module, functional, optim

    def tensor(self, array, train=False):
        """A tensor with a copy of the values."""
        made = self.module.tensor(array)
        return made.requires_grad_() if train else made


def weights(shapes, seed=0):
    """Arrays of normal values, scaled down by the square root of the fan-in."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes.items():
        fan_in = int(np.prod(shape[1:])) or 1
        values = rng.standard_normal(shape) / np.sqrt(fan_in)
        if len(shape) == 1:
            values = np.ones(shape) if name.endswith("scale") else np.zeros(shape)
        found[name] = values.astype(np.float32)
    return found


def step_of(optimizer, loss_of):
    """A training step: gradients to None, forward, backward, update."""

    def step():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return step


def mlp(lib, width, batch):
    """784-width-width-10 with ReLU, SGD with momentum."""
    sizes = [784, width, width, 10]
    shapes = {}
    for k in range(3):
        shapes[f"w{k}"], shapes[f"b{k}"] = (sizes[k + 1], sizes[k]), (sizes[k + 1],)
    w = {n: lib.tensor(a, train=True) for n, a in weights(shapes).items()}
    rng = np.random.default_rng(1)
    x = lib.tensor(rng.standard_normal((batch, 784)).astype(np.float32))
    y = lib.tensor(rng.integers(0, 10, batch))
    F = lib.functional

    def loss():
        h = F.relu(F.linear(x, w["w0"], w["b0"]))
        h = F.relu(F.linear(h, w["w1"], w["b1"]))
        return F.cross_entropy(F.linear(h, w["w2"], w["b2"]), y)

    return step_of(lib.optim.SGD(list(w.values()), lr=0.01, momentum=0.9), loss)


def cnn(lib, batch=64):
    """Two times convolution, batch normalization, ReLU and pooling, then a linear layer; Adam."""
    shapes = {
        "conv1": (32, 1, 3, 3), "bias1": (32,), "scale": (32,), "shift1": (32,),
        "conv2": (64, 32, 3, 3), "bias2": (64,), "2scale": (64,), "shift2": (64,),
        "head": (10, 64 * 7 * 7), "bias": (10,),
    }  # fmt: skip
    w = {n: lib.tensor(a, train=True) for n, a in weights(shapes).items()}
    rng = np.random.default_rng(1)
    x = lib.tensor(rng.standard_normal((batch, 1, 28, 28)).astype(np.float32))
    y = lib.tensor(rng.integers(0, 10, batch))
    running = [lib.tensor(np.full(c, v, np.float32)) for c in (32, 64) for v in (0, 1)]
    F = lib.functional

    def block(h, conv, bias, scale, shift, mean, var):
        h = F.conv2d(h, conv, bias, padding=1)
        h = F.batch_norm(h, mean, var, scale, shift, training=True)
        return F.max_pool2d(F.relu(h), 2)

    def loss():
        h = block(x, w["conv1"], w["bias1"], w["scale"], w["shift1"], *running[:2])
        h = block(h, w["conv2"], w["bias2"], w["2scale"], w["shift2"], *running[2:])
        return F.cross_entropy(F.linear(h.flatten(1), w["head"], w["bias"]), y)

    return step_of(lib.optim.Adam(list(w.values()), lr=1e-3), loss)


def gpt(lib, batch=8, length=128, width=256, heads=8, blocks=2, vocabulary=512, p=0.1):
    """Pre-norm blocks of causal attention and a GELU MLP, with dropout; AdamW."""
    d = width
    shapes = {"embed": (vocabulary, d), "place": (length, d), "f.scale": (d,), "f.shift": (d,)}
    for k in range(blocks):
        shapes |= {
            f"{k}.1.scale": (d,), f"{k}.1.shift": (d,), f"{k}.qkv": (3 * d, d),
            f"{k}.qkv_b": (3 * d,), f"{k}.proj": (d, d), f"{k}.proj_b": (d,),
            f"{k}.2.scale": (d,), f"{k}.2.shift": (d,), f"{k}.up": (4 * d, d),
            f"{k}.up_b": (4 * d,), f"{k}.down": (d, 4 * d), f"{k}.down_b": (d,),
        }  # fmt: skip
    shapes["head"] = (vocabulary, d)
    w = {n: lib.tensor(a, train=True) for n, a in weights(shapes).items()}
    rng = np.random.default_rng(1)
    x = lib.tensor(rng.integers(0, vocabulary, (batch, length)))
    y = lib.tensor(rng.integers(0, vocabulary, batch * length))
    F = lib.functional

    def attention(h, k):
        qkv = F.linear(h, w[f"{k}.qkv"], w[f"{k}.qkv_b"])
        split = [t.view(batch, length, heads, d // heads).transpose(1, 2) for t in qkv.split(d, 2)]
        h = F.scaled_dot_product_attention(*split, dropout_p=p, is_causal=True)
        h = h.transpose(1, 2).reshape(batch, length, d)
        return F.dropout(F.linear(h, w[f"{k}.proj"], w[f"{k}.proj_b"]), p)

    def feed(h, k):
        h = F.gelu(F.linear(h, w[f"{k}.up"], w[f"{k}.up_b"]))
        return F.dropout(F.linear(h, w[f"{k}.down"], w[f"{k}.down_b"]), p)

    def norm(h, name):
        return F.layer_norm(h, (d,), w[f"{name}.scale"], w[f"{name}.shift"])

    def loss():
        h = F.dropout(F.embedding(x, w["embed"]) + w["place"], p)
        for k in range(blocks):
            h = h + attention(norm(h, f"{k}.1"), k)
            h = h + feed(norm(h, f"{k}.2"), k)
        logits = F.linear(norm(h, "f"), w["head"])
        return F.cross_entropy(logits.view(-1, vocabulary), y)

    return step_of(lib.optim.AdamW(list(w.values()), lr=1e-3), loss)


CASES = {
    "MLP 784-256-256-10, batch 64": lambda lib: mlp(lib, 256, 64),
    "MLP 784-1024-1024-10, batch 256": lambda lib: mlp(lib, 1024, 256),
    "CNN 1-32-64, 28 x 28, batch 64": cnn,
    "GPT 2 blocks, d 256, T 128, batch 8": gpt,
}


def serve(pipe, name, threads):
    """Run in a process of its own: build a case for each message, time steps when told to."""
    if name == "torch":
        torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        lib = Library(torch, torch.nn.functional, torch.optim)
    else:
        lib = Library(lt, lt_functional, lt.optim)
    step = None
    while (message := pipe.recv()) is not None:
        if isinstance(message, str):  # a case: build it, compile, make the optimizer's state
            step = None
            gc.collect()
            step = CASES[message](lib)
            first = float(step().detach())
            for _ in range(WARM):
                step()
            peak = 0
            if name != "torch":
                lt.reset_peak_memory_stats()
                step()
                peak = lt.max_memory_allocated()
            pipe.send((first, peak))
        else:
            step()  # what another process did to the caches
            pipe.send([seconds_of(step) for _ in range(message)])
            time.sleep(PAUSE_S)


def spin():
    """Keep a core busy."""
    while True:
        pass


def seconds_of(step):
    """Wall time of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def main():
    """Run, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", type=int, default=0, help="other processes that compute")
    parser.add_argument("--only", default="", help="cases whose name begins with this")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # the processes started below inherit it
    names = ["lowtide", *(["torch"] if importlib.util.find_spec("torch") else [])]
    context = multiprocessing.get_context("spawn")
    pipes = []
    for name in names:
        here, there = context.Pipe()
        context.Process(target=serve, args=(there, name, args.threads), daemon=True).start()
        pipes.append(here)

    for _ in range(args.busy):
        context.Process(target=spin, daemon=True).start()

    def ask(message):
        answers = []
        for pipe in pipes:  # one works while the others wait
            pipe.send(message)
            answers.append(pipe.recv())
            time.sleep(PAUSE_S)
        return answers

    # The last three but one are ratios.
    heads = ("ms", "peer ms", "mean ms", "peer's", "median", "mean", "minimum", "MiB")
    print(f"{'one training step':38}" + "".join(f"{h:>9}" for h in heads))
    stored = {}
    for case in [c for c in CASES if c.startswith(args.only)]:
        firsts = ask(case)
        rounds = [ask(STEPS) for _ in range(args.rounds)]
        times = [[t for r in rounds for t in r[k]] for k in range(len(names))]
        median = [statistics.median(t) for t in times]
        quickest = [min(t) for t in times]
        peak = firsts[0][1]
        mean = [statistics.fmean(t) for t in times]
        columns = [m[k] * 1e3 for m in (median, mean) for k in (0, -1)]
        columns += [m[0] / m[-1] for m in (median, mean, quickest)] + [peak / 2**20]
        print(f"{case:38}" + "".join(f"{c:9.2f}" for c in columns), flush=True)
        stored[case] = {
            "median_s": median, "mean_s": mean, "min_s": quickest, "peak_bytes": peak,
            "first_losses": [f[0] for f in firsts],
        }  # fmt: skip
    for pipe in pipes:
        pipe.send(None)
    if args.json:
        args.json.write_text(json.dumps(stored, indent=1))


if __name__ == "__main__":
    main()
