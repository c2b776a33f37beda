"""How this lowtide is built: what it computes with."""

from __future__ import annotations


def show() -> str:
    """Return a text with the versions of lowtide and of the libraries it computes with."""
    from importlib import metadata

    import lowtide

    lines = [f"lowtide {lowtide.__version__} on NumPy, Numba and CuPy; no part of PyTorch"]
    for name in ("numpy", "scipy", "numba", "cupy-cuda13x", "cupy-cuda12x"):
        try:
            lines.append(f"  - {name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return "\n".join(lines)


def parallel_info() -> str:
    """Return a text with the number of threads."""
    import lowtide

    return f"lowtide: {lowtide.get_num_threads()} threads"
