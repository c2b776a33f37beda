"""Winograd's route: drawn sizes, what it is not as exact for, and what it does not depend on."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.kernels.cpu.convolution import tile_transforms
from lowtide.framework.kernels.cpu.support import microkernel
from lowtide.framework.kernels.runtime import threads, thresholds
from lowtide.framework.ops.convolution import winograd
from lowtide.framework.ops.convolution.direct import Direct, DirectWeight
from lowtide.framework.ops.convolution.sizes import INPUT, OUT, WEIGHT, Sizes
from lowtide.framework.ops.convolution.winograd import Winograd, WinogradWeight
from tests.ops.convolution.test_strided_depthwise import changed_around, numbers_around


class Case:
    """Sizes of a convolution, its arrays, and both routes.

    Args:
        seed: Of the sizes and the numbers.
        side: What is computed.
    """

    def __init__(self, seed: int, side: str) -> None:
        r, draws = random.Random(seed), np.random.default_rng(seed)
        self.draws = draws
        images, channels, filters = r.randint(1, 4), r.randint(1, 20), r.randint(1, 20)
        low, high = ([r.choice([0, 1, 1, 2, 4]) for _ in range(2)] for _ in range(2))
        size = [max(r.randint(1, 12), 3 - p - q) for p, q in zip(low, high, strict=True)]
        if r.random() < 0.2:
            size[1] += 40
        places = [n + p + q - 2 for n, p, q in zip(size, low, high, strict=True)]

        def numbers(*shape: int) -> Any:
            return numbers_around(draws, np.float32, *shape)

        self.x, self.y = numbers(images, channels, *size), numbers(images, filters, *places)
        self.weight = numbers(filters, channels, 3, 3)
        self.bias = numbers(filters) if side == OUT and r.random() < 0.5 else None
        shapes = (self.x.shape, self.weight.shape, tuple(places))
        padding = tuple(zip(low, high, strict=True))
        rest = (shapes[2], (1, 1), padding, (1, 1), 1, np.dtype(np.float32))
        self.side, self.padding = side, padding
        self.sizes = Sizes(side, True, *shapes[:2], *rest)

    def found(self, route: type[Any]) -> Any:
        """The side, as a route computes it."""
        made = route(self.sizes)
        scratch = [np.full(n, np.nan, np.float32) for n in made.scratch]
        x, y, weight = self.x, self.y, self.weight
        out = {OUT: y, INPUT: x, WEIGHT: weight}[self.side]
        out[...] = np.nan
        made.run(np, scratch, x, weight, y, self.bias)
        assert out.base is None or not changed_around(out)
        return out.copy()

    def expected(self) -> Any:
        """The same in float64, as sums over the elements of the window."""
        weight, around = self.weight.astype(float), [(0, 0), (0, 0), *self.padding]
        windows = np.zeros(weight.shape)
        padded = np.pad(self.x.astype(float), around)
        high, wide = self.y.shape[2:]
        total = np.zeros(self.y.shape)
        back = np.zeros(padded.shape)
        for a in range(3):
            for b in range(3):
                met = np.s_[:, :, a : a + high, b : b + wide]
                total += np.einsum("nchw,kc->nkhw", padded[met], weight[:, :, a, b])
                windows[:, :, a, b] = np.einsum("nchw,nkhw->kc", padded[met], self.y)
                if self.side == INPUT:
                    back[met] += np.einsum("nkhw,kc->nchw", self.y, weight[:, :, a, b])
        if self.side == INPUT:
            (p, _), (q, _) = self.padding
            return back[:, :, p : p + self.x.shape[2], q : q + self.x.shape[3]]
        if self.side == WEIGHT:
            return windows
        return total if self.bias is None else total + self.bias[:, None, None]


ROUTES = {
    OUT: (Winograd, Direct),
    INPUT: (Winograd, Direct),
    WEIGHT: (WinogradWeight, DirectWeight),
}


@pytest.mark.parametrize("side", ROUTES)
def test_drawn_sizes(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "PRODUCT_THREAD", 1)
    monkeypatch.setattr(threads, "_wanted", 2)
    for seed in range(80):
        r = random.Random(seed)
        monkeypatch.setattr(threads, "LIMIT", r.choice([1, 2, 3]))
        monkeypatch.setattr(winograd, "BLOCK", r.choice([1 << 10, 1 << 16]))
        monkeypatch.setattr(winograd, "WINDOWS", r.choice([1 << 13, 1 << 22]))
        monkeypatch.setattr(winograd, "TOTALS", r.choice([1 << 13, 1 << 22]))
        case = Case(seed, side)
        expected = case.expected()
        found = case.found(ROUTES[side][0])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        assert case.found(ROUTES[side][0]).tobytes() == found.tobytes()


@pytest.mark.parametrize("side", ROUTES)
def test_the_error_is_about_that_of_the_direct_route(side: str) -> None:
    mine, others = 0.0, 0.0
    for seed in range(40):
        case = Case(seed, side)
        expected = case.expected()
        route, direct = ROUTES[side]
        mine += np.square(case.found(route) - expected).mean()
        others += np.square(case.found(direct) - expected).mean()
    assert mine < (4 if side == WEIGHT else 1.5) * others


@pytest.mark.parametrize("side", [OUT, INPUT])
def test_blocks_and_other_images_change_no_bit(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(12):
        case = Case(seed, side)
        expected = case.found(Winograd)
        for block in (1 << 10, 1 << 14, 1 << 22):
            monkeypatch.setattr(winograd, "BLOCK", block)
            assert case.found(Winograd).tobytes() == expected.tobytes()
        for k in range(len(case.x)):
            alone = Case(seed, side)
            alone.x, alone.y = case.x[k : k + 1].copy(), case.y[k : k + 1].copy()
            alone.sizes = case.sizes._replace(input=alone.x.shape)
            assert alone.found(Winograd).tobytes() == expected[k : k + 1].tobytes()


def test_which_images_are_uneven_does_not_depend_on_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    r, decided = random.Random(0), set()
    for seed in range(12):
        case = Case(seed, OUT)
        for exponent in (8, 12, 14, 16, 20):
            case.x[:, :, : r.randint(0, case.x.shape[2])] *= np.float32(2.0**-exponent)
            found = []
            for block in (1 << 10, 1 << 13, 1 << 22):
                monkeypatch.setattr(winograd, "BLOCK", block)
                found.append(case.found(Winograd).tobytes())
            assert len(set(found)) == 1
            decided.add(found[0] == case.found(Direct).tobytes())
            case.x[...] = case.draws.standard_normal(case.x.shape)
    assert decided == {True, False}


@pytest.mark.parametrize("side", [OUT, INPUT])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 3e38, 1e6])
def test_an_image_with_a_number_far_above_the_others_is_computed_directly(
    side: str, number: float
) -> None:
    for seed in range(30):
        case = Case(seed, side)
        if max(map(max, case.padding)) > 2:
            continue  # some pixels of the gradient meet none of the input
        source = case.y if side == INPUT else case.x
        plain = case.found(Winograd)
        place = random.Random(seed)
        n = place.randrange(len(source))
        source[n, 0, place.randrange(source.shape[2]), place.randrange(source.shape[3])] = number
        with np.errstate(all="ignore"):
            found, directly = case.found(Winograd), case.found(Direct)
        assert found[n].tobytes() == directly[n].tobytes()
        others = np.arange(len(source)) != n
        assert found[others].tobytes() == plain[others].tobytes()


@pytest.mark.parametrize("of", ["x", "y"])
@pytest.mark.parametrize("number", [np.inf, np.nan, 3e38, 1e6])
def test_a_weights_gradient_with_such_a_number_is_computed_directly(number: float, of: str) -> None:
    for seed in range(30):
        case = Case(seed, WEIGHT)
        array = getattr(case, of)
        if max(map(max, case.padding)) > 2:
            continue
        array[-1, -1, 0, 0] = number
        with np.errstate(all="ignore"):
            found, directly = case.found(WinogradWeight), case.found(DirectWeight)
        assert found.tobytes() == directly.tobytes()


@pytest.mark.parametrize("number", [np.inf, np.nan, 1e38])
def test_windows_that_are_not_finite_or_overflow_are_met_directly(number: float) -> None:
    case = Case(1, OUT)
    case.weight[0, 0, 1, 2] = number
    case.x[...] *= 100
    with np.errstate(all="ignore"):
        found, directly = case.found(Winograd), case.found(Direct)
    assert not np.isfinite(directly).all()
    assert found.tobytes() == directly.tobytes()


@pytest.mark.parametrize("side", ROUTES)
def test_sums_that_overflow_only_on_the_way_are_computed_directly(side: str) -> None:
    for seed in range(4):  # images of several pixels
        case = Case(seed, side)
        large, small = {
            OUT: (case.x, case.weight),
            INPUT: (case.y, case.weight),
            WEIGHT: (case.x, case.y),
        }[side]
        large[...] = np.where(large < 0, -3e38, 3e38)  # of which two give an infinity
        small[...] *= 1e-30
        route, direct = ROUTES[side]
        with np.errstate(all="ignore"):
            found, directly = case.found(route), case.found(direct)
        assert np.isfinite(directly).all()
        assert found.tobytes() == directly.tobytes()


def test_sparse_images_are_not_computed_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(2, OUT)
    case.x[...] = np.where(np.random.default_rng(0).random(case.x.shape) < 0.02, case.x, 0)
    monkeypatch.setattr(Direct, "run", None)
    case.found(Winograd)
    case.x[...] = 0
    assert not case.found(Winograd).any() or case.bias is not None


def test_small_integers_are_exact() -> None:
    for seed in range(20):
        case = Case(seed, OUT)
        case.x[...] = np.rint(case.x * 4)
        case.weight[...] = np.rint(case.weight * 4)
        if case.bias is not None:
            case.bias[...] = np.rint(case.bias)
        assert (case.found(Winograd) == case.expected()).all()


def test_the_route_leaves_as_much_room_as_the_loops_use() -> None:
    assert (winograd._ROWS, winograd._TOGETHER) == (microkernel.ROWS, microkernel.TOGETHER)
    assert (winograd._NUMBERS, winograd._APART) == (tile_transforms.NUMBERS, tile_transforms.APART)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_layer_has_the_gradients_of_float64(workers: int) -> None:
    before = lt.get_num_threads()
    lt.set_num_threads(workers)
    try:
        x, w = lt.randn(8, 32, 20, 20), lt.randn(48, 32, 3, 3)
        for _ in range(3):  # threads share a kernel from its second call on
            both = [t.clone().requires_grad_() for t in (x, w)]
            wide = [t.double().requires_grad_() for t in (x, w)]
            y = lt.conv2d(*both, None, 1, 1)
            y.backward(g := lt.randn(*y.shape))
            lt.conv2d(*wide, None, 1, 1).backward(g.double())
            for t, other in zip(both, wide, strict=True):
                np.testing.assert_allclose(t.grad.numpy(), other.grad.numpy(), rtol=1e-3, atol=1e-3)
    finally:
        lt.set_num_threads(before)
