"""Generator of the table in ``docs/vmap.md``: which rule each op has inside ``vmap``.

``python -m lowtide.framework.codegen.vmap_page`` rewrites it, ``--check`` fails if it is out of
date; a test holds it current.
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill

from ..distributions.sampling import draws, implicit_gradients
from ..ops.registry import OPS
from ..vmap.rules import rule_name

# Their ops are declared where they are used, so a process that never draws does not list them.
_ELSEWHERE = (draws, implicit_gradients)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "vmap.md"
START, END = "<!-- rules -->\n", "<!-- end of rules -->\n"

KINDS = {  # by the name of the rule: what it does
    "pointwise": "Pointwise: levels are further dims, which broadcast",
    "by dims": "Along dims that are named: the positions move by the number of levels",
    "last dims": "On the last dims: levels are further free dims",
    "rows": "On rows of the first dim: the rows of all samples are rows of one call",
    "own": "A separate rule, made of other calls",
    "composition": "Through the plain ops that the op declares itself to be made of",
    "random": "Draws: once for samples that draw apart, for each of those that draw the same",
    "mapped": "No rule: once per sample, with a warning",
    "refused": "Refused: the shape of the result depends on values",
}


def table() -> str:
    """Return the section of the page, as Markdown."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name, op in sorted(OPS.items()):
        found[rule_name(op)].append(f"`{name.strip('_')}`")
    total = sum(map(len, found.values()))
    ruled = total - len(found["mapped"]) - len(found["refused"])
    lines = [f"{ruled} of {total} primitive ops have a rule.", ""]
    for kind, what in KINDS.items():
        lines += [f"**{what}** ({len(found[kind])}).", ""]
        lines += [fill(", ".join(dict.fromkeys(found[kind])), 100, break_on_hyphens=False), ""]
    return "\n".join(lines)


def page() -> str:
    """Return the whole page with the current table."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(START)
    _, _, tail = rest.partition(END)
    return f"{head}{START}\n{table()}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` compare; return the exit status."""
    made = page()
    if arguments == ["--check"]:
        return int(made != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
