"""A plan: how a step runs within a number of bytes, and what was predicted of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any

from ...framework.autograd.remat.replay_costs import EvictionRule
from ...framework.checkpointing.budget import other_ways
from ...framework.checkpointing.packing import pack
from ...framework.checkpointing.stash import Stash
from ...framework.kernels.runtime import kernel_seconds
from ...framework.memory.ledger import format_bytes
from ...framework.serialization.atomic_files import replacing
from ..analysis.summary import seconds as format_seconds
from ..report.plan_picture import Tide, plot
from .imagined_step import Imagined
from .in_backward import FusedBudget, as_optimizers

HALVINGS = 10  # of the interval in which the least budget lies
FORMAT = 1  # of plans in files
MOST_TEXT = 1 << 24  # bytes of such a file
FIGURES = (
    "peak", "plain_peak", "flops", "plain_flops", "dropped", "replayed", "floor_proved", "set_by",
    "seconds", "seconds_range", "plain_seconds", "cost", "unit", "bound",
)  # fmt: skip


@dataclass(frozen=True)
class Decision:
    """What a plan drops and makes again, of one line and one op.

    Attributes:
        module: Path of the module that computes it; empty outside of modules.
        line: The user's line, ``file:line``.
        op: The op that makes it.
        nbytes: Bytes dropped, all together.
        times: How often.
    """

    module: str
    line: str
    op: str
    nbytes: int
    times: int

    def __str__(self) -> str:
        times = "once" if self.times == 1 else f"{self.times} times"
        owner = f"{self.module}, " if self.module else ""
        return f"{self.op} ({owner}{self.line}): {times}, {format_bytes(self.nbytes)}"


class Plan(FusedBudget):
    """How a step runs within a budget: a context to run it in, and what was predicted.

    ``with plan:`` and ``@plan`` are those of :class:`lowtide.memory_budget`.

    Attributes:
        limit: The budget, in bytes.
        peak: The predicted highest live bytes, to the byte.
        plain_peak: Without a budget.
        flops: Predicted operations of a step.
        plain_flops: Without a budget.
        added: Operations added, as a share: 0.08 for 8 %.
        seconds: Predicted time of a step, its later ones; None if that is not known, as on a GPU.
        seconds_range: (least, most): with kernels as fast, or as slow, as they were measured.
        plain_seconds: Predicted time without a budget.
        dropped: How many values are dropped in a step.
        replayed: How many replays bring them back.
        bound: A share that is proved: every way to drop values and compute them again, with the
            step's kernels in their order, adds so many operations at least. None for a program.
        floor_proved: Bytes below which no budget can do: at one instant so many cannot be dropped.
        set_by: The op, and the user's line, at that instant.
        decisions: What is dropped, the most bytes first (:class:`Decision`).
        cost: By what plans are compared: seconds (0 if not known), operations, values dropped.
        unit: What the seconds and the operations are of: "a step", or "a run" of a program.
        optimizers: Names of the classes of ``in_backward``.
        in_backward: The optimizers that step in backward inside the plan.
    """

    def __init__(
        self,
        limit: int,
        device: Any,
        rule: EvictionRule,
        plain: Imagined,
        found: Imagined,
        imagine: Callable[..., Imagined],
        cost: tuple[float, int, int],
        of: str = "pages",
        unit: str = "a step",
        bound: int | None = None,
        in_backward: tuple[Any, ...] = (),
        imagine_plain: Callable[..., Imagined] | None = None,
    ) -> None:
        super().__init__(limit, device, of=of, rule=rule, in_backward=in_backward)
        self.optimizers = [type(o).__name__ for o in in_backward]
        self.cost = cost
        self.unit = unit
        self.peak, self.plain_peak = found.peak, plain.peak
        self.flops, self.plain_flops = found.flops, plain.flops
        self.bound = None if bound is None else bound / max(plain.flops, 1)
        self.dropped, self.replayed = found.evictions, found.replays
        self.floor_proved, self.set_by = plain.need, plain.where
        self.decisions = [
            Decision(module, line, op, nbytes, times)
            for (module, line, op), (nbytes, times) in sorted(found.dropped, key=lambda d: -d[1][0])
        ]
        known = kernel_seconds.of_machine()
        took, plain_took = found.seconds(known), plain.seconds(known)
        self.seconds = None if took is None else took.typical
        self.seconds_range = None if took is None else (took.least, took.most)
        self.plain_seconds = None if plain_took is None else plain_took.typical
        self._plain: Imagined | None = plain
        self._imagine = imagine
        self._imagine_plain = imagine_plain or imagine
        self._floor: int | None = None

    @property
    def added(self) -> float:
        """Operations added, as a share."""
        return self.flops / self.plain_flops - 1 if self.plain_flops else 0.0

    @property
    def gap(self) -> float | None:
        """How far the plan's operations are above the proved least, as a share of that; or None."""
        return None if self.bound is None else (1 + self.added) / (1 + self.bound) - 1

    @property
    def floor(self) -> int:
        """The least budget that does, as far as is known; found when first asked for."""
        if self._floor is None:
            plain = self._plain or self._imagine()
            self._floor = least(self._imagine, plain, self.limit)
        return self._floor

    def __str__(self) -> str:
        lines = [
            f"budget {format_bytes(self.limit)}: peak {format_bytes(self.peak)} "
            f"(plain {format_bytes(self.plain_peak)}), {self.added:+.1%} operations"
            f"{self._least()}{self._time()}{self._fused()}",
            f"{self.dropped} values dropped, {self.replayed} replays; below "
            f"{format_bytes(self.floor_proved)} nothing can do ({self.set_by})",
        ]
        lines += [f"  {decision}" for decision in self.decisions[:10]]
        if len(self.decisions) > 10:
            lines.append(f"  and {len(self.decisions) - 10} more")
        return "\n".join(lines)

    def tide(self) -> Tide:
        """Imagine both steps again; return their live bytes over the predicted time."""
        plain = self._imagine_plain(None, self.rule, "tide")
        planned = self._imagine(self.limit, self.rule, "tide")
        return Tide(plain.tide, planned.tide, planned.falls, self.limit, self.seconds is not None)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw live bytes under the plan and without it, what is dropped and what is recomputed.

        Args:
            path: The file; its ending says the format: ``.png``, ``.svg``, ``.pdf``.

        Raises:
            ValueError: It has another ending.
        """
        plot(self.tide(), str(self).splitlines()[0], path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a JSON file, from which :meth:`load` restores it.

        Its stashes and optimizers are not in the file: pass them to ``load``.
        """
        rule = {f.name: getattr(self.rule, f.name) for f in fields(self.rule)}
        rule["keep"] = sorted(self.rule.keep)
        rule["seconds"] = None if self.rule.seconds is None else self.rule.seconds.threads
        kept = {
            "lowtide_plan": FORMAT,
            "limit": self.limit,
            "device": str(self.device),
            "of": self.of,
            "rule": rule,
            "optimizers": self.optimizers,
            "decisions": [asdict(d) for d in self.decisions],
            **{name: getattr(self, name) for name in FIGURES},
        }
        with replacing(path) as file:
            file.write(json.dumps(kept, indent=1).encode())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        stash: Stash | Sequence[Stash] = (),
        lossy: pack | None = None,
        in_backward: Any = (),
    ) -> Plan:
        """Read a plan that :meth:`save` wrote.

        Args:
            path: The file.
            stash: The stashes that the plan was made with, as of :func:`lowtide.fit`.
            lossy: The packing that changes values, likewise.
            in_backward: The optimizers that the plan lets step in backward.

        It runs a step as before; what only the step itself can tell (``floor``, ``tide``) is not
        in it. On another machine kernels take other times, so other values may be dropped; the
        budget holds all the same.

        Raises:
            ValueError: The file is not such a plan; or the optimizers are not those of the plan.
        """
        with open(path, "rb") as file:
            text = file.read(MOST_TEXT + 1)
        try:
            kept = json.loads(text) if len(text) <= MOST_TEXT else {}
            if kept["lowtide_plan"] != FORMAT:
                raise ValueError(kept["lowtide_plan"])
            plan = cls.__new__(cls)
            rule = dict(kept["rule"])
            rule["seconds"] = None if rule["seconds"] is None else kernel_seconds.of_machine()
            rule["keep"] = frozenset(map(int, rule["keep"]))
            limit, device, of = int(kept["limit"]), str(kept["device"]), kept["of"]
            FusedBudget.__init__(plan, limit, device, of=of, rule=EvictionRule(**rule))
            plan.optimizers = [str(name) for name in kept.get("optimizers", [])]
            plan.decisions = [Decision(**d) for d in kept["decisions"]]
            for name in FIGURES:
                setattr(plan, name, kept[name])
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise ValueError(
                f"Plan.load: {os.fspath(path)} is not a plan of fit: {error}."
            ) from None
        plan.stashes = other_ways(stash, lossy, "Plan.load")
        plan.in_backward = as_optimizers(in_backward, "Plan.load")
        given = [type(o).__name__ for o in plan.in_backward]
        if given != plan.optimizers:
            raise ValueError(
                f"Plan.load: {os.fspath(path)} was made with in_backward={plan.optimizers}, and "
                f"got {given}. Pass the optimizers that fit was given, in that order."
            )
        plan._plain, plan._imagine, plan._floor = None, _not_there, None
        plan._imagine_plain = _not_there
        return plan

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from ..report import notebook

        return notebook.plan(self)

    def _least(self) -> str:
        return f" (no way adds less than {self.bound:.1%})" if self.bound else ""

    def _fused(self) -> str:
        return f"; {' and '.join(self.optimizers)} in backward" if self.optimizers else ""

    def _time(self) -> str:
        if self.seconds is None or self.seconds_range is None or self.plain_seconds is None:
            return ""
        least, most = self.seconds_range
        return (
            f"; {format_seconds(self.seconds)} {self.unit} ({format_seconds(least)} to "
            f"{format_seconds(most)}; plain {format_seconds(self.plain_seconds)})"
        )

    def __repr__(self) -> str:
        return f"<Plan: {str(self).splitlines()[0]}>"


