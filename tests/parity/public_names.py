"""A page of PyTorch's public names: what lowtide has of them, and what not, and why.

``python -m tests.parity.public_names`` writes docs/public_names.md, with ``--check`` it compares.
It needs PyTorch, which one process imports to read its names; another one asks lowtide for them as
``torch``.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import sys
import types
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "public_names.md"
CLASSES = "torch.Tensor torch.nn.Module torch.optim.Optimizer torch.utils.data.DataLoader"
CLASSES += " torch.distributions.Distribution torch.autograd.Function torch.Generator"
INTRODUCTION = """# Public names of PyTorch

Written by `python -m tests.parity.public_names`. Every name that PyTorch 2.13 has in public: those
in a module's `__all__`, or without one those that it defines without a leading underscore; a name
that several modules have counts in each. *There* means that after `import lowtide.as_torch` a
program finds it; *refused* are those of them that raise when they are called, and say what to do
instead; *compared* are those that a parity test names, beside PyTorch or in its catalogue of
operators.
"""


def theirs() -> dict[str, list[str]]:
    """Return PyTorch's public names by module and class; PyTorch is imported."""
    warnings.simplefilter("ignore")
    torch = importlib.import_module("torch")
    found = {"torch": _public(torch)}
    modules = [torch]
    while modules:
        module = modules.pop()
        for entry in pkgutil.iter_modules(getattr(module, "__path__", [])):
            if entry.name.startswith("_"):
                continue
            try:
                inner = importlib.import_module(f"{module.__name__}.{entry.name}")
            except ImportError:  # it needs a package that is not installed
                continue
            found[inner.__name__] = _public(inner)
            modules.append(inner)
    for path in CLASSES.split():
        home, _, name = path.rpartition(".")
        members = dir(getattr(sys.modules[home], name))
        found[path] = [member for member in members if not member.startswith("_")]
    return {name: found[name] for name in sorted(found) if found[name]}


def _public(module: Any) -> list[str]:
    listed = getattr(module, "__all__", None)
    if isinstance(listed, list | tuple | set):
        return sorted({name for name in listed if not name.startswith("_")})
    plain = (int, str, float, tuple, list, dict, set, types.NoneType, types.ModuleType)
    names = set()
    for name, value in vars(module).items():
        home = getattr(value, "__module__", None)
        defined = home == module.__name__ or (home is None and not isinstance(value, plain))
        if defined and not name.startswith("_"):
            names.add(name)
    return sorted(names)


def ours(names: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    """Return "there", "refused" or "absent" for each name; lowtide is imported as torch."""
    warnings.simplefilter("ignore")
    importlib.import_module("lowtide.as_torch")
    return {module: _found(module, listed) for module, listed in names.items()}


def _found(path: str, names: list[str]) -> dict[str, str]:
    if path in CLASSES.split():
        home, _, name = path.rpartition(".")
        where = getattr(importlib.import_module(home), name)
    else:
        try:
            where = importlib.import_module(path)
        except ImportError:
            return dict.fromkeys(names, "absent")
    found = {}
    for name in names:
        try:
            value = getattr(where, name)
        except AttributeError:
            found[name] = "absent"
        else:
            unsupported = (getattr(value, "__doc__", None) or "").startswith("Not supported")
            found[name] = "refused" if unsupported else "there"
    return found


def compared() -> set[str]:
    """Return all words of the parity tests and of the operators' catalogue."""
    folders = ["tests/parity", "tests/as_torch", "tests/testbed", "tests/distributions"]
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    mine = {Path(__file__).name, "reasons.py"}
    text = " ".join(p.read_text(encoding="utf-8") for p in sorted(files) if p.name not in mine)
    text += " ".join(_catalogue())
    return set(re.findall(r"\w+", text))


def _catalogue() -> list[str]:
    page = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([\w.]+)`", page, flags=re.MULTILINE)


def reason_of(module: str, name: str, used: set[str]) -> str | None:
    """Return why a name is absent; note in ``used`` the pattern that says so."""
    from tests.parity.reasons import REASONS

    for reason, patterns in REASONS.items():
        for pattern in patterns.split():
            home, _, words = pattern.partition(":")
            if words:
                fits = module == home and re.fullmatch(words, name)
            else:
                fits = module == home or module.startswith(f"{home}.")
            if fits:
                used.add(f"{reason}|{pattern}")
                return reason
    return None


def page(found: dict[str, dict[str, str]]) -> str:
    """Return the page.

    Raises:
        ValueError: An absent name has no reason, or a reason applies to no absent name.
    """
    from tests.parity.reasons import REASONS

    known = compared()
    used: set[str] = set()
    absent: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    unexplained = []
    rows = []
    total = [0] * 5
    for module, names in found.items():
        missing = [name for name, state in names.items() if state == "absent"]
        refused = sum(state == "refused" for state in names.values())
        there = len(names) - len(missing)
        seen = sum(state == "there" and name in known for name, state in names.items())
        for name in missing:
            reason = reason_of(module, name, used)
            if reason is None:
                unexplained.append(f"{module}.{name}")
            else:
                absent[reason][module].append(name)
        counts = [len(names), there, refused, seen, len(missing)]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        if there:
            rows.append(f"| `{module}` | " + " | ".join(map(str, counts)) + " |")
    patterns = {f"{reason}|{p}" for reason, given in REASONS.items() for p in given.split()}
    if unexplained:
        raise ValueError(f"absent, and tests/parity/reasons.py does not say why: {unexplained}")
    if patterns - used:
        raise ValueError(f"reasons that apply to no absent name: {sorted(patterns - used)}")
    lines = [INTRODUCTION, "## By module", ""]
    lines.append("Modules of which nothing is there are in the sum, and below by name.\n")
    lines.append("| module or class | public | there | of them refused | compared | absent |")
    lines.append("|---|---|---|---|---|---|")
    lines.append("| **all** | " + " | ".join(f"**{n}**" for n in total) + " |")
    lines += [*rows, "", "## Absent, and why"]
    for reason in REASONS:
        lines += ["", f"### {reason}", ""]
        for module, names in absent[reason].items():
            lines.append(f"- `{module}`: " + ", ".join(f"`{name}`" for name in names))
    return "\n".join(lines) + "\n"


def _ask(side: str, given: str = "") -> Any:
    words = [sys.executable, "-m", "tests.parity.public_names", side]
    done = subprocess.run(words, input=given, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"reading the names failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def current() -> str:
    """Return what the page should be now."""
    return page(_ask("--ours", json.dumps(_ask("--theirs"))))


def main(arguments: list[str]) -> int:
    """Write the page, or compare it; return the exit status."""
    if arguments == ["--theirs"]:
        print(json.dumps(theirs()))
    elif arguments == ["--ours"]:
        print(json.dumps(ours(json.loads(sys.stdin.read()))))
    elif arguments == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != current())
    else:
        PAGE.write_text(current(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
