"""Utilities, under PyTorch's names: checkpointing, data, loggers."""

from importlib import import_module as _import_module
from typing import Any as _Any

from lowtide.framework.serialization import CheckpointDirectory as CheckpointDirectory

_PARTS = (
    "_pytree",
    "_python_dispatch",
    "checkpoint",
    "collect_env",
    "cpp_extension",
    "data",
    "dlpack",
    "flop_counter",
    "hooks",
    "loggers",
    "model_zoo",
    "tensorboard",
)


def __getattr__(name: str) -> _Any:
    """Import a part when it is first asked for: ``data`` brings multiprocessing along."""
    if name in _PARTS:
        return _import_module(f"lowtide.utils.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
