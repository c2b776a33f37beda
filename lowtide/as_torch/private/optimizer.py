"""``torch.optim.optimizer``: private helpers that optimizers of libraries are written with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import lowtide as _lt

ParamsT = _params_t = Any
_capturable_doc = _foreach_doc = _maximize_doc = _differentiable_doc = _fused_doc = _params_doc = ""


def _use_grad_for_differentiable(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a step: it records no gradient, unless its group says ``differentiable``."""

    @functools.wraps(func)
    def step(*args: Any, **kwargs: Any) -> Any:
        defaults: dict[str, Any] = getattr(args[0], "defaults", {})
        with _lt.set_grad_enabled(bool(defaults.get("differentiable"))):
            return func(*args, **kwargs)

    return step


def _default_to_fused_or_foreach(
    params: Sequence[Any], differentiable: bool, use_fused: bool = False
) -> tuple[bool, bool]:
    """Return (False, False): neither, for lowtide has no kernels of many tensors."""
    return False, False


def _get_capturable_supported_devices(supports_xla: bool = True) -> list[str]:
    """Return no names: no step is captured."""
    return []


def _get_value(x: Any) -> Any:
    """Return the number of a tensor or number."""
    return x.item() if isinstance(x, _lt.Tensor) else x


def _dispatch_sqrt(x: Any) -> Any:
    """Return the square root of a tensor or number."""
    return x.sqrt() if isinstance(x, _lt.Tensor) else x**0.5


def _stack_if_compiling(x: Any) -> Any:
    """Return ``x``: nothing is compiled."""
    return x


def _view_as_real(params: Sequence[Any], *state: Any) -> None:
    """Replace complex tensors of lists by views of two real numbers."""
    for i, p in enumerate(params):
        if _lt.is_complex(p):
            for column in (params, *state):
                if column and column[i] is not None:
                    column[i] = _lt.view_as_real(column[i])


def _group_tensors_by_device_and_dtype(
    tensorlistlist: Sequence[Sequence[Any]], with_indices: bool = False
) -> dict[Any, Any]:
    """Group the columns of lists of tensors by the first list's devices and dtypes."""
    groups: dict[Any, Any] = {}
    for i, t in enumerate(tensorlistlist[0]):
        lists, indices = groups.setdefault((t.device, t.dtype), ([[] for _ in tensorlistlist], []))
        for found, given in zip(lists, tensorlistlist, strict=True):
            if given:
                found.append(given[i])
        indices.append(i)
    return groups
