"""Linear algebra where the generated tests do not look: failures, messages, edges, memory."""

import itertools

import numpy as np
import pytest

import lowtide as lt
from lowtide import linalg
from lowtide.framework import testing
from lowtide.framework.autograd.engine import grad

inf = float("inf")


def spd(n, seed=0):
    a = np.random.default_rng(seed).standard_normal((n, n))
    return lt.tensor(a @ a.T + n * np.eye(n))


def failing():
    """Three matrices, of which the second is singular and not positive-definite."""
    return lt.tensor(np.stack([np.eye(2), [[1.0, 1.0], [1.0, 1.0]], 2 * np.eye(2)]))


def test_a_square_matrix_is_asked_for_with_both_sizes():
    with pytest.raises(RuntimeError) as error:
        linalg.inv(lt.ones(3, 4))
    assert str(error.value).startswith(
        "linalg.inv: A must be batches of square matrices, but they are 3 by 4 matrices"
    )


@pytest.mark.parametrize(
    "f",
    [
        linalg.inv,
        linalg.cholesky,
        linalg.lu_factor,
        lambda a: linalg.solve(a, a[..., :1]),
    ],
)
def test_an_error_names_the_first_matrix_of_a_stack_that_fails(f):
    with pytest.raises(linalg.LinAlgError, match=r"\(Batch element 1\).*2"):
        f(failing())


def test_the_error_is_a_runtime_error():
    assert issubclass(linalg.LinAlgError, RuntimeError)


def test_ex_forms_return_the_others_results_beside_a_failure():
    inverse, info = linalg.inv_ex(failing())
    assert info.tolist() == [0, 2, 0]
    np.testing.assert_allclose(inverse[2].numpy(), np.eye(2) / 2)
    assert linalg.cholesky_ex(failing()).info.tolist() == [0, 2, 0]
    with pytest.raises(linalg.LinAlgError):
        linalg.cholesky_ex(failing(), check_errors=True)


def test_values_that_are_not_finite_raise_lowtides_error():
    with pytest.raises(linalg.LinAlgError, match="non-finite"):
        linalg.svdvals(lt.full((2, 2), float("nan")))


def test_only_one_triangle_is_read():
    a = spd(3)
    lower, upper = a.tril(), a.triu()
    np.testing.assert_allclose(linalg.cholesky(lower).numpy(), linalg.cholesky(a).numpy())
    np.testing.assert_allclose(
        linalg.cholesky(upper, upper=True).mT.numpy(), linalg.cholesky(a).numpy()
    )
    np.testing.assert_allclose(linalg.eigvalsh(upper, UPLO="U").numpy(), linalg.eigvalsh(a).numpy())
    b = lt.ones(3, 1, dtype=lt.float64)
    np.testing.assert_allclose(
        linalg.solve_triangular(a, b, upper=True).numpy(),
        linalg.solve_triangular(upper, b, upper=True).numpy(),
    )


def test_what_is_kept_is_what_is_promised():
    a, b = spd(4).requires_grad_(), lt.ones(4, 1, dtype=lt.float64)
    assert [n for n, *_ in testing.saved_of((linalg.inv(a),))] == ["_inv.out"]
    kept = testing.saved_of((linalg.solve(a, b),))
    assert sorted(n for n, *_ in kept) == ["_solve.A", "_solve.out"]
    assert [n for n, *_ in testing.saved_of((linalg.cholesky(a),))] == ["_cholesky.out"]


def test_decompositions_multiply_back_to_the_matrix():
    a = lt.tensor(np.random.default_rng(0).standard_normal((2, 4, 3)))
    q, r = linalg.qr(a)
    u, s, vh = linalg.svd(a, full_matrices=False)
    p, lower, upper = linalg.lu(a)
    for product in (q @ r, (u * s.unsqueeze(-2)) @ vh, p @ lower @ upper):
        np.testing.assert_allclose(product.numpy(), a.numpy(), atol=1e-12)
    square = a[:, :3]
    values, vectors = linalg.eig(square)
    np.testing.assert_allclose(
        (vectors * values.unsqueeze(-2)).numpy(),
        square.to(lt.complex128).matmul(vectors).numpy(),
        atol=1e-12,
    )
    values, vectors = linalg.eigh(square + square.mT)
    np.testing.assert_allclose(
        (vectors * values.unsqueeze(-2) @ vectors.mT).numpy(),
        (square + square.mT).numpy(),
        atol=1e-12,
    )


