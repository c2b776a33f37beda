"""What a newcomer waits for: ``pip install .``, then ``lowtide run digits``, twice, by part.

``python -m benchmarks.first_run`` copies the checkout, installs it into a new virtual environment
with empty caches (no data, no compiled kernels), and runs the recipe there twice. The time of
compilation is that of Numba's import, of compiling, and of reading compiled kernels from disk, as
the profiler's clock notes it. ``pip``'s download cache is left out, so installation depends on the
package index and the network; so does fetching the data, once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ("lowtide", "framework", "modules", "optim", "profiling", "recipes")
MEASURE = """
import contextlib, io, json, sys, time
begun = time.perf_counter()
import lowtide
from lowtide import cli
from lowtide.profiling.record.compile_clock import CompileClock
from lowtide.recipes import data
imported = time.perf_counter()
fetch, spent = data.digits, []
def timed(*args, **kwargs):
    start = time.perf_counter()
    try:
        return fetch(*args, **kwargs)
    finally:
        spent.append(time.perf_counter() - start)
data.digits = timed
clock = CompileClock()
clock.start()
with contextlib.redirect_stdout(io.StringIO()):
    assert cli.main(["run", "digits"]) == 0
whole = time.perf_counter() - begun
compiled = sum(c.seconds for c in clock.compilations())
parts = {"import lowtide": imported - begun, "data": sum(spent), "compilation": compiled}
parts["training, test, report"] = whole - sum(parts.values())
print(json.dumps({**parts, "in all": whole}))
"""


def first_run(folder: Path) -> tuple[float, list[dict[str, float]]]:
    """Install lowtide below a folder, and run the recipe there twice.

    Returns:
        Seconds of installation, and for each run seconds by part.
    """
    source = folder / "source"
    for name in PACKAGE:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    start = time.perf_counter()
    install = [python, "-m", "pip", "install", "-q", "--no-cache-dir", source]
    subprocess.run(install, check=True)
    installed = time.perf_counter() - start
    environment = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    environment.pop("PYTHONPATH", None)
    for name in ("NUMBA_CACHE_DIR", "LOWTIDE_CACHE_DIR"):
        environment.pop(name, None)
    runs = []
    for _ in range(2):
        done = subprocess.run(
            [python, "-c", MEASURE],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        runs.append(json.loads(done.stdout))
    return installed, runs


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        installed, (first, second) = first_run(Path(folder))
    print("| seconds | first run | second run |\n|---|---|---|")
    print(f"| pip install | {installed:.1f} | |")
    for part, seconds in first.items():
        print(f"| {part} | {seconds:.2f} | {second[part]:.2f} |")


if __name__ == "__main__":
    main()
