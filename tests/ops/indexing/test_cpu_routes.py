"""Indexing, gathering, scattering and masks of many elements: compiled kernels beside NumPy.

NumPy's own indexing and ``ufunc.at`` are the oracle; sizes are above those where kernels begin.
"""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend
from lowtide.framework.kernels.runtime import threads
from lowtide.framework.kernels.runtime.thresholds import COMPILED_MOVE

RNG = np.random.default_rng(0)
DTYPES = (np.float32, np.float64, np.int64, np.int32, np.bool_)


def made(*shape, dtype=np.float32):
    return (RNG.standard_normal(shape) * 5).astype(dtype)


def named(size, *shape):
    """Indices in range, some of them from the end."""
    return RNG.integers(-size, size, shape)


def same(found, expected):
    found = found.detach().numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def along(shape, index, dim):
    """What names the elements that gather reads, for NumPy."""
    where = list(np.indices(shape))
    where[dim] = index % np.iinfo(np.int64).max if index.min() >= 0 else index
    return tuple(where)


# Reading


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.compiled
def test_gather(dim, dtype):
    x = made(17, 31, 37, dtype=dtype)
    shape = [15, 29, 33]
    shape[dim] = 53
    index = named(x.shape[dim], *shape)
    found = lt.tensor(x).gather(dim, lt.tensor(index))
    same(found, x[along(shape, index, dim)])


def test_gather_of_half_precision():
    x = lt.tensor(made(300, 70)).bfloat16()
    index = named(70, 300, 60)
    found = x.gather(1, lt.tensor(index)).float().numpy()
    np.testing.assert_array_equal(found, np.take_along_axis(x.float().numpy(), index % 70, 1))


def test_gather_by_an_expanded_index_of_a_transposed_tensor():
    x, index = made(65, 200), named(200, 400)
    turned = lt.tensor(x).t()
    found = turned.gather(0, lt.tensor(index).unsqueeze(1).expand(400, 65))
    same(found, x.T[index])


def test_an_expanded_index_is_not_copied():
    x, index = lt.tensor(made(100, 64)), lt.tensor(named(100, 1000))
    wide = index.unsqueeze(1).expand(1000, 64)
    ledger = backend(lt.device("cpu")).ledger
    x.gather(0, wide)
    start = ledger.live
    ledger.reset_peak()
    out = x.gather(0, wide)
    assert ledger.peak - start == out.nbytes
    ledger.reset_peak()
    start = ledger.live
    total = x.scatter_add(0, wide, out)
    assert ledger.peak - start == total.nbytes


def test_gather_through_more_dims_than_loops():
    x = lt.tensor(made(6, 5, 4, 7, 6, 6)).permute(5, 3, 1, 0, 2, 4)
    index = named(x.shape[3], *x.shape)
    expected = np.take_along_axis(x.numpy(), index % x.shape[3], 3)
    same(x.gather(3, lt.tensor(index)), expected)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [*DTYPES, np.complex128])
def test_indexing(dtype):
    x = made(40, 50, 30, dtype=dtype)
    t = lt.tensor(x)
    i, j = named(40, 1700), named(30, 1700)
    same(t[lt.tensor(i)], x[i])
    same(t[:, lt.tensor(i[:1000] % 50)], x[:, i[:1000] % 50])
    same(t[:, :, lt.tensor(j[:20, None])], x[:, :, j[:20, None]])
    same(t[lt.tensor(i), lt.tensor(i)], x[i, i])
    same(t[lt.tensor(i), :, lt.tensor(j)], x[i, :, j])
    k = named(40, 34, 500)
    same(t[lt.tensor(k), lt.tensor(k), lt.tensor(k % 30)], x[k, k, k % 30])
    same(t.permute(2, 0, 1)[:, lt.tensor(i)], x.transpose(2, 0, 1)[:, i])
    same(t[::2, lt.tensor(i[:900] % 50)], x[::2, i[:900] % 50])


def test_an_index_out_of_range_is_refused_before_anything_is_written():
    x, index = lt.zeros(100, 300), RNG.integers(0, 100, 400)
    index[-1] = 100
    with pytest.raises(IndexError, match="index 100 is out of bounds for dimension 0 with size"):
        x[lt.tensor(index)]
    for write in ("index_add_", "index_copy_"):
        with pytest.raises(IndexError, match="index 100 is out of bounds"):
            getattr(x, write)(0, lt.tensor(index), lt.ones(400, 300))
    wide = lt.tensor(index).unsqueeze(1).expand(400, 300)
    for write in ("scatter_", "scatter_add_"):
        with pytest.raises(RuntimeError, match="index 100 is out of bounds"):
            getattr(x, write)(0, wide, lt.ones(400, 300))
    assert not x.any()


