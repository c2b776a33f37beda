"""Every threshold stands where the other way begins to pay, or beside it.

For a size from which another way is taken (``framework/kernels/runtime/thresholds.py``) calls of
growing size are timed both ways, alternately, in one process: the ratio falls below 1 where the
other way pays. For the size of a tile or chunk one large call is timed with tiles of several sizes,
as a ratio to the one that is set. Medians; one machine's: another may want other numbers.

    python -m benchmarks.thresholds [--rounds N] [--only NAME]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lowtide as lt
import lowtide.nn.functional as F
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.ops.registry import OPS

Call = Callable[[], Any]
NEVER, LEAST_TIME = 1 << 60, 0.002  # seconds that calls are repeated for


def silu(n: int) -> Call:
    x = lt.randn(n)
    return lambda: F.silu(x)


def cross_entropy(n: int) -> Call:
    x, y = lt.randn(max(1, n // 8), 8, requires_grad=True), lt.randint(0, 8, (max(1, n // 8),))
    return lambda: F.cross_entropy(x, y)


def transposed(n: int) -> Call:
    x = lt.randn(max(1, n // 16), 16)
    return lambda: x.t().contiguous()


def add(n: int) -> Call:
    x, y = lt.randn(n), lt.randn(n)
    return lambda: x + y


def total(n: int) -> Call:
    x = lt.randn(n)
    return lambda: x.sum()


def squared(n: int) -> Call:
    x, y = lt.randn(n, requires_grad=True), lt.randn(n)
    return lambda: F.mse_loss(x, y)


def where(n: int) -> Call:
    x, y = lt.randn(n), lt.randn(n)
    chosen = x > 0
    return lambda: lt.where(chosen, x, y)


def adamw(n: int) -> Call:
    parameters = [lt.zeros(n // 4, requires_grad=True) for _ in range(4)]
    for p in parameters:
        p.grad = lt.ones_like(p)
    return lt.optim.AdamW(parameters).step


def attention(n: int) -> Call:
    q = lt.randn(1, 2, max(8, int((n / (4 * 2 * 32)) ** 0.5)), 32)
    return lambda: F.scaled_dot_product_attention(q, q, q)


def mixed_add(n: int) -> Call:
    x, y = lt.randn(n).to(lt.bfloat16), lt.randn(n).to(lt.bfloat16)
    return lambda: lt.atan2(x, y)


FROM: dict[str, tuple[Callable[[int], Call], range]] = {
    "COMPILED": (silu, range(2, 21, 2)),
    "COMPILED_HEAVY": (cross_entropy, range(2, 17, 2)),
    "COMPILED_MOVE": (transposed, range(8, 19, 2)),
    "COMPILED_STEP": (adamw, range(2, 19, 2)),
    "COMPILED_SUM": (total, range(10, 21, 2)),
    "THREAD": (squared, range(14, 23, 2)),
    "SHARED": (silu, range(12, 21, 2)),
    "UFUNC_THREAD": (add, range(16, 23, 2)),
    "NUMPY_THREADS": (where, range(17, 26, 2)),
    "PRODUCT_THREAD": (attention, range(19, 28, 2)),
}
"""Name: what takes another way from so many elements or operations on, exponents of 2 to try."""

SIZES: dict[str, tuple[Callable[[int], Call], int, range]] = {
    "CHUNK": (silu, 22, range(13, 22, 2)),
    "TILE": (mixed_add, 21, range(12, 21, 2)),
    "TILE_BYTES": (attention, 30, range(16, 25, 2)),
}
"""Name: what is cut, the exponent of its size, exponents of tiles or chunks to try."""


@contextmanager
def threshold(name: str, value: int) -> Iterator[None]:
    """Set one, and forget the plans that were made by another."""
    before = getattr(thresholds, name)
    setattr(thresholds, name, value)
    try:
        yield
    finally:
        setattr(thresholds, name, before)


def prepared(call: Call) -> Callable[[], float]:
    """Compile, plan and warm up; then each call times enough calls for a clock."""
    for _ in range(3):
        call()
    start = time.perf_counter()
    call()
    count = max(1, int(LEAST_TIME / max(1e-7, time.perf_counter() - start)))

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count

    return seconds


def ratios(name: str, make: Callable[[], Call], values: list[int], rounds: int) -> list[float]:
    """Medians with each value of a threshold, over that with the first; in turns."""
    times: list[list[float]] = [[] for _ in values]
    call = make()
    for _ in range(rounds):
        for k, value in enumerate(values):
            with threshold(name, value):
                for op in OPS.values():
                    op.plans.clear()
                times[k].append(prepared(call)())
    middle = [statistics.median(t) for t in times]
    return [m / middle[0] for m in middle]


def main() -> None:
    """Print a table for each threshold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="thresholds whose name contains this")
    args = parser.parse_args()
    print(f"{lt.get_num_threads()} threads\n")
    print("| Threshold | Set to | Measured on | Beside the other way, at 2^k |\n|---|---|---|---|")
    for name, (make, sizes) in FROM.items():
        if args.only in name:
            row = []
            for k in sizes:
                found = ratios(name, lambda k=k: make(1 << k), [NEVER, 1], args.rounds)
                row.append(f"{k}: {found[1]:.2f}")
            show(name, make, row)
    print(
        "\n| Threshold | Set to | Measured on | Beside what is set, with 2^k |\n|---|---|---|---|"
    )
    for name, (make, size, sizes) in SIZES.items():
        if args.only in name:
            values = [getattr(thresholds, name), *[1 << k for k in sizes]]
            found = ratios(name, lambda: make(1 << size), values, args.rounds)
            row = [f"{k}: {r:.2f}" for k, r in zip(sizes, found[1:], strict=True)]
            show(name, make, row)


def show(name: str, make: Callable[[int], Call], row: list[str]) -> None:
    """Print a line of a table."""
    value = getattr(thresholds, name)
    print(
        f"| `{name}` | 2^{value.bit_length() - 1} | {make.__name__} | {', '.join(row)} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
