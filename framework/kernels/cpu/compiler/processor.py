"""The processor's name and instructions, as the system tells them: what compiled code is for."""

from __future__ import annotations

import os
import platform
from functools import cache
from typing import Any

SETTINGS = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX", "NUMBA_OPT")


@cache
def description() -> tuple[str, str]:
    """(name, instructions) of the first core, of x86-64 on Linux; two empty words elsewhere."""
    if platform.machine() != "x86_64":
        return "", ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = file.read(1 << 14).partition("\n\n")[0]
    except OSError:
        return "", ""
    lines = (line.partition(":") for line in first.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    name = " ".join(fields.get(n, "") for n in ("vendor_id", "cpu family", "model", "stepping"))
    return name, fields.get("flags", "")


def settings() -> list[str]:
    """What the compiler was told from outside."""
    return [f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ]


@cache
def has(feature: str) -> bool:
    """Whether code is compiled for a processor with this feature, by LLVM's name such as "avx2".

    That is this machine's, unless NUMBA_CPU_FEATURES or NUMBA_ENABLE_AVX says otherwise.
    """
    flags = description()[1].split()
    if not flags or settings():
        return feature in _asked_compiler()
    return feature in flags or feature.replace("avx512", "avx512_") in flags


@cache
def _asked_compiler() -> list[str]:
    from numba.core import codegen as _codegen
    from numba.core import config as _config

    codegen: Any = _codegen
    config: Any = _config
    given = config.CPU_FEATURES
    features = codegen.get_host_cpu_features() if given is None else given
    return [f[1:] for f in features.split(",") if f.startswith("+")]
