"""Mixed precision on the CPU, under PyTorch's older names for it; new code uses ``lowtide.amp``."""

from __future__ import annotations

from typing import Any

from lowtide.framework.amp.autocast import autocast as _autocast
from lowtide.framework.dtypes import bfloat16 as _bfloat16
from lowtide.optim.grad_scaler import GradScaler as _GradScaler

__path__: list[str] = []  # so that Python asks for modules below: lowtide._torch_paths


class autocast(_autocast):
    """``lowtide.autocast("cpu")``, its dtype bfloat16 unless said otherwise."""

    def __init__(
        self, enabled: bool = True, dtype: Any = _bfloat16, cache_enabled: bool = True
    ) -> None:
        super().__init__("cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(_GradScaler):
    """``lowtide.amp.GradScaler("cpu")``."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__("cpu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
