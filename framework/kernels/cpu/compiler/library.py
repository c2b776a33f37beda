"""The folder of compiled kernels: one shared library for each kernel and signature.

It lies in the user's cache folder (LOWTIDE_CACHE_DIR, or lowtide in XDG_CACHE_HOME, ~/.cache). A
library is for one kind of processor, and for the sources that it was made of: their hashes stand
behind it in its file, and where one has changed the library is made again. A folder that others may
write to is not read: it holds code.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import os
import platform
import stat
import sys
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from .. import compiler
from . import entry, processor

ROOT = Path(compiler.__file__).parents[3]  # of the framework: what sources are named after
_KERNELS = Path("kernels")
_END = b"lowtide1"  # behind the description, its length
NEEDED = ["libm.so.6"] if platform.libc_ver()[0] == "glibc" else []


_nameless = itertools.count(1)  # libraries that are in no folder


class CannotLoad(Exception):
    """A library needs a function that the process does not have."""


@cache
def supported() -> bool:
    """Whether kernels are made into libraries here: Linux on x86-64, CPython with its lock."""
    return (
        sys.platform == "linux"
        and processor.description()[1] != ""
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and not hasattr(sys, "getobjects")
        and entry.layout_known()
    )


@cache
def folder() -> Path | None:
    """The folder for this processor, made if it is not there; None if it cannot be used."""
    base = os.environ.get("LOWTIDE_CACHE_DIR")
    try:
        top = Path(base) if base else _user_cache() / "lowtide"
        said = "\n".join([*processor.description(), *processor.settings()])
        found = top / "kernels" / hashlib.blake2b(said.encode(), digest_size=8).hexdigest()
        found.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = found.stat()
        mine = status.st_uid in (os.geteuid(), 0)
        if not mine or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
    except (OSError, RuntimeError):  # no home, or nothing can be written there
        return None
    return found


def _user_cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return Path(given) if given else Path.home() / ".cache"


def load(kernel: Any, words: str) -> tuple[Any, Any, int] | None:
    """Return (entry, shared entry, address) of a library that is there and not stale, or None."""
    place = folder()
    if place is None:
        return None
    path = place / _file_name(kernel, words)
    about = _description(path)
    if about is None or about["of"] != _identity(kernel, words):
        return None
    if any(_hash(name) != known for name, known in about["sources"].items()):
        return None
    try:
        return entry.load(str(path), kernel.__name__, words.split(","))
    except (OSError, AttributeError, ValueError):  # made for another system
        return None


def keep(kernel: Any, words: str, data: bytes) -> tuple[Any, Any, int]:
    """Write a library to the folder, if there is one, and return what :func:`load` does.

    Raises:
        CannotLoad: It needs a function that the process does not have.
    """
    name, parts = kernel.__name__, words.split(",")
    place = folder()
    about = {"of": _identity(kernel, words), "sources": _sources(kernel.py_func.__module__)}
    text = json.dumps(about).encode()
    whole = data + text + len(text).to_bytes(8, "little") + _END
    if place is not None:
        temporary = ""
        try:
            handle, temporary = tempfile.mkstemp(dir=place)
            with os.fdopen(handle, "wb") as file:
                file.write(whole)
            found = _loaded(temporary, name, parts)
            os.replace(temporary, place / _file_name(kernel, words))
            return found
        except OSError:  # the folder is full, or cannot be written to any more
            pass
        finally:
            if temporary and os.path.exists(temporary):
                os.unlink(temporary)
    handle = os.memfd_create(name)
    try:
        os.write(handle, data)
        # The system's loader takes a path that it knows for the library that it was: a new one.
        path = "".join("./" if bit == "1" else "/" for bit in f"{next(_nameless):b}")
        return _loaded(f"/proc/self/fd/{path}{handle}", name, parts)
    finally:
        os.close(handle)


def _loaded(path: str, name: str, words: list[str]) -> tuple[Any, Any, int]:
    try:
        return entry.load(path, name, words)
    except OSError as error:
        raise CannotLoad(str(error)) from error


def _identity(kernel: Any, words: str) -> str:
    options = {k: sorted(v) if isinstance(v, set) else v for k, v in kernel.options.items()}
    function = kernel.py_func
    return json.dumps([function.__module__, function.__qualname__, words, kernel.declared, options])


def _file_name(kernel: Any, words: str) -> str:
    key = hashlib.blake2b(_identity(kernel, words).encode(), digest_size=8).hexdigest()
    return f"{kernel.__name__.strip('_')}-{key}.so"


def _description(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            file.seek(-16, os.SEEK_END)
            end = file.read()
            length = int.from_bytes(end[:8], "little")
            file.seek(-16 - length, os.SEEK_END)
            return json.loads(file.read(length)) if end[8:] == _END else None
    except (OSError, ValueError):
        return None


@cache
def _hash(name: str) -> str:
    try:
        return hashlib.blake2b((ROOT / name).read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return ""


def _sources(module: str) -> dict[str, str]:
    # Of the module, what it imports of kernels, and what makes entries.
    start = Path(sys.modules[module].__file__ or "")
    if start.is_relative_to(ROOT):
        start = start.relative_to(ROOT)
    here = Path(compiler.__file__).parent.relative_to(ROOT)
    todo = [start, *[here / f"{n}.py" for n in ("translate", "entry", "link", "runtime")]]
    found: dict[str, str] = {}
    while todo:
        path = todo.pop()
        name = path.as_posix()
        if name not in found:
            found[name] = _hash(name)
            todo += _imported(path)
    return found


def _imported(path: Path) -> list[Path]:
    # Files of kernels that one imports from, wherever it does.
    found = []
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for name in ["", *[a.name for a in node.names]]:
                file = (base / name).with_suffix(".py") if name else base.with_suffix(".py")
                if (ROOT / file).is_file() and file.is_relative_to(_KERNELS):
                    found.append(file)
    return found
