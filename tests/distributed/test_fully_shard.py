"""fully_shard: each rank keeps some rows, and the model is that of data parallelism."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.distributed as dist
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.distributed.fsdp import (
    FSDPModule,
    ShardedParameter,
    full_state_dict,
    fully_shard,
)
from lowtide.framework.distributed.shards import rows_of
from lowtide.framework.distributed.unsharded_storage import UnshardedStorage
from lowtide.nn.parallel import DistributedDataParallel
from lowtide.profiling import MemoryProfiler, estimate
from lowtide.utils.checkpoint import checkpoint

from .ranks import results

WIDTH, HIDDEN = 190, 451


class Block(nn.Module):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.recompute = recompute

    def inner(self, x: Any) -> Any:
        return self.down(F.gelu(self.up(self.norm(x))))

    def forward(self, x: Any) -> Any:
        if self.recompute:
            return x + checkpoint(self.inner, x, use_reentrant=False)
        return x + self.inner(x)


class Net(nn.Module):
    """Blocks between a tied embedding and head; a table whose rows are fewer than ranks."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        lt.manual_seed(7)
        self.token = nn.Embedding(50, WIDTH)
        self.few = nn.Parameter(lt.randn(1, WIDTH))
        self.blocks = nn.ModuleList([Block(recompute) for _ in range(3)])
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: Any) -> Any:
        x = self.token(tokens) + self.few
        for block in self.blocks:
            x = block(x)
        return self.head(F.layer_norm(x, (WIDTH,)))


def sharded(net: Any, **options: Any) -> Any:
    for block in net.blocks:
        fully_shard(block, **options)
    return fully_shard(net, **options)


def tokens_of(step: int, rank: int) -> tuple[Any, Any]:
    draw = np.random.default_rng([step, rank])
    return lt.tensor(draw.integers(0, 50, (4, 9))), lt.tensor(draw.integers(0, 50, 36))


def train(model: Any, optimizer: Any, rank: int, steps: int = 3) -> list[float]:
    losses = []
    for step in range(steps):
        x, y = tokens_of(step, rank)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).view(-1, 50), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def arrays(state: dict[str, Any]) -> dict[str, Any]:
    return {name: t.numpy().copy() for name, t in state.items()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[k], b[k]) for k in a)


@pytest.mark.quick(3)
@pytest.mark.parametrize("reshard", [None, True, False])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_model_is_that_of_data_parallelism_bit_for_bit(
    size: int, recompute: bool, reshard: bool | None
) -> None:
    def rank_of(rank: int, size: int) -> Any:
        plain = Net(recompute)
        wrapped = DistributedDataParallel(plain)
        expected = train(wrapped, optim.AdamW(wrapped.parameters(), lr=1e-2), rank)
        model = sharded(Net(recompute), reshard_after_forward=reshard)
        found = train(model, optim.AdamW(model.parameters(), lr=1e-2), rank)
        assert found == expected
        assert same(arrays(full_state_dict(model)), arrays(plain.state_dict()))
        rows = [p.shape[0] for p in model.parameters()]
        full = [p.full_shape[0] for p in model.parameters()]
        assert rows == [b - a for a, b in (rows_of(n, rank, size) for n in full)]
        return True

    assert results(size, rank_of) == [True] * size


@pytest.mark.parametrize("size", [2, 3])
def test_gradients_accumulate_without_reduction(size: int) -> None:
    def rank_of(rank: int, size: int) -> bool:
        plain = Net()
        wrapped = DistributedDataParallel(plain)
        model = sharded(Net())
        for accumulates in (True, True, False):
            step = 2 * accumulates
            x, y = tokens_of(step, rank)
            model.set_requires_gradient_sync(not accumulates)
            F.cross_entropy(model(x).view(-1, 50), y).backward()
            if accumulates:
                with wrapped.no_sync():
                    F.cross_entropy(wrapped(x).view(-1, 50), y).backward()
                assert all(p.grad is None for p in model.parameters())
            else:
                F.cross_entropy(wrapped(x).view(-1, 50), y).backward()
        for a, b in zip(model.parameters(), plain.parameters(), strict=True):
            first, last = a.shard.own
            assert np.array_equal(a.grad.numpy(), b.grad[first:last].numpy())
        return True

    assert results(size, rank_of) == [True] * size


