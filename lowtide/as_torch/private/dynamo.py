"""``torch._dynamo``: what code tells PyTorch's compiler; here everything runs as it is written."""

from __future__ import annotations

from typing import Any

from lowtide.compiler import allow_in_graph as allow_in_graph
from lowtide.compiler import assume_constant_result as assume_constant_result
from lowtide.compiler import config as config
from lowtide.compiler import disable as disable
from lowtide.compiler import explain as compiler_explain
from lowtide.compiler import is_compiling as is_compiling
from lowtide.compiler import is_dynamo_compiling as is_dynamo_compiling
from lowtide.compiler import list_backends as list_backends
from lowtide.compiler import reset as reset
from lowtide.compiler import substitute_in_graph as substitute_in_graph
from lowtide.modules.compiled import OptimizedModule as OptimizedModule


def optimize(backend: Any = "inductor", **options: Any) -> Any:
    """Return a decorator that leaves the function as it is."""
    return lambda f: f


def run(fn: Any = None) -> Any:
    """Return the function, or a decorator that does."""
    return fn if fn is not None else lambda f: f


def disallow_in_graph(fn: Any) -> Any:
    """Return the function."""
    return fn


forbid_in_graph = nonstrict_trace = disallow_in_graph


def graph_break(msg: str = "") -> None:
    """Do nothing: there is no graph to break."""


def mark_dynamic(t: Any, index: Any, **options: Any) -> None:
    """Do nothing: each call looks at its sizes."""


def maybe_mark_dynamic(t: Any, index: Any) -> None:
    """Do nothing: each call looks at its sizes."""


def mark_static(t: Any, index: Any = None) -> None:
    """Do nothing: each call looks at its sizes."""


def mark_static_address(t: Any, guard: bool = True) -> None:
    """Do nothing: nothing depends on an address."""


def explain(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a function that calls ``f`` and says what was recorded, as ``compiler.explain`` does.

    With arguments, call it at once.
    """
    if args or kwargs:
        return compiler_explain(f, *args, **kwargs)
    return lambda *given, **named: compiler_explain(f, *given, **named)


def is_dynamo_supported() -> bool:
    """False: there is no compiler."""
    return False


def is_compile_supported(device_type: Any) -> bool:
    """False: there is no compiler."""
    return False


class TransformGetItemToIndex:
    """A block in which an index may be a tensor that vmap maps: here it always may."""

    def __enter__(self) -> TransformGetItemToIndex:
        return self

    def __exit__(self, *exception: object) -> None:
        """End the block."""
