"""The code on the documentation's pages runs."""

import gc
import re
from pathlib import Path

import pytest

from lowtide.framework.ops.registry import FUNCTIONS, OPS
from lowtide.framework.tensor import Tensor

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    path
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    if path.is_file() and "```python" in path.read_text()
]


@pytest.fixture
def registry():
    """The registry, which pages may add to, as it was."""
    ops, functions, methods = dict(OPS), dict(FUNCTIONS), dict(vars(Tensor))
    yield
    for store, before in ((OPS, ops), (FUNCTIONS, functions)):
        store.clear()
        store.update(before)
    for name in set(vars(Tensor)) - set(methods):
        delattr(Tensor, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_of_a_page_run_in_order(page, registry):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    scope = {"__name__": "page"}
    gc.collect()  # what earlier tests left would be in a page's figures
    for block in blocks:
        exec(compile(block, str(page), "exec"), scope)
    assert blocks
