"""The callback of a training loop, alone and with checkpoints."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.memory.ledger import ROLES
from lowtide.utils import CheckpointDirectory
from lowtide.utils.loggers import CSVLogger, JSONLLogger, TrainingLog, memory_scalars


def test_memory_is_the_ledgers_by_role():
    w = lt.nn.Parameter(lt.ones(1000))
    found = memory_scalars()
    assert found["memory/live"] == lt.memory_allocated()
    assert found["memory/peak"] == lt.max_memory_allocated()
    for which in ("live", "peak"):
        assert sum(found[f"memory/{which}/{role}"] for role in ROLES) == found[f"memory/{which}"]
    assert found["memory/live/parameter"] >= w.nbytes


def test_a_loop_writes_scalars_and_memory(tmp_path):
    model = lt.nn.Linear(8, 8)
    optimizer = lt.optim.SGD(model.parameters(), lr=0.5)
    seen = []
    with TrainingLog(
        CSVLogger(tmp_path / "a.csv"), JSONLLogger(tmp_path / "a"), seen.append
    ) as log:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(lt.ones(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            log(loss=loss, lr=optimizer.param_groups[0]["lr"])
    rows = CSVLogger.read(tmp_path / "a.csv")
    assert rows == JSONLLogger.read(tmp_path / "a") == seen
    assert [r["step"] for r in rows] == [1, 2, 3]
    assert rows[0].keys() == {"step", "time", "loss", "lr", *memory_scalars()}
    assert rows[2]["loss"] == loss.item() < rows[0]["loss"]


def test_peaks_may_begin_anew_with_each_record():
    peaks = []
    log = TrainingLog(lambda r: peaks.append(r["memory/peak"] - r["memory/live"]), reset_peak=True)
    log()
    lt.ones(1000)
    log()
    log()
    assert peaks[1:] == [4000, 0]


def test_values_are_numbers_texts_and_single_elements():
    seen = []
    log = TrainingLog(seen.append, memory=False)
    log(7, {"loss/train": np.float32(0.5), "x": lt.ones(1, 1)}, n=3, name="a", flag=True, no=None)
    record = {k: v for k, v in seen[0].items() if k != "time"}
    assert record == {
        "step": 7,
        "loss/train": 0.5,
        "x": 1.0,
        "n": 3,
        "name": "a",
        "flag": True,
        "no": None,
    }
    with pytest.raises(TypeError, match=r"loss is a Tensor of shape \(2,\). Pass .mean\(\)"):
        log(loss=lt.ones(2))
    with pytest.raises(TypeError, match="writes 'time' itself"):
        log(time=3)
    with pytest.raises(TypeError, match=r"method write\(record\), or functions; got int"):
        TrainingLog(3)


def test_a_resumed_run_goes_on_where_its_checkpoint_was(tmp_path):
    def run(steps, saved):
        log = TrainingLog(CSVLogger(tmp_path / "log.csv"), memory=False)
        checkpoints = CheckpointDirectory(tmp_path / "run")
        state = checkpoints.restore(log=log) or {"step": 0}
        for step in range(state["step"] + 1, steps + 1):
            log(step, loss=1 / step)
            if step in saved:
                checkpoints.save(step, log=log)
        log.close()
        checkpoints.release()

    run(5, saved=(3,))  # killed after its fifth step, say
    run(6, saved=())
    rows = CSVLogger.read(tmp_path / "log.csv")
    assert [(r["step"], r["loss"]) for r in rows] == [(n, 1 / n) for n in range(1, 7)]


def test_without_a_checkpoint_nothing_is_removed(tmp_path):
    for first in (1, 3):
        with TrainingLog(CSVLogger(tmp_path / "log.csv"), memory=False) as log:
            log(first, loss=0.5)
            log(loss=0.25)
    assert [r["step"] for r in CSVLogger.read(tmp_path / "log.csv")] == [1, 2, 3, 4]
