"""The profiler costs a GPT step at most 3 % by role and module, 10 % with lines and timeline.

A GPT of four layers makes steps of at least 200 ms on one thread, plain and under a
``MemoryProfiler``, alternating in one process; a profiled stretch includes the profiler's start and
stop, so everything it puts off is paid for. Times are CPU time of the process, which other load on
the machine changes least. Printed is the median over the rounds of the ratio to the plain stretch
just before, with the number of events of a step.

    python -m benchmarks.profiler_overhead [--rounds N] [--steps N] [--json FILE]
"""

import argparse
import gc
import json
import statistics
import time
from pathlib import Path

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F
from lowtide.profiling import MemoryProfiler

SETTINGS = {
    "role and module": {"lines": False, "timeline": False},
    "lines and timeline": {"lines": True, "timeline": True},
}


class Block(nn.Module):
    """A block of a transformer that normalizes first."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(b, s, w)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, vocabulary, width, heads, layers, length):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(lt.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def main():
    """Run, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4, help="of a stretch")
    parser.add_argument("--batch", type=int, default=18)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lt.manual_seed(0)
    model = GPT(1024, 128, 4, 4, 128)
    optimizer = lt.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = lt.randint(0, 1024, (args.batch, 129))

    def steps():
        for _ in range(args.steps):
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def profiled(settings):
        with MemoryProfiler(**settings):
            steps()

    def seconds(function, *given):
        start = time.process_time()
        function(*given)
        return time.process_time() - start

    steps()
    with MemoryProfiler() as prof:
        steps()
    events = len(prof.recording.events) / args.steps
    gc.collect()
    gc.freeze()
    plain, ratios = [], {name: [] for name in SETTINGS}
    for _ in range(args.rounds):
        for name, settings in SETTINGS.items():
            base = seconds(steps)
            plain.append(base / args.steps)
            ratios[name].append(seconds(profiled, settings) / base)
    step = statistics.median(plain)
    print(f"plain step {step * 1e3:.1f} ms of CPU time, {events:.0f} events a step")
    found = {"step_s": step, "events": events, "rounds": args.rounds}
    for name, r in ratios.items():
        low, middle, high = (sorted(r)[k] for k in (len(r) // 4, len(r) // 2, 3 * len(r) // 4))
        found[name] = middle - 1
        print(f"{name:20} {middle - 1:+.2%}   (quartiles {low - 1:+.2%}, {high - 1:+.2%})")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
