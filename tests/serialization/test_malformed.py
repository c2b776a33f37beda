"""Files that are damaged, cut off, or made to do harm: an error that names the rule, no harm."""

from __future__ import annotations

import io
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide as lt
from lowtide.framework.serialization.save_load import FORMAT, STRUCTURE


def file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    n = len(text) if length is None else length
    return io.BytesIO(n.to_bytes(8, "little") + text + data)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


EIGHT = b"\0" * 8
BAD = {
    "empty": (io.BytesIO(b""), "0 bytes are no safetensors file"),
    "short": (io.BytesIO(b"1234567"), "7 bytes are no safetensors file"),
    "length past the end": (file({}, length=3), "the header's length is 3 bytes"),
    "absurd length": (file({}, length=2**63), "the header's length is"),
    "no json": (file(b"{nonsense}"), "no valid JSON"),
    "no utf-8": (file(b'{"\xff": 1}'), "no valid JSON"),
    "not an object": (file([1]), "must be a JSON object"),
    "deep json": (file(b"[" * 100_000 + b"]" * 100_000), "no valid JSON"),
    "long number": (file(b'{"a": ' + b"9" * 100_000 + b"}"), "no valid JSON"),
    "twice": (file(b'{"a": 1, "a": 2}'), "a name appears twice"),
    "metadata of numbers": (file({"__metadata__": {"a": 1}}), "must map strings to strings"),
    "extra field": (file({"a": {**entry(), "x": 1}}, EIGHT), "entry 'a' must have dtype, shape"),
    "no field": (file({"a": {}}, EIGHT), "entry 'a' must have dtype, shape"),
    "unknown dtype": (file({"a": entry("F33")}, EIGHT), "entry 'a' has dtype 'F33'"),
    "dtype no string": (file({"a": entry([])}, EIGHT), "entry 'a' has dtype"),
    "negative size": (file({"a": entry(shape=(-2,))}, EIGHT), "entry 'a' has shape"),
    "bool size": (file({"a": entry(shape=(True, 2))}, EIGHT), "entry 'a' has shape"),
    "float size": (file({"a": entry(shape=(2.0,))}, EIGHT), "entry 'a' has shape"),
    "65 dims": (file({"a": entry(shape=(1,) * 64 + (2,))}, EIGHT), "at most 64 sizes"),
    "three offsets": (file({"a": entry(offsets=(0, 8, 9))}, EIGHT), "entry 'a' has data_offsets"),
    "wrong size": (file({"a": entry(shape=(3,))}, EIGHT), "takes 12 bytes, its data_offsets say 8"),
    "overflow": (file({"a": entry(shape=(2**40, 2**40))}, EIGHT), "more than any memory"),
    "overflow of zero": (file({"a": entry(shape=(0, 2**62), offsets=(0, 0))}), "any memory"),
    "past the end": (file({"a": entry()}, b"1234"), "entry 'a' ends at byte"),
    "backwards": (file({"a": entry(offsets=(8, 0))}, EIGHT), "takes 8 bytes"),
    "overlap": (
        file({"a": entry(), "b": entry(shape=(1,), offsets=(4, 8))}, EIGHT),
        "entry 'b' begins at byte 4 of the data, where 8 was expected",
    ),
    "hole": (
        file({"a": entry(shape=(1,), offsets=(4, 8))}, EIGHT),
        "entry 'a' begins at byte 4 of the data, where 0 was expected",
    ),
    "more data": (file({"a": entry()}, EIGHT + b"1"), "the file at"),
    "a dtype of no tensor": (
        file({"a": entry("F8_E8M0", (8,))}, EIGHT),
        "has dtype F8_E8M0, which no tensor here",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_the_message_names_what_is_wrong(case) -> None:
    source, message = BAD[case]
    source.seek(0)
    with pytest.raises(lt.SerializationError, match=r"load: <BytesIO>: ") as caught:
        lt.load(source)
    assert message in str(caught.value)


def ours(structure, entries=None, data=b"", version="1"):
    text = structure if isinstance(structure, str) else json.dumps(structure)
    return file({"__metadata__": {FORMAT: version, STRUCTURE: text}, **(entries or {})}, data)


STRUCTURES = {
    "no json": ("{", "is no valid JSON"),
    "unknown kind": ({"$": "eval", "code": "1"}, "has a 'eval', which this version cannot read"),
    "kind no string": ({"$": []}, "cannot read"),
    "no entry": ({"$": "tensor", "entry": "x"}, "asks for entry 'x', which is not there"),
    "entry no string": ({"$": "tensor", "entry": {}}, "which is not there"),
    "no items": ({"$": "tuple"}, "tuple is damaged"),
    "items no list": ({"$": "tuple", "items": "abc"}, "tuple is damaged"),
    "key a list": ({"$": "dict", "items": [[[1], 2]]}, "dict is damaged"),
    "no pair": ({"$": "dict", "items": [[1]]}, "dict is damaged"),
    "no dtype": ({"$": "dtype", "name": "float33"}, "dtype is damaged"),
    "size of text": ({"$": "Size", "items": ["x"]}, "Size is damaged"),
    "float": ({"$": "float", "value": "1" * 10}, "float is damaged"),
    "meta of absurd size": (
        {"$": "tensor", "meta": {"shape": [2**60, 8], "dtype": "float32"}},
        "tensor is damaged",
    ),
    "meta of negative size": (
        {"$": "tensor", "meta": {"shape": [-1], "dtype": "float32"}},
        "tensor is damaged",
    ),
    "grad of integers": (
        {"$": "tensor", "meta": {"shape": [1], "dtype": "int64"}, "requires_grad": True},
        "tensor is damaged",
    ),
    "deep": (json.loads('{"$":"tuple","items":[' * 250 + "]}" * 250), "more than 200 deep"),
    "object as number": ({"$": "number", "dtype": "object", "value": 1}, "number is damaged"),
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_a_structure_that_describes_nothing_is_refused(case) -> None:
    structure, message = STRUCTURES[case]
    with pytest.raises(lt.SerializationError) as caught:
        lt.load(ours(structure))
    assert message in str(caught.value)


def test_complex_pairs_must_be_pairs() -> None:
    node = {"$": "tensor", "entry": "a", "complex": "complex64"}
    with pytest.raises(lt.SerializationError, match="tensor is damaged"):
        lt.load(ours(node, {"a": entry(shape=(1, 1, 2), dtype="I32")}, EIGHT))
    with pytest.raises(lt.SerializationError, match="tensor is damaged"):
        lt.load(ours(node, {"a": entry(shape=(2, 1))}, EIGHT))
    assert lt.load(ours(node, {"a": entry(shape=(1, 2))}, EIGHT)).tolist() == [0j]


def test_a_later_version_says_so() -> None:
    with pytest.raises(lt.SerializationError, match="version 2 of the format"):
        lt.load(ours("1", version="2"))


def test_a_bool_of_a_file_is_zero_or_one() -> None:
    got = lt.load(file({"a": entry("BOOL", (4,), (0, 4))}, b"\0\1\2\xff"))["a"]
    assert got._array.view(np.uint8).tolist() == [0, 1, 1, 1]


def good():
    out = io.BytesIO()
    lt.save({"w": lt.arange(6.0).reshape(2, 3), "s": [1, (2, b"x")], "b": lt.ones(3) > 0}, out)
    return out.getvalue()


GOOD = good()


@pytest.mark.parametrize("length", range(0, len(GOOD), 7))
def test_a_file_cut_off_anywhere_is_an_error(length) -> None:
    with pytest.raises(lt.SerializationError):
        lt.load(io.BytesIO(GOOD[:length]))


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_changed_bytes_give_a_value_or_a_serialization_error(changes) -> None:
    data = bytearray(GOOD)
    for place, byte in changes:
        data[place] = byte
    try:
        lt.load(io.BytesIO(bytes(data)))
    except lt.SerializationError as error:
        assert "load: " in str(error)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", b"\x80\x02", b"PK\x03\x04", GOOD[:40]]))
def test_noise_is_a_serialization_error(noise, start) -> None:
    data = start + noise
    if data != GOOD:
        with pytest.raises(lt.SerializationError):
            lt.load(io.BytesIO(data))


def test_bad_files_take_no_memory() -> None:
    tracemalloc.start()
    try:
        live = lt.memory_allocated()
        for source, _ in BAD.values():
            source.seek(0)
            with pytest.raises(lt.SerializationError):
                lt.load(source)
        assert lt.memory_allocated() == live
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# Files of others


def test_a_safetensors_file_of_another_program_is_a_dict(tmp_path) -> None:
    theirs = pytest.importorskip("safetensors.numpy")
    arrays = {
        "z": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array(3),
        "e": np.zeros((0, 2)),
    }
    theirs.save_file(arrays, tmp_path / "m.safetensors", metadata={"format": "pt"})
    for mmap in (False, True):
        got = lt.load(tmp_path / "m.safetensors", mmap=mmap)
        assert set(got) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(got[name].numpy(), array)


def test_values_that_lie_unaligned_are_read_all_the_same(tmp_path) -> None:
    header = {"a": entry("U8", (1,), (0, 1)), "b": entry("F32", (2,), (1, 9))}
    data = b"\7" + np.array([1.5, 2.5], np.float32).tobytes()
    (tmp_path / "x").write_bytes(file(header, data).getvalue())
    live = lt.memory_allocated()
    got = lt.load(tmp_path / "x", mmap=True)
    assert got["b"].tolist() == [1.5, 2.5]
    assert got["b"]._array.flags.aligned
    assert lt.memory_allocated() - live == 8  # copied: kernels need it aligned


def test_an_index_gathers_the_tensors_of_several_files(tmp_path) -> None:
    lt.save({"a": lt.ones(2), "c": lt.zeros(1)}, tmp_path / "m-1.safetensors")
    lt.save({"b": lt.arange(3)}, tmp_path / "m-2.safetensors")
    index = tmp_path / "m.safetensors.index.json"
    names = {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    got = lt.load(index)
    assert list(got) == ["a", "b", "c"]
    assert got["b"].tolist() == [0, 1, 2]
    for bad in ("../m-1.safetensors", "/etc/passwd", "..", 3):
        index.write_text(json.dumps({"weight_map": {"a": bad}}))
        with pytest.raises(lt.SerializationError, match="must be a plain name"):
            lt.load(index)
    index.write_text(json.dumps({"weight_map": {"x": "m-1.safetensors"}}))
    with pytest.raises(lt.SerializationError, match="promises tensor 'x'"):
        lt.load(index)
    index.write_text("[]")
    with pytest.raises(lt.SerializationError, match="no index"):
        lt.load(index)
