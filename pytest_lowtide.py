"""The pytest plugin of lowtide: exact limits on the memory of a test.

    @pytest.mark.limit_memory("24 MiB")
    def test_a_step_fits(): ...

A separate module beside the package, so that pytest, which imports its plugins when it starts,
imports nothing of lowtide before a test asks for it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from lowtide.profiling.assertions import MemoryCheck

MARK = "limit_memory"
USAGE = f"{MARK}(size, device=None, predict=False)"


class Limit(NamedTuple):
    """What one mark says; its fields are the mark's arguments."""

    size: int | str
    device: Any = None
    predict: bool = False


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers",
        f'{USAGE}: fail if the test takes more than size ("24 MiB", or bytes) of a device\'s '
        "memory at once, above what was alive when it began; with predict=True nothing is "
        "computed, and the prediction is judged.",
    )


@pytest.fixture
def lowtide_memory() -> MemoryCheck:
    """Assertions on peaks and leaks: ``limit``, ``no_leak``, ``steady``, ``peak``."""
    from lowtide.profiling.assertions import MemoryCheck

    return MemoryCheck()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """Run a marked test within its limits; its fixtures are there already, and do not count."""
    limits = _limits(item)
    if not limits:
        return (yield)
    if not isinstance(item, pytest.Function) or inspect.iscoroutinefunction(item.obj):
        pytest.fail(f"{MARK} judges test functions that are not async; {item.name} is none.", False)
    plain = item.obj
    item.obj = _judged(plain, limits, item.name)
    try:
        return (yield)
    finally:
        item.obj = plain


def _limits(item: pytest.Item) -> list[Limit]:
    # Of several marks the nearest counts, for each device.
    found: dict[str, Limit] = {}
    for mark in item.iter_markers(MARK):
        try:
            limit = Limit(*mark.args, **mark.kwargs)
        except TypeError as error:
            pytest.fail(f"{USAGE} was given {mark.args}, {mark.kwargs}: {error}.", False)
        found.setdefault(str(limit.device), limit)
    return list(found.values())


def _judged(plain: Callable[..., Any], limits: list[Limit], name: str) -> Callable[..., Any]:
    from lowtide.profiling.assertions import judge_call

    def run(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        call: Callable[[], Any] = functools.partial(plain, *args, **kwargs)
        predict = any(limit.predict for limit in limits)  # then the test is not run
        broken: list[str] = []

        def within(rest: list[Limit]) -> None:
            __tracebackhide__ = True
            if not rest:
                call()
                return
            limit = rest[0]
            inner = call if predict else functools.partial(within, rest[1:])
            text = judge_call(inner, limit.size, limit.device, predict, name)
            if text is not None:
                broken.append(text)
            if predict and rest[1:]:
                within(rest[1:])

        within(limits)
        if broken:
            pytest.fail("\n\n".join(broken), pytrace=False)

    return run
