"""What needs several processes or devices: names that libraries probe, refused when used.

``isinstance(x, DTensor)`` and ``isinstance(model, FullyShardedDataParallel)`` are asked by trainers
of whatever they are given; the answer is no.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn

_WAY_OUT = (
    "is not there: over processes there are DistributedDataParallel, ZeroRedundancyOptimizer and "
    "fully_shard. Leave it out; `lowtide fit` and activation checkpointing say and change what one "
    "process needs."
)


class _Refused:
    def __init__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"torch.distributed: {type(self).__name__} {_WAY_OUT}")


def _class(name: str) -> type[_Refused]:
    return type(
        name, (_Refused,), {"__doc__": "Not supported: raises when made.", "__module__": __name__}
    )


def _function(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"torch.distributed: {name} {_WAY_OUT}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = "Not supported: raises when called."
    return refuse


def record(function: Callable[..., Any] | None = None, error_handler: Any = None) -> Any:
    """Return the function: PyTorch's writes its exception to a file that a launcher reads."""
    if function is None:
        return functools.partial(record, error_handler=error_handler)
    return function


def is_available() -> bool:
    """False: there is no rpc and no launcher."""
    return False


@functools.cache
def _made(name: str) -> Any:
    return _class(name) if name[0].isupper() else _function(name)


def __getattr__(name: str) -> Any:
    """Any other name is a class or a function that refuses when it is used."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return sys.modules[__name__]
    return _made(name)


_MODULES = frozenset(  # below the packages that this module stands for
    [
        "api",
        "default_planner",
        "errors",
        "filesystem",
        "fully_sharded_data_parallel",
        "multiprocessing",
        "rendezvous",
        "sharded_grad_scaler",
        "state_dict",
        "wrap",
    ]
)
