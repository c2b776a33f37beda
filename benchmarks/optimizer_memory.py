"""Peak bytes and time of a GPT's training step: plain, fused into backward, with 8-bit state, both.

The same model from the same weights takes the same steps in each way; a fused step's losses are
the plain ones bit for bit. Bytes are the ledger's at the peak of a step after the first, by role;
a gradient that is still on its way counts as temporary. Times are of steps in turns, of one thread,
without what the processor did for others meanwhile; printed as ratios to the plain step, of medians
and of minima.

    python -m benchmarks.optimizer_memory [--width N] [--blocks N] [--batch N] [--rounds N]
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

VOCABULARY, LENGTH, HEADS = 2048, 64, 8
WAYS = {
    "plain": ("AdamW", False),
    "fused into backward": ("AdamW", True),
    "8-bit state": ("AdamW8bit", False),
    "both": ("AdamW8bit", True),
}
WARM = 3  # steps before anything is measured
ROLES = ("parameter", "gradient", "optimizer", "saved", "temporary")


def made(lt, args, kind, fused):
    """A step that returns its loss, and its parameters' optimizer."""
    nn = lt.nn
    lt.manual_seed(0)
    embed = nn.Embedding(VOCABULARY, args.width)
    blocks = nn.ModuleList(
        nn.TransformerEncoderLayer(
            args.width, HEADS, 4 * args.width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        for _ in range(args.blocks)
    )
    head = nn.Linear(args.width, VOCABULARY, bias=False)
    model = nn.ModuleList([embed, blocks, head])
    tokens = lt.randint(0, VOCABULARY, (args.batch, LENGTH + 1))
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    optimizer = getattr(lt.optim, kind)(model.parameters(), lr=1e-3)
    if fused:
        lt.optim.fuse_into_backward(optimizer)

    def step():
        h = embed(tokens[:, :-1])
        for block in blocks:
            h = block(h, src_mask=mask, is_causal=True)
        loss = nn.functional.cross_entropy(head(h).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step, optimizer


def seconds_of(step):
    """Processor time of one step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def main():
    """Run, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before NumPy and its BLAS are loaded
    import lowtide as lt

    stored, losses = {}, {}
    print(f"{'peak of a step, MiB':22}{'all':>8}" + "".join(f"{r:>11}" for r in ROLES))
    for way, (kind, fused) in WAYS.items():
        step, optimizer = made(lt, args, kind, fused)
        losses[way] = [step() for _ in range(WARM)]
        lt.reset_peak_memory_stats()
        losses[way].append(step())
        stats = lt.memory_stats()
        roles = stats["peak_by_role"]
        state = stats["by_role"]["optimizer"] / optimizer.elements
        stored[way] = {"peak_bytes": stats["peak_bytes"], "by_role": roles, "state": state}
        print(
            f"{way:22}{stats['peak_bytes'] / 2**20:8.1f}"
            + "".join(f"{roles[r] / 2**20:11.1f}" for r in ROLES)
            + f"   {state:.3f} bytes of state an element",
            flush=True,
        )
        elements = optimizer.elements
        del step, optimizer
    assert losses["plain"] == losses["fused into backward"]
    assert losses["8-bit state"] == losses["both"]
    print(f"{elements:,} parameters; losses of step {WARM + 1}: ", end="")
    print(f"AdamW {losses['plain'][-1]:.5f}, AdamW8bit {losses['both'][-1]:.5f}")

    steps = {way: made(lt, args, *how)[0] for way, how in WAYS.items()}
    times = {way: [] for way in WAYS}
    for step in steps.values():
        for _ in range(WARM):
            step()
    for _ in range(args.rounds):
        for way, step in steps.items():
            times[way].append(seconds_of(step))
    print(f"{'time of a step':22}{'ms':>8}{'median':>9}{'minimum':>9}")
    for way, found in times.items():
        median, quickest = (f(found) / f(times["plain"]) for f in (statistics.median, min))
        stored[way] |= {"median_s": statistics.median(found), "min_s": min(found)}
        print(f"{way:22}{statistics.median(found) * 1e3:8.1f}{median:9.2f}{quickest:9.2f}")
    if args.json:
        args.json.write_text(json.dumps({"settings": vars(args) | {"json": None}, **stored}))


if __name__ == "__main__":
    main()
