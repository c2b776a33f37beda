"""The factors of ``add``, ``sub``, ``rsub``, ``addcmul`` and ``addcdiv`` beside mixed dtypes.

A scaled operand has the dtype of the result: uint8 numbers times 300 are no uint8 numbers.
"""

import numpy as np
import pytest

import lowtide as lt

DTYPES = [
    lt.bool, lt.uint8, lt.int8, lt.int32, lt.int64, lt.float16, lt.bfloat16, lt.float32,
    lt.float64, lt.complex64,
]  # fmt: skip
FACTORS = [2, 3, 100, 300, -1, 0.5, 1000.0, 2 - 1j]
SIGNS = {"add": (1, 1), "sub": (1, -1), "rsub": (-1, 1)}


def exact(x):
    x = x.to(lt.float64) if x.is_floating_point() else x
    return x.numpy().astype(complex if x.is_complex() else object)


def is_refused(common, factor):
    if isinstance(factor, complex):
        return not common.is_complex
    if isinstance(factor, float):
        return not common.is_floating_point and not common.is_complex
    if common in (lt.uint8, lt.int8):
        limit = lt.iinfo(common).max
        return not -limit - (common is lt.int8) <= factor <= limit
    return False


@pytest.mark.parametrize("of", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SIGNS)
def test_a_scaled_operand_has_the_dtype_of_the_result(name, dtype, of):
    a, b = lt.tensor([1, 0, 3, 2]).to(dtype), lt.tensor([3, 2, 1, 0]).to(of)
    common = lt.result_type(a, b)
    for factor in FACTORS:
        function = getattr(lt, name)
        if is_refused(common, factor) or (name != "add" and lt.bool in (dtype, of)):
            with pytest.raises(RuntimeError):
                function(a, b, alpha=factor)
            continue
        if common is lt.bool:
            assert lt.equal(function(a, b, alpha=factor), a | (b & bool(factor)))
            continue
        own, other = SIGNS[name]
        x, y = (exact(a), exact(b)) if name != "rsub" else (exact(b) * -1, exact(a) * -1)
        expected = own * x + other * factor * y
        found = function(a, b, alpha=factor)
        assert found.dtype is common
        if not common.is_floating_point and not common.is_complex:
            expected = lt.tensor(np.array([int(e) for e in expected])).to(common)
            assert found.tolist() == expected.tolist()
        else:
            tolerance = 2e-2 if common.itemsize == 2 else 1e-6
            np.testing.assert_allclose(
                exact(found).astype(complex), expected.astype(complex), rtol=tolerance
            )


@pytest.mark.parametrize("of", [lt.uint8, lt.int8, lt.float16], ids=str)
def test_in_place_too(of):
    high = lt.tensor([100.0, 7.0]).to(of)
    wide = lt.tensor([1.0, 2.0])
    assert wide.clone().add_(high, alpha=1000).tolist() == [100001, 7002]
    assert wide.clone().sub_(high, alpha=1000).tolist() == [-99999, -6998]
    assert wide.clone().addcmul_(high, high, value=2).tolist() == [20001, 100]
    assert wide.clone().addcmul(high, high, value=2).tolist() == [20001, 100]


@pytest.mark.parametrize("name", ["addcmul", "addcmul_"])
def test_a_factor_that_does_not_fit_is_refused(name):
    whole = lt.tensor([1, 2])
    for x, value, error in (
        (whole, 0.5, RuntimeError),
        (whole, 1j, RuntimeError),
        (whole.float(), 1j, RuntimeError),
        (whole.to(lt.uint8), 300, RuntimeError),
        (whole.bool(), 2, NotImplementedError),
    ):
        with pytest.raises(error):
            getattr(x.clone(), name)(x, x, value=value)
