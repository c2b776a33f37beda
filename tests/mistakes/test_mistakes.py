"""What people get wrong is refused with the rule, the values and the way out."""

import pytest

from tests.mistakes.catalog import SECTIONS
from tests.mistakes.page import PAGE, made

MISTAKES = [mistake for section in SECTIONS.values() for mistake in section]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.code.split("\n")[0][:60])
def test_a_mistake_is_answered(mistake):
    error, text = made(mistake)
    assert error == mistake.error, text
    for part in (mistake.rule, mistake.values, mistake.way_out):
        assert part is None or part in text


def test_the_page_has_them_all():
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) == len(MISTAKES)
    for row, mistake in zip(rows, MISTAKES, strict=True):
        assert mistake.error in row
        assert all(line.replace("|", "\\|") in row for line in mistake.code.splitlines())
