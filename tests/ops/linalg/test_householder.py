"""Householder reflections, unpacked triangles, and few singular values by random projection."""

import numpy as np
import pytest

import lowtide as lt
from lowtide import linalg
from lowtide.framework import testing

RNG = np.random.default_rng(0)


def matrix(*shape):
    return lt.tensor(RNG.standard_normal(shape), requires_grad=True)


def reflected(packed, tau):
    """The product by its definition, one reflection after the other."""
    m = packed.shape[0]
    q = np.eye(m)
    for i, t in enumerate(tau):
        v = np.concatenate([np.zeros(i), [1.0], packed[i + 1 :, i]])
        q = q @ (np.eye(m) - t * np.outer(v, v))
    return q


@pytest.mark.parametrize("shape", [(5, 3), (4, 4), (3, 1)])
def test_reflections_multiply_to_an_orthonormal_basis_that_gives_the_matrix_back(shape):
    a = matrix(*shape)
    packed, tau = lt.geqrf(a)
    q = linalg.householder_product(packed, tau)
    np.testing.assert_allclose(
        q.numpy(), reflected(packed.numpy(), tau.numpy())[:, : shape[1]], atol=1e-12
    )
    np.testing.assert_allclose((q @ packed.triu()[: shape[1]]).numpy(), a.detach().numpy())
    np.testing.assert_allclose((q.mT @ q).numpy(), np.eye(shape[1]), atol=1e-12)


def test_gradients_of_a_product_of_reflections():
    packed, tau = matrix(4, 3), matrix(3)
    testing.check_gradient(lambda xs: [linalg.householder_product(*xs)], [packed, tau])
    testing.check_second_gradient(lambda xs: [linalg.householder_product(*xs)], [packed, tau])


def test_a_factor_of_zero_is_no_reflection():
    q = linalg.householder_product(matrix(3, 2).detach(), lt.zeros(2, dtype=lt.float64))
    np.testing.assert_array_equal(q.numpy(), np.eye(3, 2))
    q = linalg.householder_product(matrix(3, 2).detach(), lt.zeros(0, dtype=lt.float64))
    np.testing.assert_array_equal(q.numpy(), np.eye(3, 2))


@pytest.mark.parametrize("transpose", [False, True])
def test_ormqr_multiplies_by_the_square_matrix_it_does_not_make(transpose):
    packed, tau = lt.geqrf(matrix(4, 2).detach())
    q = reflected(packed.numpy(), tau.numpy())
    q = q.T if transpose else q
    other = matrix(4, 3).detach()
    left = lt.ormqr(packed, tau, other, transpose=transpose)
    np.testing.assert_allclose(left.numpy(), q @ other.numpy(), atol=1e-12)
    right = lt.ormqr(packed, tau, other.mT, left=False, transpose=transpose)
    np.testing.assert_allclose(right.numpy(), other.mT.numpy() @ q, atol=1e-12)


def test_what_does_not_fit_is_refused():
    with pytest.raises(RuntimeError, match="greater than or equal"):
        linalg.householder_product(lt.zeros(2, 3), lt.zeros(2))
    with pytest.raises(RuntimeError, match="at most one factor for each column"):
        linalg.householder_product(lt.zeros(3, 2), lt.zeros(3))
    with pytest.raises(RuntimeError, match=r"must be equal to input\.shape\[-2\]"):
        lt.ormqr(lt.zeros(3, 2), lt.zeros(2), lt.zeros(4, 2))


def test_unpacked_triangles_multiply_to_the_matrix():
    a = matrix(2, 3, 4)
    packed, pivots = lt.lu(a)
    p, low, up = lt.lu_unpack(packed, pivots)
    np.testing.assert_allclose((p @ low @ up).detach().numpy(), a.detach().numpy())
    assert lt.lu_unpack(packed, pivots, unpack_data=False)[1].numel() == 0
    assert lt.lu_unpack(packed, pivots, unpack_pivots=False)[0].numel() == 0
    with pytest.raises(RuntimeError, match="int32"):
        lt.lu_unpack(packed, pivots.long())


@pytest.mark.parametrize("shape", [(9, 5), (5, 9)])
def test_random_projection_finds_all_of_a_matrix_of_low_rank(shape):
    lt.manual_seed(0)
    a = matrix(shape[0], 2).detach() @ matrix(2, shape[1]).detach()
    u, s, v = lt.svd_lowrank(a, q=3)
    np.testing.assert_allclose((u * s @ v.mT).numpy(), a.numpy(), atol=1e-10)
    np.testing.assert_allclose(s[:2].numpy(), linalg.svdvals(a)[:2].numpy())
    centered = a - a.mean(0, keepdim=True)
    u, s, v = lt.pca_lowrank(a, q=2)
    np.testing.assert_allclose((u * s @ v.mT).numpy(), centered.numpy(), atol=1e-10)
    with pytest.raises(ValueError, match="q"):
        lt.svd_lowrank(a, q=10)
