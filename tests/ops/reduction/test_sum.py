"""Edges of reductions, extremes, order and running results: ties, NaN, empties, messages."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.dtypes import float16, float32, float64, int64, tolerance
from lowtide.framework.ops.registry import OPS


def gradient(f, data):
    x = lt.tensor(np.asarray(data, dtype=np.float64), requires_grad=True)
    (g,) = grad(f(x).sum(), x)
    return g.tolist()


def test_sum_keeps_nothing_for_backward():
    x = lt.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    assert x.sum(1).grad_fn.saved == ()
    assert x.mean().grad_fn.saved == ()


def test_max_along_a_dim_keeps_only_its_indices():
    x = lt.tensor(np.ones((3, 4)), requires_grad=True)
    (kept,) = x.max(1).values.grad_fn.saved
    assert (kept.dtype, kept.shape) == (int64, (3,))


def test_max_along_a_dim_sends_the_gradient_to_the_first_of_equals():
    assert gradient(lambda x: x.max(1).values, [[2, 2, 1], [0, 3, 3]]) == [[1, 0, 0], [0, 1, 0]]


def test_max_of_all_shares_the_gradient_among_equals():
    assert gradient(lambda x: x.max(), [[2, 2, 1], [0, 2, 2]]) == [[0.25, 0.25, 0], [0, 0.25, 0.25]]


def test_max_of_two_tensors_is_elementwise():
    a, b = lt.tensor([1.0, 5.0]), lt.tensor([2.0, 3.0])
    assert lt.max(a, b).tolist() == [2.0, 5.0]
    assert a.min(b).tolist() == [1.0, 3.0]


def test_max_returns_named_fields():
    result = lt.tensor([1.0, 3.0, 2.0]).max(0)
    assert (result.values.item(), result.indices.item()) == (3.0, 1)
    values, indices = result
    assert values is result.values
    assert indices is result.indices


def test_argmax_finds_the_first_along_any_dim_and_any_strides():
    x = lt.tensor(np.arange(24.0).reshape(2, 3, 4) % 5)
    for view in (x, x.permute(2, 0, 1)):
        for dim in range(3):
            expected = np.argmax(view.detach().array, axis=dim)
            np.testing.assert_array_equal(view.argmax(dim).array, expected)


def test_nan_wins_every_extreme():
    x = lt.tensor([1.0, float("nan"), 3.0])
    for value in (x.max(), x.min(), x.amax(0), x.max(0).values, x.median(), x.cummax(0).values[-1]):
        assert np.isnan(value.item())
    assert x.argmin().item() == 1
    assert x.nansum().item() == 4.0


def test_sorting_is_stable_in_both_directions():
    x = lt.tensor([2.0, 1.0, 2.0, 1.0])
    assert x.argsort().tolist() == [1, 3, 0, 2]
    assert x.argsort(descending=True).tolist() == [0, 2, 1, 3]


def test_topk_of_a_long_row_agrees_with_sorting():
    x = lt.tensor(np.random.default_rng(0).permutation(2000).reshape(2, 1000))
    for largest in (True, False):
        values, indices = x.topk(7, largest=largest)
        expected = x.sort(descending=largest)
        assert values.tolist() == expected.values[:, :7].tolist()
        assert indices.tolist() == expected.indices[:, :7].tolist()


def test_product_gradient_is_right_at_zeros():
    assert gradient(lambda x: x.prod(), [2, 0, 3]) == [0, 6, 0]
    assert gradient(lambda x: x.prod(), [2, 0, 0]) == [0, 0, 0]
    assert gradient(lambda x: x.cumprod(0), [2, 0, 3]) == [1, 8, 0]


def test_norm_has_no_gradient_at_zero_and_neither_has_std():
    assert gradient(lambda x: x.norm(), [0, 0]) == [0, 0]
    assert gradient(lambda x: x.std(), [1, 1, 1]) == [0, 0, 0]
    same = lt.full((3,), 1 + 2j, dtype=lt.complex128, requires_grad=True)
    for correction in (0, 1):
        (found,) = lt.autograd.grad(same.std(correction=correction), same)
        assert found.tolist() == [0, 0, 0]


def test_second_gradient_of_a_norm_at_zero_is_finite():
    x = lt.tensor(np.zeros(3), requires_grad=True)
    (g,) = grad(x.norm(), x, create_graph=True)
    (h,) = grad((g * g).sum(), x)
    assert h.tolist() == [0, 0, 0]


def test_empty_sums_and_products_are_their_identities():
    x = lt.tensor(np.zeros((0, 3)))
    assert x.sum().item() == 0
    assert x.prod(0).tolist() == [1, 1, 1]
    assert x.all().item() is True
    assert x.any().item() is False
    assert np.isnan(x.mean().item())
    assert x.logsumexp(0).tolist() == [float("-inf")] * 3
    assert x.max(1).values.shape == (0,)


def test_integers_add_up_in_int64_and_booleans_count():
    assert lt.tensor(np.array([200, 100], dtype=np.uint8)).sum().item() == 300
    total = lt.tensor([True, False, True]).sum()
    assert (total.item(), total.dtype) == (2, int64)


def test_half_precision_accumulates_in_single():
    ones = lt.tensor(np.ones(5000, dtype=np.float16))
    assert ones.sum().item() == 5000  # adding one by one in float16 stops at 2048
    assert ones.mean().item() == 1.0
    assert ones.sum().dtype is float16


def test_sum_takes_a_wider_dtype_without_converting_its_input_first():
    x = lt.tensor(np.full((64, 64), 0.1, dtype=np.float32))
    rtol, _ = tolerance(float32)
    out = x.sum(dtype=float64)
    assert out.dtype is float64
    assert out.item() == pytest.approx(409.6, rel=rtol)


def test_sum_writes_into_out():
    out = lt.tensor(np.zeros(2))
    result = lt.sum(lt.tensor(np.ones((2, 3))), 1, out=out)
    assert result is out
    assert out.tolist() == [3, 3]


def test_var_accepts_pytorchs_older_arguments():
    x = lt.tensor([[1.0, 3.0], [2.0, 6.0]])
    assert x.var(False).item() == x.var(correction=0).item()
    assert x.var(1, False).tolist() == [1.0, 4.0]
    assert x.var(1, True, True).tolist() == [[2.0], [8.0]]


def test_running_extremes_name_the_last_of_equals():
    x = lt.tensor([1.0, 3.0, 2.0, 3.0])
    values, indices = x.cummax(0)
    assert values.tolist() == [1, 3, 3, 3]
    assert indices.tolist() == [0, 1, 1, 3]


def test_running_extremes_agree_between_the_plain_and_the_fast_kernel():
    op = OPS["_cummax"]
    x = np.random.default_rng(0).integers(0, 4, (5, 7)).astype(np.float32)
    found = []
    buffers = np.empty(x.shape, bool), np.empty(x.shape, bool)
    for kernel, work in ((op.plain, buffers), (op.kernels[0].function, ())):
        values, indices = np.empty_like(x), np.empty(x.shape, np.int64)
        kernel(np, values, indices, *work, x, dim=1)
        found.append((values.tolist(), indices.tolist()))
    assert found[0] == found[1]


def test_unique_runs_and_counts():
    x = lt.tensor([3, 1, 1, 3])
    assert x.unique().tolist() == [1, 3]
    _, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    assert (inverse.tolist(), counts.tolist()) == ([1, 0, 0, 1], [2, 2])
    assert x.unique_consecutive().tolist() == [3, 1, 3]


def test_sum_to_size_undoes_a_broadcast():
    x = lt.tensor(np.ones((2, 3, 4)))
    assert x.sum_to_size(3, 1).tolist() == [[8], [8], [8]]
    with pytest.raises(RuntimeError, match=r"sum_to_size undoes a broadcast.*Pass a size"):
        x.sum_to_size(5)


MESSAGES = [
    (lambda x: x.sum(2), IndexError, r"range of \[-2, 1\], but got 2.*sum of a tensor"),
    (lambda x: x.sum((0, 0)), RuntimeError, "appears multiple times"),
    (lambda x: x.to(int64).mean(), RuntimeError, r"mean\(\): could not infer.*Convert with"),
    (lambda x: x.to(int64).var(), RuntimeError, "only support floating point.*Convert with"),
    (lambda x: x[:0].max(), RuntimeError, r"max\(\): Expected reduction dim to be specified"),
    (lambda x: x[:0].amin(0), IndexError, r"amin\(\): Expected reduction dim 0 to have non-zero"),
    (lambda x: x[:0].argmax(), IndexError, r"argmax\(\): Expected reduction dim"),
    (lambda x: x.topk(9), RuntimeError, "selected index k out of range.*Pass a smaller one"),
    (lambda x: x.kthvalue(0), RuntimeError, r"k must be in \[1, 4\]; got 0"),
    (lambda x: x.max((0, 1)), TypeError, "one int for dim"),
    (lambda x: x.norm("fra"), RuntimeError, "takes a number"),
    (lambda x: x.var(0, unbiased=True, correction=1), TypeError, "not both"),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES)
def test_mistakes_are_explained(call, error, message):
    with pytest.raises(error, match=message):
        call(lt.tensor(np.ones((3, 4))))


def test_var_of_too_few_elements_warns():
    with pytest.warns(UserWarning, match="degrees of freedom is <= 0.*Pass correction=0"):
        assert np.isnan(lt.tensor(np.ones((1, 5))).var(0)[0].item())


def test_prod_takes_one_dim():
    with pytest.raises(TypeError, match="takes one dim, or none for all"):
        lt.ones(2, 3).prod(dim=(0, 1))


def test_no_dims_reduce_nothing_in_any_and_all_and_everything_in_sum():
    x = lt.tensor([[0.0, 1.0], [2.0, 3.0]])
    for empty in ((), []):
        assert lt.any(x, dim=empty).tolist() == [[False, True], [True, True]]
        assert lt.all(x, dim=empty).tolist() == [[False, True], [True, True]]
        assert lt.sum(x, dim=empty).item() == 6.0


def test_sum_to_size_of_nothing_adds_integers_up_in_int64():
    x = lt.ones(2, 3, dtype=lt.int32)
    assert lt.sum_to_size(x, ()).dtype is lt.int64
    assert x.sum_to_size(2, 3).dtype is lt.int32


def test_numpys_names_of_arguments():
    x = lt.arange(6.0).reshape(2, 3)
    assert lt.sum(x, axis=1, keepdims=True).tolist() == [[3.0], [12.0]]
    assert x.unsqueeze(axis=0).shape == (1, 2, 3)
    assert lt.gather(x, axis=1, index=lt.tensor([[2], [0]])).tolist() == [[2.0], [3.0]]
    with pytest.raises(TypeError, match="both 'dim' and 'axis'"):
        x.sum(dim=1, axis=1)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'dim'"):
        x.unsqueeze()
    with pytest.raises(TypeError, match="unexpected keyword argument 'axes'"):
        x.sum(axes=1)


def test_logsumexp_of_complex_numbers_has_the_principal_angle():
    x = lt.tensor([1.0 + 5.0j, 0.5 - 3.0j], dtype=lt.complex128)
    expected = np.log(np.exp(x.numpy()).sum())
    assert abs(lt.logsumexp(x, 0).item() - expected) < 1e-14


@pytest.mark.parametrize("dim", [(1,), (0,), (0, 2), (2,), (0, 1, 2)])
def test_a_repeated_number_is_added_up_as_its_copy_is(dim):
    for shape in ((40, 50, 60), (3, 200, 300), (2, 40000, 3)):
        repeated = lt.tensor(0.1).expand(shape)
        found, expected = repeated.sum(dim), repeated.double().sum(dim)
        assert found.shape == expected.shape
        assert (found - expected).abs().max() <= 1e-6 * expected.max()


@pytest.mark.parametrize("name", ["sum", "cumsum", "prod", "cumprod"])
@pytest.mark.parametrize("shape", [(100, 3), (3, 100), (80, 1), (100, 16)])
def test_integers_are_added_up_in_the_dtype_that_is_asked_for(name, shape):
    kinds = "bool uint8 int8 int16 int32 int64".split()
    a = np.random.default_rng(0).integers(0, 4, shape)
    for given in kinds:
        x = lt.tensor(a).to(getattr(lt, given))
        for asked in kinds[1:]:
            found = getattr(x, name)(-1, dtype=getattr(lt, asked))
            exact = x.numpy().astype("int64").astype(asked)
            assert found.dtype is getattr(lt, asked)
            expected = getattr(np, name)(exact, axis=-1, dtype=asked)
            np.testing.assert_array_equal(found.numpy(), expected)
