"""TensorBoard's event files, written by tensorboardX where that is installed.

tensorboardX hands events to a thread through a queue, and its ``flush`` does not wait for them: a
kill right after it loses records. So events are put into the file by who adds them (``_made``).
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any, Self

from ...framework import execution
from ...framework.device import device as as_device
from ...framework.dtypes import float32
from ...framework.tensor import Tensor
from .record_files import Record
from .training_log import memory_scalars


def _tensorboardx() -> ModuleType:
    try:
        return importlib.import_module("tensorboardX")
    except ModuleNotFoundError as error:
        if error.name != "tensorboardX":
            raise
        raise ModuleNotFoundError(
            "SummaryWriter writes TensorBoard's files by tensorboardX, which is not installed. "
            "Install it with `pip install tensorboardX`, or log to "
            "lowtide.utils.loggers.CSVLogger or JSONLLogger, which need nothing.",
            name="tensorboardX",
        ) from None


class SummaryWriter:
    """Write scalars, histograms, images and text for TensorBoard; ``torch.utils.tensorboard``'s.

    Methods are tensorboardX's (``add_scalar``, ``add_scalars``, ``add_histogram``, ``add_image``,
    ``add_text``, ``add_hparams``, ...), which take tensors of lowtide too; and :meth:`add_memory`.
    What is added reaches the disk within ``flush_secs``, or by :meth:`flush`; records that come by
    :meth:`write`, as a ``TrainingLog`` writes them, at once. In an estimate nothing is written.

    Args:
        log_dir: Folder of the event files; ``runs/`` and the time and host's name, if None.
        comment: End of that name, if ``log_dir`` is None.
        purge_step: Steps from here on that earlier files have are hidden: a resumed run shows them
            again.
        max_queue: Records that wait for the disk at most.
        flush_secs: Seconds until they are written at the latest.
        filename_suffix: End of the file's name.

    Raises:
        ModuleNotFoundError: tensorboardX is not installed.
    """

    def __init__(
        self,
        log_dir: Any = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        self._library = _tensorboardx()
        self._again: dict[str, Any] = {
            "max_queue": max_queue,
            "flush_secs": flush_secs,
            "filename_suffix": filename_suffix,
        }
        self._writer: Any = None
        if execution.current.computes:
            folder = None if log_dir is None else os.fspath(log_dir)
            self._writer = self._made(folder, comment, purge_step)

    @property
    def log_dir(self) -> str:
        """The folder of the event files."""
        return "" if self._writer is None else str(self._writer.logdir)

    def add_scalar(
        self, tag: str, scalar_value: Any, global_step: int | None = None, walltime: Any = None
    ) -> None:
        """Add a number.

        Args:
            tag: Its name; a ``/`` makes groups.
            scalar_value: A number, or a tensor of one element.
            global_step: Of the record.
            walltime: Seconds since the epoch; now, if None.
        """
        if self._writes:
            value = scalar_value.item() if hasattr(scalar_value, "item") else scalar_value
            self._writer.add_scalar(tag, value, global_step, walltime)

    def add_memory(self, global_step: int | None = None, device: Any = None) -> None:
        """Add live bytes and the peak of a device, in all and by role.

        Args:
            global_step: Of the record.
            device: The default device if None.
        """
        where = None if device is None else as_device(device)
        for name, value in memory_scalars(where).items():
            self.add_scalar(name, value, global_step)

    def write(self, record: Record) -> None:
        """Add the numbers and texts of a record, and flush them."""
        if not self._writes:
            return
        step, when = record["step"], record.get("time")
        for name, value in record.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step, when)
            elif value is not None and name not in ("step", "time"):
                self._writer.add_scalar(name, value, step, when)
        self._writer.flush()

    def rewind(self, step: int) -> None:
        """Hide the records of ``step`` and later ones: go on in a new file of the same folder."""
        if self._writes:
            folder = self.log_dir
            self._writer.close()
            # Files are named by the second; those of one folder are read in their names' order.
            self._again["filename_suffix"] += f".from{step}"
            self._writer = self._made(folder, "", step)

    def flush(self) -> None:
        """Wait until what was added is on its way to the disk."""
        if self._writes:
            self._writer.flush()

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        if self._writes:
            self._writer.close()
            self._writer = None

    def _made(self, folder: str | None, comment: str, purge_step: int | None) -> Any:
        kind = self._library.SummaryWriter
        made = kind(folder, comment, **self._again)
        try:
            file = made.file_writer
            events = file.event_writer
            events.add_event = events._ev_writer.write_event
        except AttributeError:  # another version of the library: then as it does it
            if purge_step is not None:
                folder = made.logdir
                made.close()
                made = kind(folder, purge_step=purge_step, **self._again)
            return made
        if purge_step is not None:  # as the library does it, but for the queue
            proto = importlib.import_module(f"{self._library.__name__}.proto.event_pb2")
            file.add_event(proto.Event(file_version="brain.Event:2"), purge_step)
            begins = proto.SessionLog(status=proto.SessionLog.START)
            file.add_event(proto.Event(session_log=begins), purge_step)
        return made

    @property
    def _writes(self) -> bool:
        # A forked copy of the process has not the thread that writes.
        return self._writer is not None and execution.current.computes

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("add_"):
            raise AttributeError(f"'SummaryWriter' object has no attribute {name!r}")
        theirs = getattr(self._library.SummaryWriter, name)

        def add(*args: Any, **kwargs: Any) -> Any:
            if self._writes:
                named = {k: _as_array(v) for k, v in kwargs.items()}
                return theirs(self._writer, *map(_as_array, args), **named)
            return None

        add.__name__, add.__doc__ = name, theirs.__doc__
        return add

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _as_array(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        wide = (
            value
            if value.dtype.itemsize != 2 or not value.is_floating_point()
            else value.to(float32)
        )
        return wide.numpy()
    if isinstance(value, dict):
        return {k: _as_array(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_as_array(v) for v in value]
    return value
