"""vmap runs gradients of each sample, Jacobians and ensembles several times as fast as loops.

Per case: seconds of a loop, of ``vmap`` and, where it is installed, of PyTorch's ``vmap``, medians
of alternating rounds in one process, and the ledger's peak of the first two. The results of all are
compared first.

    python -m benchmarks.vmap_against_loops [--rounds N] [--json FILE]
"""

import argparse
import importlib.util
import json
import statistics
import time
from pathlib import Path

import numpy as np

import lowtide as lt

BATCH = 32


def layers(t, kind):
    """A model of the kind in either framework."""
    nn = t.nn
    if kind == "dense":
        return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Linear(64, 10))
    if kind == "convolutional":
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(256, 10),
        )
    return nn.Sequential(
        nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True), nn.Linear(64, 10)
    )


SHAPES = {"dense": (64,), "convolutional": (3, 16, 16), "transformer": (16, 64)}


def gradients(t, kind, values, data):
    """(by vmap, by a loop): functions that return the gradients of each sample."""
    f = t.func
    model = layers(t, kind)
    params = dict(zip(dict(model.named_parameters()), values, strict=True))

    def loss(p, a):
        return f.functional_call(model, p, (a.unsqueeze(0),)).square().mean()

    mapped = f.vmap(f.grad(loss), (None, 0))

    def loop():
        each = [f.grad(loss)(params, a) for a in data]
        return {n: t.stack([e[n] for e in each]) for n in params}

    return lambda: mapped(params, data), loop


def jacobians(t, kind, values, data):
    """The Jacobian of a model's outputs by its input, for one sample."""
    f = t.func
    model = layers(t, kind)
    params = dict(zip(dict(model.named_parameters()), values, strict=True))

    def outputs(a):
        return f.functional_call(model, params, (a.unsqueeze(0),)).flatten()[:BATCH]

    def loop():
        a = data[0].clone().requires_grad_()
        y = outputs(a)
        rows = [t.autograd.grad(v, a, retain_graph=True)[0] for v in y]
        return {"rows": t.stack(rows)}

    return lambda: {"rows": f.jacrev(outputs)(data[0])}, loop


CASES = {
    "gradients of each sample, dense": (gradients, "dense"),
    "gradients of each sample, convolutional": (gradients, "convolutional"),
    "gradients of each sample, transformer": (gradients, "transformer"),
    "jacobian, convolutional": (jacobians, "convolutional"),
    "jacobian, transformer": (jacobians, "transformer"),
}


def peak(step):
    """Bytes above what lives now."""
    lt.cpu.reset_peak_memory_stats()
    before = lt.cpu.memory_allocated()
    step()
    return lt.cpu.max_memory_allocated() - before


def main():
    """Measure, print, and write the figures as JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch = None
    if importlib.util.find_spec("torch") is not None:
        import torch
    figures = {}
    for name, (make, kind) in CASES.items():
        random = np.random.default_rng(0)
        shapes = [tuple(p.shape) for p in layers(lt, kind).parameters()]
        values = [random.standard_normal(s).astype("f4") * 0.1 for s in shapes]
        data = random.standard_normal((BATCH, *SHAPES[kind])).astype("f4")
        mapped, loop = make(lt, kind, [lt.tensor(v) for v in values], lt.tensor(data))
        runs = {"vmap": mapped, "loop": loop}
        if torch is not None:
            theirs = [torch.tensor(v) for v in values]
            runs["PyTorch"] = make(torch, kind, theirs, torch.tensor(data))[0]
        expected = loop()
        for run in runs.values():
            for n, g in run().items():
                np.testing.assert_allclose(g.numpy(), expected[n].numpy(), rtol=1e-3, atol=1e-4)
        seconds = {n: [] for n in runs}
        for _ in range(given.rounds):
            for n, run in runs.items():
                start = time.perf_counter()
                run()
                seconds[n].append(time.perf_counter() - start)
        found = {n: statistics.median(s) for n, s in seconds.items()}
        figures[name] = {
            "seconds": found,
            "peak": {"vmap": peak(mapped), "loop": peak(loop)},
            "times as fast as a loop": found["loop"] / found["vmap"],
        }
        shown = ", ".join(f"{n} {1e3 * s:.1f} ms" for n, s in found.items())
        peaks = ", ".join(f"{n} {b / 1e6:.1f} MB" for n, b in figures[name]["peak"].items())
        print(f"{name}: {shown}; {found['loop'] / found['vmap']:.1f}x; peak {peaks}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
