"""Run tests with eight threads, however many cores there are: as on a larger machine.

    python -m pytest -p tests.many_threads tests/ops

Shares of the work, workspaces and numbers of chunks follow from the number of threads, and machines
that run tests have few cores. Threads beyond the cores take turns: it is slower, and right.
"""

from __future__ import annotations

import os
import sys

COUNT = 8

assert "lowtide" not in sys.modules, "the number of threads is fixed when lowtide is imported"
os.environ["OMP_NUM_THREADS"] = str(COUNT)
if hasattr(os, "sched_getaffinity"):
    os.sched_getaffinity = lambda _: set(range(COUNT))  # type: ignore[assignment]
os.cpu_count = lambda: COUNT
