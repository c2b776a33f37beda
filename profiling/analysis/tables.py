"""Tables of bytes by role, module, op, line or phase: print, look up, export.

One class for every answer of the profiler, so that each is a method, a text and JSON alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...framework.memory.ledger import ROLES, format_bytes
from ..record.recording import BEFORE, Cells, Owner, Recording

BY = ("role", "module", "op", "line", "stack", "phase")
OUTSIDE = "(outside modules)"
WIDTH = 100  # columns of what is printed; the names in ``as_dict`` and ``to_dict`` are whole
NO_LINE = "(lines were not recorded)"


class Row(NamedTuple):
    """One line of a table.

    Attributes:
        name: Whose bytes; of several keys, joined by " · ".
        nbytes: How many; in a comparison, how many more.
        share: Of the sum of all sizes; negative where it is less.
    """

    name: str
    nbytes: int
    share: float


class Table:
    """Bytes by name, largest first; their sum is exact.

    Attributes:
        title: What it shows.
        by: What the names are.
        rows: :class:`Row` each.
        total: The sum of the rows.
        notes: Remarks to print below.
        texts: Name -> the source text to print beside it; only of lines that could be read.
    """

    def __init__(
        self,
        title: str,
        by: str,
        sums: dict[str, int],
        notes: Iterable[str] = (),
        texts: Mapping[str, str] | None = None,
    ):
        self.title = title
        self.by = by
        self.total = sum(sums.values())
        whole = sum(abs(n) for n in sums.values()) or 1
        ordered = sorted(sums.items(), key=lambda item: (-abs(item[1]), item[0]))
        self.rows = [Row(name, n, n / whole) for name, n in ordered]
        self.notes = list(notes)
        self.texts = dict(texts or {})

    def as_dict(self) -> dict[str, int]:
        """Return a dict of name to bytes, largest first."""
        return {row.name: row.nbytes for row in self.rows}

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers that JSON can hold."""
        return {
            "title": self.title,
            "by": self.by,
            "total": self.total,
            "rows": [{"name": r.name, "bytes": r.nbytes, "share": r.share} for r in self.rows],
            "notes": self.notes,
        }

    def text(self, limit: int | None = None, signed: bool = False, width: int = WIDTH) -> str:
        """Format the table as text.

        Args:
            limit: Rows at most; what is left out is one more row, so that the sum holds.
            signed: Show changes with their sign.
            width: Columns at most; longer names lose their beginning.
        """
        rows: Sequence[Row] = self.rows
        if limit is not None and len(rows) > limit:
            left = rows[limit:]
            rest = Row(f"({len(left)} more)", sum(r.nbytes for r in left), 0.0)
            rest = rest._replace(share=sum(r.share for r in left))
            rows = [*rows[:limit], rest]
        sign = "+" if signed else ""
        cells = [
            (_size(r.nbytes, sign), f"{r.nbytes:{sign},}", f"{r.share:.1%}", r.name) for r in rows
        ]
        cells.append((_size(self.total, sign), f"{self.total:{sign},}", "", "in all"))
        head = ("", "bytes", "share", self.by)
        widths = [max(len(c[k]) for c in [head, *cells]) for k in range(3)]
        room = width - sum(widths) - 8
        names = self._names([d for _, _, _, d in [head, *cells]], room)
        lines = [
            f"  {a:>{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {name}".rstrip()
            for (a, b, c, _), name in zip([head, *cells], names, strict=True)
        ]
        return "\n".join([self.title, *lines, *(f"  {note}" for note in self.notes)])

    def _names(self, names: list[str], room: int) -> list[str]:
        # Names that fit, with their source texts in a column of their own.
        texts = [self.texts.get(name, "") for name in names]
        longest = max(map(len, texts))
        if not longest:
            return [cut(name, room) for name in names]
        left = max(room - longest - 2, 6 * room // 10)
        short = [cut(name, left) for name in names]
        left = max(map(len, short)) + 2
        return [
            f"{name:<{left}}{text if len(text) <= room - left else text[: room - left - 3] + '...'}"
            for name, text in zip(short, texts, strict=True)
        ]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> int:
        found = self.as_dict()
        if name not in found:
            raise KeyError(f"{name!r} is no row; there are {', '.join(found) or 'none'}")
        return found[name]

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from ..report import inline_html

        return inline_html.table(self)

    __repr__ = __str__


def cut(name: str, room: int) -> str:
    """Shorten a name to a number of columns by cutting its beginning."""
    parts = name.split(" · ")
    while len(name) > room:
        k = max(range(len(parts)), key=lambda k: len(parts[k]))
        left = len(parts[k]) - (len(name) - room)
        second = max((len(p) for p in parts[:k] + parts[k + 1 :]), default=0)
        left = max(left, min(second, len(parts[k]) - 1), 8)
        if left >= len(parts[k]):
            break
        parts[k] = "..." + parts[k][len(parts[k]) - left + 3 :]
        name = " · ".join(parts)
    return name


def _size(n: int, sign: str) -> str:
    return (sign if n > 0 else "") + format_bytes(n)


def name_of(owner: Owner, role: int, by: str, depth: int | None = None) -> str:
    """Return the name of one (owner, role) cell under a grouping.

    Args:
        owner: Of the cell.
        role: Its number.
        by: One of ``BY``.
        depth: How many segments of a module's path to show; all if None.
    """
    if by == "role":
        return ROLES[role]
    if by == "module":
        return ".".join(place(owner).split(".")[:depth])
    if by == "line":
        return owner.line or NO_LINE
    if by == "stack":
        return " < ".join([owner.line or NO_LINE, *owner.callers])
    return owner.op if by == "op" else owner.phase


def place(owner: Owner) -> str:
    """Return the module's path, or a description where there is none."""
    return owner.module or (f"({BEFORE})" if owner.op == "before" else OUTSIDE)


def grouped(
    recording: Recording,
    cells: Cells,
    by: str | Sequence[str],
    depth: int | None = None,
    where: Callable[[Owner, int], bool] | None = None,
) -> dict[str, int]:
    """Sum the bytes of cells by name.

    Raises:
        ValueError: ``by`` is none of ``BY``, or ``depth`` is not positive.
    """
    keys = check_by(by)
    if depth is not None and depth < 1:
        raise ValueError(f"depth is how many segments of a path to show, 1 or more; got {depth}.")
    sums: dict[str, int] = {}
    for (owner, role), n in cells.items():
        whose = recording.owners[owner]
        if where is None or where(whose, role):
            name = " · ".join(name_of(whose, role, key, depth) for key in keys)
            sums[name] = sums.get(name, 0) + n
    return sums


def check_by(by: str | Sequence[str]) -> tuple[str, ...]:
    """Validate a grouping and return it as a tuple of names.

    Raises:
        ValueError: One of them is none of ``BY``, or there is none.
    """
    keys = (by,) if isinstance(by, str) else tuple(by) or ("",)
    for key in keys:
        if key not in BY:
            raise ValueError(f"by is one of {', '.join(BY)}, or several of them; got {key!r}.")
    return keys


def selection(**wanted: str | None) -> Callable[[Owner, int], bool] | None:
    """Return a predicate for cells by role, module (and its submodules), op, phase and line.

    Raises:
        ValueError: There is no such role.
    """
    given = {name: value for name, value in wanted.items() if value is not None}
    if not given:
        return None
    role = given.pop("role", None)
    if role is not None and role not in ROLES:
        raise ValueError(f"a role is one of {', '.join(ROLES)}; got {role!r}.")
    module = given.pop("module", None)

    def holds(owner: Owner, number: int) -> bool:
        return (
            (role is None or ROLES[number] == role)
            and (module is None or f"{owner.module}.".startswith(f"{module}."))
            and all(getattr(owner, name) == value for name, value in given.items())
        )

    return holds
