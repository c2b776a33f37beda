"""cuDNN, which lowtide does not use: the switches are accepted and change nothing.

Convolution and attention are matrix products and kernels of lowtide's own.
"""

from collections.abc import Iterator as _Iterator
from contextlib import contextmanager

enabled: bool = False
benchmark: bool = False
deterministic: bool = True
allow_tf32: bool = False
benchmark_limit: int | None = None
CUDNN_TENSOR_DTYPES: frozenset[object] = frozenset()


def is_available() -> bool:
    """False: lowtide does not use cuDNN."""
    return False


def version() -> int | None:
    """None: lowtide does not use cuDNN."""
    return None


def is_acceptable(tensor: object) -> bool:
    """False: lowtide does not use cuDNN."""
    return False


def set_flags(
    _enabled: bool | None = None,
    _benchmark: bool | None = None,
    _benchmark_limit: int | None = None,
    _deterministic: bool | None = None,
    _allow_tf32: bool | None = None,
    _fp32_precision: str | None = None,
) -> tuple[object, ...]:
    """Set switches, and return what they were."""
    found = globals()
    given = {
        "enabled": _enabled,
        "benchmark": _benchmark,
        "benchmark_limit": _benchmark_limit,
        "deterministic": _deterministic,
        "allow_tf32": _allow_tf32,
    }
    before = tuple(found[name] for name in given)
    found.update({name: value for name, value in given.items() if value is not None})
    return before


@contextmanager
def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
    fp32_precision: str = "none",
) -> _Iterator[None]:
    """Set switches until the block ends."""
    before = set_flags(enabled, benchmark, benchmark_limit, deterministic, allow_tf32)
    try:
        yield
    finally:
        names = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")
        globals().update(zip(names, before, strict=True))
