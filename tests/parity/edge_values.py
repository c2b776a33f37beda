"""A page of edge values: results and gradients at 0, inf, nan, ties and limits, beside PyTorch's.

``python -m tests.parity.edge_values`` writes docs/edge_values.md, with ``--check`` it compares. The
elementwise ops are those of PyTorch's own catalogue; reductions, losses and ops of several
arguments are the programs in ``edge_programs.py``. Each is run at the cross product of the edge
values, in float64 and float32: values, first gradients, and the gradients of those.

PyTorch runs without oneDNN here: oneDNN's gelu gives ``nan`` for ``inf`` on some processors with
AVX-512, PyTorch's own kernel gives ``inf`` on all, and the page has to be the same everywhere.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import lowtide as lt

from . import oracle
from .edge_programs import PROGRAMS, Program
from .edge_reasons import OPEN, REASONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "edge_values.md"

ORDERS = ("value", "first", "second")
DTYPES = ("float64", "float32")
# How far two finite numbers may be apart, by dtype: libraries differ in their last bits, and a
# second gradient is a difference of numbers that were rounded.
APART = {"float64": (1e-8, 1e-12), "float32": (2e-4, 1e-6)}  # relative, absolute
SIGN = "zero's sign"
SHOWN = 4  # differences of a kind


def edges(dtype: str, few: bool = False) -> list[float]:
    """Return the edge values: zeros, integers, halves, limits of the dtype, inf and nan."""
    limits = np.finfo(dtype)
    small = [limits.smallest_subnormal, limits.tiny]
    if few:
        return [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            2.0,
            small[0],
            float(limits.max),
            np.inf,
            -np.inf,
            np.nan,
        ]
    signed = [
        0.0,
        0.5,
        1.0,
        1.5,
        2.0,
        3.0,
        6.0,
        20.0,
        *map(float, small),
        float(limits.max),
        np.inf,
    ]
    return [s * v for v in signed for s in (1.0, -1.0)] + [np.nan]


class Found(NamedTuple):
    """One number that differs."""

    op: str
    order: str  # value, first, second
    kind: str  # nan, infinite, zero's sign, number, error
    dtype: str
    where: str
    ours: str
    theirs: str


def catalogue() -> Iterator[tuple[str, Program]]:
    """Yield PyTorch's elementwise operators of one and two floating point arguments."""
    for op in oracle.op_db:
        arity = {"UnaryUfuncInfo": 1, "BinaryUfuncInfo": 2}.get(type(op).__name__)
        if arity is None or op.variant_test_name or torch.float32 not in op.dtypes:
            continue
        if op.name.startswith(("_", "nn.functional.dropout")) or op.name in oracle.RANDOM:
            continue
        try:
            oracle.counterpart(op.op)
        except oracle.Absent:
            continue
        names = "xy"[:arity]
        yield op.name, Program(f"T.{op.name}({', '.join(names)})", names)


def programs() -> dict[str, list[Program]]:
    """Return all programs, by op."""
    found: dict[str, list[Program]] = {}
    for name, program in itertools.chain(catalogue(), PROGRAMS):
        found.setdefault(name, []).append(program)
    return dict(sorted(found.items()))


