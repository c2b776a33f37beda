"""Packing: bytes, values bit for bit where nothing may be lost, and errors where something may."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.checkpointing import pack, policy, verify
from lowtide.framework.checkpointing.stash import UncopiedStorage
from tests.checkpointing.nets import conv_net, gpt


def there_and_back(tensor: lt.Tensor, packing: Any) -> tuple[lt.Tensor, int]:
    """A tensor after a stash of its storage, and the bytes of that."""
    stashed = packing(tensor)
    storage = stashed.restore()
    out = lt.framework.tensor.wrap(
        lt.framework.devices.backend(tensor.device).strided_view(storage, tensor._spec, None),
        tensor._spec,
        storage,
    )
    return out, stashed.nbytes


@pytest.mark.parametrize("where", ["cpu", "sim"])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 1000, 100_003])
def test_truth_values_take_a_bit(n: int, where: str) -> None:
    t = (lt.rand(n) < 0.3).to(where)
    again, nbytes = there_and_back(t, pack())
    assert nbytes == -(-n // 8)
    assert again.tolist() == t.tolist()


@pytest.mark.parametrize("where", ["cpu", "sim"])
@pytest.mark.parametrize(
    ("low", "high", "itemsize"),
    [
        (0, 255, 1),
        (-128, 127, 1),
        (-1, 128, 2),
        (0, 256, 2),
        (-(1 << 15), (1 << 15) - 1, 2),
        (0, 1 << 15, 4),
        (-(1 << 31), (1 << 31) - 1, 4),
        (0, 1 << 31, 8),
    ],
)
def test_integers_take_the_narrowest_type(low: int, high: int, itemsize: int, where: str) -> None:
    t = lt.tensor([low, 0, high, 1], device=where)
    again, nbytes = there_and_back(t, pack())
    assert nbytes == 4 * itemsize
    assert again.dtype is lt.int64
    assert again.tolist() == t.tolist()


def test_what_cannot_be_packed_without_loss_is_kept() -> None:
    for t in (lt.randn(9), lt.zeros(9, dtype=lt.uint8), lt.ones(3, dtype=lt.complex64)):
        stashed = pack()(t)
        assert isinstance(stashed, UncopiedStorage)
        assert stashed.restore() is t._storage
    # Bytes that someone looks at as truth values need not be 0 and 1.
    odd = lt.from_numpy(np.array([2, 1, 0], np.uint8)).clone().view(lt.bool)
    assert isinstance(pack()(odd), UncopiedStorage)


@pytest.mark.parametrize("where", ["cpu", "sim"])
@pytest.mark.parametrize("to", [lt.bfloat16, "bfloat16", "lowtide.float16", lt.float16])
def test_floats_are_rounded_to_two_bytes(to: Any, where: str) -> None:
    t = lt.randn(300, device=where)
    again, nbytes = there_and_back(t, pack(to))
    name = to.name if isinstance(to, lt.dtype) else to.removeprefix("lowtide.")
    expected = t.to(getattr(lt, name)).to(lt.float32)
    assert nbytes == 600
    assert again.tolist() == expected.tolist()


@pytest.mark.parametrize("where", ["cpu", "sim"])
@pytest.mark.parametrize("dtype", [lt.float32, lt.float64, lt.bfloat16])
@pytest.mark.parametrize(("n", "block"), [(1, 256), (1000, 100), (1000, 256), (70_000, 64), (5, 1)])
def test_blocks_of_bytes_are_as_close_as_they_say(
    n: int, block: int, dtype: lt.dtype, where: str
) -> None:
    t = (lt.randn(n) * 3).to(where, dtype)
    again, nbytes = there_and_back(t, pack("int8", block=block))
    assert nbytes == n + 4 * -(-n // block)
    a, b = t.cpu().double().numpy(), again.cpu().double().numpy()
    for start in range(0, n, block):
        part = slice(start, start + block)
        largest = abs(a[part]).max()
        room = 1e-6 + (2.0**-8 if dtype is lt.bfloat16 else 0)  # of the result's own rounding
        assert abs(a[part] - b[part]).max() <= largest * (1 / 254 + room)
        k = abs(a[part]).argmax()
        assert math.isclose(a[part][k], b[part][k], rel_tol=1e-6 + room)


def test_blocks_of_zeros_tiny_and_infinite_values() -> None:
    values = [0.0] * 4 + [1e-44] * 4 + [1.0, math.inf, 2.0, 3.0] + [1.0, math.nan, 0, 0] + [127, -1]
    again, _ = there_and_back(lt.tensor(values), pack("int8", block=4))
    found = again.tolist()
    assert found[:8] == [0.0] * 8
    assert all(map(math.isnan, found[8:16]))
    assert found[16:] == [127.0, -1.0]


def test_a_view_has_all_of_its_storage_packed() -> None:
    x = lt.randn(10, 10, requires_grad=True)
    with pack("bfloat16"):
        y = x.exp()
        z = (y[2:5].t() * y[:3].t()).sum()
    (saved, other) = z.grad_fn.next_functions[0][0].saved
    assert (saved.held_bytes, other.held_bytes) == (200, 200)  # one and the same
    before = lt.memory_allocated()
    del y
    assert before - lt.memory_allocated() == 400
    z.backward()
    assert x.grad.shape == (10, 10)


@pytest.mark.parametrize("packing", [pack(), pack("bfloat16"), pack("int8", block=32)], ids=repr)
def test_nothing_is_left_when_the_graph_goes(packing: Any, leak_check: None) -> None:
    x = lt.randn(64, 64, requires_grad=True)
    for _ in range(2):
        with packing:
            y = (x.exp().sin() > 0.5) * x.cos().tanh()
        y.sum().backward()
        del y


def test_packing_takes_no_more_than_a_small_workspace() -> None:
    t = lt.randn(1 << 20)
    for packing, kept in ((pack("bfloat16"), 2 << 20), (pack("int8"), (1 << 20) + (1 << 14))):
        lt.reset_peak_memory_stats()
        before = lt.memory_allocated()
        stashed = packing(t)
        assert lt.memory_allocated() - before == stashed.nbytes == kept
        extra = lt.max_memory_allocated() - before - kept
        assert extra <= (1 << 18) + (1 << 10)  # one chunk of float32, and a column of its blocks
        del stashed


@pytest.mark.parametrize("packing", [pack(), pack(lt.bfloat16), pack("int8", block=50)], ids=repr)
def test_meta_counts_what_the_cpu_keeps(packing: Any) -> None:
    found = []
    for where in ("cpu", "meta"):
        x = lt.zeros(1000, device=where, requires_grad=True)
        with packing:
            y = lt.where(x.exp() > 0.5, x.sin().exp(), x.cos()).exp()
        before = lt.memory_allocated(where)
        del y
        found.append(before - lt.memory_allocated(where))
    assert found[0] == found[1] > 0


def test_two_bytes_and_one_byte_cost_a_gradient_little() -> None:
    # On these nets, relative to the norm of all gradients. The figures are in the documentation.
    for net, limits in ((gpt, (0.01, 0.02)), (conv_net, (0.05, 0.1))):
        lt.manual_seed(0)
        model, x = net()
        for packing, limit in zip((pack("bfloat16"), pack("int8")), limits, strict=True):
            report = verify(model, x, policy=packing, strict=False)
            assert 0 < report.gradient_error < limit
            assert all(d.name.startswith("gradient") for d in report.differences)


def test_packing_serves_as_a_decision_a_policy_and_a_decorator() -> None:
    x = lt.randn(1000, requires_grad=True)

    def f(x: lt.Tensor) -> lt.Tensor:
        return x.exp().sum()

    forms = {
        "decision": lambda: lt.checkpoint(f, x, policy=policy({"op:exp": pack("bfloat16")})),
        "policy": lambda: lt.checkpoint(f, x, policy=pack("bfloat16")),
        "decorator": lambda: pack("bfloat16")(f)(x),
        "method": lambda: lt.checkpointing(pack("bfloat16"))(f)(x),
    }
    for name, run in forms.items():
        y = None
        before = lt.memory_allocated()
        y = run()
        assert lt.memory_allocated() - before - y.nbytes == 2000, name


@pytest.mark.parametrize("to", ["int4", lt.float32, lt.int16, "nothing", lt.bool])
def test_other_packings_are_refused(to: Any) -> None:
    with pytest.raises(ValueError, match="bfloat16, float16 or int8; got"):
        pack(to)


def test_a_block_has_elements() -> None:
    with pytest.raises(ValueError, match="block is a number of elements"):
        pack("int8", block=0)
