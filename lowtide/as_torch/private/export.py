"""``torch.export``, which lowtide does not have: names that code mentions, and refusals."""

from __future__ import annotations

from typing import Any, NoReturn

from lowtide.utils import _pytree


class Dim:
    """The name of a dimension that may vary, for code that passes one on."""

    AUTO, STATIC, DYNAMIC = range(3)

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        self.__name__, self.min, self.max = name, min, max


class ExportedProgram:
    """What an export makes in PyTorch; here there are none."""


def _raise_unsupported(name: str) -> NoReturn:
    raise NotImplementedError(
        f"torch.export.{name}: lowtide writes no programs. lowtide.fx traces plain modules, and a "
        "state dict can be loaded in PyTorch and exported there."
    )


def export(*args: Any, **kwargs: Any) -> Any:
    """Not supported.

    Raises:
        NotImplementedError: Always.
    """
    _raise_unsupported("export")


def load(*args: Any, **kwargs: Any) -> Any:
    """Not supported.

    Raises:
        NotImplementedError: Always.
    """
    _raise_unsupported("load")


def save(*args: Any, **kwargs: Any) -> Any:
    """Not supported.

    Raises:
        NotImplementedError: Always.
    """
    _raise_unsupported("save")


export_for_training = draft_export = export


def register_dataclass(cls: type, **options: Any) -> None:
    """Register a dataclass as a pytree."""
    _pytree.register_dataclass(cls, **options)
