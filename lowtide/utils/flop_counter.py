"""PyTorch's counter of operations, which needs its dispatcher; lowtide estimates a step's."""

from __future__ import annotations

from typing import Any


class FlopCounterMode:
    """A block whose operations would be counted: it can be made, and not be entered.

    Raises:
        NotImplementedError: It is entered.
    """

    def __init__(
        self, mods: Any = None, depth: int = 2, display: bool = True, custom_mapping: Any = None
    ) -> None:
        self.depth, self.display = depth, display

    def __enter__(self) -> Any:
        raise NotImplementedError(
            "FlopCounterMode: lowtide counts the operations of a complete step: "
            "lowtide.profiling.estimate(step).flops, or `lowtide estimate script.py`."
        )

    def __exit__(self, *exc: object) -> None:
        """Never reached."""
