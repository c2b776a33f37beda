"""Tables of numbers: what a diamond costs."""

from __future__ import annotations

import csv
import io
from typing import NamedTuple

import numpy as np

from lowtide.recipes.data.fetch import Say, Unreachable, Wheel, find


class Table(NamedTuple):
    """Features and targets, for training and for testing, both standardized on the training part.

    Attributes:
        x_train: (N, features) float32.
        y_train: (N, 1) float32.
        x_test: (M, features) float32.
        y_test: (M, 1) float32.
        features: Their names.
        target: What is predicted.
        source: Where the table came from.
        baseline: R2 of least squares on the same features; 0 if unknown.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    features: tuple[str, ...]
    target: str
    source: str
    baseline: float


PLOTNINE = Wheel(
    "plotnine==0.15.9", "36f4526235b3ddd9ea379dd677093ea2ee1b58ab98adec1bde891930283448cd"
)
# From worst to best.
ORDERS = {
    "cut": ("Fair", "Good", "Very Good", "Premium", "Ideal"),
    "color": tuple("JIHGFED"),
    "clarity": ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"),
}
FEATURES = ("carat", "cut", "color", "clarity", "depth", "table", "x", "y", "z")


def diamonds(data_dir: str | None = None, say: Say = print) -> Table:
    """53,920 diamonds with nine features each; the target is the logarithm of the price.

    A fifth of them is kept for testing. Without a way to them, Friedman's function stands in.
    """
    try:
        found = find("diamonds", ("plotnine/data/diamonds.csv",), PLOTNINE, data_dir, say)
    except Unreachable:
        say("  WARNING: no diamonds within reach; learning a known function instead.")
        return friedman()
    rows = list(csv.DictReader(io.StringIO(found.files[0].decode())))
    rows = [r for r in rows if min(float(r[k]) for k in "xyz") > 0]  # 20 sizes were not measured
    x = np.array([[_number(k, r[k]) for k in FEATURES] for r in rows])
    for column in (0, 6, 7, 8):  # weight and lengths act by their ratios, as the price does
        x[:, column] = np.log(x[:, column])
    y = np.log([float(r["price"]) for r in rows])
    return _split(x, y, FEATURES, "log price", f"diamonds from {found.source}", 0.979)


def _number(feature: str, text: str) -> float:
    return float(ORDERS[feature].index(text)) if feature in ORDERS else float(text)


def friedman(count: int = 8000, seed: int = 0) -> Table:
    """``10 sin(pi a b) + 20 (c - 1/2)^2 + 10 d + 5 e`` and noise; five decoys (Friedman 1991)."""
    random = np.random.default_rng(seed)
    x = random.uniform(size=(count, 10))
    a, b, c, d, e = x[:, :5].T
    y = 10 * np.sin(np.pi * a * b) + 20 * (c - 0.5) ** 2 + 10 * d + 5 * e
    y += random.normal(size=count)
    names = tuple("abcdefghij")
    return _split(x, y, names, "Friedman's function", "Friedman's function, built in", 0.0)


def _split(
    x: np.ndarray, y: np.ndarray, names: tuple[str, ...], target: str, source: str, base: float
) -> Table:
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[len(y) // 5 :], order[: len(y) // 5]
    y = y[:, None]
    parts = []
    for values in (x, y):
        mean, scale = values[train].mean(axis=0), values[train].std(axis=0)
        parts.append(((values - mean) / scale).astype(np.float32))
    x, y = parts
    return Table(x[train], y[train], x[test], y[test], names, target, source, base)
