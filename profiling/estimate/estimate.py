"""Memory estimate of a step, from running it with fake storages and no kernels.

:func:`estimate` runs the step itself, not a model of it: in a forked copy of the process
(``fork_sandbox.py``) whose kernels do nothing (``fake_kernels.py``). Modules, optimizers, hooks,
loaders and whatever else the step closes over are the caller's own, so there is nothing to trace
and nothing that could differ; and because pool and ledger do what they always do, the figures are
the real step's to the byte. Nothing of the caller's changes: it all happens to the copy.

What it costs: the page tables of the process, and Python's share of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...framework.devices import live_backends, on_new_backend
from ...framework.distributed.initialization import imagine
from ...framework.memory.ledger import NO_LIMIT, ROLES, describe, format_bytes
from ..profile import Profile
from ..profiler import MemoryProfiler
from ..record.recording import Recording
from . import fake_kernels
from .fork_sandbox import run_apart
from .steady_state import LaterSteps, end_workers, held, split


@dataclass(frozen=True)
class DeviceEstimate:
    """The estimated memory of a step on one device.

    Attributes:
        device: Its name.
        peak_bytes: Highest live bytes of the ledger, what lived before the step included.
        peak_roles: The same bytes by role.
        first_bytes: The peak of the first step: of a program that makes several, the peak until
            its first optimizer step has ended; else ``peak_bytes``.
        steady_bytes: The peak of later steps, when the optimizer's state exists.
        steady_roles: The same bytes by role.
        start_bytes: Live bytes before the step.
        end_bytes: Live bytes after it.
        reserved_bytes: Highest bytes that the pool holds. On cuda 0: its pool is CuPy's.
        allocations: Storages made.
        limit_bytes: The limit set on the device, or None. It does not stop an estimate.
    """

    device: str
    peak_bytes: int
    peak_roles: dict[str, int]
    first_bytes: int
    steady_bytes: int
    steady_roles: dict[str, int]
    start_bytes: int
    end_bytes: int
    reserved_bytes: int
    allocations: int
    limit_bytes: int | None

    @property
    def needed_bytes(self) -> int:
        """The larger peak, of this step or of later ones."""
        return max(self.peak_bytes, self.steady_bytes)

    @property
    def fits(self) -> bool:
        """True if this step and later ones stay within the limit set on the device."""
        return self.limit_bytes is None or self.needed_bytes <= self.limit_bytes


class Estimate(Profile):
    """The estimate of a step, with the queries of a profile: ``at_peak``, ``timeline``, ``saved``.

    Plain data: no tensor is kept. Figures of the process are those of the copy.

    Attributes:
        devices: One :class:`DeviceEstimate` for each device in use, the fullest first; those last
            of which the step takes nothing.
        flops_by_op: Operations of the step by op, backward included, as the ops declare them;
            compiled optimizer loops are not counted.
        guesses: Where the step asked for a value that only computing would give, and got a guess
            (see :func:`estimate`); with how often. If the step decides by such a value, the
            estimate is of that decision.
        seconds: How long the step took without kernels.
        not_repeated: Why the step could not be run again to see what later ones take; "" if it
            was, or if it leaves behind what it found.
        work: The time of its kernels, as bytes that would take as long to move: those moved, or for
            a kernel that computes much with each, its operations. For comparison between steps.
        later_flops: Operations of a later step.
        later_work: The work of a later step.
        steady: The profile of a later step, for the same queries; this estimate itself if the step
            leaves behind what it found.
        world: (rank, number of ranks) that were asked for; None for those of this process.
    """

    def __init__(
        self,
        recording: Recording,
        devices: list[DeviceEstimate],
        flops_by_op: dict[str, int],
        guesses: dict[str, int],
        seconds: float,
        not_repeated: str = "",
        steady: Profile | None = None,
        work: float = 0.0,
        later: tuple[int, float] | None = None,
        world: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(recording)
        self.world = world
        self.devices = devices
        self.flops_by_op = flops_by_op
        self.guesses = guesses
        self.seconds = seconds
        self.not_repeated = not_repeated
        self.steady: Profile = self if steady is None else steady
        self.work = work
        self.later_flops, self.later_work = (self.flops, work) if later is None else later

    @property
    def peak_bytes(self) -> int:
        """The estimated peak of the step in bytes, on the first device of ``devices``."""
        return self.devices[0].peak_bytes

    @property
    def first_bytes(self) -> int:
        """The estimated peak of the first step in bytes."""
        return self.devices[0].first_bytes

    @property
    def steady_bytes(self) -> int:
        """The estimated peak of later steps, when the optimizer's state exists."""
        return self.devices[0].steady_bytes

    def by_device(self, device: str | None = None) -> DeviceEstimate:
        """Return the figures of a device; of the first of ``devices`` by default."""
        return next(d for d in self.devices if device in (None, d.device))

    def needed_bytes(self, device: str | None = None) -> int:
        """Return the larger peak on a device, of the first step or of later ones."""
        return self.by_device(device).needed_bytes

    def highest(self, device: str | None = None) -> Profile:
        """Return the profile of the step with the larger peak on a device: this or a later one."""
        d = self.by_device(device)
        return self if d.peak_bytes >= d.steady_bytes else self.steady

    @property
    def peak_roles(self) -> dict[str, int]:
        """The estimated peak in bytes by role."""
        return self.devices[0].peak_roles

    @property
    def flops(self) -> int:
        """The number of floating point operations of the step, backward included."""
        return sum(self.flops_by_op.values())

    @property
    def fits(self) -> bool:
        """True if the estimated peaks are within the limits set on the devices."""
        return all(d.fits for d in self.devices)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from ..report import notebook

        return notebook.estimate(self)

    def __str__(self) -> str:
        lines = []
        if self.world is not None:
            lines.append(f"rank {self.world[0]} of {self.world[1]}:")
        for d in self.devices:
            roles = describe({r: n for r, n in d.peak_roles.items() if n})
            lines.append(f"{d.device}: peak {format_bytes(d.peak_bytes)} ({roles})")
            lines.append(
                f"  {format_bytes(d.start_bytes)} before, {format_bytes(d.end_bytes)} after; "
                f"{d.allocations} allocations; pool {format_bytes(d.reserved_bytes)}"
            )
            if d.steady_bytes != d.first_bytes:
                lines.append(
                    f"  first step: peak {format_bytes(d.first_bytes)}; "
                    f"later steps: peak {format_bytes(d.steady_bytes)}"
                )
            if d.steady_bytes > d.peak_bytes:
                roles = describe({r: n for r, n in d.steady_roles.items() if n})
                lines.append(f"  in later steps: {roles}")
            if d.limit_bytes is not None:
                verdict = "fits" if d.fits else "does not fit"
                lines.append(f"  {verdict} the limit of {format_bytes(d.limit_bytes)}")
        lines.append(f"{self.flops / 1e9:.3f} GFLOP; estimated in {self.seconds:.2f} s")
        if self.not_repeated:
            lines.append(f"  later steps are not known: {self.not_repeated}")
        lines += [f"  unknown, guessed: {what} ({n}x)" for what, n in self.guesses.items()]
        return "\n".join(lines)


