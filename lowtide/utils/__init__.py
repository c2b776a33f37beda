"""Utilities, under PyTorch's names: checkpointing, data, model summaries."""

from importlib import import_module as _import_module
from typing import Any as _Any

from lowtide.framework.serialization import CheckpointDirectory as CheckpointDirectory


def __getattr__(name: str) -> _Any:
    """Import ``data`` when it is first asked for: it brings multiprocessing along."""
    if name == "data":
        return _import_module("lowtide.utils.data")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
