"""Sharded modules that compute in another dtype than they keep: which bits, which bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.distributed as dist
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.distributed.fsdp import MixedPrecisionPolicy, full_state_dict, fully_shard
from lowtide.profiling import estimate

from .ranks import results
from .test_fully_shard import Net, sharded, tokens_of

HALF = MixedPrecisionPolicy(param_dtype=lt.bfloat16)
HALF_SUMMED = MixedPrecisionPolicy(param_dtype=lt.bfloat16, reduce_dtype=lt.float32)
WIDE = MixedPrecisionPolicy(param_dtype=lt.float64, output_dtype=lt.float32)
SUMMED = MixedPrecisionPolicy(reduce_dtype=lt.float64)
POLICIES = {"half": HALF, "half, summed": HALF_SUMMED, "wide": WIDE, "summed": SUMMED}


def net() -> Any:
    lt.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 7))


def batch(step: int, rank: int) -> Any:
    return lt.tensor(np.random.default_rng([step, rank]).normal(size=(5, 20)).astype(np.float32))


def by_hand(policy: MixedPrecisionPolicy, size: int) -> list[Any]:
    """Gradients of one process that computes what ranks do, one after the other."""
    whole = net()
    totals: list[Any] = []
    for rank in range(size):
        copy = net()
        if policy.param_dtype is not None:
            copy = copy.to(policy.param_dtype)
        x = batch(0, rank)
        out = copy(x if policy.param_dtype is None else x.to(policy.param_dtype))
        out = out if policy.output_dtype is None else out.to(policy.output_dtype)
        out.square().sum().backward()
        grads = [p.grad for p in copy.parameters()]
        if policy.reduce_dtype is not None:
            grads = [g.to(policy.reduce_dtype) for g in grads]
        totals = grads if not totals else [a.add_(b) for a, b in zip(totals, grads, strict=True)]
    return [
        (t.div_(size) if size > 1 else t).to(p.dtype).numpy()
        for t, p in zip(totals, whole.parameters(), strict=True)
    ]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_have_the_bits_of_one_process_that_computes_the_same(
    name: str, size: int
) -> None:
    policy = POLICIES[name]

    def rank_of(rank: int, size: int) -> Any:
        model = net()
        fully_shard(model[0], mp_policy=replace(policy, output_dtype=None))
        fully_shard(model, mp_policy=policy)
        out = model(batch(0, rank))
        computed = policy.param_dtype or lt.float32
        assert out.dtype == (policy.output_dtype or computed)
        out.square().sum().backward()
        for p in model.parameters():
            assert p.dtype == p.grad.dtype == lt.float32
        return [p.grad.numpy() for p in model.parameters()]

    every = results(size, rank_of)
    for k, expected in enumerate(by_hand(policy, size)):
        found = np.concatenate([grads[k] for grads in every])
        np.testing.assert_array_equal(found, expected)


@pytest.mark.quick(2)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_training_keeps_state_in_full_and_comes_as_far(name: str, recompute: bool) -> None:
    def rank_of(rank: int, size: int) -> Any:
        found = []
        for policy in (MixedPrecisionPolicy(), POLICIES[name]):
            model = sharded(Net(recompute), mp_policy=replace(policy, output_dtype=None))
            optimizer = optim.AdamW(model.parameters(), lr=1e-2)
            losses = []
            for _ in range(12):
                x, y = tokens_of(0, rank)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x).float().view(-1, 50), y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.item())
            state = optimizer.state[next(model.parameters())]
            assert state["exp_avg"].dtype == lt.float32
            assert {t.dtype for t in full_state_dict(model).values()} == {lt.float32}
            found.append(losses)
        return found

    for plain, mixed in results(2, rank_of):
        assert mixed[-1] < 0.5 * mixed[0]
        assert abs(mixed[-1] - plain[-1]) < 0.1 * plain[0]


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_ranks_peak_is_predicted_to_the_byte(name: str, size: int) -> None:
    def rank_of(rank: int, size: int) -> Any:
        model = sharded(Net(), mp_policy=replace(POLICIES[name], output_dtype=None))
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)

        def step() -> None:
            x, y = tokens_of(0, rank)
            optimizer.zero_grad()
            F.cross_entropy(model(x).float().view(-1, 50), y).backward()
            optimizer.step()

        told = estimate(step)
        found = []
        for _ in range(2):
            lt.reset_peak_memory_stats()
            step()
            found.append(lt.max_memory_allocated())
        return told.peak_bytes, told.devices[0].steady_bytes, found

    for first, steady, found in results(size, rank_of):
        assert [first, steady] == found


class Holds(nn.Module):
    """A parameter that no op reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(lt.ones(500, 500))

    def forward(self, x: Any) -> Any:
        return x


