"""What activation checkpointing costs: bytes, operations and time of a step, beside PyTorch's.

Forward and backward (no optimizer, which would make every ratio smaller) of four chains of blocks,
each written once and run with both libraries: linear layers, residual convolutions with batch
normalization, GPT blocks, and an LSTM's cell over time. Schemes take turns, a step each, and what
is printed is the median over rounds of the ratio to the plain step of the same round: of process
time, which other processes on the machine disturb less, and of wall time. PyTorch has a process of
its own, and checkpoints by ``torch.utils.checkpoint`` (``use_reentrant=False``); its ``matmuls`` is
``create_selective_checkpoint_contexts`` with a policy that saves products, convolutions and
attention.

Columns: highest live bytes above what lived before the step; of those, what the graph keeps when
forward ends, as a share of the plain graph's; operations (``profiling.estimate``), as a ratio to
plain.

    python -m benchmarks.checkpointing [--rounds N] [--only NAME] [--schemes NAME ...]
        [--profile] [--json FILE]
"""

import argparse
import contextlib
import cProfile
import importlib
import importlib.util
import json
import math
import multiprocessing
import os
import pstats
import statistics
import time
from pathlib import Path

import lowtide as lt

WARM = 2  # steps before anything is measured


# Models: (blocks, each a function of the state; the state before them; the loss of the last state)


def mlp(lib, depth=32, width=256, batch=512):
    """Pre-norm residual perceptron blocks with dropout."""
    nn, F = lib.nn, lib.nn.functional

    def block():
        norm, up = nn.LayerNorm(width), nn.Linear(width, width)
        return nn.ModuleList([norm, up]), lambda x: x + F.dropout(F.gelu(up(norm(x))), 0.1)

    made = [block() for _ in range(depth)]
    model = nn.ModuleList([m for m, _ in made])
    x = lib.randn(batch, width)
    return model, [f for _, f in made], lambda: x, lambda h: h.square().mean()


def resnet(lib, depth=4, width=16, batch=16):
    """Three stages of residual blocks on 28 x 28 pictures, as the recipe has them."""
    nn, F = lib.nn, lib.nn.functional

    def block(inputs, outputs, stride):
        parts = nn.ModuleList(
            [
                nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
            ]
        )
        if stride != 1 or inputs != outputs:
            parts.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))

        def run(x):
            y = F.relu(parts[1](parts[0](x)))
            y = parts[3](parts[2](y))
            return F.relu(y + (parts[4](x) if len(parts) > 4 else x))

        return parts, run

    made, inputs = [], width
    for stage in range(3):
        for k in range(depth):
            made.append(block(inputs, width << stage, 2 if stage and not k else 1))
            inputs = width << stage
    model = nn.ModuleList([m for m, _ in made])
    x = lib.randn(batch, width, 28, 28)
    return model, [f for _, f in made], lambda: x, lambda h: h.square().mean()


def gpt(lib, depth=4, width=256, heads=8, batch=8, length=128, vocabulary=512, p=0.1):
    """Pre-norm GPT blocks with dropout, an embedding before and a head with its loss after."""
    nn, F = lib.nn, lib.nn.functional

    def block():
        norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        qkv, proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def run(x):
            split = qkv(norms[0](x)).view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            q, k, v = split.unbind(0)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)
            y = y.transpose(1, 2).reshape(batch, length, width)
            x = x + F.dropout(proj(y), p)
            return x + F.dropout(down(F.gelu(up(norms[1](x)))), p)

        return nn.ModuleList([norms, qkv, proj, up, down]), run

    made = [block() for _ in range(depth)]
    embed, head, norm = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary), None
    norm = nn.LayerNorm(width)
    model = nn.ModuleList([*(m for m, _ in made), embed, head, norm])
    tokens = lib.randint(0, vocabulary, (batch, length))
    targets = lib.randint(0, vocabulary, (batch * length,))
    return (
        model,
        [f for _, f in made],
        lambda: F.dropout(embed(tokens), p),
        lambda h: F.cross_entropy(head(norm(h)).view(-1, vocabulary), targets),
    )


