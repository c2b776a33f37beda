"""PyTorch's global settings, accepted for compatibility, and what each does here.

Lowtide has one implementation of each op: on the CPU it is deterministic, and a matrix product runs
in the precision of its inputs. So these are remembered and answered, and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F")

PRECISIONS = ("highest", "high", "medium")
_state: dict[str, Any] = {"precision": "highest", "deterministic": False, "warn_only": False}


def set_float32_matmul_precision(precision: str) -> None:
    """Remember how coarse float32 matrix products may be; they stay float32 here.

    Raises:
        ValueError: It is none of "highest", "high", "medium".
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"set_float32_matmul_precision takes one of {', '.join(PRECISIONS)}; got {precision!r}."
        )
    _state["precision"] = precision


def get_float32_matmul_precision() -> str:
    """What :func:`set_float32_matmul_precision` was told; "highest" at first."""
    return str(_state["precision"])


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Remember the wish for deterministic algorithms; on the CPU there are no others."""
    _state.update(deterministic=bool(mode), warn_only=bool(warn_only))


def are_deterministic_algorithms_enabled() -> bool:
    """What :func:`use_deterministic_algorithms` was told."""
    return bool(_state["deterministic"])


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Whether the wish was for warnings only."""
    return bool(_state["warn_only"])


def set_flush_denormal(mode: bool) -> bool:
    """Return False: how the processor treats denormal numbers is left as it is."""
    return False


def compile(model: F | None = None, **options: Any) -> F | Callable[[F], F]:
    """Return ``model`` as it is: nothing is compiled for now.

    Args:
        model: A module or function; without it, a decorator is returned.
        **options: Those of ``torch.compile``, which change nothing.
    """
    if model is None:
        return lambda f: f
    return model
