"""A policy that keeps products never makes a step larger than the same step without a region."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.checkpointing import policy, save_matmuls


def stack(**options: Any) -> Any:
    return nn.TransformerEncoderLayer(32, 4, 128, batch_first=True, **options)


def mlp(*between: Any) -> Any:
    return nn.Sequential(nn.Linear(32, 96), *between, nn.Linear(96, 96), *between, nn.Linear(96, 8))


NETS = {
    "encoder layer, relu": stack,
    "encoder layer, no dropout": lambda: stack(dropout=0.0),
    "encoder layer, gelu": lambda: stack(activation="gelu"),
    "encoder layer, norm first": lambda: stack(norm_first=True),
    "encoder": lambda: nn.TransformerEncoder(stack(), 2),
    "mlp, relu": lambda: mlp(nn.ReLU()),
    "mlp, relu in place": lambda: mlp(nn.ReLU(inplace=True)),
    "mlp, gelu": lambda: mlp(nn.GELU()),
    "mlp, norm and dropout": lambda: mlp(nn.LayerNorm(96), nn.ReLU(), nn.Dropout(0.2)),
    "mlp, relu and dropout": lambda: mlp(nn.ReLU(), nn.Dropout(0.2)),
}
POLICIES = {
    "save_matmuls": save_matmuls,
    "rules": policy({"op:linear|attention": "save"}),
}


def trained(make: Any, keep: Any, amp: bool) -> tuple[int, list[Any]]:
    gc.collect()
    lt.manual_seed(0)
    net, x = make(), lt.randn(8, 24, 32)
    if keep is not None:
        net.set_checkpointing(keep)
    lt.reset_peak_memory_stats()
    with lt.autocast("cpu", dtype=lt.bfloat16, enabled=amp):
        out = net(x)
    out.float().square().mean().backward()
    return lt.max_memory_allocated() - lt.memory_allocated(), [p.grad for p in net.parameters()]


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("keep", POLICIES)
def test_the_peak_is_not_above_plain(name: str, keep: str) -> None:
    plain, expected = trained(NETS[name], None, False)
    peak, found = trained(NETS[name], POLICIES[keep], False)
    assert peak <= plain
    assert all(bool((a == b).all()) for a, b in zip(expected, found, strict=True))


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["encoder layer, relu", "encoder", "mlp, relu"])
def test_nor_under_autocast(name: str) -> None:
    plain, expected = trained(NETS[name], None, True)
    peak, found = trained(NETS[name], save_matmuls, True)
    assert peak <= plain
    assert all(bool((a == b).all()) for a, b in zip(expected, found, strict=True))


def held(f: Any, keep: Any, x: Any) -> int:
    start = lt.memory_allocated()
    y = f(x) if keep is None else lt.checkpoint(f, x, policy=keep)
    return lt.memory_allocated() - start - y.nbytes


def test_the_product_before_a_relu_is_let_go_and_its_result_kept() -> None:
    first, second = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    x = lt.randn(256, 64)
    rows = 256 * 64 * 4

    def relu(x: Any) -> Any:
        return second(first(x).relu())

    assert held(relu, None, x) == held(relu, save_matmuls, x) == rows + rows // 32

    def gelu(x: Any) -> Any:
        return second(nn.functional.gelu(first(x)))

    assert held(gelu, None, x) == 2 * rows
    assert held(gelu, save_matmuls, x) == rows  # the product, which gelu's backward reads


def test_what_is_kept_by_name_is_kept_for_what_is_made_from_it() -> None:
    x = lt.randn(256, 64, requires_grad=True)

    def f(x: Any) -> Any:
        y = lt.checkpointing.checkpoint_name(x * 2, "y")
        return y.cos() * y.sin().exp()

    named = lt.checkpointing.policies.save_only_these_names("y")
    assert held(f, named, x) == x.nbytes


def test_no_product_is_computed_twice() -> None:
    x = lt.randn(4, 6, 32)
    layer = stack()
    layer.set_checkpointing(save_matmuls)
    found = lt.profiling.estimate(lambda: layer(x).sum().backward()).flops_by_op
    layer.set_checkpointing(False)
    plain = lt.profiling.estimate(lambda: layer(x).sum().backward()).flops_by_op
    assert {op: found[op] for op in ("linear", "matmul", "attention") if op in found} == {
        op: plain[op] for op in ("linear", "matmul", "attention") if op in plain
    }
