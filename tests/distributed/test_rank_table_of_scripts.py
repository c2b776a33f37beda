"""``lowtide fit --world-sizes``: how many ranks a script of one process wants, to the byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lowtide import cli

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import lowtide as lt
import lowtide.distributed as dist
from lowtide import nn, optim
from lowtide.distributed.fsdp import fully_shard
from lowtide.distributed.optim import ZeroRedundancyOptimizer
from lowtide.nn.parallel import DistributedDataParallel

BEGIN
lt.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 150)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(150, 601), nn.GELU(), nn.Linear(601, 150)) for _ in range(3)
        )
        self.last = nn.Linear(150, 5)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def train(model, optimizer):
    for step in range(4):
        x, y = lt.randn(200, 20), lt.randint(0, 5, (200,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        del x, y, loss


def main():
    model = Net()
    SHARE
    lt.reset_peak_memory_stats()
    train(model, optimizer)


main()
END
"""
PLAIN = "optimizer = optim.AdamW(model.parameters())"
WAYS = {
    "DistributedDataParallel": "model = DistributedDataParallel(model)\n    " + PLAIN,
    "ZeroRedundancyOptimizer": (
        "model = DistributedDataParallel(model)\n"
        "    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW)"
    ),
    "fully_shard": (
        "for block in model.blocks:\n"
        "        fully_shard(block)\n"
        "    fully_shard(model)\n    " + PLAIN
    ),
}


def script(way: str | None) -> str:
    text = SCRIPT.replace("SHARE", PLAIN if way is None else WAYS[way])
    text = text.replace("BEGIN", "" if way is None else "dist.init_process_group()")
    end = "" if way is None else "print(lt.max_memory_allocated())\ndist.destroy_process_group()"
    return text.replace("END", end)


def lowtide(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lowtide", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.deep
def test_figures_are_those_of_the_script_in_so_many_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script(None))
    words = ["fit", "--world-sizes", "1,2", "-o", "found.json", "train.py"]
    done = lowtide(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("peak of the fullest rank")
    cells = json.loads((tmp_path / "found.json").read_text())["cells"]
    found = {(c["strategy"], c["world_size"]): c["peak_bytes"] for c in cells}
    for way in WAYS:
        (tmp_path / "shared.py").write_text(script(way))
        for size in (1, 2):
            real = lowtide(tmp_path, "launch", "--no-prefix", "-n", str(size), "shared.py")
            assert real.returncode == 0, real.stderr
            assert max(map(int, real.stdout.split())) == found[way, size], (way, size)


@pytest.mark.deep
def test_a_limit_names_the_fewest_ranks_and_the_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script(None))
    done = lowtide(tmp_path, "fit", "--budget", "7MiB", "--world-sizes", "1,2,4", "train.py")
    assert done.returncode == 0, done.stderr
    assert "* fits 7.00 MiB a rank. The fewest: " in done.stdout
    code = done.stdout.partition("and the optimizer are ready:\n")[2]
    assert "lowtide.distributed.init_process_group()" in code
    one = lowtide(tmp_path, "fit", "--budget", "1GiB", "--world-sizes", "1,2", "train.py")
    assert one.stdout.endswith("* fits 1.00 GiB a rank. One process is enough.\n")
    none = lowtide(tmp_path, "fit", "--budget", "1MiB", "--world-sizes", "1", "train.py")
    assert none.returncode == 1
    assert "Nothing fits 1.00 MiB a rank." in none.stdout


def test_operations_are_those_of_a_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script(None))
    lowtide(tmp_path, "fit", "--world-sizes", "1", "-o", "found.json", "train.py")
    cells = json.loads((tmp_path / "found.json").read_text())["cells"]
    products = 2 * 200 * (20 * 150 + 3 * 2 * 150 * 601 + 150 * 5)
    assert 2 * products < cells[0]["flops"] < 4 * products


@pytest.mark.deep
def test_a_forward_that_the_script_has_put_there_stays(tmp_path: Path) -> None:
    text = script(None).replace("model = Net()", "model = Net(); model.forward = Own(model)")
    own = (
        "class Own:\n"
        "    def __init__(self, model):\n"
        "        self.inner, self.calls = model.forward, 0\n\n"
        "    def __call__(self, x):\n"
        "        self.calls += 1\n"
        "        print(self.calls, file=open('calls', 'a'))\n"
        "        return self.inner(x)\n\n\n"
    )
    (tmp_path / "train.py").write_text(text.replace("def train", own + "def train"))
    (tmp_path / "plain.py").write_text(script(None))
    tables = [
        lowtide(tmp_path, "fit", "--world-sizes", "2", name).stdout
        for name in ("train.py", "plain.py")
    ]
    assert tables[0] == tables[1]
    assert "not tried" not in tables[0]
    steps = "model.forward.calls == step + 1"
    text = (
        (tmp_path / "train.py")
        .read_text()
        .replace("optimizer.step()", f"optimizer.step(); assert {steps}")
    )
    (tmp_path / "train.py").write_text(text + "\n")
    done = lowtide(tmp_path, "fit", "--world-sizes", "2", "train.py")
    assert done.stdout == tables[0]


def test_own_hooks_and_keyword_arguments_are_met(tmp_path: Path) -> None:
    text = script(None).replace("model = Net()", "model = Net(); add_hooks(model)")
    text = text.replace("model(x)", "model(x=x)")
    hooks = (
        "def add_hooks(model):\n"
        "    model.register_forward_pre_hook(lambda m, args: None)\n"
        "    model.register_forward_hook(lambda m, args, out: out * 1.0)\n\n\n"
    )
    (tmp_path / "train.py").write_text(text.replace("class Net", hooks + "class Net"))
    done = lowtide(tmp_path, "fit", "--world-sizes", "2", "train.py")
    assert done.returncode == 0, done.stderr
    assert "not tried" not in done.stdout
    assert done.stdout.count("MiB") == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "the program calls no module with a parameter to train"),
        ("raise OSError('no data')", "OSError: no data"),
    ],
)
def test_a_script_without_a_step_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.py").write_text(text)
    done = lowtide(tmp_path, "fit", "--world-sizes", "2", "train.py")
    assert done.returncode == 1
    assert "train.py cannot be shared out: " in done.stderr
    assert message in done.stderr


def test_a_script_of_several_ranks_is_refused(tmp_path: Path) -> None:
    begin = 'dist.init_process_group("fake", rank=0, world_size=2)'
    (tmp_path / "train.py").write_text(script(None).replace("lt.manual_seed(0)", begin))
    done = lowtide(tmp_path, "fit", "--world-sizes", "2", "train.py")
    assert done.returncode == 1
    assert "this process is one of several ranks already" in done.stderr


@pytest.mark.parametrize("sizes", ["0", "2,x", "", "1,,2"])
def test_numbers_of_ranks_are_checked(sizes: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        cli.main(["fit", "--world-sizes", sizes, "train.py"])
    assert "takes a number of processes, 1 or more" in capsys.readouterr().err


def test_it_draws_no_picture(capsys: Any) -> None:
    assert cli.main(["fit", "--world-sizes", "2", "--plot", "a.png", "train.py"]) == 2
    assert "Leave out --plot" in capsys.readouterr().err
