"""Pages of the pool: what is booked as held, and what the system has back."""

import builtins
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.framework.memory import pool as pool_module
from lowtide.framework.memory.pages import Pages
from lowtide.framework.memory.pool import ALIGNMENT, LEAST_SLACK, Pool

PAGE = 256


class System:
    """Memory behind a pool: pages that were written, by block; what is live must not go."""

    def __init__(self, capacity: int, page: int) -> None:
        self.page = page
        self.resident: set[int] = set()
        self.live: dict[int, int] = {}
        self.pool = Pool(capacity, self.release, page)

    def release(self, offset: int, size: int) -> None:
        assert offset % self.page == size % self.page == 0
        assert size > 0
        for begin, length in self.live.items():
            assert begin + length <= offset or begin >= offset + size, "a living block lost a page"
        self.resident -= set(range(offset // self.page, (offset + size) // self.page))

    def take(self, size: int) -> None:
        offset = self.pool.take(size)
        if size:
            self.live[offset] = size
            self.resident |= set(range(offset // self.page, -(-(offset + size) // self.page)))

    def give(self, k: int) -> None:
        if self.live:
            offset = sorted(self.live)[k % len(self.live)]
            self.pool.give(offset, self.live.pop(offset))

    def check(self) -> None:
        # A page that is cut by the high mark is booked in part.
        booked = -(-self.pool.pages.high // self.page) * self.page - self.pool.pages.cold
        assert len(self.resident) * self.page <= booked
        assert self.pool.pages.cold == sum(b - a for a, b in self.pool.pages.ranges)
        assert self.pool.used <= self.pool.held


@pytest.mark.parametrize("seed", range(40))
def test_nothing_in_memory_is_missed_and_nothing_alive_goes(seed):
    draw = random.Random(seed)
    system = System(1 << 22, PAGE)
    pool = system.pool
    largest = draw.choice((8, 40, 200))
    for _ in range(1200):
        what = draw.random()
        if what < 0.5:
            system.take(draw.randrange(largest) * ALIGNMENT)
        elif what < 0.97:
            system.give(draw.randrange(1 << 20))
        elif what < 0.98:
            pool.trim()
            assert pool.held <= pool.used + 2 * PAGE * (len(system.live) + 1)
        else:
            pool.cap = draw.choice((1 << 62, pool.used, pool.used + 5000))
        system.check()
    for _ in range(len(system.live)):
        system.give(0)
    pool.trim()
    system.check()
    assert (pool.held, pool.top, system.resident) == (0, 0, set())


@pytest.mark.parametrize("seed", range(20))
def test_a_cap_holds_but_for_free_extents_of_less_than_a_page(seed):
    draw = random.Random(seed)
    system = System(1 << 24, PAGE)
    system.pool.cap = cap = 1 << 20
    high = 0
    for _ in range(1500):
        size = draw.choice((1, 3, 17, 200, 900)) * ALIGNMENT
        while system.pool.used + size > cap:
            system.give(draw.randrange(1 << 20))
        system.take(size)
        system.check()
        assert system.pool.held <= cap + 2 * PAGE * (len(system.live) + 1)
        high = max(high, system.pool.top)
    assert high > cap  # addresses were not within it
    assert system.pool.given > 0


@pytest.mark.parametrize("seed", range(10))
def test_a_search_within_the_cap_says_how_much_is_lacking(seed):
    draw = random.Random(seed)
    system = System(1 << 24, 4096)
    pool = system.pool
    for _ in range(300):
        system.take(512 * ALIGNMENT // 8)
    for _ in range(150):  # holes of one page and less
        system.give(draw.randrange(1 << 20))
    pool.cap = pool.used + (1 << 18)
    pool.trim()
    size = 1 << 20
    top, held = pool.top, pool.held
    lacking = pool.search(size, within=True)
    assert lacking == pool.held + size - pool.cap > LEAST_SLACK
    assert (pool.top, pool.held, pool.bins[size]) == (top, held, [])
    assert pool.search(size) == 0
    assert pool.bins[size]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(1, 20)), max_size=60))
@settings(deadline=None)
def test_cold_ranges_are_those_of_a_set_of_pages(steps):
    pages, cold = Pages(4), set()
    pages.take(0, 400)
    for give, begin, length in steps:
        mine = set(range(begin, begin + length))
        if give:
            inside = pages.inside(begin * 4, (begin + length) * 4)
            assert (inside[0] == inside[1]) == (mine <= cold)
            if inside[0] < inside[1]:
                assert pages.gone(*inside) == 4 * len(mine - cold)
            cold |= mine
        else:
            assert pages.more(begin * 4, (begin + length) * 4) == 4 * len(mine & cold)
            pages.take(begin * 4, (begin + length) * 4)
            cold -= mine
        assert pages.cold == 4 * len(cold)
        assert {k for a, b in pages.ranges for k in range(a // 4, b // 4)} == cold
        assert all(a < b for a, b in pages.ranges)
        assert all(x[1] < y[0] for x, y in zip(pages.ranges, pages.ranges[1:], strict=False))
    assert pages.high == 400
    pages.lower(120, Pool(0))
    assert (pages.high, pages.cold) == (120, 4 * len({k for k in cold if k < 30}))


@pytest.mark.parametrize("seed", range(30))
def test_finalizers_that_take_blocks_in_the_middle_of_a_search(monkeypatch, seed):
    # The collector may run at any allocation inside the pool, and a finalizer may then ask for a
    # block: here within whatever the pool calls. No two blocks may overlap, none may lose a page.
    draw = random.Random(seed)
    system = System(1 << 24, PAGE)
    pool, inside, taken = system.pool, [False], [0]

    def interrupted(function):
        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            if not inside[0] and draw.random() < 0.05:
                inside[0] = True
                try:
                    system.take(draw.choice((1, 3, 20)) * ALIGNMENT)
                    taken[0] += 1
                finally:
                    inside[0] = False
            return result

        return call

    for owner, names in (
        (Pages, ("more", "take", "inside", "gone", "warm_end", "_touching", "_cold_in")),
        (pool_module, ("bisect_left", "insort", "min", "max")),
    ):
        for name in names:
            kept = getattr(owner, name, None) or getattr(builtins, name)
            monkeypatch.setattr(owner, name, interrupted(kept), raising=False)

    def check():
        blocks = sorted(system.live.items())
        for (a, size), (b, _) in itertools.pairwise(blocks):
            assert a + size <= b, "two living blocks overlap"
        assert all(a + size <= pool.top for a, size in blocks)
        booked = -(-pool.pages.high // PAGE) * PAGE - pool.pages.cold
        assert len(system.resident) * PAGE <= booked

    for _ in range(400):
        what = draw.random()
        if what < 0.5:
            system.take(draw.choice((1, 2, 5, 30, 90)) * ALIGNMENT)
        elif what < 0.93:
            system.give(draw.randrange(1 << 20))
        elif what < 0.97:
            pool.trim()
        else:
            pool.cap = draw.choice((1 << 62, pool.used, pool.used + 5000))
        check()
    assert taken[0] > 20
