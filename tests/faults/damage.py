"""A fuzzer of files: cut, flipped, swapped, edited and spliced, each told by a seed.

A damaged file is refused with ``SerializationError`` (a part of an index that is not there:
``FileNotFoundError``), or loads. What has checksums, loads only as what was saved. The full run::

    python -m tests.faults.damage --count 10000 --seed 0
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import pickle
import random
import struct
import tempfile
import time
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lowtide as lt
from lowtide.framework.serialization.pytorch_files import MAGIC, PROTOCOL

from .bombs import named, text


class Base(NamedTuple):
    """Files to damage; ``summed``: whether every bit of their values is under a checksum."""

    files: dict[str, bytes]
    opened: str
    summed: bool


def _storage(key: bytes, kind: str, count: int) -> bytes:
    return (
        b"("
        + text(b"storage")
        + named("torch", kind)
        + text(key)
        + text(b"cpu")
        + b"J"
        + struct.pack("<i", count)
        + b"tQ"
    )


def _tensor(key: bytes, kind: str, count: int) -> bytes:
    return (
        named("torch._utils", "_rebuild_tensor_v2")
        + b"("
        + _storage(key, kind, count)
        + b"K\0K"
        + bytes([count])
        + b"\x85K\1\x85\x89"
        + named("collections", "OrderedDict")
        + b")RtR"
    )


FLOATS, BOOLS = np.arange(6, dtype=np.float32).tobytes(), bytes([1, 0, 1])
BODY = (
    b"\x80\2}("
    + text(b"w")
    + _tensor(b"0", "FloatStorage", 6)
    + text(b"flags")
    + _tensor(b"1", "BoolStorage", 3)
    + text(b"step")
    + b"K\5"
    + text(b"size")
    + named("torch", "Size")
    + b"(K\2K\3t\x85R"
    + text(b"list")
    + b"](K\1G?\xf0\0\0\0\0\0\0Neu."
)


def bases() -> dict[str, Base]:
    """Files of every format."""
    t = lt.arange(12.0).reshape(3, 4)
    value = {
        "w": t,
        "tied": t,
        "flags": lt.arange(6) > 2,
        "complex": lt.arange(2.0) * 1j,
        "array": np.arange(5, dtype=np.int16),
        "raw": b"some bytes",
        "more": bytearray(b"xy"),
        "meta": lt.zeros(3, device="meta"),
        "g": lt.Generator().manual_seed(3),
        "tree": [1, 2.5, None, (True, "ä"), {1, 2}, OrderedDict(a=1), Counter("aab"), 1j],
        "keys": {1: "a", (1, "b"): 2.0},
        "number": np.float32(2),
        "dtype": lt.float16,
        "size": lt.Size([1, 2]),
        "device": lt.device("cpu"),
        "p": lt.nn.Parameter(lt.ones(2)),
    }
    mine, out = io.BytesIO(), io.BytesIO()
    lt.save(value, mine)
    header = json.dumps(
        {
            "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "b": {"dtype": "BOOL", "shape": [3], "data_offsets": [24, 27]},
        }
    ).encode()
    plain = len(header).to_bytes(8, "little") + header + FLOATS + BOOLS
    with zipfile.ZipFile(out, "w") as z:
        for name, data in (
            ("data.pkl", BODY),
            ("byteorder", b"little"),
            ("data/0", FLOATS),
            ("data/1", BOOLS),
            ("version", b"3\n"),
        ):
            z.writestr(zipfile.ZipInfo(f"m/{name}"), data)
    parts = [pickle.dumps(x, 2) for x in (MAGIC, PROTOCOL, {"little_endian": True})]
    parts += [BODY, pickle.dumps(["0", "1"], 2)]
    old = b"".join([*parts, struct.pack("<q", 6), FLOATS, struct.pack("<q", 3), BOOLS])
    one, two = io.BytesIO(), io.BytesIO()
    lt.save({"a": t, "b": lt.arange(4)}, one)
    lt.save({"c": lt.ones(5)}, two)
    places = {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}
    index = json.dumps({"metadata": {}, "weight_map": places}).encode()
    several = {
        "m.index.json": index,
        "1.safetensors": one.getvalue(),
        "2.safetensors": two.getvalue(),
    }
    return {
        "ours": Base({"x": mine.getvalue()}, "x", True),
        "safetensors": Base({"x": plain}, "x", False),
        "zip": Base({"x": out.getvalue()}, "x", True),
        "legacy": Base({"x": old}, "x", False),
        "index": Base(several, "m.index.json", True),
    }


# Damage


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _bit(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    return bytes(changed)


def _swap(data: bytes, rng: random.Random) -> bytes:
    n = rng.randint(1, max(1, len(data) // 4))
    a, b = sorted(rng.randrange(len(data) - n + 1) for _ in range(2))
    if b - a < n:
        return data[:a] + data[a : a + n] * 2 + data[a + n :]  # overlapping: doubled instead
    return data[:a] + data[b : b + n] + data[a + n : b] + data[a : a + n] + data[b + n :]


def _remove(data: bytes, rng: random.Random) -> bytes:
    a = rng.randrange(len(data))
    return data[:a] + data[a + rng.randint(1, 16) :]


def _number(data: bytes, rng: random.Random) -> bytes:
    digits = [k for k, byte in enumerate(data) if 48 <= byte < 58]
    at = rng.choice(digits)
    new = rng.choice([b"-1", b"0", b"9" * 30, b"1e999", b"NaN", b"null", b"[]", b"1.5", b'"x"'])
    return data[:at] + new + data[at + 1 :]


def _word(data: bytes, rng: random.Random) -> bytes:
    words = [b"tensor", b"entry", b"cpu", b"float32", b"F32", b"dict", b"items", b"torch", b"data",
             b"shape", b"storage", b"lowtide.sums", b"lowtide.format", b"weight_map"]  # fmt: skip
    found = [w for w in words if w in data]
    new = rng.choice([b"", b"\xff", b"object", b"f4,(3)f8", b"\\ud800", b"cuda:99", b"F64",
                      b"a" * 300, b"__import__('os')", *words])  # fmt: skip
    return data.replace(rng.choice(found), new, rng.randint(1, 2)) if found else data + new


def _opcode(data: bytes, rng: random.Random) -> bytes:
    codes = [b"0", b"1", b"2", b"(", b"t", b"R", b"b", b"Q", b"h\0", b"q\0", b"\x94", b"\x85",
             b"]", b"}", b"N", b"s", b"a", b"u", b"e",
             b".", b"\x8f", b"\x90", b"\x81", b"l", b"d"]  # fmt: skip
    at = rng.randrange(len(data))
    return data[:at] + b"".join(rng.choices(codes, k=rng.randint(1, 3))) + data[at:]


def _field(data: bytes, rng: random.Random) -> bytes:
    marks = [k for k in range(len(data) - 3) if data[k : k + 2] == b"PK"]
    changed = bytearray(data)
    at = min((rng.choice(marks) if marks else 0) + rng.randrange(46), len(data) - 1)
    new = rng.choice([b"\0\0", b"\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"\x08\0"])
    changed[at : at + len(new)] = new[: len(changed) - at]
    return bytes(changed)


KINDS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": _cut,
    "bit": _bit,
    "bytes": _bytes,
    "swap": _swap,
    "remove": _remove,
    "number": _number,
    "word": _word,
    "opcode": _opcode,
    "field": _field,
}


# One file


def _raw(t: lt.Tensor) -> bytes:
    return bytes(t.detach().numpy().tobytes())


def same(a: Any, b: Any) -> bool:
    """Whether two loaded objects are equal, to the bit, class and order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, lt.Tensor):
        values = a.is_meta or _raw(a) == _raw(b)
        return (a.dtype, a.shape, a.device, a.requires_grad) == (
            b.dtype,
            b.shape,
            b.device,
            b.requires_grad,
        ) and values
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, lt.Generator):
        return a.get_state().tolist() == b.get_state().tolist()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def attempt(base: Base, folder: Path, rng: random.Random) -> tuple[str, str]:
    """Damage one of the files, load, and return the kind of damage and the outcome.

    The outcomes: ``refused``, ``part missing``, ``unchanged`` (or nothing was damaged), ``another
    value`` where there is no checksum; ``SILENT``, ``LEAK`` and ``ERROR ...`` are failures.
    """
    kind = rng.choice(list(KINDS))
    victim = rng.choice(list(base.files))
    for name, data in base.files.items():
        (folder / name).write_bytes(KINDS[kind](data, rng) if name == victim else data)
    live = lt.memory_allocated()
    try:
        got = lt.load(folder / base.opened, mmap=rng.random() < 0.3)
    except lt.SerializationError as error:
        outcome = "refused" if str(error).startswith("load: ") else f"ERROR unnamed: {error}"
        del error
    except FileNotFoundError:
        outcome = "part missing" if len(base.files) > 1 else "ERROR FileNotFoundError"
    except Exception as error:
        outcome = f"ERROR {type(error).__name__}: {error}"
    else:
        equal = same(got, _loaded(base))
        outcome = "unchanged" if equal else "SILENT" if base.summed else "another value"
        del got
    if lt.memory_allocated() != live:
        gc.collect()
        if lt.memory_allocated() != live:
            outcome = "LEAK"
    return kind, outcome


def _loaded(base: Base) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in base.files.items():
            (Path(folder) / name).write_bytes(data)
        return lt.load(Path(folder) / base.opened)


def run(count: int, seed: int) -> Counter[tuple[str, str]]:
    """Load ``count`` damaged files; the outcomes by format. Failures are printed with a number."""
    outcomes: Counter[tuple[str, str]] = Counter()
    named_bases = list(bases().items())
    with tempfile.TemporaryDirectory() as folder:
        for k in range(count):
            name, base = named_bases[k % len(named_bases)]
            kind, outcome = attempt(base, Path(folder), random.Random(f"{seed} {k}"))
            if outcome[0].isupper() and outcome.split()[0].isupper():
                print(f"seed {seed}, file {k} ({name}, {kind}): {outcome}")
                outcome = outcome.split()[0]
            outcomes[name, outcome] += 1
    return outcomes


def main() -> int:
    """Run it, and print what came of how many."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.perf_counter()
    outcomes = run(options.count, options.seed)
    for (name, outcome), count in sorted(outcomes.items()):
        print(f"{name:12} {outcome:14} {count:7}")
    failed = sum(n for (_, outcome), n in outcomes.items() if outcome.isupper())
    print(f"{options.count} files, {failed} failures, {time.perf_counter() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
