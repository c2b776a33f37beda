"""The words of README, pages and ``--help``: short sentences, standard terms, files that exist.

Readability is the Flesch-Kincaid grade of a page's prose (Kincaid et al., 1975), with syllables
counted as groups of vowels. Tables, code and headings do not count.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import runpy
import sys
import tokenize
from pathlib import Path

import pytest

from lowtide.cli import build_parser

ROOT = Path(__file__).resolve().parents[1]
GRADE = 9.0  # of a page: PyTorch's and NumPy's guides have 8 to 11
LONGEST = 42  # words of a sentence
BANNED = {
    r"call-free rows?": "statements without calls",
    r"\bsaid of\b|\bis said\b|\bare said\b": "say who reports what",
    r"\bas a whole\b|\bwhole\b": "complete, all of, or nothing",
    r"\bwhat it takes\b": "its cost, its size",
    r"\bstays? apart\b": "is separate",
    r"\bits like\b|\btheir like\b": "similar",
    r"\bso does nothing\b": "name what happens",
    r"\bthe like\b": "name them",
    r"\bby hand\b": "yourself, explicitly",
    r"\bhas it more\b": "compare",
    r"\bthat does\b(?= [.,;])": "that fits, that is enough",
    r"\bmade again\b": "recomputed",
    r"\bmakes? (?:it|them|values) again\b": "recompute",
    r"\bnobody (?:wants|knows|sees)\b": "state it of the value",
    r"\bkinds? of its own\b": "separate",
    r"\bof (?:its|their|your|our) own\b": "separate, your",
    r"\bin turns\b": "alternately",
    r"\bin imagination\b": "without computing it",
}


def prose(text: str) -> str:
    """Return the sentences of a Markdown text, without what is no prose."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    kept = []
    for line in text.splitlines():
        line = line.strip()
        if re.match(r"[|#!]|<", line):
            kept.append("")
            continue
        item = re.match(r"(?:[-*]|\d+\.) +", line)
        if item:  # an item begins a sentence
            kept += ["", line[item.end() :]]
        else:
            kept.append(line)
    text = "\n".join(kept)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]*`", "code", text)


def sentences(text: str) -> list[str]:
    """Return the sentences of prose."""
    found = []
    for paragraph in re.split(r"\n\s*\n", prose(text)):
        one = " ".join(paragraph.split())
        found += [s for s in re.split(r"(?<=[.!?:;])[\"')]*\s+", one) if re.search(r"\w", s)]
    return found


def words(sentence: str) -> list[str]:
    """Return the words of a sentence; numbers and code are none."""
    return [w for w in re.findall(r"[A-Za-z][A-Za-z'-]*", sentence) if w != "code"]


def syllables(word: str) -> int:
    """Return how many groups of vowels a word has, a silent e at its end not counted."""
    groups = len(re.findall(r"[aeiouy]+", word.lower()))
    return max(1, groups - (word.lower().endswith("e") and not word.lower().endswith("le")))


def grade(text: str) -> float:
    """Return the Flesch-Kincaid grade of a page."""
    counted = [words(s) for s in sentences(text)]
    every = [w for found in counted for w in found]
    if not every:
        return 0.0
    per_word = sum(map(syllables, every)) / len(every)
    return 0.39 * len(every) / len(counted) + 11.8 * per_word - 15.59


def banned(text: str) -> list[str]:
    """Return the banned words that a text has."""
    plain = " ".join(sentences(text))
    found = [re.search(pattern, plain, flags=re.IGNORECASE) for pattern in BANNED]
    return sorted(hit.group() for hit in found if hit)


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(found.choices)


RECIPES = {
    path.stem: path
    for path in (ROOT / "recipes").glob("*.py")
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs/tasks").glob("*.md")),
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "add_an_op", "benchmarks", "budget", "checkpointing", "design", "from_pytorch", "gpu",
            "formulas", "leaks", "memory_model", "memory_pictures", "microkernel",
            "no_grad_and_detach", "optimizer_memory", "prediction", "profiler_json", "reliability",
            "training_checkpoints", "vmap",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_reads_easily(page):
    text = page.read_text(encoding="utf-8")
    assert grade(text) <= GRADE
    assert [s for s in sentences(text) if len(words(s)) > LONGEST] == []
    assert banned(text) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_opens_with_what_it_is_for(page):
    """Under its title there is a sentence, not a list, a table or code."""
    _, below = page.read_text(encoding="utf-8").split("\n", 1)
    assert re.match(r"\s*(This page|lowtide is)\b", below), below[:80]


COMMANDS = _subcommands(build_parser())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_explains_every_argument(name):
    parser = COMMANDS[name]
    unexplained = [a.dest for a in parser._actions if not a.help]
    assert unexplained == []
    assert banned(". ".join([parser.description, *(a.help for a in parser._actions)])) == []
    assert parser.epilog


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_help_of_a_recipe_explains_every_argument(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    parsers = []

    def noted(self, args=None, namespace=None):
        parsers.append(self)
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", noted)
    with pytest.raises(SystemExit):
        runpy.run_path(str(RECIPES[name]), run_name="__main__")
    (parser,) = parsers
    assert [a.dest for a in parser._actions if not a.help] == []
    assert banned(". ".join(a.help for a in parser._actions)) == []


REFERENCE = re.compile(
    r"(?<![\w/.:~*{<-])((?:[A-Za-z_][\w-]*/)+[\w-]+\.(?:py|md|ipynb|toml|html?|json|pyi)\b"
    r"|(?<=`)[a-z_]\w*\.(?:py|md)(?=`))"
)
ELSEWHERE = {  # files of other projects, of the reader's, and of an example
    "torch/cuda/_memory_viz.py",
    "InternalDocs/garbage_collector.md",
    "cupy/cuda/memory.py",
    "golden/FAMILY.json",
    "programs/FILE.py",
    "hubconf.py",
    "elementwise/softclip.py",
    "train.py",
    "net.py",
    "page.html",
}
PARTS = (
    "lowtide",
    "framework",
    "modules",
    "optim",
    "profiling",
    "recipes",
    "tests",
    "benchmarks",
    "docs",
)
FILES = [
    *ROOT.glob("*.*"),
    *(p for part in PARTS for p in (ROOT / part).rglob("*") if p.is_file() and p.suffix != ".pyc"),
]
SPOKEN = [p for p in FILES if p.suffix in (".py", ".md") and p != Path(__file__)]


def spoken(path: Path) -> str:
    """Return the words of a file: a page without its code, comments and docstrings of a program."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return re.sub(r"^```\w*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [t.string for t in tokens if t.type == tokenize.COMMENT]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, documented)]
    return "\n".join([*found, *(ast.get_docstring(n) or "" for n in nodes)])


