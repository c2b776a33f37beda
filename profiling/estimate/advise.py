"""Advice on memory: which change makes a step fit, and which makes room for a larger batch.

:func:`advise` estimates the step (``estimate.py``), and once more for each change that could
help, with the machinery of :func:`~lowtide.profiling.compare`: the change is made in a forked copy
of the process, and the copy's ledger is read. So a figure is what the change gives when it is made
for real, to the byte, in the first step and in later ones. Changes are tried one at a time; then
the best of each kind together (``CHANGES``, ``_together``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from ...framework.device import device as as_device
from ...framework.dtypes import bfloat16
from ...framework.memory.sizes import as_bytes
from . import suggested_code
from .advice_request import AdviceRequest
from .batch_search import larger_batches, smaller_batch
from .batches import Resized, batch_of
from .budget_advice import planner_of, within_budget
from .changes import Change, Checkpointed, FusedOptimizer, Narrow, NoGrad
from .estimate import Estimate, check_callable
from .fork_sandbox import run_apart
from .proposals import Advice, Proposal, listed
from .targets import called, models_of, optimizers_of, parameters_of
from .what_if import with_changes

MOST_PARTS = 8  # of a model that are tried, those with most bytes
MOST_ROWS = 4  # of modules alike, inside of parts
ORDER = ("budget", "checkpoint")  # kinds of what fits and loses nothing, the first ones


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

    The step is not computed, and nothing of the program changes; see :func:`estimate`. If the step
    does not fit, these are tried, one at a time:

    - a byte budget of the limit: ``memory_budget``, or a plan of :func:`lowtide.fit` if that
      computes less; if the step does not run within it, the budget together with an optimizer in
      backward or with bfloat16, or the least budget found that does;
    - activation checkpointing of each top-level part of the models that the step reaches (of a
      list of modules: of each item), of all of these together, and of each module of a stack of
      several alike further inside;
    - each such part that receives no gradient under ``no_grad``; of a step that makes no gradients,
      each model as well;
    - each of them, and each model, in bfloat16;
    - each optimizer that the step reaches, in backward (``optim.fuse_into_backward``);
    - a smaller batch: the first ``n`` rows of the tensors that share a leading dimension, for the
      largest ``n`` that fits (a smaller one, if bytes grow so unevenly that eight estimates do not
      find it). They are the step's tensor arguments, defaults too; without any, the tensors that
      it closes over or finds among its globals, parameters and buffers excepted;
    - the best of these together, as far as they lose no gradient.

    The first step and those after it are judged, by the larger of their peaks.

    It costs an estimate for each: up to 46 for a model, and some 20 to plan, which also times
    kernels that this machine has not timed yet. Call it outside the ``except`` block that caught a
    ``MemoryLimitError``: the error's traceback keeps the failed step's tensors.

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
    request = AdviceRequest(
        run=run,
        roots=roots,
        optimizers=optimizers_of(step, args, kwargs),
        batch=batch,
        resized=lambda n: Resized(tensors, n),
        device=name,
        limit=allowed,
        before=before,
        reached=reached,
        plan=planner_of(step, args, kwargs),
        call=suggested_code.call(step, args, kwargs),
    )
    return answer(request, larger)


def answer(request: AdviceRequest, larger: bool) -> Advice:
    """Try the changes on a step, and look for larger batches."""
    found: list[Proposal] = []
    more: list[Proposal] = []
    fits = request.peak <= request.limit
    if larger or not fits:
        for tried in CHANGES:
            if tried is not smaller_batch or not fits:
                found += tried(request)
        found += _together(request, found)
        found += within_budget(request, found)
        found.sort(key=lambda p: (not p.fits, len(p.lost), _rank(p.kind), p.peak_bytes))
    if larger:
        more = larger_batches(request, found)
    return Advice(
        device=request.device,
        limit_bytes=request.limit,
        peak_bytes=request.peak,
        first_bytes=request.before.by_device(request.device).first_bytes,
        proposals=found,
        untried=request.untried,
        larger=more,
        batch=request.batch[0],
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


def _parts(request: AdviceRequest) -> list[tuple[str, list[Any]]]:
    # (path, modules) of the top-level parts, those with most bytes; a list of modules, which
    # is never called, is its items.
    found = [
        (name, child, called(module))
        for name, root in request.roots.items()
        for child, module in root.named_children()
    ]
    largest = _largest(request, found)
    if len(largest) > MOST_PARTS:
        left = ", ".join(path for path, _ in largest[MOST_PARTS:])
        request.untried[left] = "these parts hold less than the others"
    return largest[:MOST_PARTS]


def _rows(request: AdviceRequest) -> list[tuple[str, list[Any]]]:
    # The same of modules alike, one after the other, further inside: a stack of layers.
    found = []
    for name, root in request.roots.items():
        for path, module in root.named_modules():
            items = list(module.children())
            alike = len(items) > 1 and len({type(m) for m in items}) == 1
            apart = "." not in path and called(module) != [module]  # that is a part already
            if path and alike and not apart and hasattr(module, "__getitem__"):
                found.append((name, path, [c for m in items for c in called(m)]))
    return _largest(request, found)[:MOST_ROWS]


def _largest(
    request: AdviceRequest, parts: list[tuple[str, str, list[Any]]]
) -> list[tuple[str, list[Any]]]:
    # Those with parameters that the step calls, by the bytes they hold at the peak.
    table = request.before.at_peak("module", device=request.device).as_dict()
    used = _used(request)
    found: list[tuple[int, str, list[Any]]] = []
    for root, child, modules in parts:
        if root not in used:
            continue
        path = child if len(request.roots) == 1 else f"{root}.{child}"
        held = sum(n for m, n in table.items() if f"{m}.".startswith((f"{path}.", f"{child}.")))
        if any(True for m in modules for _ in m.parameters()):
            found.append((-held, path, modules))
    found.sort(key=lambda part: part[0])  # stable: of equal ones, the first
    return [(path, modules) for _, path, modules in found]


def _used(request: AdviceRequest) -> set[str]:
    # The models that the step trains or calls, not a copy for an average of the weights.
    owners = request.before.recording.owners
    met = [f".{o.module}." for o in owners if o.op != "before"]
    names = [name for name, _ in parameters_of(request.roots)]
    several, reached = len(request.roots) > 1, set(request.reached) & set(names)
    return {
        root
        for root in request.roots
        if not several
        or any(name.startswith(f"{root}.") for name in reached)
        or any(f".{root}." in path for path in met)
    }


def _recomputed(request: AdviceRequest) -> Iterator[Proposal]:
    if not request.reached:  # an evaluation keeps no activations
        return
    parts = _parts(request)
    for path, modules in parts + _rows(request):
        each = f"each of {path}" if len(modules) > 1 else path
        changes: list[Change] = [Checkpointed("", m) for m in modules]
        code = suggested_code.checkpoint(request.roots, [modules])
        found = request.attempt("checkpoint", f"checkpoint of {each}", changes, code=code)
        if found is not None and found.saved_bytes > 0:
            yield found
    if len(parts) > 1:
        changes = [Checkpointed("", m) for _, modules in parts for m in modules]
        words = f"checkpoint of {listed([path for path, _ in parts])}"
        code = suggested_code.checkpoint(request.roots, [modules for _, modules in parts])
        found = request.attempt("checkpoint", words, changes, code=code)
        if found is not None:
            yield found


def _without_gradients(request: AdviceRequest) -> Iterator[Proposal]:
    parts = _parts(request)
    reached = set(request.reached)
    trained = {id(p) for name, p in parameters_of(request.roots) if name in reached}
    if not request.reached:  # an evaluation: nothing would be lost
        parts = [*((name, [root]) for name, root in request.roots.items()), *parts]
    for path, modules in parts:
        if not any(p.requires_grad for m in modules for p in m.parameters()):
            continue
        if trained & {id(p) for m in modules for p in m.parameters()}:
            continue  # it is there to be trained
        words = f"no_grad in {path}"
        code = suggested_code.no_grad(request.roots, modules)
        found = request.attempt("no_grad", words, [NoGrad("", m) for m in modules], code=code)
        if found is not None and not found.lost:
            yield found


def _narrower(request: AdviceRequest) -> Iterator[Proposal]:
    used = _used(request)
    wholes = [(name, [root]) for name, root in request.roots.items() if name in used]
    for path, modules in wholes + _parts(request):
        floats = [p for m in modules for p in m.parameters() if p.is_floating_point()]
        if any(p.dtype.itemsize > bfloat16.itemsize for p in floats):
            changes: list[Change] = [Narrow("", m, bfloat16, request.whole(m)) for m in modules]
            code = suggested_code.narrower(request.roots, modules)
            found = request.attempt("dtype", f"bfloat16 in {path}", changes, code=code)
            if found is not None:
                yield found


def _in_backward(request: AdviceRequest) -> Iterator[Proposal]:
    for name, optimizer in request.optimizers.items():
        words = f"{name} steps in backward"
        code = f"lowtide.optim.fuse_into_backward({name})"
        found = request.attempt("optimizer", words, [FusedOptimizer(name, optimizer)], code=code)
        if found is not None:
            yield found


def _together(request: AdviceRequest, found: list[Proposal]) -> Iterator[Proposal]:
    # The best of each kind that loses no gradient, two and more at a time.
    best: list[Proposal] = []
    for kind in ("checkpoint", "optimizer", "dtype"):
        useful = [p for p in found if p.kind == kind and p.saved_bytes > 0 and not p.lost]
        best += [min(useful, key=lambda p: p.peak_bytes)] if useful else []
    for count in range(2, len(best) + 1):
        for chosen in combinations(best, count):
            changes = [c for p in chosen for c in request.made[p.change]]
            code = "\n".join(p.code for p in reversed(chosen))
            words = " + ".join(p.change for p in chosen)
            together = request.attempt("several", words, changes, code=code)
            if together is not None and together.peak_bytes < min(p.peak_bytes for p in chosen):
                yield together


def _rank(kind: str) -> int:
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


CHANGES: tuple[Callable[[AdviceRequest], Iterator[Proposal]], ...] = (
    _recomputed,
    _without_gradients,
    _narrower,
    _in_backward,
    smaller_batch,
)
