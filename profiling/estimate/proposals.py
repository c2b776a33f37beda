"""Proposals: changes that were tried on a step, what they give, what they cost, and their code."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from ...framework.memory.ledger import format_bytes
from ..leaks.findings import Finding

NOTHING_LOST = "no parameter loses its gradient"
MOST_CODE = 4  # proposals of a kind whose code is printed
MOST_ROWS, MOST_REASONS = 12, 3  # rows of a table, reasons why something was not tried
MOST_NAMED = 2  # holders of what a run keeps
NARROWEST = 16  # columns of a cell that is broken into lines


@dataclass(frozen=True)
class Proposal:
    """One change that was tried, or several at once, and its estimated effect.

    Attributes:
        kind: ``budget`` (a byte budget), ``checkpoint``, ``no_grad``, ``dtype``, ``optimizer``,
            ``batch`` (a smaller one), ``several``, or ``larger batch``.
        change: What was changed, in words.
        peak_bytes: Highest live bytes of the changed step, or of those after it.
        saved_bytes: How much lower that is; negative if it is higher.
        fits: Whether the limit allows it.
        lost: Names of the parameters that receive a gradient before and none after.
        batch: The number of examples; None if that is not what was changed.
        flops: Operations added to those of a later step as it is, as a share; for another batch,
            for each example.
        first_bytes: The peak of the first changed step alone.
        steady_bytes: That of later ones.
        time: How many times as long a step takes, for each example, by its operations and the bytes
            that its kernels read and write; None if that says nothing, as of another dtype.
        code: The lines that make the change, to be pasted where the model is ready.
    """

    kind: str
    change: str
    peak_bytes: int
    saved_bytes: int
    fits: bool
    lost: list[str] = field(default_factory=list)
    batch: int | None = None
    flops: float = 0.0
    first_bytes: int = 0
    steady_bytes: int = 0
    time: float | None = None
    code: str = ""

    @property
    def cost(self) -> str:
        """Describe what the change costs: extra compute, precision, gradients, a smaller batch."""
        costs = []
        if self.flops >= 0.0005:
            costs.append(f"{self.flops:.1%} more operations")
        if self.kind == "batch":
            costs.append("fewer examples a step")
        if "bfloat16" in self.change:
            costs.append("values have 8 significant bits")
        if self.kind == "no_grad" or self.lost:
            costs.append(f"no gradient of {listed(self.lost)}" if self.lost else NOTHING_LOST)
        if self.kind == "optimizer" or "in backward" in self.change:
            costs.append("no clipping of all gradients together, no accumulation")
        return "; ".join(costs) or "nothing"

    @property
    def time_cost(self) -> str:
        """The time of a step, for each example, beside that of the step as it is."""
        if self.time is None:
            return "measure it"
        change = self.time - 1
        return "as before" if abs(change) < 0.005 else f"{change:+.0%}"


@dataclass(frozen=True)
class Run:
    """How a program goes on after its first step, as far as it was watched.

    Attributes:
        steps: How many of the optimizer's steps were watched.
        peak_bytes: Highest live bytes until then.
        growth_bytes_per_step: By how much what lives after a step grows, in the later half.
        findings: What holds the values that survive their step, most growth first.
    """

    steps: int
    peak_bytes: int
    growth_bytes_per_step: int
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers that JSON can hold."""
        return {**vars(self), "findings": [vars(f) for f in self.findings]}


