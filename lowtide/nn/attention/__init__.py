"""Which kernel computes ``scaled_dot_product_attention``: here there is one, whatever is asked.

It works tile by tile and keeps no matrix of scores, as the flash and memory-efficient ones do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable as _Iterable
from collections.abc import Iterator as _Iterator
from enum import IntEnum as _IntEnum
from typing import Any


class SDPBackend(_IntEnum):
    """The names of PyTorch's kernels."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextlib.contextmanager
def sdpa_kernel(
    backends: SDPBackend | _Iterable[SDPBackend], set_priority: bool = False
) -> _Iterator[None]:
    """Accept a choice of kernels; lowtide's own runs in any case.

    Raises:
        TypeError: It is no ``SDPBackend``.
    """
    chosen: list[Any] = [backends] if isinstance(backends, SDPBackend) else list(backends)
    for one in chosen:
        if not isinstance(one, SDPBackend):
            raise TypeError(
                f"sdpa_kernel takes an SDPBackend or a list of them; got {one!r}. Pass "
                "SDPBackend.MATH, FLASH_ATTENTION, EFFICIENT_ATTENTION or CUDNN_ATTENTION."
            )
    yield


WARN_FOR_UNFUSED_KERNELS = False
