"""PyTorch's global settings, accepted for compatibility.

Lowtide has one implementation of each op: on the CPU it is deterministic, and a matrix product runs
in the precision of its inputs. So these are remembered and answered, and change nothing.
"""

from __future__ import annotations

from typing import Any

PRECISIONS = ("highest", "high", "medium")
_state: dict[str, Any] = {"precision": "highest", "deterministic": False, "warn_only": False}


def set_float32_matmul_precision(precision: str) -> None:
    """Set PyTorch's float32 matmul precision; stored, but products stay in float32.

    Raises:
        ValueError: It is none of "highest", "high", "medium".
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"set_float32_matmul_precision takes one of {', '.join(PRECISIONS)}; got {precision!r}."
        )
    _state["precision"] = precision


def get_float32_matmul_precision() -> str:
    """Return the setting of :func:`set_float32_matmul_precision`; "highest" by default."""
    return str(_state["precision"])


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Set PyTorch's flag for deterministic algorithms; on the CPU there are no others."""
    _state.update(deterministic=bool(mode), warn_only=bool(warn_only))


def are_deterministic_algorithms_enabled() -> bool:
    """Return the flag set by :func:`use_deterministic_algorithms`."""
    return bool(_state["deterministic"])


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """True if :func:`use_deterministic_algorithms` was called with ``warn_only=True``."""
    return bool(_state["warn_only"])


def set_flush_denormal(mode: bool) -> bool:
    """Return False: flushing of denormal numbers is not supported."""
    return False
