"""A callback for training loops: scalars, and memory by role, to any number of loggers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

from ...framework.devices.memory_statistics import memory_stats, reset_peak_memory_stats
from ...framework.memory.ledger import ROLES
from .record_files import Record


def memory_scalars(device: Any = None) -> dict[str, int]:
    """Return live bytes and the peak of a device, in all and by role, as flat names.

    Args:
        device: The default device if None.

    Returns:
        ``memory/live``, ``memory/peak`` (since the start, or the last reset), and both of each
        role: ``memory/live/parameter``, ``memory/peak/saved``, ...; those of the roles sum to
        those.

    Example:
        >>> found = memory_scalars("cpu")
        >>> found["memory/live"] == sum(n for k, n in found.items() if "memory/live/" in k)
        True
    """
    stats = memory_stats(device)
    found = {"memory/live": stats["live_bytes"], "memory/peak": stats["peak_bytes"]}
    for name, roles in (("live", stats["by_role"]), ("peak", stats["peak_by_role"])):
        found |= {f"memory/{name}/{role}": roles.get(role, 0) for role in ROLES}
    return found


class TrainingLog:
    """A callback that writes a record of each step to loggers.

    Call it once a step, from any loop. A record is the step, the time in seconds since the epoch,
    the scalars given, and the device's memory by role.

    Args:
        *loggers: Where records go: ``CSVLogger``, ``JSONLLogger``, ``SummaryWriter``, anything
            with ``write(record)``, or a function of a record, a dict.
        memory: The device whose memory is logged; True for the default device, False for none.
        reset_peak: Begin the device's peak anew after each record: ``memory/peak`` is that of one
            step then. ``max_memory_allocated`` is reset too.

    Attributes:
        step: Of the last record; None if there is none.

    Example:
        >>> import lowtide as lt
        >>> seen = []
        >>> log = TrainingLog(seen.append, memory=False)
        >>> log(loss=lt.tensor(0.5))
        >>> log(loss=0.25, note="second")
        >>> [(r["step"], r["loss"]) for r in seen]
        [(1, 0.5), (2, 0.25)]
    """

    def __init__(self, *loggers: Any, memory: Any = True, reset_peak: bool = False) -> None:
        for logger in loggers:
            if not (callable(getattr(logger, "write", None)) or callable(logger)):
                raise TypeError(
                    "TrainingLog takes loggers with a method write(record), or functions; got "
                    f"{type(logger).__name__}. Pass CSVLogger(path) for a file."
                )
        self.loggers = loggers
        self.reset_peak = bool(reset_peak)
        self.step: int | None = None
        self._device = None if memory is True else memory

    def __call__(
        self, step: int | None = None, scalars: Mapping[str, Any] | None = None, /, **named: Any
    ) -> None:
        """Write a record.

        Args:
            step: Its number; the one after the last if None.
            scalars: Numbers, texts and tensors of one element, by name: ``"loss/train"``.
            **named: The same, for names that are identifiers.

        Raises:
            TypeError: A value is something else.
            UnwrittenError: A file cannot be written; its earlier records are complete.
        """
        record: Record = {"step": self._next() if step is None else int(step), "time": time.time()}
        for name, value in {**(scalars or {}), **named}.items():
            record[name] = _scalar(name, value)
        if self._device is not False:
            record |= memory_scalars(self._device)
            if self.reset_peak:
                reset_peak_memory_stats(self._device)
        for logger in self.loggers:
            getattr(logger, "write", logger)(record)
        self.step = record["step"]

    def _next(self) -> int:
        return 1 if self.step is None else self.step + 1

    def rewind(self, step: int) -> None:
        """Remove the records of ``step`` and later ones, from loggers that can."""
        for logger in self.loggers:
            if callable(getattr(logger, "rewind", None)):
                logger.rewind(step)
        self.step = step - 1

    def state_dict(self) -> dict[str, Any]:
        """Return the step of the last record, for a training checkpoint."""
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after a checkpoint: records that were written after it are removed."""
        step = state["step"]
        self.rewind(0 if step is None else step + 1)
        self.step = step

    def close(self) -> None:
        """Close the loggers that can be closed."""
        for logger in self.loggers:
            if callable(getattr(logger, "close", None)):
                logger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _scalar(name: str, value: Any) -> Any:
    if name in ("step", "time"):
        raise TypeError(f"TrainingLog writes {name!r} itself. Use another name.")
    given = value
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        count = value.numel() if hasattr(value, "numel") else value.size
        value = value.item() if count == 1 else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    shape = f" of shape {tuple(given.shape)}" if hasattr(given, "shape") else ""
    raise TypeError(
        f"TrainingLog takes numbers, text and tensors of one element; {name} is a "
        f"{type(given).__name__}{shape}. Pass .mean(), or a number."
    )
