"""Versions, where PyTorch has them."""

from importlib import metadata as _metadata

from lowtide import __version__ as __version__


def _cuda() -> str | None:
    for package in ("cupy-cuda13x", "cupy-cuda12x"):
        try:
            _metadata.version(package)
        except _metadata.PackageNotFoundError:
            continue
        return package.removeprefix("cupy-cuda").removesuffix("x") + ".0"
    return None


cuda = _cuda()  # of the CuPy that is installed; None without one
hip = None