def test_the_plain_kernels_equal_the_libraries():
    from lowtide.framework.ops.registry import OPS

    a = np.random.default_rng(0).standard_normal((2, 4, 4))
    b = np.random.default_rng(1).standard_normal((2, 4, 2))
    for name, arrays, attributes in (
        ("_lu_factor", (a,), {"pivot": True}),
        ("_solve_triangular", (a, b), {"upper": True, "unitriangular": False}),
    ):
        plain, (fast,) = OPS[name].plain, [k.function for k in OPS[name].kernels]
        made = [k(np, *arrays, **attributes) for k in (plain, fast)]
        slow, quick = (m if isinstance(m, tuple) else (m,) for m in made)
        for x, y in zip(slow, quick, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-12)


def test_qr_without_q_has_a_gradient():
    a = spd(3).requires_grad_()
    q, r = linalg.qr(a, mode="r")
    assert q.shape == (0,)
    (ours,) = grad([r.sum()], [a])
    (reduced,) = grad([linalg.qr(a).R.sum()], [a])
    np.testing.assert_array_equal(ours.numpy(), reduced.numpy())


def test_a_complete_qr_of_a_tall_matrix_has_none():
    a = lt.ones(3, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match="mode='reduced'"):
        linalg.qr(a, mode="complete").R.sum().backward()


def test_out_takes_the_result():
    a, out = spd(3), lt.empty(0, dtype=lt.float64)
    assert linalg.inv(a, out=out) is out
    np.testing.assert_array_equal(out.numpy(), linalg.inv(a).numpy())
    pair = (lt.empty(0, dtype=lt.float64), lt.empty(0, dtype=lt.float64))
    assert linalg.qr(a, out=pair).Q is pair[0]


def test_the_exponential_of_a_large_matrix_is_that_of_its_half_squared():
    a = lt.tensor([[0.0, 40.0], [-40.0, 0.0]], dtype=lt.float64)
    c, s = np.cos(40.0), np.sin(40.0)
    np.testing.assert_allclose(linalg.matrix_exp(a).numpy(), [[c, s], [-s, c]], atol=1e-11)


def test_everything_runs_on_meta():
    a = lt.ones(2, 3, 3, device="meta")
    shapes = {
        linalg.inv: (2, 3, 3),
        linalg.det: (2,),
        linalg.svdvals: (2, 3),
        linalg.eigvals: (2, 3),
        linalg.matrix_exp: (2, 3, 3),
        linalg.pinv: (2, 3, 3),
        linalg.cholesky: (2, 3, 3),
    }
    assert {f: tuple(f(a).shape) for f in shapes} == shapes


def test_cross_needs_three_components():
    with pytest.raises(RuntimeError, match="must have length 3"):
        linalg.cross(lt.ones(2, 2), lt.ones(2, 2))
    with pytest.warns(UserWarning, match="dim"):
        found = lt.cross(lt.eye(3)[:2], lt.eye(3)[1:])
    assert found.tolist() == [[0, 0, 1], [1, 0, 0]]


