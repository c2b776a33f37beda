"""Sizes as text: one parser, for every function that takes bytes."""

import pytest

import lowtide as lt
from lowtide.framework.checkpointing.policies import selector
from lowtide.framework.memory.sizes import as_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200MiB", 200 << 20),
        ("200 mib", 200 << 20),
        ("1.5GiB", 3 << 29),
        ("2TB", 2 * 10**12),
        ("64kb", 64000),
        ("0", 0),
        (" 7 B ", 7),
        ("1_000", 1000),
        (".5KiB", 512),
        (12, 12),
        ("0.1KB", 100),
    ],
)
def test_text_is_parsed_exactly(text, expected):
    assert as_bytes(text, "f: limit") == expected


@pytest.mark.parametrize("text", ["", "MiB", "2 pounds", "-1GiB", "1e9", "inf", "2G", "1 MB 2"])
def test_other_text_is_refused_with_the_units(text):
    with pytest.raises(ValueError, match=r"f: limit is a size in bytes; got .*KiB.*'200MiB'"):
        as_bytes(text, "f: limit")


def test_every_public_size_may_be_text():
    lt.set_memory_limit("200MiB")
    try:
        assert lt.get_memory_limit() == 200 << 20
    finally:
        lt.set_memory_limit(None)
    ck = lt.checkpointing
    assert ck.offload(min_bytes="4KiB").min_bytes == 4096
    assert ck.pack(min_bytes="1KiB").min_bytes == 1024
    disk = ck.offload_to_disk(limit="1GiB", min_bytes="64KiB")
    assert (disk.limit, disk.min_bytes) == (1 << 30, 1 << 16)
    with pytest.raises(TypeError, match="offload_to_disk: limit takes bytes as an int, or text"):
        ck.offload_to_disk(limit=0.5)
    with pytest.raises(ValueError, match="pack: min_bytes takes a non-negative"):
        ck.pack(min_bytes=-1)
    net = lt.nn.Linear(4, 4)
    advice = lt.profiling.advise(lambda: net(lt.ones(2, 4)).sum().backward(), limit="1GiB")
    assert advice.limit_bytes == 1 << 30


def test_a_selector_takes_the_same_units():
    assert selector("bytes>=1.5mib & numel<100")
    assert selector("bytes>=1TiB")
    with pytest.raises(ValueError, match="selects no values"):
        selector("bytes>=1 pound")
