"""A folder of numbered training checkpoints: save often, keep the last few, resume.

Each checkpoint is one file of :func:`save`, so it is complete or absent, and a run killed at
any instant finds the newest complete one when it starts again. The random generators of all devices
in use are always part of it. What else a run needs to go on bit for bit, it names: model,
optimizer, schedule, scaler, data loader.

One process writes to a folder, and holds its lock (:mod:`.locks`) from its first save on; any
number read beside it, without a lock.

Restoring first reads all that is asked for without building a tensor, and takes an older file if
this one is damaged. Then it gives one object's state at a time (:mod:`.restoring`): the file is
never in memory all at once.
"""

from __future__ import annotations

import errno
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from ..errors import SerializationError
from ..random.generator import generators_in_use
from . import background
from .atomic_files import (
    TEMPORARY_SUFFIX,
    WAY_OUT,
    Source,
    UnwrittenError,
    flush_folder,
    free_bytes,
    remove_leftover,
    why_unwritable,
)
from .checkpoint_file import DamagedError, GoneError, as_read, checked, mark_of, take_states
from .file_locks import lock_folder
from .map_location import Placement
from .numbered_folder import NumberedFolder
from .restore import ends_of
from .safetensors import Header
from .save_load import Encoded, encode, write_encoded

T = TypeVar("T")

_NAME = re.compile(r"step_([0-9]{8,})\.safetensors")
_LISTINGS = 200  # how often a reader looks again because files go while it reads; 2 s in all


