"""uint16, uint32, uint64 and the 8-bit floats: what they do, and what is refused, as PyTorch's."""

import io
import math
from itertools import product

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.parity

UNSIGNED = ["uint16", "uint32", "uint64"]
EIGHT_BITS = ["float8_e4m3fn", "float8_e5m2"]
LIMITED = UNSIGNED + EIGHT_BITS
OTHERS = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
MOST = 2**64 - 1

EVERY = """
x.clone()
x.T.contiguous()
x.expand(2, *x.shape).contiguous()
x.view(-1)[3:9]
x.reshape(-1, 2).t().reshape(-1)
x.float()
x.double()
x.half()
x.bfloat16()
x.long()
x.to(m.uint8)
x.bool()
(x.float() * 0.7).to(x.dtype)
(x.double() * 0.7).to(x.dtype)
(x.float() * 0.7).bfloat16().to(x.dtype)
m.zeros_like(x).copy_(x.float())
m.full((3,), 7, dtype=x.dtype)
m.zeros(3, dtype=x.dtype).fill_(5)
m.ones(3, dtype=x.dtype)
m.tensor([1, 2, 3], dtype=x.dtype)
x[m.tensor([1, 0])]
x.index_select(0, m.tensor([1]))
x[m.tensor([True, False] * (len(x) // 2))]
m.where(x.float() > 50, x, m.zeros_like(x))
m.where(x.float() > 50, x, 3)
m.cat([x, x])
m.stack([x, x], 1)
x.roll(3)
x.repeat(2, 1)
x.repeat_interleave(2)
m.nn.functional.pad(x, (1, 1))
x == x.roll(3)
x != x.roll(3)
x == 5
x.isnan()
x.any(1)
x.all(0)
x * x.roll(3)
x.view(m.uint8)
x.view(m.uint8).view(x.dtype)
x.split(1)[0]
m.equal(x, x.clone())
x[0, 0].item()
x[0].tolist()
x.element_size()
x.is_signed()
x.is_floating_point()
m.kron(x[:2], x[:2])
m.hash_tensor(x.long())
""".strip().splitlines()
OF_UNSIGNED = """
x.sum()
x.sum(0)
x.prod(1)
x.cumsum(0)
x.cumprod(1)
x[0, :8].sort()[0]
x[0, :8].unique()
x & x.roll(3)
x | x.roll(3)
x ^ x.roll(3)
x & 3
x & -1
x | 70000
x ^ -300
x / 3
x.sqrt()
x * 0.5
x * 3
x + x.float()
x == x.float()
x.floor()
x.round()
x.nan_to_num()
x.signbit()
x.unique_consecutive()
x + m.tensor(1.5)
m.tensor([-1, 70000]).to(x.dtype)
m.full((1,), -1, dtype=x.dtype)
""".strip().splitlines()
OF_EIGHT_BITS = """
x @ x.t()
x.abs()
m.nn.functional.linear(x, x)
m.nn.functional.linear(x, x, x[:, 0])
m.addmm(x[:, :1], x, x.t())
m.autocast("cpu")(m.mm)(x, x.t())
x.index_put((m.tensor([0]),), x[1:2])
m.tensor([1e9, -1e9, 449.0, math.inf, -math.inf, math.nan, 464.1, 1e-9]).to(x.dtype)
m.tensor([-600, 600, 70000]).to(x.dtype)
m.full((2,), 448, dtype=x.dtype)
m.tensor([1e9], dtype=x.dtype)
m.eye(2, dtype=x.dtype)
x[:2].isreal()
""".strip().splitlines()
REFUSED = """
x + x
x - x
x + 1
x // x
x % 2
x < x
x >= 1
x << 1
x.neg()
x.relu()
x ** 2
x.max()
x.argmin()
x.mean()
x.median()
x.topk(2)
x.nonzero()
x.gather(1, m.tensor([[0]]))
x.scatter(1, m.tensor([[0]]), x)
x.masked_fill(x == 1, 0)
x.tril()
x.clamp(1, 2)
x.softmax(0)
x.std()
x.logical_not()
x.bincount()
m.arange(4, dtype=x.dtype)
m.linspace(0, 1, 3, dtype=x.dtype)
m.rand(2, dtype=x.dtype)
m.randn(2, dtype=x.dtype)
m.randperm(3, dtype=x.dtype)
m.add(x, x.to(m.int32))
m.cat([x, x.to(m.int64)])
m.nn.functional.conv1d(x[None], x[None])
m.nn.functional.embedding(x, m.ones(300, 2))
""".strip().splitlines()
REFUSED_OF = {
    "uint": ["m.eye(2, dtype=x.dtype)", "x.abs()", "x @ x.t()", "m.ones(300)[x]"],
    "floa": [
        "x.sum()",
        "x.sort()",
        "x * 2.5",
        "x / 2",
        "x + x.float()",
        "x & x",
        "x.sqrt()",
        "m.full((2,), 1e9, dtype=x.dtype)",
        "m.zeros(2, dtype=x.dtype).fill_(-1e9)",
        "m.randint(0, 4, (3,), dtype=x.dtype)",
    ],
}


