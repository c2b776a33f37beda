"""What advice is asked for: a step, a limit, and how to estimate the step with a change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...framework.tensor import Tensor
from .changes import Change, Narrow
from .estimate import Estimate
from .plan import Plan
from .proposals import Proposal
from .targets import Models

Run = Callable[[list[Change]], tuple[Estimate, list[str]]]
Planner = Callable[[int, str, tuple[Any, ...]], Plan]


class ProgramRaised(RuntimeError):
    """What a changed program raised in its copy: type and message, as text."""


@dataclass
class AdviceRequest:
    """What changes are tried on.

    Attributes:
        run: Estimates the step with changes, and names the parameters that received a gradient.
        roots: The models that it reaches.
        optimizers: The optimizers, by name.
        batch: The tensors that carry the batch, by name, and how many rows they have.
        resized: Makes the change to another number of rows.
        device: Whose bytes are meant.
        limit: What may live there.
        before: The estimate of the step as it is.
        reached: The parameters that received a gradient.
        untried: What could not be tried, with the reason.
        plan: Plans the step within a limit, on a device, with optimizers in backward; None for a
            program, which ``--memory-budget`` runs by the evictor's usual rule.
        call: The call of the step, as code: ``step, x, y``.
        drawn: The program draws its batch anew, so the code says how many rows to draw.
        made: The changes of each proposal, by its words.
    """

    run: Run
    roots: Models
    optimizers: dict[str, Any]
    batch: tuple[int, dict[str, Tensor]]
    resized: Callable[[int], Change]
    device: str
    limit: int
    before: Estimate
    reached: list[str]
    plan: Planner | None = None
    call: str = ""
    drawn: bool = False
    untried: dict[str, str] = field(default_factory=dict)
    made: dict[str, list[Change]] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """The peak of the step as it is."""
        return self.before.needed_bytes(self.device)

    def whole(self, module: Any) -> bool:
        """True for a model, and not a part of one."""
        return any(module is root for root in self.roots.values())

    def attempt(
        self,
        kind: str,
        words: str,
        changes: list[Change],
        batch: int | None = None,
        code: str = "",
    ) -> Proposal | None:
        """Estimate the step with changes; None, and the reason noted, if it does not run so."""
        try:
            after, still = self.run(changes)
        except Exception as error:  # whatever the user's program raises when it is changed
            said = str(error).partition("\n")[0]
            own = isinstance(error, ProgramRaised)
            self.untried[words] = said if own else f"{type(error).__name__}: {said}"
            return None
        self.made[words] = changes
        figures = after.by_device(self.device)
        peak, kept = figures.needed_bytes, set(still)
        rows = 1 if batch is None else batch / max(self.batch[0], 1)
        # A later step's: what a budget drops then may be more than in the first.
        flops, work = after.later_flops / rows, after.later_work / rows
        before = self.before
        timed = not any(isinstance(c, Narrow) for c in changes) and before.later_work and work
        return Proposal(
            kind=kind,
            change=words,
            peak_bytes=peak,
            saved_bytes=self.peak - peak,
            fits=peak <= self.limit,
            lost=[name for name in self.reached if name not in kept],
            batch=batch,
            flops=flops / max(before.later_flops, 1) - 1,
            first_bytes=figures.first_bytes,
            steady_bytes=figures.steady_bytes,
            time=work / before.later_work if timed else None,
            code=code,
        )