def lstm(lib, length=64, hidden=128, batch=64, inputs=64):
    """An LSTM's cell: each time step is a block, whose state is (hidden, cell)."""
    nn = lib.nn
    cell, head = nn.LSTMCell(inputs, hidden), nn.Linear(hidden, 10)
    xs = [lib.randn(batch, inputs) for _ in range(length)]
    zeros = lib.zeros(batch, hidden)
    model = nn.ModuleList([cell, head])
    blocks = [lambda state, x=x: cell(x, state) for x in xs]
    return model, blocks, lambda: (zeros, zeros), lambda state: head(state[0]).square().mean()


MODELS = {
    "MLP": (mlp, "32 blocks, 256 wide, batch 512"),
    "ResNet": (resnet, "12 blocks, 16-32-64 channels, 28 x 28, batch 16"),
    "GPT": (gpt, "4 blocks, d 256, T 128, batch 8, dropout 0.1"),
    "LSTM": (lstm, "64 time steps, 128 wide, batch 64"),
}


# Schemes: how to run the blocks


def lowtide_schemes():
    """Name -> (blocks, state) -> state."""
    from lowtide.checkpointing import pack, policies, save_every, save_matmuls

    def per_block(policy=None):
        def run(blocks, state):
            for block in blocks:
                with lt.checkpointing(policy):
                    state = block(state)
            return state

        return run

    return {
        "plain": plain,
        "per block": per_block(),
        "sqrt(n)": lambda blocks, state: lt.checkpointing.checkpoint_sequential(
            blocks, math.isqrt(len(blocks)), state
        ),
        "recursive": nested,
        "save_matmuls": per_block(save_matmuls),
        "dots_with_no_batch_dims": per_block(policies.dots_with_no_batch_dims),
        "save_every(4)": per_block(save_every(4)),
        "everything_saveable": per_block(policies.everything_saveable),
        "pack()": per_block(pack()),
        'pack("bfloat16")': per_block(pack("bfloat16")),
        'pack("int8")': per_block(pack("int8")),
    }


def plain(blocks, state):
    """All is kept."""
    for block in blocks:
        state = block(state)
    return state


def nested(blocks, state):
    """Halves, in regions of their own, and their halves: the logarithmic scheme."""
    if len(blocks) == 1:
        return blocks[0](state)
    middle = len(blocks) // 2
    for half in (blocks[:middle], blocks[middle:]):
        with lt.checkpointing():
            state = nested(half, state)
    return state


