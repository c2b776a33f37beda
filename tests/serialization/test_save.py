"""What is saved comes back, and a file is there whole or not at all."""

from __future__ import annotations

import io
import json
import math
import os
import random
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections import Counter, OrderedDict, defaultdict
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide as lt
from lowtide import nn, optim
from lowtide.framework import dtypes
from lowtide.framework.serialization import atomic_files
from lowtide.framework.serialization.json_structure import Encoder
from lowtide.framework.serialization.safetensors import write
from lowtide.framework.serialization.save_load import FORMAT, STRUCTURE, VERSION

ROOT = Path(__file__).resolve().parents[2]


def again(obj, **options):
    file = io.BytesIO()
    lt.save(obj, file)
    file.seek(0)
    return lt.load(file, **options)


@pytest.mark.parametrize("d", dtypes.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)])
@pytest.mark.parametrize("mmap", [False, True])
def test_a_tensor_of_every_dtype_and_shape_comes_back(d, shape, mmap, tmp_path) -> None:
    t = (lt.randn(shape) * 3).to(d)
    lt.save({"t": t}, tmp_path / "x")
    got = lt.load(tmp_path / "x", mmap=mmap)["t"]
    assert got.dtype is d
    assert got.shape == t.shape
    assert got._array.tobytes() == t._array.tobytes()


LAYOUTS = {
    "transposed": lambda: lt.arange(6).reshape(2, 3).T,
    "every other": lambda: lt.arange(10)[::2],
    "inner": lambda: lt.arange(60).reshape(3, 4, 5)[1:, :, 2:4],
    "expanded": lambda: lt.tensor([[1], [2]]).expand(2, 4),
    "permuted complex": lambda: (lt.arange(6) * 1j).reshape(1, 2, 3).permute(2, 0, 1),
    "large and transposed": lambda: lt.randn(1500, 2000).T,
    "large rows": lambda: lt.randn(3, 1200, 1300)[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_view_is_saved_with_its_own_elements_only(layout, tmp_path) -> None:
    t = LAYOUTS[layout]()
    lt.save(t, tmp_path / "x")
    assert lt.equal(lt.load(tmp_path / "x"), t)
    assert t.nbytes < os.path.getsize(tmp_path / "x") < t.nbytes + 500


def test_containers_and_values_come_back_in_their_classes() -> None:
    value = {
        "list": [1, -(2**70), 2.5, True, None, "ä\n\0", ""],
        "tuple": (1, (2, [3])),
        "floats": [math.inf, -math.inf, -0.0, 5e-324, 1e308],
        "complex": 1 - 2j,
        "bytes": b"\0\xff",
        "bytearray": bytearray(b"ab"),
        "set": {1, "a", (2, 3)},
        "ordered": OrderedDict([("b", 1), ("a", 2)]),
        "counter": Counter(aab=2),
        "keys": {1: "int", 1.5: "float", None: "none", False: "bool", (1, "a"): "tuple"},
        "$": {"$": "dollar"},
        "dtype": lt.bfloat16,
        "device": lt.device("cpu"),
        "size": lt.Size([2, 3]),
        "number": np.float32(1.1),
        "empty": [{}, [], ()],
    }
    got = again(value)
    assert got == value
    assert [type(v) for v in got.values()] == [type(v) for v in value.values()]
    assert list(got["ordered"]) == ["b", "a"]
    assert math.copysign(1, got["floats"][2]) == -1
    assert got["dtype"] is lt.bfloat16
    assert type(got["list"][3]) is bool
    assert math.isnan(again(math.nan))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=20)
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(texts | st.integers(), inner, max_size=4)
    ),
    max_leaves=15,
)


@settings(max_examples=150, deadline=None)
@given(values)
def test_any_nesting_comes_back(value) -> None:
    assert again(value) == value


def test_numpy_arrays_come_back_as_arrays() -> None:
    for a in (
        np.arange(6, dtype=np.uint32).reshape(2, 3).T,
        np.array(3.0),
        np.array([1j]),
        np.arange(5)[::-1],
        np.zeros((0, 2), np.float16),
    ):
        got = again([a])[0]
        assert type(got) is np.ndarray
        assert got.dtype == a.dtype
        np.testing.assert_array_equal(got, a)


def test_a_generator_comes_back_at_its_place() -> None:
    g = lt.Generator().manual_seed(2**64 - 1)
    lt.rand(10, generator=g)
    expected, got = lt.rand(3, generator=g.clone_state()), again({"g": g})["g"]
    assert lt.equal(lt.rand(3, generator=got), expected)
    assert again(g.get_state()).tolist() == g.get_state().tolist()


def test_tied_weights_are_written_once_and_are_tied_again(tmp_path) -> None:
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(100, 100, bias=False), nn.Linear(100, 100, bias=False)
            self.b.weight = self.a.weight

    lt.save(Tied().state_dict(), tmp_path / "x")
    assert os.path.getsize(tmp_path / "x") < 100 * 100 * 4 + 500
    before = lt.memory_allocated()
    for mmap in (False, True):
        got = lt.load(tmp_path / "x", mmap=mmap)
        assert list(got) == ["a.weight", "b.weight"]
        got["a.weight"][0, 0] = 7
        assert got["b.weight"][0, 0].item() == 7
        assert lt.memory_allocated() - before == (0 if mmap else 40_000)
        del got


