"""DistributedDataParallel in several processes: the model of one process that accumulates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import lowtide as lt
import lowtide.distributed as dist
import lowtide.nn.functional as F
from lowtide import nn
from lowtide.distributed.algorithms.ddp_comm_hooks import default_hooks
from lowtide.nn.parallel import DistributedDataParallel

from .ranks import outcomes, results


def network(width: int = 300) -> Any:
    lt.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, width),
        nn.LayerNorm(width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 5),
    )


def batch(step: int, rank: int) -> tuple[Any, Any]:
    draw = np.random.default_rng([step, rank])
    x = draw.standard_normal((8, 20)).astype(np.float32)
    return lt.tensor(x), lt.tensor(draw.integers(0, 5, 8))


def values(model: Any) -> list[Any]:
    return [t.detach().numpy().copy() for t in (*model.parameters(), *model.buffers())]


def trained(
    model: Any, ranks: list[int], steps: int, micro: int = 1, divisor: int = 1
) -> list[Any]:
    """Train on the batches of some ranks, one after the other; the gradients are summed."""
    optimizer = lt.optim.AdamW(model.parameters(), 1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(micro):
            last = part == micro - 1
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = last
            for rank in ranks:
                x, y = batch(step * micro + part, rank)
                F.cross_entropy(model(x), y).backward()
        if divisor > 1:
            for p in model.parameters():
                p.grad.div_(divisor)
        optimizer.step()
    return values(model)


def equal(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(map(np.array_equal, a, b))


@pytest.mark.quick(3)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("cap", [None, 0, 0.01])
def test_all_ranks_have_the_model_of_one_process_bit_for_bit(size: int, cap: float | None) -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        model = network()
        with lt.no_grad():
            for p in model.parameters():
                p.add_(rank)  # rank 0's count
        return trained(DistributedDataParallel(model, bucket_cap_mb=cap), [rank], 3)

    expected = trained(network(), list(range(size)), 3, divisor=size)
    for found in results(size, rank_of):
        assert equal(found, expected)


def test_gradients_accumulate_under_no_sync() -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        return trained(DistributedDataParallel(network(50)), [rank], 2, micro=3)

    first, second = results(2, rank_of)
    assert equal(first, second)
    one = network(50)
    optimizer = lt.optim.AdamW(one.parameters(), 1e-2)
    for step in range(2):
        sums = []
        for rank in range(2):  # each rank adds its own, then rank 1's sum is added to rank 0's
            optimizer.zero_grad()
            for part in range(3):
                x, y = batch(step * 3 + part, rank)
                F.cross_entropy(one(x), y).backward()
            sums.append([p.grad.clone() for p in one.parameters()])
        for p, a, b in zip(one.parameters(), *sums, strict=True):
            p.grad = (a + b) / 2
        optimizer.step()
    assert equal(first, values(one))


def test_buffers_are_those_of_rank_0() -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        lt.manual_seed(rank)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 4), nn.BatchNorm1d(4)))
        for step in range(2):
            model(batch(step, rank)[0]).sum().backward()
        model.eval()
        model(batch(5, rank)[0])
        return values(model)

    assert equal(*results(2, rank_of))


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Any, which: str) -> Any:
        return getattr(self, which)(x)


def test_parameters_that_a_rank_does_not_use() -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        lt.manual_seed(0)
        model = DistributedDataParallel(_Branches(), find_unused_parameters=True)
        found = []
        for which in ("a", "b"), ("a", "a"), ("b", "a"):
            model.zero_grad()
            model(lt.ones(2, 3) * (rank + 1), which[rank]).sum().backward()
            grads = {n: p.grad for n, p in model.module.named_parameters()}
            found.append({n: None if g is None else g.numpy() for n, g in grads.items()})
        return found

    first, second = results(2, rank_of)
    for one, other in zip(first, second, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    half, whole = np.full((3, 3), 1.0), np.full((3, 3), 2.0)
    np.testing.assert_array_equal(first[0]["a.weight"], half)  # (2 + 0) / 2
    np.testing.assert_array_equal(first[0]["b.weight"], whole)  # (0 + 4) / 2
    np.testing.assert_array_equal(first[1]["a.weight"], half + whole)
    assert first[1]["b.weight"] is None
    assert all(one["c.bias"] is None for one in first)


def test_an_unused_parameter_is_named_in_the_same_backward() -> None:
    def rank_of(rank: int, size: int) -> None:
        model = DistributedDataParallel(_Branches())
        model(lt.ones(2, 3), "b").sum().backward()

    for found in outcomes(2, rank_of):
        assert found.kind == "RuntimeError"
        assert "does not depend on the parameters a.weight, a.bias, c.weight, c.bias" in repr(found)
        assert "find_unused_parameters=True" in repr(found)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda rank: nn.Linear(2, 2 + rank), r"weight .*\(2, 2\).* weight .*\(3, 2\)"),
        (lambda rank: nn.Linear(2, 2, dtype=[lt.float32, lt.float64][rank]), "float32.*float64"),
        (lambda rank: nn.Linear(2, 2, bias=bool(rank)), "nothing where rank 1 has bias"),
    ],
)
def test_ranks_with_different_modules_are_told(build: Callable[[int], Any], words: str) -> None:
    first, second = outcomes(2, lambda rank, _: DistributedDataParallel(build(rank)))
    assert first.kind == second.kind == "RuntimeError"
    assert "Build the same module in all ranks" in repr(second)
    with pytest.raises(RuntimeError, match=words):
        raise RuntimeError(first.message)


@pytest.mark.parametrize("by_all", [True, False])
@pytest.mark.parametrize("unused", [True, False])
def test_ranks_with_different_numbers_of_inputs(by_all: bool, unused: bool) -> None:
    counts = [2, 4, 1]

    def rank_of(rank: int, size: int) -> list[Any]:
        model = DistributedDataParallel(network(50), find_unused_parameters=unused)
        optimizer = lt.optim.SGD(model.parameters(), 0.1)
        with model.join(divide_by_initial_world_size=by_all):
            for step in range(counts[rank]):
                optimizer.zero_grad()
                x, y = batch(step, rank)
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        return values(model)

    one = network(50)
    optimizer = lt.optim.SGD(one.parameters(), 0.1)
    for step in range(4):
        optimizer.zero_grad()
        present = [r for r in range(3) if step < counts[r]]
        for rank in present:
            x, y = batch(step, rank)
            F.cross_entropy(one(x), y).backward()
        for p in one.parameters():
            p.grad.div_(3 if by_all else len(present))
        optimizer.step()
    for found in results(3, rank_of):
        for a, b in zip(found, values(one), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_joining_ranks_may_refuse_to_go_on() -> None:
    def rank_of(rank: int, size: int) -> None:
        model = DistributedDataParallel(nn.Linear(2, 1))
        with model.join(throw_on_early_termination=True):
            for _ in range(1 + rank):
                model(lt.ones(1, 2)).sum().backward()

    for found in outcomes(2, rank_of):
        assert "a rank has no more inputs" in repr(found)


@pytest.mark.parametrize(
    "hook",
    [
        default_hooks.allreduce_hook,
        default_hooks.bf16_compress_hook,
        default_hooks.fp16_compress_hook,
        default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook),
    ],
)
def test_hooks_that_reduce(hook: Any) -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        model = DistributedDataParallel(network())
        lasts = []

        def watched(state: Any, bucket: dist.GradBucket) -> Any:
            assert len(bucket.gradients()) == len(bucket.parameters())
            assert bucket.index() == len(lasts)
            lasts.append(bucket.is_last())
            return hook(state, bucket)

        model.register_comm_hook(None, watched)
        with pytest.raises(RuntimeError, match="only be called once"):
            model.register_comm_hook(None, hook)
        x, y = batch(0, rank)
        F.cross_entropy(model(x), y).backward()
        assert lasts == [False] * (len(lasts) - 1) + [True]
        return [p.grad.numpy() for p in model.parameters()]

    one = network()
    for rank in range(2):
        x, y = batch(0, rank)
        F.cross_entropy(one(x), y).backward()
    first, second = results(2, rank_of)
    assert equal(first, second)
    exact = hook is default_hooks.allreduce_hook
    for found, p in zip(first, one.parameters(), strict=True):
        expected = p.grad.numpy() / 2
        if exact:
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=0.02, atol=2e-4)


def test_an_optimizer_in_backward_steps_after_the_average() -> None:
    def rank_of(rank: int, size: int) -> list[Any]:
        model = network(50)
        optimizer = lt.optim.SGD(model.parameters(), 0.1)
        lt.optim.fuse_into_backward(optimizer)
        wrapped = DistributedDataParallel(model)
        for step in range(2):
            x, y = batch(step, rank)
            F.cross_entropy(wrapped(x), y).backward()
        return values(model)

    one = network(50)
    optimizer = lt.optim.SGD(one.parameters(), 0.1)
    for step in range(2):
        optimizer.zero_grad()
        for rank in range(2):
            x, y = batch(step, rank)
            F.cross_entropy(one(x), y).backward()
        for p in one.parameters():
            p.grad.div_(2)
        optimizer.step()
    for found in results(2, rank_of):
        assert equal(found, values(one))


def test_checkpointed_regions_and_clipping_as_in_one_process() -> None:
    def steps(model: Any, inner: Any, ranks: list[int], divisor: int) -> list[Any]:
        optimizer = lt.optim.AdamW(model.parameters(), 1e-2)
        for step in range(2):
            optimizer.zero_grad()
            for rank in ranks:
                x, y = batch(step, rank)
                F.cross_entropy(model(x), y).backward()
            for p in inner.parameters():
                p.grad.div_(divisor)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        return values(inner)

    class Regions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = network(50)

        def forward(self, x: Any) -> Any:
            for part in self.parts:
                x = lt.utils.checkpoint.checkpoint(part, x, use_reentrant=False)
            return x

    def rank_of(rank: int, size: int) -> list[Any]:
        model = Regions()
        return steps(DistributedDataParallel(model), model, [rank], 1)

    one = Regions()
    expected = steps(one, one, [0, 1], 2)
    for found in results(2, rank_of):
        assert equal(found, expected)


def test_synchronized_batch_norm_is_that_of_the_whole_batch() -> None:
    sizes = [3, 5, 1]

    def parts() -> Iterator[Any]:
        draw = np.random.default_rng(0)
        for n in sizes:
            yield lt.tensor(draw.standard_normal((n, 4, 3)))

    def built(kind: Any) -> Any:
        lt.manual_seed(1)
        layer = kind(4, dtype=lt.float64)
        with lt.no_grad():
            layer.weight.copy_(lt.arange(4.0) + 0.5)
        return layer

    def rank_of(rank: int, size: int) -> dict[str, Any]:
        layer = nn.SyncBatchNorm.convert_sync_batchnorm(built(nn.BatchNorm1d))
        x = list(parts())[rank].requires_grad_()
        out = layer(x)
        (out.sin() * (1 + rank)).sum().backward()
        found = {"out": out.detach(), "x": x.grad, **dict(layer.named_buffers())}
        found |= {n: p.grad for n, p in layer.named_parameters()}
        return {n: t.numpy() for n, t in found.items()}

    layer = built(nn.BatchNorm1d)
    xs = [x.requires_grad_() for x in parts()]
    out = layer(lt.cat(xs)).split(sizes)
    sum((o.sin() * (1 + r)).sum() for r, o in enumerate(out)).backward()
    found = results(3, rank_of)
    for rank, one in enumerate(found):
        expected = {"out": out[rank], "x": xs[rank].grad, **dict(layer.named_buffers())}
        for name, t in expected.items():
            np.testing.assert_allclose(one[name], t.detach().numpy(), rtol=1e-9, err_msg=name)
    for name, p in layer.named_parameters():  # DistributedDataParallel averages these
        total = sum(one[name] for one in found)
        np.testing.assert_allclose(total, p.grad.numpy(), rtol=1e-9, err_msg=name)


def test_wrapping_adds_no_memory_but_blocks_on_the_way() -> None:
    def rank_of(rank: int, size: int) -> tuple[int, int]:
        peaks = []
        for wrap in (lambda m: m, DistributedDataParallel):
            model = network(1000)
            wrapped = wrap(model)
            for _ in range(2):  # the first pass tells the order
                model.zero_grad()
                x, y = batch(0, rank)
                loss = F.cross_entropy(wrapped(x), y)
                before = lt.memory_allocated()
                lt.reset_peak_memory_stats()
                loss.backward()
                peak = lt.max_memory_allocated() - before
                del loss
            peaks.append(peak)
        return peaks[0], peaks[1]

    plain, wrapped = results(2, rank_of)[0]
    assert wrapped - plain <= (2 << 20) + (1 << 20)  # a block's parts, and small gradients together


def test_the_model_is_freed_with_its_wrapper() -> None:
    def rank_of(rank: int, size: int) -> int:
        import gc

        gc.disable()
        before = lt.memory_allocated()
        model = DistributedDataParallel(network(50))
        for step in range(2):
            x, y = batch(step, rank)
            F.cross_entropy(model(x), y).backward()
        del model, x, y
        return lt.memory_allocated() - before

    assert results(2, rank_of) == [0, 0]


def test_a_copy_of_the_module_is_not_reduced() -> None:
    def rank_of(rank: int, size: int) -> float:
        model = DistributedDataParallel(nn.Linear(1, 1))
        other = copy.deepcopy(model.module)
        if rank == 0:
            other(lt.ones(1, 1)).sum().backward()
        model(lt.ones(1, 1) * rank).sum().backward()
        found: float = model.module.weight.grad.item()
        return found

    assert results(2, rank_of) == [0.5, 0.5]


def test_a_pass_reduces_whatever_is_evaluated_between_forward_and_backward() -> None:
    def rank_of(rank: int, size: int) -> list[float]:
        layer = nn.Linear(1, 1, bias=False)
        model = DistributedDataParallel(layer)
        x = lt.ones(1, 1) * (rank + 1)
        found = []

        def gradient(*losses: Any, **more: Any) -> None:
            layer.zero_grad()
            for loss in losses:
                loss.backward(**more)
            found.append(layer.weight.grad.item())

        loss = model(x).sum()
        with lt.no_grad():
            model(x)
        gradient(loss, retain_graph=True)
        gradient(loss)  # again, of the same forward
        loss = model(x).sum()
        with model.no_sync():
            model(x)
        gradient(loss)
        with model.no_sync():
            loss = model(x).sum()
        gradient(loss)
        return found

    assert results(2, rank_of) == [[1.5, 1.5, 1.5, 1.0], [1.5, 1.5, 1.5, 2.0]]


def test_buffers_are_not_sent_after_a_forward_that_did_not_reduce() -> None:
    def rank_of(rank: int, size: int) -> list[float]:
        model = DistributedDataParallel(nn.BatchNorm1d(1))
        with lt.no_grad():
            model(lt.ones(2, 1))
            if rank == 0:  # one rank evaluates
                for _ in range(3):
                    model(lt.ones(2, 1))
        dist.barrier()
        model(lt.ones(2, 1)).sum().backward()
        before = model.module.num_batches_tracked.item()
        model(lt.ones(2, 1)).sum().backward()
        return [before, model.module.num_batches_tracked.item()]

    assert results(2, rank_of) == [[5, 6], [2, 6]]