@pytest.mark.parametrize("norm", [2.0, 1.0, float("inf")])
def test_clipping_is_by_the_norm_of_all_ranks(norm: float) -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        plain = Net()
        wrapped, model = DistributedDataParallel(plain), sharded(Net())
        x, y = tokens_of(0, rank)
        totals = []
        for one in (wrapped, model):
            F.cross_entropy(one(x).view(-1, 50), y).backward()
            totals.append(nn.utils.clip_grad_norm_(one.parameters(), 0.01, norm).item())
        assert totals[1] == pytest.approx(totals[0], rel=1e-5)
        for a, b in zip(model.parameters(), plain.parameters(), strict=True):
            first, last = a.shard.own
            np.testing.assert_allclose(a.grad.numpy(), b.grad[first:last].numpy(), rtol=1e-4)
        return totals

    found = results(3, rank_of)
    assert found[0] == found[1] == found[2]


def test_a_scaler_skips_a_step_in_all_ranks() -> None:
    def rank_of(rank: int, size: int) -> list[float]:
        model = fully_shard(nn.Linear(4, 6))
        optimizer = optim.SGD(model.parameters(), lr=1.0)
        scaler = lt.amp.GradScaler("cpu", init_scale=2.0)
        before = full_state_dict(model)["weight"].numpy().copy()
        loss = model(lt.ones(3, 4)).sum()
        scaler.scale(loss).backward()
        if rank == 1:
            model.weight.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        assert np.array_equal(full_state_dict(model)["weight"].numpy(), before)
        return [scaler.get_scale()]

    assert results(2, rank_of) == [[1.0]] * 2


def test_an_optimizer_in_backward_steps_shards() -> None:
    def rank_of(rank: int, size: int) -> bool:
        found = []
        for fused in (False, True):
            model = sharded(Net())
            optimizer = optim.SGD(model.parameters(), lr=1e-2)
            if fused:
                optim.fuse_into_backward(optimizer)
            train(model, optimizer, rank)
            found.append(arrays(full_state_dict(model)))
        return same(*found)

    assert results(2, rank_of) == [True] * 2


def test_state_is_gathered_loaded_and_never_saved_in_part() -> None:
    def rank_of(rank: int, size: int) -> dict[str, Any]:
        model = sharded(Net())
        train(model, optim.SGD(model.parameters(), lr=1e-2), rank, 1)
        whole = full_state_dict(model)
        with pytest.raises(ValueError, match="few is sharded: this rank has rows"):
            lt.save(model.state_dict(), io.BytesIO())
        other = sharded(Net())
        assert str(other.load_state_dict(whole)) == "<All keys matched successfully>"
        assert same(arrays(full_state_dict(other)), arrays(whole))
        third = sharded(Net())
        third.load_state_dict(model.state_dict())  # shards into shards
        assert same(arrays(full_state_dict(third)), arrays(whole))
        plain = Net()
        plain.load_state_dict(whole)
        x, _ = tokens_of(0, 0)
        with lt.no_grad():
            assert np.array_equal(plain(x).numpy(), model(x).numpy())
        return arrays(whole)

    found = results(3, rank_of)
    assert same(found[0], found[2])


KINDS: dict[str, Callable[[], Any]] = {
    "plain": lambda: sharded(Net()),
    "kept": lambda: sharded(Net(), reshard_after_forward=False),
    "recomputed": lambda: sharded(Net(recompute=True), reshard_after_forward=True),
    "one unit": lambda: fully_shard(Net()),
}


