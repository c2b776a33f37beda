"""Small files that ask for much: repetition, nests, sums that take for ever.

Each is at most 5 MiB, and is either refused or costs about what it says itself.

    python -m tests.faults.bombs                 # all of them: seconds, and bytes beyond the file
    python -m tests.faults.bombs --only memo     # those with the word in their name
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import pickle
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from typing import Any

import lowtide as lt
from lowtide.framework.serialization.pytorch_files import MAGIC, PROTOCOL
from lowtide.framework.serialization.save_load import FORMAT, STRUCTURE

MODULUS = (1 << 61) - 1  # of the hashes of integers


def ours(structure: Any, data: bytes = b"", entries: dict[str, Any] | None = None) -> bytes:
    """A safetensors file of ours without checksums, with one entry ``a`` of bytes."""
    words = structure if isinstance(structure, str) else json.dumps(structure)
    if entries is None:
        entries = {"a": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}
    header = json.dumps({"__metadata__": {FORMAT: "1", STRUCTURE: words}, **entries}).encode()
    return len(header).to_bytes(8, "little") + header + data


def zipped(body: bytes, data: bytes = b"") -> bytes:
    """A file of ``torch.save`` whose pickle is ``body``, with one storage."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("m/data.pkl", b"\x80\x02" + body + b".")
        z.writestr("m/data/0", data)
    return out.getvalue()


def legacy(body: bytes) -> bytes:
    """The same in the older format, without storages."""
    parts = [pickle.dumps(x, 2) for x in (MAGIC, PROTOCOL, {"little_endian": True})]
    return b"".join([*parts, b"\x80\x02" + body + b".", pickle.dumps([], 2)])


def named(module: str, name: str) -> bytes:
    """The instruction that names a global."""
    return f"c{module}\n{name}\n".encode()


def text(value: bytes) -> bytes:
    """The instruction of a string."""
    return b"X" + struct.pack("<I", len(value)) + value


def large(value: int) -> bytes:
    """The instruction of a large integer."""
    raw = pickle.encode_long(value)
    return b"\x8a" + bytes([len(raw)]) + raw


def _keys(count: int, before: bytes = b"", after: bytes = b"N") -> bytes:
    return b"".join(before + large(k * MODULUS) + after for k in range(count))


def tuples_of_one_hash(count: int) -> list[tuple[int, int]]:
    """Pairs of small integers, all with one hash: CPython's sum over a tuple's parts is undone.

    Source:
        The comment on ``tuplehash`` in CPython's Objects/tupleobject.c (xxHash, 64 bits).
    """
    p1, p2, p5 = 11400714785074694791, 14029467366897019727, 2870177450012600261
    full = 1 << 64
    undo1, undo2 = pow(p1, -1, full), pow(p2, -1, full)

    def turned(x: int, by: int) -> int:
        return ((x << by) | (x >> (64 - by))) % full

    pairs = []
    for first in range(8 * count):
        before = turned((p5 + first * p2) % full, 31) * p1 % full
        sought = turned(12345 * undo1 % full, 33)  # the sum before the last turn by 31
        second = (sought - before) * undo2 % full
        if second < MODULUS:  # then it is its own hash
            pairs.append((first, second))
    assert len(set(map(hash, pairs))) == 1
    return pairs[:count]


HUGE = b"\x8b" + struct.pack("<i", 1 << 20) + b"\1" * (1 << 20)  # an integer of 1 MiB
MANY = b"(" + b"K\1" * 100_000 + b"t"  # a tuple of 1e5
PAIRS = b"(" + b"".join(b"J" + struct.pack("<i", k) + b"N\x86" for k in range(70_000)) + b"l"
LONG_TEXTS = text(b"x" * 1_500_000) + b"q\x000" + text(b"x" * 1_500_000) + b"q\x010"
SHARED = b"]q\0" + b"h\0h\0\x86q\0" * 60  # 2**60 leaves
ORDERED = named("collections", "OrderedDict")
CALLS = {  # a function, its arguments, and how often it is called
    "encode": (named("_codecs", "encode"), text(b"x" * (1 << 20)) + b"\x85", 5000),
    "Size": (named("torch", "Size"), MANY + b"\x85", 5000),
    "Size of one list": (named("torch", "Size"), b"](" + b"K\1" * 100_000 + b"e\x85", 5000),
    "OrderedDict": (ORDERED, PAIRS + b"\x85", 5000),
    "Counter": (named("collections", "Counter"), PAIRS + b"\x85", 5000),
    "OrderedDict of a long tuple": (ORDERED, MANY + b"\x85\x85", 5000),
    "set": (named("builtins", "set"), MANY + b"\x85", 5000),
    "complex": (named("builtins", "complex"), b"K\1K\1\x86", 500_000),
    "empty OrderedDict": (ORDERED, b")", 500_000),
    "device": (named("torch", "device"), text(b"cpu") + b"\x85", 500_000),
}