def test_files_that_pages_and_comments_name_are_there():
    endings = {"/".join(p.parts[-n:]) for p in FILES for n in range(1, 8)}
    missing = set()
    for path in SPOKEN:
        unknown = {*REFERENCE.findall(path.read_text(encoding="utf-8"))} - endings - ELSEWHERE
        if unknown:  # to find out what is code takes longer
            words_of_file = REFERENCE.findall(spoken(path))
            missing |= {(str(path.relative_to(ROOT)), name) for name in unknown & {*words_of_file}}
    assert missing == set()


def spoken_texts(path: Path) -> list[str]:
    """Return the texts of a program that are no docstrings: what its messages are made of."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    first = [n.body[0] for n in ast.walk(tree) if getattr(n, "body", None) and documentable(n)]
    docstrings = {id(n.value) for n in first if isinstance(n, ast.Expr)}
    return [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docstrings
    ]


def documentable(node: ast.AST) -> bool:
    """True for what may have a docstring."""
    return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)


def test_messages_have_no_banned_words():
    found = {
        (str(path.relative_to(ROOT)), hit.group(), text)
        for part in PARTS[:6]
        for path in (ROOT / part).rglob("*.py")
        for text in spoken_texts(path)
        if len(text) > 15 and not text.startswith("\n;")  # the latter is LLVM's code
        for hit in [next(filter(None, (re.search(p, text) for p in BANNED)), None)]
        if hit
    }
    assert found == set()


def test_what_is_hard_to_read_is_found():
    hard = (
        "The institutional characterization of computational irregularities necessitates "
        "considerable organizational perseverance"
    )
    assert grade(f"{hard}. {hard}.") > GRADE
    assert grade("The cat sat on the mat. It was warm. It slept all day.") < 3
    assert banned("It goes by the whole, and is made again.") == ["made again", "whole"]
    assert banned("```text\nthe whole\n```\nA wholesale `whole` word.") == []
    assert sentences("# Title\n\nOne. Two: three\n\n- four\n- five. Six") == [
        "One.",
        "Two:",
        "three",
        "four",
        "five.",
        "Six",
    ]


if __name__ == "__main__":  # what a page has
    for name in sys.argv[1:]:
        text = Path(name).read_text(encoding="utf-8")
        print(f"{name}: grade {grade(text):.1f}, {len(sentences(text))} sentences")
        for s in sentences(text):
            if len(words(s)) > LONGEST:
                print(f"  {len(words(s))} words: {s}")
            for pattern, better in BANNED.items():
                for hit in re.findall(pattern, s, flags=re.IGNORECASE):
                    print(f"  {hit!r} (better: {better}): {s}")


IN_CODE = r"\b(?:whoever|somebody|nobody|anybody|made again|in imagination|its like|stays apart)\b"


def test_docstrings_and_comments_are_in_plain_words():
    found = {}
    for folder in ("framework", "modules", "optim", "profiling", "lowtide", "recipes"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            kept = [
                token.string
                for token in tokenize.generate_tokens(io.StringIO(text).readline)
                if token.type == tokenize.COMMENT or token.string.startswith(('"""', 'r"""'))
            ]
            hits = re.findall(IN_CODE, "\n".join(kept), flags=re.IGNORECASE)
            if hits := [hit for hit in hits if hit != "NOBODY"]:
                found[str(path.relative_to(ROOT))] = hits
    assert found == {}
