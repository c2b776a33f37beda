"""Linear algebra against PyTorch: values, dtypes, gradients, second gradients, errors."""

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")

from tests.parity.comparing import compare  # noqa: E402  # it imports torch

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:torch.* is deprecated in favor of:UserWarning"),
]
inf = float("inf")


def numbers(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def matrices(*shape, seed=0):
    """Well conditioned, with singular values and eigenvalues far apart."""
    n = min(shape[-2:])
    spread = np.zeros(shape[-2:])
    spread[range(n), range(n)] = 2 + 1.5 * np.arange(n)
    return 0.4 * numbers(shape, seed) + spread


def hermitian(a):
    return (a + a.mH) / 2


def positive(a):
    return a @ a.mH


SQUARE = {
    "inv": lambda m, a: m.linalg.inv(a),
    "inverse": lambda m, a: a.inverse(),
    "inv_ex": lambda m, a: m.linalg.inv_ex(a).inverse,
    "det": lambda m, a: m.linalg.det(a),
    "det_method": lambda m, a: a.det(),
    "slogdet": lambda m, a: m.linalg.slogdet(a).logabsdet,
    "slogdet_method": lambda m, a: a.slogdet()[1],
    "logdet": lambda m, a: m.logdet(positive(a)),
    "cholesky": lambda m, a: m.linalg.cholesky(positive(a)),
    "cholesky_upper": lambda m, a: m.linalg.cholesky(positive(a), upper=True),
    "cholesky_ex": lambda m, a: m.linalg.cholesky_ex(positive(a)).L,
    "cholesky_method": lambda m, a: positive(a).cholesky(True),
    "cholesky_inverse": lambda m, a: m.cholesky_inverse(a.tril()),
    "cholesky_inverse_upper": lambda m, a: m.cholesky_inverse(a.triu(), upper=True),
    "eigvalsh": lambda m, a: m.linalg.eigvalsh(hermitian(a)),
    "eigvalsh_upper": lambda m, a: m.linalg.eigvalsh(hermitian(a), UPLO="U"),
    "eigh_values": lambda m, a: m.linalg.eigh(hermitian(a)).eigenvalues,
    "eigh_vectors": lambda m, a: m.linalg.eigh(hermitian(a)).eigenvectors.abs().square(),
    "eig_values": lambda m, a: m.linalg.eig(a).eigenvalues.abs().sum(-1),
    "eig_vectors": lambda m, a: m.linalg.eig(a).eigenvectors.abs().square().sum(-1),
    "eigvals": lambda m, a: m.linalg.eigvals(a).real.square().sum(-1),
    "matrix_exp": lambda m, a: m.linalg.matrix_exp(a * 0.3),
    "matrix_exp_method": lambda m, a: a.matrix_exp() * 1e-2,
    "power_0": lambda m, a: m.linalg.matrix_power(a, 0) + 0 * a,
    "power_1": lambda m, a: m.matrix_power(a, 1),
    "power_5": lambda m, a: a.matrix_power(5) * 1e-3,
    "power_-3": lambda m, a: m.linalg.matrix_power(a, -3),
    "pinv_hermitian": lambda m, a: m.linalg.pinv(hermitian(a), hermitian=True),
    "lu_solve": lambda m, a: m.linalg.lu_solve(*m.linalg.lu_factor(a), a),
    "lu_solve_square": lambda m, a: m.linalg.lu_solve(*m.linalg.lu_factor(a), a @ a),
    "lu_solve_adjoint": lambda m, a: m.linalg.lu_solve(*m.linalg.lu_factor(a), a @ a, adjoint=True),
    "lu_solve_right": lambda m, a: m.linalg.lu_solve(*m.linalg.lu_factor(a), a @ a, left=False),
    "vecdot": lambda m, a: m.linalg.vecdot(a, a * a),
}


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (2, 1, 2, 2)], ids=str)
@pytest.mark.parametrize("name", SQUARE)
def test_functions_of_square_matrices_match(name, shape):
    compare(SQUARE[name], matrices(*shape))


