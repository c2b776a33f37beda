"""Mixed precision on a GPU, under PyTorch's older names for it; new code uses ``lowtide.amp``."""

from __future__ import annotations

from functools import partial
from typing import Any

from lowtide.framework.amp.autocast import autocast as _autocast
from lowtide.framework.amp.custom_function import custom_bwd as _custom_bwd
from lowtide.framework.amp.custom_function import custom_fwd as _custom_fwd
from lowtide.framework.dtypes import float16 as _float16
from lowtide.optim.grad_scaler import GradScaler as _GradScaler

__path__: list[str] = []  # so that Python asks for modules below: lowtide._torch_paths


class autocast(_autocast):
    """``lowtide.autocast("cuda")``, its dtype float16 unless said otherwise."""

    def __init__(
        self, enabled: bool = True, dtype: Any = _float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("cuda", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(_GradScaler):
    """``lowtide.amp.GradScaler("cuda")``."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            "cuda", init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )


custom_fwd = partial(_custom_fwd, device_type="cuda")
custom_bwd = partial(_custom_bwd, device_type="cuda")
