"""The code on the documentation's pages runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    path
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    if path.is_file() and "```python" in path.read_text()
]


QUICK = ("README.md", "add_an_op.md", "memory_model.md")
RUN = [pytest.param(p, marks=() if p.name in QUICK else pytest.mark.deep) for p in PAGES]


@pytest.mark.parametrize("page", RUN, ids=lambda p: p.name)
def test_python_blocks_of_a_page_run_in_order(page, tmp_path):
    """In an interpreter of their own, as a reader would: pages state byte counts."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr


QUOTES = [
    pytest.param(path, quote, id=f"{path.name}-{file}")
    for path in sorted((ROOT / "docs").glob("*.md"))
    for block in re.findall(r"```py\n(.*?)```", path.read_text(), re.S)
    for file, quote in re.findall(r"# (\w[\w/]+\.py)[^\n]*\n(.*?)(?=\n+# \w+/|\Z)", block, re.S)
    for quote in [(file, quote.strip())]
]


@pytest.mark.parametrize(("page", "quote"), QUOTES)
def test_a_page_quotes_the_source_as_it_stands(page, quote):
    file, text = quote
    assert text
    assert text in (ROOT / file).read_text()
