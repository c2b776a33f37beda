"""Factories, conversions and printing against PyTorch."""

import re
import warnings

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.dtypes import tolerance

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

CALLS = """
tensor([np.float64(1.0), 2.0])
tensor([np.int32(1)])
tensor([[1, 2], [3]])
tensor([[1, 2], 3])
tensor([1, [3]])
tensor(None)
tensor('a')
tensor(['a'])
tensor([2**63])
tensor([300], dtype=T.uint8)
tensor([-1], dtype=T.uint8)
tensor([1e40], dtype=T.float32)
tensor([1.5], dtype=T.int64)
tensor([float('nan')], dtype=T.int64)
tensor([1 + 2j], dtype=T.float32)
tensor([])
tensor([[], []])
tensor({})
tensor([1, 2], requires_grad=True)
tensor(range(3))
tensor([T.tensor(1), T.tensor(2.)])
zeros()
zeros(-1)
zeros(1.5)
zeros(2, [3])
zeros(np.int64(2), T.tensor(3))
zeros(2, dtype=int)
full((2,), 1)
full((2,), True)
full((2,), 1.5, dtype=T.int64)
full((2,), 2j)
full(2, 1)
full((2,), T.tensor(2.))
full((2,), 300, dtype=T.uint8)
arange(0)
arange(5, 0)
arange(0, 5, 0)
arange(0, float('inf'))
arange(1, 2.5, 0.5)
arange(5, 1, -1.5)
arange(0, 1, 0.1)
arange(0, 1, 0.1, dtype=T.float64)
arange(10, 0, -3)
arange(5, dtype=T.float16)
arange(5, dtype=T.bfloat16)
arange(T.tensor(3))
arange(True)
arange(1000).sum()
linspace(0, 1, -1)
linspace(0, 10, 4, dtype=T.int64)
linspace(-3, 7, 11, dtype=T.int32)
linspace(0, 1, 1)
linspace(0, 1, 0)
linspace(-1, 2, 7)
linspace(-1, 2, 100, dtype=T.float64)
linspace(0, 1j, 3)
logspace(0, 2, 3, base=2)
logspace(-2, 2, 9)
eye(2, 3)
eye(3, dtype=T.int64)
eye(-1)
tril_indices(3, 4, 1)
triu_indices(4, 3, -1)
zeros_like([1])
full_like(T.ones(2, dtype=T.int64), 2.5)
ones_like(T.ones(2, dtype=T.int64))
ones(2, dtype=T.int64).new_full((2,), 2.5)
ones(2, dtype=T.int64).new_tensor([2.5])
ones(2, dtype=T.float64).new_ones(2, 3)
ones(2, dtype=T.float64).new_zeros((2, 3))
scalar_tensor(1)
complex(T.ones(2), T.ones(2, dtype=T.float64))
complex(T.ones(2), T.ones(1))
complex(T.ones(2, dtype=T.int64), T.ones(2, dtype=T.int64))
Tensor()
Tensor([1, 2])
Tensor((1, 2))
Tensor(2.5)
Tensor(T.ones(2, dtype=T.int64))
LongTensor([1.5])
LongTensor(T.ones(2))
from_numpy([1])
from_numpy(np.ones(3)[::-1])
from_numpy(np.array(['a']))
from_numpy(np.ones(3, dtype='>f4'))
as_tensor(np.arange(3))
asarray([1, 2], copy=False)
frombuffer(bytearray(b''), dtype=T.int8)
frombuffer(bytearray(b'abc'), dtype=T.int16)
frombuffer(bytearray(b'abcd'), dtype=T.int16)
rand(3, dtype=T.int64)
randn(3, dtype=T.int64)
rand_like(T.zeros(2, dtype=T.int64))
randint(5, 5, (2,))
randint(0, 300, (2,), dtype=T.uint8)
randperm(-1)
normal(0., -1., (3,))
normal(2, 3)
bernoulli(T.tensor([1.5]))
bernoulli(T.tensor([1]))
bernoulli(T.tensor([0., 1.]))
multinomial(T.tensor([0., 0.]), 1)
multinomial(T.tensor([-1., 0.]), 1)
multinomial(T.tensor([1., 0.]), 3)
multinomial(T.tensor([1, 0]), 1)
multinomial(T.ones(2, 3, 4), 1)
multinomial(T.ones(3), 0)
zeros(2).uniform_(2, 1)
zeros(2).normal_(0, -1)
zeros(2).exponential_(-1)
zeros(2, requires_grad=True).uniform_()
zeros(2, dtype=T.int64).random_(5, 2)
poisson(T.tensor([-1.]))
ones(2).type(T.float64)
ones(2).type('foo')
ones(2).copy_(T.ones(3))
ones(2).copy_([1, 2])
ones(2).fill_(1j)
ones(2, dtype=T.int64).fill_(1.5)
ones(2, requires_grad=True).resize_(3)
ones(2, requires_grad=True).numpy()
ones(2, requires_grad=True).__dlpack__()
ones(2, device='meta').numpy()
ones(2, device='meta').tolist()
ones(2, device='meta').cpu()
ones(2).to('nowhere')
is_nonzero(T.ones(2))
result_type(T.ones(2, dtype=T.int32), 1.0)
result_type(T.ones(2, dtype=T.int32), T.tensor(1.0))
can_cast(T.float, T.int)
promote_types(T.int8, T.uint8)
tensor([1.7, -2.5, 3.]).long()
tensor([1.7, 0., float('nan')]).bool()
tensor([1 + 2j]).to(T.complex128)
tensor([70000., 1e-9]).half()
tensor([1.00390625, 3.]).bfloat16()
""".strip().splitlines()


