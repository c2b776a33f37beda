"""``lowtide run`` and ``lowtide recipes``: the training scripts that come with lowtide."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterator, Sequence
from importlib import util
from pathlib import Path

USAGE_ERROR = 2


def run(name: str | None, args: Sequence[str]) -> int:
    """Run a recipe as a script, with its own arguments.

    Returns:
        Its exit code, or 2 if there is no such recipe.
    """
    known = {path.stem: path for path, _ in find_recipes()}
    if name is None:
        print(
            "lowtide run takes the name of a recipe, as in `lowtide run digits`. `lowtide recipes` "
            f"lists them: {', '.join(known) or 'none installed'}.",
            file=sys.stderr,
        )
        return USAGE_ERROR
    name = name.removesuffix(".py").replace("-", "_")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        print(
            f"lowtide run takes the name of a recipe; got {name!r}. {hint}"
            f"`lowtide recipes` lists them: {', '.join(known) or 'none installed'}.",
            file=sys.stderr,
        )
        return USAGE_ERROR
    import runpy

    before = sys.argv
    sys.argv = [name, *args]
    try:
        # By its path: under pytest, which rewrites plugins, the module's loader has no code to run.
        runpy.run_path(str(known[name]), run_name="__main__")
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    finally:
        sys.argv = before
    return 0


def recipes() -> int:
    """Print a table: what each recipe shows, what it costs, and its result."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    known = list(find_recipes())
    if not known:
        print("no recipes are installed")
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("recipe", style="bold", no_wrap=True)
    for heading in ("what it shows", "cost", "result"):
        table.add_column(heading, overflow="fold")
    for path, text in known:
        cells = text.partition("\n")[0], stated(text, "Cost"), stated(text, "Result")
        table.add_row(path.stem, *[Text(cell.replace("`", "")) for cell in cells])
    Console(highlight=False).print(table)
    print("\nCost: time on one busy CPU core, and peak memory. Run one with: lowtide run NAME")
    return 0


def stated(text: str, heading: str) -> str:
    """A paragraph of a docstring that begins with ``heading:``, on one line; "" if none does."""
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(f"{heading}: "):
            return " ".join(paragraph.removeprefix(f"{heading}: ").split())
    return ""


def find_recipes() -> Iterator[tuple[Path, str]]:
    """Each recipe's file, in the order of names, and its docstring; none of them is imported."""
    package = util.find_spec("lowtide.recipes")
    folders = package.submodule_search_locations if package is not None else None
    for path in sorted(p for folder in folders or () for p in Path(folder).glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if '__name__ == "__main__"' in text:  # the others are what recipes share
            yield path, ast.get_docstring(ast.parse(text)) or ""