# Adding


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.compiled
def test_index_add_has_the_bits_of_adding_in_order(dim, dtype):
    x = made(71, 67, dtype=dtype)
    shape = [71, 67]
    shape[dim] = 400
    index, values = named(x.shape[dim], 400), made(*shape, dtype=dtype)
    expected = x.copy()
    np.add.at(np.moveaxis(expected, dim, 0), index, np.moveaxis(values, dim, 0))
    t = lt.tensor(x)
    same(t.index_add(dim, lt.tensor(index), lt.tensor(values)), expected)
    same(t, x)
    same(t.index_add_(dim, lt.tensor(index), lt.tensor(values)), expected)


def test_adding_into_a_strided_part():
    x, index, values = made(80, 90), named(80, 500), made(500, 45)
    whole = lt.tensor(x)
    whole[:, ::2].index_add_(0, lt.tensor(index), lt.tensor(values))
    expected = x.copy()
    np.add.at(expected[:, ::2], index, values)
    same(whole, expected)


def test_adding_at_several_rows_of_indices():
    x, i, j = made(60, 70), named(60, 20000), named(70, 20000)
    values = made(20000)
    expected = x.copy()
    np.add.at(expected, (i, j), values)
    indices = (lt.tensor(i), lt.tensor(j))
    same(lt.tensor(x).index_put(indices, lt.tensor(values), accumulate=True), expected)
    counted = lt.zeros(60, 70).index_put_(indices, lt.tensor(1.0), accumulate=True)
    np.add.at(expected := np.zeros((60, 70), np.float32), (i, j), 1)
    same(counted, expected)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scatter_add_by_a_smaller_index(dim):
    x, src = made(20, 33, 41), made(40, 40, 45)
    shape = [19, 30, 38]
    shape[dim] = 39
    index = named(x.shape[dim], *shape)
    expected = x.copy()
    part = src[tuple([slice(0, n) for n in shape])]
    np.add.at(expected, along(shape, index, dim), part)
    same(lt.tensor(x).scatter_add(dim, lt.tensor(index), lt.tensor(src)), expected)


