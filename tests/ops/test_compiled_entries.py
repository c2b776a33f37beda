"""Every further CPU kernel of an op gives what its plain kernel gives, on the op's own samples.

The thresholds from which compiled kernels, threads and chunks are used are set so low that the
small samples pass them. An entry that no sample reaches fails, or is named here with the test that
reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.dtypes import bfloat16, complex64, float16, float32, float64, tolerance
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.ops.convolution import routes
from lowtide.framework.ops.registry import OPS, Op
from lowtide.framework.tensor import Tensor
from tests.samples import fresh_start

# Those of compiled kernels are 2: a tensor of no dims is never large, and no kernel takes one.
SMALL = dict.fromkeys(("COMPILED", "COMPILED_HEAVY", "COMPILED_MOVE"), 2)
SMALL |= {"THREAD": 1, "COPY_THREAD": 1, "CHUNK": 4}
SMALL |= {"HALF_BLOCK": 8, "IMAGE_BLOCK": 1, "IMAGE_WEIGHTS": 0, "CHANNEL_BLOCK_THREADS": 99}
SMALL |= dict.fromkeys(("PRODUCT", "PRODUCT_THREAD", "BLAS_MATRIX", "BLAS_VECTOR"), 1)

# Entries that samples do not reach, by their dtypes, and the tests that do.
LEFT_OUT = {"mixed": "tests/kernels/test_mixed_dtype.py"}
HALF_PRODUCTS = {"_addmatmul", "linear", "matmul"}  # tests/ops/linalg/test_bfloat16_matmul.py


@contextmanager
def chosen_by(op: Op, limits: dict[str, int], kernels: list[Any]) -> Iterator[None]:
    """Choose kernels anew, by other thresholds and from another list."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(thresholds, name, value)
        patch.setattr(op, "kernels", kernels)
        patch.setattr(op, "plans", {})
        routes.route.cache_clear()
        yield
    routes.route.cache_clear()


def converted(value: Any, dtype: lt.dtype) -> Any:
    """A sample's input or attribute, in the dtype that a kernel is for."""
    if value is float64:
        return dtype
    if not isinstance(value, Tensor):
        return value
    if value.is_complex() and dtype is float32:
        return value.to(complex64)
    return value.to(dtype) if value.is_floating_point() else value


def results(op: Op, inputs: list[Any], attributes: dict[str, Any]) -> list[np.ndarray]:
    with fresh_start():
        found = [x.detach() for x in testing.call(op, inputs, attributes)]
    wide = [x.to(float64) if x.is_floating_point() else x for x in found]
    return [np.array(x.numpy(), copy=True) for x in wide]


def recording(kernels: list[Any], ran: set[int]) -> list[Any]:
    """The same kernels, which add their places in the list to ``ran``."""

    def noted(function: Callable[..., Any], place: int) -> Callable[..., Any]:
        def run(*args: Any, **attributes: Any) -> Any:
            ran.add(place)
            return function(*args, **attributes)

        return run

    return [replace(k, function=noted(k.function, n)) for n, k in enumerate(kernels)]


def as_it_lies(value: Tensor) -> Tensor:
    return value


def laid_out_anew(value: Tensor, random: np.random.Generator) -> Tensor:
    """Return the same values in other strides: dims permuted, with gaps, at an offset."""
    if value.layout is not lt.strided or value.ndim == 0 or random.random() < 0.2:
        return value
    order = [int(d) for d in random.permutation(value.ndim)]
    steps = [int(random.choice([1, 1, 2])) for _ in order]
    place, strides, count = int(random.integers(3)), [0] * value.ndim, 1
    for d in order:
        strides[d] = count * steps[d]
        # A dim of one element may have any stride.
        count = strides[d] * (value.shape[d] if value.shape[d] > 1 else int(random.integers(1, 4)))
    room = lt.zeros(place + count + sum(strides), dtype=value.dtype)
    view = room.as_strided(tuple(value.shape), tuple(strides), place)
    view.copy_(value.detach())
    return view


def compared(
    op: Op, dtype: lt.dtype, ran: set[int], lay: Callable[[Tensor], Tensor] = as_it_lies
) -> None:
    kernels = op.kernels
    # A convolution's entry is its plain kernel with another table of routes.
    plain = (
        kernels
        if any(k.function.__module__ == routes.__package__ + ".primitives" for k in kernels)
        else []
    )
    rtol, atol = tolerance(dtype)
    for number, (given, named) in enumerate(testing.samples(op, testing.Make(dtype))):
        inputs = testing.place(tuple(converted(x, dtype) for x in given), "cpu", op)
        inputs = [lay(x) if isinstance(x, Tensor) else x for x in inputs]
        attributes = {k: converted(v, dtype) for k, v in named.items()}
        with chosen_by(op, SMALL, recording(kernels, ran)):
            fast = results(op, inputs, attributes)
        with chosen_by(op, {}, plain):
            slow = results(op, inputs, attributes)
        strides = [x.stride() for x in inputs if isinstance(x, Tensor)]
        described = testing.describe(tuple(inputs), attributes)
        note = f"sample {number}, {dtype.name}: {described}, strides {strides}"
        for a, b in zip(fast, slow, strict=True):
            np.testing.assert_allclose(a, b, rtol=8 * rtol, atol=8 * max(atol, rtol), err_msg=note)


WITH_ENTRIES = sorted(n for n, op in OPS.items() if any(k.device == "cpu" for k in op.kernels))


@pytest.mark.deep
@pytest.mark.parametrize("name", WITH_ENTRIES)
@pytest.mark.parametrize("dtype", [float64, float16], ids=lambda d: d.name)
def test_entries_give_what_the_plain_kernel_gives(name: str, dtype: lt.dtype) -> None:
    compared(OPS[name], dtype, set())


@pytest.mark.deep
@pytest.mark.parametrize("name", WITH_ENTRIES)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda d: d.name)
def test_entries_take_operands_however_they_lie(name: str, dtype: lt.dtype) -> None:
    random = np.random.default_rng([*name.encode()])
    for _ in range(4):
        compared(OPS[name], dtype, set(), lambda x: laid_out_anew(x, random))


@pytest.mark.quick(15)
@pytest.mark.parametrize("name", WITH_ENTRIES)
def test_samples_reach_all_entries_and_they_give_what_the_plain_kernel_gives(name: str) -> None:
    op, ran = OPS[name], set[int]()
    for dtype in (float32, bfloat16):
        compared(op, dtype, ran)
    missed = [
        f"kernel {n} of dtypes {k.dtypes!r} ({k.function.__module__})"
        for n, k in enumerate(op.kernels)
        if k.device == "cpu"
        and n not in ran
        and k.dtypes not in LEFT_OUT
        and not (k.dtypes == "half" and name in HALF_PRODUCTS)
    ]
    assert not missed, f"{name}: no sample reaches {missed}. Declare a sample that does."
