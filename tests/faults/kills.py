"""Kills and failing disks while checkpoints are saved: the full counts by one command.

    python -m tests.faults.kills --count 200 --seed 0

Each action is killed before every one of its calls to the disk (a write also in its middle), and
meets ENOSPC and EIO at every one, once and from there on. A small training run is killed at
``--count`` random instants, without and with workers of its loader, and goes on each time. What
must hold afterwards is asserted; a summary is printed.
"""

from __future__ import annotations

import argparse
import errno
import gc
import hashlib
import os
import random
import shutil
import signal
import stat
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lowtide as lt
from lowtide import nn, optim
from lowtide.utils import CheckpointDirectory
from lowtide.utils.data import DataLoader, Dataset
from tests.faults.disk import copied, count, failing, killed, watched

LEFTOVER = ".step_00000002.safetensors.0a0b0c0d0e0f.tmp"


class Action(NamedTuple):
    """Something that is disturbed: how it begins, what it does, what must hold afterwards.

    Attributes:
        name: In messages.
        prepare: Fills an empty folder.
        run: In a copy of that folder.
        check: Whether the folder is sound, whatever happened; it may repair what ``run`` would.
        saves: The name of the file that is saved, or None if nothing is.
    """

    name: str
    prepare: Callable[[Path], Any]
    run: Callable[[Path], Any]
    check: Callable[[Path], Any]
    saves: str | None


def content(step: int) -> dict[str, Any]:
    """What a checkpoint of ``step`` holds; some 40 kB, more than a buffer."""
    return {"w": np.full(10_000, step, np.float32), "text": "x" * step}