ANY = {
    "qr_q": lambda m, a: m.linalg.qr(a).Q,
    "qr_r": lambda m, a: m.linalg.qr(a).R,
    "qr_old": lambda m, a: a.qr()[0] @ a.qr()[1] * 2,
    "svd_values": lambda m, a: m.linalg.svd(a, full_matrices=False).S,
    "svd_u": lambda m, a: m.linalg.svd(a, full_matrices=False).U.square(),
    "svd_v": lambda m, a: m.linalg.svd(a, full_matrices=False).Vh.square(),
    "svd_old": lambda m, a: a.svd()[2].square(),
    "svd_full": lambda m, a: m.linalg.svd(a)[1],
    "svdvals": lambda m, a: m.linalg.svdvals(a),
    "pinv": lambda m, a: m.linalg.pinv(a),
    "pinv_rtol": lambda m, a: m.linalg.pinv(a, rtol=0.5),
    "pinverse": lambda m, a: a.pinverse(),
    "cond": lambda m, a: m.linalg.cond(a),
    "cond_-2": lambda m, a: m.linalg.cond(a, -2),
    "lu_l": lambda m, a: m.linalg.lu(a).L,
    "lu_u": lambda m, a: m.linalg.lu(a).U,
    "lu_product": lambda m, a: m.linalg.lu(a)[0] @ m.linalg.lu(a)[1],
    "lu_factor": lambda m, a: m.linalg.lu_factor(a).LU,
    "diagonal": lambda m, a: m.linalg.diagonal(a, offset=1),
    "vander": lambda m, a: m.linalg.vander(a, N=4),
    **{
        f"matrix_norm_{p}": lambda m, a, p=p: m.linalg.matrix_norm(a, p)
        for p in ("fro", "nuc", 1, -1, 2, -2, inf, -inf)
    },
    **{
        f"vector_norm_{p}": lambda m, a, p=p: m.linalg.vector_norm(a, p, -1)
        for p in (1, 2, 3, 0.5, -1, -2.5, inf, -inf)
    },
    "norm": lambda m, a: m.linalg.norm(a),
    "norm_dim": lambda m, a: m.linalg.norm(a, dim=(-1, 0)),
    "norm_keep": lambda m, a: m.linalg.norm(a, "nuc", (0, -1), True),
    "norm_1d": lambda m, a: m.linalg.norm(a, 3, 0, True),
    "norm_row": lambda m, a: m.linalg.matrix_norm(a, 1, (-1, -2), True),
    "norm_old": lambda m, a: a.norm(3),
    "dist": lambda m, a: m.dist(a, a * a, 3) if hasattr(m, "dist") else (a - a * a).norm(3),
}


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("name", ANY)
def test_functions_of_any_matrices_match(name, shape):
    compare(ANY[name], matrices(*shape))


