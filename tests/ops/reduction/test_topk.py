"""Extremes, the k best and sorts of large tensors: compiled kernels beside NumPy's stable sort."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend
from lowtide.framework.kernels.runtime import threads
from lowtide.framework.ops.reduction import sort

RNG = np.random.default_rng(0)
DTYPES = (np.float32, np.float64, np.int64, np.int32)


def made(*shape, dtype=np.float32, ties=False):
    x = RNG.standard_normal(shape) * 5
    return (np.round(x) if ties else x * 100).astype(dtype)


def best(x, k, dim, largest):
    """The places of the k best, the first of equals first, NaN the largest."""
    order = np.argsort(x, axis=dim, kind="stable")
    if largest:
        n = x.shape[dim]
        order = n - 1 - np.flip(np.argsort(np.flip(x, dim), axis=dim, kind="stable"), dim)
    return np.take(order, np.arange(k), axis=dim)


@pytest.mark.quick(12)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("n", "k"),
    [(701, 1), (701, 4), (9001, 33), (701, 64), (701, 600), (97, 24), (97, 25), (160, 160)],
)
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.compiled
def test_topk(dim, n, k, largest, dtype):
    shape = [9, 8, 13]
    shape[dim] = n
    x = made(*shape, dtype=dtype, ties=True)
    found = lt.tensor(x).topk(k, dim, largest)
    places = best(x, k, dim, largest)
    np.testing.assert_array_equal(found.indices.numpy(), places)
    np.testing.assert_array_equal(found.values.numpy(), np.take_along_axis(x, places, dim))


@pytest.mark.quick(6)
@pytest.mark.parametrize("k", [4, 60])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("order", ["up", "down", "all equal", "many nan", "all nan", "whole"])
def test_topk_of_difficult_rows(order, largest, k):
    x = made(40, 600)
    if order in ("up", "down"):
        x = np.sort(x, 1)[:, :: 1 if order == "up" else -1].copy()
    elif order == "all equal":
        x[:] = 3
    elif order == "many nan":
        x[:, ::7], x[:, 3::9], x[:, 5::11] = np.nan, np.inf, -np.inf
        x[1, 5:] = np.nan
    elif order == "all nan":
        x[:] = np.nan
    if order == "whole":
        x = made(300, 60, ties=True)
    found = lt.tensor(x).topk(k, 1, largest)
    places = best(x, k, 1, largest)
    np.testing.assert_array_equal(found.indices.numpy(), places)
    np.testing.assert_array_equal(found.values.numpy(), np.take_along_axis(x, places, 1))


def test_topk_counts_zeros_of_either_sign_as_equal():
    x = np.zeros((20, 1000), np.float32)
    x[:, ::2] = -0.0
    assert lt.tensor(x).topk(5, 1).indices.tolist() == [[0, 1, 2, 3, 4]] * 20


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_sort(dim, descending, dtype):
    shape = [5, 6, 7]
    shape[dim] = 701
    x = made(*shape, dtype=dtype, ties=True)
    t = lt.tensor(x)
    found = t.sort(dim, descending)
    places = best(x, 701, dim, descending)
    np.testing.assert_array_equal(found.indices.numpy(), places)
    np.testing.assert_array_equal(found.values.numpy(), np.take_along_axis(x, places, dim))
    np.testing.assert_array_equal(t.argsort(dim, descending).numpy(), places)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sort_of_extreme_numbers(dtype):
    if dtype in (np.int32, np.int64):
        info = np.iinfo(dtype)
        x = np.array([info.max, -1, 0, info.min, 1, info.min, info.max, 255, 256, -256], dtype)
    else:
        info = np.finfo(dtype)
        x = np.array(
            [np.inf, -0.0, 0.0, np.nan, -np.inf, -np.nan, info.tiny, -info.tiny, info.max,
             info.min, info.smallest_subnormal, -info.smallest_subnormal, 1, -1], dtype
        )  # fmt: skip
    x = RNG.choice(x, (30, 700))
    for descending in (False, True):
        found = lt.tensor(x).sort(1, descending)
        places = best(x, 700, 1, descending)
        np.testing.assert_array_equal(found.indices.numpy(), places)
        bits = np.uint32 if x.itemsize == 4 else np.uint64
        expected = np.take_along_axis(x, places, 1)
        np.testing.assert_array_equal(found.values.numpy().view(bits), expected.view(bits))


@pytest.mark.quick(8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("k", [1, 350, 701])
def test_kthvalue(k, dim, dtype):
    shape = [5, 6, 7]
    shape[dim] = 701
    for ties in (True, False):
        x = made(*shape, dtype=dtype, ties=ties)
        order = best(x, 701, dim, False)
        for keep in (False, True):
            found = lt.tensor(x).kthvalue(k, dim, keep)
            places = np.take(order, [k - 1], axis=dim)
            expected = np.take_along_axis(x, places, dim)
            if not keep:
                places, expected = places.squeeze(dim), expected.squeeze(dim)
            np.testing.assert_array_equal(found.indices.numpy(), places)
            np.testing.assert_array_equal(found.values.numpy(), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [400, 401])
def test_the_median_is_nan_where_there_is_one(n, dtype):
    x = made(50, n, dtype=dtype)
    x[3, 20:30], x[4, 7], x[5, :250], x[6, :250] = np.nan, -np.nan, np.inf, -np.inf
    found = lt.tensor(x).median(1)
    lower = np.sort(x, 1)[:, (n - 1) // 2]
    lower[3:5] = np.nan
    np.testing.assert_array_equal(found.values.numpy(), lower)
    assert found.indices[3:5].tolist() == [20, 7]
    np.testing.assert_array_equal(x[np.arange(50), found.indices.numpy()], lower)
    without = lt.tensor(x).kthvalue(n, 1).values
    assert without[3:7].isnan().tolist() == [True, True, False, False]
    assert lt.tensor(x).kthvalue(n - 10, 1).values[3].item() == np.nanmax(x[3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_unique(dtype):
    x = made(140, 150, dtype=dtype, ties=True)
    if x.dtype.kind == "f":
        x[3, 4:7], x[5, 6], x[7, 8] = np.nan, np.inf, -0.0
    values, inverse, counts = [
        a.numpy() for a in lt.tensor(x).t().unique(return_inverse=True, return_counts=True)
    ]
    expected = np.unique(x, return_counts=True, equal_nan=False)
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(values[inverse], x.T)
    np.testing.assert_array_equal(counts, expected[1])
    np.testing.assert_array_equal(np.bincount(inverse.reshape(-1)), counts)
    assert (values.dtype, inverse.dtype, counts.dtype) == (x.dtype, np.int64, np.int64)
    np.testing.assert_array_equal(lt.tensor(x).unique().numpy(), expected[0])
    np.testing.assert_array_equal(lt.tensor(x).unique(return_counts=True)[1].numpy(), counts)


def test_a_sort_takes_the_bytes_that_meta_foretells():
    ledger = backend(lt.device("cpu")).ledger
    x = lt.tensor(made(40, 1000))
    x.sort()
    start = ledger.live
    ledger.reset_peak()
    found = x.sort()
    parts = min(threads.LIMIT, 40)
    workspace = parts * 2 * 1000 * (4 + 4)
    assert ledger.peak - start == found.values.nbytes + found.indices.nbytes + workspace
    assert [s.nbytes for s in sort._sort.op.infer(x._spec, dim=1, descending=False)] == [
        x.nbytes,
        2 * x.nbytes,
        workspace // 2,
        workspace // 2,
    ]


def test_sorts_are_the_same_however_many_threads():
    x = made(3000, 400, ties=True)
    before = threads.get_num_threads()
    try:
        for count in (1, threads.LIMIT):
            threads.set_num_threads(count)
            places = lt.tensor(x).argsort(1)
            np.testing.assert_array_equal(places.numpy(), np.argsort(x, 1, kind="stable"))
    finally:
        threads.set_num_threads(before)


def test_topk_of_a_transposed_tensor_into_out():
    x = made(40, 600)
    values, indices = lt.empty(600, 3), lt.empty(600, 3, dtype=lt.int64)
    lt.topk(lt.tensor(x).t(), 3, 1, out=(values, indices))
    np.testing.assert_array_equal(indices.numpy(), best(x.T, 3, 1, True))
    np.testing.assert_array_equal(values.numpy(), -np.sort(-x.T, 1)[:, :3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(300, 77), (3, 40, 150), (9, 2000), (2, 3, 17, 400)])
@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.compiled
def test_extremes_along_a_dim_that_is_not_the_last(name, shape, dtype):
    x = made(*shape, dtype=dtype, ties=True)
    dim = len(shape) - 2
    t = lt.tensor(x)
    where = getattr(np, f"arg{name}")(x, axis=dim)
    for keep in (False, True):
        found = getattr(t, name)(dim, keep)
        expected = np.expand_dims(where, dim) if keep else where
        np.testing.assert_array_equal(found.indices.numpy(), expected)
        values = getattr(np, name)(x, axis=dim, keepdims=keep)
        np.testing.assert_array_equal(found.values.numpy(), values)
        assert found.values.numpy().dtype == x.dtype
        alone = getattr(t, f"arg{name}")(dim, keep)
        np.testing.assert_array_equal(alone.numpy(), expected)


@pytest.mark.parametrize("name", ["max", "min"])
def test_the_first_nan_is_the_extreme(name):
    x = made(200, 100)
    x[5:, 3] = np.nan
    x[0, 4], x[50, 5] = np.nan, np.nan
    x[7, 6], x[8, 6] = np.inf, -np.inf
    found = getattr(lt.tensor(x), name)(0)
    np.testing.assert_array_equal(found.indices.numpy(), getattr(np, f"arg{name}")(x, 0))
    np.testing.assert_array_equal(found.values.numpy(), getattr(np, name)(x, 0))
    assert found.indices[3:6].tolist() == [5, 0, 50]


def test_extremes_are_the_same_however_many_threads():
    wide, deep, rows = made(3, 400000), made(70, 100, 200), made(3000, 400)
    before = threads.get_num_threads()
    try:
        for count in (1, threads.LIMIT):
            threads.set_num_threads(count)
            for x, dim in ((wide, 0), (deep, 1)):
                found = lt.tensor(x).max(dim)
                np.testing.assert_array_equal(found.indices.numpy(), x.argmax(dim))
                np.testing.assert_array_equal(found.values.numpy(), x.max(dim))
            np.testing.assert_array_equal(
                lt.tensor(rows).topk(4).indices.numpy(), best(rows, 4, 1, True)
            )
    finally:
        threads.set_num_threads(before)


# Half precision: compared by bits


def halves(dtype, *shape):
    """Numbers that the dtype holds exactly, some of them special, and the tensor of them."""
    t = lt.tensor(made(*shape, ties=True)).to(dtype)
    flat = t.view(-1)
    flat[:7] = lt.tensor([float("inf"), -float("inf"), -0.0, 0.0, -0.0, 1e-6, -1e-6]).to(dtype)
    return t, t.float().numpy()


@pytest.mark.parametrize("dtype", [lt.float16, lt.bfloat16])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("shape", [(40, 701), (701, 40), (5, 300, 20), (1100, 31)])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.compiled
def test_halves_are_compared_as_singles_are(dim, shape, nan, largest, dtype):
    t, x = halves(dtype, *shape)
    if nan:
        t.view(-1)[100:9000:701] = float("nan")
        t.view(-1)[200:9000:801] = -float("nan")
        x = t.float().numpy()
    name = "max" if largest else "min"
    where, expected = getattr(np, f"arg{name}")(x, dim), getattr(np, name)(x, dim)
    found = getattr(t, name)(dim)
    assert found.values.dtype is dtype
    np.testing.assert_array_equal(found.indices.numpy(), where)
    np.testing.assert_array_equal(found.values.float().numpy(), expected)
    np.testing.assert_array_equal(getattr(t, f"arg{name}")(dim).numpy(), where)
    np.testing.assert_array_equal(getattr(t, f"a{name}")(dim).float().numpy(), expected)
    last = getattr(t.transpose(0, dim), f"a{name}")(0)
    np.testing.assert_array_equal(last.float().numpy(), expected)
    whole = getattr(t, f"a{name}")()
    np.testing.assert_array_equal(whole.float().numpy(), getattr(np, name)(x))
    for k in (5, x.shape[dim]):
        top = t.topk(k, dim, largest)
        places = best(x, k, dim, largest)
        np.testing.assert_array_equal(top.indices.numpy(), places)
        np.testing.assert_array_equal(
            top.values.float().numpy(), np.take_along_axis(x, places, dim)
        )
    np.testing.assert_array_equal(t.argsort(dim, largest).numpy(), places)
    third = t.kthvalue(3, dim)
    np.testing.assert_array_equal(third.indices.numpy(), np.take(best(x, 3, dim, False), 2, dim))


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0,), (2, 0, 3)])
def test_sorts_of_nothing_are_empty(shape):
    x = lt.zeros(shape)
    for dim in range(len(shape)):
        for descending in (False, True):
            assert x.sort(dim, descending).indices.shape == shape
        expected = tuple(0 if d == dim else n for d, n in enumerate(shape))
        assert x.topk(0, dim).values.shape == expected
    assert x.unique(return_counts=True)[1].shape == (0,)
