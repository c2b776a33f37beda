"""Modes of PyTorch's dispatcher, which lowtide does not have: names that libraries import."""

from __future__ import annotations

from typing import Any


class TorchDispatchMode:
    """A mode that would see each kernel's call: it can be defined, and not be entered.

    Raises:
        NotImplementedError: It is entered.
    """

    def __init__(self, _dispatch_key: Any = None) -> None:
        pass

    def __enter__(self) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__}: lowtide has no dispatch modes, so nothing would call "
            "__torch_dispatch__. lowtide.profiling sees each op with its bytes and its FLOPs."
        )

    def __exit__(self, *exc: object) -> None:
        """Never reached."""


def is_traceable_wrapper_subclass(t: Any) -> bool:
    """False: a tensor wraps no other here."""
    return False


def _get_current_dispatch_mode() -> None:
    """None: there are no modes."""


def _disable_current_modes() -> Any:
    """Return a context that changes nothing."""
    import contextlib

    return contextlib.nullcontext()