@dataclass(frozen=True)
class Advice:
    """The result of :func:`advise`: whether a step fits, and the changes that were tried.

    Attributes:
        device: The device whose bytes are meant.
        limit_bytes: What may live there.
        peak_bytes: Highest live bytes of the step as it is, or of later ones if those need more.
        first_bytes: Of the next step alone.
        proposals: :class:`Proposal` each: first what fits and loses least, last what does not fit.
            Empty if the step fits.
        untried: What could not be tried or makes no sense, with the reason.
        larger: Ways to a larger batch, the largest first: the step as it is, if it fits, and with
            changes. Empty unless asked for.
        batch: The number of examples of the step as it is; 0 if it is not known.
        run: How the program goes on; None for a step that is a function.
    """

    device: str
    limit_bytes: int
    peak_bytes: int
    first_bytes: int
    proposals: list[Proposal]
    untried: dict[str, str]
    larger: list[Proposal] = field(default_factory=list)
    batch: int = 0
    run: Run | None = None

    @property
    def fits(self) -> bool:
        """True if the step fits without a change, and those after it, as far as watched."""
        return max(self.peak_bytes, self.run.peak_bytes if self.run else 0) <= self.limit_bytes

    @property
    def fitting(self) -> list[Proposal]:
        """Return the proposals that fit."""
        return [p for p in self.proposals if p.fits]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers that JSON can hold."""

        def plain(p: Proposal) -> dict[str, Any]:
            return {**vars(p), "lost": list(p.lost), "cost": p.cost}

        return {
            "device": self.device,
            "limit_bytes": self.limit_bytes,
            "peak_bytes": self.peak_bytes,
            "first_bytes": self.first_bytes,
            "fits": self.fits,
            "batch": self.batch,
            "proposals": [plain(p) for p in self.proposals],
            "larger": [plain(p) for p in self.larger],
            "untried": dict(self.untried),
            "run": None if self.run is None else self.run.to_dict(),
        }

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from ..report import notebook

        return notebook.advice(self)

    def __str__(self) -> str:
        width = shutil.get_terminal_size((100, 24)).columns
        verb = "fits" if self.peak_bytes <= self.limit_bytes else "does not fit"
        over = abs(self.peak_bytes - self.limit_bytes)
        lines = [
            f"The step {verb} {self.device}: peak {format_bytes(self.peak_bytes)}, limit "
            f"{format_bytes(self.limit_bytes)}, {format_bytes(over)} "
            f"{'to spare' if verb == 'fits' else 'too much'}."
        ]
        if self.first_bytes < self.peak_bytes:
            lines[0] += (
                f" The next step takes {format_bytes(self.first_bytes)}; later ones, with the "
                "optimizer's state there from the start, take the peak."
            )
        lines += self._growth()
        lines = [line for text in lines for line in textwrap.wrap(text, width)]
        useful = [p for p in self.proposals if p.saved_bytes > 0]
        lines += _table(useful, "saved", width)
        useless = [p.change for p in self.proposals if p.saved_bytes <= 0]
        if useless:
            lines += _wrapped(f"saves nothing: {', '.join(useless)}", width)
        if self.larger:
            title = f"Ways to a larger batch than {self.batch}:"
            lines += ["", title, *_table(self.larger, "", width)]
        if self.peak_bytes > self.limit_bytes and not self.fitting:
            lines.append("No change fits, nor do several; ask lowtide.profiling.compare of others.")
        return "\n".join(lines + self._not_tried(width))

    def _growth(self) -> list[str]:
        # What a step does not show: a run that keeps more and more.
        run = self.run
        if run is None or not run.growth_bytes_per_step:
            return []
        grows = (
            f"The run grows by {format_bytes(run.growth_bytes_per_step)} a step "
            f"({run.steps} steps watched): "
        )
        if run.peak_bytes > self.limit_bytes:
            then = f"it has passed the limit by then, with {format_bytes(run.peak_bytes)}."
        else:
            left = (self.limit_bytes - run.peak_bytes) // run.growth_bytes_per_step
            then = f"it passes the limit after some {run.steps + left + 1} steps."
        who = [str(f) for f in run.findings if f.kind != "shared"][:MOST_NAMED]
        return [f"{grows}{then}", *(who or ["`lowtide leaks` names what stays."])]

    def _not_tried(self, width: int) -> list[str]:
        by_reason: dict[str, list[str]] = {}
        for what, why in self.untried.items():
            by_reason.setdefault(why, []).append(what)
        lines = []
        for why, names in list(by_reason.items())[:MOST_REASONS]:
            lines += _wrapped(f"not tried: {listed(names)}: {why}", width)
        if len(by_reason) > MOST_REASONS:
            lines.append(f"  not tried: {len(by_reason) - MOST_REASONS} more, for other reasons")
        return lines

    def code(self, most: int = MOST_CODE) -> str:
        """Return the lines to paste, of the first proposals that fit, and of larger batches."""
        blocks = []
        for p in [*self.fitting[:most], *self.larger[:most]]:
            if p.code:
                blocks.append(f"# {p.change}\n{p.code}")
        return "\n\n".join(blocks)


def listed(names: list[str]) -> str:
    """Join names, the first four of them."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")


def _table(proposals: list[Proposal], saved: str, width: int) -> list[str]:
    # The first and the last column are broken into lines where the terminal is too narrow.
    if not proposals:
        return []
    shown, more = proposals[:MOST_ROWS], len(proposals) - MOST_ROWS
    rows = [("change", "fits", "peak", saved, "time", "costs")] + [
        (
            p.change,
            "yes" if p.fits else "no",
            format_bytes(p.peak_bytes),
            format_bytes(p.saved_bytes) if saved else "",
            p.time_cost,
            p.cost,
        )
        for p in shown
    ]
    a, b, c, d, e, f = (max(len(row[k]) for row in rows) for k in range(6))
    gap = "  " if d else ""
    free = max(width - (b + c + d + e + len(gap) + 10), 2 * NARROWEST)
    if a + f > free:
        f = max(min(f, free // 3), NARROWEST)
        a = max(min(a, free - f), NARROWEST)
    lines = []
    for row in rows:
        first, last = textwrap.wrap(row[0], a), textwrap.wrap(row[5], f)
        for k, (left, right) in enumerate(zip_longest(first, last, fillvalue="")):
            cells = row[1:5] if k == 0 else ("", "", "", "")
            lines.append(
                f"  {left:<{a}}  {cells[0]:<{b}}  {cells[1]:>{c}}  {cells[2]:>{d}}{gap}"
                f"{cells[3]:>{e}}  {right}".rstrip()
            )
    return [*lines, f"  and {more} more"] if more > 0 else lines
