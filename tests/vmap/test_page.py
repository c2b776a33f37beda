"""docs/vmap.md says which rule each op has."""

from lowtide.framework.codegen import vmap_page
from lowtide.framework.ops.registry import OPS
from lowtide.framework.vmap.rules import rule_name


def test_the_table_is_current():
    assert vmap_page.main(["--check"]) == 0, "run python -m lowtide.framework.codegen.vmap_page"


def test_what_is_mapped_does_not_grow():
    assert len([n for n, op in OPS.items() if rule_name(op) == "mapped"]) <= 26
    assert {rule_name(op) for op in OPS.values()} <= set(vmap_page.KINDS)
