"""Differences, integrals, patches: values, dtypes, two orders of gradient, error types."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.parity.comparing import compare, numbers, refuse_alike  # noqa: E402  # it imports torch

pytestmark = pytest.mark.parity


X, Y = numbers(4, 5), numbers(4, 5, seed=1)
ROWS, BOX = np.sort(numbers(4)), numbers(2, 3, 4)
INTS = np.arange(12).reshape(3, 4) ** 2 % 7

CALCULUS = {
    "diff": (lambda m, x: m.diff(x), X),
    "diff twice": (lambda m, x: x.diff(2, 0), X),
    "diff beyond": (lambda m, x: m.diff(x, 9), X),
    "diff zero": (lambda m, x: m.diff(x, 0), X),
    "diff beside": (lambda m, x, y: m.diff(x, dim=1, prepend=y[:, :2], append=y), X, Y),
    "diff of bool": (lambda m, x: m.diff(x > 2), INTS),
    "diff of int": (lambda m, x: m.diff(x), INTS),
    "diff of none": (lambda m, x: m.diff(x[:, :0]), X),
    "trapezoid": (lambda m, x: m.trapezoid(x), X),
    "trapezoid dx": (lambda m, x: m.trapezoid(x, dx=0.3, dim=0), X),
    "trapezoid x": (lambda m, y, x: m.trapezoid(y, x, dim=0), X, ROWS),
    "trapezoid same": (lambda m, y, x: m.trapezoid(y, x), X, Y),
    "trapezoid fewer": (lambda m, y, x: m.trapezoid(y, x), BOX, numbers(3, 4)),
    "trapezoid int": (lambda m, y: m.trapezoid(y), INTS),
    "trapezoid one": (lambda m, y: m.trapezoid(y[:, :1]), X),
    "trapezoid none": (lambda m, y: m.trapezoid(y[:, :0]), X),
    "trapz": (lambda m, y, x: m.trapz(y, x, dim=0), X, ROWS),
    "cumulative_trapezoid": (lambda m, y: m.cumulative_trapezoid(y), X),
    "cumulative_trapezoid dx": (lambda m, y: m.cumulative_trapezoid(y, dx=0.3, dim=0), X),
    "cumulative_trapezoid x": (lambda m, y, x: m.cumulative_trapezoid(y, x, dim=0), X, ROWS),
    "gradient": (lambda m, x: m.gradient(x), X),
    "gradient dim": (lambda m, x: m.gradient(x, spacing=0.5, dim=-1), X),
    "gradient dims": (lambda m, x: m.gradient(x, spacing=[0.5, 2.0], dim=(1, 0)), X),
    "gradient edges": (lambda m, x: m.gradient(x, spacing=0.5, edge_order=2), X),
    "gradient points": (lambda m, x, h: m.gradient(x, spacing=(h,), dim=0), X, ROWS),
    "gradient edges points": (
        lambda m, x, h: m.gradient(x, spacing=(h,), dim=0, edge_order=2),
        X,
        ROWS,
    ),
    "gradient int": (lambda m, x: m.gradient(x), INTS),
    "gradient box": (lambda m, x: m.gradient(x), BOX),
    "vander": (lambda m, x: m.vander(x), ROWS),
    "vander N": (lambda m, x: m.vander(x, 3, True), ROWS),
    "vander 1": (lambda m, x: m.vander(x, N=1), ROWS),
    "vander 0": (lambda m, x: m.vander(x, N=0), ROWS),
    "vander int": (lambda m, x: m.vander(x[0]), INTS.astype(np.int16)),
}
PLACES, REDUCED = np.array([2, 0, 2]), numbers(3, 5, seed=4)
PATCHING = {
    "select_scatter": (lambda m, x, y: m.select_scatter(x, y[:, 0], 1, 2), X, Y),
    "slice_scatter": (lambda m, x, y: x.slice_scatter(y[:2], 0, 1, 3), X, Y),
    "slice_scatter step": (lambda m, x, y: m.slice_scatter(x, y[:, :2], 1, 0, 4, 2), X, Y),
    "slice_scatter all": (lambda m, x, y: m.slice_scatter(x, y), X, Y),
    "diagonal_scatter": (lambda m, x, y: m.diagonal_scatter(x, y[0, :4], 1), X, Y),
    "as_strided_scatter": (
        lambda m, x, y: m.as_strided_scatter(x, y[:2, :2], (2, 2), (6, 2), 1),
        X,
        Y,
    ),
    "narrow_copy": (lambda m, x: m.narrow_copy(x, 1, 1, 3), X),
    **{
        f"index_reduce {r} {s}": (
            lambda m, x, y, i, r=r, s=s: m.index_reduce(x, 0, i, y, r, include_self=s),
            X,
            REDUCED,
            PLACES,
        )
        for r in ("prod", "mean", "amax", "amin")
        for s in (True, False)
    },
    "index_reduce_": (
        lambda m, x, y, i: x.clone().index_reduce_(0, i, y, "prod"),
        X,
        REDUCED,
        PLACES,
    ),
    "put": (lambda m, x, y, i: m.put(x, i, y[0, :3]), X, Y, np.array([3, -1, 7])),
    "put add": (lambda m, x, y, i: m.put(x, i, y[0, :3], True), X, Y, np.array([3, 3, 7])),
    "put_": (lambda m, x, y, i: x.t().clone().t().put_(i, y[0, :3]), X, Y, np.array([3, 1, 7])),
    "diagflat": (lambda m, x: m.diagflat(x, -1), X[:2, :2]),
    "fill_diagonal_": (lambda m, x: x.clone().fill_diagonal_(3.0), X),
    "fill_diagonal_ wrap": (lambda m, x: x.clone().fill_diagonal_(3.0, True), numbers(9, 3)),
    "fill_diagonal_ plain": (lambda m, x: x.clone().fill_diagonal_(3.0), numbers(9, 3)),
    "fill_diagonal_ box": (lambda m, x: x.clone().fill_diagonal_(3.0), numbers(3, 3, 3)),
    "view_as_complex": (lambda m, x: m.view_as_real(m.view_as_complex(x) * 2j), numbers(3, 2)),
    "view_as_real": (lambda m, x, y: m.view_as_real(m.complex(x, y) ** 2).square(), X, Y),
    "unsafe_split": (lambda m, x: m.unsafe_split(x, 2), X),
    "unsafe_chunk": (lambda m, x: m.unsafe_chunk(x, 2), X),
    "nonzero_static": (lambda m, x: m.nonzero_static(x, size=14, fill_value=-7), INTS),
    "nonzero_static short": (lambda m, x: x.nonzero_static(size=2), INTS),
}


@pytest.mark.parametrize("name", CALCULUS)
def test_calculus_matches(name):
    # PyTorch 2 cannot differentiate vander: it overwrites what its backward keeps.
    compare(*CALCULUS[name], order=0 if name.startswith("vander") else 2)


@pytest.mark.parametrize("name", PATCHING)
def test_patching_matches(name):
    # PyTorch's gradient of as_strided_scatter keeps what was replaced and drops the rest.
    compare(*PATCHING[name], order=0 if name == "as_strided_scatter" else 2)


WRONG = {
    "diff 0-d": lambda m: m.diff(m.tensor(1.0)),
    "diff order": lambda m: m.diff(m.ones(3), -1),
    "diff dim": lambda m: m.diff(m.ones(3), dim=1),
    "diff prepend ndim": lambda m: m.diff(m.ones(3, 2), prepend=m.ones(2)),
    "diff prepend shape": lambda m: m.diff(m.ones(3, 2), prepend=m.ones(2, 2)),
    "trapezoid bool": lambda m: m.trapezoid(m.ones(3) > 0),
    "trapezoid points": lambda m: m.trapezoid(m.ones(3), m.ones(4)),
    "gradient order": lambda m: m.gradient(m.ones(3), edge_order=3),
    "gradient short": lambda m: m.gradient(m.ones(2), edge_order=2),
    "gradient spacing": lambda m: m.gradient(m.ones(3, 3), spacing=[1.0], dim=(0, 1)),
    "gradient dims": lambda m: m.gradient(m.ones(3, 3), dim=(0, 0)),
    "vander matrix": lambda m: m.vander(m.ones(3, 3)),
    "vander N": lambda m: m.vander(m.ones(3), -1),
    "select_scatter": lambda m: m.select_scatter(m.ones(3, 3), m.ones(2), 0, 0),
    "select_scatter index": lambda m: m.select_scatter(m.ones(3, 3), m.ones(3), 0, 5),
    "slice_scatter": lambda m: m.slice_scatter(m.ones(3, 3), m.ones(2)),
    "diagonal_scatter": lambda m: m.diagonal_scatter(m.ones(3, 3), m.ones(2)),
    "index_reduce": lambda m: m.index_reduce(m.ones(3), 0, m.tensor([0]), m.ones(1), "sum"),
    "index_reduce dtype": lambda m: m.index_reduce(
        m.ones(3), 0, m.tensor([0]), m.ones(1).double(), "prod"
    ),
    "put dtype": lambda m: m.put(m.ones(3), m.tensor([0]), m.ones(1).double()),
    "put index": lambda m: m.put(m.ones(3), m.tensor([0.0]), m.ones(1)),
    "put count": lambda m: m.put(m.ones(3), m.tensor([0]), m.ones(2)),
    "put range": lambda m: m.put(m.ones(3), m.tensor([5]), m.ones(1)),
    "fill_diagonal_": lambda m: m.ones(3).fill_diagonal_(1),
    "fill_diagonal_ box": lambda m: m.ones(3, 3, 2).fill_diagonal_(1),
    "view_as_real": lambda m: m.view_as_real(m.ones(3)),
    "view_as_complex": lambda m: m.view_as_complex(m.ones(3)),
    "view_as_complex int": lambda m: m.view_as_complex(m.ones(2).long()),
    "view_as_complex stride": lambda m: m.view_as_complex(m.ones(2, 3).t()),
    "map_ grad": lambda m: m.ones(2, requires_grad=True).map_(m.ones(2), lambda a, b: a),
    "apply_ grad": lambda m: m.ones(2, requires_grad=True).apply_(lambda a: a),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_match_in_type(name):
    refuse_alike(WRONG[name])


def test_apply_and_map_match():
    def f(m, x, y):
        return x.clone().apply_(lambda a: 2 * a + 1), x.clone().map_(y, lambda a, b: a * b - 1)

    compare(f, X, Y, order=0)
