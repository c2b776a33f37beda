"""Reductions, order and running sums against PyTorch: values, dtypes, gradients, second ones."""

from functools import partial

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")

from tests.parity import comparing  # noqa: E402  # it imports torch
from tests.parity.comparing import listed, refuse_alike  # noqa: E402

pytestmark = pytest.mark.parity

# By the weights PyTorch has NaN where the norm of nothing, or a std of 0, is differentiated twice.
compare = partial(comparing.compare, by_weights=False)
SHAPES = ((3, 4), (2, 3, 4), (4,), (), (0, 3), (3, 1))


def numbers(shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape)


def dims_of(ndim, several=True):
    yield from (k for k in range(-ndim, ndim))
    if several and ndim > 1:
        yield from ((0, 1), (ndim - 1, 0))


REDUCTIONS = {
    "sum": lambda m, x, d, k: x.sum(d, k),
    "nansum": lambda m, x, d, k: x.nansum(d, k),
    "mean": lambda m, x, d, k: m.mean(x, d, k),
    "nanmean": lambda m, x, d, k: x.nanmean(d, k),
    "var": lambda m, x, d, k: x.var(d, correction=0, keepdim=k),
    "std": lambda m, x, d, k: m.std(x, d, correction=0, keepdim=k),
    "amax": lambda m, x, d, k: x.amax(d, k),
    "amin": lambda m, x, d, k: x.amin(d, k),
    "logsumexp": lambda m, x, d, k: x.logsumexp(d, k),
    "norm": lambda m, x, d, k: x.norm(2, d, k),
    "norm1": lambda m, x, d, k: x.norm(1, d, k),
    "norm3": lambda m, x, d, k: x.norm(3, d, k),
    "norm1.5": lambda m, x, d, k: x.norm(1.5, d, k),
    "norm_inf": lambda m, x, d, k: x.norm(float("inf"), d, k),
    "norm_ninf": lambda m, x, d, k: x.norm(float("-inf"), d, k),
    "norm0": lambda m, x, d, k: x.norm(0, d, k),
}
ONE_DIM = {
    "prod": lambda m, x, d, k: x.prod(d, k),
    "max": lambda m, x, d, k: x.max(d, k),
    "min": lambda m, x, d, k: m.min(x, d, keepdim=k),
    "median": lambda m, x, d, k: x.median(d, k),
    "kthvalue": lambda m, x, d, k: x.kthvalue(1, d, k),
    "argmax": lambda m, x, d, k: x.argmax(d, k),
    "argmin": lambda m, x, d, k: x.argmin(d, k),
    "all": lambda m, x, d, k: (x > 0).all(d, k),
    "any": lambda m, x, d, k: (x > 0).any(d, k),
    "aminmax": lambda m, x, d, k: x.aminmax(dim=d, keepdim=k),
}


@pytest.mark.parametrize("name", [*REDUCTIONS, *ONE_DIM])
def test_reduction_over_dims_matches(name):
    f = REDUCTIONS.get(name) or ONE_DIM[name]
    chooses = name in ("amax", "amin", "norm_inf", "norm_ninf") or name in ONE_DIM
    order = 0 if name in ("argmax", "argmin", "all", "any") else 2
    for shape in SHAPES:
        for dim in dims_of(len(shape), name in REDUCTIONS):
            picked = dim if isinstance(dim, tuple) else (dim,)
            if name in ("var", "std") and 0 in shape:
                continue  # NaN with a warning
            empty = any(shape[d] == 0 for d in picked)
            if empty and chooses and name not in ("prod", "all", "any"):
                continue
            for keep in (False, True):
                compare(lambda m, x, d=dim, k=keep: f(m, x, d, k), numbers(shape), order=order)