@pytest.mark.parametrize("reduce", ["prod", "amax", "amin"])
@pytest.mark.parametrize("expanded", [True, False])
def test_scatter_reduce(reduce, expanded):
    x, src = made(50, 64), made(600, 64)
    index = np.broadcast_to(named(50, 600, 1), (600, 64)) if expanded else named(50, 600, 64)
    if reduce == "prod":
        src = src / np.float32(5)
    else:
        src[3, :4] = np.nan, np.inf, -np.inf, np.nan
        x[7, :2] = np.nan
    combine = {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[reduce]
    expected = x.copy()
    combine.at(expected, along((600, 64), index, 0), src)
    wide = lt.tensor(index[:, :1].copy()).expand(600, 64) if expanded else lt.tensor(index)
    same(lt.tensor(x).scatter_reduce(0, wide, lt.tensor(src), reduce), expected)


@pytest.mark.quick(1)
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_mean(include_self):
    x, src, index = made(50, 64, dtype=np.float64), made(600, 64, dtype=np.float64), named(40, 600)
    found = lt.tensor(x).scatter_reduce(
        0,
        lt.tensor(index % 40).unsqueeze(1).expand(600, 64),
        lt.tensor(src),
        "mean",
        include_self=include_self,
    )
    for k in range(50):
        rows = src[index % 40 == k]
        rows = np.vstack([x[k : k + 1], rows]) if include_self or not len(rows) else rows
        np.testing.assert_allclose(found[k].numpy(), rows.mean(0), rtol=1e-12, atol=1e-13)


def test_sums_have_the_same_bits_however_many_threads():
    x, index, values = made(300, 500), named(300, 5000), made(5000, 500)
    wide = named(500, 5000, 500)
    large = made(5000, 500)

    def run():
        added = lt.tensor(x).index_add(0, lt.tensor(index), lt.tensor(values))
        along = lt.tensor(large).scatter_add(1, lt.tensor(wide), lt.tensor(values))
        return added.numpy(), along.numpy(), lt.tensor(large).gather(1, lt.tensor(wide)).numpy()

    before = threads.get_num_threads()
    try:
        threads.set_num_threads(1)
        alone = run()
        threads.set_num_threads(threads.LIMIT)
        for a, b in zip(alone, run(), strict=True):
            np.testing.assert_array_equal(a, b)
    finally:
        threads.set_num_threads(before)
    np.testing.assert_array_equal(alone[2], np.take_along_axis(large, wide % 500, 1))


# Putting


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.compiled
def test_writing_at_indices_leaves_the_last(dtype):
    x, i, j = made(60, 70, 9, dtype=dtype), named(60, 3000), named(70, 3000)
    values = made(3000, 9, dtype=dtype)
    t = lt.tensor(x)
    t[lt.tensor(i), lt.tensor(j)] = lt.tensor(values)
    x[i, j] = values
    same(t, x)
    t[lt.tensor(i)] = lt.tensor(values[0])
    x[i] = values[0]
    same(t, x)
    t[:, lt.tensor(j)] = 1
    x[:, j] = 1
    same(t, x)


def test_values_that_overlap_what_is_written():
    x = made(300, 100)
    t, index = lt.tensor(x), np.arange(299, -1, -1)
    t[lt.tensor(index)] = t
    same(t, x[::-1].copy())


@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_of_tensors_and_numbers(dim):
    x = made(150, 160)
    shape = [149, 150]
    shape[dim] = 120
    index = np.argsort(RNG.random(shape), axis=dim)  # no place twice
    src = made(150, 160)
    expected = x.copy()
    expected[along(shape, index, dim)] = src[: shape[0], : shape[1]]
    t = lt.tensor(x)
    same(t.scatter(dim, lt.tensor(index), lt.tensor(src)), expected)
    expected = x.copy()
    expected[along(shape, index, dim)] = -2.5
    same(t.scatter(dim, lt.tensor(index), -2.5), expected)
    same(t.t().scatter_(1 - dim, lt.tensor(index.T.copy()), -2.5), expected.T)


@pytest.mark.parametrize("dtype", DTYPES)
def test_flip_of_the_last_dim(dtype):
    x = made(50, 7, 61, dtype=dtype)
    same(lt.tensor(x).flip(2), np.flip(x, 2))
    same(lt.tensor(x).transpose(0, 2).flip(2), np.flip(x.transpose(2, 1, 0), 2))
    same(lt.tensor(x).flip(0, 2), np.flip(x, (0, 2)))


# Gradients


@pytest.mark.quick(1)
def test_gradients_of_reads_add_up_where_an_index_occurs_twice():
    x, index, wide = made(80, 60, dtype=np.float64), named(80, 400), named(60, 80, 300)
    g, h = made(400, 60, dtype=np.float64), made(80, 300, dtype=np.float64)
    t = lt.tensor(x).requires_grad_()
    (t[lt.tensor(index)] * lt.tensor(g)).sum().backward()
    expected = np.zeros_like(x)
    np.add.at(expected, index, g)
    same(t.grad, expected)
    t.grad = None
    (t.gather(1, lt.tensor(wide)) * lt.tensor(h)).sum().backward()
    expected = np.zeros_like(x)
    np.add.at(expected, along(wide.shape, wide, 1), h)
    same(t.grad, expected)


def test_the_gradient_of_choosing_goes_to_the_chosen():
    x = made(300, 80, dtype=np.float64)
    t = lt.tensor(x).requires_grad_()
    g = made(80, dtype=np.float64)
    (t.max(0).values * lt.tensor(g)).sum().backward()
    expected = np.zeros_like(x)
    expected[x.argmax(0), np.arange(80)] = g
    same(t.grad, expected)
    (again,) = lt.autograd.grad((t.topk(70, 1).values ** 3).sum(), t, create_graph=True)
    (second,) = lt.autograd.grad(again.sum(), t)
    rank = np.argsort(np.argsort(-x, 1), 1)
    np.testing.assert_allclose(second.numpy(), np.where(rank < 70, 6 * x, 0), rtol=1e-12)


# Masks


@pytest.mark.parametrize("dtype", DTYPES)
def test_where(dtype):
    x, y = made(130, 140, dtype=dtype), made(130, 140, dtype=dtype)
    mask = made(130, 140) > 0
    a, b, m = lt.tensor(x), lt.tensor(y), lt.tensor(mask)
    same(lt.where(m, a, b), np.where(mask, x, y))
    same(lt.where(m, a[:1], b[:, :1]), np.where(mask, x[:1], y[:, :1]))
    same(lt.where(m[:, :1], a, b[3:4]), np.where(mask[:, :1], x, y[3:4]))
    same(lt.where(m.t(), a.t(), b.t()), np.where(mask.T, x.T, y.T))
    same(lt.where(m[:, ::2], a[:, 1::2], b[:, :70]), np.where(mask[:, ::2], x[:, 1::2], y[:, :70]))


def test_where_of_numbers_moves_bits():
    mask = made(130, 140) > 0
    special = np.array([np.nan, -0.0, np.inf, -np.inf, 1e-45], np.float32)
    x = np.resize(special, (130, 140))
    found = lt.where(lt.tensor(mask), lt.tensor(x), -0.0).numpy()
    expected = np.where(mask, x, np.float32(-0.0))
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
    assert lt.where(lt.tensor(mask), 1, 0).dtype is lt.int64
    same(lt.where(lt.tensor(mask), 1, 0), mask.astype(np.int64))


def test_where_of_half_precision_and_of_mixed_dtypes():
    mask, x = made(130, 140) > 0, made(130, 140)
    half = lt.tensor(x).bfloat16()
    found = lt.where(lt.tensor(mask), half, 0.5)
    assert found.dtype is lt.bfloat16
    same(found.float(), np.where(mask, half.float().numpy(), np.float32(0.5)))
    mixed = lt.where(lt.tensor(mask), lt.tensor(x), lt.tensor(x.astype(np.float64)))
    same(mixed, np.where(mask, x, x.astype(np.float64)))


def test_masked_fill_broadcasts_and_writes_in_place():
    x, mask = made(4, 3, 40, 50), made(40, 50) > 0
    expected = np.where(mask, np.float32(-np.inf), x)
    t = lt.tensor(x)
    same(t.masked_fill(lt.tensor(mask), float("-inf")), expected)
    rows = made(4, 1, 1, 50) > 0
    same(t.masked_fill(lt.tensor(rows), lt.tensor(2.0)), np.where(rows, np.float32(2), x))
    t.transpose(1, 3).masked_fill_(lt.tensor(mask.T.copy())[:, :, None], float("-inf"))
    same(t, expected)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_reading_by_a_mask_and_its_gradient(dtype):
    x = made(150, 160, 3, dtype=dtype)
    for mask in (made(150, 160, 3) > 0, made(150, 160) > 0, made(150) > -9):
        t = lt.tensor(x).requires_grad_()
        found = t[lt.tensor(mask)]
        same(found, x[mask])
        g = made(*found.shape, dtype=dtype)
        (found * lt.tensor(g)).sum().backward()
        expected = np.zeros_like(x)
        expected[mask] = g
        same(t.grad, expected)
    columns = made(160) > 0
    same(lt.tensor(x)[:, lt.tensor(columns)], x[:, columns])


@pytest.mark.parametrize("dtype", DTYPES)
def test_nonzero_and_the_places_of_a_mask(dtype):
    x = made(30, 40, 50, dtype=dtype)
    x[RNG.random(x.shape) < 0.7] = 0
    same(lt.tensor(x).nonzero(), np.argwhere(x))
    same(lt.tensor(x).permute(2, 0, 1).nonzero(), np.argwhere(x.transpose(2, 0, 1)))
    for found, expected in zip(lt.tensor(x).nonzero(as_tuple=True), np.nonzero(x), strict=True):
        same(found, expected)


def test_few_elements_take_the_plain_kernels(monkeypatch):
    from lowtide.framework.ops.indexing import gather

    monkeypatch.setattr(gather, "read_along", None)  # calling it would raise
    x = lt.zeros(COMPILED_MOVE - 1)
    assert x.gather(0, lt.zeros(COMPILED_MOVE - 1, dtype=lt.int64)).shape == (COMPILED_MOVE - 1,)
    with pytest.raises(TypeError, match="not callable"):
        x.gather(0, lt.zeros(COMPILED_MOVE, dtype=lt.int64))