def _called(
    name: str, each: bytes = b"h\0h\1R", before: bytes = b"(", after: bytes = b"l"
) -> bytes:
    function, arguments, count = CALLS[name]
    return function + b"q\0" + arguments + b"q\x010" + before + each * count + after


PICKLES: dict[str, Callable[[], bytes]] = {
    **{name: (lambda name=name: _called(name)) for name in CALLS},
    "calls thrown away": lambda: _called("encode", b"h\0h\1R0", b"", b"N"),
    "lists": lambda: b"(" + b"]" * 3_000_000 + b"l",
    "dicts": lambda: b"(" + b"}" * 3_000_000 + b"l",
    "sets": lambda: b"(" + b"\x8f" * 3_000_000 + b"l",
    "marks": lambda: b"(" * 1_000_000,
    "memo": lambda: b"N" + b"\x94" * 1_000_000,
    "memo at odd places": lambda: b"N" + b"".join(
        b"r" + struct.pack("<I", k * 37 + 1000) for k in range(700_000)
    ),
    "tuples of one": lambda: b"N" + b"\x85" * 1_000_000,
    "a nest of lists": lambda: b"]" * 500_000 + b"a" * 499_999,
    "a nest as a function": lambda: SHARED + b")R",
    "a nest as a persistent id": lambda: SHARED + b"Q",
    "a nest as sizes": lambda: named("torch", "Size") + SHARED + b"\x85R",
    "a tuple as a key over and over": lambda: b"}" + MANY + b"q\x000" + b"h\0Ns" * 500_000,
    "an integer as a key over and over": lambda: b"}" + HUGE + b"q\x000" + b"h\0Ns" * 500_000,
    "keys of one hash": lambda: b"}(" + _keys(200_000) + b"u",
    "tuples of one hash": lambda: b"}(" + _keys(150_000, after=b"\x85N") + b"u",
    "pairs of one hash": lambda: ORDERED + b"(" + _keys(150_000, after=b"N\x86") + b"l\x85R",
    "tuples made to have one hash": lambda: b"}(" + b"".join(
        b"J" + struct.pack("<i", a) + large(b) + b"\x86N" for a, b in tuples_of_one_hash(170_000)
    ) + b"u",
    "a long text as a key over and over": lambda: b"}" + LONG_TEXTS + b"h\1Ns" + b"h\0Ns" * 250_000,
    "a long text in a tuple as a key over and over": lambda: (
        LONG_TEXTS + b"h\0\x85q\x000h\1\x85q\x010}h\1Ns" + b"h\0Ns" * 250_000
    ),
    "pairs of two long texts": lambda: (
        LONG_TEXTS + b"h\0N\x86q\x000h\1N\x86q\x010" + ORDERED + b"(h\1" + b"h\0" * 190_000
        + b"l\x85R"
    ),
    "a set of two long texts": lambda: (
        LONG_TEXTS + named("builtins", "set") + b"(h\1" + b"h\0" * 190_000 + b"l\x85R"
    ),
    "sizes of a million digits": lambda: (
        named("torch._utils", "_rebuild_tensor_v2") + b"((" + text(b"storage")
        + named("torch", "FloatStorage") + text(b"0") + text(b"cpu") + b"K\1tQK\0("
        + HUGE + b"q\0" + b"h\0" * 31 + b"t(" + b"h\0" * 32 + b"t\x89}tR"
    ),
    "names of globals": lambda: (named("torch", "Size") + b"0") * 320_000 + b"N",
    "names of globals from the stack": lambda: (
        text(b"torch") + b"q\x000" + text(b"Size") + b"q\x010" + b"h\0h\1\x930" * 700_000 + b"N"
    ),
    "nothing, often": lambda: b"N0" * 2_000_000 + b"N",
    "empty marks": lambda: b"(1" * 2_000_000 + b"N",
    "instructions of two bytes": lambda: b"K\1q\0" + b"h\x000" * 1_300_000,
    "appends to one list": lambda: b"]" + b"Na" * 2_000_000,
    "a list extended by nothing": lambda: b"]" + b"(e" * 2_000_000,
    "a list in itself": lambda: b"]q\0" + b"h\0a" * 1_300_000,
    "sets in vain": lambda: b"\x8f(" + b"K\1" * 1_000_000 + b"\x90" + b"(\x90" * 1_000_000,
    "letters of four bytes": lambda: text("\U0001f600".encode() + b"a" * 3_000_000),
    "a view of 64 dimensions": lambda: _tensors(
        b"(" + b"K\1" * 64 + b"t", b"(" + b"K\1" * 64 + b"t", 500_000
    ),
    "low bits of keys alike": lambda: b"}(" + b"".join(
        large(k << 40) + b"N" for k in range(300_000)
    ) + b"u",
    "floats of one hash": lambda: b"}(" + b"".join(
        b"G" + struct.pack(">d", (1 + k / 2**40) * 2.0 ** (61 * e)) + b"N"
        for k in range(12_000) for e in range(-16, 16)
    ) + b"u",
    "decimal": lambda: b"I" + b"9" * 4_000_000 + b"\n",
    "a long location over and over": lambda: (
        text(b"cpu" * 300_000) + b"q\x000" + named("torch", "FloatStorage") + b"q\x010("
        + (b"(" + text(b"storage") + b"h\1" + text(b"0") + b"h\0K\0tQ") * 50_000 + b"l"
    ),
}  # fmt: skip