PAIRS = {
    "solve": (lambda m, a, b: m.linalg.solve(a, b), (3, 3), (3, 2)),
    "solve_vector": (lambda m, a, b: m.linalg.solve(a, b), (3, 3), (3,)),
    "solve_vectors": (lambda m, a, b: m.linalg.solve(a, b), (2, 3, 3), (2, 3)),
    "solve_broadcast": (lambda m, a, b: m.linalg.solve(a, b), (2, 1, 3, 3), (4, 3, 2)),
    "solve_right": (lambda m, a, b: m.linalg.solve(a, b, left=False), (3, 3), (2, 3)),
    "solve_ex": (lambda m, a, b: m.linalg.solve_ex(a, b).result, (2, 3, 3), (2, 3, 1)),
    "triangular": (
        lambda m, a, b: m.linalg.solve_triangular(a, b, upper=True), (2, 3, 3), (3, 2),
    ),
    "triangular_lower": (
        lambda m, a, b: m.linalg.solve_triangular(a, b, upper=False), (3, 3), (2, 3, 2),
    ),
    "triangular_unit": (
        lambda m, a, b: m.linalg.solve_triangular(a, b, upper=True, unitriangular=True),
        (3, 3), (3, 2),
    ),
    "triangular_right": (
        lambda m, a, b: m.linalg.solve_triangular(a, b, upper=True, left=False), (3, 3), (2, 3),
    ),
    "triangular_old": (
        lambda m, a, b: m.triangular_solve(b, a, transpose=True)[0], (3, 3), (3, 2),
    ),
    "cholesky_solve": (lambda m, a, b: m.cholesky_solve(b, a.tril()), (3, 3), (3, 2)),
    "cholesky_solve_upper": (lambda m, a, b: b.cholesky_solve(a.triu(), True), (3, 3), (3, 2)),
    "lstsq_tall": (lambda m, a, b: m.linalg.lstsq(a, b).solution, (4, 2), (4, 3)),
    "lstsq_wide": (lambda m, a, b: m.linalg.lstsq(a, b).solution, (2, 3), (2, 1)),
    "lstsq_batch": (lambda m, a, b: m.linalg.lstsq(a, b)[0], (2, 4, 2), (2, 4, 1)),
    "lstsq_vectors": (lambda m, a, b: m.linalg.lstsq(a, b)[0], (2, 4, 2), (2, 4)),
    "cross": (lambda m, a, b: m.linalg.cross(a, b), (4, 3), (1, 3)),
    "cross_dim": (lambda m, a, b: m.cross(a, b, dim=0), (3, 4), (3, 4)),
    "cross_method": (lambda m, a, b: a.cross(b, 1), (2, 3, 1), (2, 3, 4)),
    "multi_dot": (lambda m, a, b: m.linalg.multi_dot([a, b, b.mT, a[0]]), (3, 3), (3, 4)),
    "multi_dot_vector": (lambda m, a, b: m.linalg.multi_dot([a[0], b, b[0]]), (3, 3), (3, 4)),
    "vecdot": (lambda m, a, b: m.linalg.vecdot(a, b, dim=0), (3, 4), (3, 1)),
    "tensorsolve": (
        lambda m, a, b: m.linalg.tensorsolve(a.reshape(2, 3, 6), b), (6, 6), (2, 3),
    ),
    "tensorsolve_dims": (
        lambda m, a, b: m.linalg.tensorsolve(a.reshape(2, 6, 3), b, dims=(1,)), (6, 6), (2, 3),
    ),
    "tensorinv": (
        lambda m, a, b: m.linalg.tensorinv(a.reshape(2, 3, 6)) @ b, (6, 6), (3, 2),
    ),
    "matmul": (lambda m, a, b: m.linalg.matmul(a, b), (3, 4), (4, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_a_matrix_and_another_match(name):
    function, a, b = PAIRS[name]
    compare(function, matrices(*a), numbers(b, 3))


COMPLEX = {
    "inv": lambda m, a: m.linalg.inv(a).abs(),
    "solve": lambda m, a: m.linalg.solve(a, a @ a[..., :1]).real,
    "det": lambda m, a: m.linalg.det(a).imag,
    "logabsdet": lambda m, a: m.linalg.slogdet(a)[1],
    "sign": lambda m, a: m.linalg.slogdet(a)[0].imag,
    "cholesky": lambda m, a: m.linalg.cholesky(a @ a.mH).imag,
    "eigvalsh": lambda m, a: m.linalg.eigvalsh(hermitian(a)),
    "eigh": lambda m, a: m.linalg.eigh(hermitian(a))[1].abs(),
    "eig": lambda m, a: m.linalg.eig(a)[1].abs(),
    "eigvals": lambda m, a: m.linalg.eigvals(a).imag.square().sum(-1),
    "svdvals": lambda m, a: m.linalg.svdvals(a),
    "svd_u": lambda m, a: m.linalg.svd(a, full_matrices=False)[0].abs(),
    "svd_product": lambda m, a: (lambda u, s, v: u @ v)(*m.linalg.svd(a, full_matrices=False)).imag,
    "qr": lambda m, a: m.linalg.qr(a)[0].abs(),
    "matrix_exp": lambda m, a: m.linalg.matrix_exp(a * 0.2).real,
    "pinv": lambda m, a: m.linalg.pinv(a).imag,
    "triangular": lambda m, a: m.linalg.solve_triangular(a, a.mT, upper=True).real,
    "vecdot": lambda m, a: m.linalg.vecdot(a, a * a).real,
}


@pytest.mark.parametrize("name", COMPLEX)
def test_functions_of_complex_matrices_match(name):
    compare(COMPLEX[name], matrices(2, 3, 3) + 1j * 0.4 * numbers((2, 3, 3), 5))


def test_the_gradient_of_the_determinant_of_a_singular_matrix_matches():
    a = numbers((3, 3))
    a[2] = a[0] - a[1]
    x, y = lt.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    (lt.linalg.det(x) + 0).backward()
    torch.linalg.det(y).backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("p", [None, 1, -1, 2, -2, inf, -inf, "fro", "nuc"])
def test_condition_numbers_match(p):  # PyTorch's have no gradient for most orders
    a = matrices(2, 3, 3)
    a[1, 2] = 0
    ours, theirs = lt.linalg.cond(lt.tensor(a), p), torch.linalg.cond(torch.tensor(a), p)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(1 / ours.numpy(), 1 / theirs.numpy(), rtol=1e-7, atol=1e-12)


def test_counts_of_nonzeros_match():
    a = numbers((3, 4)) * [0, 1, 0, 2]
    ours = lt.linalg.vector_norm(lt.tensor(a), 0, 1)
    theirs = torch.linalg.vector_norm(torch.tensor(a), 0, 1)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_ranks_match():
    a = numbers((2, 4, 2)) @ numbers((2, 2, 3), 1)
    for m_options in ({}, {"rtol": 0.9}, {"atol": 1.0}, {"tol": 1e3}):
        ours = lt.linalg.matrix_rank(lt.tensor(a), **m_options)
        theirs = torch.linalg.matrix_rank(torch.tensor(a), **m_options)
        assert ours.dtype is lt.int64
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
@pytest.mark.parametrize("shape", [(4, 2), (2, 3), (2, 5, 3)], ids=str)
def test_all_that_lstsq_returns_matches(driver, shape):
    a, b = numbers(shape), numbers((*shape[:-1], 2), 1)
    ours = lt.linalg.lstsq(lt.tensor(a), lt.tensor(b), driver=driver)
    theirs = torch.linalg.lstsq(torch.tensor(a), torch.tensor(b), driver=driver)
    assert ours._fields == ("solution", "residuals", "rank", "singular_values")
    for x, y in zip(ours, theirs, strict=True):
        assert tuple(x.shape) == tuple(y.shape)
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-6, atol=1e-9)


def test_info_matches_where_a_computation_fails():
    a = np.stack([np.eye(3), np.diag([1.0, 0.0, 2.0]), np.zeros((3, 3))])
    x, y = lt.tensor(a), torch.tensor(a)
    for f in (
        lambda m, a: m.linalg.inv_ex(a).info,
        lambda m, a: m.linalg.solve_ex(a, a[:, :, :1]).info,
        lambda m, a: m.linalg.cholesky_ex(a).info,
        lambda m, a: m.linalg.lu_factor_ex(a).info,
        lambda m, a: m.linalg.lu_factor_ex(a).pivots,
    ):
        ours, theirs = f(lt, x), f(torch, y)
        assert ours.dtype is lt.int32
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


WRONG = {
    "square": lambda m, x: m.linalg.inv(x),
    "vector": lambda m, x: m.linalg.inv(x[0]),
    "singular": lambda m, x: m.linalg.inv(x[:, :3] * 0),
    "integers": lambda m, x: m.linalg.inv(x[:, :3].long()),
    "solve": lambda m, x: m.linalg.solve(x[:, :3] * 0, x),
    "sizes": lambda m, x: m.linalg.solve(x[:, :3], x.mT),
    "cholesky": lambda m, x: m.linalg.cholesky(-x[:, :3]),
    "qr_mode": lambda m, x: m.linalg.qr(x, "full"),
    "order": lambda m, x: m.linalg.matrix_norm(x, 3),
    "norm_vector": lambda m, x: m.linalg.norm(x[0], "nuc"),
    "norm_dims": lambda m, x: m.linalg.matrix_norm(x, dim=(1, 1)),
    "det": lambda m, x: m.det(x),
    "eig": lambda m, x: m.linalg.eig(x),
    "cross": lambda m, x: m.linalg.cross(x, x),
    "multi_dot": lambda m, x: m.linalg.multi_dot([x]),
    "empty": lambda m, x: m.linalg.vector_norm(x[:0], inf),
    "uplo": lambda m, x: m.linalg.eigh(x[:, :3], "X"),
    "lu": lambda m, x: m.linalg.lu_factor(x[:, :3] * 0),
    "lstsq": lambda m, x: m.linalg.lstsq(x, x.mT),
    "driver": lambda m, x: m.linalg.lstsq(x, x, driver="no"),
    "tensorinv": lambda m, x: m.linalg.tensorinv(x, 1),
    "power": lambda m, x: m.linalg.matrix_power(x, 2),
    "dtypes": lambda m, x: m.linalg.solve(x[:, :3].float(), x),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_raise_pytorchs_exception(name):
    with pytest.raises((RuntimeError, TypeError, IndexError)) as theirs:
        WRONG[name](torch, torch.ones((3, 4), dtype=torch.float64))
    failed = isinstance(theirs.value, torch.linalg.LinAlgError)
    with pytest.raises(lt.linalg.LinAlgError if failed else type(theirs.value)):
        WRONG[name](lt, lt.tensor(np.ones((3, 4))))
