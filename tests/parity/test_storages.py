"""Handles of storages, beside PyTorch's: drawn tensors, drawn chains of what programs ask."""

from __future__ import annotations

import random

import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]

DTYPES = (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32 uint64 "
    "float8_e4m3fn float8_e5m2 complex64 complex128"
).split()
SOURCES = ("pool", "view", "transposed", "data", "numpy", "buffer", "file", "shared file", "slice")


def listed(x):
    return [
        str(x.dtype).rpartition(".")[2],
        tuple(x.shape),
        x.stride(),
        x.storage_offset(),
        str(x.tolist()),
    ]


def source(rng, kit, kind, dtype, path):
    """A tensor of few elements on memory of a kind, its bytes the same in every framework."""
    n = rng.randrange(2, 7)
    raw = bytes(rng.randrange(0x30) & (1 if dtype == "bool" else 0xFF) for _ in range(n * 2 * 16))
    wanted = getattr(kit, dtype)
    if kind == "numpy":
        import numpy as np

        return kit.from_numpy(np.frombuffer(bytearray(raw[: n * 8]), np.int32)[1:]).view(kit.int32)
    if kind == "file":
        path.write_bytes(raw)
        return kit.from_file(str(path), size=n, dtype=wanted)
    if kind == "shared file":
        return kit.from_file(str(path), shared=True, size=n, dtype=wanted).zero_()
    x = kit.frombuffer(bytearray(raw), dtype=wanted)[: 2 * n].clone()
    if kind == "buffer":
        return kit.frombuffer(bytearray(raw), dtype=wanted)
    if kind == "slice":
        size = x.element_size()
        part = x.untyped_storage()[size : 3 * size]
        return kit.asarray(part, dtype=kit.uint8).view(wanted)
    if kind == "view":
        return x[1:]
    if kind == "transposed":
        return x.view(2, n).t()
    return x.data if kind == "data" else x


def asked(rng, kit, x):
    """What a handle answers to drawn questions, and what tensors on its bytes hold."""
    raw = x.untyped_storage()
    n, size = raw.nbytes(), x.element_size()
    found = [n, raw.size(), len(raw), raw.element_size(), x._typed_storage().size()]
    found += [raw.data_ptr() + x.storage_offset() * size == x.data_ptr(), raw.is_pinned()]
    for _ in range(4):
        a, b = sorted(rng.randrange(-n, 2 * n) for _ in range(2))
        at, part, kind = rng.randrange(n), raw[a:b], rng.randrange(10)
        if kind == 0:
            found.append([part.tolist(), part.nbytes()])
        elif kind == 1:
            found.append(raw[at] + raw[-1])
        elif kind == 2:
            found.append(listed(kit.asarray(part, dtype=kit.uint8)))
        elif kind == 3:
            whole = kit.tensor([], dtype=x.dtype).set_(raw)
            found.append(listed(whole))
        elif kind == 4 and n >= 4 * size:
            start, step = rng.randrange(2), rng.randrange(2)
            lent = kit.tensor([], dtype=x.dtype).set_(raw, start, (2, 2), (1, step))
            found.append([*listed(lent), lent.untyped_storage().data_ptr() == raw.data_ptr()])
        elif kind == 5:
            wanted = getattr(kit, rng.choice(["int16", "int32", "float32"]))
            if len(raw) % wanted.itemsize == 0:
                found.append(listed(kit.asarray(raw, dtype=wanted)))
        elif kind == 6 and x.dtype != kit.bool:
            raw[at] = rng.randrange(0x30)
            raw[a:b] = rng.randrange(0x30)
        elif kind == 7:
            other = raw.clone()
            other.fill_(1)
            raw.copy_(other)
        elif kind == 8 and "float8" not in str(x.dtype) and "uint" not in str(x.dtype):
            typed = x.storage()
            found.append([str(typed.tolist()), str(typed[0]), str(typed[-1]), typed.nbytes()])
            found.append(str(typed.double().tolist()) if not x.dtype.is_complex else 0)
            found.append(isinstance(typed, kit.FloatStorage))
            found.append(x.storage_type().__name__ == typed.pickle_storage_type())
        elif kind == 9:
            found.append(raw.byte().tolist() == raw.tolist())
            found.append(kit.ByteTensor(raw).tolist())
    return [*found, *listed(x), x._version]


@pytest.mark.filterwarnings("ignore:The given")
@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_handles(kind, dtype, tmp_path):
    for seed in range(5):
        both = []
        for kit in (lt, torch):
            rng = random.Random(f"{kind} {dtype} {seed}")
            x = source(rng, kit, kind, dtype, tmp_path / f"{kit.__name__} {seed}")
            both.append(asked(rng, kit, x))
        assert both[0] == both[1], seed