def _tensors(size: bytes, stride: bytes, count: int, where: bytes = b"cpu") -> bytes:
    storage = b"(" + text(b"storage") + named("torch", "FloatStorage") + text(b"0") + text(where)
    arguments = b"(" + storage + b"K\1tQ" + b"K\0" + size + stride + b"\x89}t"
    call = named("torch._utils", "_rebuild_tensor_v2") + b"q\0" + arguments + b"q\x010"
    return call + b"(" + b"h\0h\1R" * count + b"l"


def _in_parts(system: bytes, keys: bytes = b"]") -> bytes:
    """A legacy file with the pickles before and behind the object as they are given."""
    parts = [pickle.dumps(x, 2) for x in (MAGIC, PROTOCOL)]
    return b"".join([*parts, b"\x80\x02" + system + b".", b"\x80\x02N.", b"\x80\x02" + keys + b"."])


def _many_members(count: int, shared: bool) -> bytes:
    """A zip file of very many empty storages, each or all with one header."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("m/data.pkl", b"\x80\x02N.")
        for k in range(1 if shared else count):
            z.writestr(f"m/data/{k}", b"")
        if shared:
            one = z.filelist[-1]
            for k in range(1, count):
                member = zipfile.ZipInfo(f"m/data/{k}")
                member.header_offset, member.CRC = one.header_offset, 0
                z.filelist.append(member)
    return out.getvalue()


def _entries(count: int) -> dict[str, Any]:
    return {str(k): {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for k in range(count)}


def _theirs(entries: dict[str, Any]) -> bytes:
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header


def _header(words: str) -> bytes:
    return len(words).to_bytes(8, "little") + words.encode()


DATA = bytes(3 << 20)
FILES: dict[str, Callable[[], bytes]] = {
    **{f"zip: {name}": (lambda body=body: zipped(body())) for name, body in PICKLES.items()},
    **{f"legacy: {name}": (lambda body=body: legacy(body())) for name, body in PICKLES.items()},
    "zip: one tensor": lambda: zipped(_tensors(b"K\1\x85", b"K\1\x85", 500_000), bytes(4)),
    "zip: an expanded tensor elsewhere": lambda: zipped(
        _tensors(b"J\0\0\0\1J\0\0\0\1\x86", b"K\0K\0\x86", 5, b"sim"), bytes(4)
    ),
    "legacy: every pickle": lambda: _in_parts(
        b"}" + text(b"little_endian") + b"\x88s(" + b"]" * 200_000 + b"l0",
        b"](" + b"X\0\0\0\0" * 500_000 + b"e",
    ),
    "legacy: keys in vain": lambda: _in_parts(
        b"}" + text(b"little_endian") + b"\x88s", b"](" + b"N0" * 2_000_000 + b"e"
    ),
    "zip: very many storages": lambda: _many_members(35_000, False),
    "zip: very many storages with one header": lambda: _many_members(60_000, True),
    "ours: tuples made to have one hash": lambda: ours(
        {
            "$": "dict",
            "items": [
                [{"$": "tuple", "items": list(pair)}, 0] for pair in tuples_of_one_hash(60_000)
            ],
        }
    ),
    "ours: bytes": lambda: ours([{"$": "bytes", "entry": "a"}] * 1000, DATA),
    "ours: bytearrays": lambda: ours([{"$": "bytearray", "entry": "a"}] * 1000, DATA),
    "ours: one entry on many devices": lambda: ours(
        [{"$": "tensor", "entry": "a", "device": f"cpu:{k}"} for k in range(2000)], DATA
    ),
    "ours: one tensor": lambda: ours([{"$": "tensor", "entry": "a"}] * 90_000, b"x"),
    "ours: one array": lambda: ours([{"$": "ndarray", "entry": "a"}] * 90_000, b"x"),
    "ours: meta": lambda: ours([{"$": "tensor", "meta": {"shape": [1], "dtype": "int8"}}] * 60_000),
    "ours: a meta of many sizes": lambda: ours(
        {"$": "tensor", "meta": {"shape": [2] * 500_000, "dtype": "int8"}}
    ),
    "ours: generators": lambda: ours(
        [{"$": "Generator", "device": "cpu", "seed": 1, "offset": 0}] * 60_000
    ),
    "ours: keys of one hash": lambda: ours(
        {"$": "dict", "items": [[k * MODULUS, 0] for k in range(150_000)]}
    ),
    "ours: a set of one hash": lambda: ours(
        {"$": "set", "items": [k * MODULUS for k in range(150_000)]}
    ),
    "ours: empty lists": lambda: ours("[" + "[]," * 1_600_000 + "[]]"),
    "ours: empty dicts": lambda: ours("[" + "{}," * 1_600_000 + "[]]"),
    "ours: lists of nothing in the header": lambda: _header('{"a":[' + "[]," * 1_600_000 + "[]]}"),
    "ours: a long number": lambda: ours("9" * 4_000_000),
    "ours: a nest": lambda: ours('{"$":"tuple","items":[' * 100_000 + "]}" * 100_000),
    "ours: very many entries": lambda: ours([], b"", _entries(60_000)),
    "theirs: very many empty tensors": lambda: _theirs(_entries(60_000)),
}


# One file


def timed(data: bytes) -> tuple[float, float, str]:
    """Load a file; returns seconds of the processor and of the clock, and what came of it.

    Raises:
        AssertionError: The error does not name the file, or is a page long.
    """
    source, outcome = io.BytesIO(data), "loaded"
    began, started = time.process_time(), time.perf_counter()
    try:
        lt.load(source)
    except lt.SerializationError as error:
        outcome = str(error)
    seconds = time.process_time() - began, time.perf_counter() - started
    assert outcome == "loaded" or outcome.startswith("load: <BytesIO>: "), outcome
    assert len(outcome) < 1000, outcome
    return *seconds, outcome


def peak(data: bytes) -> int:
    """The most bytes that loading takes at once, Python's and the ledger's, beside the file."""
    source = io.BytesIO(data)
    gc.collect()  # what was there before
    lt.reset_peak_memory_stats()
    live = lt.memory_allocated()
    tracemalloc.start()
    try:
        timed(source.getvalue())
        return tracemalloc.get_traced_memory()[1] + lt.max_memory_allocated() - live
    finally:
        tracemalloc.stop()


def main() -> int:
    """Load all of them, and print what each cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="a word of the name")
    parser.add_argument("--fast", action="store_true", help="the time only, without the bytes")
    options = parser.parse_args()
    failures = count = 0
    lt.load(io.BytesIO(ours([])))  # imports
    for name, make in FILES.items():
        if options.only not in name:
            continue
        data = make()
        cpu, wall, outcome = timed(data)
        beyond = 0 if options.fast else peak(data) - len(data)
        failed = cpu > 2 or beyond > 64 << 20
        failures += failed
        count += 1
        print(
            f"{'FAILED ' if failed else ''}{name}: {len(data)} bytes, {cpu:.2f} s of the processor "
            f"({wall:.2f} s), {beyond / (1 << 20):.1f} MiB beyond the file; {outcome:.160}"
        )
    print(f"{count} files, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
