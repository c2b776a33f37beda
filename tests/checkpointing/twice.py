"""Run the same code plain and checkpointed, and compare what can be seen: bit for bit.

A *step* is a function of one argument, ``region``: it calls ``region(f, *args, **kwargs)`` where a
program would call ``checkpoint``, and returns whatever is to be compared: tensors and numbers in
tuples, lists and dicts. It starts from the same seed both times, and the state of the generators
after it is compared too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowtide as lt
from lowtide.framework.devices import backend

Step = Callable[[Callable[..., Any]], Any]


def plain(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What stands for ``checkpoint`` in the plain run."""
    return function(*args, **kwargs)


def copying(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A plain run that keeps copies, so that no write in place is refused."""
    with lt.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        return function(*args, **kwargs)


def bits(value: Any) -> Any:
    """A value as something that is equal if and only if every bit is."""
    if isinstance(value, lt.Tensor):
        value = value.detach().to_dense().cpu().contiguous()
        return value.dtype.name, tuple(value.shape), value.array.tobytes()
    if isinstance(value, dict):
        return {k: bits(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [bits(v) for v in value]
    return value


def outcome(step: Step, region: Callable[..., Any], seed: int = 3) -> Any:
    """What a step returns, and where it leaves the generators of random numbers."""
    lt.manual_seed(seed)
    found = bits(step(region))
    return found, bits(lt.get_rng_state())


def assert_same(step: Step, reference: Callable[..., Any] = plain) -> None:
    """Fail unless a step does the same checkpointed as plain."""
    expected, state = outcome(step, reference)
    found, after = outcome(step, lt.checkpoint)
    _compare(found, expected, "result")
    assert after == state, "the generator of random numbers is elsewhere than after the plain run"


def _compare(found: Any, expected: Any, where: str) -> None:
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        for k, (f, e) in enumerate(zip(found, expected, strict=True)):
            _compare(f, e, f"{where}[{k}]")
    elif isinstance(expected, dict) and isinstance(found, dict) and list(found) == list(expected):
        for k in expected:
            _compare(found[k], expected[k], f"{where}[{k!r}]")
    else:
        assert found == expected, f"{where} differs"


def gradients(output: Any, *leaves: lt.Tensor) -> list[Any]:
    """The gradients of the sum of an output, weighted so that no two elements count alike."""
    weight = lt.arange(1, output.numel() + 1, dtype=output.dtype, device=output.device)
    (output * weight.view(output.shape).cos()).sum().backward()
    return [leaf.grad for leaf in leaves]


def message_of(run: Callable[[], Any], kind: type[Exception]) -> str:
    """The message of the error that something raises; the error itself keeps nothing alive."""
    try:
        run()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def live(device: Any = "cpu") -> int:
    """Bytes that the ledger of a device holds now."""
    return int(backend(lt.device(device)).ledger.live)


def peak_of(run: Callable[[], Any], device: Any = "cpu") -> int:
    """How far the ledger rises above where it stands while something runs."""
    ledger = backend(lt.device(device)).ledger
    before = ledger.live
    ledger.reset_peak()
    run()
    return int(ledger.peak - before)
