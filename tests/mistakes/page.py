"""``docs/mistakes.md``: ``python -m tests.mistakes.page`` writes it."""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from pathlib import Path

import lowtide as lt
from tests.mistakes.catalog import NAMES, SECTIONS, Mistake

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mistakes.md"

HEAD = """# Mistakes, and what the messages say

{count} mistakes that people make, tried, with the message of each. A message names the rule, the
values that broke it and a way out; a test holds the three for each line of these tables
(`tests/mistakes`). {rule} name the rule, {values} the values, {way_out} a way out: where one is
missing there is nothing to say.

This page is made by `python -m tests.mistakes.page`.
"""


def made(mistake: Mistake) -> tuple[str, str]:
    """Make a mistake in an empty folder: the class of its error or warning, and the text."""
    there, names = Path.cwd(), {"__name__": "mistake"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        os.chdir(folder)
        try:
            exec(NAMES + mistake.code, names)
        except Exception as error:
            return type(error).__name__, str(error).replace(folder + os.sep, "")
        finally:
            os.chdir(there)
            lt.set_memory_limit(None)
    user = [w for w in caught if not issubclass(w.category, ResourceWarning)]
    return (user[-1].category.__name__, str(user[-1].message)) if user else ("", "")


def _row(mistake: Mistake) -> str:
    error, text = made(mistake)
    code = "<br>".join(f"`{line}`" for line in mistake.code.splitlines())
    lines = [line.strip() for line in text.splitlines() if not line.startswith("  ")]
    cells = code, f"`{error}`: " + "<br>".join(re.sub(r"([`*_<])", r"\\\1", line) for line in lines)
    return "| {} | {} |".format(*(cell.replace("|", "\\|") for cell in cells))


def page() -> str:
    """The page, in Markdown."""
    every = [mistake for section in SECTIONS.values() for mistake in section]
    parts = ("rule", "values", "way_out")
    named = {part: sum(getattr(m, part) is not None for m in every) for part in parts}
    text = [HEAD.format(count=len(every), **named)]
    for title, section in SECTIONS.items():
        text += [f"## {title}\n", "| mistake | message |\n|---|---|"]
        text += [*map(_row, section), ""]
    return "\n".join(text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