def test_the_determinant_of_a_singular_matrix_has_two_orders_of_gradient():
    a = lt.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]], dtype=lt.float64)
    for singular in (a, lt.zeros(3, 3, dtype=lt.float64)):
        singular = singular.clone().requires_grad_()
        (first,) = grad(linalg.det(singular), [singular], create_graph=True)
        w = lt.arange(9, dtype=lt.float64).reshape(3, 3) - 2.5
        (second,) = grad((first * w).sum(), [singular])
        m = singular.detach().numpy()
        step = 1e-4
        for place in ((0, 0), (1, 2), (2, 1)):  # det is linear in each element, its slope in others
            move = np.zeros((3, 3))
            move[place] = step
            cofactors = [
                np.array(
                    [
                        [
                            (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(x, i, 0), j, 1))
                            for j in range(3)
                        ]
                        for i in range(3)
                    ]
                )
                for x in (m + move, m - move)
            ]
            expected = ((cofactors[0] - cofactors[1]) * w.numpy()).sum() / (2 * step)
            assert second[place].item() == pytest.approx(expected, abs=1e-9)


def test_eigenvalues_and_what_no_phase_changes_have_gradients():
    a = lt.tensor(np.random.default_rng(3).standard_normal((3, 3)), requires_grad=True)

    def values(xs):
        found = linalg.eigvals(xs[0])
        return [(found * found).sum().real, found.abs().sum()]

    def vectors(xs):
        return [linalg.eig(xs[0])[1].abs().square().square().sum()]

    testing.check_gradient(values, [a])
    testing.check_second_gradient(values, [a])
    testing.check_gradient(vectors, [a])


def test_a_power_of_zero_and_empty_residuals_hang_on_their_matrix():
    a = lt.eye(2, dtype=lt.float64).mul(2).requires_grad_()
    (power,) = grad(linalg.matrix_power(a, 0).sum(), [a])
    assert (power == 0).all()
    assert linalg.lstsq(a, lt.ones(2, 1, dtype=lt.float64)).residuals.requires_grad


def test_a_0d_tensor_is_a_vector_of_one_for_vander():
    assert linalg.vander(lt.tensor(3.0), N=3).tolist() == [[1.0, 3.0, 9.0]]


def test_the_nuclear_norm_under_both_names():
    a = lt.tensor([[3.0, 0.0], [0.0, -4.0]])
    assert a.norm("nuc").item() == pytest.approx(7)
    assert lt.norm(a.expand(2, 2, 2), "nuc", dim=(1, 2)).shape == (2,)
    with pytest.raises(RuntimeError, match="'fro' or 'nuc'"):
        a.norm("two")


@pytest.mark.parametrize("dtype", [lt.float32, lt.float64, lt.complex64])
def test_slopes_of_determinants_of_all_kinds_in_one_batch(dtype):
    rng = np.random.default_rng(2)
    m = rng.standard_normal((2, 5, 4, 4)) + (1j * rng.standard_normal((2, 5, 4, 4)))
    m[0, 1, 3] = m[0, 1, 2]  # singular
    m[0, 2, 3] = m[0, 2, 2] * (1 + 1e-7)  # nearly
    m[1, 0] = 0
    m[1, 1] *= 1e-11  # the determinant underflows in single precision, the cofactors do not
    m[1, 2] *= 1e10
    m[1, 4, 1:] = 0
    m = m if dtype.is_complex else m.real
    x = lt.tensor(m, dtype=dtype, requires_grad=True)
    lt.linalg.det(x).abs().sum()  # no warning
    g = lt.autograd.grad(lt.linalg.det(x), [x], lt.ones(2, 5, dtype=dtype))[0].numpy()
    exact = x.detach().numpy().astype(np.complex128)
    for place in np.ndindex(2, 5):
        minors = [
            [
                (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(exact[place], i, 0), j, 1))
                for j in range(4)
            ]
            for i in range(4)
        ]
        expected = np.conj(minors)
        atol = 2e-5 if dtype is not lt.float64 else 1e-11
        size = np.abs(exact[place]).max() ** 3
        np.testing.assert_allclose(g[place], expected, rtol=0, atol=atol * size)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize(("count", "n", "k"), [(16, 1, 3), (700, 4, 5), (40, 10, 1), (33, 11, 2)])