def estimate(
    step: Callable[..., Any],
    /,
    *args: Any,
    world_size: int | None = None,
    rank: int = 0,
    **kwargs: Any,
) -> Estimate:
    """Estimate the memory and FLOPs of ``step(*args, **kwargs)`` without computing it.

    The step runs in a forked copy of the process with every kernel left out, so what it would
    change (parameters, gradients, optimizer state, generators, loaders, files) stays as it is. Its
    output is thrown away. A memory limit is lifted meanwhile; ``fits`` says whether it is kept.

    What tensors contain is known if it was there before the step; also small integers, truth
    values and masks that follow from that. Else ``item()``, ``float()``, ``bool()``, ``tolist()``
    and ``numpy()`` give a guess, which ``guesses`` lists: 1.0, 0, or False; no number is NaN or
    infinite. Where a truth value decides whether the program raises an exception, as in
    ``assert``, it is the one with which it does not. Every thousandth question of a line is
    answered the other way, for a loop may wait for it.

    Args:
        step: Any function: a training step, an evaluation, an epoch.
        *args: What to call it with.
        world_size: Imagine so many processes; those of ``lowtide.distributed`` by default. Only
            what the step does with them counts: reducing gradients, keeping a part of the state.
        rank: Which of them this process then is.
        **kwargs: Arguments of the step, by name.

    In a group of processes each rank estimates its own step, without the others.

    A step that leaves other bytes than it found, as the first one does, which makes gradients and
    the optimizer's state, runs again: ``steady_bytes`` is what later ones take.

    Returns:
        An :class:`Estimate`; ``peak_bytes`` equals the ledger's peak of the real step begun from
        the same state, ``needed_bytes()`` the highest of the steps from there on.

    Raises:
        Exception: What the step raises, with the copy's traceback as a note.
        NotImplementedError: An op's result has a shape that depends on values that are unknown;
            or the system cannot fork.
        ValueError: The rank does not exist in a world of that size.

    Example:
        >>> import lowtide as lt
        >>> x = lt.ones(1000, requires_grad=True)
        >>> found = lt.profiling.estimate(lambda: (x * x).sum().backward())
        >>> found.peak_bytes - found.devices[0].start_bytes, x.grad
        (8008, None)
    """
    check_callable("estimate", step)
    world = world_of(rank, world_size)
    return run_apart(lambda: imagined(step, args, kwargs, world=world))


