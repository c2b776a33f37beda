"""Intel's GPUs, which lowtide does not run on: questions are answered, work is refused."""

from __future__ import annotations

from typing import Any, NoReturn


def is_available() -> bool:
    """False: lowtide does not run there."""
    return False


def device_count() -> int:
    """Zero."""
    return 0


def _raise_unsupported(name: str) -> NoReturn:
    raise RuntimeError(
        f"torch.xpu.{name}: lowtide does not run on Intel's GPUs. Use the device 'cpu', or 'cuda' "
        "with CuPy; ask torch.xpu.is_available() first."
    )


def synchronize(device: Any = None) -> None:
    """Not supported.

    Raises:
        RuntimeError: Always.
    """
    _raise_unsupported("synchronize")


def memory_allocated(device: Any = None) -> int:
    """Zero bytes: nothing lives there."""
    return 0


def memory_reserved(device: Any = None) -> int:
    """Zero bytes: nothing lives there."""
    return 0


def empty_cache() -> None:
    """Do nothing: nothing is held there."""


def manual_seed(seed: int) -> None:
    """Do nothing: no numbers are drawn there."""


def seed() -> None:
    """Do nothing: no numbers are drawn there."""


def get_rng_state() -> Any:
    """Not supported.

    Raises:
        RuntimeError: Always.
    """
    _raise_unsupported("get_rng_state")


def set_rng_state(new_state: Any) -> None:
    """Not supported.

    Raises:
        RuntimeError: Always.
    """
    _raise_unsupported("set_rng_state")


def manual_seed_all(seed: int) -> None:
    """Do nothing: no numbers are drawn there."""
