"""What libraries ask of ``torch.cuda`` beside what lowtide.cuda does: its state, captured graphs.

Reversible layers read the private ``_initialized``; serving code names the classes of CUDA graphs
in annotations. To capture one is refused.
"""

from __future__ import annotations

from typing import Any, NoReturn

import lowtide.cuda as _cuda

_WAY_OUT = (
    "lowtide does not capture CUDA graphs. Call the function as it is; each kernel is launched as "
    "PyTorch's eager mode does."
)


def __getattr__(name: str) -> bool:
    if name == "_initialized":
        return _cuda.is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class CUDAGraph:
    """A captured graph of CUDA: refused when made."""

    def __new__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Not supported."""
        raise NotImplementedError(f"torch.cuda.{cls.__name__}: {_WAY_OUT}")


class graph(CUDAGraph):
    """A block that captures a graph: refused when made."""


def make_graphed_callables(*args: Any, **kwargs: Any) -> NoReturn:
    """Not supported."""
    raise NotImplementedError(f"torch.cuda.make_graphed_callables: {_WAY_OUT}")


def graph_pool_handle() -> NoReturn:
    """Not supported."""
    raise NotImplementedError(f"torch.cuda.graph_pool_handle: {_WAY_OUT}")


def is_current_stream_capturing() -> bool:
    """False: nothing captures."""
    return False
