"""Convolutions of halves in blocks of images: their numbers and their workspace."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.devices import backend
from lowtide.framework.kernels.runtime import threads, thresholds
from lowtide.framework.ops.convolution import half_blocks
from lowtide.framework.ops.registry import OPS

CASES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], Any]] = {
    "3 x 3": (F.conv2d, (6, 32, 14, 14), (32, 32, 3, 3), {"padding": 1}),
    "3 x 3, stride 2": (F.conv2d, (6, 8, 15, 14), (16, 8, 3, 3), {"padding": 1, "stride": 2}),
    "1 x 1": (F.conv2d, (6, 24, 10, 10), (16, 24, 1, 1), {}),
    "5 x 5, dilation": (F.conv2d, (6, 4, 20, 20), (8, 4, 5, 5), {"dilation": 2, "padding": 4}),
    "depthwise": (F.conv2d, (6, 16, 12, 12), (16, 1, 3, 3), {"groups": 16, "padding": 1}),
    "groups": (F.conv2d, (6, 16, 12, 12), (8, 8, 3, 3), {"groups": 2}),
    "one dim": (F.conv1d, (6, 8, 40), (8, 8, 3), {"padding": 1}),
    "three dims": (F.conv3d, (6, 3, 6, 6, 6), (4, 3, 2, 2, 2), {}),
    "transposed": (F.conv_transpose2d, (6, 8, 9, 9), (8, 12, 3, 3), {"stride": 2, "padding": 1}),
}


@pytest.fixture(autouse=True)
def _fresh_plans(monkeypatch):
    for name in ("_conv", "_conv_input_grad", "_conv_weight_grad"):
        monkeypatch.setattr(OPS[name], "plans", {})


@pytest.fixture
def blocks(monkeypatch):
    """How many images the blocks had."""
    found: list[int] = []
    plain = half_blocks.in_blocks

    def counted(*args: Any, step: int) -> None:
        found.append(step)
        plain(*args, step=step)

    monkeypatch.setattr(half_blocks, "in_blocks", counted)
    monkeypatch.setattr(thresholds, "IMAGE_WEIGHTS", 0)
    return found


def numbers(*shape: int, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def results(f: Any, leaves: list[Any], options: Any) -> list[Any]:
    made = f(*leaves, **options)
    made.backward(lt.tensor(numbers(*made.shape, seed=9)).to(made.dtype))
    return [made.detach(), *[x.grad for x in leaves]]


@pytest.mark.quick(12)
@pytest.mark.parametrize("dtype", [lt.float16, lt.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_they_are_those_of_float32_rounded(name, bias, dtype, blocks, monkeypatch):
    f, image, weight, options = CASES[name]
    shapes = [image, weight]
    if bias:
        shapes.append((weight[1] if f is F.conv_transpose2d else weight[0],))
    halves = [lt.tensor(numbers(*s, seed=k)).to(dtype) for k, s in enumerate(shapes)]
    floats = [x.float().requires_grad_() for x in halves]
    expected = results(f, floats, options)
    widest = max(prod(image[1:]), expected[0][0].numel())
    monkeypatch.setattr(thresholds, "IMAGE_BLOCK", 2 * widest // min(4, threads.LIMIT))
    made = results(f, [x.requires_grad_() for x in halves], options)
    assert len(blocks) == 3
    assert {*blocks} <= {1, 2, 3}
    for a, b in zip(made, expected, strict=True):
        assert a.dtype is dtype
        x, y = a.float().numpy(), b.numpy()
        # A bias's gradient is a sum in halves, as it is without blocks.
        assert np.abs(x - y).max() <= 2**-7 * np.abs(y).max()


def test_a_block_repays_the_weight_and_divides_the_images(monkeypatch):
    monkeypatch.setattr(threads, "LIMIT", 1)
    choose = half_blocks.images_of_block
    assert choose(64, 1 << 18, 100) == 4
    assert choose(64, 1 << 18, 1 << 20) == 16  # four times the weight
    assert choose(60, 3 << 17, 100) == 2
    assert choose(3, 1 << 18, 100) == 0  # they are few
    assert choose(61, 1 << 17, 100) == 0  # a prime: blocks of one image would be too small
    assert choose(61, 1 << 19, 100) == 1
    assert choose(8, 1 << 22, 100) == 1


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_workspace_does_not_grow_with_the_images(device):
    def taken(images: int) -> int:
        x = lt.zeros(images, 32, 64, 64, dtype=lt.bfloat16, device=device)
        w = lt.zeros(32, 32, 3, 3, dtype=lt.bfloat16, device=device)
        ledger = backend(lt.device(device)).ledger
        start = ledger.live
        ledger.reset_peak()
        made = F.conv2d(x, w, padding=1)
        return ledger.peak - start - made.nbytes

    converted = 2 * 256 * 32 * 64 * 64 * 4  # bytes of input and result in float32
    assert taken(128) == taken(256) < converted


def test_one_of_no_images():
    w = lt.ones(3, 2, 3, 3, dtype=lt.bfloat16)
    assert F.conv2d(lt.zeros(0, 2, 9, 9, dtype=lt.bfloat16), w).shape == (0, 3, 7, 7)
