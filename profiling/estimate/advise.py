"""Advice on memory: which change makes a step fit, and which makes room for a larger batch.

:func:`advise` estimates the step (``estimate.py``), and once more for each change that could
help, with the machinery of :func:`~lowtide.profiling.compare`: the change is made in a forked copy
of the process, and the copy's ledger is read. So a figure is what the change gives when it is made
for real, to the byte, in the first step and in later ones. Changes are tried one at a time; then
the best of each kind together (``CHANGES``, ``_together``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from ...framework.device import device as as_device
from ...framework.dtypes import bfloat16
from ...framework.memory.sizes import as_bytes
from ...framework.tensor import Tensor
from . import paste
from .batches import Resized, batch_of
from .changes import Change, Checkpointed, FusedOptimizer, Narrow, NoGrad
from .estimate import Estimate, check_callable
from .fork_sandbox import run_apart
from .proposals import Advice, Proposal, listed
from .targets import Models, called, models_of, optimizers_of
from .what_if import with_changes

MOST_PARTS = 8  # of a model that are tried, those with most bytes
MOST_ROWS = 4  # of modules alike, inside of parts
MOST_SIZES = 8  # of batches that are tried
FURTHER = 64  # times as many rows are tried at most, from one estimate to the next
MOST_LARGER = 2  # ways to a larger batch, of those that keep the dtype, and of others
Run = Callable[[list[Change]], tuple[Estimate, list[str]]]


@dataclass
class Question:
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
            self.untried[words] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            return None
        self.made[words] = changes
        figures = after.by_device(self.device)
        peak, kept = figures.needed_bytes, set(still)
        rows = 1 if batch is None else batch / max(self.batch[0], 1)
        timed = not any(isinstance(c, Narrow) for c in changes) and self.before.work and after.work
        return Proposal(
            kind=kind,
            change=words,
            peak_bytes=peak,
            saved_bytes=self.peak - peak,
            fits=peak <= self.limit,
            lost=[name for name in self.reached if name not in kept],
            batch=batch,
            flops=after.flops / rows / max(self.before.flops, 1) - 1,
            first_bytes=figures.first_bytes,
            steady_bytes=figures.steady_bytes,
            time=after.work / rows / self.before.work if timed else None,
            code=code,
        )


def advise(
    step: Callable[..., Any],
    /,
    *args: Any,
    limit: int | str | None = None,
    device: Any = None,
    model: Any = None,
    larger: bool = False,
    **kwargs: Any,
) -> Advice:
    """Predict whether ``step(*args, **kwargs)`` fits, and which change would make it fit.

    Nothing is computed, and nothing of the program changes; see :func:`estimate`. If the step does
    not fit, these are tried, one at a time:

    - activation checkpointing of each top-level part of the models that the step reaches (of a
      list of modules: of each item), of all of these together, and of each module of a stack of
      several alike further inside;
    - each such part under ``no_grad``; of a step that makes no gradients, each whole model as well;
    - each of them, and each whole model, in bfloat16;
    - each optimizer that the step reaches, in backward (``optim.fuse_into_backward``);
    - a smaller batch: the first ``n`` rows of the tensors that share a leading dimension, for the
      largest ``n`` that fits (a smaller one, if bytes grow so unevenly that eight estimates do not
      find it). They are the step's tensor arguments; without any, the tensors that it closes over
      or finds among its globals, parameters and buffers excepted;
    - the best of these together, as far as they lose no gradient.

    The first step and those after it are judged, by the larger of their peaks.

    It costs an estimate for each: up to 39 for a model. Call it outside the ``except`` block that
    caught a ``MemoryLimitError``: the error's traceback keeps the failed step's tensors.

    Args:
        step: As for :func:`estimate`.
        *args: What to call it with.
        limit: Bytes that may live on the device, or text such as "2GiB"; the limit set on it, if
            None.
        device: The device; if None, the fullest one that has a limit, or the fullest.
        model: The model, or a dict of names and models; what the step reaches, if None.
        larger: Also look for the largest batch that fits, for the step as it is and with changes.
        **kwargs: What to call the step with, by name.

    Returns:
        An :class:`Advice`; print it for the table.

    Raises:
        ValueError: No limit is given or set, or the step uses no such device.
        Exception: What the step raises as it is.

    Example:
        >>> import lowtide as lt
        >>> net = lt.nn.Sequential(lt.nn.Linear(64, 64), lt.nn.Tanh(), lt.nn.Linear(64, 1))
        >>> def step(x):
        ...     net(x).sum().backward()
        >>> x = lt.randn(256, 64)
        >>> found = lt.profiling.advise(step, x, limit=lt.memory_allocated() + 100_000)
        >>> [p.batch for p in found.fitting if p.kind == "batch"][0] < 256
        True
    """
    check_callable("advise", step)
    limit = None if limit is None else as_bytes(limit, "advise: limit")
    roots = models_of(step, args, kwargs, model)

    def run(changes: list[Change]) -> tuple[Estimate, list[str]]:
        return run_apart(lambda: with_changes(step, args, kwargs, roots, changes))

    before, reached = run([])
    name, allowed = device_and_limit(before, limit, device)
    batch = batch_of(step, args, kwargs, roots)
    tensors = list(batch[1].values())
    question = Question(
        run=run,
        roots=roots,
        optimizers=optimizers_of(step, args, kwargs),
        batch=batch,
        resized=lambda n: Resized(tensors, n),
        device=name,
        limit=allowed,
        before=before,
        reached=reached,
    )
    return answer(question, larger)


def answer(question: Question, larger: bool) -> Advice:
    """Try the changes on a step, and look for larger batches."""
    found: list[Proposal] = []
    more: list[Proposal] = []
    fits = question.peak <= question.limit
    if larger or not fits:
        for tried in CHANGES:
            if tried is not _smaller or not fits:
                found += tried(question)
        found += _together(question, found)
        found.sort(key=lambda p: (not p.fits, len(p.lost), p.kind != "checkpoint", p.peak_bytes))
    if larger:
        more = _larger(question, found)
    return Advice(
        device=question.device,
        limit_bytes=question.limit,
        peak_bytes=question.peak,
        first_bytes=question.before.by_device(question.device).first_bytes,
        proposals=found,
        untried=question.untried,
        larger=more,
        batch=question.batch[0],
    )


def device_and_limit(before: Estimate, limit: int | None, device: Any) -> tuple[str, int]:
    """Return the name of the device that is meant, and its limit."""
    known = {d.device: d for d in before.devices}
    if device is not None:
        name = str(as_device(device))
        if name not in known:
            raise ValueError(f"advise: the step uses no {name}; it uses {', '.join(known)}.")
    else:
        limited = [d.device for d in before.devices if d.limit_bytes is not None]
        name = limited[0] if limited and limit is None else before.devices[0].device
    allowed = known[name].limit_bytes if limit is None else limit
    if allowed is None:
        raise ValueError(
            f"advise needs to know what fits {name}: pass limit=bytes, or call "
            "lowtide.set_memory_limit(bytes, device)."
        )
    return name, int(allowed)


# Parts of models


def _parts(question: Question) -> list[tuple[str, list[Any]]]:
    # (path, modules) of the top-level parts, those with most bytes; a list of modules, which
    # nobody calls, is its items.
    found = [
        (name, child, called(module))
        for name, root in question.roots.items()
        for child, module in root.named_children()
    ]
    largest = _largest(question, found)
    if len(largest) > MOST_PARTS:
        left = ", ".join(path for path, _ in largest[MOST_PARTS:])
        question.untried[left] = "these parts hold less than the others"
    return largest[:MOST_PARTS]


def _rows(question: Question) -> list[tuple[str, list[Any]]]:
    # The same of modules alike, one after the other, further inside: a stack of layers.
    found = []
    for name, root in question.roots.items():
        for path, module in root.named_modules():
            items = list(module.children())
            alike = len(items) > 1 and len({type(m) for m in items}) == 1
            apart = "." not in path and called(module) != [module]  # that is a part already
            if path and alike and not apart and hasattr(module, "__getitem__"):
                found.append((name, path, [c for m in items for c in called(m)]))
    return _largest(question, found)[:MOST_ROWS]


def _largest(
    question: Question, parts: list[tuple[str, str, list[Any]]]
) -> list[tuple[str, list[Any]]]:
    # Those with parameters, by the bytes they hold at the peak.
    table = question.before.at_peak("module", device=question.device).as_dict()
    found: list[tuple[int, str, list[Any]]] = []
    for root, child, modules in parts:
        path = child if len(question.roots) == 1 else f"{root}.{child}"
        held = sum(n for m, n in table.items() if f"{m}.".startswith((f"{path}.", f"{child}.")))
        if any(True for m in modules for _ in m.parameters()):
            found.append((-held, path, modules))
    found.sort(key=lambda part: part[0])  # stable: of equal ones, the first
    return [(path, modules) for _, path, modules in found]


def _recomputed(question: Question) -> Iterator[Proposal]:
    if not question.reached:  # an evaluation keeps no activations
        return
    parts = _parts(question)
    for path, modules in parts + _rows(question):
        each = f"each of {path}" if len(modules) > 1 else path
        changes: list[Change] = [Checkpointed("", m) for m in modules]
        code = paste.checkpoint(question.roots, [modules])
        found = question.attempt("checkpoint", f"checkpoint of {each}", changes, code=code)
        if found is not None and found.saved_bytes > 0:
            yield found
    if len(parts) > 1:
        changes = [Checkpointed("", m) for _, modules in parts for m in modules]
        words = f"checkpoint of {listed([path for path, _ in parts])}"
        code = paste.checkpoint(question.roots, [modules for _, modules in parts])
        found = question.attempt("checkpoint", words, changes, code=code)
        if found is not None:
            yield found


def _without_gradients(question: Question) -> Iterator[Proposal]:
    parts = _parts(question)
    if not question.reached:  # an evaluation: nothing would be lost
        parts = [*((name, [root]) for name, root in question.roots.items()), *parts]
    for path, modules in parts:
        if not any(p.requires_grad for m in modules for p in m.parameters()):
            continue
        words = f"no_grad in {path}"
        code = paste.no_grad(question.roots, modules)
        found = question.attempt("no_grad", words, [NoGrad("", m) for m in modules], code=code)
        if found is None:
            continue
        if question.reached and len(found.lost) == len(question.reached):
            question.untried[words] = "no parameter would receive a gradient"
        else:
            yield found


def _narrower(question: Question) -> Iterator[Proposal]:
    wholes = [(name, [root]) for name, root in question.roots.items()]
    for path, modules in wholes + _parts(question):
        floats = [p for m in modules for p in m.parameters() if p.is_floating_point()]
        if any(p.dtype.itemsize > bfloat16.itemsize for p in floats):
            changes: list[Change] = [Narrow("", m, bfloat16, question.whole(m)) for m in modules]
            code = paste.narrower(question.roots, modules)
            found = question.attempt("dtype", f"bfloat16 in {path}", changes, code=code)
            if found is not None:
                yield found


def _in_backward(question: Question) -> Iterator[Proposal]:
    for name, optimizer in question.optimizers.items():
        words = f"{name} steps in backward"
        code = f"lowtide.optim.fuse_into_backward({name})"
        found = question.attempt("optimizer", words, [FusedOptimizer(name, optimizer)], code=code)
        if found is not None:
            yield found


def _together(question: Question, found: list[Proposal]) -> Iterator[Proposal]:
    # The best of each kind that loses no gradient, two and more at a time.
    best: list[Proposal] = []
    for kind in ("checkpoint", "optimizer", "dtype"):
        useful = [p for p in found if p.kind == kind and p.saved_bytes > 0 and not p.lost]
        best += [min(useful, key=lambda p: p.peak_bytes)] if useful else []
    for count in range(2, len(best) + 1):
        for chosen in combinations(best, count):
            changes = [c for p in chosen for c in question.made[p.change]]
            code = "\n".join(p.code for p in reversed(chosen))
            words = " + ".join(p.change for p in chosen)
            together = question.attempt("several", words, changes, code=code)
            if together is not None and together.peak_bytes < min(p.peak_bytes for p in chosen):
                yield together


# The batch


def _smaller(question: Question) -> Iterator[Proposal]:
    size = question.batch[0]
    if size < 2:
        question.untried["a smaller batch"] = (
            "no tensors with a common leading dimension among the step's arguments and variables"
        )
        return
    found = fitting_batch(question, [], "batch", 0, 0, size, question.peak)
    if found is not None:
        yield found


def _larger(question: Question, found: list[Proposal]) -> list[Proposal]:
    # The step as it is and with the changes that save most, each with the most rows that fit.
    size = question.batch[0]
    if size < 1:
        question.untried.setdefault(
            "a larger batch",
            "no tensors with a common leading dimension among the step's arguments and variables",
        )
        return []
    ways: list[tuple[str, list[Change], int, str]] = []
    if question.peak <= question.limit:
        ways.append(("", [], question.peak, ""))
    helpful = [p for p in found if p.fits and p.saved_bytes > 0 and not p.lost and p.batch is None]
    helpful.sort(key=lambda p: p.peak_bytes)
    exact = [p for p in helpful if p.time is not None]  # of the same dtype as before
    narrow = [p for p in helpful if p.time is None]
    for p in [*exact[:MOST_LARGER], *narrow[:MOST_LARGER]]:
        ways.append((p.change, question.made[p.change], p.peak_bytes, p.code))
    more: list[Proposal] = []
    for words, changes, peak, code in ways:
        best = fitting_batch(question, changes, "larger batch", size, peak, 0, 0, words, code)
        if best is not None and best.fits and best.batch is not None and best.batch > size:
            more.append(best)
    return sorted(more, key=lambda p: -(p.batch or 0))


def fitting_batch(
    question: Question,
    changes: list[Change],
    kind: str,
    low: int,
    low_peak: int,
    high: int,
    high_peak: int,
    words: str = "",
    code: str = "",
) -> Proposal | None:
    """Find the largest batch that fits.

    Args:
        question: Of which step.
        changes: What else is changed.
        kind: Of the proposal.
        low: A number of rows that fits; 0 if none is known.
        low_peak: The peak with it.
        high: One that does not fit; 0 if none is known.
        high_peak: The peak with it.
        words: What else is changed, in words.
        code: And as code.

    Returns:
        The largest found; if none fits, the smallest tried; None if the step does not run so.
    """
    size, named = question.batch
    best: Proposal | None = None
    first, each = 1, 0.0  # bytes of a further row, once two that fit are known
    for tries in range(MOST_SIZES):
        if high and high - low < 2:
            break
        if low and not high:  # twice as many; then as a straight line through both says
            line = low + int((question.limit - low_peak) / each) if each > 0 else 2 * low
            n = min(max(line, low + 1), FURTHER * low)
        else:
            n = _next_size(question.limit, low, low_peak, high, high_peak, first, tries)
        said = f"batch of {n} instead of {size} ({listed(list(named))})"
        said = f"{words} + {said}" if words else said
        lines = "\n".join(filter(None, (code, paste.batch(named, size, n, question.drawn))))
        found = question.attempt(kind, said, [*changes, question.resized(n)], n, lines)
        if found is None:
            if n > 1 or size == 2:
                return best
            first = 2  # normalization over a batch wants two
            del question.untried[said]
        elif found.fits:
            each = (found.peak_bytes - low_peak) / (n - low)
            low, low_peak, best = n, found.peak_bytes, found
        else:
            high, high_peak = n, found.peak_bytes
            best = best or found
    return best


def _next_size(
    limit: int, low: int, low_peak: int, high: int, high_peak: int, first: int, tries: int
) -> int:
    # Bytes mostly grow in proportion, so a straight line finds the place; halves if not.
    if low == 0:
        return min(first, high - 1)
    if tries < MOST_SIZES // 2:
        line = (limit - low_peak) * (high - low) // max(high_peak - low_peak, 1)
        return min(max(low + line, low + 1), high - 1)
    return (low + high) // 2


CHANGES: tuple[Callable[[Question], Iterator[Proposal]], ...] = (
    _recomputed,
    _without_gradients,
    _narrower,
    _in_backward,
    _smaller,
)
