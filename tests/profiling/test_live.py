"""What a process publishes while it runs, and ``lowtide top`` shows; ``lowtide leaks``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lowtide as lt
from lowtide import cli, nn
from lowtide.profiling import MemoryProfiler, Publisher, publish, publisher

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def published_cpu(publisher):
    """What is published of the CPU; other tests may have used other devices before."""
    (found,) = [
        d for d in json.loads(publisher.path.read_text())["devices"] if d["device"] == "cpu"
    ]
    return found


def test_what_is_published_is_what_lives():
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    with MemoryProfiler(modules={"net": model}) as prof:
        loss = model(lt.ones(8, 100)).sum()
        told = Publisher(prof, every=1000)
        device = published_cpu(told)
        assert device["live_bytes"] == lt.memory_allocated() == sum(device["by_role"].values())
        assert sum(device["by_module"].values()) == device["live_bytes"]
        assert device["by_module"]["net.1"] >= 40_400
        assert device["limit_bytes"] is None
        loss.backward()
        told.write()
        assert published_cpu(told)["by_role"]["gradient"] == 80_800
        assert told.path.stat().st_mode & 0o077 == 0 or told.path.parent.stat().st_mode & 0o077 == 0
        told.stop()
        told.stop()
        assert not told.path.exists()


def test_publishing_by_a_call_and_what_it_refuses():
    told = publish(every=0.001)
    try:
        assert json.loads(told.path.read_text())["pid"] == os.getpid()
    finally:
        told.stop()
        told._profiler.stop()
    with pytest.raises(ValueError, match="every is a positive number of seconds; got 0"):
        publish(every=0)


def test_a_folder_of_somebody_else_is_not_used(tmp_path):
    (tmp_path / f"lowtide-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="is not a folder of this user alone"):
        publisher.folder()
    (tmp_path / f"lowtide-{os.getuid()}").rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"lowtide-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        publisher.folder()


SCRIPT = """
import sys
import lowtide as lt
x = lt.ones(1000, 1000)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.deep
def test_another_process_is_shown_and_said_to_have_ended(tmp_path, capsys):
    (tmp_path / "long.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LOWTIDE_PUBLISH": "1"}
    run = subprocess.Popen(
        [sys.executable, "long.py"],
        cwd=tmp_path,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert run.stdout.readline() == "ready\n"
        path = tmp_path / f"lowtide-{os.getuid()}" / f"{run.pid}.json"
        while not json.loads(path.read_text())["devices"]:
            pass
        while json.loads(path.read_text())["devices"][0]["live_bytes"] != 4_000_000:
            pass
        assert cli.main(["top"]) == 0
        assert f"{run.pid}" in capsys.readouterr().out
        assert cli.main(["top", str(run.pid)]) == 0
        said = capsys.readouterr().out
        assert "cpu: 3.81 MiB live" in said
        assert "temporary" in said
    finally:
        run.kill()
        run.communicate()
    assert path.exists()  # it could not clear away
    assert cli.main(["top", str(run.pid)]) == 2
    assert "There is no such process." in capsys.readouterr().err
    assert not path.exists()


def test_a_process_that_publishes_nothing(capsys):
    assert cli.main(["top", str(os.getpid())]) == 2
    said = capsys.readouterr().err
    assert f"process {os.getpid()} does not publish" in said
    assert "LOWTIDE_PUBLISH=1 python SCRIPT" in said
    assert cli.main(["top"]) == 0
    assert "No process publishes" in capsys.readouterr().out


LEAK = """
import lowtide as lt
w = lt.ones(3, requires_grad=True)
losses = []
for _ in range(5):
    loss = (w * 2).sum()
    loss.backward()
    losses.append(loss{})
"""


@pytest.mark.parametrize(("kept", "code"), [("", 1), (".item()", 0)])
def test_leaks_of_a_script_are_named_and_told_by_the_exit_code(tmp_path, kept, code, capsys):
    (tmp_path / "a.py").write_text(LEAK.format(kept))
    assert cli.main(["leaks", str(tmp_path / "a.py")]) == code
    said = capsys.readouterr().out
    assert ("1 graph survives its step (5 steps watched)" in said) == bool(code)
    assert ("No graph survives its step, and no tensors pile up (5 steps watched)" in said) != bool(
        code
    )
    if code:
        assert "losses" in said
        assert f"{tmp_path / 'a.py'}:6" in said


def test_leaks_of_what_is_not_there(capsys):
    assert cli.main(["leaks", "missing.py"]) == 2
    assert "lowtide leaks takes a Python script; there is no missing.py" in capsys.readouterr().err