class Holder:
    """An object with the state of a step."""

    def __init__(self, step: int = 0) -> None:
        self.state = content(step)

    def state_dict(self) -> dict[str, Any]:
        """Its state."""
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take another."""
        self.state = state


def is_whole(state: dict[str, Any], step: int) -> bool:
    """True for exactly the content of ``step``."""
    expected = content(step)
    return bool((state["w"] == expected["w"]).all()) and state["text"] == expected["text"]


def file_action(old: bool, name: str = "x.safetensors") -> Action:
    """Saving one file, over an old one of mode 0600 or not."""

    def prepare(folder: Path) -> None:
        if old:
            lt.save(content(1), folder / name)
            os.chmod(folder / name, 0o600)

    def check(folder: Path) -> None:
        path = folder / name
        if old or path.exists():
            saved = lt.load(path)
            assert is_whole(saved, 2) or (old and is_whole(saved, 1))
        if old:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600

    run = lambda folder: lt.save(content(2), folder / name)  # noqa: E731
    return Action(f"save over {old=} {name[:12]}", prepare, run, check, name)


def folder_action(keep: int, there: int, save: bool) -> Action:
    """Saving the next checkpoint of a folder that has ``there``, or claiming it only."""

    def prepare(folder: Path) -> None:
        directory = CheckpointDirectory(folder, keep=None)
        for step in range(1, there + 1):
            directory.save(step, holder=Holder(step), best=step)
        (folder / LEFTOVER).write_bytes(b"half")

    def run(folder: Path) -> None:
        directory = CheckpointDirectory(folder, keep=keep)
        if save:
            directory.save(there + 1, holder=Holder(there + 1), best=there + 1)
        else:
            directory.claim()

    def check(folder: Path) -> None:
        holder = Holder()
        found = CheckpointDirectory(folder).restore(holder=holder)
        if found is None:
            assert there == 0, "a checkpoint was there"
        else:
            assert found["step"] in ({there, there + 1} if save and there else {there or 1})
            assert found["best"] == found["step"]
            assert is_whole(holder.state, found["step"])
        after = CheckpointDirectory(folder, keep=keep)  # the next run
        after.claim()
        assert len(after.steps()) <= keep
        after.save(there + 2, holder=Holder(there + 2), best=there + 2)
        assert len(after.steps()) == min(keep, there + 1 + (found or {}).get("step", 0) - there)
        after.release()
        assert not [n for n in os.listdir(folder) if n.endswith(".tmp")]

    verb, name = ("save", f"step_{there + 1:08d}.safetensors") if save else ("claim", None)
    return Action(f"{verb} {keep=} {there=}", prepare, run, check, name)


ACTIONS = [
    file_action(False),
    file_action(True),
    file_action(True, "é" * 115 + ".safetensors"),
    *(folder_action(keep, there, True) for keep in (1, 2, 3) for there in (0, keep, keep + 2)),
    *(folder_action(keep, keep + 2, False) for keep in (1, 2)),
]


def kills_everywhere(action: Action, work: Path) -> Counter[str]:
    """Kill an action before each of its calls; returns how many of each kind."""
    template = work / "template"
    template.mkdir()
    action.prepare(template)
    # What a first run imports, and files of earlier tests that the collector closes, are no calls
    # of the action.
    action.run(copied(template, work / "copy"))
    gc.collect()
    folder = copied(template, work / "copy")
    calls = count(lambda: action.run(folder))
    for n in range(1, len(calls) + 1):
        copied(template, folder)
        assert killed(lambda: action.run(folder), n), (action.name, n)
        try:
            action.check(folder)
        except BaseException as error:
            error.add_note(f"{action.name}, killed before call {n}: {calls}")
            raise
    assert not killed(lambda: action.run(copied(template, folder)), 10**9)
    shutil.rmtree(template)
    return Counter(calls)


def errors_everywhere(action: Action, work: Path) -> Counter[str]:
    """Let each call of an action fail; returns how it ended, and how often."""
    template = work / "template"
    template.mkdir()
    action.prepare(template)
    # What a first run imports, and files of earlier tests that the collector closes, are no calls
    # of the action.
    action.run(copied(template, work / "copy"))
    gc.collect()
    folder = copied(template, work / "copy")
    calls = count(lambda: action.run(folder))
    outcomes: Counter[str] = Counter()
    for code in (errno.ENOSPC, errno.EIO):
        for lasting in (False, True):
            for n in range(1, len(calls) + 1):
                copied(template, folder)
                try:
                    outcomes[_failed(action, folder, n, code, lasting)] += 1
                    action.check(folder)
                except BaseException as error:
                    which = f"{errno.errorcode[code]} at call {n} {calls[n - 1]} {lasting=}"
                    error.add_note(f"{action.name}, {which}: {calls}")
                    raise
    shutil.rmtree(template)
    return outcomes


def _failed(action: Action, folder: Path, n: int, code: int, lasting: bool) -> str:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with watched(failing(n, code, lasting)):
                action.run(folder)
        except lt.SerializationError as error:
            assert isinstance(error, OSError)
            assert error.errno == code
            assert action.saves is not None
            assert action.saves in str(error), error
        except OSError as error:
            assert action.saves is None, error
        else:
            return "saved, with a warning" if warned else "no harm"
    names = {p.name for p in folder.iterdir()} - {".writer.lock"}
    if not (lasting and code == errno.EIO):  # else removing it fails too
        assert names - set(before) <= {action.saves}, names
    for name in set(before) & names - {action.saves}:
        assert (folder / name).read_bytes() == before[name]
    return "refused"


# A training run that is killed at random instants


class Noisy(Dataset):  # type: ignore[misc]
    """Samples with noise that is drawn anew for each epoch."""

    def __init__(self) -> None:
        self.x = lt.randn(40, 8, generator=lt.Generator().manual_seed(5))

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        return self.x[i] + 0.1 * lt.randn(8), self.x[i].sum()


def train(folder: Path, steps: int, workers: int) -> str:
    """Train from the newest checkpoint on; returns a digest of parameters and losses."""
    lt.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    schedule = optim.lr_scheduler.StepLR(optimizer, 5)
    loader = DataLoader(Noisy(), 7, shuffle=True, num_workers=workers)
    checkpoints = CheckpointDirectory(folder, keep=2)
    checkpoints.claim()
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    state = checkpoints.restore(**parts) or {"step": 0, "losses": []}
    step, losses = state["step"], state["losses"]
    while step < steps:
        for x, y in loader:
            hidden = nn.functional.dropout(x, 0.1)
            loss = (model(hidden).squeeze(1) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            losses.append(loss.item())
            checkpoints.save(step, losses=losses, **parts)
            if step == steps:
                break
    values = [p.detach().numpy().tobytes() for p in model.parameters()]
    return hashlib.sha256(b"".join(values) + repr(losses).encode()).hexdigest()


def _child(folder: Path, result: Path, steps: int, workers: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        result.write_text(train(folder, steps, workers))
        os._exit(0)
    except BaseException as error:
        result.with_suffix(".error").write_text(repr(error))
        raise
    finally:
        os._exit(1)


def kills_at_random(number: int, workers: int, rng: random.Random, work: Path) -> Counter[str]:
    """Kill a run at ``number`` random instants in all, over as many runs as that takes."""
    steps, done = 20, Counter[str]()
    result = work / "result"
    began = time.perf_counter()
    os.waitpid(_child(work / "untouched", result, steps, workers), 0)
    duration, expected = time.perf_counter() - began, result.read_text()
    while done["kills"] < number:
        folder, newest = work / "run", 0
        shutil.rmtree(folder, ignore_errors=True)
        result.unlink()
        while not result.exists():
            child = _child(folder, result, steps, workers)
            if done["kills"] < number:
                time.sleep(rng.random() * duration / 2)
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            if os.WIFSIGNALED(status):
                done["kills"] += 1
            else:
                error = result.with_suffix(".error")
                assert status == 0, error.read_text() if error.exists() else status
            directory = CheckpointDirectory(folder, keep=2)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # nothing is ever passed over
                found = directory.restore()
            step = 0 if found is None else found["step"]
            assert newest <= step <= steps
            assert step == (directory.steps() or [0])[-1]
            assert len(directory.steps()) <= 3
            newest = step
        assert result.read_text() == expected, "the resumed run differs from the untouched one"
        assert len(os.listdir(folder)) == 2
        done["runs equal to the untouched one"] += 1
    return done


def main() -> None:
    """Run everything and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="kills at random instants, twice")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-random", action="store_true", help="no kills at each call")
    args = parser.parse_args()
    for workers in (0, 2):
        with tempfile.TemporaryDirectory() as work:
            rng = random.Random(args.seed + workers)
            done = kills_at_random(args.count, workers, rng, Path(work))
        print(f"training with {workers} workers: {dict(done)}", flush=True)
    if args.only_random:
        return
    kills, errors = Counter[str](), Counter[str]()
    for action in ACTIONS:
        with tempfile.TemporaryDirectory() as work:
            kills += kills_everywhere(action, Path(work))
            errors += errors_everywhere(action, Path(work))
    print(f"kills before each call to the disk: {kills.total()} {dict(kills)}")
    print(f"ENOSPC and EIO at each call to the disk: {errors.total()} {dict(errors)}")


if __name__ == "__main__":
    main()
