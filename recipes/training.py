"""What recipes share around their loops: progress, learning curve, checkpoints, results.

The loop itself stays in the recipe:

    run = Run("digits", args, total, console, model=model, optimizer=optimizer, loader=loader)
    for step in run:
        ...
        run.log(loss.item())
    run.finish(accuracy=score)

Everything a run writes is in a separate folder (``run_folder.py``): ``checkpoints/``,
``curve.png``, ``results.json`` and, with ``--memory-report``, three steps as a profiler saw them
(``memory.html``, ``memory.png``) and the bytes at the peak of the run (``memory.json``).
``--compile`` compiles the object that the run saves as ``model``.
Ctrl-C ends the run after the step it is in, with a checkpoint; ``--resume`` goes on from the newest
one, and computes what the uninterrupted run would have computed, to the last bit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import lowtide as lt
from lowtide.cli_arguments import chosen_budget
from lowtide.distributed.checkpoint import CheckpointDirectory as PartedCheckpoints
from lowtide.profiling import MemoryProfiler
from lowtide.recipes.options import options as options
from lowtide.recipes.ranks import Ranks as Ranks
from lowtide.recipes.ranks import one_process
from lowtide.recipes.run_folder import RESULTS, RunFolder
from lowtide.utils import CheckpointDirectory

INTERRUPTED = 130  # the exit code after Ctrl-C, as shells know it
PROFILED = 3  # steps for --memory-report, after the first one, which is special


class Run:
    """One training run: iterate over it for the numbers of the steps to do.

    Args:
        name: Of the recipe.
        args: Its parsed options.
        total: Steps of the whole run.
        console: Where it is shown.
        ranks: The processes of the run; this one alone if None.
        **state: What a checkpoint holds: objects with ``state_dict``.

    Raises:
        SystemExit: There is no step to do; the folder asked for holds a run, and ``--resume`` was
            not asked for; another process is running in it; or the run was interrupted.
    """

    def __init__(
        self,
        name: str,
        args: argparse.Namespace,
        total: int,
        console: Console,
        ranks: Ranks | None = None,
        **state: Any,
    ) -> None:
        self.name, self.args, self.total = name, args, total
        self.console, self.state = console, state
        if total < 1:
            raise SystemExit(
                f"{name}: there is no step to do: a batch of {args.batch_size} is more than all "
                "examples to train on. Pass a smaller --batch-size."
            )
        self.ranks = ranks or one_process(name)
        if self.ranks.rank == 0:
            place = RunFolder(name, args.out, args.resume)
            self.folder = place.path
            self.checkpoints: Any = place.checkpoints
            for line in place.skipped:
                console.print(line, highlight=False, markup=False)
            self._claimed = place.checkpoints  # which holds the lock of the folder
            self.ranks.same(str(self.folder))
        else:
            self.folder = Path(self.ranks.same(None))
        parts = PartedCheckpoints(self.folder / "checkpoints", keep=2)
        if self.ranks.size > 1 or parts.steps():
            self.checkpoints = parts
        self.every = args.checkpoint_every or max(total // 10, 1)
        self.losses: list[float] = []
        self.times: list[float] = []  # seconds of each step of this process
        self.measured: list[dict[str, float]] = []
        self.seconds = 0.0
        self.done = 0
        self.peak: dict[str, int] = {}
        self.profile: MemoryProfiler | None = None
        self._stop = False
        self._handler = signal.getsignal(signal.SIGINT)
        if args.compile:
            state["model"].compile()
        self._begin()

    def _begin(self) -> None:
        if self.args.resume:
            values = self._restored()
            if values is None:
                self.console.print(f"Nothing to resume in {self.folder}; starting anew.")
                return
            self.done, self.losses = values["step"], values["losses"]
            self.measured, self.seconds = values["measured"], values["seconds"]
            self.console.print(f"Resumed after step {self.done} of {self.total}, in {self.folder}.")
        if self.ranks.rank == 0:
            (self.folder / RESULTS).unlink(missing_ok=True)

    def _restored(self) -> dict[str, Any] | None:
        if self.ranks.size > 1 and CheckpointDirectory(self.folder / "checkpoints").steps():
            raise SystemExit(
                f"{self.folder} holds a run of one process. Go on with `lowtide run {self.name} "
                "--resume`, or write elsewhere with --out."
            )
        return self.checkpoints.restore(**self.state)

    def _budget(self) -> Any:
        return chosen_budget(self.args, self.args.device) or contextlib.nullcontext()

    def __iter__(self) -> Iterator[int]:
        columns = (
            TextColumn(self.name),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  live {task.fields[live]:.1f} MiB"),
        )
        profiler = MemoryProfiler() if self.args.memory_report else None
        first = self.done + (self.total - self.done > 1)  # of what is left after --resume
        before = self._handler = signal.signal(signal.SIGINT, self._interrupt)
        lt.reset_peak_memory_stats(self.args.device)
        began = time.perf_counter() - self.seconds
        budget = self._budget()
        try:
            with Progress(*columns, console=self.console) as progress, budget:
                task = progress.add_task("", total=self.total, completed=self.done, loss=0, live=0)
                while self.done < self.total and not self._stop:
                    if profiler is not None and self.done == first:
                        profiler.start()
                        self.profile = profiler
                    step_began = time.perf_counter()
                    yield self.done
                    self.times.append(time.perf_counter() - step_began)
                    self.done += 1
                    self._stop = self.ranks.any(self._stop)
                    if self.profile is not None and self.done == first + PROFILED:
                        self.profile.stop()
                    self.seconds = time.perf_counter() - began
                    live = lt.memory_allocated(self.args.device) / 2**20
                    loss = self.losses[-1] if self.losses else float("nan")
                    progress.update(task, completed=self.done, loss=loss, live=live)
                    if self.done % self.every == 0 or self.done == self.total or self._stop:
                        self._save()
        finally:
            signal.signal(signal.SIGINT, before)
            if self.profile is not None:
                self.profile.stop()  # the run may have been shorter
        self.peak = lt.memory_stats(self.args.device)["peak_by_role"]
        if self.args.memory_budget is not None:
            self.console.print(
                f"In a budget of {budget.limit / 2**20:.1f} MiB: {budget.evictions} values "
                f"dropped, {budget.replays} replays.",
                highlight=False,
            )
        if self.done < self.total:
            self.console.print("\n" + self._way_on())
            sys.exit(INTERRUPTED)
        signal.signal(signal.SIGINT, self._interrupt_results)  # until `finish` has written them

    def _interrupt(self, *_: Any) -> None:
        if self._stop:  # the second time it is meant at once
            raise KeyboardInterrupt
        self._stop = True

    def _interrupt_results(self, *_: Any) -> None:
        signal.signal(signal.SIGINT, self._handler)
        raise KeyboardInterrupt(*[self._way_on()] if self.ranks.rank == 0 else [])

    def _way_on(self) -> str:
        return (
            f"Interrupted after step {self.done} of {self.total}; its checkpoint is in "
            f"{self.checkpoints.path}. Go on with --resume."
        )

    def _save(self) -> None:
        values = {"losses": self.losses, "measured": self.measured, "seconds": self.seconds}
        self.checkpoints.save(self.done, **self.state, **values)

    def log(self, loss: float) -> None:
        """Note the loss of the step: of several processes, the mean."""
        self.losses.append(self.ranks.mean(loss))

    def measure(self, **values: float) -> None:
        """Note what was measured after the step, and show it."""
        self.measured.append({"step": self.done + 1, **values})
        words = ", ".join(f"{k} {v:.4g}" for k, v in values.items())
        self.console.print(f"  step {self.done + 1}: {words}")

    def finish(self, **results: Any) -> None:
        """Print the results, and write them with the learning curve and the peak's bytes."""
        if self.ranks.rank == 0:
            self._write_results(results)
        signal.signal(signal.SIGINT, self._handler)

    def _write_results(self, results: dict[str, Any]) -> None:
        # The median: a first run compiles kernels in its first steps.
        each = f" (median {1e3 * median(self.times):.1f} ms)" if self.times else ""
        self.console.print(
            f"\n{self.total} steps in {self.seconds:.1f} s{each}; "
            + ", ".join(
                f"[bold]{k} {v:.4g}[/bold]" for k, v in results.items() if isinstance(v, float)
            )
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        record = {
            "recipe": self.name,
            "options": {
                k: str(v) if isinstance(v, Path) else v for k, v in vars(self.args).items()
            },
            "results": results,
            "steps": self.total,
            "seconds": self.seconds,
            "peak_bytes": sum(self.peak.values()),
            "peak_bytes_by_role": self.peak,
            "losses": self.losses,
            "measured": self.measured,
            "lowtide": lt.__version__,
            "python": platform.python_version(),
        }
        curve(self.folder / "curve.png", self.name, self.losses, self.measured)
        if self.args.memory_report:
            show_peak(self.console, self.peak)
            (self.folder / "memory.json").write_text(json.dumps(self.peak, indent=1))
            if self.profile is not None:
                self.console.print(self.profile.report(), highlight=False, markup=False)
                self.profile.html(self.folder / "memory.html")
                self.profile.plot(self.folder / "memory.png")
        (self.folder / RESULTS).write_text(json.dumps(record, indent=1))
        self.console.print(f"Everything is in {self.folder}")


def show_peak(console: Console, by_role: dict[str, int]) -> None:
    """A table of the bytes at the run's peak."""
    table = Table(title="Live bytes at the peak of the run")
    table.add_column("role")
    table.add_column("bytes", justify="right")
    for role, count in sorted(by_role.items(), key=lambda item: -item[1]):
        if count:
            table.add_row(role, f"{count:,}")
    table.add_section()
    table.add_row("in all", f"{sum(by_role.values()):,}")
    console.print(table)


def batches(loader: Any) -> Iterator[Any]:
    """One epoch after the other, without end."""
    while True:
        yield from loader


def curve(path: Path, title: str, losses: list[float], measured: list[dict[str, float]]) -> None:
    """Draw the loss of each step, its running mean, and what was measured on the way."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = sorted({k for row in measured for k in row if k != "step"})
    figure = Figure(figsize=(7, 3.2 + 2.2 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1 + len(names), 1, sharex=True, squeeze=False)[:, 0]
    steps = range(1, len(losses) + 1)
    axes[0].plot(steps, losses, color="#9db8d2", linewidth=0.8, label="loss of each step")
    axes[0].plot(steps, running_mean(losses), color="#1f4e79", linewidth=1.8, label="running mean")
    axes[0].set(title=title, ylabel="training loss")
    axes[0].legend(frameon=False)
    for axis, name in zip(axes[1:], names, strict=True):
        rows = [(r["step"], r[name]) for r in measured if name in r]
        axis.plot(*zip(*rows, strict=True), color="#b5532a", marker="o", markersize=3)
        axis.set_ylabel(name)
    axes[-1].set_xlabel("step")
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def running_mean(values: list[float], share: float = 0.03) -> list[float]:
    """Exponential running mean over about ``share`` of the curve, corrected for its start."""
    keep = 1 - 1 / max(share * len(values), 1)
    mean, weight, out = 0.0, 0.0, []
    for value in values:
        mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        out.append(mean / weight if weight else value)
    return out
