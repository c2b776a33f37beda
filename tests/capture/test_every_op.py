"""Every declared op, captured with its gradient, gives the bits of the plain call on new values."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.capture.compiled import CompiledFunction
from lowtide.framework.errors import CaptureWarning
from lowtide.framework.ops import registry
from lowtide.framework.random.generator import draw
from lowtide.framework.random.philox import Rng
from lowtide.framework.tensor import Tensor

IDS = testing.sample_ids()
VALUES = ("the shape", "a gradient is sparse")
"""Why some samples run as written: shapes that depend on values, and sparse gradients."""
THEIRS = (
    "_mask_places",
    "_argwhere",
    "_bincount",
    "_unique",
    "_unique_consecutive",
    "_embedding",
    "_embedding_bag",
)


def bits(tensors: Any) -> list[Any]:
    return [None if t is None else np.array(dense(t).detach().numpy()).tobytes() for t in tensors]


def dense(t: Any) -> Any:
    return t.to_dense() if t.layout is not lt.strided else t


def step_of(op: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]

    def step() -> Any:
        for x in leaves:
            x.grad = None
        drawn = [draw(1 << 12, lt.device("cpu")) if isinstance(x, Rng) else x for x in inputs]
        outputs = [dense(o) for o in testing.call(op, drawn, attributes)]
        carrying = [o for o in outputs if o.requires_grad]
        if carrying:
            lt.autograd.backward(carrying, [lt.ones_like(o) for o in carrying])
        return [o.detach().clone() for o in outputs]

    return step, leaves


def moved(inputs: list[Any], others: list[Any]) -> None:
    """Write the values of other samples into the inputs."""
    with lt.no_grad():
        for x, y in zip(inputs, others, strict=True):
            if isinstance(x, Tensor):
                x.copy_(y)


@pytest.mark.quick(300)
@pytest.mark.parametrize(("name", "number"), IDS, ids=[f"{n}-{k}" for n, k in IDS])
def test_a_replay_has_the_bits_of_the_plain_call(name: str, number: int) -> None:
    op = registry.OPS[name]
    made = [testing.samples(op, testing.Make(lt.float32, seed))[number] for seed in range(3)]
    attributes = made[0][1]
    alike = [m[1] == attributes and _specs(m[0]) == _specs(made[0][0]) for m in made]
    if not all(alike):
        pytest.skip("the sample's shapes or numbers depend on the seed")
    inputs = testing.place(made[0][0], op=op)
    step, leaves = step_of(op, inputs, attributes)
    compiled = CompiledFunction(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        warnings.simplefilter("ignore", UserWarning)
        try:
            step()
        except (RuntimeError, NotImplementedError, TypeError) as error:
            pytest.skip(f"the plain call: {error}")
        compiled()
        compiled()
        compiled()
        for k in (1, 2, 0):
            moved(inputs, made[k][0])
            lt.manual_seed(k)
            found = bits(compiled()), bits(x.grad for x in leaves)
            lt.manual_seed(k)
            expected = bits(step()), bits(x.grad for x in leaves)
            assert found == expected
    if compiled.replays < 3:
        assert name in THEIRS
        reason = compiled.reasons[0].rpartition(" runs as it is written: ")[2]
        assert reason.startswith(VALUES), compiled.reasons


def _specs(inputs: Any) -> Any:
    return [x._spec if isinstance(x, Tensor) else (type(x), x) for x in inputs]
