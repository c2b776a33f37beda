"""A test that goes over the samples of an op tells of each sample that fails."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.ops.registry import OPS
from tests.samples import go_over, over_samples

MUL = OPS["mul"]
COUNT = len(testing.samples(MUL, testing.Make()))


def failures(check, op=MUL):
    with pytest.raises(ExceptionGroup) as caught:
        go_over(op, check, lt.float64, {})
    return caught.value


def test_every_failing_sample_is_named_and_told_of():
    ran = []

    def check(op, inputs, attributes):
        ran.append(inputs)
        assert len(ran) not in (2, COUNT), "broken"

    found = failures(check)
    assert len(ran) == COUNT
    assert found.message == f"mul: samples 1, {COUNT - 1} of {COUNT}"
    assert [str(e).splitlines()[0] for e in found.exceptions] == ["broken"] * 2
    for number, error in zip((1, COUNT - 1), found.exceptions, strict=True):
        assert error.__notes__ == [f"sample {number}: {testing.describe(ran[number], {})}"]


def test_what_ends_the_test_says_at_which_sample():
    def check(op, inputs, attributes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        go_over(MUL, check, lt.float64, {})
    assert caught.value.__notes__[0].startswith("sample 0: float64[")


def test_each_sample_starts_as_a_test_of_its_own():
    drawn = []

    def check(op, inputs, attributes):
        drawn.append(lt.rand(3).tolist())
        assert lt.get_default_dtype() is lt.float32
        lt.set_default_dtype(lt.float64)

    go_over(MUL, check, lt.float64, {})
    assert drawn == [drawn[0]] * COUNT
    assert lt.get_default_dtype() is lt.float32


def test_a_sample_that_leaves_grad_mode_off_fails():
    def check(op, inputs, attributes):
        if inputs[0].numel() == 0:
            lt.set_grad_enabled(False)

    assert "grad mode" in str(failures(check).exceptions[0])
    assert lt.is_grad_enabled()


def test_a_sample_in_words():
    given = (lt.ones(2, 3, dtype=lt.bfloat16), 1.5, [lt.ones(())])
    words = testing.describe(given, {"dim": (0, 1)})
    assert words == "bfloat16[2, 3], 1.5, [float32[]], dim=[0, 1]"


@over_samples(made_in=lt.float32, of=lambda op: op.name == "mul")
@pytest.mark.parametrize("kind", ["one", "other"])
def test_a_check_may_have_parameters_and_fixtures(op, inputs, attributes, kind, tmp_path):
    assert op is MUL
    assert kind in ("one", "other")
    assert tmp_path.is_dir()
    assert all(x.dtype is lt.float32 for x in inputs if isinstance(x, lt.Tensor))
