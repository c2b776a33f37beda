"""fully_shard of a list of modules: gathered from the first one's forward to the last one's."""

from __future__ import annotations

from typing import Any

import pytest

import lowtide as lt
import lowtide.distributed as dist
from lowtide import nn, optim
from lowtide.distributed.fsdp import ShardedParameter, full_state_dict, fully_shard
from lowtide.framework.distributed.unsharded_storage import UnshardedStorage
from lowtide.nn.parallel import DistributedDataParallel

from .ranks import results
from .test_fully_shard import Block, arrays, same, tokens_of, train

WIDTH = 190


class Decoder(nn.Module):
    """As language models are: an embedding, blocks, and at the end a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        lt.manual_seed(5)
        self.token = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 50, bias=False)

    def forward(self, tokens: Any, until_norm: bool = False) -> Any:
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return x if until_norm else self.head(x)


def sharded(net: Decoder, around: bool = True) -> Decoder:
    for block in net.blocks:
        fully_shard(block)
    assert fully_shard([net.norm, net.head])[1] is net.head
    return fully_shard(net) if around else net


def gathered(net: Any) -> list[str]:
    return [n for n, p in net.named_parameters() if type(p._storage) is UnshardedStorage]


@pytest.mark.parametrize("around", [True, False])
@pytest.mark.parametrize("size", [1, 2])
def test_training_has_the_bits_of_data_parallelism(size: int, around: bool) -> None:
    def rank_of(rank: int, size: int) -> Any:
        plain, net = Decoder(), sharded(Decoder(), around)
        wrapped: Any = DistributedDataParallel(plain)
        losses = [train(m, optim.AdamW(m.parameters(), 1e-2), rank, 4) for m in (wrapped, net)]
        if not around:  # the embedding is in no unit: its gradient is the rank's own
            return losses[0][:1], losses[1][:1], True, gathered(net)
        return (
            *losses,
            same(arrays(plain.state_dict()), arrays(full_state_dict(net))),
            gathered(net),
        )

    for expected, got, alike, left in results(size, rank_of):
        assert got == expected
        assert alike
        assert left == []


def test_parameters_are_gathered_from_the_first_forward_to_the_last() -> None:
    def rank_of(rank: int, size: int) -> Any:
        a, b = nn.Linear(190, 190), nn.Linear(190, 190)
        fully_shard([a, b])
        both, seen = nn.ModuleList([a, b]), []
        b(lt.ones(2, 190))  # in any order
        seen.append(gathered(both))
        b(lt.ones(2, 190))
        seen.append(gathered(both))
        a(lt.ones(2, 190))
        seen.append(gathered(both))
        b(lt.ones(2, 190))
        b.reshard()
        seen.append(gathered(both))
        a.unshard()
        b(a(lt.ones(2, 190)))
        seen.append(gathered(both))  # until reshard
        b.reshard()
        return seen, [type(p) is ShardedParameter for p in both.parameters()]

    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert results(2, rank_of) == [([names, names, [], [], names], [True] * 4)] * 2


def test_members_whose_forward_never_comes() -> None:
    def rank_of(rank: int, size: int) -> Any:
        net = sharded(Decoder())
        optimizer = optim.SGD(net.parameters(), 0.1)
        x, _ = tokens_of(0, rank)
        net(x, until_norm=True).sum().backward()  # the head is not called
        left = gathered(net)
        optimizer.step()
        losses = train(net, optimizer, rank, 2)

        a, b = nn.Linear(190, 190), nn.Linear(190, 190)  # without a unit around them
        fully_shard([a, b])
        steps = optim.SGD([*a.parameters(), *b.parameters()], 0.1)
        ones, found = lt.ones(2, 190), []
        for _ in range(3):
            y = a(ones)
            found.append(y.sum().item())
            y.sum().backward()
            steps.step()
            steps.zero_grad()
        return left, len(losses), found

    for left, count, found in results(2, rank_of):
        assert (left, count) == ([], 2)
        assert found[0] > found[1] > found[2]  # each forward has the stepped values


class Fails(nn.Linear):
    def forward(self, x: Any) -> Any:
        super().forward(x)
        raise ValueError("no")


def test_an_error_and_reshard_put_the_shards_back() -> None:
    def rank_of(rank: int, size: int) -> Any:
        a, b = nn.Linear(190, 190), Fails(190, 190)
        both = nn.ModuleList([a, b])
        fully_shard([a, b])
        before = lt.memory_allocated()
        y = a(lt.ones(2, 190))
        with pytest.raises(ValueError, match="no"):
            b(y)
        del y
        found = [gathered(both), lt.memory_allocated() - before]
        a(lt.ones(2, 190))
        a.reshard()
        found.append(gathered(both))
        b.unshard()
        found.append(len(gathered(both)))
        a(lt.ones(2, 190))
        found.append(len(gathered(both)))  # until reshard
        b.reshard()
        return [*found, gathered(both)]

    assert results(2, rank_of) == [[[], 0, [], 4, 4, []]] * 2


def test_compiled_members_are_replayed() -> None:
    def rank_of(rank: int, size: int) -> Any:
        nets = [Decoder(), Decoder()]
        nets[1].norm.compile()
        nets[1].head.compile()
        losses = [train(sharded(n), optim.SGD(n.parameters(), 0.1), rank, 6) for n in nets]
        return losses, [m._call_hooks.compiled.replays for m in (nets[1].norm, nets[1].head)]

    for (expected, got), replays in results(2, rank_of):
        assert got == expected
        assert replays == [3, 3]


def test_lists_that_are_refused() -> None:
    dist.init_process_group("fake", rank=0, world_size=2)
    try:
        block = Block()
        with pytest.raises(ValueError, match="one contains the other"):
            fully_shard([block, block.up])
        with pytest.raises(ValueError, match="one contains the other"):
            fully_shard([block.up, block])
        with pytest.raises(ValueError, match="is empty"):
            fully_shard([])
        shared = nn.Linear(4, 4)
        shared.weight = block.up.weight
        fully_shard([block, shared])
        assert block.up.weight is shared.weight
    finally:
        dist.destroy_process_group()