def inputs(program: Program, dtype: str) -> list[np.ndarray]:
    """Return an array for each argument: the cross product of the edge values."""
    width = program.rows * len(program.names)
    points = edges(dtype, few=width > 2)
    if width > 3:
        points = [0.0, 1.0, -1.0, 2.0, float(np.finfo(dtype).max), np.inf, np.nan]
    grid = np.array(list(itertools.product(points, repeat=width)), dtype)
    if program.within is not None:
        keep = np.ones(len(grid), bool)
        for k in range(width):
            low, high = program.within.get(program.names[k // program.rows], (None, None))
            if low is not None:
                keep &= (grid[:, k] >= low) & (grid[:, k] <= high)
        grid = grid[keep]
    # Whole vectors: PyTorch's loop over the rest of an array has other edges than its vectors.
    grid = np.resize(grid, (-(-len(grid) // 64) * 64, width))
    parts = np.split(grid, len(program.names), axis=1)
    return [np.ascontiguousarray(p if program.rows > 1 else p[:, 0]) for p in parts]


def run(T: Any, program: Program, arrays: list[np.ndarray]) -> dict[str, list[Any]]:
    """Return values, first and second gradients in one framework, as far as there are any."""
    leaves = [T.from_numpy(a.copy()).requires_grad_() for a in arrays]
    names = {"T": T, "F": T.nn.functional, **dict(zip(program.names, leaves, strict=True))}
    names |= {
        "none": "none",
        "cls": T.ones(len(arrays[0]), dtype=T.int64),  # class 1 for each row
        "second": T.ones(arrays[0].shape, dtype=T.int64),
        "above": T.from_numpy((arrays[0] > 0).astype(arrays[0].dtype)),
        "logits": T.nn.functional.binary_cross_entropy_with_logits,
    }
    found: dict[str, list[Any]] = {}
    try:
        try:
            out = eval(program.code, names)
        except NotImplementedError:  # lowtide refuses gradients in the call, PyTorch in backward
            names |= {n: x.detach() for n, x in zip(program.names, leaves, strict=True)}
            out = eval(program.code, names)
    except Exception as error:
        return {"value": [type(error).__name__]}
    outs = [o for o in (out if isinstance(out, tuple | list) else [out]) if o is not None]
    found["value"] = [oracle.numbers(o) for o in outs]
    firsts: list[Any] = []
    roots = [o for o in outs if o.requires_grad and o.is_floating_point()]
    if not roots:
        return found
    try:
        root = sum((o.sum() for o in roots[1:]), roots[0].sum())
        firsts = list(T.autograd.grad(root, leaves, create_graph=True, allow_unused=True))
        found["first"] = [None if g is None else oracle.numbers(g) for g in firsts]
    except Exception as error:
        found["first"] = [type(error).__name__]
        return found
    seconds: list[Any] = []
    for g in firsts:
        if g is None or not g.requires_grad:
            seconds += [None] * len(leaves)
            continue
        try:
            twice = T.autograd.grad(g.sum(), leaves, retain_graph=True, allow_unused=True)
            seconds += [None if h is None else oracle.numbers(h) for h in twice]
        except Exception as error:
            seconds.append(type(error).__name__)
            break
    found["second"] = seconds
    return found


def kinds(ours: np.ndarray, theirs: np.ndarray, apart: tuple[float, float]) -> np.ndarray:
    """Return for each number "" or in which way it differs."""
    kind = np.full(theirs.shape, "", "<U12")
    if theirs.dtype.kind == "c":
        first, second = (kinds(part(ours), part(theirs), apart) for part in (np.real, np.imag))
        return np.where(first == "", second, first)
    if theirs.dtype.kind != "f":
        kind[ours != theirs] = "number"
        return kind
    with np.errstate(all="ignore"):
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        relative, absolute = apart
        far = np.abs(a - b) > absolute + relative * np.abs(b)
        far &= np.isfinite(a) & np.isfinite(b)
    kind[far] = "number"
    kind[np.isinf(ours) != np.isinf(theirs)] = "infinite"
    kind[np.isinf(ours) & np.isinf(theirs) & (ours != theirs)] = "infinite"
    kind[np.isnan(ours) != np.isnan(theirs)] = "nan"
    zero = (ours == 0) & (theirs == 0) & (np.signbit(ours) != np.signbit(theirs))
    kind[zero] = SIGN
    return kind


def compare(op: str, program: Program, dtype: str) -> tuple[int, list[Found]]:
    """Return how many numbers were compared, and those that differ."""
    arrays = inputs(program, dtype)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            theirs = run(torch, program, arrays)
        ours = run(lt, program, arrays)
    count, found = 0, []
    for order in ORDERS:
        expected = theirs.get(order, [])
        if any(isinstance(e, str) for e in expected):
            continue  # PyTorch refuses it
        got = ours.get(order, [None] * len(expected))
        for k, right in enumerate(expected):
            have = got[k] if k < len(got) else None
            if isinstance(have, str) or (
                have is not None and right is not None and have.shape != right.shape
            ):
                found.append(
                    Found(op, order, "error", dtype, program.code, str(have)[:40], "a result")
                )
                break
            if right is None and have is None:
                continue
            right = np.zeros_like(have) if right is None else right
            have = np.zeros_like(right) if have is None else have
            count += right.size
            kind = kinds(have, right, APART[dtype])
            for at in zip(*np.nonzero(kind), strict=True):
                point = (
                    "; ".join(
                        f"{n}={np.array2string(a[at[0]] if a.shape[0] == right.shape[0] else a)}"
                        for n, a in zip(program.names, arrays, strict=True)
                    )
                    if right.ndim
                    else "all"
                )
                found.append(
                    Found(
                        op,
                        order,
                        str(kind[at]),
                        dtype,
                        f"{program.code} [{k}{list(map(int, at[1:])) or ''}] {point}",
                        repr(have[at].item()),
                        repr(right[at].item()),
                    )
                )
    return count, found


def reasons_of(found: list[Found]) -> tuple[Counter[str], list[Found], set[str]]:
    """Return how many differences each reason explains, those without one, and the words used."""
    count: Counter[str] = Counter()
    bare, used = [], set()
    for f in found:
        name = f"{f.op}:{f.order}.{f.kind}"
        matches = (
            (reason, word)
            for reason, words in (REASONS | OPEN).items()
            for word in words.split()
            if word == f.op or fnmatch(name, word)
        )
        reason, word = next(matches, (None, None))
        if reason is None or word is None:
            bare.append(f)
        else:
            count[reason] += 1
            used.add(word)
    return count, bare, used


INTRODUCTION = """# Edge values

Written by `python -m tests.parity.edge_values`. Elementwise operators of PyTorch's own catalogue,
reductions, activations and losses run at 0, -0, halves and integers, the smallest subnormal and
normal number, the largest, infinities and NaN, at pairs and triples of these, in float64 and
float32, beside PyTorch 2.13 on the CPU: values, first gradients, and the gradients of those. NaN
equals NaN; finite numbers agree within the rounding of their dtype (1e-8 relative or 1e-12 in
float64, 2e-4 or 1e-6 in float32, as second gradients are differences of rounded numbers).

*Sign* counts zeros that have the other sign: of equal elements 0 and -0 the other one is taken, or
`0 * -1` is computed as `0 - 0`. *Differing* is the rest, each with its reason below the table.

PyTorch's loop over the last elements of an array has, at NaN, other slopes than its vectors
(`hardtanh`, `hardshrink`, `softshrink`, `elu`); compared are whole vectors. Its gradient of
`grid_sample` with border or reflection reads outside of memory at NaN, so that is left out there.
"""


def page() -> str:
    """Return what the page should be now.

    Raises:
        ValueError: A number differs without a reason, or a reason applies to none.
    """
    rows, total, texts = [], Counter[str](), {}
    bare: list[Found] = []
    used: set[str] = set()
    numbers = {r: k for k, r in enumerate([*REASONS, *OPEN], 1)}
    for op, listed in programs().items():
        count, found = 0, []
        for program in listed:
            for dtype in DTYPES:
                n, differing = compare(op, program, dtype)
                count, found = count + n, found + differing
        if not (count or found):
            continue
        signs = sum(f.kind == SIGN for f in found)
        by, without, words = reasons_of([f for f in found if f.kind != SIGN])
        bare, used = bare + without, used | words
        total.update(by)
        total.update(ops=1, all=count, signs=signs, exact=not found)
        why = ", ".join(f"{n} ({numbers[r]})" for r, n in by.items())
        agreeing = count - len([f for f in found if f.kind != "error"])
        rows.append(f"| `{op}` | {count} | {agreeing} | {signs or ''} | {why} |")
    idle = {w for words in (REASONS | OPEN).values() for w in words.split()} - used
    if bare or idle:
        raise ValueError(
            f"without a reason: {sorted({x[:3] for x in bare})}; "
            f"reasons without numbers: {sorted(idle)}"
        )
    for reason, k in numbers.items():
        texts[reason] = f"{k}. {reason}: {total[reason]}."
    differing = sum(total[r] for r in numbers)
    return "\n".join([
        INTRODUCTION,
        f"{total['ops']} ops, {total['all']} numbers: {differing} differ, {total['signs']} more in "
        f"the sign of a zero; {total['exact']} ops agree in all.",
        "", "| op | numbers | agreeing | sign | differing (reason) |", "|---|---|---|---|---|",
        *rows, "", "## Reasons", "", *(texts[r] for r in REASONS), "", "Open, and lowtide's own:",
        "", *(texts[r] for r in OPEN), "",
    ])  # fmt: skip


def report(names: list[str]) -> None:
    """Print examples of all differences of some ops."""
    for op in names:
        for program in programs()[op]:
            for dtype in DTYPES:
                seen: Counter[tuple[str, str]] = Counter()
                for f in compare(op, program, dtype)[1]:
                    seen[f.order, f.kind] += 1
                    if seen[f.order, f.kind] <= SHOWN:
                        print(*f)


def main(arguments: list[str]) -> int:
    """Write the page, compare it, or show differences of ops; return the exit status."""
    if arguments == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    if arguments:
        report(arguments)
    else:
        PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
