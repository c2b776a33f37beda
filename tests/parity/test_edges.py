"""Edges where the two were found to differ: each program gives one result or one error in both."""

from __future__ import annotations

import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


def run(T, program):
    x = T.arange(24, dtype=T.float64).reshape(4, 6)
    return eval(program, {"T": T, "F": T.nn.functional, "x": x})


@pytest.mark.parametrize(
    "program",
    [
        # NumPy's names of arguments
        "x.sum(axis=0)", "x.mean(axis=1, keepdims=True)", "T.sum(x, axis=(0, 1))",
        "x.max(axis=1, keepdims=True).values", "x.argmax(axis=0)", "x.softmax(axis=1)",
        "T.cat([x, x], axis=1)", "T.stack([x, x], axis=1)", "x.std(axis=0)", "x.cumsum(axis=0)",
        "x.unsqueeze(axis=0)", "T.squeeze(x[None], axis=0)", "x.sort(axis=0)[0]",
        # views of 0-d tensors, and flattening
        "x[0, 0].mT", "x[0, 0].adjoint()", "x[0, 0].unfold(0, 1, 1)", "x[0, 0].unfold(0, 0, 2)",
        "x[:, 1].ravel()", "x.T.ravel()", "T.zeros(0, 3).ravel()",
        # bool where a number is meant
        "T.tensor([True, False]).square()", "T.add(T.tensor([True]), T.tensor([True]), alpha=2)",
        "T.add(T.ones(2, dtype=T.uint8), T.tensor([True, False]), alpha=2)",
        "T.ones(0, 1).expand(0, 3).masked_fill_(T.zeros(0, 3, dtype=T.bool), 1)",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*deprecated on 0-D tensors")
def test_results_match(program):
    expected, got = run(torch, program), run(lt, program)
    assert got.dtype.name == str(expected.dtype).removeprefix("torch.")
    assert tuple(got.shape) == tuple(expected.shape)
    assert got.reshape(-1).tolist() == pytest.approx(expected.reshape(-1).tolist())


@pytest.mark.parametrize(
    "program", ["x.ravel()", "x.T.ravel()", "x[:, 1].ravel()", "x[1:].ravel()"]
)
def test_ravel_is_contiguous_as_in_pytorch(program):
    assert run(lt, program).stride() == run(torch, program).stride() == (1,)


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("int(x)", ValueError),
        ("float(x)", ValueError),
        ("complex(x)", ValueError),
        ("x['a']", TypeError),
        ("T.cat([x, 1])", TypeError),
        ("F.relu(T.tensor([True]))", RuntimeError),
    ],
)
def test_mistakes_raise_the_same_type(program, error):
    for T in (torch, lt):
        with pytest.raises(error):
            run(T, program)
