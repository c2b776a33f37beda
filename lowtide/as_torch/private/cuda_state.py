"""Whether CUDA is in use, as a private attribute of ``torch.cuda`` that reversible layers read."""

from __future__ import annotations

import lowtide.cuda as _cuda


def __getattr__(name: str) -> bool:
    if name == "_initialized":
        return _cuda.is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
