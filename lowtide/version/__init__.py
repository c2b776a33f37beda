"""Versions, where PyTorch has them."""

from typing import Any as _Any

from lowtide import __version__ as __version__

hip = None


def __getattr__(name: str) -> _Any:
    """Look for ``cuda``, of the CuPy that is installed, when first asked: that takes a while."""
    if name != "cuda":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["cuda"] = found = _cuda()
    return found


def _cuda() -> str | None:
    # None without CuPy.
    from importlib import metadata

    for package in ("cupy-cuda13x", "cupy-cuda12x"):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        return package.removeprefix("cupy-cuda").removesuffix("x") + ".0"
    return None
