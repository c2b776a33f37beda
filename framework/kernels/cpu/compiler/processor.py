"""What compiled code depends on beside its source: the processor, the compiler and its settings."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .fingerprint import Unknown

TARGET = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX")  # what code is compiled for
# Settings of Numba that change no compiled code: where it caches, what it prints, its threads.
_HARMLESS = (
    "NUMBA_CACHE", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER", "NUMBA_DUMP", "NUMBA_DISABLE_JIT",
    "NUMBA_WARNINGS", "NUMBA_COLOR_SCHEME", "NUMBA_SHOW_HELP", "NUMBA_CUDA", "NUMBA_GDB",
    "NUMBA_DISABLE_PERFORMANCE_WARNINGS", "NUMBA_DEVELOPER_MODE", "NUMBA_FULL_TRACEBACKS",
    "NUMBA_CAPTURED_ERRORS", "NUMBA_DEBUG_CACHE", "NUMBA_JIT_COVERAGE",
)  # fmt: skip
# Of settings that change code: the variable, and Numba's default. A program may set
# numba.config.NAME without the variable, and so may a file .numba_config.yaml.
_DEFAULTS: dict[str, tuple[str, Any]] = {
    "BOUNDSCHECK": ("NUMBA_BOUNDSCHECK", None),
    "CPU_FEATURES": ("NUMBA_CPU_FEATURES", None),
    "CPU_NAME": ("NUMBA_CPU_NAME", None),
    "DEBUGINFO_DEFAULT": ("NUMBA_DEBUGINFO", 0),
    "DISABLE_INTEL_SVML": ("NUMBA_DISABLE_INTEL_SVML", 0),
    "LOOP_VECTORIZE": ("NUMBA_LOOP_VECTORIZE", 1),
    "OPT": ("NUMBA_OPT", 3),
    "SLP_VECTORIZE": ("NUMBA_SLP_VECTORIZE", 0),
}


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


def settings(check: bool = False) -> list[str]:
    """Return the settings of the compiler in the environment that may change code.

    Args:
        check: Whether Numba, which is imported, must have been given just these.

    Raises:
        Unknown: It has others: a program or a file of settings changed them.
    """
    if check and (other := _changed_settings()):
        raise Unknown(f"numba.config has other values than the environment: {', '.join(other)}")
    found = (n for n in sorted(os.environ) if n.startswith("NUMBA_"))
    return [f"{n}={os.environ[n]}" for n in found if not n.startswith(_HARMLESS)]


def _changed_settings() -> list[str]:
    config = sys.modules["numba.core.config"]
    changed = []
    for name, (variable, default) in _DEFAULTS.items():
        value = getattr(config, name, default)
        given = os.environ.get(variable)
        if value != default if given is None else str(value) != given:
            changed.append(name)
    return changed


def versions(check: bool = False) -> list[str]:
    """Return what tells versions of NumPy and of the compiler's packages apart.

    Importing Numba for its version would take most of the time that a kept library saves, so the
    files that hold the versions are read.

    Args:
        check: Whether the packages that are imported must be those on disk.

    Raises:
        Unknown: They are not: they were replaced meanwhile. Or a version cannot be found.
    """
    found = {name: _version_on_disk(name) for name in ("numba", "llvmlite")}
    for name, version in found.items():
        if check and sys.modules[name].__version__ != version:
            raise Unknown(f"{name} on disk is not the one that is imported")
    return [f"{name} {version}" for name, version in {"numpy": np.__version__, **found}.items()]


_VERSION = re.compile(r"""\bversion(?:_version)?["']?\s*[:=]\s*["']([^"']+)""")


@cache
def _version_on_disk(package: str) -> str:
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        path = Path(folder, "_version.py")
        if path.is_file() and (found := _VERSION.search(path.read_text(encoding="utf-8"))):
            return found[1]
    raise Unknown(f"the version of {package}")


@cache
def has(feature: str) -> bool:
    """Whether code is compiled for a processor with this feature, by LLVM's name such as "avx2".

    That is this machine's, unless NUMBA_CPU_FEATURES or NUMBA_ENABLE_AVX says otherwise.
    """
    flags = description()[1].split()
    if not flags or any(name in os.environ for name in TARGET):
        return feature in _asked_compiler()
    named = feature.replace("avx512", "avx512_").replace("-", "_")  # as Linux names it
    return feature in flags or named in flags


def register_bytes() -> int:
    """Return the size of a vector register that code is compiled for: 64 with AVX-512, else 32."""
    return 64 if has("avx512f") else 32


@cache
def _asked_compiler() -> list[str]:
    from numba.core import codegen as _codegen
    from numba.core import config as _config

    codegen: Any = _codegen
    config: Any = _config
    given = config.CPU_FEATURES
    features = codegen.get_host_cpu_features() if given is None else given
    return [f[1:] for f in features.split(",") if f.startswith("+")]
