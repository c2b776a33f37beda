"""What a byte budget costs: operations, time and evictions of a step, at several budgets.

A share of s % is a budget of what lived before the step, and s % of what the plain step's peak has
above that. For each share, in a forked copy: the step in imagination (operations, peak) and for
real (peak, bits of the parameters, process time, least of some). ``per block`` is activation
checkpointing of each block, with the share that its peak is, and ``matmuls`` the same with the
policy ``save_matmuls``. The columns before ``planned`` are without a plan:

- ``planned``: the operations that :func:`lowtide.fit` adds, in how many seconds;
- ``least``: those that no way of recomputing does without;
- ``revolve``: those that the best schedule adds of a chain whose layers keep as many results as
  fit (Griewank and Walther, "Revolve", 2000);
- ``step``: the time of a step under the plan, as a ratio to the plain step's;
- ``pred.``: what the plan predicts, as a ratio to that.

    python -m benchmarks.budget [--only NAME ...] [--shares 0.8 0.5 ...] [--steps N] [--json FILE]
        [--picture FILE]

``free`` is a budget that never binds: what recording costs, as process time beside the plain step,
steps in turns.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from contextlib import nullcontext
from functools import partial
from math import comb
from pathlib import Path
from statistics import median
from typing import Any

import lowtide as lt
from benchmarks import checkpointing
from benchmarks.training_models import Library, unet
from lowtide import nn, optim
from lowtide.framework.devices import backend
from lowtide.framework.memory.ledger import format_bytes
from lowtide.profiling.estimate.estimate import imagined
from lowtide.profiling.estimate.fork_sandbox import run_apart

F = nn.functional
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25)


class Model:
    """A step and its parameters.

    Args:
        net: Its parameters are trained.
        optimizer: Of them.
        loss: Computes the loss.
        by_hand: Ways to compute it with each block checkpointed, by name, if there are blocks.
        chain: Number of equal layers, if it is nothing else: each saves its result.
        result: Bytes of a layer's result.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Any,
        loss: Any,
        by_hand: Any = None,
        chain: int = 0,
        result: int = 0,
    ) -> None:
        self.net, self.optimizer, self.loss, self.by_hand = net, optimizer, loss, by_hand or {}
        self.chain, self.result = chain, result

    def step(self) -> None:
        """Train once."""
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def digest(self) -> str:
        """Of all parameters and buffers."""
        found = hashlib.sha256()
        for t in (*self.net.parameters(), *self.net.buffers()):
            found.update(t.detach().numpy().tobytes())
        return found.hexdigest()


def gpt() -> Model:
    """6 blocks, d 256, T 256, batch 8, 1024 characters, dropout 0.1, AdamW."""
    net, blocks, start, loss = checkpointing.gpt(lt, 6, 256, 8, 8, 256, 1024)
    return _chain(net, blocks, start, loss, optim.AdamW(net.parameters()))


def resnet() -> Model:
    """9 residual blocks, 16-32-64 channels, 28 x 28, batch 64, SGD with momentum."""
    net, blocks, start, loss = checkpointing.resnet(lt, 3, 16, 64)
    return _chain(net, blocks, start, loss, optim.SGD(net.parameters(), lr=0.1, momentum=0.9))


def _chain(net: nn.Module, blocks: Any, start: Any, loss: Any, optimizer: Any) -> Model:
    def run(call: Any = lambda block, h: block(h)) -> Any:
        h = start()
        for block in blocks:
            h = call(block, h)
        return loss(h)

    def save_matmuls(block: Any, h: Any) -> Any:
        with lt.checkpointing(lt.checkpointing.save_matmuls):
            return block(h)

    by_hand = {"per block": partial(run, lt.checkpoint), "matmuls": partial(run, save_matmuls)}
    return Model(net, optimizer, run, by_hand)