def test_half_the_bytes_travel_and_live() -> None:
    def peak_of(policy: MixedPrecisionPolicy) -> int:
        model, x = fully_shard(Holds(), mp_policy=policy), lt.ones(1)
        lt.reset_peak_memory_stats()
        before = lt.memory_allocated()
        model(x)
        return lt.max_memory_allocated() - before

    def rank_of(rank: int, size: int) -> Any:
        return peak_of(MixedPrecisionPolicy()), peak_of(HALF)

    own_rows = 250 * 500 * 2  # in the dtype that travels
    assert results(2, rank_of) == [(500 * 500 * 4, 500 * 500 * 2 + own_rows)] * 2


@pytest.fixture
def world_of_one() -> Any:
    dist.init_process_group("fake", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Takes(nn.Module):
    """Notes the dtypes of what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(lt.ones(3))
        self.seen: list[Any] = []

    def forward(self, x: Any, pair: Any, *, mask: Any, name: str) -> Any:
        self.seen = [x.dtype, pair["a"][0].dtype, mask.dtype, self.weight.dtype]
        return {"out": x.sum(), "mask": mask, "name": name}


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize("casts", [True, False])
def test_arguments_and_results_are_converted(casts: bool) -> None:
    policy = MixedPrecisionPolicy(lt.bfloat16, output_dtype=lt.float64, cast_forward_inputs=casts)
    model = fully_shard(Takes(), mp_policy=policy)
    found = model(lt.ones(2), {"a": [lt.ones(2)]}, mask=lt.ones(2) > 0, name="n")
    given = lt.bfloat16 if casts else lt.float32
    assert model.seen == [given, given, lt.bool, lt.bfloat16]
    assert (found["out"].dtype, found["mask"].dtype, found["name"]) == (lt.float64, lt.bool, "n")
    model.unshard()
    assert model.weight.dtype == lt.bfloat16
    model(lt.ones(2), {"a": [lt.ones(2)]}, mask=lt.ones(2) > 0, name="n")
    assert model.seen[0] == given
    model.reshard()
    assert model.weight.dtype == lt.float32


@pytest.mark.usefixtures("world_of_one")
def test_parameters_of_integers_stay_as_they_are() -> None:
    model = nn.Linear(3, 3)
    model.count = nn.Parameter(lt.ones(2, dtype=lt.int64), requires_grad=False)
    fully_shard(model, mp_policy=HALF)
    model.unshard()
    assert (model.count.dtype, model.weight.dtype) == (lt.int64, lt.bfloat16)
    model.reshard()


@pytest.mark.parametrize("name", ["half", "half, summed"])
def test_gradients_that_are_not_averaged_yet_accumulate(name: str) -> None:
    policy = POLICIES[name]

    def rank_of(rank: int, size: int) -> Any:
        model = fully_shard(net(), mp_policy=policy)
        model.set_requires_gradient_sync(False)
        model(batch(0, rank)).square().sum().backward()
        model.set_requires_gradient_sync(True)
        model(batch(1, rank)).square().sum().backward()
        return [p.grad.numpy() for p in model.parameters()]

    def alone(rank: int) -> list[Any]:
        copy = net().to(lt.bfloat16)
        grads: list[Any] = []
        for step in range(2):
            copy.zero_grad()
            copy(batch(step, rank).to(lt.bfloat16)).square().sum().backward()
            some = [p.grad.to(policy.reduce_dtype or lt.bfloat16) for p in copy.parameters()]
            grads = some if not grads else [a + b for a, b in zip(grads, some, strict=True)]
        return grads

    every = results(2, rank_of)
    for k, (a, b) in enumerate(zip(alone(0), alone(1), strict=True)):
        found = np.concatenate([grads[k] for grads in every])
        np.testing.assert_array_equal(found, ((a + b) / 2).float().numpy())


@pytest.mark.parametrize("name", ["param_dtype", "reduce_dtype", "output_dtype"])
def test_dtypes_are_floating_point(name: str) -> None:
    for value in (lt.int32, "bfloat16", np.float32):
        with pytest.raises(TypeError, match=f"{name} must be a floating-point dtype"):
            MixedPrecisionPolicy(**{name: value})
