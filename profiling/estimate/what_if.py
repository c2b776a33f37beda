"""What-if estimates: a step with a part under ``no_grad``, detached, checkpointed, or narrower.

:func:`compare` estimates the step twice (``estimate.py``), as it is and with the change made in
the forked copy, by the means a user would have: ``forward`` of a module is wrapped, a parameter's
``requires_grad`` taken away, a module converted. So the difference is the real one, to the byte.

A change that touches nothing is an error: a parent that reads a child's parameters itself, as
attention does with its output projection, never calls the child.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...framework.autograd.hooks import register_post_accumulate_hook
from ...framework.checkpointing.regions import checkpointing
from ...framework.dtypes import dtype as dtype_class
from ...framework.memory.ledger import format_bytes
from ...framework.modes import no_grad as no_grad_mode
from ...framework.tensor import Tensor
from ..analysis.tables import Table
from .batches import Resized, batch_of
from .changes import Change, Checkpointed, Detached, Leaf, Narrow, NoGrad, Scopes
from .estimate import Estimate, check_callable, imagined
from .fork_sandbox import run_apart
from .targets import (
    Models,
    called,
    described,
    is_module,
    models_of,
    modules_of,
    needed,
    only,
    parameters_of,
    parts_of,
    tensor_of,
)


@dataclass
class Comparison:
    """The estimates of a step without and with a change.

    Attributes:
        change: What was changed, in words.
        before: The :class:`~lowtide.profiling.Estimate` of the step as it is.
        after: That of the changed step.
        lost: Names of the parameters that receive a gradient before and none after.
        trained: How many parameters receive one after.
    """

    change: str
    before: Estimate
    after: Estimate
    lost: list[str]
    trained: int

    @property
    def saved_bytes(self) -> int:
        """Reduction of the peak of all steps in bytes; negative if it grows."""
        return self.before.needed_bytes(self.device) - self.after.needed_bytes(self.device)

    @property
    def device(self) -> str:
        """The default device of queries: the one with the highest peak before the change."""
        return self.before.device

    @property
    def flops_added(self) -> int:
        """FLOPs that the change adds to the step; negative if it removes some."""
        return self.after.flops - self.before.flops

    def saved(self, by: str | Sequence[str] = "module", depth: int | None = None) -> Table:
        """Reduction of the peak in bytes by owner; negative where it grows.

        Args:
            by: ``role``, ``module``, ``op``, ``line`` or ``phase``, or several of them.
            depth: How many segments of module paths to show.
        """
        before, after = (e.highest(self.device) for e in (self.before, self.after))
        return before.diff(after, by, depth, self.device)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from ..report import notebook

        return notebook.comparison(self)

    def __str__(self) -> str:
        before, after = (e.needed_bytes(self.device) for e in (self.before, self.after))
        verb = "saves" if before >= after else "costs"
        flops = "no FLOPs more or less"
        if self.flops_added:
            verb_of = "adds" if self.flops_added > 0 else "removes"
            changed, total = abs(self.flops_added) / 1e9, self.before.flops / 1e9
            flops = f"{verb_of} {changed:.3f} of {total:.3f} GFLOP"
        saved, share = format_bytes(abs(before - after)), abs(before - after) / max(before, 1)
        lines = [
            f"{self.change} {verb} {saved} ({share:.1%}) of the peak of {self.device}: "
            f"{format_bytes(before)} before, {format_bytes(after)} after; {flops}."
        ]
        split = [e.by_device(self.device) for e in (self.before, self.after)]
        if any(d.steady_bytes != d.first_bytes for d in split):
            first = " -> ".join(format_bytes(d.first_bytes) for d in split)
            later = " -> ".join(format_bytes(d.steady_bytes) for d in split)
            lines.append(f"First step: {first}; later steps: {later}.")
        if self.lost:
            shown = ", ".join(self.lost[:8]) + (", ..." if len(self.lost) > 8 else "")
            one = len(self.lost) == 1
            what = "1 parameter loses its" if one else f"{len(self.lost)} parameters lose their"
            lines.append(f"{what} gradient: {shown}.")
        else:
            lines.append(f"All {self.trained} parameters that receive a gradient still do.")
        for by in ("role", "module", "line"):
            table = self.saved(by)
            if table.rows:
                lines += ["", f"Saved by {by}:", table.text(10, signed=True)]
        return "\n".join(lines)


def compare(
    step: Callable[..., Any],
    /,
    *args: Any,
    no_grad: Any = None,
    detach: Any = None,
    dtype: Any = None,
    checkpoint: Any = None,
    batch: int | None = None,
    model: Any = None,
    **kwargs: Any,
) -> Comparison:
    """Estimate what a change would save, without running the step or changing the program.

    A *part* is a module, its path (``"encoder.blocks.2"``; ``"blocks.*.mlp"`` for several), the
    name of a variable of the step's that holds it, or a list of those. A list of modules, such as
    a ``ModuleList``, stands for its items. Paths are looked up in ``model``, else in the modules
    that ``step`` reaches: its arguments, closure, globals and ``self``, and what these hold.

    Args:
        step: As for :func:`estimate`.
        *args: What to call it with.
        no_grad: Parts whose ``forward`` runs under ``no_grad``; also names or paths of
            ``lowtide.profiling.scope`` blocks.
        detach: Parts whose results are detached; also tensors that exist before the step, or
            names of parameters and of the step's variables, which then require no gradient.
        dtype: A floating dtype for all of the model, or a dict of part and dtype. The part is
            converted as by ``module.to(dtype)``; floating tensors are converted on their way in,
            and, for a part of a model, results on their way out to what came in.
        checkpoint: Parts whose activations are recomputed in backward, each in a separate region;
            also scopes. Or a dict of part and policy (``lowtide.checkpointing``), None for all.
        batch: Another number of examples: rows of the tensors that share a leading dimension, those
            that the step is called with, or finds in variables if there are none. The first rows
            for a smaller number, the same rows again for a larger one.
        model: Where to look up paths; a dict of names and modules if there are several.
        **kwargs: What to call the step with, by name.

    Returns:
        A :class:`Comparison`; print it for the tables.

    Raises:
        ValueError: No change is asked for, a name means nothing, or several things; or the step
            never came by the part.

    Example:
        >>> import lowtide as lt
        >>> net = lt.nn.Sequential(lt.nn.Linear(64, 64), lt.nn.Tanh(), lt.nn.Linear(64, 1))
        >>> x = lt.randn(256, 64)
        >>> found = lt.profiling.compare(lambda: net(x).sum().backward(), detach="1")
        >>> found.lost
        ['0.weight', '0.bias']
    """
    check_callable("compare", step)
    roots = models_of(step, args, kwargs, model)
    changes: list[Change] = [c for part in parts_of(no_grad) for c in _without(part, roots)]
    changes += [c for part in parts_of(detach) for c in _cuts(part, roots)]
    if not isinstance(checkpoint, dict):
        checkpoint = dict.fromkeys(parts_of(checkpoint))
    changes += [c for part, policy in checkpoint.items() for c in _regions(part, roots, policy)]
    if dtype is not None and not isinstance(dtype, dict):
        dtype = dict.fromkeys(only(roots, "dtype").values(), dtype)
    changes += [c for part, to in (dtype or {}).items() for c in _narrowed(part, roots, to)]
    if batch is not None:
        changes.append(_resized(step, args, kwargs, roots, batch))
    if not changes:
        raise ValueError("compare needs a change: no_grad=, detach=, checkpoint=, dtype=, batch=.")
    before, reached = run_apart(lambda: with_changes(step, args, kwargs, roots, []))
    after, still = run_apart(lambda: with_changes(step, args, kwargs, roots, changes))
    words = " and ".join(dict.fromkeys(c.words for c in changes))
    lost = [name for name in reached if name not in set(still)]
    return Comparison(words, before, after, lost, len(still))


def with_changes(
    step: Callable[..., Any], args: Any, kwargs: Any, roots: Models, changes: list[Change]
) -> tuple[Estimate, list[str]]:
    """Estimate a changed step, in a forked copy of the process.

    Returns:
        The estimate, and the names of the parameters that received a gradient.
    """
    reached: set[str] = set()
    names = dict(parameters_of(roots))

    def prepare() -> None:
        for name, p in names.items():
            if p.requires_grad and p._node is None:
                register_post_accumulate_hook(p, lambda _, name=name: reached.add(name))
        for change in changes:
            change.make()

    found = imagined(step, args, kwargs, prepare)
    for change in changes:
        change.check()
    return found, [name for name in names if name in reached]


# Parts of models, and what is done to them


def _resized(
    step: Callable[..., Any], args: Any, kwargs: Any, roots: Models, batch: int
) -> Resized:
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise ValueError(f"compare: batch is a number of examples, 1 or more; got {batch!r}.")
    size, named = batch_of(step, args, kwargs, roots)
    if not size:
        raise ValueError(
            f"compare: batch={batch}: no tensors with a common leading dimension are among "
            "the step's arguments and variables. Pass them as arguments: "
            "compare(step, x, y, batch=...)."
        )
    return Resized(list(named.values()), batch)


def _each(part: Any, roots: Models, what: str, make: Callable[[str, Any], Change]) -> list[Change]:
    # A change for each module that a part means; of a list of modules, for each item.
    changes: list[Change] = []
    for name, module in needed(part, modules_of(part, roots), roots):
        items = called(module)
        each = "each of " if items != [module] else ""
        for m in items:
            changes.append(make(name, m))
            changes[-1].words = f"{what} {each}{name}"
    return changes


def _without(part: Any, roots: Models) -> list[Change]:
    if isinstance(part, str) and not modules_of(part, roots):
        return [Scopes("no_grad in", part, no_grad_mode, described(part, roots))]
    return _each(part, roots, "no_grad in", NoGrad)


def _cuts(part: Any, roots: Models) -> list[Change]:
    tensor = part if isinstance(part, Tensor) and not is_module(part) else None
    if tensor is None and isinstance(part, str) and not modules_of(part, roots):
        tensor = tensor_of(part, roots)
    if tensor is None:
        return _each(part, roots, "detach of", Detached)
    names = [n for n, p in parameters_of(roots) if p is tensor]
    names += [part] if isinstance(part, str) else []
    return [Leaf(names[0] if names else f"a tensor of shape {tuple(tensor.shape)}", tensor)]


def _regions(part: Any, roots: Models, policy: Any) -> list[Change]:
    if isinstance(part, str) and not modules_of(part, roots):
        region = functools.partial(checkpointing, policy)
        return [Scopes("checkpoint of", part, region, described(part, roots))]
    return _each(part, roots, "checkpoint of", lambda n, m: Checkpointed(n, m, policy))


def _narrowed(part: Any, roots: Models, to: Any) -> list[Change]:
    if not isinstance(to, dtype_class) or not to.is_floating_point:
        raise TypeError(f"compare(dtype=...) takes a floating dtype; got {to!r}.")

    def make(name: str, module: Any) -> Change:
        return Narrow(name, module, to, any(module is root for root in roots.values()))

    return _each(part, roots, f"{to.name} in", make)
