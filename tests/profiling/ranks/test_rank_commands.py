"""``lowtide launch --profile`` and ``lowtide report`` of several ranks, as a user types them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide import cli
from lowtide.framework.distributed.place import launched_rank
from lowtide.profiling import rank_report

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import sys
import lowtide as lt
import lowtide.distributed as dist
from lowtide import nn, optim
from lowtide.nn.parallel import DistributedDataParallel

dist.init_process_group()
model = DistributedDataParallel(nn.Linear(20, 5))
optimizer = optim.AdamW(model.parameters())
held = lt.ones(500_000 * dist.get_rank())
for step in range(3):
    optimizer.zero_grad()
    model(lt.randn(8, 20)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
if "--crash" in sys.argv and held.numel():
    raise ValueError("inside the script")
"""


def lowtide(folder: Path, *words: str, **told: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lowtide", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **told},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.deep
def test_a_launched_script_is_profiled_in_each_rank(folder: Path) -> None:
    done = lowtide(folder, "launch", "-n", "2", "--profile", "memory", "train.py")
    assert done.returncode == 0, done.stderr
    assert "2 ranks; times are medians of 2 steps" in done.stdout
    assert "Rank 1 holds most: " in done.stdout
    assert "Of temporaries it has 1.91 MiB more." in done.stdout  # 500,000 elements of float32
    names = {str(path.relative_to(folder / "memory")) for path in folder.glob("memory/**/*.*")}
    each = {
        f"rank-{k}/{name}" for k in (0, 1) for name in ("run.json", "memory.html", "memory.png")
    }
    assert names == each | {"ranks.png"}
    found = rank_report(folder / "memory")
    assert found.figures[1].peak_bytes - found.figures[0].peak_bytes == 2_000_000
    again = lowtide(folder, "report", "memory", "--png", "again.png")
    assert again.returncode == 0
    assert again.stdout.splitlines() == str(found).splitlines()
    assert (folder / "again.png").read_bytes()[:4] == b"\x89PNG"
    page = lowtide(folder, "report", "memory", "--html", "page.html")
    assert page.returncode == 2
    assert "name the folder of one: memory/rank-0" in page.stderr
    assert "3 optimizer steps, peaks cpu" in lowtide(folder, "report", "memory/rank-1").stdout


@pytest.mark.deep
def test_ranks_are_reported_although_one_fails(folder: Path) -> None:
    done = lowtide(folder, "launch", "-n", "2", "--profile", "memory", "train.py", "--crash")
    assert done.returncode == 1
    assert "ValueError: inside the script" in done.stderr
    assert (folder / "memory/rank-1/run.json").exists()
    assert "2 ranks; " in done.stdout


def test_what_has_no_python_script_has_no_profile(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["launch", "-n", "2", "--profile", "memory", "--no-python", "true"]
    assert cli.main(words) == 2
    assert "--profile is for a Python script" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("told", "rank"),
    [
        ({}, None),
        ({"RANK": "3", "WORLD_SIZE": "4"}, 3),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "0"}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, 0),
        ({"RANK": "x", "WORLD_SIZE": "2"}, None),
    ],
)
def test_launchers_say_which_rank_a_process_is(
    told: dict[str, str], rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert launched_rank() == rank
