"""Advice on running out of memory: which change makes a step fit.

:func:`advise` estimates the step (``estimate.py``), and once more for each change that could
help, with the machinery of :func:`~lowtide.profiling.compare`: the change is made in a forked copy
of the process, and the copy's ledger is read. So a figure is what the change gives when it is made
for real, to the byte. Changes are tried one at a time; what two of them save together is a
question to ``compare``.

What can be tried is the list ``CHANGES``.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ...framework.device import device as as_device
from ...framework.dtypes import bfloat16
from ...framework.memory.ledger import format_bytes
from ...framework.memory.sizes import as_bytes
from ...framework.tensor import Tensor
from .estimate import Estimate, check_callable
from .fork_sandbox import run_apart
from .targets import Models, called, is_module, models_of, values_of
from .what_if import _Change, _Checkpointed, _Narrow, _NoGrad, _with

MOST_PARTS = 8  # of a model that are tried, those with most bytes
MOST_ROWS = 4  # of modules alike, inside of parts
MOST_SIZES = 8  # of batches that are tried
NOTHING_LOST = "no parameter loses its gradient"


@dataclass(frozen=True)
class Proposal:
    """One change that was tried, and its estimated effect.

    Attributes:
        kind: ``checkpoint``, ``no_grad``, ``dtype`` or ``batch``.
        change: What was changed, in words.
        peak_bytes: Highest live bytes of the changed step.
        saved_bytes: How much lower that is; negative if it is higher.
        fits: Whether the limit allows it.
        lost: Names of the parameters that receive a gradient before and none after.
        batch: The number of examples; None if that is not what was changed.
        flops: Operations added, as a share of those of the step as it is.
    """

    kind: str
    change: str
    peak_bytes: int
    saved_bytes: int
    fits: bool
    lost: list[str] = field(default_factory=list)
    batch: int | None = None
    flops: float = 0.0

    @property
    def cost(self) -> str:
        """Describe what the change costs: extra compute, copies, a smaller batch."""
        if self.kind == "checkpoint":
            return f"{self.flops:.1%} more operations"
        if self.kind == "batch":
            return "fewer examples a step"
        if self.kind == "dtype":
            return "values have 8 significant bits"
        return f"no gradient of {_listed(self.lost)}" if self.lost else NOTHING_LOST


@dataclass(frozen=True)
class Advice:
    """The result of :func:`advise`: whether a step fits, and the changes that were tried.

    Attributes:
        device: The device whose bytes are meant.
        limit_bytes: What may live there.
        peak_bytes: Highest live bytes of the step as it is.
        proposals: :class:`Proposal` each: first what fits and loses least, last what does not fit.
            Empty if the step fits.
        untried: What could not be tried or makes no sense, with the reason.
    """

    device: str
    limit_bytes: int
    peak_bytes: int
    proposals: list[Proposal]
    untried: dict[str, str]

    @property
    def fits(self) -> bool:
        """True if the step fits without a change."""
        return self.peak_bytes <= self.limit_bytes

    @property
    def fitting(self) -> list[Proposal]:
        """Return the proposals that fit."""
        return [p for p in self.proposals if p.fits]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers that JSON can hold."""
        return {
            "device": self.device,
            "limit_bytes": self.limit_bytes,
            "peak_bytes": self.peak_bytes,
            "fits": self.fits,
            "proposals": [
                {**vars(p), "lost": list(p.lost), "cost": p.cost} for p in self.proposals
            ],
            "untried": dict(self.untried),
        }

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from ..report import notebook

        return notebook.advice(self)

    def __str__(self) -> str:
        verb = "fits" if self.fits else "does not fit"
        over = abs(self.peak_bytes - self.limit_bytes)
        lines = [
            f"The step {verb} {self.device}: peak {format_bytes(self.peak_bytes)}, limit "
            f"{format_bytes(self.limit_bytes)}, {format_bytes(over)} "
            f"{'to spare' if self.fits else 'too much'}."
        ]
        if self.fits:
            return lines[0]
        useful = [p for p in self.proposals if p.saved_bytes > 0]
        rows = [("change", "fits", "peak", "saved", "costs")] + [
            (
                p.change,
                "yes" if p.fits else "no",
                format_bytes(p.peak_bytes),
                format_bytes(p.saved_bytes),
                p.cost,
            )
            for p in useful
        ]
        a, b, c, d = (max(len(row[k]) for row in rows) for k in range(4))
        lines += [f"  {r[0]:<{a}}  {r[1]:<{b}}  {r[2]:>{c}}  {r[3]:>{d}}  {r[4]}" for r in rows]
        useless = [p.change for p in self.proposals if p.saved_bytes <= 0]
        if useless:
            lines.append(f"  saves nothing: {', '.join(useless)}")
        if not self.fitting:
            lines.append("No single change fits; ask lowtide.profiling.compare about several.")
        lines += [f"  not tried: {what}: {why}" for what, why in self.untried.items()]
        return "\n".join(lines)


