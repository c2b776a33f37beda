"""The recipe ``deepnet``: what it claims of its schemes holds, on the data that are built in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.test_recipes import run

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, dict]]:
    folder = tmp_path_factory.mktemp("deepnet")
    return {
        name: run("deepnet", folder, folder / name, "--scheme", name, "--layers", "60")
        for name in ("plain", "sqrt", "recursive")
    }


def test_schemes_have_the_same_losses_and_weights(runs: dict[str, tuple[str, dict]]) -> None:
    losses = [record["losses"] for _, record in runs.values()]
    assert losses[0] == losses[1] == losses[2]
    assert len(set(losses[0])) == len(losses[0]) == 8
    for _, record in runs.values():
        schemes = record["results"]["schemes"]
        assert all(s["same"] for s in schemes.values())
        assert len({s["weights"] for s in schemes.values()}) == 1


def test_only_the_plain_run_exceeds_the_limit(runs: dict[str, tuple[str, dict]]) -> None:
    for name, (said, record) in runs.items():
        results = record["results"]
        peaks = {k: s["peak"] for k, s in results["schemes"].items()}
        assert peaks["plain"] > results["limit_bytes"] > max(peaks["sqrt"], peaks["recursive"])
        assert "MemoryLimitError" in said
        assert "would pass the limit" in results["refused"]
        assert (record["peak_bytes"] <= results["limit_bytes"]) == (name != "plain")


def test_peaks_are_predicted_to_the_byte(runs: dict[str, tuple[str, dict]]) -> None:
    for _, record in runs.values():
        for scheme in record["results"]["schemes"].values():
            assert scheme["predicted"] == scheme["peak"]


def test_a_limit_that_the_plain_run_keeps_is_said(tmp_path: Path) -> None:
    options = ("--layers", "20", "--steps", "2", "--limit", "500")
    said, record = run("deepnet", tmp_path, tmp_path / "out", *options)
    assert "The plain run fits this limit" in said
    assert record["results"]["refused"] is None
    assert record["results"]["limit_bytes"] == 500 * 2**20
