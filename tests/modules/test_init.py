"""Initial values: their distributions, what is exact about them, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices import backend
from lowtide.nn import init

N = 20_000
STDS = 5.0  # how far a statistic of N draws may be off, in its own standard deviations


def drawn(fill, *shape: int, **kwargs) -> np.ndarray:
    t = nn.Parameter(lt.full(shape, float("nan")))
    assert fill(t, **kwargs) is t
    assert t.requires_grad
    assert t.grad_fn is None
    return t.detach().numpy().astype(float)


def uniform_bound(values: np.ndarray, bound: float) -> None:
    """The values look drawn uniformly from [-bound, bound)."""
    assert np.abs(values).max() <= bound
    assert stats.kstest(values.ravel(), stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-4


def normal_std(values: np.ndarray, std: float) -> None:
    assert stats.kstest(values.ravel(), stats.norm(0, std).cdf).pvalue > 1e-4


# Distributions


def test_uniform_and_normal():
    x = drawn(init.uniform_, N, a=-1.0, b=3.0)
    assert stats.kstest(x, stats.uniform(-1, 4).cdf).pvalue > 1e-4
    x = drawn(init.normal_, N, mean=2.0, std=3.0)
    assert stats.kstest(x, stats.norm(2, 3).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    ("mean", "std", "a", "b"), [(0, 1, -2, 2), (1, 2, 0, 1.5), (0, 0.02, -2, 2), (3, 1, -1, 2.5)]
)
def test_truncated_normal(mean, std, a, b):
    x = drawn(init.trunc_normal_, N, mean=mean, std=std, a=a, b=b)
    assert a <= x.min()
    assert x.max() <= b
    law = stats.truncnorm((a - mean) / std, (b - mean) / std, mean, std)
    assert stats.kstest(x, law.cdf).pvalue > 1e-4


def test_a_mean_far_from_the_range_warns():
    with pytest.warns(UserWarning, match="mean is more than 2 std"):
        init.trunc_normal_(lt.empty(3), mean=9.0)


# Bounds from the formulas of Glorot and He, by hand: fan_in = 20 * 9, fan_out = 50 * 9.
SHAPE = (50, 20, 3, 3)


@pytest.mark.parametrize(
    ("fill", "kwargs", "bound"),
    [
        (init.xavier_uniform_, {}, math.sqrt(6 / 630)),
        (init.xavier_uniform_, {"gain": 2.0}, 2 * math.sqrt(6 / 630)),
        (init.kaiming_uniform_, {}, math.sqrt(6 / 180)),
        (init.kaiming_uniform_, {"a": math.sqrt(5)}, math.sqrt(1 / 180)),
        (init.kaiming_uniform_, {"mode": "fan_out"}, math.sqrt(6 / 450)),
        (init.kaiming_uniform_, {"nonlinearity": "tanh"}, 5 / 3 * math.sqrt(3 / 180)),
    ],
)
def test_uniform_bounds(fill, kwargs, bound):
    uniform_bound(drawn(fill, *SHAPE, **kwargs), bound)


@pytest.mark.parametrize(
    ("fill", "kwargs", "std"),
    [
        (init.xavier_normal_, {}, math.sqrt(2 / 630)),
        (init.xavier_normal_, {"gain": 3.0}, 3 * math.sqrt(2 / 630)),
        (init.kaiming_normal_, {}, math.sqrt(2 / 180)),
        (init.kaiming_normal_, {"mode": "fan_out", "nonlinearity": "relu"}, math.sqrt(2 / 450)),
    ],
)
def test_normal_deviations(fill, kwargs, std):
    normal_std(drawn(fill, *SHAPE, **kwargs), std)


@pytest.mark.parametrize("shape", [(4, 4), (7, 3), (3, 7), (4, 2, 3), (2, 3, 2)])
@pytest.mark.parametrize("dtype", [lt.float64, lt.float16])
def test_orthogonal_rows_or_columns(shape, dtype):
    w = init.orthogonal_(lt.empty(*shape, dtype=dtype), gain=2.0)
    m = w.double().reshape(shape[0], -1)
    m = m if m.shape[0] <= m.shape[1] else m.mT
    error = (m @ m.mT - 4 * lt.eye(m.shape[0], dtype=lt.float64)).abs().max().item()
    assert error < (1e-12 if dtype is lt.float64 else 0.05)


def test_orthogonal_matrices_are_drawn_uniformly():
    # Uniform on the circle: the first column of a 2 x 2 rotation or reflection.
    angles = []
    for _ in range(400):
        w = init.orthogonal_(lt.empty(2, 2))
        angles.append(math.atan2(w[1, 0].item(), w[0, 0].item()))
    assert stats.kstest(angles, stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 1e-4


def test_sparse_columns_have_the_asked_zeros():
    x = drawn(init.sparse_, 500, 20, sparsity=0.305, std=0.1)
    assert (x == 0).sum(axis=0).tolist() == [math.ceil(0.305 * 500)] * 20
    normal_std(x[x != 0], 0.1)
    assert len({tuple(np.flatnonzero(c)) for c in x.T}) > 1


@pytest.mark.parametrize(
    "fill",
    [
        init.uniform_,
        init.normal_,
        init.trunc_normal_,
        init.xavier_uniform_,
        init.xavier_normal_,
        init.kaiming_uniform_,
        init.kaiming_normal_,
        init.orthogonal_,
        lambda t, generator: init.sparse_(t, 0.3, generator=generator),
    ],
)
def test_a_generator_decides_and_the_default_one_stays(fill):
    offset = lt.default_generator.get_offset()
    first, again, other = (
        fill(lt.empty(4, 4), generator=lt.Generator().manual_seed(seed)).tolist()
        for seed in (3, 3, 4)
    )
    assert first == again
    assert first != other
    assert lt.default_generator.get_offset() == offset


# Exact values


def test_constants():
    assert drawn(init.constant_, 2, 2, val=3.5).tolist() == [[3.5, 3.5]] * 2
    assert drawn(init.zeros_, 2).tolist() == [0.0, 0.0]
    assert drawn(init.ones_, 2).tolist() == [1.0, 1.0]
    assert drawn(init.eye_, 2, 3).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_dirac_passes_channels_unchanged(dims, groups):
    w = init.dirac_(lt.empty(6, 3, *[3] * dims), groups=groups)
    x = lt.randn(2, 3 * groups, *[5] * dims)
    conv = getattr(nn.functional, f"conv{dims}d")
    y = conv(x, w, padding=1, groups=groups)
    kept = 6 // groups
    for g in range(groups):
        inside, outside = x[:, 3 * g : 3 * g + 3], y[:, kept * g : kept * (g + 1)]
        assert lt.equal(outside[:, : min(3, kept)], inside[:, : min(3, kept)])
        assert not outside[:, 3:].any()


def test_gains_of_the_table():
    assert init.calculate_gain("relu") == math.sqrt(2)
    assert init.calculate_gain("leaky_relu") == math.sqrt(2 / (1 + 0.01**2))
    assert init.calculate_gain("leaky_relu", 1) == 1.0
    assert init.calculate_gain("tanh") == 5 / 3
    assert init.calculate_gain("selu") == 0.75
    assert {init.calculate_gain(n) for n in ("linear", "sigmoid", "conv_transpose2d")} == {1.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: init.calculate_gain("swish"), "Unsupported nonlinearity swish"),
        (lambda: init.calculate_gain("leaky_relu", True), "not a valid number"),
        (lambda: init.xavier_uniform_(lt.ones(3)), "fewer than 2 dimensions"),
        (lambda: init.kaiming_normal_(lt.ones(3, 3), mode="fan"), "Mode fan not supported"),
        (lambda: init.orthogonal_(lt.ones(3)), "2 or more dimensions"),
        (lambda: init.eye_(lt.ones(3)), "2 dimensions"),
        (lambda: init.sparse_(lt.ones(3), 0.1), "2 dimensions"),
        (lambda: init.dirac_(lt.ones(3, 3)), "3, 4, or 5 dimensions"),
        (lambda: init.dirac_(lt.ones(3, 3, 3), groups=2), "divisible by groups"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Bytes


def every_fill(t: lt.Tensor) -> None:
    for fill in (
        init.uniform_,
        init.normal_,
        init.trunc_normal_,
        init.zeros_,
        init.ones_,
        init.eye_,
        init.xavier_uniform_,
        init.xavier_normal_,
        init.kaiming_uniform_,
        init.kaiming_normal_,
        init.orthogonal_,
    ):
        fill(t)
    init.constant_(t, 2.0)
    init.sparse_(t, 0.5)
    init.dirac_(t.view(4, 250, 1000))


def test_on_meta_nothing_is_allocated_and_nothing_drawn():
    t = lt.empty(1000, 1000, device="meta")
    before = [
        (b.ledger.live, b.ledger.allocations) for b in map(backend, (lt.device("cpu"), t.device))
    ]
    offset = lt.default_generator.get_offset()
    every_fill(t)
    after = [
        (b.ledger.live, b.ledger.allocations) for b in map(backend, (lt.device("cpu"), t.device))
    ]
    assert after == before
    assert lt.default_generator.get_offset() == offset


@pytest.mark.parametrize(
    "fill", [init.uniform_, init.normal_, init.trunc_normal_, init.kaiming_uniform_, init.eye_]
)
def test_filling_needs_no_temporary(fill):
    t = lt.empty(256, 256)
    fill(t)
    ledger = backend(t.device).ledger
    ledger.reset_peak()
    live = ledger.live
    fill(t)
    assert ledger.peak == live