def outcome(module, call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return eval(f"T.{call}", {"T": module, "np": np})
        except Exception as error:
            return error


def dtype_name(x):
    return str(x.dtype).rpartition(".")[2]


@pytest.mark.parametrize("call", CALLS)
def test_call_gives_what_pytorch_gives(call):
    expected, got = outcome(torch, call), outcome(lt, call)
    if isinstance(expected, Exception):
        assert isinstance(got, type(expected)), f"PyTorch raises {expected!r}; got {got!r}"
        return
    assert not isinstance(got, Exception), repr(got)
    if not isinstance(expected, torch.Tensor):
        assert str(got).rpartition(".")[2] == str(expected).rpartition(".")[2]
        return
    assert (dtype_name(got), tuple(got.shape)) == (dtype_name(expected), tuple(expected.shape))
    rtol, atol = tolerance(got.dtype)
    np.testing.assert_allclose(got.tolist(), expected.tolist(), rtol=rtol, atol=atol)


KINDS = {
    "plain": lambda r, s: r.standard_normal(s),
    "whole": lambda r, s: np.round(r.standard_normal(s) * 10),
    "scaled": lambda r, s: r.standard_normal(s) * 10.0 ** r.integers(-9, 12),
    "spread": lambda r, s: r.standard_normal(s) * 10.0 ** r.integers(-6, 6, size=s),
    "nonfinite": lambda r, s: np.where(
        r.random(s) < 0.3, np.nan, np.where(r.random(s) < 0.3, -np.inf, r.standard_normal(s))
    ),
    "zero": lambda r, s: np.zeros(s),
}
DTYPES = [
    np.float32,
    np.float64,
    np.float16,
    np.int64,
    np.int32,
    np.uint8,
    np.bool_,
    np.complex64,
    np.complex128,
]


def one_line_suffixes(text):
    # Our dtype names are two letters longer, so a suffix may go to a line of its own earlier.
    return re.sub(r",\s+(dtype|requires_grad|grad_fn|size)=", r", \1=", text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.__name__)
def test_repr_is_pytorchs(kind, dtype):
    random = np.random.default_rng(sum(map(ord, kind)))
    for _ in range(40):
        largest = int(random.choice([2, 5, 12, 40]))
        least = 0 if random.random() < 0.1 else 1
        shape = tuple(random.integers(least, largest + 1, random.integers(0, 5)).tolist())
        if np.prod(shape) > 100_000:
            continue
        a = np.asarray(KINDS[kind](random, shape))
        with np.errstate(all="ignore"):
            if np.issubdtype(dtype, np.complexfloating):
                a = a + 1j * random.standard_normal(shape) * 10.0 ** random.integers(-3, 3)
            elif not np.issubdtype(dtype, np.floating):
                a = np.nan_to_num(a * 3, posinf=7, neginf=-7).clip(-1e9, 1e9)
            a = np.asarray(a).astype(dtype)
        theirs, ours = torch.from_numpy(a.copy()), lt.tensor(a)
        if np.issubdtype(dtype, np.floating) and random.random() < 0.3:
            theirs, ours = theirs.requires_grad_(), ours.requires_grad_()
            if random.random() < 0.5:
                theirs, ours = theirs * 1, ours * 1
        expected = repr(theirs).replace("torch.", "lowtide.")
        assert one_line_suffixes(repr(ours)) == one_line_suffixes(expected)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": 2},
        {"threshold": 5, "edgeitems": 1},
        {"linewidth": 40},
        {"sci_mode": True},
        {"sci_mode": False},
        {"profile": "short"},
        {"profile": "full"},
    ],
    ids=str,
)
def test_print_options_are_pytorchs(options):
    a = np.random.default_rng(0).standard_normal((7, 6)) * 1e3
    try:
        torch.set_printoptions(**options)
        lt.set_printoptions(**options)
        expected = repr(torch.from_numpy(a)).replace("torch.", "lowtide.")
        assert one_line_suffixes(repr(lt.tensor(a))) == one_line_suffixes(expected)
    finally:
        torch.set_printoptions(profile="default")
        lt.set_printoptions(profile="default")


def test_dlpack_shares_memory_with_pytorch():
    theirs = torch.zeros(3)
    ours = lt.from_dlpack(theirs)
    ours.fill_(2)
    assert theirs.tolist() == [2, 2, 2]
    back = torch.from_dlpack(ours)
    back.zero_()
    assert ours.tolist() == [0, 0, 0]