def _not_there(*_: Any) -> Imagined:
    raise RuntimeError(
        "a plan that was read from a file has no step to ask: call lowtide.fit(step, "
        "budget=plan.limit) for its floor and its tide."
    )


def rules_for(plain: Imagined, first: EvictionRule) -> list[EvictionRule]:
    """Return the rules to try: what was worth it on transformers, convolutions and trees."""
    found = [first, replace(first, seconds=None)]
    for distance, reads, chain in product((1.0, 0.5, 2.0, 0.25), (0, plain.reads), (1.0, 0.3)):
        found.append(replace(first, distance=distance, reads=reads, chain=chain))
    found.append(replace(first, bytes_weight=0.0, seconds=None))
    kept: list[EvictionRule] = []
    for rule in found:  # times are no part of a rule's equality
        if not any(rule == other and rule.seconds is other.seconds for other in kept):
            kept.append(rule)
    return kept


def least(
    imagine: Callable[..., Imagined],
    plain: Imagined,
    high: int,
    rules: list[EvictionRule] | None = None,
) -> int:
    """Return the least budget with which the step fits, by halving; ``high`` is one that does."""
    low = max(plain.need, plain.start) - 1
    rules = rules or rules_for(plain, EvictionRule())[:3]
    for _ in range(HALVINGS):
        if high - low <= max(1, high // 1000):
            break
        middle = (low + high) // 2
        if any(imagine(middle, rule).peak <= middle for rule in rules):
            high = middle
        else:
            low = middle
    return high


__all__ = ["Decision", "Plan", "least", "rules_for"]
