"""Damaged training checkpoints against ``restore``: every object old, older or newer, never mixed.

    python -m tests.faults.restores --count 5000 --seed 0

The newest of two checkpoints is damaged: cut off, bits and bytes changed, blocks swapped, zeroed,
doubled or taken out, numbers and letters of its header changed. Then a fresh run restores. The
outcomes that are allowed:

- *passed over*: every object has the state of the older one, and a warning named the file;
- *raised*: an error, and every object as it was;
- *unharmed*: every object has the newest state to the bit (the change meant nothing).

*Half restored* is any mixture. *Altered* means that all objects took a state that was never saved:
nothing in the file told that its bits had changed. Checksums make that impossible; a file of a
version that wrote none cannot be better protected.
"""

from __future__ import annotations

import argparse
import gc
import io
import random
import re
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import lowtide as lt
from lowtide import nn, optim
from lowtide.utils import CheckpointDirectory
from lowtide.utils.data import DataLoader, TensorDataset


def objects() -> dict[str, Any]:
    """What a training run has."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(lt.randn(24, 6), lt.randn(24, 1))
    return {
        "model": model,
        "optimizer": optimizer,
        "schedule": optim.lr_scheduler.StepLR(optimizer, 2),
        "scaler": lt.amp.GradScaler("cpu"),
        "ema": optim.swa_utils.AveragedModel(model),
        "loader": DataLoader(data, 5, shuffle=True),
        "generator": lt.Generator(),
    }


def train(parts: dict[str, Any], steps: int) -> None:
    """Bring every object into a state of its own."""
    for x, y in [*parts["loader"]][:steps]:
        loss = nn.functional.mse_loss(parts["model"](x), y)
        parts["optimizer"].zero_grad()
        loss.backward()
        parts["optimizer"].step()
        parts["schedule"].step()
        parts["ema"].update_parameters(parts["model"])
        parts["scaler"].load_state_dict({**parts["scaler"].state_dict(), "_growth_tracker": steps})
    parts["generator"].manual_seed(steps)


def state_of(parts: dict[str, Any]) -> dict[str, bytes]:
    """Each object's state as the bytes of a file, and the default generator's."""
    found = {}
    for name, thing in parts.items():
        file = io.BytesIO()
        lt.save(thing.get_state() if name == "generator" else thing.state_dict(), file)
        found[name] = file.getvalue()
    g = lt.default_generator
    return {**found, "default": repr((g.initial_seed(), g.get_offset())).encode()}


def damage(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """One way of many to damage a file; its name and the bytes."""
    kind = rng.choice(KINDS)
    if kind in ("swap digits", "other letter"):  # keeps lengths, so that the header still parses
        pattern = rb"[0-9]+" if kind == "swap digits" else rb"[a-z_]{3,}"
        header = data[8 : 8 + int.from_bytes(data[:8], "little")]
        match = rng.choice([*re.finditer(pattern, header)])
        at = 8 + rng.randrange(match.start(), match.end())
        new = rng.choice(b"0123456789" if kind == "swap digits" else b"abcxyz")
        return kind, data[:at] + bytes([new]) + data[at + 1 :]
    at = rng.randrange(len(data))
    size = min(rng.choice((1, 8, 64, 1000)), len(data) - at)
    block = data[at : at + size]
    if kind == "flip a bit":
        return kind, data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == "cut off":
        return kind, data[:at]
    if kind == "noise":
        return kind, data[:at] + rng.randbytes(size) + data[at + size :]
    if kind == "zeros":
        return kind, data[:at] + bytes(size) + data[at + size :]
    if kind == "taken out":
        return kind, data[:at] + data[at + size :]
    if kind == "doubled":
        return kind, data[: at + size] + block + data[at + size :]
    other = rng.randrange(len(data) - size + 1)
    low, high = sorted((at, other))
    if high - low < size:
        return kind, data[:low] + data[high : high + 1] + data[low + 1 :]
    first, second = data[low : low + size], data[high : high + size]
    return kind, data[:low] + second + data[low + size : high] + first + data[high + size :]


KINDS = (
    "flip a bit",
    "cut off",
    "noise",
    "zeros",
    "taken out",
    "doubled",
    "swap blocks",
    "swap digits",
    "other letter",
)
BAD = ("half restored", "altered", "passed over without its name")


def restores(count: int, seed: int, work: Path) -> tuple[Counter[str], list[str]]:
    """Damage ``count`` checkpoints and restore from each; returns outcomes and what was bad."""
    rng = random.Random(seed)
    lt.manual_seed(seed)
    folder, saved = CheckpointDirectory(work, keep=2), objects()
    states = {}
    for step in (1, 2):
        train(saved, step)
        folder.save(step, note=step, **saved)
        states[step] = state_of(saved)
    path = work / "step_00000002.safetensors"
    data = path.read_bytes()
    outcomes: Counter[str] = Counter()
    bad: list[str] = []
    outcome = ""
    for number in range(count):
        kind, damaged = damage(data, rng)
        path.write_bytes(damaged)
        if number % 50 == 0 or outcome not in ("passed over", "unharmed"):  # what it took is gone
            mine = objects()
            train(mine, rng.randrange(3))
        before = state_of(mine)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                found = CheckpointDirectory(work).restore(**mine)
                outcome = "restored"
            except Exception as error:
                outcome = f"raised {type(error).__name__}"
        after = state_of(mine)
        if outcome.startswith("raised"):
            whole = after == before
        elif found["step"] == 1:
            told = any(path.name in str(w.message) for w in warned)
            outcome = "passed over" if told else "passed over without its name"
            whole = after == states[1] and found["note"] == 1
        elif after == states[2] and found["note"] == 2:
            outcome, whole = "unharmed", True
        else:  # did all of them take what the file says, as others of the same old state do?
            again = objects()
            for name, thing in again.items():
                state = lt.load(io.BytesIO(before[name]))
                thing.set_state(state) if name == "generator" else thing.load_state_dict(state)
            CheckpointDirectory(work).restore(**again)
            outcome, whole = "altered", state_of(again) == after
        if not whole:
            outcome = "half restored"
        if outcome in BAD:
            changed = [n for n in after if after[n] != before[n]]
            bad.append(f"{outcome} by file {number} of seed {seed} ({kind}): {changed}")
        outcomes[outcome] += 1
    gc.collect()
    return outcomes, bad


def main() -> None:
    """Run it and print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000, help="damaged files")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        outcomes, bad = restores(args.count, args.seed, Path(work))
    print(f"{outcomes.total()} damaged checkpoints: {dict(outcomes)}")
    if bad:
        raise SystemExit("\n".join(sorted(bad, reverse=True)[:20]))


if __name__ == "__main__":
    main()
