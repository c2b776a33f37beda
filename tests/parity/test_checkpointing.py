"""Selective checkpointing and offload in PyTorch's spelling: one program, both frameworks."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

import lowtide.utils.checkpoint as ours  # noqa: E402

theirs = pytest.importorskip("torch.utils.checkpoint")
RNG = np.random.default_rng(0)
X, W, V = (RNG.standard_normal(s) for s in ((6, 8), (8, 8), (8, 3)))


def program(m: Any, checkpoint: Any, **options: Any) -> list[Any]:
    x, w, v = (m.tensor(a, requires_grad=True) for a in (X, W, V))

    def f(x: Any, *, scale: float) -> Any:
        h = m.nn.functional.gelu(x @ w * scale)
        return m.softmax(h @ v, dim=-1).log(), None, h.sum()

    y, none, total = checkpoint(f, x, scale=0.5, use_reentrant=False, **options)
    assert none is None
    ((y * y).sum() + total).backward()
    return [t.detach().numpy() for t in (y, x.grad, w.grad, v.grad)]


def assert_alike(a: list[Any], b: list[Any]) -> None:
    for p, q in zip(a, b, strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("save", ["MUST_SAVE", "PREFER_SAVE"])
@pytest.mark.parametrize("other", ["MUST_RECOMPUTE", "PREFER_RECOMPUTE"])
def test_a_policy_function_gives_pytorchs_gradients(save: str, other: str) -> None:
    def by(kinds: Any, products: Any) -> Any:
        def policy_fn(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            assert ctx.is_recompute in (False, True)
            return kinds.CheckpointPolicy[save if op in products else other]

        contexts = kinds.create_selective_checkpoint_contexts
        return functools.partial(contexts, policy_fn)

    found = program(lt, ours.checkpoint, context_fn=by(ours, [lt.mm, lt.matmul]))
    expected = program(torch, theirs.checkpoint, context_fn=by(theirs, [torch.ops.aten.mm.default]))
    assert_alike(found, expected)
    assert_alike(found, program(lt, lambda f, x, use_reentrant, **k: f(x, **k)))


def test_a_list_of_ops_gives_pytorchs_gradients() -> None:
    mine = functools.partial(ours.create_selective_checkpoint_contexts, [lt.mm])
    other = functools.partial(
        theirs.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]
    )
    assert_alike(
        program(lt, ours.checkpoint, context_fn=mine),
        program(torch, theirs.checkpoint, context_fn=other),
    )


def test_names_and_signatures_are_pytorchs() -> None:
    kinds = [p.name for p in theirs.CheckpointPolicy]
    assert [p.name for p in ours.CheckpointPolicy][: len(kinds)] == kinds
    for name in (
        "checkpoint",
        "checkpoint_sequential",
        "create_selective_checkpoint_contexts",
        "set_checkpoint_early_stop",
        "set_checkpoint_debug_enabled",
        "noop_context_fn",
    ):
        mine = inspect.signature(getattr(ours, name)).parameters
        other = inspect.signature(getattr(theirs, name)).parameters
        missing = [p for p in other if p not in mine]
        assert missing == [], name
        for p, q in zip(mine, other, strict=False):
            if mine[p].kind is other[q].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
                assert p == q, name


def test_wrong_arguments_raise_what_pytorch_raises() -> None:
    for wrong in (3, None):
        with pytest.raises(TypeError, match="either a function or a list of ops"):
            ours.create_selective_checkpoint_contexts(wrong)
        with pytest.raises(TypeError, match="either a function or a list of ops"):
            theirs.create_selective_checkpoint_contexts(wrong)
    for m in (ours, theirs):
        with (
            m.set_checkpoint_early_stop(False),
            m.set_checkpoint_debug_enabled(False),
        ):
            pass


def test_save_on_cpu_takes_pytorchs_arguments() -> None:
    mine = inspect.signature(lt.autograd.graph.save_on_cpu).parameters
    other = inspect.signature(torch.autograd.graph.save_on_cpu).parameters
    assert [(p.name, p.default) for p in mine.values()] == [
        (p.name, p.default) for p in other.values()
    ]
    found = []
    for m in (lt, torch):
        x = m.tensor(X, requires_grad=True)
        with m.autograd.graph.save_on_cpu(pin_memory=False):
            y = (x * x).exp().tanh() * x
        y.sum().backward()
        found.append(x.grad.numpy())
        with (
            m.autograd.graph.disable_saved_tensors_hooks("no hooks"),
            pytest.raises(RuntimeError, match="no hooks"),
            m.autograd.graph.save_on_cpu(),
        ):
            pass
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9, atol=1e-12)