WHOLE = {
    "sum": lambda m, x: x.sum(),
    "mean": lambda m, x: m.mean(x),
    "prod": lambda m, x: x.prod(),
    "var": lambda m, x: x.var(correction=0),
    "var_positional": lambda m, x: x.var(False),
    "std_positional": lambda m, x: m.std(x, False),
    "norm": lambda m, x: x.norm(),
    "norm1": lambda m, x: m.norm(x, p=1),
    "max": lambda m, x: x.max(),
    "min": lambda m, x: m.min(x),
    "amax": lambda m, x: x.amax(),
    "median": lambda m, x: x.median(),
    "logsumexp": lambda m, x: m.logsumexp(x, list(range(x.ndim))) if x.ndim else x * 1,
    "aminmax": lambda m, x: m.aminmax(x),
    "argmax": lambda m, x: x.argmax(),
    "argmax_keepdim": lambda m, x: x.argmax(keepdim=True),
    "all": lambda m, x: m.all(x > 0),
    "any": lambda m, x: (x > 0).any(),
    "count_nonzero": lambda m, x: (x > 0).count_nonzero(),
    "nansum": lambda m, x: x.nansum(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_reduction_of_everything_matches(name):
    order = 0 if name[:3] in ("arg", "all", "any", "cou") else 2
    for shape in SHAPES:
        empty = 0 in shape
        if empty and name[:3] in ("max", "min", "ama", "ami", "arg"):
            continue
        if empty and name in ("mean", "var", "var_positional", "std_positional"):
            continue  # NaN with a warning
        compare(WHOLE[name], numbers(shape), order=order)


MOMENTS = {
    "var": lambda m, x: x.var(1),
    "var_unbiased": lambda m, x: x.var(1, False, True),
    "var_true": lambda m, x: x.var(0, True),
    "var_correction": lambda m, x: m.var(x, (0, 1), correction=2),
    "std": lambda m, x: x.std(),
    "std_correction": lambda m, x: x.std(1, correction=0.5),
    "var_mean": lambda m, x: m.var_mean(x, 1),
    "std_mean": lambda m, x: m.std_mean(x, 0, keepdim=True),
    "var_mean_whole": lambda m, x: m.var_mean(x, correction=0),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_moments_match(name):
    compare(MOMENTS[name], numbers((3, 4)))
    compare(MOMENTS[name], numbers((4, 3, 2)))


ZEROS = ([1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 3.0, 4.0], [1.0, 0.0, 3.0, 0.0], [0.0, 0.0, 0.0, 5.0])


@pytest.mark.parametrize("row", ZEROS)
def test_product_gradients_are_right_at_zeros(row):
    x = np.array([row, row[::-1]])
    compare(lambda m, x: x.prod(), x[0])
    compare(lambda m, x: x.prod(1), x)
    compare(lambda m, x: x.prod(0, True), x)
    compare(lambda m, x: x.cumprod(1), x)
    compare(lambda m, x: x.cumprod(0), x)


CUMULATIVE = {
    "cumsum": lambda m, x, d: x.cumsum(d),
    "cumprod": lambda m, x, d: x.cumprod(d),
    "logcumsumexp": lambda m, x, d: x.logcumsumexp(d),
    "cummax": lambda m, x, d: x.cummax(d),
    "cummin": lambda m, x, d: m.cummin(x, d),
    "sort": lambda m, x, d: x.sort(d),
    "sort_descending": lambda m, x, d: m.sort(x, dim=d, descending=True, stable=True),
    "argsort": lambda m, x, d: x.argsort(d),
    "argsort_descending": lambda m, x, d: x.argsort(dim=d, descending=True),
    "topk1": lambda m, x, d: x.topk(1, d),
    "topk_all": lambda m, x, d: m.topk(x, x.shape[d], d, largest=False),
}


@pytest.mark.parametrize("name", CUMULATIVE)
def test_running_and_ordered_results_match(name):
    order = 0 if name.startswith("arg") else 2
    for shape in ((3, 4), (2, 3, 4), (5,), (3, 1), (0, 3)):
        for dim in dims_of(len(shape), False):
            if shape[dim] == 0 and name == "topk1":
                continue
            compare(lambda m, x, d=dim: CUMULATIVE[name](m, x, d), numbers(shape), order=order)


def test_zero_dimensional_tensors_reduce_as_vectors_of_one():
    for f in (
        lambda m, x: x.sum(0), lambda m, x: x.max(0), lambda m, x: x.min(-1), lambda m, x: x.sort(),
        lambda m, x: x.topk(1), lambda m, x: x.cumsum(0), lambda m, x: x.cumprod(-1),
        lambda m, x: x.median(0), lambda m, x: x.kthvalue(1), lambda m, x: x.logsumexp(0),
        lambda m, x: x.norm(), lambda m, x: x.prod(0), lambda m, x: x.cummax(0),
        lambda m, x: x.logcumsumexp(0), lambda m, x: x.amax(0), lambda m, x: x.mean(0),
    ):  # fmt: skip
        compare(f, numbers(()))


@pytest.mark.parametrize("kind", ["bool", "uint8", "int32", "int64"])
def test_integer_results_match_in_value_and_dtype(kind):
    x = np.random.default_rng(3).integers(0, 3, (3, 4)).astype(kind)
    functions = [
        lambda m, x: x.sum(), lambda m, x: x.sum(1), lambda m, x: x.prod(0),
        lambda m, x: x.cumsum(1),
        lambda m, x: x.cumprod(0), lambda m, x: x.max(), lambda m, x: x.amin(1),
        lambda m, x: x.all(1), lambda m, x: x.any(), lambda m, x: x.count_nonzero(0),
        lambda m, x: x.sum(0, dtype=m.float32), lambda m, x: x.mean(0, dtype=m.float64),
        lambda m, x: x.sort(dim=1, stable=True), lambda m, x: m.unique(x), lambda m, x: x.cummax(1),
        lambda m, x: m.unique(x, return_inverse=True, return_counts=True),
        lambda m, x: m.unique(x, dim=0), lambda m, x: m.unique_consecutive(x, return_counts=True),
        lambda m, x: x.max(1)[0], lambda m, x: x.logsumexp(1), lambda m, x: x.nansum(),
    ]  # fmt: skip
    if kind != "bool":
        functions += [lambda m, x: x.median(), lambda m, x: x.argmax(0), lambda m, x: x.topk(2)[0]]
    for f in functions:
        compare(f, x, order=0)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_lower_precision_results_match_in_value_and_dtype(kind):
    x = numbers((5, 40)).astype(np.float32)
    ours, theirs = lt.tensor(x).to(getattr(lt, kind)), torch.tensor(x).to(getattr(torch, kind))
    rtol, atol = lt.framework.dtypes.tolerance(ours.dtype)
    for f in (
        lambda m, x: x.sum(1),
        lambda m, x: x.mean(),
        lambda m, x: x.var(1),
        lambda m, x: x.std(0),
        lambda m, x: x.norm(),
        lambda m, x: x.norm(1, 1),
        lambda m, x: x.logsumexp(1),
        lambda m, x: x.max(1),
        lambda m, x: x.amax(),
        lambda m, x: x.argmax(1),
        lambda m, x: x.cumsum(1),
        lambda m, x: x.sort(dim=1, stable=True),
        lambda m, x: x.median(1)[0],
        lambda m, x: x.sum(dtype=m.float32),
        lambda m, x: x.topk(3)[0],
        lambda m, x: x.median(),
    ):
        for r, e in zip(listed(f(lt, ours)), listed(f(torch, theirs)), strict=True):
            assert r.dtype.name == str(e.dtype).removeprefix("torch.")
            np.testing.assert_allclose(
                r.to(lt.float64).numpy(), e.double().numpy(), rtol=4 * rtol, atol=40 * atol
            )


def test_sum_converts_before_adding_when_the_dtype_is_smaller():
    compare(lambda m, x: x.sum(dtype=m.int64), np.array([1.5, 2.5, -0.5]), order=0)
    compare(lambda m, x: x.prod(dtype=m.int64), np.array([1.5, 2.5]), order=0)


def test_nan_spreads_as_in_pytorch():
    x = np.array([[1.0, np.nan, 3.0, 2.0], [4.0, 1.0, 1.0, 0.0]])
    for f in (
        lambda m, x: x.max(), lambda m, x: x.max(1), lambda m, x: x.amin(1),
        lambda m, x: x.argmin(1),
        lambda m, x: x.sort(1), lambda m, x: x.sort(1, True), lambda m, x: x.median(),
        lambda m, x: x.median(1), lambda m, x: x.nansum(1), lambda m, x: x.nanmean(),
        lambda m, x: x.cummax(1), lambda m, x: x.cummin(1), lambda m, x: x.topk(2),
        lambda m, x: x.topk(3, largest=False)[0],
        lambda m, x: x.kthvalue(4), lambda m, x: x.logsumexp(1), lambda m, x: x.norm(float("inf")),
        lambda m, x: x.all(1), lambda m, x: x.count_nonzero(), lambda m, x: m.unique(x),
    ):  # fmt: skip
        compare(f, x, order=0)


def test_infinite_logsumexp_matches():
    inf = np.inf
    x = np.array([[-inf, -inf], [inf, 1.0], [-inf, 1.0], [inf, inf], [2.0, 3.0]])
    compare(lambda m, x: x.logsumexp(1), x, order=0)
    compare(lambda m, x: x.logcumsumexp(1), x, order=0)


def test_ties_share_the_gradient_as_in_pytorch():
    x = np.array([[2.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    for f in (
        lambda m, x: x.amax(1),
        lambda m, x: x.amin(),
        lambda m, x: x.max(),
        lambda m, x: x.min(),
        lambda m, x: x.aminmax(dim=1),
        lambda m, x: x.norm(float("inf"), 1),
        lambda m, x: x.median(),
    ):
        compare(f, x)


def test_norm_and_std_have_no_gradient_at_zero():
    x = np.zeros((2, 3))
    for p in (1, 2, 3, 1.5, float("inf")):
        compare(lambda m, x, p=p: x.norm(p, 1), x, order=1)
    compare(lambda m, x: x.std(1), x, order=1)


EMPTY = {
    "max": lambda m, x: x.max(),
    "max_dim": lambda m, x: x.max(0),
    "amax": lambda m, x: x.amax(),
    "amax_dim": lambda m, x: x.amax(0),
    "argmax": lambda m, x: x.argmax(),
    "argmin_dim": lambda m, x: x.argmin(0),
    "median_dim": lambda m, x: x.median(0),
    "kthvalue": lambda m, x: x.kthvalue(1, 0),
    "aminmax": lambda m, x: x.aminmax(),
    "norm": lambda m, x: x.norm(float("inf")),
    "topk": lambda m, x: x.topk(1, 0),
}
WRONG = {
    "sum_dim": lambda m, x: x.sum(2),
    "sum_twice": lambda m, x: x.sum((0, -2)),
    "mean_int": lambda m, x: x.long().mean(),
    "var_int": lambda m, x: x.long().var(),
    "argmax_bool": lambda m, x: (x > 0).argmax(),
    "topk": lambda m, x: x.topk(9),
    "kthvalue": lambda m, x: x.kthvalue(0),
    "max_dim": lambda m, x: x.max(2),
    "cumsum_dim": lambda m, x: x.cumsum(-3),
    "norm_int": lambda m, x: x.long().norm(),
    "nanmean_int": lambda m, x: x.long().nanmean(),
    "sum_to_size": lambda m, x: x.sum_to_size(5, 4),
}


@pytest.mark.parametrize("name", [*EMPTY, *WRONG])
def test_mistakes_raise_pytorchs_exception(name):
    f, shape = (EMPTY[name], (0, 3)) if name in EMPTY else (WRONG[name], (3, 4))
    refuse_alike(f, np.zeros(shape))


def test_empty_means_are_nan():
    ours, theirs = lt.tensor(np.zeros((0, 3))), torch.zeros((0, 3), dtype=torch.float64)
    for f in (lambda x: x.mean(), lambda x: x.mean(0), lambda x: x.median(), lambda x: x.mean(1)):
        np.testing.assert_equal(f(ours).numpy(), f(theirs).numpy())
