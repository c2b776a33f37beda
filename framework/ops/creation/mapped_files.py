"""Files as memory: what ``from_file`` of storages and tensors reads."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any

import numpy as np


def mapped_bytes(filename: Any, shared: bool, nbytes: int) -> Any:
    """Map the first bytes of a file as an array of uint8.

    Args:
        filename: Its path.
        shared: Writes reach the file. It is made, and made longer, as needed.
        nbytes: How many.

    Raises:
        RuntimeError: The file cannot be opened or mapped, or is shorter and not shared.
    """
    path = os.fspath(filename)
    mode = os.O_RDWR | os.O_CREAT if shared else os.O_RDONLY
    if nbytes < 0:
        raise RuntimeError(f"from_file: a size cannot be negative; got {nbytes} bytes of <{path}>.")
    if nbytes == 0:
        return np.empty(0, np.uint8)  # as PyTorch, without a look at the file
    try:
        fd = os.open(path, mode | getattr(os, "O_CLOEXEC", 0), 0o600)
    except OSError as error:
        words = "read-write mode" if shared else "read-only mode"
        raise RuntimeError(
            f"unable to open file <{path}> in {words}: {error.strerror} ({error.errno})"
        ) from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd)  # the mapping keeps the file
        size = os.fstat(fd).st_size
        if size < nbytes:
            if not shared:
                raise RuntimeError(
                    f"file <{path}> size <{size}> is smaller than the required mapping size "
                    f"<{nbytes}>. Ask for no more than the file holds, or pass shared=True, which "
                    "makes it longer."
                )
            os.ftruncate(fd, nbytes)
        access = mmap.ACCESS_WRITE if shared else mmap.ACCESS_COPY
        try:
            mapping = mmap.mmap(fd, nbytes, access=access)
        except OSError as error:
            raise RuntimeError(
                f"unable to mmap {nbytes} bytes from file <{path}>: {error.strerror} "
                f"({error.errno})"
            ) from error
    return np.frombuffer(mapping, np.uint8)
