"""Apple's GPUs, which lowtide does not run on: questions are answered, work is refused."""

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
        f"torch.mps.{name}: lowtide does not run on Apple's GPUs. Use the device 'cpu', or 'cuda' "
        "with CuPy; ask torch.backends.mps.is_available() first."
    )


def synchronize() -> None:
    """Not supported.

    Raises:
        RuntimeError: Always.
    """
    _raise_unsupported("synchronize")


def current_allocated_memory() -> int:
    """Zero bytes: nothing lives there."""
    return 0


def driver_allocated_memory() -> int:
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