def test_the_same_tensor_twice_is_one_object_again() -> None:
    t = lt.ones(2, requires_grad=True)
    got = again([t, {"x": t}, t.detach()])
    assert got[0] is got[1]["x"]
    assert got[0].requires_grad
    assert got[2] is not got[0]
    got[0].data[0] = 5
    assert got[2][0].item() == 5


def test_parameters_and_requires_grad_are_kept_as_pytorch_keeps_them() -> None:
    layer = nn.Linear(2, 2)
    assert all(type(t) is lt.Tensor for t in again(layer.state_dict()).values())
    frozen, plain = nn.Parameter(lt.ones(2), requires_grad=False), lt.ones(2, requires_grad=True)
    got = again([layer.weight, frozen, plain, plain * 2])
    assert [type(t) for t in got] == [nn.Parameter, nn.Parameter, lt.Tensor, lt.Tensor]
    assert [t.requires_grad for t in got] == [True, False, True, True]
    assert all(t.is_leaf for t in got)


def test_loaded_tensors_are_counted_as_input_to_the_byte(tmp_path, leak_check) -> None:
    lt.save({"a": lt.zeros(1000), "b": lt.zeros(10, dtype=lt.int64)}, tmp_path / "x")
    before = lt.memory_stats("cpu")["by_role"]["input"]
    lt.reset_peak_memory_stats()
    live = lt.memory_allocated()
    got = lt.load(tmp_path / "x")
    assert lt.memory_stats("cpu")["by_role"]["input"] - before == 4080
    assert lt.max_memory_allocated() - live == 4080
    del got


def test_mapped_tensors_are_not_counted_and_never_change_the_file(tmp_path, leak_check) -> None:
    path = tmp_path / "x"
    lt.save([lt.arange(1000), lt.ones(3, dtype=lt.uint8), lt.ones(3, dtype=lt.float64)], path)
    bytes_before, live = path.read_bytes(), lt.memory_allocated()
    got = lt.load(path, mmap=True)
    assert lt.memory_allocated() == live
    assert all(t._array.ctypes.data % t.itemsize == 0 for t in got)
    got[0][:] = 0
    lt.save("something else", path)  # the old file lives as long as its mapping
    assert got[0].sum().item() == 0
    assert got[2].tolist() == [1, 1, 1]
    path.write_bytes(bytes_before)
    assert lt.load(path)[0][5].item() == 5


def test_a_map_location_decides_where_tensors_go() -> None:
    value = {"t": lt.ones(2, 3), "m": lt.zeros(4, device="meta")}
    assert again(value, map_location="meta")["t"].device.type == "meta"
    assert again(value)["m"].shape == (4,)
    assert again(value, map_location={"cpu": "meta"})["t"].is_meta
    assert again(value, map_location={"cuda:0": "cpu"})["t"].is_cpu
    assert again(value, map_location=lambda t, where: t)["t"].tolist() == [[1] * 3] * 2
    assert again(value, map_location=lambda t, where: lt.device("meta"))["t"].is_meta
    with pytest.raises(TypeError, match="map_location must be"):
        again(value, map_location=3)


