"""What the commands say of a script that keeps more with every step, as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import lowtide as lt
from lowtide import nn

net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = lt.optim.SGD(net.parameters(), lr=0.01)
x = lt.randn(128, 16)
evals, history = [], []

def loss_of():
    return net(x).square().mean()

for step in range(12):
    optimizer.zero_grad()
    loss_of().backward()
    optimizer.step()
    if step % 4 == 0:
        evals.append(loss_of() + loss_of())
    history.append(loss_of())
"""
# Of each kept loss: tanh's result, the difference from the mean's square, and the loss itself.
EACH = 4 * (128 * 64 + 128 + 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def lowtide(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lowtide", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "300"},
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("end", ["", "import sys; sys.exit(0)", "raise SystemExit"])
def test_leaks_names_the_lists_of_a_script_and_no_cycle(folder: Path, end: str) -> None:
    with open(folder / "train.py", "a") as file:
        file.write(f"{end}\n")
    done = lowtide(folder, "leaks", "--out", "leaks.json", "train.py")
    assert done.returncode == 1
    told = json.loads((folder / "leaks.json").read_text())
    assert told["steps"] == 12
    assert {f["root"].partition("[")[0] for f in told["findings"]} == {"`history", "`evals"}
    assert all(f["bytes"] > 0 for f in told["findings"])
    assert (told["shared_bytes"], told["elsewhere_bytes"]) == (0, 4 * 128 * 16)  # the data
    assert "held by `history[0]`, global of __main__" in done.stdout
    assert "held by `evals[0]`, global of __main__" in done.stdout
    assert "cycle" not in done.stdout
    assert done.stdout.startswith("2 graphs survive their step (12 steps watched)")


@pytest.mark.deep
def test_leaks_of_a_script_that_fails_are_named_too(folder: Path) -> None:
    with open(folder / "train.py", "a") as file:
        file.write("raise ValueError('at the end')\n")
    done = lowtide(folder, "leaks", "train.py")
    assert done.returncode == 1
    assert "ValueError: at the end" in done.stderr
    assert "held by `history[0]`, global of __main__" in done.stdout
    assert "cycle" not in done.stdout


@pytest.mark.deep
def test_advise_says_that_the_run_grows(folder: Path) -> None:
    done = lowtide(folder, "advise", "--limit", "1MiB", "--out", "advice.json", "train.py")
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "advice.json").read_text())
    run = found["run"]
    assert run["growth_bytes_per_step"] > EACH
    assert {f["kind"] for f in run["findings"]} == {"list"}
    assert "a step (12 steps watched): it passes the limit after some" in done.stdout
    tight = lowtide(folder, "advise", "--limit", "400KiB", "train.py")
    assert "it has passed the limit by then" in tight.stdout
    assert "list: `history[0]`, global of __main__ holds" in " ".join(tight.stdout.split())
