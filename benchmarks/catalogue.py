"""Every operator of PyTorch's catalogue beside PyTorch: which take many times its time, and where.

The samples of the catalogue are small. Each is timed as it comes, and repeated along its first dim
and along its last one up to 2**18 elements, where the operator takes that. So an operator that is
slow on short rows, on long ones, or for its Python shows. Both libraries compute in one process,
with one thread. Printed are the worst ratios; a line names the operator, the kind of sample and its
shapes. The whole catalogue takes half an hour.

    PYTHONPATH=. python -m benchmarks.catalogue [--dtype float32] [--only PART] [--worst 60]
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import lowtide as lt
from tests.parity import oracle

ELEMENTS = 1 << 18
SAMPLES = 3  # the largest of each operator
TOO_LONG_S = 0.3
MEMORY = 16 << 30  # of the process: what an operator makes too much of is an error


def leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor | lt.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from leaves(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same with each of PyTorch's tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(mapped(part, change) for part in value)
    if isinstance(value, dict):
        return {name: mapped(part, change) for name, part in value.items()}
    return value


def repeated(size: int, dim: int, times: int) -> Callable[[Any], Any]:
    """Return what repeats tensors along a dim, if they have that size there."""

    def change(t: Any) -> Any:
        if t.ndim == 0 or t.shape[dim] != size or t.numel() < 2:
            return t
        repeats = [1] * t.ndim
        repeats[dim] = times
        return t.detach().repeat(*repeats).requires_grad_(t.requires_grad)

    return change


def variants(sample: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (kind, arguments, named arguments) of a sample of the catalogue."""
    args, named = [sample.input, *sample.args], dict(sample.kwargs)
    yield "as it comes", args, named
    x = sample.input
    if isinstance(x, torch.Tensor) and x.ndim and x.numel():
        times = max(1, ELEMENTS // x.numel())
        for kind, dim in (("long first dim", 0), ("long last dim", -1))[: 1 + (x.ndim > 1)]:
            change = repeated(x.shape[dim], dim, times)
            yield kind, mapped(args, change), mapped(named, change)


def call(function: Any, args: Any, named: Any, backward: bool) -> Callable[[], None]:
    """Return what is timed."""
    inputs = [t for t in leaves([args, named]) if t.requires_grad]

    def run() -> None:
        found = function(*args, **named)
        if backward:
            sums = [(t.abs() if t.is_complex() else t).sum() for t in leaves(found)]
            for t in inputs:
                t.grad = None
            sum(s for s in sums if s.requires_grad).backward()

    return run


def least(run: Callable[[], None]) -> float:
    """The least seconds of a call, of some fifty milliseconds of calls."""
    run()
    start = time.perf_counter()
    run()
    found = time.perf_counter() - start
    for _ in range(min(200, int(0.05 / max(found, 1e-6)))):
        start = time.perf_counter()
        run()
        found = min(found, time.perf_counter() - start)
    return found


def compare(name: str, dtype: Any) -> Iterator[tuple[float, str]]:
    """Yield (ratio, line) for the samples of an operator."""
    operator = oracle.OPERATORS[name]
    gradients = operator.supports_autograd and dtype.is_floating_point
    mine = oracle.counterpart(operator)
    samples = list(operator.sample_inputs("cpu", dtype, requires_grad=gradients))
    samples.sort(key=lambda s: -sum(t.numel() for t in leaves([s.input, s.args, s.kwargs])))
    for sample in samples[:SAMPLES]:
        for kind, args, named in variants(sample):
            try:
                start = time.perf_counter()
                operator(*args, **named)
                if time.perf_counter() - start > TOO_LONG_S:
                    continue
                own = oracle.convert(args), oracle.convert(named)
                for backward in (False, True)[: 1 + gradients]:
                    theirs = least(call(operator, args, named, backward))
                    ours = least(call(mine, *own, backward))
                    sizes = [tuple(t.shape) for t in leaves([args, named])][:3]
                    way = "with backward" if backward else "forward"
                    yield (
                        ours / theirs,
                        f"{name}, {kind}, {way}, {sizes}: {ours * 1e6:.0f} us, {theirs * 1e6:.0f}",
                    )
            except Exception as problem:  # not every operator takes what is repeated
                yield 0.0, f"{name}, {kind}: {type(problem).__name__}"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="", help="operators with this in their name")
    parser.add_argument("--worst", type=int, default=60, help="how many lines to print")
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    lt.set_num_threads(1)
    found: dict[tuple[str, ...], tuple[float, str]] = {}
    for name, operator in sorted(oracle.OPERATORS.items()):
        if args.only not in name or dtype not in operator.dtypes:
            continue
        try:
            for ratio, line in compare(name, dtype):
                key = tuple(line.split(", ")[:3])  # the operator, the kind, the way
                found[key] = max(found.get(key, (0.0, "")), (ratio, line))
        except (oracle.Absent, oracle.NotComparable):
            continue
    for ratio, line in sorted(found.values(), reverse=True)[: args.worst]:
        print(f"{ratio:7.1f}  {line}")


if __name__ == "__main__":
    main()