class TreeCell(nn.Module):
    """The cell of a tree LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.iou, self.f = nn.Linear(2 * width, 3 * width), nn.Linear(2 * width, 2 * width)

    def forward(self, left: Any, right: Any) -> Any:
        """Join two subtrees, each (hidden, cell)."""
        h = lt.cat([left[0], right[0]], 1)
        i, o, u = self.iou(h).chunk(3, 1)
        fl, fr = lt.sigmoid(self.f(h)).chunk(2, 1)
        c = lt.sigmoid(i) * lt.tanh(u) + fl * left[1] + fr * right[1]
        return lt.sigmoid(o) * lt.tanh(c), c


def tree() -> Model:
    """A tree LSTM of 32 leaves, 256 wide, batch 32; its shape is drawn."""
    cell, embed, head = TreeCell(256), nn.Linear(256, 512), nn.Linear(256, 5)
    net = nn.ModuleList([cell, embed, head])
    leaves, y, draw = (
        [lt.randn(32, 256) for _ in range(32)],
        lt.randint(0, 5, (32,)),
        random.Random(0),
    )

    def build(first: int, last: int) -> Any:
        if last - first == 1:
            return first
        k = draw.randint(first + 1, last - 1)
        return build(first, k), build(k, last)

    def run(t: Any) -> Any:
        if isinstance(t, int):
            h, c = embed(leaves[t]).chunk(2, 1)
            return lt.tanh(h), c
        return cell(run(t[0]), run(t[1]))

    shape = build(0, 32)
    return Model(
        net,
        optim.SGD(net.parameters(), lr=0.1),
        lambda: F.cross_entropy(head(run(shape)[0]), y),
    )


def lstm() -> Model:
    """2 layers of 256 over 64 steps, batch 32, SGD."""
    net, x = nn.LSTM(256, 256, 2, batch_first=True), lt.randn(32, 64, 256)
    return Model(net, optim.SGD(net.parameters(), lr=0.1), lambda: net(x)[0].square().mean())


def u_net() -> Model:
    """3 levels of 16-32-64 with skip connections, 64 x 64, batch 8, SGD."""
    net, loss = unet(Library(lt, F, optim))
    return Model(net, optim.SGD(net.parameters(), lr=0.1), loss)


def deep() -> Model:
    """1000 equal layers of 32, batch 512, SGD."""
    net = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(1000)])
    x = lt.randn(512, 32)
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    return Model(net, optimizer, lambda: net(x).square().mean(), chain=1000, result=x.nbytes)


def revolve(layers: int, kept: int) -> int:
    """Return how many forward calls of layers the best schedule of a chain repeats.

    Args:
        layers: How many, each of equal cost, each of which needs its input and its result in
            backward. The input of the first one is always there.
        kept: Results that live at once, at most ``layers``.

    Source:
        Griewank and Walther, "Algorithm 799: Revolve", 2000: with ``s`` snapshots, the first input
        included, ``r l - C(s + r, r - 1)`` forward steps, for the least ``r`` with
        ``C(s + r, s) >= l``. One result beside the snapshots is that of the layer whose backward
        runs, so ``s`` is ``kept``; and the ``l - 1`` steps of the first pass are no repetition.
    """
    repeats = next(r for r in range(layers + 1) if comb(kept + r, kept) >= layers)
    steps = repeats * layers - comb(kept + repeats, repeats - 1) if repeats else 0
    return steps - (layers - 1)


MODELS = {f.__name__: f for f in (gpt, resnet, tree, lstm, u_net, deep)}


def imagine(model: Model, limit: int | None) -> dict[str, Any]:
    """Peak, operations and evictions of a step that computes nothing; in a copy of the process."""

    def work() -> dict[str, Any]:
        seen: list[Any] = []

        def step() -> None:
            if limit is None:
                model.step()
            else:
                with lt.memory_budget(limit) as budget:
                    model.step()
                seen.extend([budget.evictions, budget.replays])

        found = imagined(step, (), {}, again=False)
        return {
            "peak": found.peak_bytes,
            "start": found.devices[0].start_bytes,
            "flops": found.flops,
            "evictions": seen[0] if seen else 0,
            "replays": seen[1] if seen else 0,
        }

    return run_apart(work)


def imagine_forward(model: Model) -> int:
    """Operations of the forward pass alone."""
    return run_apart(lambda: imagined(model.loss, (), {}, again=False).flops)  # type: ignore[no-any-return]


def real(model: Model, limit: int | None, steps: int) -> dict[str, Any]:
    """Peak, bits after one step, and the least process time of some; in a copy of the process."""

    def step() -> None:
        if limit is None:
            model.step()
        else:
            with lt.memory_budget(limit):
                model.step()

    def work() -> dict[str, Any]:
        lt.manual_seed(1)
        backend(lt.device("cpu")).ledger.reset_peak()
        try:
            step()
        except lt.MemoryLimitError:
            return {"refused": True}
        found = {"peak": lt.max_memory_allocated(), "digest": model.digest(), "seconds": 1e9}
        for _ in range(steps):
            began = time.process_time()
            step()
            found["seconds"] = min(found["seconds"], time.process_time() - began)
        return found

    return run_apart(work)


def planned_time(model: Model, plan: Any, steps: int) -> tuple[float, float]:
    """Median wall-clock seconds of a step under a plan, and of a plain one; in a copy."""

    def work() -> tuple[float, float]:
        taken: list[list[float]] = [[], []]
        for k in range(2):  # as in training: one after another, after one that is not counted
            for _ in range(steps + 1):
                began = time.perf_counter()
                with plan if k == 0 else nullcontext():
                    model.step()
                taken[k].append(time.perf_counter() - began)
        return median(taken[0][1:]), median(taken[1][1:])

    return run_apart(work)


def recording(model: Model, steps: int) -> float:
    """Process time of a step in a budget that never binds, as a ratio to the plain step's."""

    def work() -> float:
        least = [1e9, 1e9]
        for k in range(2 * steps):
            began = time.process_time()
            if k % 2:
                with lt.memory_budget("1TiB"):
                    model.step()
            else:
                model.step()
            least[k % 2] = min(least[k % 2], time.process_time() - began)
        return least[1] / least[0]

    return run_apart(work)


