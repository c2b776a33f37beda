"""Damaged files are refused by name or load as what was saved; bombs cost no more than they say."""

from __future__ import annotations

import gc
import io
import json
import tracemalloc

import pytest

import lowtide as lt

from .bombs import FILES, ours, timed
from .damage import run


@pytest.mark.parametrize("seed", range(3))
def test_no_damaged_file_of_a_sample_is_accepted_or_leaks(seed) -> None:
    outcomes = run(300, seed)
    assert sum(outcomes.values()) == 300
    assert not [outcome for _, outcome in outcomes if outcome.isupper()]


ISSUE = [
    "zip: encode",
    "zip: Size",
    "zip: OrderedDict",
    "ours: bytes",
    "ours: one entry on many devices",
]
QUICK = ["zip: sets", "zip: a nest as a function", "zip: a nest as a persistent id",
         "zip: an integer as a key over and over", "zip: a long location over and over",
         "legacy: encode", "legacy: decimal", "ours: bytearrays", "ours: a long number",
         "ours: a nest", "ours: empty lists", "ours: empty dicts",
         "ours: lists of nothing in the header", "zip: an expanded tensor elsewhere", "zip: marks",
         "ours: tuples made to have one hash",
         "zip: a long text as a key over and over", "zip: pairs of two long texts",
         "zip: sizes of a million digits"]  # fmt: skip


COLLIDING = pytest.param("zip: tuples made to have one hash", marks=pytest.mark.deep)  # 5 s


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", [*ISSUE, *QUICK, COLLIDING])
def test_a_small_file_that_asks_for_much_takes_little(name) -> None:
    data = FILES[name]()
    source = io.BytesIO(data)
    gc.collect()  # what tests before this one left
    lt.reset_peak_memory_stats()
    live = lt.memory_allocated()
    tracemalloc.start()
    try:
        try:
            got = lt.load(source)
        except lt.SerializationError as error:
            assert "load: <BytesIO>: " in str(error)
            assert len(str(error)) < 1000
        else:
            assert name == "ours: one entry on many devices"  # they are one device, one memory
            assert len({id(t._storage) for t in got}) == 1
            del got
        peak = tracemalloc.get_traced_memory()[1] + lt.max_memory_allocated() - live
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(data) + (64 << 20)
    assert lt.memory_allocated() == live


SLOW = [
    "legacy: marks",
    "legacy: memo",
    "zip: a long text in a tuple as a key over and over",
    "zip: a set of two long texts",
    "zip: nothing, often",
    "zip: names of globals",
    "legacy: every pickle",
    "zip: floats of one hash",
]


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", SLOW)
def test_a_small_file_that_asks_for_much_ends(name) -> None:
    _, _, outcome = timed(FILES[name]())  # the seconds are for the command
    assert (outcome == "loaded") == (name in ("legacy: memo", "zip: names of globals"))


def test_a_dtype_of_a_file_is_never_evaluated() -> None:
    for text in ("f4,(3)f8", "f4,(", "i4,i4", "O", "V8", "M8[ns]", "(1" * 100, 3, None, []):
        for node in (
            {"$": "number", "dtype": text, "value": 1},
            {"$": "ndarray", "entry": "a", "complex": text},
            {"$": "tensor", "entry": "a", "complex": text},
        ):
            with pytest.raises(lt.SerializationError, match="is damaged"):
                lt.load(io.BytesIO(ours(node, bytes(8))))


def test_what_a_map_location_raises_is_its_own() -> None:
    def broken(tensor, location):
        raise KeyError("mine")

    out = io.BytesIO()
    lt.save([lt.ones(2)], out)
    out.seek(0)
    with pytest.raises(KeyError, match="mine"):
        lt.load(out, map_location=broken)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 300, "."])
def test_an_index_names_files_that_there_can_be(name, tmp_path) -> None:
    (tmp_path / "m.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(lt.SerializationError, match="must be a plain name"):
        lt.load(tmp_path / "m.index.json")
