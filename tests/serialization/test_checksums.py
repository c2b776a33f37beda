"""Every flipped bit of a saved file is found, in its values and in its header."""

from __future__ import annotations

import io
import json
import zipfile
import zlib

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.serialization import checksums
from lowtide.framework.serialization.atomic_files import Source
from lowtide.framework.serialization.checksums import CHECKSUMS, verify
from lowtide.framework.serialization.safetensors import read_header
from lowtide.framework.serialization.save_load import FORMAT, STRUCTURE

from .test_sums import defined

VALUE = {
    "w": lt.arange(12.0).reshape(3, 4),
    "flags": lt.arange(6) > 2,
    "z": lt.arange(2.0) * 1j,
    "array": np.arange(5),
    "raw": b"bytes",
    "more": bytearray(b"xy"),
    "step": 3,
    "n": [1, 2.5, "a"],
}


def saved(value=VALUE):
    out = io.BytesIO()
    lt.save(value, out)
    return out.getvalue()


def test_every_flipped_bit_of_the_data_is_refused(tmp_path) -> None:
    data, path = saved(), tmp_path / "x"
    start = 8 + int.from_bytes(data[:8], "little")
    assert len(data) - start > 100
    for place in range(start, len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            with pytest.raises(lt.SerializationError, match="checksum of entry '.*' is wrong"):
                lt.load(io.BytesIO(changed))
        path.write_bytes(changed)
        with pytest.raises(lt.SerializationError, match="checksum of entry '.*' is wrong"):
            lt.load(path, mmap=True)


def test_every_flipped_bit_of_the_header_is_refused_or_changes_nothing() -> None:
    data = saved()
    start = 8 + int.from_bytes(data[:8], "little")
    accepted, field = set(), data.index(CHECKSUMS.encode())
    for place in range(start):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            try:
                again = saved(lt.load(io.BytesIO(changed)))
            except lt.SerializationError:
                continue
            assert again == data
            accepted.add(place)
    # the header's own number, with letters a to f as A to F
    assert all(chr(data[place]) in "abcdef" for place in accepted)
    number = field + len(CHECKSUMS) + 3
    assert all(number <= place < number + 8 for place in accepted)


def test_a_damaged_name_of_the_checksums_does_not_switch_them_off() -> None:
    data = saved({"a": lt.arange(3)})
    damaged = data[:-1] + b"\1"
    with pytest.raises(lt.SerializationError, match="no other metadata than.*'lowtide.sumz'"):
        lt.load(io.BytesIO(damaged.replace(CHECKSUMS.encode(), b"lowtide.sumz")))


def test_blocks_that_changed_places_are_refused() -> None:
    data = bytearray(saved({"a": lt.arange(1000), "b": lt.arange(1000) + 7}))
    start = len(data) - 16000
    for a, b, n in ((0, 8000, 8000), (0, 4096, 1024), (8, 8808, 8)):
        changed = data[:]
        changed[start + a : start + a + n] = data[start + b : start + b + n]
        changed[start + b : start + b + n] = data[start + a : start + a + n]
        with pytest.raises(lt.SerializationError, match="checksum of entry"):
            lt.load(io.BytesIO(changed))


def test_a_file_without_checksums_still_loads() -> None:
    data = saved({"a": lt.arange(3)})
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    del header["__metadata__"][CHECKSUMS]
    assert set(header["__metadata__"]) == {FORMAT, STRUCTURE}
    text = json.dumps(header).encode()
    old = len(text).to_bytes(8, "little") + text + data[8 + length :]
    assert lt.load(io.BytesIO(old))["a"].tolist() == [0, 1, 2]


def test_the_checksums_are_metadata_that_other_tools_can_compare(tmp_path) -> None:
    safetensors = pytest.importorskip("safetensors")
    lt.save({"a": lt.arange(3), "b": lt.ones(2)}, tmp_path / "x")
    with safetensors.safe_open(tmp_path / "x", "numpy") as file:
        words = file.metadata()[CHECKSUMS].split()
        sums = [f"{defined(file.get_tensor(name).tobytes()):016x}" for name in ("a", "b")]
    assert words[1:] == sums
    data = (tmp_path / "x").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    assert f"{zlib.crc32(data[:start].replace(words[0].encode(), b'0' * 8)):08x}" == words[0]


@pytest.mark.parametrize("nbytes", [0, 1, 1 << 20, (1 << 20) + 1, (1 << 23) - 4, (1 << 23) + 12])
def test_a_path_and_a_stream_get_the_same_file(nbytes, tmp_path) -> None:
    t = lt.arange(nbytes, dtype=lt.uint8)
    square = lt.arange(1 << 21).reshape(1 << 10, 1 << 11).T if nbytes > 1 << 23 else t
    lt.save([t, square], tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == saved([t, square])
    assert lt.equal(lt.load(tmp_path / "x")[0], t)


def test_a_damaged_last_byte_of_a_large_entry_is_found(tmp_path) -> None:
    lt.save([lt.zeros(3 << 20)], tmp_path / "x")
    data = bytearray((tmp_path / "x").read_bytes())
    data[-1] ^= 1
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(lt.SerializationError, match="entry '0' is wrong.*load another copy"):
        lt.load(tmp_path / "x")


@pytest.mark.parametrize("workers", [1, 2])
def test_the_crc_of_an_archive_is_the_same_with_any_number_of_threads(workers, monkeypatch) -> None:
    monkeypatch.setattr(checksums.threads, "get_num_threads", lambda: workers)
    memory = memoryview(bytes(range(256)) * (40 << 10))
    moved: list[int] = []
    assert checksums.crc_while(memory, lambda block: moved.append(len(block))) == zlib.crc32(memory)
    assert moved == [4 << 20, 4 << 20, 2 << 20]


def test_verify_names_the_damaged_entry_and_builds_nothing(tmp_path) -> None:
    lt.save({"a": lt.arange(3), "b": lt.ones(2)}, tmp_path / "x")
    data = bytearray((tmp_path / "x").read_bytes())
    live = lt.memory_allocated()
    with Source(io.BytesIO(data)) as source:
        verify(source, read_header(source))
    data[-1] ^= 1
    with Source(io.BytesIO(data)) as source:
        header = read_header(source)
        with pytest.raises(lt.SerializationError, match="checksum of entry 'b' is wrong"):
            verify(source, header)
    assert lt.memory_allocated() == live


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("kind", ["FloatStorage", "BoolStorage"])
def test_every_flipped_bit_of_a_zip_storage_is_refused(kind, mmap, tmp_path) -> None:
    from .test_pytorch_files import archive, storage, tensor

    raw = bytes([1, 0, 1, 1, 0, 0, 0, 1])
    count = len(raw) if kind == "BoolStorage" else len(raw) // 4
    body = tensor(storage(kind=kind, elements=count), 0, (count,), (1,))
    data = archive(body, {"0": raw}).getvalue()
    with zipfile.ZipFile(io.BytesIO(data)) as z:
        place = data.index(raw, z.getinfo("m/data/0").header_offset)
    path = tmp_path / "x.pt"
    for k in range(8 * len(raw)):
        changed = bytearray(data)
        changed[place + k // 8] ^= 1 << k % 8
        path.write_bytes(changed)
        with pytest.raises(lt.SerializationError, match="checksum of storage 0 is wrong"):
            lt.load(path, mmap=mmap)
