"""A linker for one object: the shared library that the system's loader takes, for ELF on x86-64.

The compiler writes an object, whose code does not know yet how far away its constants and the
functions of other libraries are. A machine that runs lowtide need not have a linker; what is needed
of one for a single object is short. The library has two parts: one that is read and run, and one
that is read and written, with the table of addresses that the loader fills in.

Source:
    System V Application Binary Interface, AMD64 Architecture Processor Supplement, 4.4 and 5.2.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .fingerprint import of_source

SOURCE = of_source(__file__)  # as it is imported

PAGE = 1 << 12
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_HEADERS = _HEADER.size + 4 * _SEGMENT.size

_WRITE, _ALLOCATE, _RUN = 1, 2, 4  # a section's flags
_BITS, _SYMBOLS, _RELOCATIONS, _ZEROS = 1, 2, 4, 8  # its types
_ABSOLUTE, _NEAR, _NEAR_CALL, _FAR = 1, 2, 4, 24  # relocations: an address, and distances
_BY_TABLE = (9, 41, 42)  # the distance of an entry of the table of addresses
_FROM_TABLE, _MOVED = 6, 8  # what the loader does: a symbol's address, an address of the library
_FIXED = 0xFFF1  # in place of a section: the value is no address


class LinkError(Exception):
    """The object needs something that this linker does not do."""


@dataclass
class _Section:
    name: str
    type: int
    flags: int
    size: int
    link: int
    of: int
    align: int
    data: bytes
    at: int = 0


class _Object:
    """A relocatable object, read."""

    def __init__(self, data: bytes) -> None:
        (start,) = struct.unpack_from("<Q", data, 40)
        count, names_at = struct.unpack_from("<HH", data, 60)
        heads = [_SECTION.unpack_from(data, start + _SECTION.size * k) for k in range(count)]
        names = data[heads[names_at][4] :]
        self.sections = [
            _Section(
                _text(names, h[0]),
                h[1],
                h[2],
                h[5],
                h[6],
                h[7],
                max(1, h[8]),
                b"" if h[1] == _ZEROS else data[h[4] : h[4] + h[5]],
            )
            for h in heads
        ]
        table = next(s for s in self.sections if s.type == _SYMBOLS)
        texts = self.sections[table.link].data
        self.symbols = list(_SYMBOL.iter_unpack(table.data))
        self.names = [_text(texts, s[0]) for s in self.symbols]
        # What unwinds the stack for an exception is left out: nothing here raises one.
        self.kept = [
            k
            for k, s in enumerate(self.sections)
            if s.flags & _ALLOCATE and s.type in (_BITS, _ZEROS) and s.name != ".eh_frame"
        ]
        self.changes = [
            (k, at, what >> 32, what & 0xFFFFFFFF, plus)
            for s in self.sections
            if s.type == _RELOCATIONS and s.of in self.kept
            for k in (s.of,)
            for at, what, plus in _RELOCATION.iter_unpack(s.data)
        ]

    def outside(self, symbol: int) -> bool:
        """Whether another library has it."""
        return bool(self.symbols[symbol][3] == 0)

    def address(self, symbol: int) -> int:
        """Where it lies in the library."""
        _, _, _, section, value, _ = self.symbols[symbol]
        if section == _FIXED:
            return int(value)
        if section not in self.kept:
            raise LinkError(f"{self.names[symbol]} lies in no section that is kept")
        return int(self.sections[section].at + value)


def link(data: bytes, exported: list[str], needed: list[str]) -> bytes:
    """Return the shared library made of an object.

    Args:
        data: The object.
        exported: Names that can be looked up in the loaded library.
        needed: Libraries that the loader must load with it.

    Raises:
        LinkError: It needs something that this linker does not do.
    """
    return _Linker(_Object(data), exported, needed).image()


class _Linker:
    def __init__(self, found: _Object, exported: list[str], needed: list[str]) -> None:
        self.found = found
        self.outside = _once(s for _, _, s, _, _ in found.changes if found.outside(s))
        near = (s for _, _, s, t, _ in found.changes if t == _NEAR_CALL)
        self.calls = _once(s for s in near if s in self.outside)
        by_table = (s for _, _, s, t, _ in found.changes if t in _BY_TABLE)
        self.table = _once([*by_table, *self.calls])
        self.exported = [k for k, n in enumerate(found.names) if n in exported]
        self.texts = bytearray(b"\0")
        self.named = [self._put(found.names[s]) for s in (*self.outside, *self.exported)]
        self.needed = [self._put(name) for name in needed]
        self._place()

    def _put(self, name: str) -> int:
        at = len(self.texts)
        self.texts += name.encode() + b"\0"
        return at

    def _place(self) -> None:
        # Where everything lies, in the file as in memory.
        self.end = _HEADERS
        sections = [self.found.sections[k] for k in self.found.kept]
        absolute = sum(t == _ABSOLUTE for _, _, _, t, _ in self.found.changes)
        symbols = 1 + len(self.named)
        self.symbols_at = self._take(_SYMBOL.size * symbols, 8)
        self.hash_at = self._take(4 * (3 + symbols), 8)
        self.changes_at = self._take(_RELOCATION.size * (len(self.table) + absolute), 8)
        self.texts_at = self._take(len(self.texts), 1)
        for s in sorted(sections, key=lambda s: s.flags & _RUN):
            if not s.flags & _WRITE:
                s.at = self._take(s.size, s.align)
        self.calls_at = self._take(8 * len(self.calls), 16)
        self.run_end = self.end
        self.write_at = self._take(0, PAGE)
        self.dynamic_at = self._take(16 * (10 + len(self.needed)), 16)
        self.table_at = self._take(8 * len(self.table), 8)
        for s in sorted(sections, key=lambda s: s.type == _ZEROS):
            if s.flags & _WRITE:
                if s.type != _ZEROS:
                    s.at = self._take(s.size, s.align)
                    continue
                if not hasattr(self, "file_end"):
                    self.file_end = self.end
                s.at = self._take(s.size, s.align)
        self.file_end = getattr(self, "file_end", self.end)

    def _take(self, size: int, align: int) -> int:
        at = -(-self.end // align) * align
        self.end = at + size
        return at

    def image(self) -> bytes:
        """Return the library."""
        image = bytearray(self.file_end)
        for k in self.found.kept:
            s = self.found.sections[k]
            image[s.at : s.at + len(s.data)] = s.data
        changes = self._fill_table(image) + self._change(image)
        self._write_tables(image, changes)
        self._write_headers(image, len(changes))
        return bytes(image)

    def _fill_table(self, image: bytearray) -> list[tuple[int, int, int]]:
        for k, symbol in enumerate(self.calls):  # jmp *entry(%rip)
            at, entry = self.calls_at + 8 * k, self._entry(symbol)
            image[at : at + 8] = b"\xff\x25" + struct.pack("<i", entry - at - 6) + b"\xcc\xcc"
        return [
            (self._entry(s), self._number(s) << 32 | _FROM_TABLE, 0)
            if s in self.outside
            else (self._entry(s), _MOVED, self.found.address(s))
            for s in self.table
        ]

    def _change(self, image: bytearray) -> list[tuple[int, int, int]]:
        # Write distances; return what only the loader can know.
        left = []
        for k, offset, symbol, kind, plus in self.found.changes:
            section = self.found.sections[k]
            at = section.at + offset
            outside = symbol in self.outside
            if kind in _BY_TABLE:
                to = self._entry(symbol)
            elif kind == _NEAR_CALL and outside:
                to = self.calls_at + 8 * self.calls.index(symbol)
            elif kind in (_NEAR, _NEAR_CALL, _FAR) and not outside:
                to = self.found.address(symbol)
            elif kind == _ABSOLUTE and section.flags & _WRITE:
                known = 0 if outside else self.found.address(symbol)
                what = self._number(symbol) << 32 | _ABSOLUTE if outside else _MOVED
                left.append((at, what, known + plus))
                continue
            else:
                name = self.found.names[symbol]
                raise LinkError(f"relocation {kind} of {name!r} in {section.name}")
            struct.pack_into("<q" if kind == _FAR else "<i", image, at, to + plus - at)
        return left

    def _entry(self, symbol: int) -> int:
        return self.table_at + 8 * self.table.index(symbol)

    def _number(self, symbol: int) -> int:
        return 1 + self.outside.index(symbol)

    def _write_tables(self, image: bytearray, changes: list[tuple[int, int, int]]) -> None:
        count = 1 + len(self.named)
        outside = [(0x10, 0, 0, 0)] * len(self.outside)
        inside = [(0x12, 1, self.found.address(s), self.found.symbols[s][5]) for s in self.exported]
        for k, ((info, section, value, size), name) in enumerate(
            zip(outside + inside, self.named, strict=True), 1
        ):
            at = self.symbols_at + _SYMBOL.size * k
            _SYMBOL.pack_into(image, at, name, info, 0, section, value, size)
        # One bucket: all names follow one another.
        chain = [0, *[k + 1 if k + 1 < count else 0 for k in range(1, count)]]
        struct.pack_into(f"<{3 + count}I", image, self.hash_at, 1, count, int(count > 1), *chain)
        image[self.texts_at : self.texts_at + len(self.texts)] = self.texts
        for k, change in enumerate(changes):
            _RELOCATION.pack_into(image, self.changes_at + _RELOCATION.size * k, *change)

    def _write_headers(self, image: bytearray, changes: int) -> None:
        dynamic = [(1, name) for name in self.needed] + [
            (4, self.hash_at),
            (5, self.texts_at),
            (6, self.symbols_at),
            (10, len(self.texts)),
            (11, _SYMBOL.size),
            (7, self.changes_at),
            (8, _RELOCATION.size * changes),
            (9, _RELOCATION.size),
            (24, 0),
            (0, 0),
        ]
        for k, pair in enumerate(dynamic):
            struct.pack_into("<QQ", image, self.dynamic_at + 16 * k, *pair)
        ident = b"\x7fELF\2\1\1" + bytes(9)
        sizes = _HEADER.size, _SEGMENT.size, 4, _SECTION.size, 0, 0
        _HEADER.pack_into(image, 0, ident, 3, 62, 1, 0, _HEADER.size, 0, 0, *sizes)
        start, file, memory = self.write_at, self.file_end, self.end
        segments = [
            (1, 5, 0, 0, 0, self.run_end, self.run_end, PAGE),
            (1, 6, start, start, start, file - start, memory - start, PAGE),
            (2, 6, *[self.dynamic_at] * 3, *[16 * len(dynamic)] * 2, 8),
            (0x6474E551, 6, 0, 0, 0, 0, 0, 16),  # a stack that is not run
        ]
        for k, segment in enumerate(segments):
            _SEGMENT.pack_into(image, _HEADER.size + _SEGMENT.size * k, *segment)


def _once(items: object) -> list[int]:
    return list(dict.fromkeys(items))  # type: ignore[call-overload]


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()
