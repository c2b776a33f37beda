"""``torch._subclasses.fake_tensor``: tensors without values, which are tensors on meta here."""

from __future__ import annotations

from typing import Any


class FakeTensor:
    """The class of PyTorch's fake tensors, of which there are none."""


class FakeTensorMode:
    """A block in which PyTorch computes shapes alone: it can be named, and not be entered.

    Raises:
        NotImplementedError: It is entered.
    """

    def __init__(self, **options: Any) -> None:
        pass

    def __enter__(self) -> Any:
        raise NotImplementedError(
            "FakeTensorMode: lowtide has the device 'meta' for shapes without values, and "
            "lowtide.profiling.estimate for a complete step without computing."
        )

    def __exit__(self, *exc: object) -> None:
        """Never reached."""


def is_fake(x: Any) -> bool:
    """False: there are no fake tensors."""
    return False


def get_proxy_mode() -> None:
    """None: nothing is traced by the dispatcher."""


def make_fx(*args: Any, **kwargs: Any) -> Any:
    """Not supported.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        "make_fx traces through PyTorch's dispatcher; lowtide.fx.symbolic_trace traces modules."
    )
