"""Images of bytes are resized to PyTorch's bytes: drawn sizes, scales, modes and layouts."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


def resized(kit: Any, seed: int) -> Any:
    draw = random.Random(seed)
    shape = [draw.randrange(1, n) for n in (3, 6, 40, 40)]
    # Of more than four channels PyTorch mixes those of a result with one column, by 247 of 255.
    least = 2 if shape[1] > 4 else 1
    shape[3] = max(shape[3], least)
    values = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    if draw.random() < 0.3:
        values = (values > 127).astype(np.uint8) * 255  # cubic overshoots both ends
    x = kit.tensor(values)
    if draw.random() < 0.4:
        x = x.to(memory_format=kit.channels_last)
    options: dict[str, Any] = {
        "mode": draw.choice(["bilinear", "bicubic"]),
        "antialias": draw.random() < 0.5,
        "align_corners": draw.choice([None, False, True]),
    }
    if draw.random() < 0.6:
        options["size"] = [draw.randrange(least, 50) for _ in range(2)]
    else:
        options["scale_factor"] = [draw.uniform(1.0, 2.5) for _ in range(2)]
        options["recompute_scale_factor"] = draw.choice([None, True])
    return kit.nn.functional.interpolate(x, **options)


@pytest.mark.parametrize("block", range(10))
def test_drawn_images_of_bytes(block: int) -> None:
    for seed in range(40 * block, 40 * block + 40):
        ours, theirs = resized(lt, seed), resized(torch, seed)
        assert ours.dtype is lt.uint8
        assert np.array_equal(ours.numpy(), theirs.numpy()), seed
