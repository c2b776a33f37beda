"""PyTorch's files, made by hand: what they may say, and what is refused. Needs no PyTorch.

The good files are written instruction by instruction, in the way torch.save writes them; that
torch.save's own files load is tests/parity/test_serialization.py.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import io
import os
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowtide as lt
from lowtide.framework.serialization.safe_unpickle import unpickle
from lowtide.framework.serialization.size_budget import UnsafeContentError

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def G(module, name):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def S(text):
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def N(n):
    return b"\x8a\x08" + struct.pack("<q", n) if abs(n) > 2**31 - 1 else b"J" + struct.pack("<i", n)


def T(*items):
    return b"(" + b"".join(items) + b"t"


def storage(key="0", kind="FloatStorage", elements=6, where="cpu", module="torch"):
    return T(S("storage"), G(module, kind), S(key), S(where), N(elements)) + b"Q"


def tensor(storage_, offset=0, size=(2, 3), stride=(3, 1), function="_rebuild_tensor_v2"):
    args = [storage_, N(offset), T(*map(N, size)), T(*map(N, stride)), b"\x89"]
    args.append(G("collections", "OrderedDict") + b")R")
    return G("torch._utils", function) + T(*args) + b"R"


SIX = np.arange(6, dtype=np.float32).tobytes()


def archive(body, data=None, byteorder=b"little", **options):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as z:
        z.writestr("m/data.pkl", b"\x80\x02" + body + b".")
        if byteorder is not None:
            z.writestr("m/byteorder", byteorder)
        for key, raw in (data if data is not None else {"0": SIX}).items():
            z.writestr(f"m/data/{key}", raw)
    out.seek(0)
    return out


def legacy(body, keys=("0",), data=(SIX,), little=True, magic=MAGIC, counts=None):
    parts = [pickle.dumps(x, 2) for x in (magic, PROTOCOL, {"little_endian": little})]
    parts.append(b"\x80\x02" + body + b".")
    parts.append(pickle.dumps(list(keys), 2))
    for k, raw in enumerate(data):
        parts.append(struct.pack("<q", counts[k] if counts else len(raw) // 4) + raw)
    return io.BytesIO(b"".join(parts))


@pytest.mark.parametrize("make", [archive, legacy])
def test_a_tensor_is_built(make) -> None:
    got = lt.load(make(b"}" + S("w") + tensor(storage()) + b"s"))
    assert got["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert got["w"].dtype is lt.float32


@pytest.mark.parametrize("make", [archive, legacy])
def test_views_of_a_storage_share_it(make) -> None:
    both = T(
        tensor(storage()), tensor(storage(), 1, (3,), (2,)), tensor(storage(), 4, (2, 2), (0, 1))
    )
    a, b, c = lt.load(make(both))
    assert b.tolist() == [1, 3, 5]
    assert c.tolist() == [[4, 5], [4, 5]]
    a[0, 1] = 9
    assert b[0].item() == 9


def test_mapped_storages_are_not_counted_unless_unaligned(tmp_path, leak_check) -> None:
    (tmp_path / "m.pt").write_bytes(legacy(tensor(storage())).getvalue())
    (tmp_path / "z.pt").write_bytes(archive(tensor(storage())).getvalue())
    live = lt.memory_allocated()
    for name in ("m.pt", "z.pt"):
        t = lt.load(tmp_path / name, mmap=True)
        assert t.sum().item() == 15
        mapped = t._storage.ledger is None
        assert lt.memory_allocated() - live == (0 if mapped else 24)
        assert mapped == ((tmp_path / name).read_bytes().index(SIX) % 4 == 0)
        del t


BFLOAT = struct.pack("<3H", 0x3F80, 0x4000, 0xC040)  # 1, 2, -3


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        ("BFloat16Storage", BFLOAT, [1, 2, -3]),
        ("HalfStorage", np.array([1, 2, -3], np.float16).tobytes(), [1, 2, -3]),
        ("DoubleStorage", np.array([1, 2, -3.5]).tobytes(), [1, 2, -3.5]),
        ("LongStorage", np.array([1, 2, -3]).tobytes(), [1, 2, -3]),
        ("CharStorage", b"\1\2\xfd", [1, 2, -3]),
        ("ByteStorage", b"\1\2\xfd", [1, 2, 253]),
        ("BoolStorage", b"\1\0\xff", [True, False, True]),
        ("ComplexFloatStorage", np.array([1, 2j, -3], np.complex64).tobytes(), [1, 2j, -3]),
    ],
)
def test_every_kind_of_storage_is_read(kind, raw, expected) -> None:
    body = tensor(storage(kind=kind, elements=3), 0, (3,), (1,))
    assert lt.load(archive(body, {"0": raw})).tolist() == expected


def test_a_storage_of_cuda_goes_where_it_is_told() -> None:
    body = tensor(storage(where="cuda:0", module="torch.cuda"))
    assert lt.load(archive(body), map_location="cpu").sum().item() == 15
    assert lt.load(archive(body), map_location=lambda t, where: t).sum().item() == 15
    if not lt.cuda.is_available():
        with pytest.raises(lt.SerializationError, match="Pass map_location='cpu'"):
            lt.load(archive(body))
    elsewhere = tensor(storage(where="xla:1"))
    with pytest.raises(lt.SerializationError, match="saved on xla:1"):
        lt.load(archive(elsewhere))


def test_metadata_of_a_state_dict_is_kept() -> None:
    body = G("collections", "OrderedDict") + b")R" + b"}" + S("_metadata") + b"}sb"
    got = lt.load(archive(body))
    assert type(got) is collections.OrderedDict
    assert got._metadata == {}


# What is refused


class Evil:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


ATTACKS = {
    "os.system": (pickle.dumps(Evil(os.system, "touch x"), 2)[2:-1], "it names posix.system"),
    "eval": (pickle.dumps(Evil(eval, "1"), 4)[2:-1], "names builtins.eval"),
    "getattr": (G("builtins", "getattr") + T(S("a"), S("b")) + b"R", "names builtins.getattr"),
    "a dotted name": (G("torch", "os.system") + T(S("x")) + b"R", "names torch.os.system"),
    "a numpy function": (G("numpy", "fromfile") + T(S("x")) + b"R", "names numpy.fromfile"),
    "a module": (G("torch.nn.modules.linear", "Linear") + b")\x81", "names torch.nn.modules"),
    "making an object": (G("collections", "OrderedDict") + b")\x81", "instruction NEWOBJ"),
    "an old instance": (b"(" + b"ios\nsystem\n", "instruction INST"),
    "an extension": (b"\x82\x01", "instruction EXT1"),
    "a buffer": (b"\x97", "instruction NEXT_BUFFER"),
    "a call of a dtype": (G("torch", "float32") + b")R", "which is no function"),
    "a call of a storage type": (G("torch", "FloatStorage") + b")R", "which is no function"),
    "attributes of a list": (b"]" + b"}b", "sets attributes of a list"),
    "attributes of a function": (G("torch", "Size") + b"}" + S("a") + b"Nsb", "sets attributes"),
    "any attribute": (
        G("collections", "OrderedDict") + b")R}" + S("__class__") + b"Nsb",
        "sets attributes of a OrderedDict",
    ),
    "an encoding": (G("_codecs", "encode") + T(S("x"), S("zip")) + b"R", "encodes a text"),
    "a loaded array of objects": (
        G("numpy", "dtype") + T(S("O8"), b"\x89", b"\x88") + b"R",
        "has the dtype 'O8'",
    ),
    "another class made": (G("datetime", "date") + b")\x81", "instruction NEWOBJ"),
    "quantized": (G("torch._utils", "_rebuild_qtensor"), "names torch._utils._rebuild_qtensor"),
    "a storage of quantized numbers": (tensor(storage(kind="QInt8Storage")), "QInt8Storage"),
    "a nest of tuples as a key": (b"}" + b")" + b"2\x86" * 40 + b"Ns", "instruction DUP"),
}


@pytest.mark.parametrize("case", ATTACKS)
@pytest.mark.parametrize("make", [archive, legacy])
def test_what_is_not_data_is_refused_by_name(case, make, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    body, message = ATTACKS[case]
    with pytest.raises(
        lt.SerializationError, match="Only tensors and containers are read"
    ) as caught:
        lt.load(make(body), weights_only=False)
    assert message in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_plain_pickle_is_refused_before_it_is_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in (2, 3, 4, 5):
        with pytest.raises(lt.SerializationError, match="names posix.system before the object"):
            lt.load(io.BytesIO(pickle.dumps(Evil(os.system, "touch x"), protocol)))
        with pytest.raises(lt.SerializationError, match="not one of torch.save"):
            lt.load(io.BytesIO(pickle.dumps({"a": 1}, protocol)))
    assert os.listdir(tmp_path) == []


DAMAGED = {
    "past the end": (tensor(storage(), 0, (2, 4), (3, 1)), "reaches element 6 of storage 0"),
    "offset past the end": (tensor(storage(), 6, (1,), (1,)), "reaches element 6"),
    "absurd stride": (tensor(storage(), 0, (2, 2), (2**62, 1)), "reaches element"),
    "negative offset": (tensor(storage(), -1), "begins at element -1"),
    "negative stride": (tensor(storage(), 5, (2,), (-1,)), "must be integers >= 0"),
    "negative size": (tensor(storage(), 0, (-1,), (1,)), "must be integers >= 0"),
    "more strides than sizes": (tensor(storage(), 0, (2,), (1, 1)), "has strides"),
    "65 dims": (tensor(storage(), 0, (1,) * 65, (1,) * 65), "has strides"),
    "an absurd size": (tensor(storage(), 0, (2**50,), (0,)), "more than any memory"),
    "an absurd empty size": (tensor(storage(), 0, (0, 2**62), (1, 1)), "more than any memory"),
    "a storage of another size": (
        tensor(storage(elements=7)),
        "should have 28 bytes, and the file has 24",
    ),
    "an absurd storage": (tensor(storage(elements=2**60)), "bytes, and the file has 24"),
    "a negative storage": (tensor(storage(elements=-1)), "has -1 elements"),
    "no such storage": (tensor(storage("7")), "the file has none"),
    "two descriptions": (
        T(tensor(storage()), tensor(storage(kind="IntStorage"))),
        "described in two ways",
    ),
    "a tensor of no storage": (tensor(b"N"), "a tensor of no storage"),
    "no persistent id": (S("0") + b"Q", "a persistent id must be a tuple"),
    "nothing on the stack": (b"0", "damaged at byte"),
    "no mark": (b"t", "damaged at byte"),
    "no such memo": (b"h\x07", "damaged at byte"),
    "a mark remembered": (b"(q\x00", "damaged at byte"),
    "an item for no list": (b"}Na", "damaged at byte"),
    "a key without value": (b"}(Nu", "damaged at byte"),
    "wrong arguments": (G("torch", "Size") + T(b"N", b"N") + b"R", "damaged at byte"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_bounds_are_checked_before_anything_is_built(case) -> None:
    body, message = DAMAGED[case]
    with pytest.raises(lt.SerializationError) as caught:
        lt.load(archive(body))
    assert message in str(caught.value)


def test_keys_may_be_flat_tuples_and_no_deeper() -> None:
    assert lt.load(archive(b"}" + T(N(1), S("a")) + b"Ns")) == {(1, "a"): None}
    deep = b")" + b"q\x00h\x00\x86" * 60  # hashing it would take 2**60 steps
    with pytest.raises(lt.SerializationError, match="a key is a tuple"):
        lt.load(archive(b"}" + deep + b"Ns"))
    with pytest.raises(lt.SerializationError, match="a key is a tuple"):
        lt.load(archive(b"\x8f(" + deep + b"\x90"))


def test_a_nest_of_shared_parts_costs_no_more_than_its_text() -> None:
    laughs = b"]" + b"q\x00]q\x01h\x00ah\x00a" * 50
    tracemalloc.start()
    try:
        got = lt.load(archive(laughs))
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert got[0] is got[1]


def test_an_absurd_memo_and_absurd_lengths_take_no_memory() -> None:
    bodies = [
        b"Nr\xff\xff\xff\xff",  # would make CPython's unpickler allocate for 2**32 entries
        b"X\xff\xff\xff\x7fab",
        b"\x8d" + struct.pack("<Q", 2**62) + b"ab",
        b"\x8e" + struct.pack("<Q", 2**40) + b"ab",
        b"\x8b\xff\xff\xff\x7f\x01",
        b"I" + b"9" * 10_000 + b"\n",
    ]
    tracemalloc.start()
    try:
        for body in bodies:
            for make in (archive, legacy):
                with contextlib.suppress(lt.SerializationError):
                    assert lt.load(make(body)) is None
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_storages_that_overlap_in_a_zip_do_not_multiply() -> None:
    raw = bytes(1 << 16)
    body = (
        b"("
        + b"".join(tensor(storage(str(k), elements=1 << 14), 0, (1,), (1,)) for k in range(50))
        + b"l"
    )
    out = archive(body, {str(k): (raw if k == 0 else b"") for k in range(50)})
    data = bytearray(out.getvalue())
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as z:
        first = z.getinfo("m/data/0")
    place = 0
    while (place := data.find(b"PK\x01\x02", place + 1)) > 0:  # the directory: all lie at the first
        length = struct.unpack_from("<H", data, place + 28)[0]
        if data[place + 46 : place + 46 + length].startswith(b"m/data/"):
            struct.pack_into("<III", data, place + 16, first.CRC, len(raw), len(raw))
            struct.pack_into("<I", data, place + 42, first.header_offset)
    gc.collect()  # what failed tests before this one left
    live = lt.memory_allocated()
    with pytest.raises(
        lt.SerializationError, match="storages overlap|not where the directory says"
    ):
        lt.load(io.BytesIO(bytes(data)))
    assert lt.memory_allocated() == live


ARCHIVES = {
    "big-endian": (archive(tensor(storage()), byteorder=b"big"), "big-endian"),
    "compressed": (archive(tensor(storage()), compression=zipfile.ZIP_DEFLATED), "is compressed"),
    "big-endian legacy": (legacy(tensor(storage()), little=False), "big-endian"),
    "another magic": (legacy(tensor(storage()), magic=7), "not one of torch.save"),
    "keys that do not fit": (legacy(tensor(storage()), keys=("1",)), "does not fit the object"),
    "a count that does not fit": (legacy(tensor(storage()), counts=[5]), "has 5 elements"),
    "a negative count": (legacy(tensor(storage()), counts=[-1]), "has -1 elements"),
    "a storage cut off": (legacy(tensor(storage()), data=[SIX[:-4]], counts=[6]), "past the end"),
    "no pickle": (io.BytesIO(), "without data.pkl"),
}
with zipfile.ZipFile(ARCHIVES["no pickle"][0], "w") as empty:
    empty.writestr("other", b"")


@pytest.mark.parametrize("case", ARCHIVES)
def test_a_file_of_another_kind_says_what_is_wrong(case) -> None:
    source, message = ARCHIVES[case]
    source.seek(0)
    with pytest.raises(lt.SerializationError) as caught:
        lt.load(source)
    assert message in str(caught.value)


def test_a_torchscript_program_is_refused() -> None:
    out = archive(b"N")
    with zipfile.ZipFile(out, "a") as z:
        z.writestr("m/constants.pkl", b"")
    out.seek(0)
    with pytest.raises(lt.SerializationError, match="TorchScript"):
        lt.load(out)


def test_a_wrong_checksum_is_noticed() -> None:
    data = bytearray(archive(tensor(storage())).getvalue())
    data[data.index(SIX) + 5] ^= 1
    with pytest.raises(lt.SerializationError, match="checksum of storage 0"):
        lt.load(io.BytesIO(bytes(data)))


BODY = b"}" + S("w") + tensor(storage()) + b"s"
FILES = [archive(BODY).getvalue(), legacy(BODY).getvalue()]


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=4),
    st.floats(0, 1),
)
def test_changed_or_cut_files_give_a_value_or_a_serialization_error(data, changes, cut) -> None:
    changed = bytearray(data[: int(len(data) * cut)] if cut < 0.5 else data)
    for place, byte in changes:
        if changed:
            changed[int(place * len(changed))] = byte
    try:
        lt.load(io.BytesIO(bytes(changed)), map_location="cpu")
    except lt.SerializationError as error:
        assert "load: " in str(error)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_noise_as_a_pickle_is_refused_or_damaged(noise) -> None:
    def find(module, name):
        raise UnsafeContentError(f"{module}.{name}")

    try:
        unpickle(io.BytesIO(noise + b"."), find, lambda persistent_id: None)
    except ValueError as error:  # UnsafeContentError is one
        assert str(error)


# Honest files, which are large because they say much

HONEST = {
    "small dicts": lambda: [{"a": 1} for _ in range(200_000)],
    "integer keys": lambda: {(1 << 61) + 7919 * k * k: None for k in range(100_000)},
    "tuples as keys": lambda: {(k, "a"): k for k in range(50_000)},
    "truths": lambda: [True] * 1_000_000,
    "numbers": lambda: list(range(500_000)),
}


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.parametrize("make", [archive, legacy])
@pytest.mark.deep
def test_a_large_honest_object_is_loaded(name, make) -> None:
    value = HONEST[name]()
    options = {"keys": (), "counts": (), "data": ()} if make is legacy else {}
    assert lt.load(make(pickle.dumps(value, 2)[2:-1], **options)) == value


@pytest.mark.deep
def test_the_state_of_an_optimizer_of_ten_thousand_parameters_is_loaded() -> None:
    values = tensor(storage(), 0, (2, 3), (3, 1))
    count = 10_000
    each = b"".join(
        N(k) + b"}(" + b"".join(S(n) + values for n in ("step", "exp_avg", "exp_avg_sq")) + b"u"
        for k in range(count)
    )
    groups = pickle.dumps([{"lr": 1e-3, "params": list(range(count))}], 2)[2:-1]
    got = lt.load(
        archive(b"}(" + S("state") + b"}(" + each + b"u" + S("param_groups") + groups + b"u")
    )
    assert len(got["state"]) == count
    assert got["state"][count - 1]["exp_avg"].shape == (2, 3)
    assert got["param_groups"][0]["params"] == list(range(count))


@pytest.mark.deep
def test_a_model_of_fifty_thousand_tensors_is_loaded() -> None:
    values = tensor(storage(), 0, (2, 3), (3, 1))
    body = b"".join(S(f"blocks.{k}.weight") + values for k in range(50_000))
    assert len(lt.load(archive(b"}(" + body + b"u"))) == 50_000
