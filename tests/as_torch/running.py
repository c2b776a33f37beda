"""Code that runs in a process of its own, in which ``import torch`` means lowtide."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


def answers(setup: str, questions: list[str]) -> dict[str, Any]:
    """Evaluate expressions behind a setup; an exception is answered by its type and text."""
    code = f"""
import json
{textwrap.dedent(setup)}
found = {{}}
for question in {questions!r}:
    try:
        try:
            answer = eval(question)
        except SyntaxError:
            exec(question)
            answer = None
    except Exception as error:
        answer = [type(error).__name__, str(error)]
    found[question] = answer if isinstance(answer, (bool, int, float, list)) else repr(answer)
print("ANSWERS" + json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.rpartition("ANSWERS")[2]))


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with some words."""
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=ENVIRONMENT, cwd=cwd
    )


def printed(code: str, as_torch: bool) -> Any:
    """Run code that leaves something in ``result``, with lowtide as torch or with PyTorch."""
    first = "import lowtide.as_torch\n" if as_torch else ""
    tail = "\nimport json\nprint('ANSWERS' + json.dumps(result))\n"
    done = run("-W", "ignore", "-c", first + textwrap.dedent(code) + tail)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("ANSWERS")[2])
