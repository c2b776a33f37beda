"""Processes: Python's ``multiprocessing``, and PyTorch's ``spawn`` beside it.

A tensor that is sent to another process is pickled, so that process gets a copy: PyTorch's lies in
shared memory. Where processes must share values, send results back through a queue.
"""

from __future__ import annotations

import multiprocessing as _multiprocessing
import sys as _sys
from multiprocessing import *  # noqa: F403
from multiprocessing import connection as connection
from typing import Any

from lowtide.framework.data import process_spawn as _process_spawn
from lowtide.framework.data.process_spawn import ProcessContext as ProcessContext
from lowtide.framework.data.process_spawn import ProcessException as ProcessException
from lowtide.framework.data.process_spawn import ProcessExitedException as ProcessExitedException
from lowtide.framework.data.process_spawn import ProcessRaisedException as ProcessRaisedException
from lowtide.framework.data.process_spawn import spawn as spawn
from lowtide.framework.data.process_spawn import start_processes as start_processes

SpawnContext = ProcessContext
_sys.modules[f"{__name__}.spawn"] = _process_spawn  # a module of this name, beside the function


def get_all_sharing_strategies() -> set[str]:
    """Return ``{"file_system"}``, PyTorch's name for what needs no open file: here, copies."""
    return {"file_system"}


def get_sharing_strategy() -> str:
    """Return ``"file_system"``."""
    return "file_system"


def set_sharing_strategy(new_strategy: str) -> None:
    """Accept PyTorch's strategies: tensors are copied under each of them.

    Raises:
        ValueError: It is neither ``"file_system"`` nor ``"file_descriptor"``.
    """
    if new_strategy not in ("file_system", "file_descriptor"):
        raise ValueError(
            f"set_sharing_strategy: {new_strategy!r} is neither 'file_system' nor "
            "'file_descriptor'."
        )


def init_reductions() -> None:
    """Do nothing: tensors are pickled as they are."""


def __getattr__(name: str) -> Any:
    return getattr(_multiprocessing, name)
