"""The pool: where blocks lie, whatever is asked in whatever order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.framework.memory.pool import ALIGNMENT, Pool

SIZES = st.integers(min_value=0, max_value=12).map(lambda n: n * ALIGNMENT)
# Take a block of a size, give back the k-th living one, fold everything.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), SIZES),
        st.tuples(st.just("give"), st.integers(min_value=0, max_value=50)),
        st.tuples(st.just("trim"), st.just(0)),
    ),
    max_size=80,
)


def replay(steps, check=lambda pool, live: None, capacity=1 << 20):
    pool = Pool(capacity, page=ALIGNMENT)
    live: list[tuple[int, int]] = []
    offsets = []
    for what, n in steps:
        if what == "take":
            offset = pool.take(n)
            offsets.append(offset)
            live.append((offset, n))
        elif what == "give" and live:
            pool.give(*live.pop(n % len(live)))
        elif what == "trim":
            pool.trim()
        check(pool, live)
    return offsets, pool, live


def no_overlap(pool, live):
    end = 0
    for offset, size in sorted(b for b in live if b[1]):
        assert offset % ALIGNMENT == 0
        assert offset >= end, "two living blocks overlap"
        end = offset + size
    assert end <= pool.top <= pool.capacity
    assert pool.used <= pool.held <= pool.peak <= pool.capacity


def used_is_exact(pool, live):
    assert pool.used == sum(size for _, size in live)


@given(STEPS)
@settings(deadline=None)
def test_living_blocks_are_aligned_and_never_overlap(steps):
    replay(steps, no_overlap)


@given(STEPS)
@settings(deadline=None)
def test_used_is_the_sum_of_the_living_blocks(steps):
    replay(steps, used_is_exact)


@given(STEPS)
@settings(deadline=None)
def test_the_same_requests_get_the_same_offsets(steps):
    assert replay(steps)[0] == replay(steps)[0]


@given(STEPS)
@settings(deadline=None)
def test_trim_leaves_free_exactly_what_nobody_holds(steps):
    released: list[tuple[int, int]] = []
    _, pool, live = replay([s for s in steps if s[0] != "trim"])
    pool.release = lambda offset, size: released.append((offset, size))
    old_top = pool.pages.high
    pool.trim()
    held = {o + k for o, size in live for k in range(0, size, ALIGNMENT)}
    freed = [o + k for o, size in released for k in range(0, size, ALIGNMENT)]
    freed = [o for o in freed if o < old_top]  # a huge page's rest comes along
    assert len(freed) == len(set(freed))
    assert held.isdisjoint(freed)
    assert held.union(freed) == set(range(0, old_top, ALIGNMENT))
    assert pool.top == max((o + size for o, size in live if size), default=0)
    assert pool.held == pool.used


@given(STEPS)
@settings(deadline=None)
def test_with_everything_given_back_one_large_block_fits_again(steps):
    _, pool, live = replay(steps)
    for block in live:
        pool.give(*block)
    assert pool.used == 0
    assert pool.take(pool.capacity) == 0


def test_the_last_block_freed_is_the_next_one_used():
    pool = Pool(1 << 20)
    a, b = pool.take(128), pool.take(128)
    pool.give(a, 128)
    pool.give(b, 128)
    assert (pool.take(128), pool.take(128)) == (b, a)


def test_the_smallest_gap_that_fits_is_taken():
    pool = Pool(1 << 20)
    blocks = [(pool.take(size), size) for size in (256, 64, 192, 64, 512, 64)]
    for k in (0, 2, 4):
        pool.give(*blocks[k])
    pool.trim()
    assert pool.largest_free == 512
    assert pool.take(128) == blocks[2][0]
    assert pool.take(64) == blocks[2][0] + 128  # the rest of that gap
    assert pool.take(448) == blocks[4][0]


def test_a_full_pool_refuses_and_stays_whole():
    pool = Pool(1024)
    a = pool.take(512)
    with pytest.raises(MemoryError, match="512 of 1024 taken"):
        pool.take(576)
    assert (pool.used, pool.top) == (512, 512)
    pool.give(a, 512)
    assert pool.take(1024) == 0


def test_empty_blocks_take_no_room():
    pool = Pool(128)
    for _ in range(10):
        pool.give(pool.take(0), 0)
    held = [pool.take(0) for _ in range(10)]
    assert held == [0] * 10
    assert (pool.used, pool.top) == (0, 0)
    assert pool.take(128) == 0


def test_peak_is_the_highest_reserved_until_it_is_reset():
    pool = Pool(1 << 20)
    a = pool.take(1024)
    pool.give(a, 1024)
    pool.trim()
    assert (pool.top, pool.peak) == (0, 1024)
    pool.reset_peak()
    assert pool.peak == 0


def test_a_request_from_inside_a_search_disturbs_nothing():
    inside: list[int] = []
    # What a finalizer does that the collector starts while the pool is being changed.
    pool = Pool(1 << 20, lambda offset, size: inside.append(pool.take(64)), page=64)
    blocks = [(pool.take(64), 64) for _ in range(6)]
    for k in (0, 2, 4):
        pool.give(*blocks[k])
    pool.trim()
    assert len(inside) == 3
    taken = [pool.take(64) for _ in range(4)]
    held = [blocks[k][0] for k in (1, 3, 5)] + inside + taken
    assert len(set(held)) == len(held)
    assert pool.used == 64 * len(held)
