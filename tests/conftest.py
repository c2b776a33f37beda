"""Fixtures for all tests: seed and defaults, devices, an end to what hangs, the leak check."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import lowtide as lt
from lowtide.framework.devices import backend, live_backends
from lowtide.framework.kernels.cpu.compiler import library
from lowtide.framework.kernels.runtime import cache_folder
from tests.samples import fresh_start

# Seconds after which a test hangs. No test takes a tenth of it, also where work beside it takes the
# cores and kernels have to be compiled first: it ends what waits for ever, and judges no speed.
HANGS = 900


# What a compiled kernel may be compiled for: each takes about a second.
VARIANTS = set("float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64".split())


def parse_share(text: str) -> tuple[int, int]:
    """Read ``K/N``, a share of N shares, counted from 0."""
    try:
        k, count = map(int, text.split("/"))
    except ValueError:
        raise pytest.UsageError(f"--share takes K/N, for example 0/8, not {text!r}") from None
    if not 0 <= k < count:
        raise pytest.UsageError(f"--share takes K/N with K from 0 to N - 1, not {text!r}")
    return k, count


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run take a share of the selected tests: all shares together run each of them once."""
    parser.addoption("--share", metavar="K/N", help="run every Nth test, from the Kth on (from 0)")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Mark the deep tests before -m selects, and keep a share of what it has selected."""
    mark_deep(items)
    yield
    share = config.getoption("--share")
    if share:
        k, count = parse_share(share)
        others = [item for n, item in enumerate(items) if n % count != k]
        items[:] = items[k::count]
        config.hook.pytest_deselected(items=others)


def mark_deep(items: list[pytest.Item]) -> None:
    """Mark as deep what compiles for another dtype than float32, and all but the quick cases."""
    cases: dict[Any, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("compiled"):
            given = item.callspec.params.values()  # type: ignore[attr-defined]
            if any(str(getattr(v, "name", getattr(v, "__name__", v))) in VARIANTS for v in given):
                item.add_marker(pytest.mark.deep)
        if item.get_closest_marker("quick") and not item.get_closest_marker("deep"):
            cases.setdefault((item.path, item.function), []).append(item)  # type: ignore[attr-defined]
    for mine in cases.values():
        most = mine[0].get_closest_marker("quick").args[0]  # type: ignore[union-attr]
        count = len(mine)
        quick = {k * count // most for k in range(most)} if most < count else range(count)
        for k, item in enumerate(mine):
            if k not in quick:
                item.add_marker(pytest.mark.deep)


# Many tests ask for a garbage collection, or fork. What lives on from test to test (thousands of
# test items, plans, what the compiler knows, reports) would be gone through each time: it is put
# aside, after each file and when going through it has taken long.
PATIENCE = 0.005  # seconds for a collection


class _Collections:
    """Told of each full collection: how long it took."""

    slow = False
    _start = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            if phase == "start":
                self._start = time.perf_counter()
            elif time.perf_counter() - self._start > PATIENCE:
                self.slow = True


collections = _Collections()
gc.callbacks.append(collections)


def put_aside() -> None:
    """Leave what is alive now to itself."""
    gc.collect()
    gc.freeze()
    collections.slow = False


def pytest_collection_finish(session: pytest.Session) -> None:
    """Put aside what collecting the tests has made."""
    put_aside()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what takes long before the first test ends, and where compiled kernels go."""
    found = ["collecting 36,000 tests, in each process, takes a quarter of a minute"]
    try:
        count, _ = library.inventory()
    except cache_folder.Unusable as error:
        return [*found, f"compiled kernels are not kept ({error}): expect half an hour"]
    return [*found, f"{count} compiled kernels in {library.folder()}; what is missing is compiled"]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Put aside what a file of tests leaves behind, or what makes collections slow."""
    if collections.slow or nextitem is None or nextitem.path != item.path:
        put_aside()


@pytest.fixture(autouse=True)
def seed() -> Iterator[int]:
    """Start each test from one seed and the default dtype and device."""
    with fresh_start():
        yield 0


@pytest.fixture(params=["cpu", "meta", "sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> lt.device:
    """Each device that this machine has."""
    found = lt.device(request.param)
    if found.type in ("cuda", "sim"):
        try:
            backend(found)
        except (RuntimeError, ImportError) as error:
            pytest.skip(f"no {found.type} device: {error}")
    return found


@pytest.fixture
def leak_check() -> Iterator[None]:
    """Fail if the test leaves live bytes on any device, without help from the cycle collector."""
    gc.collect()
    before = {b.device: b.ledger.live for b in live_backends()}
    gc.disable()
    try:
        yield
        left = {
            str(b.device): b.ledger.live - before.get(b.device, 0)
            for b in live_backends()
            if b.ledger.live != before.get(b.device, 0)
        }
    finally:
        gc.enable()
    assert not left, f"bytes still live after the test: {left}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """End a test that hangs, with a traceback of where it stands."""
    if threading.current_thread() is not threading.main_thread():
        return (yield)

    def stop(*_: object) -> None:
        pytest.fail(f"{item.nodeid} hangs: it took more than {HANGS} s", pytrace=True)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, HANGS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
