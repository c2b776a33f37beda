"""Backend ``mpi`` under the mpiexec that is installed beside Python: MPICH's or Open MPI's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(
        MPIEXEC is None or find_spec("mpi4py") is None,
        reason="no MPI is installed beside Python: pip install 'lowtide[mpi]'",
    ),
]


def under_mpi(size: int, *what: str) -> subprocess.CompletedProcess[str]:
    assert MPIEXEC is not None
    version = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, check=False)
    more = []
    if "Open MPI" in version.stdout or "prte" in version.stdout.lower():
        more = ["--allow-run-as-root", "--oversubscribe"]
    command = [MPIEXEC, *more, "-n", str(size), sys.executable, "-m"]
    return subprocess.run(
        [*command, "tests.distributed.mpi_program", *what],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def running(what: str) -> list[psutil.Process]:
    """The ranks of mpi_program that were started with a word and have not ended."""
    words = ["cmdline", "status"]
    found = [p for p in psutil.process_iter(words) if what in (p.info["cmdline"] or [])]
    return [p for p in found if p.info["status"] != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_messages_collectives_and_training(size: int) -> None:
    what = ["collectives", "training", *(["messages"] if size > 1 else [])]
    done = under_mpi(size, *what)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank done") == size


@pytest.mark.parametrize("what", ["disagree", "deadline"])
def test_failures_are_errors_in_every_rank(what: str) -> None:
    done = under_mpi(3, what)
    assert done.returncode == 0, done.stderr


def test_an_exception_on_one_rank_ends_the_job() -> None:
    begun = time.monotonic()
    done = under_mpi(3, "fail")
    assert time.monotonic() - begun < 60
    assert done.returncode != 0
    assert "ZeroDivisionError: of rank 1" in done.stderr
    # The others say that rank 1 is gone, unless mpiexec ends them first: not looked for here.
    until = time.monotonic() + 30  # mpiexec may end before all that it killed have ended
    while left := running("fail"):
        assert time.monotonic() < until, left
        time.sleep(0.02)
