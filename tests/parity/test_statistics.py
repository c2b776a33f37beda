"""Statistics against PyTorch: values, dtypes, two orders of gradient, error types."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.parity.comparing import compare, numbers, refuse_alike  # noqa: E402  # it imports torch

pytestmark = pytest.mark.parity


X, Y = numbers(4, 5), numbers(4, 5, seed=1)
BOX, SOME = numbers(2, 3, 4), numbers(4, 5)
SOME[1, 2] = SOME[3] = np.nan
INTS = np.arange(24).reshape(4, 6) ** 2 % 5
QS = np.array([0.0, 0.3, 0.5, 1.0])
MANY, OTHERS = numbers(30, 3), numbers(4, 3, seed=1)

CASES = {
    **{
        f"{name} {way}": (
            lambda m, x, q, n=name, w=way: getattr(m, n)(x, q, 1, interpolation=w),
            x,
            QS,
        )
        for way in ("linear", "lower", "higher", "midpoint", "nearest")
        for name, x in (("quantile", X), ("nanquantile", SOME))
    },
    "quantile all": (lambda m, x: m.quantile(x, 0.3), X),
    "quantile keepdim": (lambda m, x: x.quantile(0.3, 0, True), BOX),
    "quantile all keepdim": (lambda m, x: x.quantile(0.3, keepdim=True), BOX),
    "quantile several keepdim": (lambda m, x, q: x.quantile(q, -2, True), BOX, QS),
    "quantile nan": (lambda m, x: m.quantile(x, 0.3, 1), SOME),
    "quantile 0-d": (lambda m, x: m.quantile(x, 0.3, 0), np.array(2.0)),
    "quantile 0-d kept": (lambda m, x: m.quantile(x, 0.3, 0, True), np.array(2.0)),
    "quantile float32": (lambda m, x: m.quantile(x.float(), 0.3, 1), X),
    "nanquantile all": (lambda m, x: m.nanquantile(x, 0.6), SOME),
    "nanmedian": (lambda m, x: m.nanmedian(x), SOME),
    "nanmedian dim": (lambda m, x: m.nanmedian(x, 0), SOME),
    "nanmedian nothing": (lambda m, x: m.nanmedian(x, 1, True)[0], SOME),
    "nanmedian int": (lambda m, x: m.nanmedian(x, 0)[0], INTS),
    "nanmedian 0-d": (lambda m, x: m.nanmedian(x, 0), np.array(2.0)),
    "mode": (lambda m, x: m.mode(x), INTS),
    "mode dim": (lambda m, x: m.mode(x, 0, True), INTS),
    "mode values": (lambda m, x: m.mode(m.round(x), 0), X),
    "mode one": (lambda m, x: m.mode(x[:, :1]), INTS),
    "mode 0-d": (lambda m, x: m.mode(x), np.array(2.0)),
    "mode bool": (lambda m, x: m.mode(x > 1)[0], INTS),
    "histc": (lambda m, x: m.histc(x, 5), X),
    "histc range": (lambda m, x: m.histc(x, 4, -1, 1), X),
    "histc constant": (lambda m, x: m.histc(x * 0, 4), X),
    "histc none": (lambda m, x: m.histc(x[:0], 4), X),
    "histc ends": (lambda m, x: m.histc(x, 4, 0, 4), np.arange(7.0)),
    "histogram": (lambda m, x: m.histogram(x, 5), X),
    "histogram edges": (lambda m, x, e: m.histogram(x, e), X, np.array([-1.0, 0, 0.1, 2])),
    "histogram range": (lambda m, x: m.histogram(x, 4, range=(-1.0, 1.0)), X),
    "histogram weight": (lambda m, x, y: m.histogram(x, 4, weight=y), X, Y),
    "histogram density": (lambda m, x: x.histogram(4, density=True), X),
    "histogram constant": (lambda m, x: m.histogram(x * 0, 4), X),
    "histogram ends": (lambda m, x: m.histogram(x, 4, range=(0.0, 4.0)), np.arange(7.0)),
    "cov": (lambda m, x: m.cov(x), X),
    "cov vector": (lambda m, x: m.cov(x[0]), X),
    "cov correction": (lambda m, x: x.cov(correction=0), X),
    "cov weights": (
        lambda m, x, f, a: m.cov(x, fweights=f, aweights=a.abs()),
        X,
        np.array([1, 2, 0, 3, 1]),
        Y[0],
    ),
    "cov fweights": (lambda m, x, f: m.cov(x, fweights=f), X, np.array([1, 2, 0, 3, 1])),
    "cov aweights": (lambda m, x, a: m.cov(x, aweights=a * a), X, Y[0]),
    "cov int": (lambda m, x: m.cov(x), INTS),
    "corrcoef": (lambda m, x: m.corrcoef(x), X),
    "corrcoef vector": (lambda m, x: m.corrcoef(x[0]), X),
    **{f"dist {p}": (lambda m, x, y, p=p: m.dist(x, y, p), X, Y) for p in (0, 1, 2, 3, np.inf)},
    **{f"renorm {p}": (lambda m, x, p=p: m.renorm(x, p, 0, 2.0), X) for p in (1, 2, 3)},
    "renorm box": (lambda m, x: x.renorm(2, 1, 1.5), BOX),
    "renorm_": (lambda m, x: x.clone().renorm_(2, -1, 0.5), BOX),
    **{
        f"cdist {p}": (lambda m, x, y, p=p: m.cdist(x[:5], y, p), MANY, OTHERS)
        for p in (0.0, 1.0, 2.0, 3.0, np.inf)
    },
    "cdist batches": (lambda m, x, y: m.cdist(x, y), BOX, numbers(1, 5, 4)),
    "pdist": (lambda m, x: m.pdist(x), MANY[:5]),
    "pdist 1": (lambda m, x: m.pdist(x, 1), MANY[:5]),
    "combinations": (lambda m, x: m.combinations(x, 3), X[0]),
    "combinations again": (lambda m, x: m.combinations(x, with_replacement=True), X[0]),
    "combinations 0": (lambda m, x: m.combinations(x, 0), X[0]),
    "combinations too few": (lambda m, x: m.combinations(x[:1], 2), X[0]),
    "isin": (lambda m, x, y: m.isin(x, y), INTS, np.array([4, 1])),
    "isin not": (lambda m, x, y: m.isin(x, y, invert=True), INTS, np.array([4.0, 1.5])),
    "isin number": (lambda m, x: m.isin(x, 4), INTS),
    "isin of number": (lambda m, x: m.isin(4, x), INTS),
    "isin nan": (lambda m, x: m.isin(x, x), SOME),
    "isin none": (lambda m, x: m.isin(x, x[:0]), INTS),
    "unravel_index": (lambda m, x: m.unravel_index(x, (2, 3)), INTS),
    "unravel_index int": (lambda m, x: m.unravel_index(x, 5), INTS),
}
# PyTorch has no second gradient, or none at all, through these.
FIRST = ("cdist", "pdist")


@pytest.mark.parametrize("name", CASES)
def test_statistics_match(name):
    plain = name.startswith(("hist", "isin", "dist 0"))
    compare(*CASES[name], order=0 if plain else 1 if name.startswith(FIRST) else 2)


def test_many_euclidean_distances_match():
    compare(lambda m, x, y: m.cdist(x, y), MANY, OTHERS, order=1)
    compare(lambda m, x: m.cdist(x, x).triu(1), MANY, order=1)


def test_frequent_columns_have_pytorchs_mode():
    rng = np.random.default_rng(0)
    for n in (2, 3, 5, 8):
        compare(lambda m, x: m.mode(x, 1), rng.integers(0, 4, (40, n)))


WRONG = {
    "quantile of none": lambda m: m.quantile(m.ones(0), 0.5),
    "quantile of int": lambda m: m.quantile(m.tensor([1, 2]), 0.5),
    "quantile range": lambda m: m.quantile(m.ones(3), 1.5),
    "quantile ranges": lambda m: m.quantile(m.ones(3), m.tensor([0.5, 1.5])),
    "quantile dtype": lambda m: m.quantile(m.ones(3), m.tensor([0.5]).double()),
    "quantile way": lambda m: m.quantile(m.ones(3), 0.5, interpolation="other"),
    "quantile dim": lambda m: m.quantile(m.ones(3), 0.5, 2),
    "mode of none": lambda m: m.mode(m.ones(3, 0)),
    "mode dim": lambda m: m.mode(m.ones(3), 1),
    "nanmedian of none": lambda m: m.nanmedian(m.ones(3, 0), 1),
    "histc bins": lambda m: m.histc(m.ones(3), 0),
    "histc order": lambda m: m.histc(m.ones(3), 3, 2, 1),
    "histc int": lambda m: m.histc(m.tensor([1, 2])),
    "histc inf": lambda m: m.histc(m.tensor([1.0, float("inf")])),
    "histogram int": lambda m: m.histogram(m.tensor([1, 2]), 3),
    "histogram weight": lambda m: m.histogram(m.ones(3), 3, weight=m.ones(2)),
    "cov dims": lambda m: m.cov(m.ones(2, 2, 2)),
    "cov bool": lambda m: m.cov(m.ones(2, 2) > 0),
    "cov weights": lambda m: m.cov(m.ones(2, 2), fweights=m.tensor([1, 2, 3])),
    "cov weights dtype": lambda m: m.cov(m.ones(2, 2), fweights=m.ones(2)),
    "cov negative": lambda m: m.cov(m.ones(2, 2), fweights=m.tensor([1, -2])),
    "renorm p": lambda m: m.renorm(m.ones(2, 2), 0, 0, 1.0),
    "renorm dims": lambda m: m.renorm(m.ones(2), 2, 0, 1.0),
    "renorm maxnorm": lambda m: m.renorm(m.ones(2, 2), 2, 0, -1.0),
    "cdist columns": lambda m: m.cdist(m.ones(2, 2), m.ones(2, 3)),
    "cdist dims": lambda m: m.cdist(m.ones(2), m.ones(2, 3)),
    "cdist p": lambda m: m.cdist(m.ones(2, 2), m.ones(2, 2), -1.0),
    "cdist mode": lambda m: m.cdist(m.ones(2, 2), m.ones(2, 2), compute_mode="x"),
    "pdist": lambda m: m.pdist(m.ones(2)),
    "combinations": lambda m: m.combinations(m.ones(2, 2)),
    "combinations r": lambda m: m.combinations(m.ones(2), -1),
    "isin": lambda m: m.isin(1, 2),
    "isin bool": lambda m: m.isin(m.ones(2) > 0, m.ones(2) > 0),
    "unravel_index": lambda m: m.unravel_index(m.ones(2), (2, 2)),
    "unravel_index shape": lambda m: m.unravel_index(m.tensor([1]), (-2, 2)),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_match_in_type(name):
    refuse_alike(WRONG[name])
