"""What a call changes or returns that a replay could not: it runs as written, or is an error."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import lowtide as lt


def changes_a_dict(x: Any, given: dict[str, Any]) -> Any:
    given["n"] = 1
    return x * 2


def changes_an_inner_list(x: Any, given: dict[str, Any]) -> Any:
    given.setdefault("names", []).append("a")
    return x * 2


def returns_its_dict(x: Any, given: dict[str, Any]) -> Any:
    return x * 2, given


def returns_a_list_twice(x: Any, given: dict[str, Any]) -> Any:
    found = [x * 2]
    return found, {"again": found}


def sets_a_mode(x: Any, given: dict[str, Any]) -> Any:
    with lt.enable_grad():
        y = x * 2
    lt.set_grad_enabled(bool(given))
    return y


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function",
    [changes_a_dict, changes_an_inner_list, returns_its_dict, returns_a_list_twice, sets_a_mode],
    ids=lambda f: f.__name__,
)
def test_containers_and_modes_are_as_after_the_plain_call(function: Any, grad: bool) -> None:
    outcomes = []
    for f in (function, lt.compile(function)):
        found = []
        for _ in range(6):
            given: dict[str, Any] = {}
            x = lt.ones(2, requires_grad=grad)
            with warnings.catch_warnings(), lt.enable_grad():
                warnings.simplefilter("ignore", lt.CaptureWarning)
                result = f(x, given)
                enabled = lt.is_grad_enabled()
            same = (
                isinstance(result, tuple) and result[1] is given,
                isinstance(result, tuple) and result[0] is result[1].get("again"),
            )
            found.append((given, enabled, same))
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]


def test_results_that_share_memory_are_written_as_in_eager_or_refused() -> None:
    def base_and_view(x: Any) -> Any:
        h = x * 3
        return h, h.view(-1)

    def siblings(x: Any) -> Any:
        h = x * 3
        return h.view(-1), h[0]

    def one_twice(x: Any) -> Any:
        h = x * 3
        return h, h

    for function in (base_and_view, siblings, one_twice):
        f = lt.compile(function)
        for k in range(8):
            x = lt.arange(6.0).reshape(2, 3).requires_grad_()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", lt.CaptureWarning)
                one, other = f(x)
            assert (one is other) == (function is one_twice)
            if k not in (1, 6, 7):  # a recorded call, and replays
                (one.sum() + (other * 5).sum()).backward()
                continue
            one.mul_(2)
            try:
                (other * 5).sum().backward()
            except RuntimeError as error:
                assert function is base_and_view
                assert "a compiled function is a view" in str(error)
                continue
            assert function is not base_and_view
            assert x.grad is not None
            assert x.grad[0].tolist() == [30.0] * 3
        assert f.replays > 0


def test_one_nested_dict_in_two_places() -> None:
    def function(one: Any, other: Any) -> Any:
        return one["in"][0] * 2 + other["in"][0]

    f = lt.compile(function)
    for _ in range(6):
        leaf = lt.ones(2, requires_grad=True)
        given = {"in": [leaf]}
        f(given, given).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [3.0, 3.0]
    assert f.replays == 3


def test_a_changed_dict_in_two_places_is_changed_once() -> None:
    def function(one: Any, other: Any) -> Any:
        other["in"].append("text")
        return one["in"][0] * 2

    f = lt.compile(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lt.CaptureWarning)
        for _ in range(6):
            given = {"in": [lt.ones(2, requires_grad=True)]}
            f(given, given)
            assert given["in"][1:] == ["text"]
