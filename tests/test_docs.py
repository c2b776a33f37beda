"""The documentation: its code runs, its quotes are the source's, its links lead somewhere."""

import ast
import contextlib
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import lowtide as lt

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    path
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    if path.is_file() and "```python" in path.read_text()
]

QUICK = ("README.md", "add_an_op.md", "memory_model.md")
RUN = [pytest.param(p, marks=() if p.name in QUICK else pytest.mark.deep) for p in PAGES]


@pytest.mark.parametrize("page", RUN, ids=lambda p: p.name)
def test_python_blocks_of_a_page_run_in_order(page, tmp_path):
    """In an interpreter of their own, as a reader would: pages state byte counts."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert blocks
    run("\n".join(blocks), tmp_path)


def run(code, folder):
    script = folder / "page.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def code_of(notebook):
    """Its code cells as one program; the value of a cell's last line is printed, not shown."""
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(line for line in cell["source"] if not line.startswith("%"))
            tree = ast.parse(code)
            if tree.body and isinstance(tree.body[-1], ast.Expr):
                last = tree.body[-1]
                last.value = ast.Call(ast.Name("print", ast.Load()), [last.value], [])
            yield ast.unparse(ast.fix_missing_locations(tree))


@pytest.mark.deep
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.name)
def test_the_cells_of_a_notebook_run_in_order(notebook, tmp_path):
    """Without Jupyter; building the site runs them in a kernel."""
    run("\n".join(code_of(notebook)), tmp_path)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_hold_their_outputs(notebook):
    """As ``docs/run_notebooks.py`` stores them: cells in order, no error, no path of a machine."""
    text = notebook.read_text()
    cells = [c for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    outputs = [output for c in cells for output in c["outputs"]]
    assert len(outputs) >= len(cells) // 2
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert not re.search(r"(?<![\w<])/(?:tmp|home|root|work|usr|opt)/", text)


TEXTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]
)


@pytest.mark.parametrize("page", TEXTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        name, _, heading = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), target
        assert not heading or heading in headings(there), target


def headings(page):
    """The anchors that GitHub and the site make of a page's headings."""
    lines = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


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


SPOKEN = re.compile(r"(?<![\w./'\"-])(lt|lowtide|nn|optim|ck)((?:\.[A-Za-z_]\w*)+)")
CALLED = {"lt": lt, "lowtide": lt, "nn": lt.nn, "optim": lt.optim, "ck": lt.checkpointing}
OPTIONAL = {"lowtide.nn.einops": "einops"}  # names that need another package


def spoken(page: Path) -> set[str]:
    """Names of ours in the code of a page: ``lt.randn``, ``ck.offload``."""
    code = re.findall(r"```.*?```|`[^`\n]+`", page.read_text(), re.DOTALL)
    return {found.group() for text in code for found in SPOKEN.finditer(text)}


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_names_in_code_exist(page):
    missing = []
    for name in sorted(spoken(page)):
        if ".as_torch" in name:  # to import it names dtypes as PyTorch does, in all of the process
            continue
        if name in OPTIONAL and importlib.util.find_spec(OPTIONAL[name]) is None:
            continue
        root, *parts = name.split(".")
        value = CALLED[root]
        for part in parts:
            if not hasattr(value, part) and isinstance(value, types.ModuleType):
                with contextlib.suppress(ImportError):
                    importlib.import_module(f"{value.__name__}.{part}")
            if not hasattr(value, part):
                missing.append(name)
                break
            value = getattr(value, part)
    assert missing == []
