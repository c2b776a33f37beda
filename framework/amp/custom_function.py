"""Custom autograd functions under autocast: ``custom_fwd`` and ``custom_bwd``."""

from __future__ import annotations

import functools
from typing import Any

from ..dtypes import dtype
from ..ops.autocast_policy import eligible
from ..tensor import Tensor
from .autocast import autocast, checked, get_autocast_dtype, is_autocast_enabled


def custom_fwd(fwd: Any = None, *, device_type: str, cast_inputs: dtype | None = None) -> Any:
    """Decorate ``forward`` of an ``autograd.Function`` for use with autocast.

    Args:
        fwd: The function.
        device_type: Whose regions matter.
        cast_inputs: Convert float tensors to this inside a region, and run without autocast; None:
            run as it is called.
    """
    checked(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._dtype = get_autocast_dtype(device_type)
        enabled = is_autocast_enabled(device_type)
        ctx._fwd_used_autocast = enabled and cast_inputs is None
        if cast_inputs is None or not enabled:
            return fwd(ctx, *args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(
                ctx,
                *_all_cast(args, device_type, cast_inputs),
                **_all_cast(kwargs, device_type, cast_inputs),
            )

    return forward


def custom_bwd(bwd: Any = None, *, device_type: str) -> Any:
    """Decorate ``backward`` of an ``autograd.Function`` to run under the forward's autocast."""
    checked(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        with autocast(device_type, ctx._dtype, enabled=ctx._fwd_used_autocast):
            return bwd(ctx, *args, **kwargs)

    return backward


def _all_cast(value: Any, device_type: str, wanted: dtype) -> Any:
    if isinstance(value, Tensor):
        fits = value.device.type == device_type and eligible(value)
        return value.to(wanted) if fits else value
    if isinstance(value, dict):
        return {k: _all_cast(v, device_type, wanted) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_all_cast(v, device_type, wanted) for v in value)
    return value
