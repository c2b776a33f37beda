"""A page of PyTorch's signatures: which arguments of functions and methods lowtide takes by name.

``python -m tests.parity.signatures`` writes docs/signatures.md, with ``--check`` it compares. The
list of names is PyTorch's own stubs, which are read as text: PyTorch itself is not imported.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lowtide as lt

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "signatures.md"


class Parameter(NamedTuple):
    """One parameter of one overload, as PyTorch's stubs write it."""

    name: str
    kind: str  # its annotation, as text
    required: bool
    variadic: bool


Overload = tuple[Parameter, ...]
Overloads = dict[str, dict[str, list[Overload]]]  # of "torch" and "Tensor", by function


def theirs() -> Overloads:
    """Return the overloads of PyTorch's functions and methods, without ``self``.

    Raises:
        ModuleNotFoundError: PyTorch is not installed.
    """
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("PyTorch's signatures are read from its stubs. Install it.")
    folder = Path(next(iter(found.submodule_search_locations))) / "_C"
    functions = ast.parse((folder / "_VariableFunctions.pyi").read_text(encoding="utf-8"))
    classes = ast.parse((folder / "__init__.pyi").read_text(encoding="utf-8"))
    tensor = next(
        node
        for node in classes.body
        if isinstance(node, ast.ClassDef) and node.name == "TensorBase"
    )
    return {"torch": _read(functions.body), "Tensor": _read(tensor.body)}


def _read(body: list[ast.stmt]) -> dict[str, list[Overload]]:
    found: dict[str, list[Overload]] = {}
    for node in body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        if any(ast.unparse(d) in ("property", "staticmethod") for d in node.decorator_list):
            continue
        overload = tuple(p for p in _parameters(node.args) if p.name != "self")
        listed = found.setdefault(node.name, [])
        if overload not in listed:
            listed.append(overload)
    return found


def _parameters(a: ast.arguments) -> Iterator[Parameter]:
    optional = len(a.args) - len(a.defaults)
    given = [(x, k < optional) for k, x in enumerate(a.args)]
    given += [(x, d is None) for x, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    for arg, required in given:
        kind = "" if arg.annotation is None else ast.unparse(arg.annotation)
        yield Parameter(arg.arg, kind, required, variadic=False)
    if a.vararg is not None:
        kind = "" if a.vararg.annotation is None else ast.unparse(a.vararg.annotation)
        yield Parameter(a.vararg.arg, kind, required=True, variadic=True)


def names_of(overloads: list[Overload]) -> list[str]:
    """Return the names by which a function takes arguments in some overload, each once."""
    return list(dict.fromkeys(p.name for o in overloads for p in o if not p.variadic))


# Why a name is not taken, and the functions and names of which that is so.
REASONS: dict[str, str] = {
    "For CUDA's matrix products in half precision": """
        torch.addmm:out_dtype torch.baddbmm:out_dtype torch.bmm:out_dtype torch.mm:out_dtype
    """,
    "Named tensors: a tensor has no names from its making on": "torch.full:names",
    "The old constructor takes a size, a list or a tensor by position": """
        Tensor.new:cls Tensor.new:storage Tensor.new:other Tensor.new:size
    """,
    "PyTorch's stub has a name that PyTorch itself refuses": "Tensor.requires_grad_:mode",
}
# What a function that has **named looks for in it. test_signatures.py calls these by name.
LOOKED_FOR = {"size", "from_", "to"}


def accepted(function: Callable[..., Any], twin: Callable[..., Any] | None = None) -> set[str]:
    """Return the names by which a function takes arguments.

    Args:
        function: Of lowtide.
        twin: For an in-place method that passes its arguments on: the function it passes them to.
    """
    names: set[str] = set()
    while True:
        code = getattr(function, "__code__", None)
        if code is None:  # a class, or a function of C
            return names | {*inspect.signature(function).parameters}
        names |= {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}
        if not code.co_flags & inspect.CO_VARKEYWORDS:
            return names
        inner = getattr(function, "__wrapped__", None) or twin
        if inner is None:
            return names | LOOKED_FOR
        function, twin = inner, None


def compared(overloads: Overloads) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Yield (home, function, its names, those not taken) of each function that lowtide has."""
    for home, functions in overloads.items():
        where = lt if home == "torch" else lt.Tensor
        for name, listed in functions.items():
            function = getattr(where, name, None)
            if not callable(function):
                continue
            plain = name.removesuffix("_")
            homes = (lt.Tensor, lt) if plain != name else ()
            twins = [getattr(x, plain) for x in homes if callable(getattr(x, plain, None))]
            taken = accepted(function, next(iter(twins), None))
            names = names_of(listed)
            yield home, name, names, [n for n in names if n not in taken]


def reason_of(home: str, function: str, name: str) -> str | None:
    """Return why lowtide does not take an argument by its name."""
    wanted = f"{home}.{function}:{name}"
    return next((r for r, listed in REASONS.items() if wanted in listed.split()), None)


INTRODUCTION = """# Signatures of PyTorch

Written by `python -m tests.parity.signatures`. PyTorch 2.13 lists the overloads of its functions
and of Tensor's methods in its stubs. A name counts once for each function or method that has it in
some overload. *Taken* are the names by which lowtide's function takes the argument; the others
are refused, for one of the reasons below. A parity test calls each overload with all required
arguments by name, in both frameworks, and compares the results.

"""
OLD_CALLS = """
## Old calls

PyTorch takes calls of its first versions, with the factor among the tensors, and warns once; so
does lowtide: `add`, `sub`, `addcmul`, `addcdiv`, `addmm`, `addmv`, `addr`, `addbmm`, `baddbmm`, as
functions, as methods and in place. `p.add_(-lr, grad)` means `p.add_(grad, alpha=-lr)`,
`addmm(beta, M, alpha, A, B)` means `addmm(M, A, B, beta=beta, alpha=alpha)`.
"""


def page() -> str:
    """Return what the page should be now.

    Raises:
        ValueError: A name is refused without a reason, or a reason applies to no refused name.
    """
    overloads = theirs()
    found = list(compared(overloads))
    refused = [(home, function, n) for home, function, _, missing in found for n in missing]
    unexplained = [x for x in refused if reason_of(*x) is None]
    listed = {x for words in REASONS.values() for x in words.split()}
    idle = listed - {f"{home}.{function}:{n}" for home, function, n in refused}
    if unexplained or idle:
        raise ValueError(f"refused without a reason: {unexplained}; not refused: {sorted(idle)}")
    lines = ["| | of PyTorch | there | overloads | names | taken | refused |"]
    lines.append("|---|---|---|---|---|---|---|")
    for home, shown in (("torch", "functions of `torch`"), ("Tensor", "methods of `Tensor`")):
        mine = [x for x in found if x[0] == home]
        names = sum(len(x[2]) for x in mine)
        missing = sum(len(x[3]) for x in mine)
        calls = sum(len(overloads[home][x[1]]) for x in mine)
        counts = [len(overloads[home]), len(mine), calls, names, names - missing, missing]
        lines.append(f"| {shown} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "What is absent stands in [public names](public_names.md).", "", "## Refused", ""]
    for reason in REASONS:
        of_it = [x for x in refused if reason_of(*x) == reason]
        calls_of = ", ".join(f"`{home}.{function}({n}=)`" for home, function, n in of_it)
        lines.append(f"- {reason}: {calls_of}")
    return INTRODUCTION + "\n".join(lines) + "\n" + OLD_CALLS


def main(arguments: list[str]) -> int:
    """Write the page, or compare it; return the exit status."""
    if arguments == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
