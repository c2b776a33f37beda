"""Indexing, gathering and selecting against PyTorch: values, gradients, views, errors."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

A = np.random.default_rng(0).standard_normal((3, 4, 5))
MASK3 = A > 0.3
MASK2 = MASK3[:, :, 0]
MASK1 = np.array([True, False, True])
_ = slice(None)

# Keys for a tensor of shape (3, 4, 5); arrays become tensors of the framework under test.
BASIC = {
    "int": 1,
    "negative": -1,
    "ints": (1, 2),
    "all ints": (2, -1, 3),
    "slice": slice(1, 3),
    "slice past the end": slice(2, 9),
    "empty slice": slice(2, 1),
    "step": slice(0, 3, 2),
    "mixed": (slice(1, None), 2, slice(0, 4, 3)),
    "none": None,
    "none inside": (0, None, slice(1, 2), None),
    "ellipsis": ...,
    "ellipsis last": (..., 2),
    "ellipsis middle": (1, ..., slice(2, 4)),
    "0-d index": np.array(1),
    "0-d indices": (np.array(1), _, np.array(-1)),
    "empty tuple": (),
}
ADVANCED = {
    "list": [0, 2],
    "list twice": [0, 0, 1],
    "tensor": np.array([2, 0, 1, 2]),
    "negative tensor": np.array([-1, 0]),
    "int32": np.array([2, 0], np.int32),
    "matrix": np.array([[0, 1], [2, 0]]),
    "empty": np.array([], np.int64),
    "second dim": (_, [1, 1, 3]),
    "last dim": (..., [0, 4]),
    "pair": ([0, 1], [2, 3]),
    "pair that broadcasts": (np.array([[0], [2]]), np.array([1, 3, 3])),
    "pair in the middle": (_, [0, 1], [2, 3]),
    "separated": ([0, 1], _, [2, 4]),
    "separated and broadcast": (np.array([[0], [2]]), _, np.array([4, 1])),
    "int and list": (0, _, [1, 2]),
    "list and int": ([0, 1], 2),
    "slice and list": (slice(0, 2), [1, 0], slice(1, 4)),
    "none and list": (None, [1, 2], None, 0),
    "triple": ([0, 1], [1, 2], [3, 4]),
    "mask": MASK3,
    "mask of rows": MASK1,
    "mask of two dims": MASK2,
    "mask of the last dims": (_, MASK3[0]),
    "mask and int": (MASK1, 2),
    "mask and list": (MASK1, [0, 3]),
    "mask and slice": (MASK2, slice(1, 4, 2)),
    "empty mask": np.zeros(3, bool),
    "true": True,
    "false": False,
    "true and int": (True, 1),
}
KEYS = BASIC | ADVANCED


def keyed(m, key):
    if isinstance(key, np.ndarray):
        return m.tensor(key)
    if isinstance(key, tuple):
        return tuple(keyed(m, k) for k in key)
    return key


def both(f, *arrays):
    """The results of f(module, grad, tensors) of both frameworks, as NumPy arrays."""
    found = []
    for m, g in ((lt, grad), (torch, torch.autograd.grad)):
        result = f(m, g, *[m.tensor(a, requires_grad=a.dtype.kind == "f") for a in arrays])
        result = result if isinstance(result, tuple | list) else [result]
        found.append([None if r is None else r.detach().numpy() for r in result])
    return found


def agree(f, *arrays, rtol=1e-10):
    ours, theirs = both(f, *arrays)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if a is None or b is None:  # no gradient is a gradient of zeros
            assert not np.any(b if a is None else a)
        else:
            assert a.shape == b.shape
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12)


def twice(m, gradient, out, *inputs):
    """The result, gradients of its cubes, and gradients of the squares of those."""
    weights = m.tensor(np.random.default_rng(5).standard_normal(tuple(out.shape)))
    first = gradient(
        (out * out * out * weights).sum(), inputs, create_graph=True, allow_unused=True
    )
    kept = [g for g in first if g is not None and g.requires_grad]
    total = sum((g * g).sum() for g in kept)
    second = gradient(total, inputs, allow_unused=True) if kept else ()
    return [out, *first, *second]


@pytest.mark.parametrize("name", KEYS)
def test_reading_agrees_with_two_gradients(name):
    agree(lambda m, g, x: twice(m, g, x[keyed(m, KEYS[name])], x), A)


@pytest.mark.parametrize("name", ADVANCED)
def test_reading_a_permuted_tensor_agrees(name):
    agree(
        lambda m, g, x: twice(
            m, g, x.permute(2, 1, 0).mT.mT.permute(2, 1, 0)[keyed(m, KEYS[name])], x
        ),
        A,
    )
    permuted = np.ascontiguousarray(A.transpose(2, 0, 1))
    agree(lambda m, g, x: twice(m, g, x.permute(1, 2, 0)[keyed(m, KEYS[name])], x), permuted)


@pytest.mark.parametrize("name", KEYS)
def test_views_are_views(name):
    found = []
    for m in (lt, torch):
        x = m.tensor(A)
        y = x[keyed(m, KEYS[name])]
        inside = y.numel() > 0 and 0 <= y.data_ptr() - x.data_ptr() < A.nbytes
        found.append((y._base is x, inside, inside and y.data_ptr() - x.data_ptr()))
    assert found[0] == found[1]


def unique(key):
    return "twice" not in key and "second dim" not in key


@pytest.mark.parametrize("name", [k for k in KEYS if unique(k) and k != "tensor"])
@pytest.mark.parametrize("value", ["number", "0-d", "row", "full"])
def test_writing_agrees_with_gradients(name, value):
    shape = tuple(torch.tensor(A)[keyed(torch, KEYS[name])].shape)
    numbers = np.random.default_rng(1).standard_normal(shape)
    values = {"number": None, "0-d": np.array(1.5), "row": numbers, "full": numbers[None]}[value]
    if value == "row" and numbers.ndim:
        values = numbers[:1] if numbers.shape[0] else numbers

    def write(m, g, x, *v):
        y = x * 1.0
        y[keyed(m, KEYS[name])] = v[0] * 2.0 if v else 7.5
        return twice(m, g, y, x, *v)

    agree(write, A, *(() if values is None else (values,)))


@pytest.mark.parametrize("name", ["list twice", "tensor", "pair that broadcasts", "mask", "triple"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_index_put_agrees(name, accumulate):
    key = KEYS[name] if isinstance(KEYS[name], tuple) else (KEYS[name],)
    key = tuple(np.array(k) for k in key)
    values = np.random.default_rng(1).standard_normal(A[key].shape)
    if not accumulate and name in ("list twice", "tensor", "pair that broadcasts"):
        values = np.array(2.5)  # of several values for one element any may win

    def put(m, g, x, v):
        return twice(m, g, x.index_put(keyed(m, key), v, accumulate), x, v)

    def put_(m, g, x, v):
        return twice(m, g, (x * 1).index_put_(keyed(m, key), v, accumulate=accumulate), x, v)

    agree(put, A, values)
    agree(put_, A, values)


READ_ERRORS = {
    "int": 3,
    "negative int": -4,
    "second": (0, 4),
    "too many": (0, 0, 0, 0),
    "list": [0, 3],
    "negative step": slice(None, None, -1),
    "float": 1.5,
    "float tensor": np.array([0.5]),
    "mask shape": np.zeros((3, 3), bool),
    "no broadcast": ([0, 1], [0, 1, 2]),
    "two ellipses": (..., 0, ...),
}


@pytest.mark.parametrize("name", READ_ERRORS)
def test_error_types_agree(name):
    key = READ_ERRORS[name]
    if name == "two ellipses":
        pytest.skip("PyTorch takes the second for a slice")
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - the type is the subject
        torch.tensor(A)[keyed(torch, key)]
    with pytest.raises(theirs.type) as ours:
        lt.tensor(A)[keyed(lt, key)]
    assert ours.type is theirs.type


I2 = np.array([[0, 1, 1], [2, 0, 2]])
X2 = A[:, :, 0]
S2 = A[:2, :3, 1]
ROWS = np.array([2, 0, 2])


def _scatter_reduce(reduce, with_self):
    return lambda m, x, s: x.scatter_reduce(0, m.tensor(I2), s, reduce, include_self=with_self)


def _triangle(name, diagonal):
    return lambda m, x: getattr(m, name)(x, diagonal)


CALLS = {
    "gather 0": (lambda m, x: x.gather(0, m.tensor(I2)), X2),
    "gather 1": (lambda m, x: m.gather(x, 1, m.tensor(I2)), X2),
    "gather last": (lambda m, x: x.gather(-1, m.tensor(I2[:, :, None] * 2)), A),
    "gather none": (lambda m, x: x.gather(0, m.tensor(I2[:0])), X2),
    "gather of a transpose": (lambda m, x: x.t().gather(0, m.tensor(I2)), X2),
    "scatter": (lambda m, x, s: x.scatter(1, m.tensor(I2 % 2 + [0, 2, 1]), s), X2, S2),
    "scatter a number": (lambda m, x: x.scatter(0, m.tensor(I2), 1.5), X2),
    "scatter value": (lambda m, x: m.scatter(x, 0, m.tensor(I2), value=1.5), X2),
    "scatter add": (lambda m, x, s: x.scatter_add(0, m.tensor(I2), s), X2, S2),
    "scatter add 1": (lambda m, x, s: m.scatter_add(x, 1, m.tensor(I2[:, :2]), s), X2, S2[:, :2]),
    "scatter_": (lambda m, x, s: (x * 1).scatter_(0, m.tensor(I2[:1]), s), X2, S2[:1]),
    "scatter_add_ of a view": (
        lambda m, x, s: (x * 1).t().scatter_add_(1, m.tensor(I2), s),
        X2,
        S2,
    ),
    **{
        f"scatter_reduce {r} {i}": (_scatter_reduce(r, i), X2, S2)
        for r in ("sum", "prod", "mean", "amax", "amin")
        for i in (True, False)
    },
    "index_select": (lambda m, x: x.index_select(1, m.tensor(ROWS)), A),
    "index_select 0-d": (lambda m, x: m.index_select(x.sum(), 0, m.tensor([0])), A),
    "index_add": (lambda m, x, s: x.index_add(0, m.tensor(ROWS), s, alpha=2.0), A, A[::-1].copy()),
    "index_add_": (lambda m, x, s: (x * 1).index_add_(1, m.tensor(ROWS), s), A, A[:, :3] * 1),
    "index_copy": (lambda m, x, s: x.index_copy(0, m.tensor(ROWS[:2]), s), A, A[:2] * 3),
    "index_copy_": (lambda m, x, s: (x * 1).index_copy_(2, m.tensor([1]), s), A, A[:, :, :1] * 3),
    "index_fill": (lambda m, x: x.index_fill(1, m.tensor(ROWS), 1.5), A),
    "index_fill_": (lambda m, x: (x * 1).index_fill_(-1, m.tensor(ROWS), 1.5), A),
    "take": (lambda m, x: x.take(m.tensor(I2 * 7)), A),
    "take from the end": (lambda m, x: m.take(x, m.tensor([-1, 3])), A),
    "take_along_dim": (lambda m, x: m.take_along_dim(x, m.tensor(I2[:1]), 0), A[:, :3, 0]),
    "take_along_dim flat": (lambda m, x: x.take_along_dim(m.tensor(I2)), A),
    "masked_select": (lambda m, x: x.masked_select(m.tensor(MASK3)), A),
    "masked_select broadcast": (lambda m, x: m.masked_select(x, m.tensor(MASK3[0, 0])), A),
    "masked_scatter": (lambda m, x, s: x.masked_scatter(m.tensor(MASK3), s), A, A * 2),
    "masked_scatter_": (
        lambda m, x, s: (x * 1).masked_scatter_(m.tensor(MASK1[:, None, None]), s),
        A,
        A * 2,
    ),
    "masked_fill": (lambda m, x: x.masked_fill(m.tensor(MASK3), 1.5), A),
    "masked_fill tensor": (lambda m, x, v: x.masked_fill(m.tensor(MASK3[0]), v), A, np.array(1.5)),
    "masked_fill_": (lambda m, x: (x * 1).masked_fill_(m.tensor(MASK3[:1]), -1), A),
    "where": (lambda m, x, y: m.where(m.tensor(MASK3), x, y), A, A * 2),
    "where broadcast": (lambda m, x, y: m.where(m.tensor(MASK3), x, y), A[0], A[:, :1] * 2),
    "where number": (lambda m, x: m.where(m.tensor(MASK3), x, 0.5), A),
    "where number first": (lambda m, x: m.where(m.tensor(MASK3), 2, x), A),
    "where method": (lambda m, x, y: x.where(m.tensor(MASK3), y), A, A * 2),
    **{f"{n} {k}": (_triangle(n, k), A) for n in ("tril", "triu") for k in (-5, -1, 0, 2, 9)},
    "tril_": (lambda m, x: (x * 1).tril_(1), A),
    "triu_": (lambda m, x: (x * 1).triu_(-1), A),
}


@pytest.mark.parametrize("name", CALLS)
def test_gathering_and_selecting_agree_with_two_gradients(name):
    f, *arrays = CALLS[name]
    agree(lambda m, g, *xs: twice(m, g, f(m, *xs), *xs), *[np.asarray(a) for a in arrays])


def test_large_gather_and_scatter_agree():
    rng = np.random.default_rng(0)
    x, src = rng.standard_normal((70, 9, 11)), rng.standard_normal((60, 40, 10))
    index = rng.integers(0, 9, (60, 40, 10))
    agree(lambda m, g, x: twice(m, g, x.gather(1, m.tensor(index)), x), x)
    agree(lambda m, g, x, s: x.scatter_add(1, m.tensor(index), s), x, src)
    agree(lambda m, g, x: twice(m, g, x[m.tensor(index[:, 0, 0]), m.tensor(index[:, 1, 1])], x), x)
    wide = rng.standard_normal((9, 700))
    agree(lambda m, g, x: twice(m, g, x.t()[:, m.tensor(index[0])], x), wide)
    agree(lambda m, g, x: twice(m, g, x[m.tensor(index[0])], x), wide)


VALUES = {
    "nonzero": lambda m: m.tensor(MASK3 * A).nonzero(),
    "nonzero 0-d": lambda m: m.tensor(3).nonzero(),
    "nonzero as_tuple": lambda m: m.nonzero(m.tensor(MASK2), as_tuple=True),
    "argwhere": lambda m: m.argwhere(m.tensor(MASK3)),
    "where alone": lambda m: m.where(m.tensor(MASK3)),
    "where ints": lambda m: m.where(m.tensor(MASK1), m.tensor([1, 2, 3]), 4),
    "where promotes": lambda m: m.where(m.tensor(MASK1), m.tensor([1, 2, 3]), 4.5),
    "bincount": lambda m: m.bincount(m.tensor([0, 3, 3, 1])),
    "bincount weights": lambda m: m.bincount(m.tensor([0, 3, 3]), m.tensor([0.5, 1, 2])),
    "bincount minlength": lambda m: m.tensor([0, 2]).bincount(minlength=5),
    "searchsorted": lambda m: m.searchsorted(m.tensor([1.0, 2, 2, 5]), m.tensor([[2.0, 9, 0]])),
    "searchsorted right": lambda m: m.searchsorted(m.tensor([1, 2, 2]), m.tensor([2]), right=True),
    "searchsorted rows": lambda m: m.searchsorted(
        m.tensor([[1, 3, 5], [2, 4, 6]]), m.tensor([[3, 6], [3, 7]]), side="right"
    ),
    "searchsorted number": lambda m: m.searchsorted(m.tensor([1.0, 2]), 1.5),
    "searchsorted sorter": lambda m: m.searchsorted(
        m.tensor([3.0, 1, 2]), m.tensor([2.5]), sorter=m.tensor([1, 2, 0]), out_int32=True
    ),
    "bucketize": lambda m: m.bucketize(m.tensor([[0.5, 3.0]]), m.tensor([1.0, 3, 5]), right=True),
    "broadcast_shapes": lambda m: m.zeros(m.broadcast_shapes((2, 1), (3,), 1)),
    "iteration": lambda m: list(m.tensor(X2)),
    "scatter_reduce ints": lambda m: m.tensor([7, 8]).scatter_reduce(
        0, m.tensor([0, 0, 1]), m.tensor([2, 2, -3]), "mean"
    ),
    "scatter reduce=": lambda m: m.tensor([2.0, 3.0]).scatter(
        0, m.tensor([0, 0]), 4.0, reduce="multiply"
    ),
    "tril of bools": lambda m: m.tensor(MASK2).tril(),
    "write ints": lambda m: _write(m.tensor([1, 2, 3]), slice(0, 2), m.tensor([5.7, 6.2])),
    "write a number": lambda m: _write(m.tensor([1, 2, 3]), [0, 2], 5.7),
    "write by mask": lambda m: _write(m.tensor([1, 2, 3]), m.tensor(MASK1), m.tensor([5.7])),
    "write a list": lambda m: _write(m.tensor([1.0, 2, 3]), slice(1, 3), m.tensor([8.0, 9.0])),
}


def _write(x, key, value):
    x[key] = value
    return x


@pytest.mark.parametrize("name", VALUES)
def test_values_agree(name):
    agree(lambda m, g: VALUES[name](m))


def test_one_hot_agrees():
    hot = {lt: lt.one_hot, torch: torch.nn.functional.one_hot}
    agree(lambda m, g: hot[m](m.tensor(I2)))
    agree(lambda m, g: hot[m](m.tensor(I2), 5))


ERRORS = {
    "gather dtype": lambda m, x: x.gather(0, m.tensor([[0.0]])),
    "gather range": lambda m, x: x.gather(0, m.tensor([[9]])),
    "gather dims": lambda m, x: x.gather(0, m.tensor([0])),
    "gather size": lambda m, x: x.gather(0, m.tensor([[0] * 9])),
    "scatter range": lambda m, x: x.scatter(0, m.tensor([[9]]), 1.0),
    "scatter dtype": lambda m, x: x.scatter(0, m.tensor([[0]]), m.tensor([[1]])),
    "scatter_add size": lambda m, x: x.scatter_add(0, m.tensor([[0, 0]]), m.tensor([[1.0]])),
    "index_select vector": lambda m, x: x.index_select(0, m.tensor([[0]])),
    "index_select range": lambda m, x: x.index_select(0, m.tensor([3])),
    "index_put dtype": lambda m, x: x.index_put((m.tensor([0]),), m.tensor(1)),
    "take dtype": lambda m, x: x.take(m.tensor([0.5])),
    "take range": lambda m, x: x.take(m.tensor([99])),
    "masked_select": lambda m, x: x.masked_select(m.tensor([1, 0, 1, 0])),
    "masked_fill": lambda m, x: x.masked_fill(m.tensor([1, 0, 1, 0]), 0),
    "masked_fill value": lambda m, x: x.masked_fill(x == x, m.tensor([1.0, 2.0])),
    "masked_scatter": lambda m, x: x.masked_scatter(x == x, m.tensor([1.0])),
    "where shapes": lambda m, x: m.where(x == x, x, m.tensor([1.0, 2.0])),
    "tril": lambda m, x: x[0].tril(),
    "bincount": lambda m, x: m.bincount(m.tensor([-1])),
    "reduce": lambda m, x: x.scatter_reduce(0, m.tensor([[0]]), x, "median"),
    "iteration": lambda m, x: iter(x.sum()),
    "write dtype": lambda m, x: _write(x, [0], m.tensor(1)),
    "write shape": lambda m, x: _write(x, 0, m.tensor([1.0, 2.0])),
    "write a leaf": lambda m, x: _write(m.tensor([1.0], requires_grad=True), 0, 1.0),
    "write a leaf by list": lambda m, x: _write(m.tensor([1.0], requires_grad=True), [0], 1.0),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_types_of_functions_agree(name):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - the type is the subject
        ERRORS[name](torch, torch.ones(3, 4))
    with pytest.raises(theirs.type) as ours:
        ERRORS[name](lt, lt.tensor(np.ones((3, 4), np.float32)))
    assert ours.type is theirs.type
