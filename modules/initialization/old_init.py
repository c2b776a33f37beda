"""PyTorch's old names of the initialization functions, without an underscore at their end."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from . import init


def _old(function: Callable[..., Any]) -> Callable[..., Any]:
    name = function.__name__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(
            f"`nn.init.{name[:-1]}` is an old name: use `nn.init.{name}`.",
            FutureWarning,
            stacklevel=2,
        )
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = name[:-1]
    return call


uniform = _old(init.uniform_)
normal = _old(init.normal_)
constant = _old(init.constant_)
eye = _old(init.eye_)
dirac = _old(init.dirac_)
xavier_uniform = _old(init.xavier_uniform_)
xavier_normal = _old(init.xavier_normal_)
kaiming_uniform = _old(init.kaiming_uniform_)
kaiming_normal = _old(init.kaiming_normal_)
orthogonal = _old(init.orthogonal_)
sparse = _old(init.sparse_)