def rows(name: str, shares: list[float], steps: int) -> list[dict[str, Any]]:
    """The rows of a model."""
    lt.manual_seed(0)
    model = MODELS[name]()
    model.step()  # the optimizer's state exists
    model.optimizer.zero_grad()
    plain, timed = imagine(model, None), real(model, None, steps)
    start, above = plain["start"], plain["peak"] - plain["start"]
    print(f"\n{name}: {MODELS[name].__doc__}")
    print(f"  before {format_bytes(start)}, peak {format_bytes(plain['peak'])}")
    print(
        f"  {'budget':>9} {'peak':>10} {'FLOPs':>8} {'time':>6} {'evicted':>8} {'replays':>8} "
        f"{'planned':>8} {'least':>7} {'revolve' if model.chain else '':>7} "
        f"{'in s':>5} {'step':>5} {'pred.':>5}"
    )
    forward = imagine_forward(model) if model.chain else 0
    free = recording(model, 2 * steps)
    print(f"  {'free':>9} {'':>10} {'+0.0 %':>8} {free:>6.2f}")
    found = [{"model": name, "share": "free", "time": free}]

    def show(label: str, guess: dict[str, Any], run: dict[str, Any], limit: int | None) -> None:
        added = guess["flops"] / plain["flops"] - 1
        row = {"model": name, "share": label, "limit": limit, "added": added, **guess, **run}
        row["above"] = above
        found.append(row)
        if "refused" in run:
            print(f"  {label:>9} refused")
            return
        row["same"] = run["digest"] == timed["digest"]
        row["time"] = run["seconds"] / timed["seconds"]
        odd = "" if row["same"] else "  OTHER BITS"
        if limit is not None and run["peak"] > limit:
            odd += "  OVER"
        if run["peak"] != guess["peak"]:
            odd += f"  imagined {guess['peak']}"
        peak = (run["peak"] - start) / above
        print(
            f"  {label:>9} {peak:>9.1%} {added:>+8.1%} {row['time']:>6.2f} "
            f"{guess['evictions']:>8} {guess['replays']:>8} {planned(limit)}{odd}",
            flush=True,
        )

    def planned(limit: int | None) -> str:
        if limit is None:
            return ""
        began = time.perf_counter()
        plan = lt.fit(model.step, budget=limit)
        seconds = time.perf_counter() - began
        took, plain = planned_time(model, plan, steps)
        predicted = (plan.seconds or 0.0) / took
        found[-1] |= {"planned": plan.added, "fit_seconds": seconds, "floor": plan.floor_proved}
        found[-1] |= {"bound": plan.bound}
        found[-1] |= {"planned_time": took / plain, "predicted": predicted}
        text = f"{plan.added:>+8.1%} {plan.bound or 0:>+7.1%} {schedule(limit)} {seconds:>5.1f}"
        return f"{text} {took / plain:>5.2f} {predicted:>5.2f}"

    def schedule(limit: int) -> str:
        if not model.chain:
            return f"{'':>7}"
        kept = model.chain - -(-(plain["peak"] - limit) // model.result)
        again = revolve(model.chain, kept) * forward / model.chain
        found[-1]["revolve"] = again / plain["flops"]
        return f"{found[-1]['revolve']:>+7.1%}"

    for share in shares:
        limit = int(start + share * above)
        show(f"{share:.0%}", imagine(model, limit), real(model, limit, steps), limit)
    for label, loss in model.by_hand.items():
        model.loss = loss
        show(label, imagine(model, None), real(model, None, steps), None)
    return found


COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2")


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw operations added over the budget: as planned, as proved, and without a plan."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, 4.2), layout="constrained")
    axes = picture.add_subplot()
    for name, color in zip(dict.fromkeys(row["model"] for row in found), COLORS, strict=False):
        mine = [row for row in found if row["model"] == name and row.get("limit")]
        done = [row for row in mine if "planned" in row]
        shares = [float(row["share"].rstrip("%")) for row in done]
        axes.plot(shares, [100 * row["planned"] for row in done], color=color, label=name)
        axes.plot(shares, [100 * row["bound"] for row in done], "--", color=color, lw=0.8)
        online = [row for row in mine if "refused" not in row]
        shares = [float(row["share"].rstrip("%")) for row in online]
        axes.plot(shares, [100 * row["added"] for row in online], ".", color=color)
        for row in found:
            if row["model"] == name and row["share"] in ("per block", "matmuls"):
                share = 100 * (row["peak"] - row["start"]) / row["above"]
                axes.plot([share], [100 * row["added"]], "x", color=color)
    axes.invert_xaxis()
    axes.set_xlabel("budget: % of what the plain step takes above what lived before")
    axes.set_ylabel("operations added, %")
    axes.set_ylim(0, 60)
    axes.grid(alpha=0.3)
    lines = "line: lowtide.fit; dashed: least proved; dot: no plan; x: per block"
    axes.legend(title=lines, fontsize=8)
    picture.savefig(path, dpi=110)


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES))
    parser.add_argument("--steps", type=int, default=3, help="timed, each")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--picture", type=Path, help="draw them here")
    args = parser.parse_args()
    found = [row for name in args.only for row in rows(name, args.shares, args.steps)]
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    if args.picture:
        draw(found, args.picture)


if __name__ == "__main__":
    main()
