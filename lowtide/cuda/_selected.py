"""Which GPU is meant where none is named."""

from __future__ import annotations

from typing import Any

from lowtide.framework.device import device as _device

current = [0]


def as_device(device: Any) -> _device:
    """Return a GPU by name, index or device; the current one for None and ``"cuda"``.

    Raises:
        ValueError: It is another device.
    """
    if device is None:
        return _device("cuda", current[0])
    found = _device(device)
    if found.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {found}. Pass 'cuda' or 'cuda:0'.")
    if str(device) == "cuda":  # without an index: the current one
        return _device("cuda", current[0])
    return found
