"""Which tier of tests kills each mutant: ``python -m tests.mutants.run``.

Each is tried in a copy of the checkout: first the tests that the catalogue names, then, if they
pass, the whole tier, then the deep one. The page of results is Markdown.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .catalog import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("lowtide", "framework", "modules", "optim", "profiling", "recipes", "tests", "benchmarks")
QUICK, DEEP = "quick", "deep"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def copied(into: Path) -> Path:
    """A copy of the checkout, with the kernels that are compiled already."""
    for name in COPIED:
        shutil.copytree(ROOT / name, into / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, into)
    shutil.copytree(ROOT / "docs", into / "docs")
    return into


def killer(here: Path, tests: tuple[str, ...], tier: str) -> str | None:
    """The first test of a tier that fails, or None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    if tier == DEEP:
        command += ["-m", DEEP]
    environment = {**os.environ, "PYTHONPATH": str(here)}
    ran = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)
    if ran.returncode in (0, 5):  # 5: no test of that tier is there
        return None
    found = _FAILED.search(ran.stdout)
    return found.group(1) if found else f"exit code {ran.returncode}"


def tried(mutant: Mutant, here: Path, deep: bool) -> tuple[str, str]:
    """(tier, test) that killed it; ("", "") if it survives."""
    path = here / mutant.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(mutant.before, mutant.after), encoding="utf-8")
    try:
        for tier, tests in [(QUICK, mutant.tests), (QUICK, ()), (DEEP, mutant.tests), (DEEP, ())]:
            if (tier == DEEP or not tests) and not deep:
                continue
            found = killer(here, tests, tier)
            if found is not None:
                return tier, found
        return "", ""
    finally:
        path.write_text(whole, encoding="utf-8")


def main() -> int:
    """Try the mutants and print a table; 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="mutants whose name or file contains this")
    parser.add_argument("--named", action="store_true", help="only the tests the catalogue names")
    args = parser.parse_args()
    survivors = 0
    print("| Mutant | File | Tier | Killed by | Seconds |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        here = copied(Path(folder) / "lowtide")
        for mutant in MUTANTS:
            if args.only not in mutant.name and args.only not in mutant.file:
                continue
            start = time.perf_counter()
            tier, test = tried(mutant, here, not args.named)
            survivors += not tier
            spent = time.perf_counter() - start
            row = (mutant.name, f"`{mutant.file}`", tier or "**none**", f"`{test}`", f"{spent:.0f}")
            print(f"| {' | '.join(row)} |", flush=True)
    print(f"\n{survivors} survive.")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
