"""A folder of numbered training checkpoints: save often, keep the last few, resume from the newest.

Each checkpoint is one file of :func:`save`, so it is there whole or not at all, and a run killed at
any instant finds the newest whole one when it starts again. The random generators of all devices
in use are always part of it. What else a run needs to go on bit for bit, it names: model,
optimizer, schedule, scaler, data loader.

Restoring reads one object's state at a time: the file is never in memory as a whole.
"""

from __future__ import annotations

import os
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import SerializationError
from ..random import Generator, generators_in_use
from .archive import save, structure_of
from .files import TEMPORARY_SUFFIX, Source, flush_folder
from .placing import Placement
from .safetensors import read_header
from .structure import Decoder

_NAME = re.compile(r"step_(\d{8,})\.safetensors")
_ENDS = (  # how an object gives its state, and how it takes it back
    ("state_dict", "load_state_dict"),
    ("get_state", "set_state"),  # generators; numpy.random
    ("getstate", "setstate"),  # Python's random
)


class CheckpointDirectory:
    """Training checkpoints in one folder, numbered by step.

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
        if keep is not None and keep < 1:
            raise ValueError(f"keep must be at least 1, or None for all; got {keep}.")
        self.path = Path(path)
        self.keep = keep

    def save(self, step: int, /, **objects: Any) -> Path:
        """Write the states of ``objects``, then remove checkpoints beyond ``keep``.

        Args:
            step: Steps done; not below the newest checkpoint's.
            **objects: By the name they will be asked for. What has ``state_dict`` (or
                ``get_state``, as generators have, or ``getstate``, as Python's ``random``) gives
                its state; anything else is saved as a value.

        Returns:
            The file.

        Raises:
            SerializationError: A newer checkpoint is there, or a state cannot be written.
        """
        newest = max(self.steps(), default=-1)
        if step < max(newest, 0):
            raise SerializationError(
                f"CheckpointDirectory.save: step {step} is below {newest}, the newest in "
                f"{self.path}. Remove what an earlier run left, or use another folder."
            )
        if "step" in objects:
            raise TypeError("save() got multiple values for argument 'step'")
        states, values = {}, {}
        for name, thing in objects.items():
            ends = _ends_of(thing)
            if ends is None:
                values[name] = thing
            else:
                states[name] = getattr(thing, ends[0])()
        generators = {
            str(d): [g.initial_seed(), g.get_offset()] for d, g in generators_in_use().items()
        }
        self.path.mkdir(parents=True, exist_ok=True)
        path = self._file(step)
        save({"step": step, "states": states, "values": values, "generators": generators}, path)
        self._prune()
        return path

    def restore(
        self, *, step: int | None = None, map_location: Any = None, **objects: Any
    ) -> dict[str, Any] | None:
        """Give ``objects`` the states of the newest whole checkpoint.

        A damaged checkpoint is passed over with a warning: the next older one serves.

        Args:
            step: That of another checkpoint than the newest.
            map_location: As for :func:`load`.
            **objects: Under the names they were saved with; they may be fewer.

        Returns:
            ``step`` and the plain values that were saved, or None if there is no checkpoint.

        Raises:
            SerializationError: The checkpoint lacks an object's state, or has no such step.
        """
        placement = Placement(map_location)
        steps = self.steps() if step is None else [step]
        for number in reversed(steps):
            try:
                source = Source(self._file(number))
            except FileNotFoundError:
                raise SerializationError(
                    f"CheckpointDirectory.restore: {self.path} has no step {number}; it has "
                    f"{self.steps()}."
                ) from None
            with source:
                try:
                    header = read_header(source)
                    content = structure_of(source, header)
                    states, saved_values = content["states"], content["values"]
                except (SerializationError, TypeError, KeyError) as error:
                    if step is not None:
                        raise
                    warnings.warn(f"passing over a damaged checkpoint: {error}", stacklevel=2)
                    continue
                missing = sorted(set(objects) - set(states))
                if missing:
                    raise source.error(
                        f"it has no state of {', '.join(missing)}; it has {', '.join(states)}",
                        "Name objects as they were saved",
                    )
                for name, thing in objects.items():
                    # a decoder each: what was read for one is let go before the next
                    decoder = Decoder(source, header.entries, placement, False)
                    self._give(thing, name, decoder.decode(states[name]))
                    del decoder
                values = Decoder(source, header.entries, placement, False).decode(saved_values)
                _set_generators(content["generators"])
                return {"step": number, **values}
        return None

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        names = os.listdir(self.path) if self.path.is_dir() else []
        return sorted(int(m[1]) for m in map(_NAME.fullmatch, names) if m)

    def latest(self) -> Path | None:
        """The file of the newest checkpoint, or None."""
        steps = self.steps()
        return self._file(steps[-1]) if steps else None

    def _file(self, step: int) -> Path:
        return self.path / f"step_{step:08d}.safetensors"

    def _give(self, thing: Any, name: str, state: Any) -> None:
        ends = _ends_of(thing)
        if ends is None:
            raise TypeError(
                f"restore: {name} is a {type(thing).__name__}, which cannot take a state; values "
                "come back in the result."
            )
        getattr(thing, ends[1])(state)

    def _prune(self) -> None:
        # Also what killed runs left half-written: one run writes to a folder at a time.
        old = self.steps()[: -self.keep] if self.keep is not None else []
        stale = [
            self.path / n
            for n in os.listdir(self.path)
            if n.startswith(".step_") and n.endswith(TEMPORARY_SUFFIX)
        ]
        for path in (*map(self._file, old), *stale):
            with suppress(FileNotFoundError):
                path.unlink()
        if old or stale:
            flush_folder(os.fspath(self.path))


def _ends_of(thing: Any) -> tuple[str, str] | None:
    if isinstance(thing, type):
        return None
    for ends in _ENDS:
        if all(callable(getattr(thing, end, None)) for end in ends):
            return ends
    return None


def _set_generators(states: dict[str, list[int]]) -> None:
    known: dict[str, Generator] = {str(d): g for d, g in generators_in_use().items()}
    for name, (seed, offset) in states.items():
        if name in known:  # one of a device that this process has not met is left alone
            known[name].manual_seed(seed).set_offset(offset)