def torch_schemes(torch):
    """The same, as far as PyTorch has it."""
    checkpoint = importlib.import_module("torch.utils.checkpoint")
    aten = torch.ops.aten
    heavy = {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    }

    def policy(ctx, op, *args, **kwargs):
        kinds = checkpoint.CheckpointPolicy
        return kinds.MUST_SAVE if op in heavy else kinds.PREFER_RECOMPUTE

    def selective():
        return checkpoint.create_selective_checkpoint_contexts(policy)

    def per_block(**options):
        def run(blocks, state):
            for block in blocks:
                state = checkpoint.checkpoint(block, state, use_reentrant=False, **options)
            return state

        return run

    def by_root(blocks, state):
        count = math.isqrt(len(blocks))
        for k in range(count):
            some = blocks[k * len(blocks) // count : (k + 1) * len(blocks) // count]
            state = checkpoint.checkpoint(plain, some, state, use_reentrant=False)
        return state

    return {
        "plain": plain,
        "per block": per_block(),
        "sqrt(n)": by_root,
        "save_matmuls": per_block(context_fn=selective),
    }


# Measuring


def steps_of(lib, schemes, make):
    """Name -> a step: gradients to None, forward, backward."""
    lib.manual_seed(0)
    model, blocks, before, loss_of = make(lib)
    parameters = list(model.parameters())

    def step_of(run):
        def forward():
            return loss_of(run(blocks, before()))

        def step():
            for p in parameters:
                p.grad = None
            forward().backward()

        step.forward, step.model = forward, model
        return step

    return {name: step_of(run) for name, run in schemes.items()}


def times(steps, rounds):
    """(process seconds, wall seconds) of each step in each round, schemes taking turns."""
    for step in steps.values():
        for _ in range(WARM):
            step()
    found = {name: [] for name in steps}
    for k in range(rounds):
        names = list(steps)
        for name in names[k % len(names) :] + names[: k % len(names)]:
            wall, process = time.perf_counter(), time.process_time()
            steps[name]()
            found[name].append((time.process_time() - process, time.perf_counter() - wall))
    return found


def ratios(found):
    """Name -> median over rounds of the ratio to plain: of process time and of wall time."""
    return {
        name: tuple(
            statistics.median(t[k] / p[k] for t, p in zip(rows, found["plain"], strict=True))
            for k in (0, 1)
        )
        for name, rows in found.items()
    }


def bytes_of(step):
    """Peak above what lived before, and bytes that the graph keeps when forward ends."""
    for parameter in step.model.parameters():
        parameter.grad = None
    before = lt.memory_allocated()
    lt.reset_peak_memory_stats()
    step()
    peak = lt.max_memory_allocated() - before
    for parameter in step.model.parameters():
        parameter.grad = None
    loss = step.forward()
    kept = lt.memory_allocated() - before
    del loss
    return peak, kept


def serve_torch(pipe, rounds):
    """Time PyTorch's schemes, in a process of its own."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    schemes = torch_schemes(torch)
    while (name := pipe.recv()) is not None:
        steps = steps_of(torch, schemes, MODELS[name][0])
        pipe.send(times({k: step for k, step in steps.items() if runs(step)}, rounds))


def runs(step):
    """Whether PyTorch can: selective checkpointing refuses to save what a fused op writes into."""
    try:
        step()
    except RuntimeError as error:
        if "has been mutated" not in str(error):
            raise
        return False
    return True


def profile_region(steps):
    """Where Python's time goes in a step of the scheme ``per block``."""
    step = steps["per block"]
    for part, run in (("forward", step.forward), ("backward", None)):
        loss = step.forward() if run is None else None
        profiler = cProfile.Profile()
        with contextlib.ExitStack() as stack:
            stack.enter_context(profiler)
            (loss.backward if run is None else run)()
        print(f"\n{part} of a step with a region for each block")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


def main():
    """Run, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--schemes", nargs="*", default=[], help="beside plain; all by default")
    parser.add_argument("--profile", action="store_true", help="only show where time goes")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the process started below
    torch = None
    if not args.profile and importlib.util.find_spec("torch"):
        context = multiprocessing.get_context("spawn")
        torch, there = context.Pipe()
        context.Process(target=serve_torch, args=(there, args.rounds), daemon=True).start()
    stored = {}
    for model in args.only:
        make, words = MODELS[model]
        schemes = lowtide_schemes()
        if args.schemes:
            schemes = {k: run for k, run in schemes.items() if k in ("plain", *args.schemes)}
        steps = steps_of(lt, schemes, make)
        if args.profile:
            steps["per block"]()
            profile_region(steps)
            continue
        timed = times(steps, args.rounds)
        found = ratios(timed)
        peer, peer_ms = {}, None
        if torch is not None:
            torch.send(model)
            rows = torch.recv()
            peer = ratios(rows)
            peer_ms = 1e3 * statistics.median(t for t, _ in rows["plain"])
        ms = 1e3 * statistics.median(t for t, _ in timed["plain"])
        print(f"\n{model}: {words}; a plain step takes {ms:.0f} ms of process time", end="")
        print("" if peer_ms is None else f", PyTorch's {peer_ms:.0f}")
        heads = ("peak MiB", "kept", "ops", "time", "wall", "PyTorch", "wall")
        print(f"{'':24}" + "".join(f"{h:>9}" for h in heads), flush=True)
        whole, flops = bytes_of(steps["plain"])[1], lt.profiling.estimate(steps["plain"]).flops
        stored[model] = {}
        for name, step in steps.items():
            peak, kept = bytes_of(step)
            row = {
                "peak_bytes": peak,
                "kept_bytes": kept,
                "kept": kept / whole,
                "flops": lt.profiling.estimate(step).flops / flops,
                "time": found[name],
                "torch_time": peer.get(name),
            }
            stored[model][name] = row
            cells = [peak / 2**20, row["kept"], row["flops"], *row["time"], *peer.get(name, ())]
            print(f"{name:24}" + "".join(f"{c:9.2f}" for c in cells), flush=True)
    if torch is not None:
        torch.send(None)
    if args.json:
        args.json.write_text(json.dumps(stored, indent=1))


if __name__ == "__main__":
    main()
