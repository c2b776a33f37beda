"""Extensions in C++ and CUDA against PyTorch's headers, which lowtide does not have.

The names can be imported, because libraries have a slower path for this case.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

CUDA_HOME = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
ROCM_HOME = None
IS_WINDOWS = os.name == "nt"
IS_HIP_EXTENSION = False


def _raise_unsupported(name: str) -> NoReturn:
    raise RuntimeError(
        f"torch.utils.cpp_extension.{name}: lowtide cannot compile extensions against PyTorch's "
        "C++ interface, for it has no tensors of C++. Use the library's path in Python; a kernel "
        "of lowtide is written in Numba or CuPy, as docs/add_an_op.md shows."
    )


def load(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
    """Not supported.

    Raises:
        RuntimeError: Always.
    """
    _raise_unsupported("load")


def load_inline(name: str, cpp_sources: Any, *args: Any, **kwargs: Any) -> Any:
    """Not supported.

    Raises:
        RuntimeError: Always.
    """
    _raise_unsupported("load_inline")


def CppExtension(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
    """Not supported.

    Raises:
        RuntimeError: Always.
    """
    _raise_unsupported("CppExtension")


def CUDAExtension(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
    """Not supported.

    Raises:
        RuntimeError: Always.
    """
    _raise_unsupported("CUDAExtension")


class BuildExtension:
    """The build step of extensions.

    Raises:
        RuntimeError: It is used.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _raise_unsupported("BuildExtension")

    @classmethod
    def with_options(cls, **options: Any) -> Any:
        """Not supported."""
        _raise_unsupported("BuildExtension.with_options")


def include_paths(*args: Any, **kwargs: Any) -> list[str]:
    """Return no folders: there are no headers."""
    return []


def library_paths(*args: Any, **kwargs: Any) -> list[str]:
    """Return no folders: there are no libraries."""
    return []


def is_ninja_available() -> bool:
    """False: nothing is built."""
    return False
