"""Append-only record files: CSV and JSON lines, complete after a kill, and resumable.

A record is a dict with an integer ``step``. Each is one line, written by one call of the system
and with no buffer of ours, so a killed process loses nothing that it wrote. What a kill in the
middle of that call left, a last line without its end, is cut off when the file is opened again; so
is what a full disk left, at once. Files are rewritten (for :meth:`RecordFile.rewind`, and for a new
column) beside the old one, which is then replaced.

In an estimate of a step nothing is written.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from ...framework import execution
from ...framework.errors import SerializationError
from ...framework.serialization.atomic_files import (
    WAY_OUT,
    UnwrittenError,
    free_bytes,
    replacing,
    why_unwritable,
)
from ...framework.serialization.file_locks import try_lock

Record = dict[str, Any]
_ODD = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


_files: weakref.WeakSet[RecordFile] = weakref.WeakSet()


def _leave_to_parent() -> None:
    # Loaders' workers must neither write nor hold the lock once the parent was killed.
    for file in _files:
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


class RecordFile:
    """Base of a file of records, one a line, opened to append.

    Args:
        path: Of the file; its folders are made. If it is there, records are added to it.
        sync: Also wait after each record until the disk has it. Without, a crash of the machine
            (not of the process) may lose the last seconds.

    Raises:
        SerializationError: Another process writes to it, or it holds something else.
        UnwrittenError: It cannot be opened or written; says why and what is there.
    """

    def __init__(self, path: Any, sync: bool = False) -> None:
        self.path = Path(path)
        self.sync = bool(sync)
        self._handle: int | None = None
        _files.add(self)
        if execution.current.computes:
            self._open()

    def write(self, record: Record) -> None:
        """Append a record: ``step`` and values, which are numbers, truth values, text or None.

        Raises:
            UnwrittenError: The disk is full or fails; the records before are complete.
        """
        self._check(record)
        if not execution.current.computes:
            return
        if self._handle is None:
            raise ValueError(
                f"{self._name}: {self.path} is closed, or this is a fork of the process that "
                "writes it. Make another one to go on."
            )
        self._append(self._line(record))

    def rewind(self, step: int) -> None:
        """Remove the records of ``step`` and later ones: a resumed run writes them again."""
        if not execution.current.computes or self._handle is None:
            return
        records = self.read(self.path)
        kept = [r for r in records if r["step"] < step]
        if len(kept) < len(records):
            self._rewrite(kept)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def read(cls, path: Any) -> list[Record]:
        """Read the records of a file; a last line without its end does not count."""
        text = Path(path).read_bytes().decode()
        whole = text[: text.rfind("\n") + 1]
        return cls._parse(whole.splitlines(), str(path))

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            handle = os.open(self.path, flags, 0o666)
        except OSError as error:
            raise self._unwritten(error, "") from error
        try:
            self._claim(handle)
            size = os.fstat(handle).st_size
            end = _end_of_last_line(handle, size)
            if end < size:
                os.ftruncate(handle, end)
            self._begin(handle)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle

    def _claim(self, handle: int) -> None:
        if try_lock(handle) is False:  # None where there are no locks
            raise SerializationError(
                f"{self._name}: another process writes to {self.path}. End it, or use another file."
            )

    def _append(self, line: str) -> None:
        assert self._handle is not None
        data = line.encode()
        before = os.fstat(self._handle).st_size
        try:
            done = 0
            while done < len(data):
                done += os.write(self._handle, data[done:])
            if self.sync:
                os.fsync(self._handle)
        except OSError as error:
            os.ftruncate(self._handle, before)
            raise self._unwritten(error, f"; {len(data)} bytes are needed") from error

    def _unwritten(self, error: OSError, needed: str) -> UnwrittenError:
        folder, reason = os.fspath(self.path.absolute().parent), error.strerror or str(error)
        way_out = "Make room, or use another folder"
        file = next((p for p in self.path.absolute().parents if p.exists()), Path("/"))
        if not file.is_dir():
            why, way_out = f"{file} is a file", "Use another folder"
        elif isinstance(error, PermissionError):
            why, way_out = why_unwritable(folder), WAY_OUT.removesuffix(".")
        else:
            why = free_bytes(os.fspath(file))
        there = "Its records are complete" if self.path.is_file() else "No file is left"
        return UnwrittenError(
            error.errno,
            f"{self._name}: {self.path} could not be written: {reason}{needed}; {why}. {there}. "
            f"{way_out}.",
        )

    def _rewrite(self, records: Iterable[Record]) -> None:
        text = self._text(list(records))
        with replacing(self.path, needed=len(text)) as out:
            out.write(text.encode())
        self.close()
        self._open()

    def _check(self, record: Record) -> None:
        step = record.get("step")
        if isinstance(step, bool) or not isinstance(step, int):
            raise TypeError(
                f"{self._name}: a record has an integer under 'step'; got {step!r}. Pass "
                "{'step': 1, 'loss': 0.5}."
            )
        for name, value in record.items():
            if not isinstance(value, bool | int | float | str | None):
                raise TypeError(
                    f"{self._name}: {name} is a number, text or None; got {type(value).__name__}. "
                    "Pass .item() of a tensor."
                )

    # Of each format

    def _begin(self, handle: int) -> None:
        """Look at a file that was just opened."""

    def _line(self, record: Record) -> str:
        raise NotImplementedError

    def _text(self, records: list[Record]) -> str:
        raise NotImplementedError

    @classmethod
    def _parse(cls, lines: list[str], path: str) -> list[Record]:
        raise NotImplementedError


class JSONLLogger(RecordFile):
    """Append records to a file of JSON lines: one object a line.

    What is no number (NaN) or infinite, for which JSON has no word, is text: ``"NaN"``,
    ``"Infinity"``, ``"-Infinity"``; :meth:`read` gives the numbers back.

    Args:
        path: Of the file; its folders are made. If it is there, records are added to it.
        sync: Also wait after each record until the disk has it.

    Raises:
        SerializationError: Another process writes to it.
        UnwrittenError: It cannot be opened or written.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/log.jsonl"
        >>> with JSONLLogger(path) as log:
        ...     log.write({"step": 1, "loss": 0.5})
        >>> JSONLLogger.read(path)
        [{'step': 1, 'loss': 0.5}]
    """

    def _line(self, record: Record) -> str:
        return json.dumps({k: _as_json(v) for k, v in record.items()}, allow_nan=False) + "\n"

    def _text(self, records: list[Record]) -> str:
        return "".join(map(self._line, records))

    @classmethod
    def _parse(cls, lines: list[str], path: str) -> list[Record]:
        found = []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                    raise ValueError("no object with a step")
            except ValueError as error:
                raise SerializationError(
                    f"JSONLLogger: line {number} of {path} is no record: {error}."
                ) from None
            found.append(
                {k: _ODD.get(v, v) if isinstance(v, str) else v for k, v in record.items()}
            )
        return found


class CSVLogger(RecordFile):
    """Append records to a CSV file, whose first line names the columns.

    A record without a column leaves it empty. A new name makes a new column: the file is written
    anew then, once. Text must not hold the end of a line.

    Args:
        path: Of the file; its folders are made. If it is there, records are added to it.
        sync: Also wait after each record until the disk has it.

    Raises:
        SerializationError: Another process writes to it, or its first line has no ``step``.
        UnwrittenError: It cannot be opened or written.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/log.csv"
        >>> with CSVLogger(path) as log:
        ...     log.write({"step": 1, "loss": 0.5})
        >>> print(log.path.read_text(), end="")
        step,loss
        1,0.5
    """

    def __init__(self, path: Any, sync: bool = False) -> None:
        self._columns: list[str] = []
        super().__init__(path, sync)

    def _begin(self, handle: int) -> None:
        with open(self.path, encoding="utf-8", newline="") as file:
            first = file.readline()
        self._columns = next(csv.reader([first]), [])
        if self._columns and "step" not in self._columns:
            raise SerializationError(
                f"CSVLogger: {self.path} is no log: its first line names no column 'step', but "
                f"{first.strip()[:80]!r}. Use another file."
            )

    def _check(self, record: Record) -> None:
        super()._check(record)
        for name, value in record.items():
            if any("\n" in str(text) or "\r" in str(text) for text in (name, value)):
                raise ValueError(f"CSVLogger: {name!r} holds the end of a line. Use JSONLLogger.")

    def write(self, record: Record) -> None:
        """Append a record: ``step`` and values, which are numbers, truth values, text or None.

        Raises:
            UnwrittenError: The disk is full or fails; the records before are complete.
        """
        new = [name for name in record if name not in self._columns]
        if new and self._handle is not None and execution.current.computes:
            self._check(record)
            before = self._columns
            self._columns = [*before, *new]
            try:
                if before:
                    self._rewrite(self.read(self.path))
                else:
                    self._append(_row(self._columns))
            except BaseException:
                self._columns = before
                raise
        super().write(record)

    def _line(self, record: Record) -> str:
        return _row([_as_csv(record.get(name)) for name in self._columns])

    def _text(self, records: list[Record]) -> str:
        return _row(self._columns) + "".join(map(self._line, records))

    @classmethod
    def _parse(cls, lines: list[str], path: str) -> list[Record]:
        rows = list(csv.reader(lines))
        names = rows[0] if rows else []
        if rows and "step" not in names:
            raise SerializationError(f"CSVLogger: {path} has no column 'step'.")
        found = []
        for number, row in enumerate(rows[1:], 2):
            record = {n: _from_csv(v) for n, v in zip(names, row, strict=False) if v != ""}
            if len(row) != len(names) or not isinstance(record.get("step"), int):
                raise SerializationError(f"CSVLogger: line {number} of {path} is no record.")
            found.append(record)
        return found


def _end_of_last_line(handle: int, size: int) -> int:
    # Where the last whole line ends, read from the end.
    end = size
    while end:
        start = max(end - 65536, 0)
        place = os.pread(handle, end - start, start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0


def _row(values: Iterable[Any]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(values)
    return out.getvalue()


def _as_csv(value: Any) -> Any:
    return "" if value is None else repr(float(value)) if isinstance(value, float) else value


def _from_csv(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _as_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value
