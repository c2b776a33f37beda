"""Scripts and modules of PyTorch as they are: run, profiled, estimated, searched for leaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lowtide as lt
from tests.as_torch.running import run

TRAINING = """
import sys
import torch
from torch import nn
import torch.nn.functional as F

print(__name__, sys.argv[1:], torch.__version__ >= "2.0")
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(3):
    x, y = torch.randn(16, 4, device=device), torch.randint(0, 2, (16,), device=device)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f} on {device}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


@pytest.mark.deep
@pytest.mark.parametrize("start", [["lowtide.as_torch"], ["lowtide", "run-as-torch"]])
def test_a_script_runs_with_its_arguments(folder: Path, start: list[str]) -> None:
    done = run("-m", *start, "train.py", "--lr", "1", cwd=folder)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first == "__main__ ['--lr', '1'] True"
    assert last.startswith(("loss 0.", "loss 1."))


@pytest.mark.deep
@pytest.mark.parametrize("start", [["lowtide.as_torch"], ["lowtide", "run-as-torch"]])
def test_a_module_runs(folder: Path, start: list[str]) -> None:
    done = run("-m", *start, "-m", "train", "a", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("__main__ ['a'] True\nloss ")


@pytest.mark.deep
def test_exit_codes_are_the_scripts(folder: Path) -> None:
    (folder / "leaves.py").write_text("import torch; raise SystemExit(7)")
    (folder / "raises.py").write_text("import torch\nraise ValueError('mine')")
    assert run("-m", "lowtide.as_torch", "leaves.py", cwd=folder).returncode == 7
    raised = run("-m", "lowtide.as_torch", "raises.py", cwd=folder)
    assert raised.returncode == 1
    assert raised.stderr.endswith("ValueError: mine\n")
    assert "runpy" not in raised.stderr
    absent = run("-m", "lowtide.as_torch", "nonsense.py", cwd=folder)
    assert absent.returncode == 2
    assert "there is no nonsense.py" in absent.stderr


@pytest.mark.deep
def test_commands_take_scripts_of_pytorch(folder: Path) -> None:
    out = folder / "estimate.json"
    done = run("-m", "lowtide", "estimate", "--as-torch", "-o", str(out), "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    (cpu,) = json.loads(out.read_text())["devices"]
    words = ("profile", "--as-torch", "--no-timeline", "-o", "run", "train.py")
    done = run("-m", "lowtide", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    recorded = lt.profiling.MemoryProfiler.from_json(folder / "run" / "run.json")
    assert recorded.peak("cpu").nbytes == cpu["peak_bytes"]
    done = run("-m", "lowtide", "leaks", "--as-torch", "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "No graph survives its step" in done.stdout


def test_without_the_switch_the_script_finds_no_lowtide(folder: Path) -> None:
    (folder / "torch.py").write_text("raise SystemExit(5)")
    done = run("-m", "lowtide", "leaks", "train.py", cwd=folder)
    assert done.returncode == 5


@pytest.mark.deep
def test_a_table_of_batches_that_fit(folder: Path) -> None:
    (folder / "table.py").write_text(
        "import torch\n"
        "models = {'small': lambda: torch.nn.Linear(64, 64)}\n"
        "batch = lambda n: torch.zeros(n, 64)\n"
        "limits = ['1MiB']\n"
    )
    done = run("-m", "lowtide", "fit-table", "--as-torch", "table.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "small" in done.stdout


ON_GPU = """
import torch
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
properties = torch.cuda.get_device_properties(0)
free, total = torch.cuda.mem_get_info()
assert properties.total_memory == properties["totalGlobalMem"] == total == free == SIZE
torch.cuda.set_device(0)
x = torch.zeros(1 << 18, device="cuda")
assert x.device.type == "cuda" and torch.cuda.mem_get_info()[0] == total - (1 << 20)
torch.cuda.synchronize()
model = torch.nn.Linear(256, 1024).cuda()
y = torch.randn(64, 256).to("cuda")
loss = model(y).square().mean()
loss.backward()
torch.optim.SGD(model.parameters(), 0.1).step()
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize(("size", "fits"), [("24GiB", True), ("3MiB", False)])
def test_a_script_finds_an_imagined_gpu(tmp_path: Path, size: str, fits: bool) -> None:
    nbytes = {"24GiB": 24 << 30, "3MiB": 3 << 20}[size]
    (tmp_path / "gpu.py").write_text(ON_GPU.replace("SIZE", str(nbytes)))
    words = ("estimate", "--as-torch", "--gpu", size, "-o", "out.json", "gpu.py")
    done = run("-m", "lowtide", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    gpu = json.loads((tmp_path / "out.json").read_text())["devices"][0]
    assert gpu["device"] == "cuda:0"
    assert gpu["limit_bytes"] == nbytes
    weights = (256 * 1024 + 1024) * 4
    # x, the model, the batch, the output and its gradient are there together
    assert gpu["peak_bytes"] >= (1 << 20) + weights + 64 * 256 * 4 + 64 * 1024 * 4
    assert (gpu["peak_bytes"] <= nbytes) is fits
    verdict = "fits the limit" if fits else "does not fit the limit"
    assert verdict in done.stdout


@pytest.mark.deep
def test_a_size_that_is_none_is_refused(folder: Path) -> None:
    for command in ("estimate", "advise"):
        done = run("-m", "lowtide", command, "--gpu", "large", "train.py", cwd=folder)
        assert done.returncode == 2
        assert "--gpu is a size in bytes; got 'large'" in done.stderr
