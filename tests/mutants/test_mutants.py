"""The catalogue of mutants fits the code."""

from pathlib import Path

from .catalog import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


def test_each_mutant_replaces_one_text_that_is_there():
    wrong = [
        f"{m.name}: its text stands {count} times in {m.file}"
        for m in MUTANTS
        if (count := (ROOT / m.file).read_text(encoding="utf-8").count(m.before)) != 1
    ]
    assert not wrong, "\n".join(wrong)


def test_mutants_differ_and_name_tests_that_exist():
    assert len({(m.file, m.before, m.after) for m in MUTANTS}) == len(MUTANTS) >= 40
    missing = {t for m in MUTANTS for t in m.tests if not (ROOT / t).exists()}
    assert not missing
