"""How kernels here are compiled: once per machine where that can be kept, else once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from numba import njit
from numba.core import codegen as _codegen
from numba.core import config as _config

F = TypeVar("F", bound=Callable[..., Any])
codegen: Any = _codegen
config: Any = _config

SUMS = {"reassoc", "contract"}  # sums may be split into lanes; NaN and infinity keep their meaning
FUSED = {"contract"}  # a product and a sum may round once


def has(feature: str) -> bool:
    """Whether code is compiled for a processor with this feature, by LLVM's name such as "avx2".

    That is this machine's, unless NUMBA_CPU_FEATURES or NUMBA_ENABLE_AVX says otherwise.
    """
    given = config.CPU_FEATURES
    features: str = codegen.get_host_cpu_features() if given is None else given
    return f"+{feature}" in features.split(",")


@overload
def compiled(function: F) -> F: ...
@overload
def compiled(*, fastmath: Any) -> Callable[[F], F]: ...
@overload
def compiled(function: F, *, signature: Any, fastmath: Any = False) -> F: ...
def compiled(function: Any = None, *, fastmath: Any = False, signature: Any = None) -> Any:
    """Compile on first call; releases the interpreter's lock, divides by zero as NumPy does.

    Args:
        function: Nothing but loops over arrays.
        fastmath: What the compiler may do to floating-point arithmetic: ``SUMS`` or ``FUSED``.
        signature: Compile for these argument types at once, and for no others.
    """
    if function is None:
        return lambda f: _compile(f, fastmath, signature)
    return _compile(function, fastmath, signature)


def _compile(function: Any, fastmath: Any, signature: Any) -> Any:
    options = {"nogil": True, "error_model": "numpy", "fastmath": fastmath}
    make: Any = njit
    types = () if signature is None else (signature,)
    try:
        return make(*types, cache=True, **options)(function)
    except RuntimeError:  # no folder to keep it in can be written
        return make(*types, **options)(function)