@pytest.mark.parametrize("device", ["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_tensors_of_another_device_come_back_there_or_where_told(device) -> None:
    try:
        t = lt.arange(6, device=device).reshape(2, 3)
    except (RuntimeError, ImportError) as error:
        pytest.skip(f"no {device} device: {error}")
    got = again([t, t.T])
    assert [g.device for g in got] == [t.device] * 2
    assert got[1].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert again([t], map_location="cpu")[0].is_cpu


def test_a_missing_device_says_what_to_pass() -> None:
    if lt.cuda.is_available():
        pytest.skip("this machine has a GPU")
    encoder, file = Encoder(), io.BytesIO()
    node = {**encoder.encode(lt.ones(2)), "device": "cuda:0"}
    write(file, encoder.arrays, {FORMAT: VERSION, STRUCTURE: json.dumps(node)})
    file.seek(0)
    with pytest.raises(lt.SerializationError, match="saved on cuda:0.*Pass map_location='cpu'"):
        lt.load(file)
    file.seek(0)
    assert lt.load(file, map_location="cpu").tolist() == [1, 1]


def made():
    yield 1


@pytest.mark.parametrize(
    ("bad", "names"),
    [
        ({"a": [lambda: 0]}, r"a\.0 is a builtins\.function.*Save its name"),
        ({"c": int}, r"c is a builtins\.type.*Save its name"),
        ({"o": textwrap.TextWrapper()}, r"o is a textwrap\.TextWrapper.*Save vars\(x\)"),
        ({"opt": optim.SGD([lt.ones(1)])}, r"opt is a lowtide\.optim.*Save its state_dict\(\)"),
        ({"i": made()}, r"i is a builtins\.generator.*Save list\(x\)"),
        ({"d": defaultdict(made)}, r"d is a collections\.defaultdict.*save dict\(x\)"),
        ({"z": datetime(2020, 1, 1, tzinfo=ZoneInfo("UTC"))}, r"save x\.isoformat\(\)"),
        ({"l": type("L", (list,), {})([1])}, r"Save list\(x\)"),
        ({"b": np.arange(2, dtype=">c8")}, r"dtype is >c8.*newbyteorder"),
        ({"u": np.array(["a"])}, r"dtype is <U1.*x\.tolist\(\)"),
        ({"s": {(1, (2,))}}, r"As an element of a set"),
        ({"k": {nn: 1}}, r"k\..*module"),
        ({"s": {("x", (2,)): 1}}, "tuple"),
        ({"n": np.array([None])}, "n is a numpy.ndarray.*Its dtype is object"),
        ({"text": "\ud800"}, "surrogate"),
    ],
)
def test_what_has_no_place_in_a_file_is_named(bad, names, tmp_path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(lt.SerializationError, match=names):
        lt.save(bad, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_cycle_and_a_deep_nest_are_refused() -> None:
    cycle: list = []
    cycle.append({"c": cycle})
    with pytest.raises(lt.SerializationError, match="contains itself"):
        lt.save(cycle, io.BytesIO())
    deep: list = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(lt.SerializationError, match="more than 200 deep"):
        lt.save(deep, io.BytesIO())


# The file


def test_any_safetensors_tool_finds_a_state_dict_under_its_names(tmp_path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    state = {**model.state_dict(), "flag": lt.tensor(True), "half": lt.ones(3).to(lt.float16)}
    lt.save(state, tmp_path / "x.safetensors")
    theirs = numpy.load_file(tmp_path / "x.safetensors")
    assert set(theirs) == set(state)
    for name, array in theirs.items():
        np.testing.assert_array_equal(array, state[name].numpy())


def test_a_missing_folder_and_a_folder_in_its_place_are_refused(tmp_path) -> None:
    with pytest.raises(lt.SerializationError, match="Parent directory .* does not exist"):
        lt.save(1, tmp_path / "no" / "x")
    with pytest.raises(IsADirectoryError):
        lt.save(1, tmp_path)
    with pytest.raises(TypeError, match="file-like"):
        lt.save(1, 3)
    with pytest.raises(TypeError, match="file-like"):
        lt.load(3)
    with pytest.raises(FileNotFoundError):
        lt.load(tmp_path / "x")


def test_a_link_is_followed_and_permissions_are_the_users(tmp_path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    lt.save([1], tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert lt.load(tmp_path / "real") == [1]
    mask = os.umask(0)
    os.umask(mask)
    assert os.stat(tmp_path / "real").st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failing_disk_leaves_the_old_file(call, tmp_path, monkeypatch) -> None:
    path = tmp_path / "x"
    lt.save({"old": lt.arange(5)}, path)

    def fail(*_):
        raise OSError(28, "No space left on device")

    if call == "write":
        monkeypatch.setattr("lowtide.framework.serialization.safetensors.pieces", fail)
    else:
        monkeypatch.setattr(atomic_files.os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        lt.save({"new": lt.zeros(9)}, path)
    monkeypatch.undo()
    assert lt.load(path)["old"].tolist() == [0, 1, 2, 3, 4]
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.deep
def test_a_run_killed_while_saving_leaves_a_whole_file(tmp_path) -> None:
    code = """
        import sys, lowtide as lt
        k = 0
        while True:
            k += 1
            lt.save({"k": k, "t": lt.full((300_000,), k)}, sys.argv[1])
            print(k, flush=True)
    """
    path, rng, seen = tmp_path / "x", random.Random(0), set()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(path)],
            stdout=subprocess.PIPE,
            env=environment,
        )
        process.stdout.readline()
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        got = lt.load(path)
        assert (got["t"] == got["k"]).all()
        seen.add(got["k"])
    assert len(seen) > 1


def test_a_file_like_object_is_read_from_where_it_stands(tmp_path) -> None:
    file = io.BytesIO(b"before")
    file.seek(6)
    lt.save([lt.ones(3)], file)
    file.seek(6)
    assert lt.load(file)[0].tolist() == [1, 1, 1]

    class Pipe:
        def __init__(self, data):
            self.read = io.BytesIO(data).read

    assert lt.load(Pipe(file.getvalue()[6:]))[0].tolist() == [1, 1, 1]
    with pytest.raises(lt.SerializationError, match="mmap=True needs a path"):
        again([lt.ones(3)], mmap=True)
    with open(tmp_path / "x", "wb") as out:
        lt.save({"k": 1}, out)
    with open(tmp_path / "x", "rb") as source:
        assert lt.load(source, weights_only=False) == {"k": 1}


def test_the_header_is_8_bytes_of_length_and_padded_json(tmp_path) -> None:
    lt.save({"b": lt.ones(1, dtype=lt.uint8), "d": lt.ones(1, dtype=lt.float64)}, tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    assert len(data) == 8 + length + 9
    assert data[8:9] == b"{"
    assert data[8 + length :] == struct.pack("<d", 1.0) + b"\1"  # largest elements first