class CheckpointDirectory(NumberedFolder):
    """A folder of training checkpoints, numbered by step.

    Args:
        path: The folder; made when first saved to.
        keep: How many to keep, the newest; None keeps all.

    Raises:
        ValueError: ``keep`` is less than 1.

    Example:
        >>> import tempfile
        >>> from lowtide import Generator
        >>> folder = tempfile.TemporaryDirectory()
        >>> g = Generator().manual_seed(1)
        >>> _ = CheckpointDirectory(folder.name).save(100, generator=g, epoch=2)
        >>> other = Generator()
        >>> CheckpointDirectory(folder.name).restore(generator=other)
        {'step': 100, 'epoch': 2}
        >>> other.initial_seed()
        1
        >>> folder.cleanup()
    """

    def __init__(self, path: Any, keep: int | None = 3) -> None:
        super().__init__(path, keep)
        self._damaged: dict[int, Any] = {}  # step -> which file of that number was found damaged

    # Writing

    def claim(self) -> None:
        """Lock the folder for writing by this process; ``save`` does it if needed.

        The folder is made. What a killed run left is removed: files that it had half written, and
        complete ones beyond ``keep``. The folder is free again when the process ends, however it
        ends, or when :meth:`release` was called or this object is gone.

        Raises:
            SerializationError: Another process writes to it; the message says which.
            UnwrittenError: It cannot be made or written to: the message says why, and which
                checkpoints are there.
        """
        if self._lock is not None and self._lock.is_current():
            return
        try:
            if not self.path.is_dir():
                self.path.mkdir(parents=True, exist_ok=True)
                flush_folder(os.fspath(self.path.resolve().parent))
            self._lock = lock_folder(self.path)
        except OSError as error:
            raise _unclaimed(error, self.path, self.steps()) from error
        with self._lock.turn:
            self._remove(self._leftovers(), [])
            # Only beyond enough whole ones: the newest may be damaged.
            steps, whole = self.steps(), 0
            if self.keep is not None and len(steps) > self.keep:
                while steps and whole < self.keep:
                    whole += self._problem(steps.pop()) is None
                self._remove([], steps)

    def save(self, step: int, /, **objects: Any) -> Path:
        """Save the states of ``objects``, then remove checkpoints beyond ``keep``.

        Args:
            step: Steps done; not below the newest complete checkpoint's.
            **objects: By the name they will be asked for. What has ``state_dict`` (or
                ``get_state``, as generators have, or ``getstate``, as Python's ``random``) gives
                its state; anything else is saved as a value.

        Returns:
            The file.

        Raises:
            SerializationError: A newer checkpoint is there, a state cannot be written, or another
                process writes to the folder.
            UnwrittenError: The disk is full or fails (a SerializationError and an OSError). The
                checkpoints that were there are as they were.
        """
        encoded = self._encoded(step, objects)
        return self._write(step, encoded)

    def async_save(self, step: int, /, **objects: Any) -> background.Saving:
        """Copy the states of ``objects``, and save them while training goes on.

        It returns when the copies are made. They are on the CPU and have the size of the file. The
        ledger counts them (*temporary*) until the file is written. The next :meth:`save`,
        :meth:`async_save`, :meth:`restore` or :meth:`release` waits for the file, and so does the
        end of the process. If saving failed, that call raises the error, unless the future has
        told.

        Args:
            step: As of :meth:`save`.
            **objects: Likewise.

        Returns:
            A future of the file's path: ``result()`` waits for it, and raises what failed.

        Raises:
            SerializationError: As of :meth:`save`, where it can be known before writing.
            OutOfMemoryError: There is no room for the copies. Nothing is saved.

        Example:
            >>> import tempfile
            >>> from lowtide import Generator
            >>> folder = tempfile.TemporaryDirectory()
            >>> future = CheckpointDirectory(folder.name).async_save(7, generator=Generator())
            >>> future.result().name
            'step_00000007.safetensors'
            >>> folder.cleanup()
        """
        held = [background.copied(self._encoded(step, objects))]
        return self._start(held, lambda copies: self._write(step, copies))

    def _encoded(self, step: int, objects: dict[str, Any]) -> Encoded:
        # What is to be written, once the folder is claimed and the step is known to be the newest.
        if "step" in objects:
            raise TypeError("save() got multiple values for argument 'step'")
        if step < 0:
            raise SerializationError(
                f"CheckpointDirectory.save: step {step} is below 0. Count the steps that are done."
            )
        self._settle()
        try:
            self.claim()
            self._refuse_going_back(step)
        except UnwrittenError as error:  # of the claim: it says what is there
            text = f"CheckpointDirectory.save: {_name(step)} is not written: {error.strerror}"
            raise UnwrittenError(error.errno, text) from error
        except OSError as error:
            text = f"CheckpointDirectory.save: {self._file(step)} cannot be written: {error}."
            raise UnwrittenError(error.errno, text) from error
        states, values = {}, {}
        for name, thing in objects.items():
            ends = ends_of(thing)
            if ends is None:
                values[name] = thing
            else:
                states[name] = getattr(thing, ends[0])()
        generators = {
            str(d): [g.initial_seed(), g.get_offset()] for d, g in generators_in_use().items()
        }
        content = {"step": step, "states": states, "values": values, "generators": generators}
        return encode(content, classes=False)  # restore builds none

    def _write(self, step: int, encoded: Encoded) -> Path:
        assert self._lock is not None
        with self._lock.turn:
            path = self._file(step)
            try:
                write_encoded(encoded, path)
            except UnwrittenError as error:
                nbytes = sum(a.nbytes for a in encoded.arrays.values())
                text = (
                    f"CheckpointDirectory.save: step {step}, whose tensors take {nbytes} bytes, is "
                    f"not safe on the disk: {error.strerror} Earlier checkpoints are as they were."
                )
                raise UnwrittenError(error.errno, text) from error
            try:
                self._prune(step)
            except OSError as error:  # the run goes on: what it saved is safe
                warnings.warn(
                    f"CheckpointDirectory: older ones than {path} were not removed: {error}.",
                    stacklevel=3,
                )
            return path

    def _prune(self, step: int) -> None:
        # Above this step are damaged ones only: a whole one would have been refused. They stay to
        # be looked at until they are older than all that is kept.
        steps = self.steps()
        whole = [n for n in steps if n <= step and not self._is_damaged(n)]
        oldest = 0 if self.keep is None else whole[-self.keep :][0]
        self._remove(self._leftovers(), [n for n in steps if n < oldest])

    def _refuse_going_back(self, step: int) -> None:
        # What is damaged does not count: a run that went on from an older one saves over it.
        for newer in reversed(self.steps()):
            if newer <= step:
                break
            if self._problem(newer) is None:
                raise SerializationError(
                    f"CheckpointDirectory.save: step {step} is below {newer}, the newest in "
                    f"{self.path}. Remove what an earlier run left, or use another folder."
                )

    def _problem(self, step: int) -> Exception | None:
        try:
            self._read(step, (), lambda *_: None)
        except (DamagedError, GoneError) as problem:
            return problem
        return None

    def _is_damaged(self, step: int) -> bool:
        return step in self._damaged and self._damaged[step] == mark_of(self._file(step))

    def _leftovers(self) -> list[Path]:
        # Half-written files. One that a living process is writing, for one by `lt.save`, is locked.
        return [
            self.path / n
            for n in os.listdir(self.path)
            if n.startswith(".step_") and n.endswith(TEMPORARY_SUFFIX)
        ]

    def _remove(self, leftovers: list[Path], steps: list[int]) -> None:
        # The oldest first: a kill here leaves the newest.
        removed = False
        for path in (*map(self._file, sorted(steps)), *leftovers):
            try:
                if path in leftovers:
                    removed |= remove_leftover(os.fspath(path))
                else:
                    path.unlink()
                    removed = True
            except FileNotFoundError:
                continue
            except OSError as error:  # the run goes on: what it saved is safe
                warnings.warn(
                    f"CheckpointDirectory: {path} is no longer needed and could not be removed: "
                    f"{error.strerror}. Remove it yourself.",
                    stacklevel=4,
                )
        if removed:
            try:
                flush_folder(os.fspath(self.path))
            except OSError as error:
                warnings.warn(
                    f"CheckpointDirectory: removals in {self.path} could not be flushed to the "
                    f"disk: {error.strerror}. Look after the disk.",
                    stacklevel=4,
                )

    # Reading

    def restore(
        self, *, step: int | None = None, map_location: Any = None, **objects: Any
    ) -> dict[str, Any] | None:
        """Restore ``objects`` from the newest intact checkpoint, all of them or none.

        A damaged checkpoint changes nothing and is passed over with a warning that says what is
        wrong: the next older one serves. A state that does not fit its object is an error, and
        objects that were given theirs before it get their old states back (see
        :func:`~lowtide.framework.serialization.restore.give`). Ctrl-C waits while an object
        takes its state, and leaves all as they were.

        Args:
            step: That of another checkpoint than the newest.
            map_location: As for :func:`load`.
            **objects: Under the names they were saved with; they may be fewer.

        Returns:
            ``step`` and the plain values that were saved, or None if there is no complete
            checkpoint.

        Raises:
            SerializationError: The checkpoint lacks an object's state; or ``step`` was given, and
                there is no such step, or it is damaged.
            TypeError: An object cannot take a state.
        """
        self._settle()
        placement = Placement(map_location)
        for name, thing in objects.items():
            if ends_of(thing) is None:
                raise TypeError(
                    f"restore: {name} is a {type(thing).__name__}, which cannot take a state; "
                    "values come back in the result."
                )
        passed: set[int] = set()
        gone = 0
        while gone < _LISTINGS:
            steps = [n for n in self.steps() if n not in passed] if step is None else [step]
            if not steps:
                return None

            def take(source: Source, header: Header, content: dict[str, Any]) -> dict[str, Any]:
                return take_states(source, header, content, placement, objects)

            try:
                return {"step": steps[-1], **self._read(steps[-1], objects, take)}
            except GoneError:
                if step is not None:
                    raise SerializationError(
                        f"CheckpointDirectory.restore: {self.path} has no step {step}; it has "
                        f"{self.steps()}."
                    ) from None
                gone += 1  # pruned since it was listed: there is a newer one
                time.sleep(0.01)
            except DamagedError as damage:
                if step is not None:
                    raise SerializationError(str(damage)) from damage.__cause__
                warnings.warn(f"passing over a damaged checkpoint: {damage}", stacklevel=2)
                passed.add(steps[-1])
        raise SerializationError(
            f"CheckpointDirectory.restore: checkpoints in {self.path} were removed before they "
            f"could be read, {gone} times. Let its writer keep more, or look after its disk."
        )

    def _read(self, step: int, names: Iterable[str], then: Callable[[Source, Header, Any], T]) -> T:
        # `then` gets a file that was verified, and of which all that is named can be decoded.
        path = self._file(step)
        try:
            mark = mark_of(path)
            source = Source(path)
        except OSError as error:
            raise as_read(error, path) from error
        with source:
            try:
                header, content = checked(source, names)
            except (MemoryError, GoneError):
                raise  # of this process, not of the file
            except Exception as error:  # whatever a damaged file brings about
                damage = as_read(error, path)
                if isinstance(damage, DamagedError):
                    self._damaged[step] = mark
                raise damage from error
            return then(source, header, content)

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in order."""
        for _ in range(3):
            found = self._listed()
            if found:
                return found
            # Beside a writer, a long folder may show neither the new file nor the old one.
        return found

    def _listed(self) -> list[int]:
        try:
            with os.scandir(self.path) as entries:
                return sorted(n for n in map(_step_of, entries) if n is not None)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def latest(self) -> Path | None:
        """Return the path of the newest checkpoint, or None."""
        steps = self.steps()
        return self._file(steps[-1]) if steps else None

    def _file(self, step: int) -> Path:
        return self.path / _name(step)


def _unclaimed(error: OSError, path: Path, steps: list[int]) -> UnwrittenError:
    folder, reason = os.fspath(path.absolute()), error.strerror or str(error)
    exists = path.is_dir()
    text = f"CheckpointDirectory: {folder} cannot be {'written to' if exists else 'made'}: {reason}"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        file = path
        while not file.exists() and file != file.parent:
            file = file.parent
        text += f"; {file} is a file. Use another folder"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        text += f"; {why_unwritable(folder)}. {WAY_OUT.removesuffix('.')}"
    else:
        there = folder if exists else os.path.dirname(folder)
        text += f"; {free_bytes(there)}. Make room, or use another folder"
    left = f"Its checkpoints are as they were: steps {steps}" if steps else "It has no checkpoint"
    return UnwrittenError(error.errno, f"{text}. {left}.")


def _name(step: int) -> str:
    return f"step_{step:08d}.safetensors"


def _step_of(entry: os.DirEntry[str]) -> int | None:
    # Files under the very name that `save` gives: no folder, no link to nowhere, no 000000012.
    match = _NAME.fullmatch(entry.name)
    if match is None or _name(int(match[1])) != entry.name:
        return None
    try:
        return int(match[1]) if entry.is_file() else None
    except OSError:  # a link that leads to itself, or where reading is not permitted
        return None