@dataclass
class _Question:
    # What the changes are tried on.
    step: Callable[..., Any]
    args: Any
    kwargs: Any
    roots: Models
    device: str
    limit: int
    before: Estimate
    reached: list[str]
    untried: dict[str, str] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        return self.before.peak(self.device).nbytes

    def whole(self, module: Any) -> bool:
        return any(module is root for root in self.roots.values())

    def attempt(
        self, kind: str, words: str, changes: list[_Change], batch: int | None = None
    ) -> Proposal | None:
        # The step with changes; None, and the reason noted, if it does not run so.
        try:
            after, still = run_apart(
                lambda: _with(self.step, self.args, self.kwargs, self.roots, changes)
            )
        except Exception as error:  # whatever the user's program raises when it is changed
            self.untried[words] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            return None
        peak = after.peak(self.device).nbytes
        kept = set(still)
        lost = [name for name in self.reached if name not in kept]
        more = after.flops / max(self.before.flops, 1) - 1
        fits = peak <= self.limit
        return Proposal(kind, words, peak, self.peak - peak, fits, lost, batch, more)


def advise(
    step: Callable[..., Any],
    /,
    *args: Any,
    limit: int | str | None = None,
    device: Any = None,
    model: Any = None,
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
    - a smaller batch: the first ``n`` rows of the tensors that share a leading dimension, for the
      largest ``n`` that fits (a smaller one, if bytes grow so unevenly that eight estimates do not
      find it). They are the step's tensor arguments; without any, the tensors that it closes over
      or finds among its globals, parameters and buffers excepted.

    It costs an estimate for each: up to 39 for a model. Call it outside the ``except`` block that
    caught a ``MemoryLimitError``: the error's traceback keeps the failed step's tensors.

    Args:
        step: As for :func:`estimate`.
        *args: What to call it with.
        limit: Bytes that may live on the device, or text such as "2GiB"; the limit set on it, if
            None.
        device: The device; if None, the fullest one that has a limit, or the fullest.
        model: The model, or a dict of names and models; what the step reaches, if None.
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
    before, reached = run_apart(lambda: _with(step, args, kwargs, roots, []))
    name, allowed = _limit(before, limit, device)
    question = _Question(step, args, kwargs, roots, name, allowed, before, reached)
    found: list[Proposal] = []
    if question.peak > allowed:
        for tried in CHANGES:
            found += tried(question)
        found.sort(key=lambda p: (not p.fits, len(p.lost), p.kind != "checkpoint", p.peak_bytes))
    return Advice(name, allowed, question.peak, found, question.untried)


def _limit(before: Estimate, limit: int | None, device: Any) -> tuple[str, int]:
    # The name of the device that is meant, and its limit.
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


def _parts(question: _Question) -> list[tuple[str, list[Any]]]:
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


def _rows(question: _Question) -> list[tuple[str, list[Any]]]:
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
    question: _Question, parts: list[tuple[str, str, list[Any]]]
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


def _recomputed(question: _Question) -> Iterator[Proposal]:
    if not question.reached:  # an evaluation keeps no activations
        return
    parts = _parts(question)
    for path, modules in parts + _rows(question):
        each = f"each of {path}" if len(modules) > 1 else path
        changes: list[_Change] = [_Checkpointed("", m) for m in modules]
        found = question.attempt("checkpoint", f"checkpoint of {each}", changes)
        if found is not None and found.saved_bytes > 0:
            yield found
    if len(parts) > 1:
        changes = [_Checkpointed("", m) for _, modules in parts for m in modules]
        words = f"checkpoint of {_listed([path for path, _ in parts])}"
        found = question.attempt("checkpoint", words, changes)
        if found is not None:
            yield found


def _without_gradients(question: _Question) -> Iterator[Proposal]:
    parts = _parts(question)
    if not question.reached:  # an evaluation: nothing would be lost
        parts = [*((name, [root]) for name, root in question.roots.items()), *parts]
    for path, modules in parts:
        if not any(p.requires_grad for m in modules for p in m.parameters()):
            continue
        words = f"no_grad in {path}"
        found = question.attempt("no_grad", words, [_NoGrad("", m) for m in modules])
        if found is None:
            continue
        if question.reached and len(found.lost) == len(question.reached):
            question.untried[words] = "no parameter would receive a gradient"
        else:
            yield found


def _narrower(question: _Question) -> Iterator[Proposal]:
    wholes = [(name, [root]) for name, root in question.roots.items()]
    for path, modules in wholes + _parts(question):
        floats = [p for m in modules for p in m.parameters() if p.is_floating_point()]
        if any(p.dtype.itemsize > bfloat16.itemsize for p in floats):
            changes: list[_Change] = [_Narrow("", m, bfloat16, question.whole(m)) for m in modules]
            found = question.attempt("dtype", f"bfloat16 in {path}", changes)
            if found is not None:
                yield found


# The batch


class _Shortened(_Change):
    """A change that cuts tensors to their first rows, for everything that holds them.

    What owned its bytes gives the rest of them back; a view stays a view.
    """

    met = True

    def __init__(self, tensors: list[Tensor], size: int) -> None:
        self.tensors, self.size = tensors, size
        self.words = f"batch of {size}"

    def make(self) -> None:
        for t in self.tensors:
            rows = t.detach()[: self.size]
            t.data = rows.clone() if t._storage.nbytes == t.nbytes else rows


def _smaller(question: _Question) -> Iterator[Proposal]:
    size, named = _batch(question)
    if size < 2:
        question.untried["a smaller batch"] = (
            "no tensors with a common leading dimension among the step's arguments and variables"
        )
        return
    tensors = list(named.values())
    whose = _listed(list(named))
    low, high = 0, size  # fits, if not 0; does not fit
    low_peak, high_peak = 0, question.peak
    best: Proposal | None = None
    first = 1
    for tries in range(MOST_SIZES):
        if high - low < 2:
            break
        # Bytes mostly grow in proportion, so a straight line finds the place; halves if not.
        if low == 0:
            n = min(first, high - 1)
        elif tries < MOST_SIZES // 2:
            line = (question.limit - low_peak) * (high - low) // max(high_peak - low_peak, 1)
            n = min(max(low + line, low + 1), high - 1)
        else:
            n = (low + high) // 2
        words = f"batch of {n} instead of {size} ({whose})"
        found = question.attempt("batch", words, [_Shortened(tensors, n)], n)
        if found is None:
            if n > 1 or size == 2:
                return
            first = 2  # normalization over a batch wants two
            del question.untried[words]
        elif found.fits:
            low, low_peak, best = n, found.peak_bytes, found
        else:
            high, high_peak = n, found.peak_bytes
            best = best or found
    if best is not None:
        yield best


def _batch(question: _Question) -> tuple[int, dict[str, Tensor]]:
    # The commonest leading dimension, and the tensors that have it, by name.
    own = {id(t) for root in question.roots.values() for t in _held(root)}
    named: dict[str, Tensor] = {}
    for name, value in _arguments(question):
        named.update(_tensors(name, value))
    named = {n: t for n, t in named.items() if _may_shrink(t, own)}
    if not named:
        for name, value in values_of(question.step, (), {}, set()):
            found = {n: t for n, t in _tensors(name, value) if _may_shrink(t, own)}
            named.update(found)
    sizes = Counter(t.shape[0] for t in named.values())
    if not sizes:
        return 0, {}
    size = max(sizes, key=lambda n: sizes[n])  # of equal ones, the first met
    chosen: dict[int, tuple[str, Tensor]] = {}
    for name, t in named.items():
        if t.shape[0] == size:
            chosen.setdefault(id(t), (name, t))
    return int(size), dict(chosen.values())


def _arguments(question: _Question) -> Iterator[tuple[str, Any]]:
    # With the names that the step has for them, if Python can tell.
    try:
        bound = inspect.signature(question.step).bind(*question.args, **question.kwargs)
    except (TypeError, ValueError):
        yield from ((f"args[{k}]", a) for k, a in enumerate(question.args))
        yield from question.kwargs.items()
    else:
        yield from bound.arguments.items()


def _held(root: Any) -> Iterator[Any]:
    yield from root.parameters()
    yield from root.buffers()


def _may_shrink(t: Tensor, own: set[int]) -> bool:
    return t.dim() > 0 and id(t) not in own and not t.requires_grad and t.shape[0] > 1


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, list | tuple):
        for k, v in enumerate(value):
            yield from _tensors(f"{name}[{k}]", v)
    elif isinstance(value, dict) and not is_module(value):
        for k, v in value.items():
            yield from _tensors(f"{name}[{k!r}]", v)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


CHANGES: tuple[Callable[[_Question], Iterator[Proposal]], ...] = (
    _recomputed,
    _without_gradients,
    _narrower,
    _smaller,
)