REFUSED = {
    "step": lambda k, p: k.arange(3.0).untyped_storage()[1:3:2],
    "index": lambda k, p: k.arange(3.0).untyped_storage()[12],
    "typed index": lambda k, p: k.arange(3.0).storage()[3],
    "typed slice": lambda k, p: k.arange(3.0).storage()[1:],
    "name": lambda k, p: k.arange(3.0).untyped_storage()["a"],
    "bytes": lambda k, p: k.ones(3).untyped_storage().copy_(k.ones(2).untyped_storage()),
    "no file": lambda k, p: k.UntypedStorage.from_file("/no/such/file", False, 3),
    "short file": lambda k, p: k.UntypedStorage.from_file(str(p), False, 30),
    "negative": lambda k, p: k.UntypedStorage.from_file(str(p), False, -1),
    "no storage": lambda k, p: k.ones(2).set_(3),
    "other dtype": lambda k, p: k.ones(2, dtype=k.int32).set_(k.ones(2).storage()),
    "other device": lambda k, p: k.ones(2).set_(k.ones(2, device="meta").untyped_storage()),
    "negative offset": lambda k, p: k.ones(2).set_(k.ones(2).untyped_storage(), -1, (1,), (1,)),
    "a leaf": lambda k, p: k.nn.Parameter(k.ones(2)).set_(k.ones(2).untyped_storage()),
    "no dtype": lambda k, p: k.TypedStorage.from_file(str(p), False, 1),
    "values of meta": lambda k, p: k.ones(3, device="meta").untyped_storage().tolist(),
    "part of meta": lambda k, p: k.ones(3, device="meta").untyped_storage()[:2],
    "wrapped": lambda k, p: k.FloatStorage(k.ones(3).untyped_storage()),
    "a copy": lambda k, p: k.asarray(k.ones(3).storage(), dtype=k.int32),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, tmp_path):
    path = tmp_path / "few"
    path.write_bytes(b"0123456789")
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        REFUSED[case](torch, path)
    with pytest.raises(type(theirs.value)):
        REFUSED[case](lt, path)


ASKED = {
    "empty": lambda k: [k.UntypedStorage().nbytes(), k.UntypedStorage().data_ptr()],
    "sized": lambda k: k.UntypedStorage(5).nbytes(),
    "values": lambda k: k.UntypedStorage([1, 300, -1]).tolist(),
    "typed": lambda k: k.TypedStorage([1, 2], dtype=k.int32).tolist(),
    "old class": lambda k: [k.FloatStorage([1, 2]).tolist(), k.DoubleStorage(3).size()],
    "wrapped": lambda k: k.IntStorage(wrap_storage=k.ones(2).untyped_storage()).tolist(),
    "buffer": lambda k: k.ByteStorage._from_buffer(b"abc").tolist(),
    "swapped": lambda k: k.FloatStorage.from_buffer(b"abcdefgh", "big").tolist(),
    "swapped complex": lambda k: k.UntypedStorage.from_buffer(
        bytes(range(16)), "big", dtype=k.complex64
    ).tolist(),
    "part": lambda k: k.UntypedStorage.from_buffer(
        b"abcdefgh", "native", 1, 4, dtype=k.float32
    ).tolist(),
    "flags": lambda k: [k.ones(1).untyped_storage().is_cuda, k.ones(1).storage().is_sparse],
    "meta": lambda k: [
        k.ones(3, device="meta").untyped_storage().nbytes(),
        k.ones(3, device="meta").untyped_storage().data_ptr(),
    ],
    "weak": lambda k: (lambda s: s._weak_ref() == s._cdata)(k.ones(1).untyped_storage()),
    "classes": lambda k: [
        k.is_storage(k.ones(1).storage()),
        isinstance(k.ones(1).storage(), k.UntypedStorage),
    ],
    "whole": lambda k: k.tensor([]).set_(source=k.arange(3.0).untyped_storage()).tolist(),
    "named": lambda k: (
        k.tensor([])
        .set_(k.arange(3.0).storage(), storage_offset=1, size=(2,), stride=(1,))
        .tolist()
    ),
    "of a tensor": lambda k: k.tensor([]).set_(k.arange(5.0), 1, (2, 2), (1, 2)).tolist(),
    "int64": lambda k: k.asarray(k.tensor([3, 4]).untyped_storage()).tolist(),
    "alias": lambda k: (lambda s: k.tensor(s).data_ptr() == s.data_ptr())(k.ones(2).storage()),
}


@pytest.mark.parametrize("case", ASKED)
def test_answers(case):
    assert ASKED[case](lt) == ASKED[case](torch)
