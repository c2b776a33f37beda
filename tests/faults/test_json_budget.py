"""JSON in a file takes what it may, or is refused: drawn structures, weighed by their peak."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable

import pytest

import lowtide as lt
from lowtide.framework.serialization import size_budget

from .bombs import ours, peak

BASE = 256 << 10  # bytes for any file, so small that the text's length decides
FIRST = 16 << 10  # bytes of what one load takes besides its values

# One of many parts of a list, by its place.
PARTS: dict[str, Callable[[int], str]] = {
    "empty lists": lambda k: "[]",
    "lists of one": lambda k: "[1]",
    "pairs": lambda k: "[1,2]",
    "pairs of own numbers": lambda k: f"[{k + 300},{k + 1000}]",
    "lists of lists": lambda k: "[[]]",
    "empty dicts": lambda k: "{}",
    "dicts of one": lambda k: '{"":0}',
    "dicts of two": lambda k: '{"a":0,"b":1}',
    "dicts of own keys": lambda k: f'{{"{k:x}":0}}',
    "numbers": lambda k: str(300 + k % 700),
    "negative": lambda k: "-6",
    "floats": lambda k: "1e9",
    "texts": lambda k: f'"{k:x}"',
    "texts of four bytes a letter": lambda k: '"\U0001f600\U0001f601"',
    "texts of brackets": lambda k: '"[],{},"',
    "texts of escapes": lambda k: r'"\"\\[\""',
    "nothing": lambda k: "null",
    "tuples": lambda k: '{"$":"tuple","items":[]}',
    "tuples of two": lambda k: '{"$":"tuple","items":[1,2]}',
    "floats by name": lambda k: '{"$":"float","value":"nan"}',
    "sets": lambda k: '{"$":"set","items":[1]}',
    "dicts of pairs": lambda k: '{"$":"dict","items":[[1,2]]}',
    "deques": lambda k: '{"$":"deque","items":[[],null]}',
    "meta tensors": lambda k: '{"$":"tensor","meta":{"shape":[1],"dtype":"int8"}}',
}
WHOLE: dict[str, Callable[[int], str]] = {
    "a dict of own keys": lambda n: "{" + ",".join(f'"{k:x}":0' for k in range(n)) + "}",
    "pairs in a dict": lambda n: (
        '{"$":"dict","items":[' + ",".join(f"[{k},0]" for k in range(n)) + "]}"
    ),
    "a set": lambda n: '{"$":"set","items":[' + ",".join(map(str, range(n))) + "]}",
    "a tuple": lambda n: '{"$":"tuple","items":[' + ",".join(map(str, range(n))) + "]}",
}


def drawn(seed: int) -> str:
    """A text of one kind of part, or of several in turns, or in a nest."""
    draw = random.Random(seed)
    count = draw.randrange(2_000, 40_000)
    if draw.random() < 0.2:
        return draw.choice(list(WHOLE.values()))(count)
    kinds = draw.sample(list(PARTS.values()), draw.choice((1, 1, 2, 4)))
    parts = [kinds[k % len(kinds)](k) for k in range(count)]
    if draw.random() < 0.3:  # groups, in a list each
        width = draw.randrange(1, 20)
        parts = [f"[{','.join(parts[k : k + width])}]" for k in range(0, count, width)]
    return f"[{','.join(parts)}]"


def check(text: str) -> bool:
    """Load a text; returns whether it was accepted."""
    data = ours(text)
    limit = len(data) + BASE + size_budget.PER_JSON * len(text)
    taken = peak(data)
    assert taken <= limit + FIRST, f"{taken} of {limit} bytes: {text[:80]}"
    try:
        found = lt.load(io.BytesIO(data))
    except lt.SerializationError as error:
        assert "a file of its size may have" in str(error)
        return False
    if '"$"' not in text:
        assert found == json.loads(text)
    return True


@pytest.fixture(autouse=True)
def _small_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_budget, "BASE", BASE)
    lt.load(io.BytesIO(ours([])))  # what is imported then


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["pairs", "dicts of two", "texts of escapes", "tuples of two"])
def test_each_kind_takes_what_it_may(name: str) -> None:
    assert check("[" + ",".join(map(PARTS[name], range(30_000))) + "]")


@pytest.mark.deep
@pytest.mark.parametrize("block", range(10))
def test_drawn_structures_take_what_they_may(block: int) -> None:
    accepted = sum(check(drawn(seed)) for seed in range(25 * block, 25 * block + 25))
    assert accepted > 5  # most are no bombs
