"""Every field that torch.save writes of a tensor is applied or refused: bits, state, layouts."""

from __future__ import annotations

import argparse
import collections
import datetime
import io
import pathlib
import random
import types

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:torch.quantize"),
    pytest.mark.filterwarnings("ignore:ComplexHalf"),
]


def loaded(obj, new=True, protocol=2, **options):
    file = io.BytesIO()
    torch.save(obj, file, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    file.seek(0)
    return lt.load(file, **options)


def complex_tensor(rng):
    shape = rng.choice([(1,), (3,), (2, 3), (4, 1, 2), (0, 2), ()])
    return torch.randn(shape, dtype=rng.choice([torch.complex64, torch.complex128]))


STEPS = {  # each keeps or sets a bit, or changes the strides
    "conj": lambda t: t.conj() if t.is_complex() else t,
    "imag": lambda t: t.imag if t.is_complex() else t,
    "real": lambda t: t.real if t.is_complex() else t,
    "neg": lambda t: torch._neg_view(t),
    "mH": lambda t: t.mH if t.ndim > 1 else t,
    "T": lambda t: t.transpose(0, -1) if t.ndim > 1 else t,
    "slice": lambda t: t[..., ::2] if t.ndim else t,
    "expand": lambda t: t.expand(2, *t.shape),
    "first": lambda t: t[0] if t.ndim and len(t) else t,
    "detach": lambda t: t.detach(),
}
WRAPS = {
    "tensor": lambda t: t,
    "parameter": lambda t: torch.nn.Parameter(t.detach()),
    "frozen": lambda t: torch.nn.Parameter(t.detach(), False),
    "buffer": lambda t: torch.nn.Buffer(t.detach(), persistent=False),
    "leaf": lambda t: t.detach().requires_grad_(),
}


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_drawn_views_with_bits_have_their_values(new, protocol) -> None:
    rng = random.Random(protocol)
    torch.manual_seed(protocol)
    bits = collections.Counter()
    for _ in range(250):
        t = complex_tensor(rng)
        names = [rng.choice(list(STEPS)) for _ in range(rng.randint(1, 5))]
        for name in names:
            t = STEPS[name](t)
        wrap = rng.choice(list(WRAPS))
        t = WRAPS[wrap](t)
        tagged = wrap != "buffer" and rng.random() < 0.3
        if tagged:
            t.tag = {"names": names}
        got = loaded([t], new, protocol)[0]
        bits[t.is_conj(), t.is_neg()] += 1
        expected = t.detach().resolve_conj().resolve_neg().numpy()
        np.testing.assert_array_equal(got.detach().numpy(), expected, str((names, wrap)))
        assert got.dtype.name == str(t.dtype).removeprefix("torch.")
        assert got.requires_grad == t.requires_grad
        assert got.stride() == t.stride() or t.numel() == 0
        assert type(got).__name__ == {"buffer": "Buffer"}.get(wrap, type(t).__name__)
        assert getattr(got, "tag", None) == ({"names": names} if tagged else None)
        if wrap == "buffer":
            assert got.persistent is False
    assert len(bits) == 4
    assert min(bits.values()) > 5


def test_what_has_no_place_here_is_refused() -> None:
    cases = [
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "dequantize"),
        (lambda: torch.nn.parameter.UninitializedParameter(), "Run the lazy module once"),
        (lambda: torch.ones(2).untyped_storage(), "storage outside of a tensor"),
        (lambda: torch.ones(4, 4).to_sparse_bsr((2, 2)), "sparse_bsr"),
        (
            lambda: torch.ones(2, dtype=torch.complex32),
            r"complex32.*t\.to\(torch\.complex64\)",
        ),
        (lambda: torch.nn.Linear(1, 1), r"names torch\.nn\.modules\.linear\.Linear"),
        (lambda: torch.FloatStorage, "torch.FloatStorage as a value"),
    ]
    for make, message in cases:
        for new in (True, False):
            with pytest.raises(lt.SerializationError, match=message):
                loaded({"x": make()}, new)


@pytest.mark.parametrize("new", [True, False])
def test_meta_sparse_and_plain_objects(new) -> None:
    saved = {
        "meta": torch.ones(2, 3, device="meta").T,
        "layout": torch.sparse_coo,
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "args": argparse.Namespace(lr=0.1, out=pathlib.Path("/x"), seeds=[1, 2]),
        "simple": types.SimpleNamespace(a=torch.ones(2)),
        "when": datetime.datetime(2020, 1, 2),
        "default": collections.defaultdict(list, a=[1]),
        "deque": collections.deque([1], 3),
        "numpy": np.arange(4.0),
        "scalar": np.float32(1.5),
        "frozen": frozenset({1}),
        "rng": (random.getstate(), np.random.RandomState(1).get_state(), torch.get_rng_state()),
    }
    got = loaded(saved, new)
    assert (got["meta"].is_meta, got["meta"].shape, got["meta"].stride()) == (True, (3, 2), (1, 3))
    assert got["layout"] is lt.sparse_coo
    for name in ("coo", "csr"):
        assert got[name].to_dense().tolist() == torch.eye(3).tolist()
    for name in ("args", "when", "default", "deque", "scalar", "frozen"):
        assert got[name] == saved[name]
        assert type(got[name]) is type(saved[name])
    assert got["simple"].a.tolist() == [1, 1]
    assert got["default"].default_factory is list
    assert got["deque"].maxlen == 3
    np.testing.assert_array_equal(got["numpy"], saved["numpy"])
    assert got["rng"][0] == saved["rng"][0]
    np.testing.assert_array_equal(got["rng"][1][1], saved["rng"][1][1])
    assert got["rng"][2].tolist() == saved["rng"][2].tolist()
