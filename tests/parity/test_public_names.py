"""The page of PyTorch's public names is true: it is what can be counted now."""

from __future__ import annotations

import pytest

from tests.parity import public_names, reasons

pytest.importorskip("torch")
pytestmark = pytest.mark.parity


def test_the_page_is_current() -> None:
    assert public_names.PAGE.read_text(encoding="utf-8") == public_names.current(), (
        "run python -m tests.parity.public_names"
    )


def test_an_absent_name_without_a_reason_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"torch\.nonesuch"):
        public_names.page({"torch": {"nonesuch": "absent"}})


def test_a_reason_that_applies_to_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasons, "REASONS", {"none": "torch.nowhere"})
    with pytest.raises(ValueError, match=r"torch\.nowhere"):
        public_names.page({"torch": {"add": "there"}})