def evaluated(m, text, kind, shape):
    x = m.tensor(np.random.default_rng(0).integers(0, 200, shape)).to(getattr(m, kind))
    return eval(text, {"m": m, "x": x, "math": math})


def plain(result):
    if not hasattr(result, "dtype"):
        return None, np.asarray(result)
    kind = str(result.dtype).partition(".")[2]
    wide = result.float() if kind in (*EIGHT_BITS, "bfloat16") else result
    return kind, wide.numpy()


def cases(texts):
    return [(kind, text) for kind, lines in texts.items() for text in lines]


@pytest.mark.parametrize("shape", [(4, 6), (128, 256)], ids=["small", "compiled"])
@pytest.mark.parametrize(
    ("kind", "text"),
    cases({k: EVERY + (OF_UNSIGNED if k in UNSIGNED else OF_EIGHT_BITS) for k in LIMITED}),
)
def test_values_and_dtypes_match(kind, text, shape):
    if text.startswith("m.kron") and shape[0] > 4:
        pytest.skip("65536 columns of nothing new")
    ours, theirs = (plain(evaluated(m, text, kind, shape)) for m in (lt, torch))
    assert ours[0] == theirs[0]
    assert ours[1].shape == theirs[1].shape
    if ours[1].dtype.kind == "f":
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)
    else:
        np.testing.assert_array_equal(ours[1], theirs[1])


@pytest.mark.parametrize(("kind", "text"), cases({k: REFUSED + REFUSED_OF[k[:4]] for k in LIMITED}))
def test_what_pytorch_refuses_is_refused_by_name(kind, text):
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        evaluated(torch, text, kind, (4, 6))
    with pytest.raises((RuntimeError, IndexError)) as ours:
        evaluated(lt, text, kind, (4, 6))
    assert isinstance(ours.value, IndexError) == isinstance(theirs.value, IndexError)
    assert kind in str(ours.value) or "dtype" in str(ours.value) or "ntegers" in str(ours.value)


def answer(m, function):
    try:
        return str(function(m)).partition(".")[2]
    except RuntimeError:
        return "refused"


@pytest.mark.parametrize("kind", LIMITED)
def test_types_are_promoted_as_pytorchs(kind):
    def two(name, dims, other, more):
        return lambda m: m.result_type(
            m.zeros(dims, dtype=getattr(m, name)), m.zeros(more, dtype=getattr(m, other))
        )

    for other in (*OTHERS, *LIMITED):
        pairs = [lambda m, o=other: m.promote_types(getattr(m, kind), getattr(m, o))]
        pairs += [two(kind, a, other, b) for a, b in product([(), (2,)], repeat=2)]
        pairs += [two(other, a, kind, b) for a, b in product([(), (2,)], repeat=2)]
        assert [answer(lt, f) for f in pairs] == [answer(torch, f) for f in pairs], other
        assert lt.can_cast(getattr(lt, kind), getattr(lt, other)) == torch.can_cast(
            getattr(torch, kind), getattr(torch, other)
        )
    for number in (1, 1.5, True, 1j):
        of = [
            lambda m, d=d: m.result_type(m.zeros(d, dtype=getattr(m, kind)), number)
            for d in ((), (2,))
        ]
        assert [answer(lt, f) for f in of] == [answer(torch, f) for f in of], number


