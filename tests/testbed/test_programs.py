"""Programs of public packages, unmodified: lowtide as torch finds what PyTorch finds.

``LOWTIDE_TESTBED`` names the folder that ``packages.txt`` is installed into:
``pip install --no-deps --target FOLDER -r tests/testbed/packages.txt``.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.testbed import comparison

pytestmark = pytest.mark.testbed
PACKAGES = os.environ.get("LOWTIDE_TESTBED", "")


def test_there_are_enough_of_them():
    found = [entry for file in comparison.files() for entry in comparison.programs(file)]
    assert len(found) >= 40
    assert len({package for package, _ in found}) >= 15
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("file", comparison.files())
def test_programs_find_the_same(file, tmp_path):
    if not PACKAGES:
        pytest.skip("LOWTIDE_TESTBED names no folder with the packages")
    pytest.importorskip("torch")
    reports = {
        side: comparison.run(file, tmp_path / side, PACKAGES, as_torch=side == "lowtide")
        for side in ("lowtide", "torch")
    }
    failures = []
    for package, name in comparison.programs(file):
        program = f"{package}:{name}"
        errors = [
            f"{s}: {r['errors'][program]}" for s, r in reports.items() if program in r["errors"]
        ]
        if errors:
            failures.append(f"{program}\n" + "\n".join(errors))
            continue
        rows = [tmp_path / side / f"{package}-{name}.npz" for side in ("lowtide", "torch")]
        worst = comparison.largest_difference(*rows)
        if not worst.relative <= reports["torch"]["tolerances"][program]:
            failures.append(f"{program} differs in {worst.row} by {worst.relative:.1e}")
    assert not failures, "\n\n".join(failures)


ELSEWHERE = {  # (program): why it computes otherwise when it is compiled
    "transformers:state_space": "asks is_compiling(), and takes an associative scan",
}


@pytest.mark.parametrize("what", ["loss", "step"])
@pytest.mark.parametrize("file", comparison.files())
def test_compiled_programs_find_the_same_bits(file, what, tmp_path):
    if not PACKAGES:
        pytest.skip("LOWTIDE_TESTBED names no folder with the packages")
    plain = comparison.run(file, tmp_path / "plain", PACKAGES, as_torch=True)
    compiled = comparison.run(file, tmp_path / what, PACKAGES, as_torch=True, compiled=what)
    failures, replayed = [], 0
    for package, name in comparison.programs(file):
        program = f"{package}:{name}"
        if program in plain["errors"] or program in ELSEWHERE:
            continue
        if program in compiled["errors"]:
            failures.append(f"{program}\n{compiled['errors'][program]}")
            continue
        replayed += sum(" 0 replayed" not in text for text in compiled["compiled"][program])
        a, b = (np.load(tmp_path / side / f"{package}-{name}.npz") for side in ("plain", what))
        rows = [row for row in a if row not in b or a[row].tobytes() != b[row].tobytes()]
        if rows or set(a) != set(b):
            failures.append(f"{program} differs in {rows[:3]}: {compiled['compiled'][program]}")
    assert not failures, "\n\n".join(failures)
    assert replayed or file in ("learning", "weights")  # these have loops of their own
