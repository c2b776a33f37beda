"""A folder of numbered checkpoints in parts: all ranks save, and any number of ranks resumes.

A step is a folder in it with a file of each rank and an index (:mod:`.index`). What a rank shares
out or has like all others is written once. What each rank has for itself, such as its random
generators and the place in its data, is written by each.

The lowest rank decides what is there: it holds the lock of the folder, names the newest complete
step, and removes older ones. Before anything is restored, the ranks verify all files together, a
share each, and agree that every state fits.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...errors import SerializationError
from ...interrupts import defer_interrupts
from ...random.generator import generators_in_use
from ...serialization import background
from ...serialization.file_locks import lock_folder
from ...serialization.numbered_folder import NumberedFolder
from ...serialization.restore import ends_of
from ..objects import all_gather_object
from ..process_group import GroupMember, ProcessGroup, resolve
from .index import NAME, read_index
from .reading import (
    Files,
    read_tensor,
    verify_file,
)
from .run_states import (
    VALUES,
    fitting,
    give_own,
    is_model,
    is_optimizer,
    paths,
    set_generators,
    set_shared,
    shared_states,
)
from .save_load import finish, is_imagined, write, write_apart
from .state import replace
from .writing import Part, plan, snapshot

_STEP = re.compile(r"step_([0-9]{8,})")


class CheckpointDirectory(NumberedFolder):
    """A folder of training checkpoints of several ranks, numbered by step.

    All ranks make one of the same folder, which all of them reach, and call its methods in the same
    order. One process alone may use it, too.

    Args:
        path: The folder; made when first saved to.
        keep: How many to keep, the newest; None keeps all.
        process_group: The ranks; the default group if None, or this process alone.

    Raises:
        ValueError: ``keep`` is less than 1.

    Example:
        >>> import tempfile
        >>> from lowtide import nn
        >>> folder = tempfile.TemporaryDirectory()
        >>> model = nn.Linear(2, 1)
        >>> CheckpointDirectory(folder.name).save(100, model=model, epoch=2).name
        'step_00000100'
        >>> CheckpointDirectory(folder.name).restore(model=nn.Linear(2, 1))
        {'step': 100, 'epoch': 2}
        >>> folder.cleanup()
    """

    def __init__(self, path: Any, keep: int | None = 3, process_group: Any = None) -> None:
        super().__init__(path, keep)
        self._ranks = process_group
        self._damaged: set[int] = set()

    # Writing

    def save(self, step: int, /, **objects: Any) -> Path:
        """Save the states of ``objects``, then remove checkpoints beyond ``keep``.

        Args:
            step: Steps done; not below the newest complete checkpoint's.
            **objects: By the name they will be asked for: models, optimizers, other objects that
                have a state (schedules, scalers, data loaders, random generators), and values.

        Returns:
            The folder of the step.

        Raises:
            SerializationError: A newer checkpoint is there, a rank cannot write, or another run
                writes to the folder; in all ranks.
        """
        group, part = self._planned("save", step, objects)
        folder = os.path.abspath(self._folder(step))
        _agree(group, "save", lambda: write(folder, part))
        ends = part.rank == 0 and not is_imagined(group)
        _agree(group, "save", lambda: self._finish(folder, part, step) if ends else None)
        return self._folder(step)

    def async_save(self, step: int, /, **objects: Any) -> background.Saving:
        """Copy the states of ``objects``, and save them while training goes on.

        The copies have the size of what this rank writes. The ledger counts them (*temporary*)
        until the checkpoint is complete. The next call of a method here waits for it, and
        raises what failed unless the future has told.

        Args:
            step: As of :meth:`save`.
            **objects: Likewise.

        Returns:
            A future of the folder's path: ``result()`` waits until the checkpoint is complete.

        Raises:
            SerializationError: As of :meth:`save`, where it can be known before writing.
            OutOfMemoryError: There is no room for the copies.
        """
        group, part = self._planned("async_save", step, objects)
        part = snapshot(part)._replace(objects=copy.deepcopy(part.objects))
        folder = os.path.abspath(self._folder(step))
        limit = 1800.0 if group is None else group.channel.timeout.total_seconds()

        def run(part: Part) -> Path:
            write_apart(folder, part, limit, is_imagined(group))
            if part.rank == 0 and not is_imagined(group):
                self._prune(step)
            return self._folder(step)

        held = [part]
        del part
        return self._start(held, run)

    def _planned(
        self, name: str, step: int, objects: dict[str, Any]
    ) -> tuple[ProcessGroup | None, Part]:
        # What each rank writes, once the folder is claimed and the step is known to be the newest.
        group, rank = self._group_and_rank()
        self._settle()

        def check() -> dict[str, Any]:
            if "step" in objects:
                raise TypeError(f"{name}() got multiple values for argument 'step'")
            if step < 0:
                raise SerializationError(f"step {step} is below 0. Count the steps that are done.")
            if rank == 0:
                self._claim()
                self._refuse_going_back(step)
            return self._flat(step, rank, objects)

        flat = _agree(group, name, check)
        return group, plan(flat, group)

    def _claim(self) -> None:
        if self._lock is None or not self._lock.is_current():
            os.makedirs(self.path, exist_ok=True)
            self._lock = lock_folder(self.path)

    def _refuse_going_back(self, step: int) -> None:
        newer = [n for n in self.steps() if n > step and n not in self._damaged]
        if newer:
            raise SerializationError(
                f"step {step} is below {newer[-1]}, the newest in {self.path}. Remove what an "
                "earlier run left, or use another folder."
            )

    def _flat(self, step: int, rank: int, objects: dict[str, Any]) -> dict[str, Any]:
        shared = shared_states(objects)
        own, values = {}, {}
        for name, thing in objects.items():
            ends = ends_of(thing)
            if name in shared:
                continue
            if ends is None:
                values[name] = thing
            else:
                own[name] = getattr(thing, ends[0])()
        generators = {
            str(d): [g.initial_seed(), g.get_offset()] for d, g in generators_in_use().items()
        }
        return {
            **paths(shared),
            VALUES: {"step": step, **values},
            f"rank {rank}": {"states": own, "generators": generators},
        }

    def _finish(self, folder: str, part: Part, step: int) -> None:
        finish(folder, part)
        self._prune(step)

    def _prune(self, step: int) -> None:
        # Incomplete folders below this step were left by killed runs.
        complete = [n for n in self.steps() if n <= step]
        intact = [n for n in complete if n not in self._damaged]
        oldest = 0 if self.keep is None else intact[-self.keep :][0]
        for n in self._listed():
            if n < oldest or (n < step and n not in complete):
                self._remove(n)

    def _remove(self, step: int) -> None:
        # The index first: a kill here leaves no checkpoint that looks complete.
        folder = self._folder(step)
        try:
            (folder / NAME).unlink(missing_ok=True)
            shutil.rmtree(folder)
        except OSError as error:  # the run goes on: what it saved is safe
            warnings.warn(
                f"CheckpointDirectory: {folder} is no longer needed and could not be removed: "
                f"{error}. Remove it yourself.",
                stacklevel=4,
            )

    # Reading

    def restore(self, *, step: int | None = None, **objects: Any) -> dict[str, Any] | None:
        """Restore ``objects`` in all ranks from the newest intact checkpoint.

        The number of ranks may differ from that which saved: each reads the rows of its shards.
        Objects of which each rank has its own state, and random generators, get that of the rank
        of the same number; ranks beyond those get the objects' states of rank 0, and keep their
        generators.

        A damaged checkpoint changes nothing and is passed over with a warning: the next older one
        serves. That all states fit is known in all ranks before anything is written.

        Args:
            step: That of another checkpoint than the newest.
            **objects: Under the names they were saved with; they may be fewer.

        Returns:
            ``step`` and the values that were saved, or None if there is no complete checkpoint.

        Raises:
            SerializationError: A state is missing, or does not fit; or ``step`` was given, and
                there is no such step, or it is damaged; in all ranks.
            TypeError: An object cannot take a state.
        """
        group, rank = self._group_and_rank()
        self._settle()
        for name, thing in objects.items():
            if ends_of(thing) is None:
                raise TypeError(
                    f"restore: {name} is a {type(thing).__name__}, which cannot take a state; "
                    "values come back in the result."
                )
        steps = _gathered(group, self.steps() if rank == 0 else None)[0]
        if step is not None:
            if step not in steps:
                text = f"CheckpointDirectory.restore: {self.path} has no step {step}; it has "
                raise SerializationError(f"{text}{steps}.")
            steps = [step]
        for newest in reversed(steps):
            problem = self._problem(newest, group, rank)
            if problem is None:
                return self._given(newest, objects, group, rank)
            if step is not None:
                raise SerializationError(problem)
            self._damaged.add(newest)
            warnings.warn(f"passing over a damaged checkpoint: {problem}", stacklevel=2)
        return None

    def _problem(self, step: int, group: ProcessGroup | None, rank: int) -> str | None:
        # What is wrong with a checkpoint, of which each rank verifies some files.
        size = 1 if group is None or is_imagined(group) else group.size()
        found = None
        try:
            folder = os.fspath(self._folder(step))
            index = read_index(folder)
            with ExitStack() as stack:
                files = Files(folder, index, stack)
                for number in range(rank % size, len(index.files), size):
                    verify_file(files, number, index)
        except (SerializationError, OSError) as error:
            found = str(error)
        return next((text for text in _gathered(group, found) if text is not None), None)

    def _given(
        self, step: int, objects: dict[str, Any], group: ProcessGroup | None, rank: int
    ) -> dict[str, Any]:
        folder = os.fspath(self._folder(step))
        new = [o for o in objects.values() if is_optimizer(o) and not o.state]
        with ExitStack() as stack:

            def check() -> tuple[Any, ...]:
                index = read_index(folder)
                files = Files(folder, index, stack)
                shared = shared_states(objects, to_fill=True)
                return files, shared, *fitting(index, files, shared, objects, rank)

            undo: list[Callable[[], None]] = []
            try:
                files, shared, tensors, others, own, values = _agree(group, "restore", check)
                _agree(group, "restore", lambda: give_own(own["states"], objects, undo))
                with defer_interrupts():
                    undo.clear()
                    new.clear()
                    for t, saved in tensors.values():
                        read_tensor(t, saved, files)
                    replace({"states": shared}, others)
                    models = [o for o in objects.values() if is_model(o)]
                    for name, state in shared.items():
                        set_shared(objects[name], state, models)
                    if own["rank"] == rank:
                        set_generators(own["generators"])
            except BaseException:
                for put_back in reversed(undo):
                    put_back()
                for optimizer in new:  # it has been given a state, to be filled
                    optimizer.state.clear()
                raise
        return dict(values)

    def steps(self) -> list[int]:
        """Return the steps that have a complete checkpoint, in order."""
        return [n for n in self._listed() if (self._folder(n) / NAME).is_file()]

    def latest(self) -> Path | None:
        """Return the folder of the newest complete checkpoint, or None."""
        steps = self.steps()
        return self._folder(steps[-1]) if steps else None

    def _listed(self) -> list[int]:
        try:
            names = os.listdir(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [int(m[1]) for m in map(_STEP.fullmatch, names) if m]
        return sorted(n for n in found if self._folder(n).is_dir())

    def _folder(self, step: int) -> Path:
        return self.path / f"step_{step:08d}"

    def _group_and_rank(self) -> tuple[ProcessGroup | None, int]:
        if self._ranks is None and GroupMember.WORLD is None:
            return None, 0
        group = resolve(self._ranks, "CheckpointDirectory")
        return group, group.rank()


def _gathered(group: ProcessGroup | None, value: Any) -> list[Any]:
    # A value of each rank.
    if group is None or group.size() == 1 or is_imagined(group):
        return [value]
    every: list[Any] = [None] * group.size()
    all_gather_object(every, value, group)
    return every


def _agree(group: ProcessGroup | None, name: str, work: Callable[[], Any]) -> Any:
    # Do something in each rank; if it fails in one, it fails in all.
    failed: Exception | None = None
    found = None
    try:
        found = work()
    except Exception as error:
        failed = error
    told = failed.args[0] if isinstance(failed, KeyError) else failed  # which str() would quote
    every = _gathered(group, None if failed is None else str(told))
    if isinstance(failed, TypeError):
        raise failed
    if failed is not None:
        raise SerializationError(f"CheckpointDirectory.{name}: {told}") from failed
    for rank, message in enumerate(every):
        if message is not None:
            raise SerializationError(f"CheckpointDirectory.{name}: rank {rank}: {message}")
    return found