def step_of(model: Any, optimizer: Any) -> Callable[[], None]:
    def step() -> None:
        x, y = lt.randint(0, 50, (16, 9)), lt.randint(0, 50, (144,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).view(-1, 50), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


@pytest.mark.quick(2)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_each_ranks_bytes_are_predicted(kind: str, size: int) -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        model = KINDS[kind]()
        step = step_of(model, optim.AdamW(model.parameters()))
        before = lt.memory_allocated()
        found = estimate(step)
        assert lt.memory_allocated() == before
        real = []
        for _ in range(3):
            lt.reset_peak_memory_stats()
            step()
            real.append((lt.max_memory_allocated(), lt.memory_stats()["peak_by_role"]))
        assert (found.peak_bytes, found.peak_roles) == real[0]
        assert found.steady_bytes == max(peak for peak, _ in real[1:])
        return [before, real[0][0] - before, found.steady_bytes - before]

    for rank, found in enumerate(results(size, rank_of)):
        dist.init_process_group("fake", rank=rank, world_size=size)
        try:
            model = KINDS[kind]()
            asked = estimate(step_of(model, optim.AdamW(model.parameters())))
        finally:
            dist.destroy_process_group()
        start = asked.devices[0].start_bytes
        assert [asked.peak_bytes - start, asked.steady_bytes - start] == found[1:]


def test_parameters_gradients_and_states_are_shared_out() -> None:
    def rank_of(rank: int, size: int) -> dict[str, int]:
        before = lt.memory_stats()["by_role"]  # what the test's process had when it was forked
        model = sharded(Net())
        optimizer = optim.AdamW(model.parameters())
        step_of(model, optimizer)()
        return {k: v - before[k] for k, v in lt.memory_stats()["by_role"].items() if v != before[k]}

    own = results(4, rank_of)
    full = sum(p.numel() * 4 for p in Net().parameters())
    for one in own:
        assert one["parameter"] == one["gradient"]
        assert one["optimizer"] == 2 * one["parameter"]
        assert "communication" not in one
    assert sum(one["parameter"] for one in own) == full


def test_without_a_graph_full_parameters_die_with_the_forward() -> None:
    def rank_of(rank: int, size: int) -> bool:
        gc.disable()
        x, _ = tokens_of(0, rank)
        start = lt.memory_allocated()
        model = sharded(Net())
        before = lt.memory_allocated()
        with lt.no_grad():
            model(x)
        assert lt.memory_allocated() == before
        loss = model(x).sum()
        del loss  # no backward
        assert lt.memory_allocated() == before
        loss = model(x).sum()
        loss.backward()
        del loss
        for p in model.parameters():
            p.grad = None
        assert lt.memory_allocated() == before
        gone = weakref.ref(model)
        del model, p
        assert gone() is None
        assert lt.memory_allocated() == start
        return True

    assert results(2, rank_of) == [True] * 2


def test_reading_outside_of_forward_and_late_steps_are_errors() -> None:
    def rank_of(rank: int, size: int) -> bool:
        seen = []

        class Keeps(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(lt.randn(300, 300))

            def forward(self, x: Any) -> Any:
                seen.append(self.weight)
                return x @ self.weight

        model = fully_shard(Keeps(), reshard_after_forward=True)
        y = model(lt.randn(2, 300, requires_grad=True))
        with pytest.raises(RuntimeError, match=r"read outside of its module's forward"):
            seen[0].sum()
        with pytest.raises(RuntimeError, match=r"read outside of its module's forward"):
            seen[0].detach().numpy()
        with lt.no_grad():
            model.weight.add_(1.0)
        with pytest.raises(lt.GradientError, match="weight has been modified by an inplace"):
            y.sum().backward()
        return True

    assert results(2, rank_of) == [True] * 2


def test_a_view_that_leaves_the_forward_keeps_its_values() -> None:
    def rank_of(rank: int, size: int) -> bool:
        class Table(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                lt.manual_seed(3)
                self.weight = nn.Parameter(lt.randn(300, 300))

            def forward(self, n: int) -> Any:
                return self.weight[:n]

        plain, model = Table(), fully_shard(Table(), reshard_after_forward=True)
        for grad in (False, True):
            with lt.set_grad_enabled(grad):
                rows = model(200)
                assert np.array_equal(rows.detach().numpy(), plain.weight[:200].detach().numpy())
        (rows * rows).sum().backward()
        first, last = model.weight.shard.own
        expected = 2 * plain.weight.detach().numpy()
        expected[200:] = 0
        assert np.array_equal(model.weight.grad.numpy(), expected[first:last])
        return True

    assert results(2, rank_of) == [True] * 2


def test_unshard_and_reshard() -> None:
    def rank_of(rank: int, size: int) -> bool:
        lt.manual_seed(0)
        plain = nn.Linear(5, 7)
        lt.manual_seed(0)
        model = fully_shard(nn.Linear(5, 7))
        handle = model.unshard(async_op=True)
        assert handle is not None
        handle.wait()
        assert not isinstance(model.weight, ShardedParameter)
        assert np.array_equal(model.weight.detach().numpy(), plain.weight.detach().numpy())
        model.reshard()
        assert isinstance(model.weight, ShardedParameter)
        assert isinstance(model, FSDPModule)
        assert isinstance(model, nn.Linear)
        assert type(model).__name__ == "FSDPLinear"
        return True

    assert results(2, rank_of) == [True] * 2


def test_a_forward_that_raises_puts_the_shards_back() -> None:
    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            raise KeyError("inside")

    def rank_of(rank: int, size: int) -> bool:
        model = Raises()
        fully_shard(model.inner)
        fully_shard(model)
        before = lt.memory_allocated()
        with pytest.raises(KeyError, match="inside"):
            model(lt.ones(2, 4))
        assert all(isinstance(p, ShardedParameter) for p in model.parameters())
        assert lt.memory_allocated() == before
        with pytest.raises(RuntimeError, match="linear contracts"):
            model.inner(lt.ones(2, 5))
        assert all(isinstance(p, ShardedParameter) for p in model.parameters())
        assert model.inner(lt.ones(2, 4)).shape == (2, 4)
        return True

    assert results(2, rank_of) == [True] * 2


@pytest.fixture
def world_of_two() -> Any:
    dist.init_process_group("fake", rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world_of_two")
def test_what_is_refused() -> None:
    scalar = nn.Module()
    scalar.scale = nn.Parameter(lt.tensor(1.0))
    with pytest.raises(ValueError, match="scalar parameters"):
        fully_shard(scalar)
    with pytest.raises(TypeError, match="expected a Module"):
        fully_shard(lt.ones(2))
    with pytest.raises(NotImplementedError, match="shard_placement_fn"):
        fully_shard(nn.Linear(2, 2), shard_placement_fn=lambda p: None)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    fully_shard(tied[0])
    with pytest.raises(ValueError, match="must be sharded together"):
        fully_shard(tied)
    model = fully_shard(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="sharded already"):
        fully_shard(model)
    with pytest.raises(AssertionError, match="deepcopy"):
        __import__("copy").deepcopy(model)
    for kind in (optim.Muon, optim.Adafactor, optim.LBFGS):
        with pytest.raises(ValueError, match="needs all of a parameter"):
            kind([model.weight])
    model.weight = nn.Parameter(lt.ones(4, 4))
    with pytest.raises(RuntimeError, match="was replaced after fully_shard"):
        model(lt.ones(1, 4))


def test_without_a_group_it_is_refused() -> None:
    with pytest.raises(ValueError, match="has not been initialized"):
        fully_shard(nn.Linear(2, 2))


def test_other_modules_in_other_ranks_are_named() -> None:
    def rank_of(rank: int, size: int) -> str:
        with pytest.raises(RuntimeError, match="Build the same module") as found:
            fully_shard(nn.Linear(4, 4 + rank))
        return str(found.value)

    assert "['weight', 'lowtide.float32', [4, 4]] where rank 1 has" in results(2, rank_of)[0]


def test_a_byte_budget_holds_and_changes_no_bit() -> None:
    def rank_of(rank: int, size: int) -> bool:
        found, peaks = [], []
        for share in (None, 0.7):
            model = sharded(Net())
            optimizer = optim.AdamW(model.parameters(), lr=1e-2)
            budget = 1 << 40 if share is None else int(peaks[0] * share)
            lt.reset_peak_memory_stats()
            for step in range(2):
                x, y = tokens_of(step, rank)
                x, y = x.repeat(32, 1), y.repeat(32)
                optimizer.zero_grad()
                with lt.memory_budget(budget):
                    loss = F.cross_entropy(model(x).view(-1, 50), y)
                    loss.backward()
                optimizer.step()
                del loss
            peaks.append(lt.max_memory_allocated())
            found.append(arrays(full_state_dict(model)))
            del model, optimizer
        assert peaks[1] <= 0.75 * peaks[0]
        return same(*found)

    assert results(2, rank_of) == [True] * 2


class Odd(nn.Module):
    """A frozen weight, a block that is called twice, and layers that a caller checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        lt.manual_seed(5)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.frozen = nn.Linear(WIDTH, 300)
        self.frozen.requires_grad_(False)
        self.last = nn.Linear(300, WIDTH)

    def forward(self, x: Any) -> Any:
        x = checkpoint(self.blocks[0], x, use_reentrant=False)
        x = self.blocks[1](self.blocks[1](x))
        return self.last(self.frozen(x))


@pytest.mark.parametrize("size", [1, 2])
def test_frozen_shared_and_checkpointed_units(size: int) -> None:
    def rank_of(rank: int, size: int) -> bool:
        plain, model = Odd(), Odd()
        for part in (*model.blocks, model.frozen):
            fully_shard(part, reshard_after_forward=True)
        fully_shard(model)
        wrapped = DistributedDataParallel(plain)
        x = lt.randn(6, WIDTH, requires_grad=True)
        grads = []
        for one in (wrapped, model):
            loss = one(x).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()  # the same graph again
            del loss
            grads.append(x.grad.numpy().copy())
            x.grad = None
        assert np.array_equal(*grads)
        for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
            first, last = a.shard.own
            assert (a.grad is None) == (b.grad is None), name
            if b.grad is not None:
                found, wanted = a.grad.numpy(), b.grad[first:last].numpy()
                np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-3, err_msg=name)
        assert lt.memory_stats()["by_role"]["communication"] == 0
        return True

    assert results(size, rank_of) == [True] * size


@pytest.mark.usefixtures("world_of_two")
def test_writes_in_forward_and_gradients_of_gradients_are_errors() -> None:
    class Clamps(nn.Linear):
        def forward(self, x: Any) -> Any:
            with lt.no_grad():
                self.weight.clamp_(-0.1, 0.1)
            return super().forward(x)

    model = fully_shard(Clamps(4, 4))
    with pytest.raises(RuntimeError, match="weight was written while its rows were gathered"):
        model(lt.ones(2, 4))
    assert isinstance(model.weight, ShardedParameter)
    other = fully_shard(nn.Linear(4, 4))
    other.unshard()
    with lt.no_grad():
        other.weight.zero_()
    with pytest.raises(RuntimeError, match="was written while"):
        other.reshard()
    assert isinstance(other.weight, ShardedParameter)
    loss = other(lt.ones(2, 4)).square().sum()
    with pytest.raises(NotImplementedError, match="create_graph=True"):
        loss.backward(create_graph=True)


@pytest.mark.usefixtures("world_of_two")
def test_bytes_that_an_interrupt_left_booked_are_booked_once() -> None:
    spec = lt.zeros(1000)._spec
    before = lt.memory_allocated()
    storage = UnshardedStorage(spec, lambda flat: None)
    storage.book()
    storage.book()
    storage.filled()
    assert lt.memory_allocated() == before + 4000
    storage.release()
    assert lt.memory_allocated() == before
    storage.book()  # and interrupted before it is filled
    assert storage.restore(0)
    assert lt.memory_allocated() == before + 4000

    def fails(flat: Any) -> None:
        raise KeyboardInterrupt

    broken = UnshardedStorage(spec, fails)
    with pytest.raises(KeyboardInterrupt):
        broken.restore(0)
    assert lt.memory_allocated() == before + 4000
    del storage, broken
    assert lt.memory_allocated() == before


@pytest.mark.usefixtures("world_of_two")
def test_after_forward_the_graph_keeps_no_gathered_bytes_but_small_ones() -> None:
    def held(reshard: bool | None, then: bool | None = None) -> int:
        before = lt.memory_stats()["by_role"]["communication"]
        model = sharded(Net(), reshard_after_forward=reshard)
        if then is not None:
            model.set_reshard_after_forward(then)
        x, _ = tokens_of(0, 0)
        loss = model(x).sum()
        found = lt.memory_stats()["by_role"]["communication"] - before
        del loss
        return found

    vectors = 4 * 3 * (3 * WIDTH + HIDDEN)  # of the blocks: norms and biases
    table, few = 4 * 50 * WIDTH, 4 * WIDTH
    weights = 4 * 3 * 2 * WIDTH * HIDDEN
    assert held(True) == held(None) == vectors + table + few
    assert held(False) == held(True) + weights
    assert held(True, then=False) == held(False)
    assert held(False, then=True) == held(True)


@pytest.mark.usefixtures("world_of_two")
def test_a_profiler_gives_gathered_bytes_to_the_module_that_gathers() -> None:
    model = sharded(Net(), reshard_after_forward=False)
    x, _ = tokens_of(0, 0)
    with MemoryProfiler() as prof:
        loss = model(x).sum()
        held = prof.at_peak("module", role="communication")
    block = 4 * (3 * WIDTH + HIDDEN + 2 * WIDTH * HIDDEN)
    assert [held[f"blocks.{k}"] for k in range(3)] == [block] * 3
    del loss
