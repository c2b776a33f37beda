"""CSV and JSON lines: whole after a kill and on a full disk, resumable, one writer at a time."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lowtide as lt
from lowtide.utils.loggers import CSVLogger, JSONLLogger

ROOT = Path(__file__).resolve().parents[3]
KINDS = pytest.mark.parametrize(
    ("kind", "name"), [(CSVLogger, "log.csv"), (JSONLLogger, "log.jsonl")], ids=["csv", "jsonl"]
)


@KINDS
def test_what_is_written_is_read_back(tmp_path, kind, name):
    records = [
        {"step": 1, "loss": 0.1, "n": 3, "done": False, "note": 'a, "b"'},
        {"step": 2, "loss": math.inf, "n": -(2**70), "done": True, "note": "ü"},
    ]
    with kind(tmp_path / "a" / "b" / name) as log:
        for record in records:
            log.write(record)
            assert kind.read(log.path)[-1] == record  # there at once
    assert kind.read(log.path) == records
    with kind(log.path, sync=True) as log:
        log.write({"step": 3, "loss": math.nan})
    last = kind.read(log.path)[-1]
    assert (last["step"], math.isnan(last["loss"])) == (3, True)
    assert len(kind.read(log.path)) == 3


def test_json_lines_are_json(tmp_path):
    with JSONLLogger(tmp_path / "x") as log:
        log.write({"step": 1, "a": math.nan, "b": None})

    def refuse(word):
        raise AssertionError(word)

    assert json.loads(log.path.read_text(), parse_constant=refuse) == {
        "step": 1,
        "a": "NaN",
        "b": None,
    }


def test_a_new_name_makes_a_column(tmp_path):
    with CSVLogger(tmp_path / "log.csv") as log:
        log.write({"step": 1, "loss": 0.5})
        log.write({"step": 2, "loss": 0.25, "accuracy": 1.0})
        log.write({"step": 3, "accuracy": 0.5})
    assert log.path.read_text() == "step,loss,accuracy\n1,0.5,\n2,0.25,1.0\n3,,0.5\n"
    assert os.listdir(tmp_path) == ["log.csv"]


@KINDS
def test_half_a_line_is_cut_off_when_a_run_goes_on(tmp_path, kind, name):
    with kind(tmp_path / name) as log:
        log.write({"step": 1, "loss": 0.5})
        log.write({"step": 2, "loss": 0.25})
    whole = log.path.read_bytes()
    for cut in range(1, len(whole) + 1):
        log.path.write_bytes(whole[:cut])
        before = kind.read(log.path) if b"\n" in whole[:cut] else []
        assert len(before) <= 2
        with kind(log.path) as again:
            again.write({"step": 9, "loss": 1.0})
        assert kind.read(log.path) == [*before, {"step": 9, "loss": 1.0}]


@KINDS
def test_rewinding_removes_what_a_resumed_run_writes_again(tmp_path, kind, name):
    with kind(tmp_path / name) as log:
        for step in (1, 2, 3, 4):
            log.write({"step": step, "loss": 1 / step})
        log.rewind(3)
        log.write({"step": 3, "loss": 7.0})
        log.rewind(100)
    assert [(r["step"], r["loss"]) for r in kind.read(log.path)] == [(1, 1.0), (2, 0.5), (3, 7.0)]
    assert os.listdir(tmp_path) == [name]


@KINDS
def test_a_full_disk_leaves_whole_records_and_says_so(tmp_path, kind, name, monkeypatch):
    log = kind(tmp_path / name)
    log.write({"step": 1, "loss": 0.5})
    really = os.write

    def full(handle, data):
        if len(data) > 3:
            return really(handle, data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(lt.SerializationError) as caught:
            log.write({"step": 2, "loss": 0.25})
    assert isinstance(caught.value, OSError)
    text = str(caught.value)
    assert f"{kind.__name__}: {log.path} could not be written: No space left on device" in text
    assert "bytes are needed" in text
    assert "Its records are complete" in text
    log.write({"step": 2, "loss": 0.125})
    log.close()
    assert [r["loss"] for r in kind.read(log.path)] == [0.5, 0.125]


def test_a_column_that_finds_no_room_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    log = CSVLogger(tmp_path / "log.csv")
    log.write({"step": 1, "loss": 0.5})

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("lowtide.profiling.loggers.record_files.replacing", full)
        with pytest.raises(OSError, match="No space"):
            log.write({"step": 2, "accuracy": 0.25})
    log.write({"step": 2, "loss": 0.25})
    log.close()
    assert log.path.read_text() == "step,loss\n1,0.5\n2,0.25\n"


@KINDS
def test_a_second_writer_is_refused(tmp_path, kind, name):
    with kind(tmp_path / name), pytest.raises(lt.SerializationError, match="another process wri"):
        kind(tmp_path / name)
    kind(tmp_path / name).close()


def test_a_fork_neither_writes_nor_holds_the_lock(tmp_path):
    log = JSONLLogger(tmp_path / "x")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            log.write({"step": 1})
        except ValueError as error:
            os.write(writer, str(error).encode())
        time.sleep(20)
        os._exit(0)
    try:
        assert b"a fork of the process" in os.read(reader, 1000)
        log.close()
        JSONLLogger(tmp_path / "x").close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


@KINDS
def test_a_kill_loses_no_record(tmp_path, kind, name):
    code = (
        f"from lowtide.utils.loggers import {kind.__name__} as K\n"
        f"import sys\nlog = K({str(tmp_path / name)!r})\n"
        "for step in range(10**9):\n"
        "    log.write({'step': step, 'loss': 0.5})\n"
        "    print(step, flush=True)\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    for line in run.stdout:
        if int(line) == 50:
            run.kill()
            break
    told = [int(line) for line in run.stdout if line.endswith("\n")]
    run.wait()
    run.stdout.close()
    with kind(tmp_path / name) as log:
        log.write({"step": -1})
    steps = [r["step"] for r in kind.read(tmp_path / name)]
    assert steps[:-1] == list(range(len(steps) - 1))
    assert len(steps) - 1 > max([50, *told])


@KINDS
def test_an_estimate_writes_nothing(tmp_path, kind, name):
    log = kind(tmp_path / name)
    log.write({"step": 1, "loss": 0.5})

    def step():
        log.write({"step": 2, "loss": (lt.ones(3) * 2).sum().item()})
        kind(tmp_path / "other").write({"step": 1})

    lt.profiling.estimate(step)
    log.close()
    assert len(kind.read(log.path)) == 1
    assert os.listdir(tmp_path) == [name]


def test_what_is_no_record_and_no_log_is_refused(tmp_path):
    log = JSONLLogger(tmp_path / "a")
    with pytest.raises(TypeError, match="an integer under 'step'; got None"):
        log.write({"loss": 1.0})
    with pytest.raises(TypeError, match=r"loss is a number, text or None; got Tensor. Pass .item"):
        log.write({"step": 1, "loss": lt.ones(1)})
    log.close()
    (tmp_path / "b").write_text("a,b\n1,2\n")
    with pytest.raises(lt.SerializationError, match="its first line names no column 'step'"):
        CSVLogger(tmp_path / "b")
    assert (tmp_path / "b").read_text() == "a,b\n1,2\n"
    with CSVLogger(tmp_path / "c") as log, pytest.raises(ValueError, match="the end of a line"):
        log.write({"step": 1, "note": "a\nb"})
    (tmp_path / "d").write_text("[]\n")
    with pytest.raises(lt.SerializationError, match="line 1 of"):
        JSONLLogger.read(tmp_path / "d")
    with pytest.raises(lt.SerializationError, match=r"c/e could not be .*/c is a file. No file is"):
        CSVLogger(tmp_path / "c" / "e")
    with pytest.raises(ValueError, match="is closed"):
        log.write({"step": 1})
