"""Summary of a recording: the peak in one sentence, and its owners in a few groups.

Read by the picture and the page, so that both say the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...framework.memory.ledger import ROLES, format_bytes
from ..record.recording import Peak, Recording
from .role_style import ROLE_WORDS
from .tables import NO_LINE, OUTSIDE, Table

OTHERS = "(all others)"


@dataclass
class Summary:
    """A summary of the peak of one device.

    Attributes:
        device: Its name.
        peak: The peak.
        phase: The phase it was in; empty if the recording has no timeline.
        step: The step of the optimizer it was in, counted from 1; 0 if there was none. One more
            than there are for what comes after the last.
        steps: How many steps there were.
        roles: Role -> bytes, largest first.
        modules: Module path -> bytes, largest first.
        lines: Line -> bytes, largest first.
        layer: The module path that owns most by itself; empty if no module owns anything.
        kind: The same with equal layers of repeated blocks taken together, see :func:`kind_of`.
        kinds: How many layers that is, and their bytes.
        called: ``kind`` with the name of its class, see :func:`with_class`.
    """

    device: str
    peak: Peak
    phase: str
    step: int
    steps: int
    roles: dict[str, int]
    modules: dict[str, int]
    lines: dict[str, int]
    layer: str
    kind: str
    kinds: tuple[int, int]
    called: str = ""

    def moment(self) -> str:
        """Say when the peak was: ``0.83 s in, backward of step 2``, or ``after step 12``."""
        text = f"{seconds(self.peak.time)} in" + (f", {self.phase}" if self.phase else "")
        if not self.step:
            return text
        after = self.step > self.steps or self.phase == "evaluation"  # of no step
        if after and self.step > 1:
            return f"{text}{'' if self.phase else ','} after step {self.step - 1}"
        if after:
            return f"{text} before step 1"
        return text + (f" of step {self.step}" if self.phase else f", step {self.step}")

    def sentences(self) -> list[str]:
        """Return sentences: when the peak was, its roles, the layer that owns most of it."""
        total = self.peak.nbytes
        if not total:
            return [f"Nothing was allocated on {self.device}."]
        lines = [f"The peak is {format_bytes(total)} on {self.device}, {self.moment()}."]
        role, nbytes = next(iter(self.roles.items()))
        text = f"{percent(nbytes, total)} of it is {ROLE_WORDS[role]}"
        if not self.layer:
            return [*lines, text + "; no module owns any of it."]
        count, together = self.kinds
        share = percent(together, total)
        if count > 1:
            return [
                *lines,
                f"{text}. Its largest owner is {self.called}: {share}, in {count} layers; the "
                f"largest layer is {self.layer} with {format_bytes(self.modules[self.layer])}.",
            ]
        return [*lines, f"{text}. Its largest owner is {self.called}: {share}."]


def summarize(recording: Recording, device: int) -> Summary:
    """Summarize the peak of a device by role, module and line."""
    peak = recording.peaks[device] if device < len(recording.peaks) else Peak()
    owners = recording.owners
    modules = total_by(peak, lambda owner, role: owners[owner].module)
    events, event = recording.events, peak.event - 1
    phase = ""
    while 0 <= event < len(events) and events.owner[event] <= 0:  # it says nothing of the phase
        event -= 1
    if 0 <= event < len(events):
        phase = owners[events.owner[event]].phase
    steps = [mark.time for mark in recording.marks if mark.kind == "step"]
    layers = [path for path in modules if path]
    kinds: Counter[str] = Counter()
    for path in layers:
        kinds[kind_of(path)] += modules[path]
    kind = max(kinds, key=lambda k: kinds[k], default="")
    return Summary(
        device=recording.devices[device] if device < len(recording.devices) else "no device",
        peak=peak,
        phase=phase,
        step=sum(time < peak.time for time in steps) + 1 if steps else 0,
        steps=len(steps),
        roles=total_by(peak, lambda owner, role: ROLES[role]),
        modules=modules,
        lines=total_by(peak, lambda owner, role: owners[owner].line),
        layer=layers[0] if layers else "",
        kind=kind,
        kinds=(sum(kind_of(path) == kind for path in layers), kinds[kind]),
        called=_called(recording, [p for p in layers if kind_of(p) == kind]),
    )


def total_by(peak: Peak, group: Callable[[int, int], str]) -> dict[str, int]:
    """Bytes at the peak by group, largest first; ``group`` maps (owner, role number) to a name."""
    sums: Counter[str] = Counter()
    for (owner, role), nbytes in peak.cells.items():
        sums[group(owner, role)] += nbytes
    return dict(sums.most_common())


def kind_of(path: str) -> str:
    """Replace the block numbers in a module path by ``*``: ``blocks.*.mlp.0``.

    The last part stays: the members of a ``Sequential`` are no equals.
    """
    above, dot, last = path.rpartition(".")
    return f"{_starred(above)}{dot}{last}"


def with_class(recording: Recording, name: str, paths: Iterable[str] = ()) -> str:
    """Add the class of a module to its path: ``1 (ReLU)``.

    Args:
        recording: It knows the classes.
        name: A path, or what :func:`kind_of` made of several.
        paths: Those; of different classes, none is named.
    """
    classes = {recording.classes.get(path, "") for path in paths or (name,)}
    found = classes.pop() if len(classes) == 1 else ""
    return f"{name} ({found})" if found and found != name else name


def _called(recording: Recording, paths: list[str]) -> str:
    return with_class(recording, _common(paths), paths) if paths else ""


def repeated_layers(recording: Recording, table: Table) -> Table:
    """Sum a table by module over equal layers of repeated blocks, with their number and class.

    ``blocks.0.mlp.1`` to ``blocks.11.mlp.1`` become ``blocks.*.mlp.1 (ReLU, 12 layers)``.
    """
    bytes_of = table.as_dict()
    members: dict[str, list[str]] = {}
    for path in bytes_of:
        members.setdefault(_kind_in(recording, path), []).append(path)
    sums = {}
    for paths in members.values():
        common = _common(paths)
        name = with_class(recording, common, paths)
        if len(paths) > 1:
            name = f"{name[:-1] + ', ' if name != common else common + ' ('}{len(paths)} layers)"
        sums[name] = sum(bytes_of[path] for path in paths)
    return Table(table.title, table.by, sums, table.notes)


def _kind_in(recording: Recording, path: str) -> str:
    # The layers of a list are equals too; those of a Sequential are not.
    above, _, last = path.rpartition(".")
    equals = last.isdigit() and recording.classes.get(above) == "ModuleList"
    return _starred(path) if equals else kind_of(path)


def _common(paths: list[str]) -> str:
    # A number that all have in common is one block's: only what differs is a star.
    parts = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(part[0] if len({*part}) == 1 else "*" for part in parts)


def _starred(path: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def module_groups(modules: dict[str, int], limit: int) -> Callable[[str], str]:
    """Group module paths into at most ``limit`` groups of similar size.

    Paths are cut at the largest depth that leaves few enough groups. If one group then has most of
    the bytes, because a model has more equal blocks than fit, its blocks are taken together
    instead: ``blocks.*.attention``, ``blocks.*.mlp``.

    Returns:
        The map from any module path to its group.
    """
    sums = _cut(modules, 1, False)
    depth, by_kind = 1, False
    for stars in (False, True):
        if stars and 5 * max(sums.values(), default=0) < 3 * sum(sums.values()):
            break
        for deeper in range(2, 9):
            found = _cut(modules, deeper, stars)
            if len(sums) < len(found) <= limit:
                sums, depth, by_kind = found, deeper, stars
    kept = set(sorted(sums, key=lambda group: (-sums[group], group))[:limit])

    def group(path: str) -> str:
        cut = _prefix(path, depth, by_kind)
        return cut if cut in kept else OTHERS if path else OUTSIDE

    return group


def _cut(modules: dict[str, int], depth: int, stars: bool) -> Counter[str]:
    sums: Counter[str] = Counter()
    for path, nbytes in modules.items():
        if path:
            sums[_prefix(path, depth, stars)] += nbytes
    return sums


def _prefix(path: str, depth: int, stars: bool) -> str:
    cut = ".".join(path.split(".")[:depth])
    return _starred(cut) if stars else cut


def short_lines(recording: Recording) -> dict[str, str]:
    """Shorten source lines by the folder that all of them have in common."""
    lines = {owner.line for owner in recording.owners}
    files = sorted({line.rpartition(":")[0] for line in lines} - {""})
    absolute = [os.path.dirname(f) for f in files if os.path.isabs(f)]
    folder = os.path.commonpath(absolute) if absolute else ""
    cut = len(folder) + 1 if folder not in ("", os.sep) else 0
    return {
        line: line[cut:] if cut and line.startswith(folder + os.sep) else line or NO_LINE
        for line in lines
    }


def seconds(time: float) -> str:
    """Format a duration: ``12.3 ms``, ``1.25 s``."""
    return f"{time:.2f} s" if time >= 1 else f"{time * 1e3:.1f} ms"


def unit_of(largest: int) -> tuple[str, int]:
    """Return the unit in which bytes up to ``largest`` are drawn, and its bytes."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if largest >= scale:
            return unit, scale
    return "bytes", 1


def compilation(recording: Recording) -> str:
    """Say what kernels took before they could run; empty if none was compiled meanwhile."""
    if not recording.compilations:
        return ""
    names = [c.name for c in recording.compilations]
    count = sum(name.startswith("compiling ") for name in names)
    what = [f"compiling {count} kernel{'s' if count > 1 else ''}"] if count else []
    what += ["loading cached kernels"] if "cached kernels" in names else []
    what += ["importing Numba"] if "import of Numba" in names else []
    took = seconds(sum(c.seconds for c in recording.compilations))
    return f"{' and '.join(what)} took {took} (not shown on the time axis)"


def percent(part: int, whole: int) -> str:
    """Format ``part`` as a percentage of ``whole``: ``61 %``, ``0.4 %``."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 9.95 else f"{share:.1f} %"