@pytest.mark.parametrize("kind", LIMITED)
def test_limits_match(kind):
    info = "iinfo" if kind in UNSIGNED else "finfo"
    fields = ("bits", "max", "min", "dtype")
    if info == "finfo":
        fields += ("eps", "tiny", "smallest_normal", "resolution")
    ours, theirs = (getattr(m, info)(getattr(m, kind)) for m in (lt, torch))
    assert [getattr(ours, f) for f in fields] == [getattr(theirs, f) for f in fields]


@pytest.mark.parametrize("kind", EIGHT_BITS)
def test_every_byte_and_every_rounding_matches(kind):
    draws = np.random.default_rng(0)
    x = draws.standard_normal(100_000) * 10.0 ** draws.integers(-9, 9, 100_000)
    x = np.concatenate([x, np.arange(-500, 500) / 8])
    for given in (x, x.astype(np.float32)):
        ours = lt.tensor(given).to(getattr(lt, kind)).view(lt.uint8).numpy()
        theirs = torch.tensor(given).to(getattr(torch, kind)).view(torch.uint8).numpy()
        np.testing.assert_array_equal(ours, theirs)
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(
        lt.tensor(codes).view(getattr(lt, kind)).float().numpy(),
        torch.tensor(codes).view(getattr(torch, kind)).float().numpy(),
    )


@pytest.mark.parametrize("number", [-1, 300, -300])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_numbers_beyond_a_type_wrap_in_bitwise_ops(kind, number):
    found = []
    for m in (lt, torch):
        x = m.tensor([7, 3], dtype=getattr(m, kind))
        found.append([(x & number).tolist(), (x | number).tolist(), (number ^ x).tolist()])
    assert found[0] == found[1]


LARGE = """
m.tensor([1, MOST], dtype=m.uint64)
m.tensor(MOST, dtype=m.uint64)
m.full((2,), MOST, dtype=m.uint64)
m.tensor([MOST, 5], dtype=m.uint64).long()
m.tensor([MOST, 5], dtype=m.uint64).double()
m.tensor([MOST, 5], dtype=m.uint64) == MOST
m.tensor([MOST, 5], dtype=m.uint64).sum()
m.tensor([MOST, 5], dtype=m.uint64) * m.tensor([2, 2], dtype=m.uint64)
m.tensor([MOST, 5], dtype=m.uint64).sort()[0]
m.tensor([MOST, 5], dtype=m.uint64).cumsum(0)
m.tensor([MOST, 5], dtype=m.uint64) ^ MOST
m.tensor([-5]).to(m.uint64)
""".strip().splitlines()


@pytest.mark.parametrize("text", LARGE)
def test_integers_of_64_bits_keep_their_digits(text):
    ours, theirs = (eval(text, {"m": m, "MOST": MOST}) for m in (lt, torch))
    assert ours.tolist() == theirs.tolist()
    assert str(ours.dtype).partition(".")[2] == str(theirs.dtype).partition(".")[2]


def test_large_integers_are_printed_as_pytorchs():
    ours, theirs = (repr(m.tensor([MOST, 3], dtype=m.uint64)) for m in (lt, torch))
    assert ours == theirs.replace("torch", "lowtide")


@pytest.mark.parametrize("kind", LIMITED)
def test_files_of_pytorch_are_read(kind):
    stored = torch.arange(6).to(getattr(torch, kind))
    file = io.BytesIO()
    torch.save({"whole": stored.view(2, 3).t(), "part": stored[2:4]}, file)
    file.seek(0)
    found = lt.load(file)
    assert {t.dtype for t in found.values()} == {getattr(lt, kind)}
    assert found["whole"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert found["part"].tolist() == [2, 3]
    assert found["part"].data_ptr() - found["whole"].data_ptr() == 2 * stored.itemsize


@pytest.mark.parametrize("kind", EIGHT_BITS)
def test_gradients_pass_a_conversion(kind):
    for m in (lt, torch):
        x = m.tensor([1.25, -3.0], requires_grad=True)
        (x.to(getattr(m, kind)).float() * m.tensor([2.0, 3.0])).sum().backward()
        assert x.grad.tolist() == [2, 3]