def test_stacks_of_small_triangles_are_solved_as_each_alone(count, n, k, unit, upper):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((count, n, n)) / n + 2 * np.eye(n)  # the other triangle is not read
    b = rng.standard_normal((count, n, k))
    found = lt.linalg.solve_triangular(
        lt.tensor(a), lt.tensor(b), upper=upper, unitriangular=unit
    ).numpy()
    t = (np.triu if upper else np.tril)(a, 1 if unit and upper else -1 if unit else 0)
    np.testing.assert_allclose((t + unit * np.eye(n)) @ found, b, rtol=1e-11, atol=1e-12)
    one = lt.linalg.solve_triangular(
        lt.tensor(a[5]), lt.tensor(b[5]), upper=upper, unitriangular=unit
    )
    np.testing.assert_allclose(one.numpy(), found[5], rtol=1e-12, atol=1e-13)
    left = lt.linalg.solve_triangular(
        lt.tensor(a), lt.tensor(b).mT, upper=not upper, unitriangular=unit, left=False
    )
    np.testing.assert_allclose(
        left.numpy() @ (np.triu if not upper else np.tril)(a, 0 if not unit else -1 if upper else 1)
        + unit * left.numpy(),
        b.swapaxes(1, 2),
        rtol=1e-11,
        atol=1e-12,
    )


def test_a_zero_on_a_small_diagonal_spoils_its_own_system_only():
    a = np.tile(np.eye(3), (20, 1, 1))
    a[7, 1, 1] = 0
    x = lt.linalg.solve_triangular(lt.tensor(a), lt.ones(20, 3, 1, dtype=lt.float64), upper=True)
    assert np.isfinite(x.numpy()).all((1, 2)).tolist() == [k != 7 for k in range(20)]


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [lt.float32, lt.float64])
@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.compiled
def test_large_stacks_of_small_matrices_are_eliminated_as_by_numpy(n, dtype):
    count = (1 << 14) // (n * n) + 3
    rng = np.random.default_rng(n)
    a = rng.standard_normal((2, count, n, n))
    a += 2 * np.sign(a[..., :1, :1]) * np.eye(n)[::-1]  # the largest pivots are elsewhere
    b = rng.standard_normal((2, count, n, 2))
    x, y = lt.tensor(a, dtype=dtype), lt.tensor(b, dtype=dtype)
    a, b = (v.double().numpy() for v in (x, y))
    slack = 1e-3 if dtype is lt.float32 else 1e-9
    condition = np.linalg.cond(a)[..., None, None] * slack / 100
    for found, expected in (
        (linalg.inv(x), np.linalg.inv(a)),
        (linalg.inv(x.mT), np.linalg.inv(a.swapaxes(-1, -2))),
        (linalg.solve(x, y), np.linalg.solve(a, b)),
        (linalg.solve(x.mT, y[..., :1]), np.linalg.solve(a.swapaxes(-1, -2), b[..., :1])),
    ):
        assert found.dtype is dtype
        size = np.abs(expected).max((-1, -2), keepdims=True)
        assert (np.abs(found.numpy() - expected) <= condition * size).all()
    det = linalg.det(x).numpy()
    np.testing.assert_allclose(det, np.linalg.det(a), rtol=slack, atol=slack)


@pytest.mark.deep
def test_a_singular_matrix_in_a_large_stack_is_named_and_spoils_nothing_else():
    a = np.tile(2 * np.eye(3), (2000, 1, 1))
    a[7] = [[1, 2, 3], [2, 4, 6], [1, 0, 0]]
    a[9] = 0
    a[11, 0, 0] = np.nan
    x = lt.tensor(a)
    inverse, info = linalg.inv_ex(x)
    assert {k: v for k, v in enumerate(info.tolist()) if v} == {7: 3, 9: 1}
    bad = np.isnan(inverse.numpy()).any((1, 2))
    assert np.flatnonzero(bad).tolist() == [7, 9, 11]
    result, info = linalg.solve_ex(x, lt.ones(2000, 3, 1, dtype=lt.float64))
    assert info.nonzero().flatten().tolist() == [7, 9]
    assert result[8].flatten().tolist() == [0.5] * 3
    assert linalg.det(x)[[7, 8, 9]].tolist() == [0, 8, 0]
    with pytest.raises(lt.linalg.LinAlgError, match=r"\(Batch element 7\): The diagonal element 3"):
        linalg.inv(x)
    with pytest.raises(lt.linalg.LinAlgError, match=r"\(Batch element 7\): The solver failed"):
        linalg.solve(x, x)
    one = lt.tensor(a[8])
    assert linalg.solve(x[12:], one).shape == (1988, 3, 3)  # one right-hand side for all


