"""One test per op and check, which goes over the op's samples and names each that fails.

A check is written for one sample. It starts as a test of its own would: from one seed, from the
default dtype and device.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.distributions.sampling import implicit_gradients as _draws  # noqa: F401 - and its ops
from lowtide.framework.dtypes import dtype, float64
from lowtide.framework.ops.registry import OPS, Op

Check = Callable[..., None]


@contextmanager
def fresh_start() -> Iterator[None]:
    """Start from one seed and the default dtype and device, and end with them.

    Raises:
        AssertionError: What ran left grad mode switched off.
    """
    dtype, device = lt.get_default_dtype(), lt.get_default_device()
    lt.manual_seed(0)
    try:
        yield
    finally:
        lt.set_default_dtype(dtype)
        lt.set_default_device(device)
        left_off = not lt.is_grad_enabled()
        lt.set_grad_enabled(True)
    assert not left_off, "the test left grad mode switched off"


def over_samples(
    check: Check | None = None, *, made_in: dtype = float64, of: Callable[[Op], bool] | None = None
) -> Any:
    """Make a check of one sample a test of each op, which goes over all its samples.

    Args:
        check: Takes an op, the inputs and the attributes of a sample, and fixtures.
        made_in: What the samples' floating tensors are of, unless the check takes a ``dtype``.
        of: Which ops; without it, all.
    """
    if check is None:
        return functools.partial(over_samples, made_in=made_in, of=of)
    parameters = list(inspect.signature(check).parameters.values())
    names = [p.name for p in parameters]
    assert names[:3] == ["op", "inputs", "attributes"], f"{check.__name__} takes {names}"

    def test(op: str, **fixtures: Any) -> None:
        go_over(OPS[op], check, fixtures.get("dtype", made_in), fixtures)

    test.__dict__.update(check.__dict__)  # marks
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(test, name, getattr(check, name))
    test.__wrapped__ = check  # where the test stands
    test.__signature__ = inspect.Signature([parameters[0], *parameters[3:]])  # fixtures
    chosen = [n for n, op in OPS.items() if of is None or of(op)]
    return pytest.mark.parametrize("op", chosen)(test)


def go_over(op: Op, check: Check, made_in: dtype, fixtures: dict[str, Any]) -> None:
    """Run a check on each sample of an op, also after one that failed.

    Raises:
        ExceptionGroup: Some failed. Its message has their numbers, a note of each what it is.
    """
    declared = testing.samples(op, testing.Make(made_in))
    failed: dict[int, Exception] = {}
    for number, (inputs, attributes) in enumerate(declared):
        note = f"sample {number}: {testing.describe(inputs, attributes)}"
        try:
            with fresh_start():
                check(op, inputs, attributes, **fixtures)
        except Exception as error:
            error.add_note(note)
            failed[number] = error
        except BaseException as error:  # out of time, or Ctrl+C
            error.add_note(note)
            raise
    if failed:
        which = f"sample{'s' * (len(failed) > 1)} {', '.join(map(str, failed))}"
        message = f"{op.name}: {which} of {len(declared)}"
        raise ExceptionGroup(message, list(failed.values()))
