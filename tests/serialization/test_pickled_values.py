"""Plain objects of the standard library and NumPy in PyTorch's files; fields of foreign tensors.

The files are made by hand, as torch.save writes them: the pickler of Python writes the objects, and
instructions are written for the tensors. Needs no PyTorch.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import enum
import io
import pathlib
import pickle
import random
import struct
import tracemalloc
import types
import zipfile

import numpy as np
import pytest

import lowtide as lt

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def G(module, name):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def S(text):
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def N(n):
    return b"J" + struct.pack("<i", n)


def T(*items):
    return b"(" + b"".join(items) + b"t"


def D(**items):
    return b"}(" + b"".join(S(k) + v for k, v in items.items()) + b"u"


TRUE, FALSE, NONE = b"\x88", b"\x89", b"N"
NO_HOOKS = G("collections", "OrderedDict") + b")R"
HOOKS = G("collections", "OrderedDict") + b")R" + N(1) + S("hook") + b"s"


def archive(body, data=None):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("m/data.pkl", body)
        for key, raw in (data or {}).items():
            z.writestr(f"m/data/{key}", raw)
    out.seek(0)
    return out


def legacy(body, data=None, itemsize=1):
    parts = [pickle.dumps(x, 2) for x in (MAGIC, PROTOCOL, {"little_endian": True})]
    parts += [body, pickle.dumps(list(data or {}), 2)]
    for raw in (data or {}).values():
        parts += [struct.pack("<q", len(raw) // itemsize), raw]
    return io.BytesIO(b"".join(parts))


# Objects


class Color(enum.Enum):
    RED = 1


def draw(rng, depth=0):
    """One value of what people save, of any of its kinds."""
    r = rng.randint
    zone = datetime.timezone(datetime.timedelta(minutes=r(-900, 900)))

    def some(count=3):
        return [draw(rng, depth + 1) for _ in range(r(0, count))] if depth < 3 else [r(0, 9)]

    def keys():
        return rng.sample([1, -5, 2.5, "a", "b", None, True, (1, "x"), b"raw", 1 << 70], r(0, 4))

    kinds = [
        lambda: argparse.Namespace(**{f"a{k}": v for k, v in enumerate(some())}),
        lambda: types.SimpleNamespace(**{f"a{k}": v for k, v in enumerate(some())}),
        lambda: collections.defaultdict(
            rng.choice([None, int, float, list, dict, set, tuple, str, bool, collections.Counter]),
            {k: draw(rng, depth + 1) for k in keys()},
        ),
        lambda: collections.OrderedDict((k, draw(rng, depth + 1)) for k in keys()),
        lambda: collections.Counter({k: r(-3, 9) for k in keys()}),
        lambda: collections.deque(some(5), rng.choice([None, 2, 7])),
        lambda: pathlib.Path(*rng.sample(["/", "a", "b c", "ä.pt", ".."], r(0, 4))),
        lambda: pathlib.PurePosixPath("x", "y"),
        lambda: pathlib.PureWindowsPath("c:\\x", "y"),
        lambda: frozenset(keys()),
        lambda: set(keys()),
        lambda: complex(r(-9, 9), r(-9, 9)),
        lambda: slice(*rng.choice([(None, 3, None), (1, 2, 3), ("a", None, 2)])),
        lambda: range(r(-9, 9), r(-9, 99), rng.choice([-3, 1, 2])),
        lambda: datetime.datetime(
            r(1, 9999),
            r(1, 12),
            r(1, 28),
            r(0, 23),
            r(0, 59),
            r(0, 59),
            r(0, 999_999),
            rng.choice([None, zone, datetime.UTC]),
            fold=r(0, 1),
        ),
        lambda: datetime.date(r(1, 9999), r(1, 12), r(1, 28)),
        lambda: datetime.time(r(0, 23), r(0, 59), r(0, 59), r(0, 999_999), fold=r(0, 1)),
        lambda: datetime.timedelta(r(-999, 999), r(0, 9), r(0, 9)),
        lambda: zone,
        lambda: datetime.timezone(datetime.timedelta(hours=1), "here"),
        lambda: np.dtype(rng.choice("?bBhHiIlLefdFD")).type(r(0, 1)),
        lambda: np.arange(r(0, 6)).astype(
            rng.choice(["?", "i1", ">i4", "<u2", "f4", ">f8", "c16", ">c8"])
        ),
        lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        lambda: np.zeros((r(0, 2), 0, 3), np.float16),
        lambda: np.array(["text", "ä"], rng.choice(["<U4", ">U6"])),
        lambda: np.array([b"x", b"yz"]),
        lambda: np.array(2.5),
        lambda: random.Random(r(0, 99)).getstate(),
        lambda: np.random.RandomState(r(0, 99)).get_state(),
        lambda: bytearray(bytes(range(r(0, 9)))),
        lambda: [some(), tuple(some()), {"k": some()}],
        lambda: [r(0, 1 << 70), -1.5, "text", None, True, b"\xff"],
    ]
    return rng.choice(kinds)()


def same(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype.newbyteorder("=") == b.dtype.newbyteorder("=")
        np.testing.assert_array_equal(a, b)
        assert a.flags.writeable
    elif isinstance(a, (argparse.Namespace, types.SimpleNamespace)):
        same(vars(a), vars(b))
    elif isinstance(a, dict):
        assert [(k, type(k)) for k in a] == [(k, type(k)) for k in b]
        for k in a:
            same(a[k], b[k])
        if isinstance(a, collections.defaultdict):
            assert a.default_factory is b.default_factory
    elif isinstance(a, (list, tuple, collections.deque)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
        assert getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
    elif isinstance(a, slice):
        same([a.start, a.stop, a.step], [b.start, b.stop, b.step])
    else:
        assert a == b
        assert getattr(a, "fold", 0) == getattr(b, "fold", 0)
        assert getattr(a, "tzinfo", None) == getattr(b, "tzinfo", None)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("make", [archive, legacy])
def test_what_people_save_is_read_from_pickles(protocol, make) -> None:
    rng = random.Random(protocol)
    kinds = set()
    for _ in range(150):
        value = draw(rng)
        kinds.add(type(value))
        body = pickle.dumps({"v": value}, protocol)
        same(lt.load(make(body))["v"], pickle.loads(body)["v"])
    assert len(kinds) > 20


class Mine:
    pass


def test_an_object_of_a_class_of_ones_own_is_refused_and_told_what_to_save() -> None:
    pair = collections.namedtuple("pair", "a b")
    globals()["pair"] = pair
    pair.__module__, pair.__qualname__ = __name__, "pair"
    for value, name, hint in (
        (Mine(), "Mine", r"vars\(x\)"),
        (Color.RED, "Color", r"x\.name of an Enum"),
        (pair(1, 2), "pair", r"_asdict\(\) of a named tuple"),
    ):
        body = b"\x80\x02" + G("my.models", name) + T(N(1)) + b"R."
        with pytest.raises(lt.SerializationError, match=rf"names my\.models\.{name}.*{hint}"):
            lt.load(archive(body))
        assert type(value).__name__ == name


REFUSED = {
    "an array of objects": (pickle.dumps(np.array([{}], object), 2), "has the dtype 'O8'"),
    "an array of records": (pickle.dumps(np.zeros(1, [("a", "i4")]), 2), "has the dtype 'V4'"),
    "an array of dates": (pickle.dumps(np.array(["2020"], "M8[D]"), 2), "has the dtype 'M8'"),
    "a generator": (pickle.dumps(np.random.default_rng(0), 2), "bit_generator"),
    "a factory": (
        b"\x80\x02" + G("collections", "defaultdict") + T(G("collections", "OrderedDict")) + b"R"
        + G("collections", "defaultdict") + T(b"N", b"}") + b"R\x86"
        + G("collections", "defaultdict") + T(G("torch", "Size")) + b"R\x86.",
        "a defaultdict calls <torch.Size>",
    ),
    "a class": (pickle.dumps({"c": collections.OrderedDict}, 2), "has collections.OrderedDict as"),
    "a class in a slice": (pickle.dumps(slice(collections.deque), 2), "collections.deque as a"),
    "a date of month 13": (
        b"\x80\x02" + G("datetime", "date") + T(b"U\x04\x07\xe0\x0d\x01") + b"R.",
        "must be 4 bytes",
    ),
    "a month 13": (
        b"\x80\x03" + G("datetime", "date") + T(b"C\x04\x07\xe0\x0d\x01") + b"R.", "month",
    ),
    "an array of more bytes": (
        pickle.dumps(np.arange(8, dtype="i1"), 3).replace(b"K\x08", b"K\x09", 1), "has other bytes",
    ),
    "texts without letters": (
        b"\x80\x02" + G("numpy._core.multiarray", "scalar")
        + T(G("numpy", "dtype") + T(S("U0"), FALSE, TRUE) + b"R", G("_codecs", "encode")
            + T(S(""), S("latin1")) + b"R") + b"R.", "no bytes",
    ),
    "attributes of a date": (
        b"\x80\x03" + G("datetime", "date") + T(b"C\x04\x07\xe0\x01\x01") + b"R}" + S("a")
        + b"Nsb.", "sets attributes of a date",
    ),
    "a zone that runs code": (
        b"\x80\x03" + G("datetime", "time") + T(b"C\x06\x01\x02\x03\0\0\0", S("zone")) + b"R.",
        "has the zone 'zone'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("make", [archive, legacy])
def test_what_is_no_plain_object_is_refused(case, make) -> None:
    body, message = REFUSED[case]
    with pytest.raises(lt.SerializationError) as caught:
        lt.load(make(body))
    assert message in str(caught.value)


def test_damaged_objects_give_a_value_or_a_serialization_error_and_take_no_memory() -> None:
    rng = random.Random(7)
    outcomes = collections.Counter()
    tracemalloc.start()
    try:
        for k in range(400):
            body = bytearray(pickle.dumps([draw(rng) for _ in range(3)], rng.choice([2, 4])))
            for _ in range(rng.randint(1, 4)):
                body[rng.randrange(2, len(body))] = rng.randrange(256)
            try:
                lt.load((archive, legacy)[k % 2](bytes(body)))
                outcomes["value"] += 1
            except lt.SerializationError as error:
                assert "load: " in str(error)
                outcomes["error"] += 1
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert outcomes["value"] > 20
    assert outcomes["error"] > 100


# Tensors: every field is applied or refused

KINDS = {
    "ComplexFloatStorage": np.complex64,
    "ComplexDoubleStorage": np.complex128,
    "FloatStorage": np.float32,
    "LongStorage": np.int64,
    "BoolStorage": np.bool_,
}


def tensor(kind, size, stride, offset, grad=False, hooks=NO_HOOKS, metadata=None, where="cpu"):
    elements = 12
    key = T(S("storage"), G("torch", kind), S("0"), S(where), N(elements)) + b"Q"
    args = [key, N(offset), T(*map(N, size)), T(*map(N, stride)), TRUE if grad else FALSE, hooks]
    args += [] if metadata is None else [metadata]
    return G("torch._utils", "_rebuild_tensor_v2") + T(*args) + b"R"


def test_bits_attributes_and_gradients_of_drawn_tensors_are_applied() -> None:
    rng, made = random.Random(3), np.random.default_rng(3)
    seen = collections.Counter()
    for case in range(400):
        kind = rng.choice(list(KINDS))
        values = (made.normal(size=12) * 9 + 1j * made.normal(size=12)).astype(
            np.complex64, copy=False
        )
        values = (values if "Complex" in kind else values.real).astype(KINDS[kind])
        size, stride, offset = rng.choice(
            [
                ((12,), (1,), 0),
                ((3, 4), (4, 1), 0),
                ((4, 3), (1, 4), 0),
                ((2, 2), (6, 2), 3),
                ((), (), 5),
                ((0, 2), (2, 1), 0),
                ((3, 2), (0, 1), 4),
            ]
        )
        conj = "Complex" in kind and rng.random() < 0.5
        neg = kind != "BoolStorage" and rng.random() < 0.4
        grad = kind not in ("LongStorage", "BoolStorage") and rng.random() < 0.5
        bits = {k: TRUE for k, on in (("conj", conj), ("neg", neg)) if on}
        metadata = D(**bits) if bits or rng.random() < 0.3 else rng.choice([None, NONE])
        body = tensor(kind, size, stride, offset, grad, metadata=metadata)
        wrapped = rng.choice(["no", "parameter", "state", "typed", "buffer"])
        if wrapped == "parameter":
            body = (
                G("torch._utils", "_rebuild_parameter")
                + T(body, TRUE if grad else FALSE, NO_HOOKS)
                + b"R"
            )
        elif wrapped == "state":
            body = (
                G("torch._utils", "_rebuild_parameter_with_state")
                + T(body, TRUE if grad else FALSE, NO_HOOKS, D(tag=S("mine")))
                + b"R"
            )
        elif wrapped in ("typed", "buffer"):
            call = G("torch._utils", "_rebuild_tensor_v2")
            args = body[len(call) : -1]
            own = D(tag=S("mine")) if wrapped == "typed" else D(_is_buffer=TRUE, persistent=FALSE)
            body = (
                G("torch._tensor", "_rebuild_from_type_v2")
                + T(call, G("torch", "Tensor"), args, own)
                + b"R"
            )
        raw = {"0": values.tobytes()}
        make = rng.choice([archive, lambda b, d, v=values: legacy(b, d, v.itemsize)])
        got = lt.load(make(b"\x80\x02" + body + b".", raw))
        item = values.itemsize
        expected = np.lib.stride_tricks.as_strided(
            values[offset:], size, [s * item for s in stride]
        )
        expected = np.conj(expected) if conj else expected
        expected = -expected if neg else expected
        np.testing.assert_array_equal(got.detach().numpy(), expected)
        assert got.requires_grad == grad, (case, wrapped)
        assert got.stride() == stride or 0 in size
        named = {"no": lt.Tensor, "typed": lt.Tensor, "buffer": lt.nn.Buffer}
        assert type(got) is named.get(wrapped, lt.nn.Parameter)
        assert getattr(got, "tag", None) == ("mine" if wrapped in ("state", "typed") else None)
        assert getattr(got, "persistent", None) is (False if wrapped == "buffer" else None)
        seen[conj, neg, wrapped] += 1
    assert len(seen) == 20


def test_views_with_a_bit_share_memory_and_cost_one_storage_more(leak_check) -> None:
    values = np.arange(12) * (1 + 1j)
    raw = {"0": values.astype(np.complex64).tobytes()}
    parts = [tensor("ComplexFloatStorage", (4,), (1,), k, metadata=D(conj=TRUE)) for k in (0, 2, 8)]
    parts.append(tensor("ComplexFloatStorage", (12,), (1,), 0))
    live = lt.memory_allocated()
    a, b, _c, plain = lt.load(archive(b"\x80\x02" + T(*parts) + b".", raw))
    assert lt.memory_allocated() - live == 2 * 96
    a[2] = 5
    assert b[0].item() == 5
    assert plain[2].item() == 2 + 2j
    assert lt.load(archive(b"\x80\x02" + parts[0] + b".", raw), map_location="meta").is_meta


FIELDS = {
    "hooks": (tensor("FloatStorage", (2,), (1,), 0, hooks=HOOKS), "has 1 backward hooks"),
    "hooks that are a text": (tensor("FloatStorage", (2,), (1,), 0, hooks=S("x")), "hooks of a"),
    "an unknown bit": (tensor("FloatStorage", (2,), (1,), 0, metadata=D(zero=TRUE)), "('zero')"),
    "a bit of reals": (tensor("FloatStorage", (2,), (1,), 0, metadata=D(conj=TRUE)), "bits"),
    "a bit of truths": (tensor("BoolStorage", (2,), (1,), 0, metadata=D(neg=TRUE)), "bits"),
    "a bit that is 1": (tensor("FloatStorage", (2,), (1,), 0, metadata=D(neg=N(1))), "True or"),
    "metadata of a list": (tensor("FloatStorage", (2,), (1,), 0, metadata=b"]"), "metadata"),
    "a gradient of integers": (tensor("LongStorage", (2,), (1,), 0, grad=True), "gradient"),
    "a storage": (
        T(S("storage"), G("torch", "FloatStorage"), S("0"), S("cpu"), N(12)) + b"Q",
        "has a storage outside of a tensor",
    ),
    "a parameter's hooks": (
        G("torch._utils", "_rebuild_parameter")
        + T(tensor("FloatStorage", (2,), (1,), 0), TRUE, HOOKS)
        + b"R",
        "backward hooks",
    ),
    "a parameter's own class": (
        G("torch._tensor", "_rebuild_from_type_v2")
        + T(G("torch._utils", "_rebuild_tensor_v2"), G("torch", "Size"), b")", b"}")
        + b"R",
        "a tensor's class is <torch.Size>",
    ),
    "an attribute that tensors have": (
        G("torch._utils", "_rebuild_parameter_with_state")
        + T(tensor("FloatStorage", (2,), (1,), 0), TRUE, NO_HOOKS, D(grad=NONE))
        + b"R",
        "sets the attribute 'grad'",
    ),
    "a class for attributes": (
        G("torch._utils", "_rebuild_parameter_with_state")
        + T(tensor("FloatStorage", (2,), (1,), 0), TRUE, NO_HOOKS, D(__class__=NONE))
        + b"R",
        "sets the attribute '__class__'",
    ),
    "quantized": (G("torch._utils", "_rebuild_qtensor") + b")R", "t.dequantize()"),
    "nested": (G("torch._utils", "_rebuild_nested_tensor") + b")R", "t.unbind()"),
    "lazy": (G("torch.nn.parameter", "UninitializedParameter") + b")R", "Run the lazy module"),
    "a strided sparse tensor": (
        G("torch._utils", "_rebuild_sparse_tensor")
        + T(G("torch.serialization", "_get_layout") + T(S("torch.strided")) + b"R", b")")
        + b"R",
        "layout of a sparse tensor",
    ),
}


@pytest.mark.parametrize("case", FIELDS)
def test_a_field_that_cannot_be_applied_is_refused(case) -> None:
    body, message = FIELDS[case]
    raw = {"0": np.zeros(12, np.int64).tobytes() if "Long" in str(body) else bytes(48)}
    if b"BoolStorage" in body:
        raw = {"0": bytes(12)}
    with pytest.raises(lt.SerializationError) as caught:
        lt.load(archive(b"\x80\x02" + body + b".", raw))
    assert message in str(caught.value)


def test_meta_tensors_and_layouts_are_read() -> None:
    body = (
        G("torch._utils", "_rebuild_meta_tensor_no_storage")
        + T(G("torch", "float32"), T(N(2), N(3)), T(N(1), N(2)), TRUE)
        + b"R"
    )
    got = lt.load(archive(b"\x80\x02" + body + b"."))
    assert got.is_meta
    assert (got.shape, got.stride(), got.requires_grad) == ((2, 3), (1, 2), True)
    for name in ("strided", "sparse_coo", "sparse_csr"):
        body = G("torch.serialization", "_get_layout") + T(S(f"torch.{name}")) + b"R"
        assert lt.load(archive(b"\x80\x02" + body + b".")) is getattr(lt, name)
