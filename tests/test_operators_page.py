"""docs/operators.md says what the declarations say."""

from operator import attrgetter

import lowtide as lt
from lowtide.framework.codegen import operators_page
from lowtide.framework.ops.registry import FUNCTIONS, OPS


def test_the_page_is_current():
    assert operators_page.main(["--check"]) == 0, (
        "run python -m lowtide.framework.codegen.operators_page"
    )


def test_every_function_and_op_has_a_row():
    shown = {name for group in operators_page.entries().values() for name, _ in group}
    twins = {n for n in FUNCTIONS if n.endswith("_") and n[:-1] in FUNCTIONS}
    assert (set(FUNCTIONS) | set(OPS)) - shown - twins == set()


def test_names_with_a_prefix_are_there():
    shown = {name for group in operators_page.entries().values() for name, _ in group}
    dotted = [name for name in shown if "." in name]
    assert len(dotted) > 80
    missing = []
    for name in dotted:
        try:
            attrgetter(name)(lt)
        except AttributeError:
            missing.append(name)
    assert missing == []


def test_a_row_names_what_is_kept_and_for_what():
    assert operators_page.differentiated(OPS["mul"]) == "other (for input), input (for other)"
    assert operators_page.differentiated(OPS["exp"]) == "out (for input)"


def test_what_is_said_to_be_absent_is_absent():
    names = {n for group in operators_page.ABSENT.values() for n in group.split()}
    assert {n for n in names if n in FUNCTIONS or hasattr(lt, n)} == set()


def test_what_is_said_to_differ_exists():
    shown = {n.rpartition(".")[2] for group in operators_page.entries().values() for n, _ in group}
    assert set(operators_page.DIFFERS) - shown == set()
