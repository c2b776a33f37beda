"""Compiled blocks under fully_shard are replayed: gathered parameters are like arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.nn.functional as F
from lowtide import nn, optim
from lowtide.distributed.fsdp import MixedPrecisionPolicy, full_state_dict, fully_shard
from lowtide.framework.distributed.unsharded_storage import UnshardedStorage
from lowtide.framework.errors import GradientError
from lowtide.profiling import MemoryProfiler, estimate

from .ranks import results
from .test_fully_shard import WIDTH, Net, arrays, same, sharded, tokens_of, train

WAYS = {"a wrapper": lambda block: lt.compile(block), "in place": lambda block: block.compile()}


def compiled(net: Any, way: str) -> list[Any]:
    """Compile the blocks; return their compiled functions."""
    found = []
    for k, block in enumerate(net.blocks):
        if way == "a wrapper":
            net.blocks[k] = lt.compile(block)
            found.append(net.blocks[k]._compiled)
        else:
            block.compile()
            found.append(block._call_hooks.compiled)
    return found


def pair(way: str = "in place", **options: Any) -> tuple[Any, Any, list[Any]]:
    """Two nets of the same values, sharded; the blocks of the second are compiled."""
    plain, other = Net(), Net()
    functions = compiled(other, way)
    return sharded(plain, **options), sharded(other, **options), functions


def unwrapped(state: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_orig_mod.", ""): value for name, value in state.items()}


@pytest.mark.quick(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reshard", [None, True, False])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_replays_have_the_bits_of_the_plain_blocks(
    size: int, reshard: bool | None, way: str
) -> None:
    def rank_of(rank: int, size: int) -> Any:
        plain, other, functions = pair(way, reshard_after_forward=reshard)
        losses = []
        for net in (plain, other):
            optimizer = optim.AdamW(net.parameters(), lr=1e-2)
            losses.append(train(net, optimizer, rank, 7))
        states = [arrays(unwrapped(full_state_dict(net))) for net in (plain, other)]
        return losses, same(*states), [(f.replays, f.recordings, f.reasons) for f in functions]

    for losses, alike, counts in results(size, rank_of):
        assert losses[0] == losses[1]
        assert alike
        assert counts == [(4, 1, [])] * 3


def test_bytes_of_parameters_go_after_the_forward_and_a_step_takes_little_more() -> None:
    def rank_of(rank: int, size: int) -> Any:
        found = []
        for net in pair()[:2]:
            optimizer = optim.AdamW(net.parameters())
            train(net, optimizer, rank, 5)
            optimizer.zero_grad()
            x, y = tokens_of(9, rank)
            lt.reset_peak_memory_stats()
            start = lt.memory_allocated()
            loss = F.cross_entropy(net(x).view(-1, 50), y)
            between = lt.memory_allocated() - start
            loss.backward()
            found.append((between, lt.max_memory_allocated() - start))
        return found

    block = 4 * (190 * 451 * 2)  # bytes of its two large weights
    for (between, peak), (between_of_replays, peak_of_replays) in results(2, rank_of):
        assert between_of_replays <= between < between_of_replays + block
        assert peak_of_replays < 1.06 * peak  # as written, a gradient that arrives is written over


def test_several_forwards_wait_for_their_backward_and_gradients_accumulate() -> None:
    def rank_of(rank: int, size: int) -> Any:
        found = []
        plain, other, functions = pair()
        for net in (plain, other):
            for step in range(5):
                losses = []
                for k in range(3):
                    x, y = tokens_of(3 * step + k, rank)
                    losses.append(F.cross_entropy(net(x).view(-1, 50), y))
                net.set_requires_gradient_sync(False)
                losses[1].backward(retain_graph=True)
                losses[0].backward()
                net.set_requires_gradient_sync(True)
                losses[1].backward()
                losses[2].backward()
            found.append([p.grad.numpy().copy() for p in net.parameters()])
        return found, min(f.replays for f in functions)

    for (expected, got), replays in results(2, rank_of):
        assert replays >= 6
        assert all(np.array_equal(a, b) for a, b in zip(expected, got, strict=True))


def test_evaluation_and_training_have_recordings_of_their_own() -> None:
    def rank_of(rank: int, size: int) -> Any:
        plain, other, functions = pair()
        x, _ = tokens_of(0, rank)
        found = []
        for _ in range(5):
            with lt.no_grad():
                found.append(np.array_equal(plain(x).numpy(), other(x).numpy()))
            for net in (plain, other):
                net(x).sum().backward()
        return found, [f.replays for f in functions]

    assert results(2, rank_of) == [([True] * 5, [4, 4, 4])] * 2


def test_mixed_precision() -> None:
    policy = MixedPrecisionPolicy(param_dtype=lt.bfloat16, reduce_dtype=lt.float32)

    def rank_of(rank: int, size: int) -> Any:
        plain, other, functions = pair(mp_policy=policy)
        losses = [train(net, optim.SGD(net.parameters(), 0.1), rank, 6) for net in (plain, other)]
        return losses, min(f.replays for f in functions)

    for (expected, got), replays in results(2, rank_of):
        assert got == expected
        assert replays == 3


def test_a_unit_around_compiled_blocks_gathers_their_parameters_too() -> None:
    def rank_of(rank: int, size: int) -> Any:
        plain, other = Net(), Net()
        functions = compiled(other, "in place")
        losses = []
        for net in (fully_shard(plain), fully_shard(other)):  # the blocks are no units
            losses.append(train(net, optim.SGD(net.parameters(), 0.1), rank, 6))
        return losses, min(f.replays for f in functions)

    for (expected, got), replays in results(2, rank_of):
        assert got == expected
        assert replays == 3


class TwoResults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(200, 200)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return y, y.tanh()


def test_other_gradients_than_the_recorded_ones_let_the_module_run_again() -> None:
    def rank_of(rank: int, size: int) -> Any:
        lt.manual_seed(3)
        net = lt.compile(TwoResults())
        fully_shard(net, reshard_after_forward=True)
        found = []
        for k in range(8):
            x = lt.randn(4, 200)
            y, z = net(x)
            (z if k != 6 else y).backward(lt.ones(4, 200))
            weight = net.layer.weight
            expected = np.zeros((200, 200), np.float32)
            with lt.no_grad():
                g = lt.ones(4, 200) if k == 6 else 1 - z * z
                expected = (g.t() @ x).numpy()[: weight.shape[0]]
            got = weight.grad.numpy()
            weight.grad = net.layer.bias.grad = None
            found.append(float(abs(got - expected).max()))
        return found, net._compiled.replays

    for found, replays in results(1, rank_of):
        assert max(found) < 1e-4
        assert replays == 5


def test_shards_that_are_written_before_backward_are_an_error() -> None:
    def rank_of(rank: int, size: int) -> Any:
        _, net, functions = pair()
        optimizer = optim.SGD(net.parameters(), 0.1)
        train(net, optimizer, rank, 5)
        before = lt.memory_allocated()
        x, y = tokens_of(0, rank)
        loss = F.cross_entropy(net(x).view(-1, 50), y)
        optimizer.step()
        with pytest.raises(GradientError, match="has been modified by an inplace"):
            loss.backward()
        del loss
        optimizer.zero_grad()
        left = lt.memory_allocated()
        after = train(net, optimizer, rank, 2)
        return functions[0].replays, before >= left, after

    (replays, nothing_left, first), (_, _, second) = results(2, rank_of)
    assert replays >= 5
    assert nothing_left
    assert len(first) == len(second) == 2


def test_profiles_and_estimates_of_replays_are_those_of_the_ledger() -> None:
    def rank_of(rank: int, size: int) -> Any:
        _, net, functions = pair()
        optimizer = optim.AdamW(net.parameters())
        train(net, optimizer, rank, 5)
        before = functions[0].replays

        def step() -> None:
            train(net, optimizer, rank, 1)

        predicted = estimate(step).peak_bytes
        assert functions[0].replays == before
        lt.reset_peak_memory_stats()
        step()
        real = lt.max_memory_allocated()
        lt.reset_peak_memory_stats()
        with MemoryProfiler() as profiler:
            step()
        return predicted, real, lt.max_memory_allocated(), sum(profiler.peak().cells.values())

    for predicted, real, profiled, shown in results(2, rank_of):
        assert predicted == real == profiled == shown


def test_changes_of_the_module_are_noticed() -> None:
    def rank_of(rank: int, size: int) -> Any:
        lt.manual_seed(1)
        net = TwoResults()
        net.compile()
        fully_shard(net, ignored_params=[net.layer.bias])
        x = lt.randn(2, 200)
        found = []

        def calls(count: int) -> int:
            before = net._call_hooks.compiled.replays
            for _ in range(count):
                net(x)[1].sum().backward()
                expected = x @ net.layer.weight.full_tensor().t() + net.layer.bias
                found.append(float((net(x)[0] - expected).abs().max()))
            return net._call_hooks.compiled.replays - before

        counts = [calls(3)]
        net.layer.bias = nn.Parameter(lt.randn(200))
        counts.append(calls(1))
        counts.append(calls(2))
        net.layer.weight.requires_grad_(False)
        counts.append(calls(3))
        net.layer.bias.requires_grad_(False)
        plain = [net(x)[0].requires_grad for _ in range(4)]
        net.layer.weight.requires_grad_(True)
        trained = []
        for _ in range(4):
            y = net(x)[0]
            trained.append(y.requires_grad)
            y.sum().backward()
        return max(found), counts, plain, trained

    for most, counts, frozen, trained in results(2, rank_of):
        assert most < 1e-4
        assert all(counts)  # what replaced it is recorded
        assert not any(frozen)
        assert all(trained)


class WithMore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(lt.ones(3, 3))

    def forward(self, x: Any) -> Any:
        for name in self._parameters:
            x = x * (2 if name == "weight" else 5)
        return x @ self.weight


def test_another_parameter_is_noticed() -> None:
    def rank_of(rank: int, size: int) -> Any:
        net = WithMore()
        net.compile()
        fully_shard(net)
        found = []
        for _ in range(5):
            net(lt.ones(1, 3)).sum().backward()
        net.more = nn.Parameter(lt.ones(1))
        for _ in range(3):
            y = net(lt.ones(1, 3))
            found.append(y[0, 0].item())
            y.sum().backward()
        return found, net._call_hooks.compiled.replays >= 2

    assert results(1, rank_of) == [([30.0] * 3, True)]


def test_recomputation_inside_a_compiled_block() -> None:
    def rank_of(rank: int, size: int) -> Any:
        nets = [Net(recompute=True), Net(recompute=True)]
        functions = compiled(nets[1], "in place")
        losses = [train(sharded(n), optim.SGD(n.parameters(), 0.1), rank, 6) for n in nets]
        return losses, min(f.replays for f in functions), functions[0].reasons

    for (expected, got), replays, reasons in results(2, rank_of):
        assert got == expected
        assert (replays, reasons) == (3, [])


@pytest.mark.parametrize("at", range(4))
def test_an_interrupt_while_parameters_come_back_leaves_nothing(at: int) -> None:
    def rank_of(rank: int, size: int) -> Any:
        plain, net, functions = pair()
        optimizers = [optim.SGD(n.parameters(), 0.1) for n in (plain, net)]
        for n, optimizer in zip((plain, net), optimizers, strict=True):
            train(n, optimizer, rank, 5)
        optimizers[1].zero_grad()
        before = lt.memory_allocated()
        restore, count = UnshardedStorage.restore, 0

        def interrupted(self: Any, version: int) -> bool:
            nonlocal count
            count += 1
            if count == at + 1:
                raise KeyboardInterrupt
            return restore(self, version)

        x, y = tokens_of(0, rank)
        loss = F.cross_entropy(net(x).view(-1, 50), y)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(UnshardedStorage, "restore", interrupted)
            with pytest.raises(KeyboardInterrupt):
                loss.backward()
        del loss, x, y
        optimizers[1].zero_grad()
        left = lt.memory_allocated() - before
        losses = [train(n, o, rank, 2) for n, o in zip((plain, net), optimizers, strict=True)]
        return left, losses, min(f.replays for f in functions)

    for left, (expected, got), replays in results(2, rank_of):
        assert left == 0
        assert got == expected
        assert replays >= 4


@pytest.mark.parametrize("way", WAYS)
def test_explain_calls_the_module_itself(way: str) -> None:
    def rank_of(rank: int, size: int) -> Any:
        net = Net()
        compiled(net, way)
        sharded(net)
        with lt.no_grad():
            return lt.compiler.explain(net.blocks[0], lt.randn(4, WIDTH))

    for text in results(2, rank_of):
        assert "1 recorded" in text
        assert "kernel calls" in text