def world_of(rank: int, world_size: int | None) -> tuple[int, int] | None:
    """Return (rank, world_size), or None for the processes there are.

    Raises:
        ValueError: The rank does not exist, or is given without ``world_size``.
    """
    if world_size is None:
        if rank != 0:
            raise ValueError(f"estimate: rank {rank} of how many? Give world_size too.")
        return None
    if not 0 <= rank < world_size:
        raise ValueError(
            f"estimate: rank {rank} of world_size {world_size} does not exist; ranks are 0 to "
            f"{world_size - 1}."
        )
    return rank, world_size


def check_callable(name: str, step: Any) -> None:
    """Raise an error for a result in place of the function that makes it.

    Raises:
        TypeError: ``step`` cannot be called.
    """
    if not callable(step):
        raise TypeError(
            f"{name} takes a function, and calls it without computing anything; got a "
            f"{type(step).__name__}, a result that was computed already. Pass {name}(model, x) in "
            f"place of {name}(model(x)), or {name}(lambda: ...)."
        )


def imagined(
    step: Callable[..., Any],
    args: Any,
    kwargs: Any,
    before: Any = None,
    again: bool = True,
    world: tuple[int, int] | None = None,
) -> Estimate:
    """Run a step without kernels in this process, which must be a forked copy.

    Args:
        step: The step.
        args: Its arguments.
        kwargs: Its named arguments.
        before: Called first; what it does is not counted.
        again: Whether to run it again, to see what later steps take; if not, it is a program with
            its later steps in it.
        world: (rank, number of ranks) to imagine; None for what there is.
    """
    limits = {str(be.device): be.ledger.limit for be in live_backends()}
    executor = fake_kernels.begin()
    if world is not None:
        imagine(*world)
    if before is not None:
        before()
        executor.forget()
    start: dict[int, tuple[int, int]] = {}

    def watch(be: Any) -> None:
        be.ledger.reset_peak()
        be.pool.reset_peak()
        start[id(be)] = be.ledger.live, be.ledger.allocations

    for be in live_backends():
        be.ledger.observers = ()  # who listens in the original hears of nothing
        watch(be)
    on_new_backend.append(watch)
    held_before = held()
    began = time.perf_counter()
    try:
        with MemoryProfiler() as prof:
            step(*args, **kwargs)
    except BaseException as error:
        if executor.guesses:
            asked = "; ".join(f"{what} ({n}x)" for what, n in executor.guesses.items())
            error.add_note(
                "An estimate computes no values. Those that the step asked for were guessed, which "
                f"may be why it failed: {asked}"
            )
        raise
    finally:
        end_workers()
    seconds = time.perf_counter() - began
    flops, guesses, work = dict(executor.flops), dict(executor.guesses), executor.work
    found = [figures_of(be, *start[id(be)], limits) for be in live_backends()]
    later = LaterSteps(executor)
    if again:
        later.repeat(step, args, kwargs, held_before, prof.recording)
        found = [_with_later(d, later) for d in found]
    else:
        found = [split_steps(d, prof.recording) for d in found]
    found.sort(key=lambda d: (not d.allocations, -d.needed_bytes))
    return Estimate(
        prof.recording,
        found,
        flops,
        guesses,
        seconds,
        later.why,
        later.profile,
        work,
        later.costs,
        world,
    )


def _with_later(d: DeviceEstimate, later: LaterSteps) -> DeviceEstimate:
    if d.device not in later.peaks:
        return d
    nbytes, roles = later.peaks[d.device]
    return replace(d, steady_bytes=nbytes, steady_roles=roles)


def split_steps(d: DeviceEstimate, recording: Recording) -> DeviceEstimate:
    """Return the figures of a program that went through several steps: the first, the others."""
    first, later = split(recording, d.device) or (d.peak_bytes, d.peak_bytes)
    return replace(d, first_bytes=first, steady_bytes=later)


def figures_of(be: Any, live: int, allocations: int, limits: dict[str, int]) -> DeviceEstimate:
    """Return a device's figures since ``live`` bytes lived and so many allocations were made."""
    ledger = be.ledger
    limit = min(ledger.limit, limits.get(str(be.device), NO_LIMIT))  # the step may set one
    roles = dict(zip(ROLES, ledger.peak_roles, strict=True))
    return DeviceEstimate(
        device=str(be.device),
        peak_bytes=ledger.peak,
        peak_roles=roles,
        first_bytes=ledger.peak,
        steady_bytes=ledger.peak,
        steady_roles=roles,
        start_bytes=live,
        end_bytes=ledger.live,
        reserved_bytes=0 if be.device.type == "cuda" else be.pool.peak,
        allocations=ledger.allocations - allocations,
        limit_bytes=None if limit == NO_LIMIT else limit,
    )
