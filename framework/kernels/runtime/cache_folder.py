"""The cache folder on disk, opened so that no one else can put code into it.

The folder is LOWTIDE_CACHE_DIR, or ``lowtide`` in XDG_CACHE_HOME or ~/.cache. Where it lies is
decided once, when lowtide is imported: a later ``chdir`` or change of the environment moves
nothing.

A process maps compiled code from this folder, so every folder from the cache down must belong to
the user (or to root) and be writable by its owner alone. Each is opened relative to the descriptor
of the one above, without following links, and the open descriptor is what gets checked: a folder
that is replaced between two steps is not the folder that is used.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class Unusable(Exception):
    """The cache folder cannot be used; the message says why, and what to do."""


def _choose() -> str:
    # The XDG Base Directory Specification has programs ignore a relative XDG_CACHE_HOME.
    named = os.environ.get("LOWTIDE_CACHE_DIR")
    if named:
        return os.path.realpath(named)
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        home = given if os.path.isabs(given) else str(Path.home() / ".cache")
    except RuntimeError:  # no home directory is known
        return ""
    return os.path.realpath(os.path.join(home, "lowtide"))


BASE = _choose()
"""Absolute path of the cache, links resolved; empty if there is no home directory."""


@contextmanager
def opened(name: str) -> Iterator[int]:
    """Open the folder ``name`` of the cache; make it, with mode 0700, if it is absent.

    Yields:
        Its descriptor, which is closed when the block ends.

    Raises:
        Unusable: It cannot be made, or another user may write to it.
    """
    descriptor = _open(name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(name: str) -> int:
    if not BASE:
        raise Unusable("no home directory is known; set LOWTIDE_CACHE_DIR")
    try:
        base = _base()
        try:
            _check(base, BASE)
            inner = _inner(base, name)
        finally:
            os.close(base)
    except OSError as error:
        raise Unusable(f"{BASE}: {error.strerror}") from error
    try:
        status = os.fstat(inner)
        if status.st_uid == os.geteuid() and status.st_mode & _OTHERS_WRITE:
            os.fchmod(inner, 0o700)  # made under an open umask by an earlier version
        _check(inner, os.path.join(BASE, name))
    except BaseException:
        os.close(inner)
        raise
    return inner


def _base() -> int:
    try:
        return os.open(BASE, _FOLDER)
    except FileNotFoundError:
        missing = []
        path = BASE
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            _make(path)
        return os.open(BASE, _FOLDER)


def _inner(base: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=base)
    except FileNotFoundError:
        _make(name, base)
        return os.open(name, _FOLDER, dir_fd=base)


def _make(path: str, base: int | None = None) -> None:
    with suppress(FileExistsError):  # another process was faster; whose it is, gets checked
        os.mkdir(path, 0o700, dir_fd=base)


def _check(descriptor: int, path: str) -> None:
    status = os.fstat(descriptor)
    if not trusted(status):
        who = "writable by other users" if owned(status) else f"owned by user {status.st_uid}"
        way = "run `chmod go-w` on it" if owned(status) else "name a folder that you own"
        raise Unusable(f"{path} is {who}; {way}, or set LOWTIDE_CACHE_DIR")


def owned(status: os.stat_result) -> bool:
    """Whether a file belongs to this process's user, or to root."""
    return status.st_uid in (os.geteuid(), 0)


def trusted(status: os.stat_result) -> bool:
    """Whether only this process's user and root can have written a file."""
    return owned(status) and not status.st_mode & _OTHERS_WRITE
