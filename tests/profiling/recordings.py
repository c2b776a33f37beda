"""Recordings made by hand: what a profiler would note of a GPT's training, without running one.

The writer keeps its own account (a dict of blocks), so peaks and owners do not come from the code
under test.
"""

from __future__ import annotations

from collections import Counter

from lowtide.framework.memory.ledger import ROLES
from lowtide.profiling.record.recording import ALLOC, FREE, ROLE, Mark, Owner, Peak, Recording

TEMPORARY, SAVED, PARAMETER, GRADIENT, OPTIMIZER, BUFFER, INPUT, WORKSPACE = range(8)


class Tape:
    """Writes a recording, one event every microsecond."""

    def __init__(self, *devices: str, before: int = 0) -> None:
        self.recording = Recording(devices=list(devices or ("cpu",)))
        count = len(self.recording.devices)
        self.recording.peaks = [Peak() for _ in range(count)]
        self.recording.fullest = [Peak() for _ in range(count)]
        self.blocks: dict[int, list[int]] = {}  # number -> [device, nbytes, role, owner, saver]
        self.before = [before if d == 0 else 0 for d in range(count)]
        self.high = [0] * count
        self.at_mark: list[Counter] = [Counter() for _ in range(count)]
        self.at_peak = [False] * count
        self.time = 0
        self.made = 0
        self._look()
        self.mark("start", "start")

    def owner(self, module: str, op: str, phase: str = "forward", line: str = "") -> int:
        owner = Owner(module, op, phase, line)
        if owner not in self.recording.owners:
            self.recording.owners.append(owner)
        return self.recording.owners.index(owner)

    def alloc(self, nbytes: int, role: int, owner: int, device: int = 0, after: int = 1000) -> int:
        self.made += 1
        self.blocks[self.made] = [device, nbytes, role, owner, 0]
        self._note(ALLOC, self.made, role, owner, after)
        return self.made

    def free(self, *blocks: int, after: int = 1000) -> None:
        for block in blocks:
            self._note(FREE, block, self.blocks[block][2], -1, after, gone=True)

    def role(self, block: int, role: int, saver: int = -1) -> None:
        self.blocks[block][2] = role
        if role == SAVED:
            self.blocks[block][4] = max(saver, 0)
        self._note(ROLE, block, role, saver, 1000)

    def mark(self, name: str, kind: str = "mark", probes: dict | None = None) -> None:
        r, self.time = self.recording, self.time + 1000
        mark = Mark(name, kind, self.time / 1e9, len(r.events), probes=probes or {})
        for d in range(len(r.devices)):
            now, roles = self.cells(d), [0] * len(ROLES)
            for (_, role), n in now.items():
                roles[role] += n
            mark.live.append(sum(roles))
            mark.roles.append(roles)
            mark.peak.append(self.high[d])
            self.high[d] = sum(roles)
            changed = Counter(now)
            changed.subtract(self.at_mark[d])
            mark.changes += [(d, *cell, n) for cell, n in sorted(changed.items()) if n]
            self.at_mark[d] = now
        r.marks.append(mark)

    def stop(self) -> Recording:
        self.mark("stop", "stop")
        self.recording.seconds = self.time / 1e9
        return self.recording

    def cells(self, device: int) -> Counter:
        found = Counter({(0, PARAMETER): self.before[device]} if self.before[device] else {})
        for d, nbytes, role, owner, _ in self.blocks.values():
            if d == device:
                found[owner, role] += nbytes
        return found

    def _note(self, kind, block, role, owner, after, gone=False) -> None:
        device, nbytes = self.blocks[block][:2]
        if gone:
            del self.blocks[block]
        self.time += after
        values = (self.time, kind, device, block, nbytes, role, owner)
        for column, value in zip(self.recording.events.columns().values(), values, strict=True):
            column.append(value)
        self._look()

    def _look(self) -> None:
        r = self.recording
        for d, peak in enumerate(r.peaks):
            cells = self.cells(d)
            live = sum(cells.values())
            self.high[d] = max(self.high[d], live)
            if live > peak.nbytes:
                r.peaks[d] = Peak(live, self.time / 1e9, len(r.events), dict(cells))
                self.at_peak[d] = True
            elif live < peak.nbytes:
                self.at_peak[d] = False
            elif self.at_peak[d]:  # a role changed: as in the ledger, that is the peak still
                peak.cells = dict(cells)
            saved = sum(n for (_, role), n in cells.items() if role == SAVED)
            if saved > r.fullest[d].nbytes:
                savers: Counter = Counter()
                for device, n, role, _, saver in self.blocks.values():
                    if device == d and role == SAVED:
                        savers[saver, SAVED] += n
                holders = {c: n for c, n in cells.items() if c[1] == SAVED}
                r.fullest[d] = Peak(saved, self.time / 1e9, len(r.events), dict(savers), holders)


def gpt(layers: int = 4, steps: int = 3, width: int = 1 << 20, model: str = "") -> Recording:
    """Training steps of a GPT with AdamW; ``width`` is the bytes of one activation."""
    tape = Tape("cpu", before=3 * width)
    here = "/home/me/project/train.py"
    parts = [("attention.qkv", 3), ("attention.out", 1), ("mlp.up", 4), ("mlp.down", 4)]
    paths = [f"{model}blocks.{k}.{part}" for k in range(layers) for part, _ in parts]
    sizes = [n for _ in range(layers) for _, n in parts]
    for path, n in zip(paths, sizes, strict=True):
        made = tape.owner(path, "parameter", "other", f"{here}:12")
        tape.alloc(n * width // 4, PARAMETER, made)
    for step in range(steps):
        batch = tape.alloc(width // 8, INPUT, tape.owner("", "tensor", "other", f"{here}:30"))
        kept = []
        for k, (path, n) in enumerate(zip(paths, sizes, strict=True)):
            line = f"/home/me/project/model.py:{20 + k % 4}"
            one = tape.owner(path, "linear", "forward", line)
            work = tape.alloc(width // 2, WORKSPACE, one, after=20_000)
            value = tape.alloc(n * width, TEMPORARY, one, after=9_000)
            tape.free(work)
            tape.role(value, SAVED, tape.owner(path, "gelu", "forward", line))
            kept.append(value)
        grads = []
        for path, n, value in reversed(list(zip(paths, sizes, kept, strict=True))):
            back = tape.owner(path, "LinearBackward0", "backward", f"{here}:33")
            g = tape.alloc(n * width, TEMPORARY, back, after=45_000)
            grads.append(tape.alloc(n * width // 4, TEMPORARY, back, after=45_000))
            tape.role(grads[-1], GRADIENT)
            tape.free(value, g)
        for path, n in zip(paths, sizes, strict=True):
            if not step:
                place = tape.owner(path, "adamw", "optimizer", f"{here}:34")
                tape.alloc(n * width // 2, OPTIMIZER, place)
            scratch = tape.alloc(64, WORKSPACE, tape.owner("", "adamw", "optimizer", f"{here}:34"))
            tape.free(scratch, after=8_000)
        probes = {"process": {"rss": 90 * width, "peak_rss": 99 * width, "method": "hand"}}
        tape.mark(f"step {step + 1}", "step", probes)
        tape.free(*grads, batch)
    return tape.stop()