@pytest.mark.parametrize("function", [lambda a: linalg.solve(a, a[:, :, :2] ** 2), linalg.det])
def test_slopes_of_large_stacks_of_small_matrices(function):
    x = lt.tensor(np.random.default_rng(4).standard_normal((2100, 3, 3)), requires_grad=True)
    few = [0, 1000, 2099]
    found = grad(function(x).sum(), [x])[0][few]
    a = x.detach()[few].requires_grad_()
    expected = grad(function(a).sum(), [a])[0]  # which LAPACK computes
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(3, 4000), (4000, 3)])
def test_the_gradient_of_pinv_makes_no_square_of_the_long_side(shape):
    x = lt.tensor(np.random.default_rng(0).standard_normal(shape), requires_grad=True)
    before = lt.memory_allocated("cpu")
    lt.reset_peak_memory_stats("cpu")
    linalg.pinv(x).sum().backward()
    assert lt.max_memory_allocated("cpu") - before < 20 * x.nbytes


def test_combinations_are_those_of_itertools():
    for n in (0, 1, 2, 5):
        for r in (1, 2, 3):
            for name in ("combinations", "combinations_with_replacement"):
                expected = [list(c) for c in getattr(itertools, name)(range(n), r)]
                found = lt.combinations(lt.arange(n), r, name.endswith("replacement"))
                assert found.shape == (len(expected), r)
                assert found.tolist() == expected


@pytest.mark.parametrize("shape", [(3, 3), (4, 3, 3), (40, 40), (3000, 2, 2)])
@pytest.mark.parametrize("number", [lt.nan, lt.inf])
def test_a_determinant_that_is_not_finite_has_such_gradients(shape, number):
    x = lt.randn(shape, dtype=lt.float64)
    x.view(-1)[1] = number
    x.requires_grad_()
    (first,) = lt.autograd.grad(lt.linalg.det(x).sum(), x, create_graph=True)
    (second,) = lt.autograd.grad(first.sum(), x)
    for found in (first, second):
        rows = found.reshape(-1, shape[-1] ** 2).isfinite().all(1)
        assert not rows[0]
        assert rows[1:].all()


@pytest.mark.parametrize(("size", "number"), [(3, lt.nan), (40, lt.nan), (40, lt.inf)])
def test_singular_values_of_numbers_that_are_not_finite_are_refused(size, number):
    x = lt.eye(size, dtype=lt.float64)
    x[0, 1] = number
    for function in (lt.linalg.svdvals, lt.linalg.svd, lt.linalg.matrix_rank, lt.linalg.pinv):
        with pytest.raises(lt.linalg.LinAlgError, match="non-finite"):
            function(x)


@pytest.mark.parametrize("dtype", [lt.float32, lt.complex128])
@pytest.mark.parametrize("place", [0, 1, 40, 777])
def test_systems_of_matrices_with_infinity_have_no_finite_solution(dtype, place):
    x = lt.randn(3, 40, 40, dtype=dtype) + 9 * lt.eye(40)
    x[1].view(-1)[place] = lt.inf
    for found in (lt.linalg.inv(x), lt.linalg.solve(x, lt.ones(40, 2, dtype=dtype))):
        assert found.isfinite().all((1, 2)).tolist() == [True, False, True]


def test_a_chain_of_products_is_let_go_without_the_collector(leak_check):
    x = lt.randn(3, 4)
    lt.linalg.multi_dot([x, x.mT, x])
