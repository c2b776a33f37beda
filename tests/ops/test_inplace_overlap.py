"""In-place ops whose other operands share memory with what is written: as if they were copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.ops import inplace
from lowtide.profiling import estimate
from lowtide.utils.checkpoint import checkpoint

Op = Callable[[Any, Any], Any]


def rows_of(x: Any) -> Any:
    """An index for each element of ``x`` along dim 0: the rows in reverse."""
    return lt.arange(x.shape[0] - 1, -1, -1).view(-1, 1).expand(x.shape)


def reverse(x: Any) -> Any:
    return lt.arange(x.shape[0] - 1, -1, -1)


def square(x: Any) -> Any:
    n = min(x.shape)
    return x[:n, :n]


# Some compute each element from those at its place, the others move elements.
AT_THEIR_PLACE: dict[str, Op] = {
    "add_": lambda o, x: o.add_(x),
    "sub_ alpha": lambda o, x: o.sub_(x, alpha=0.5),
    "mul_": lambda o, x: o.mul_(x),
    "div_": lambda o, x: o.div_(x),
    "pow_": lambda o, x: o.pow_(x),
    "atan2_": lambda o, x: o.atan2_(x),
    "xlogy_": lambda o, x: o.xlogy_(x),
    "hypot_": lambda o, x: o.hypot_(x),
    "lerp_": lambda o, x: o.lerp_(x, 0.3),
    "remainder_": lambda o, x: o.remainder_(x),
    "addcmul_": lambda o, x: o.addcmul_(x, x),
    "copy_": lambda o, x: o.copy_(x),
    "setitem": lambda o, x: o.__setitem__(slice(None), x),
    "maximum out": lambda o, x: lt.maximum(o, x, out=o),
    "exp out": lambda o, x: lt.exp(x, out=o),
    "masked_fill_": lambda o, x: o.masked_fill_(x > 0.5, 2.0),
}
MOVING: dict[str, Op] = {
    "scatter_": lambda o, x: o.scatter_(0, rows_of(x), x),
    "scatter_add_": lambda o, x: o.scatter_add_(0, rows_of(x), x),
    "scatter_reduce_": lambda o, x: o.scatter_reduce_(0, rows_of(x), x, "prod"),
    "index_add_": lambda o, x: o.index_add_(0, reverse(x), x),
    "index_copy_": lambda o, x: o.index_copy_(0, reverse(x), x),
    "index_put_": lambda o, x: o.index_put_((reverse(x),), x),
    "accumulate": lambda o, x: o.index_put_((reverse(x),), x, accumulate=True),
    "setitem by index": lambda o, x: o.__setitem__(reverse(x), x),
    "masked_scatter_": lambda o, x: o.masked_scatter_(o > 0.6, x),
    "the op alone": lambda o, x: o._scatter_add_(rows_of(x).contiguous(), x, dim=0),
    "addmm_": lambda o, x: square(o).addmm_(square(x), square(x)),
}
ALL = AT_THEIR_PLACE | MOVING


def drawn_view(n: int, random: np.random.Generator) -> Callable[[Any], Any]:
    """A way to look at a matrix of n x n: shifted, with gaps, transposed, a repeated row."""
    i, j, kind = (int(random.integers(high)) for high in (3, 3, 6))
    size = n - 3
    return [
        lambda x: x[i : size + i, j : size + j],
        lambda x: x.t()[i : size + i, j : size + j],
        lambda x: x[i::2, :size],
        lambda x: x[:size, j::2],
        lambda x: x[:size, j : j + 1].expand(size, size),
        lambda x: x[i : i + 1, :size].expand(size, size),
    ][kind]


def of_one_shape(a: Any, b: Any) -> tuple[Any, Any]:
    rows, columns = (min(p, q) for p, q in zip(a.shape, b.shape, strict=True))
    return a[:rows, :columns], b[:rows, :columns]


@pytest.mark.quick(60)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("n", [9, 70, 260])
@pytest.mark.parametrize("name", ALL)
def test_drawn_views_are_read_before_they_are_written(name, n, seed):
    random = np.random.default_rng([seed, n])
    dtype = [lt.float32, lt.float64, lt.float16][seed % 3]
    values = lt.tensor(random.uniform(0.1, 1.1, (n, n))).to(dtype)
    looks = drawn_view(n, random), drawn_view(n, random)
    alone = values.clone()
    target = of_one_shape(*[look(alone) for look in looks])[0]
    operand = of_one_shape(*[look(values) for look in looks])[1].clone()
    together = values.clone()
    try:
        ALL[name](target, operand)
    except RuntimeError:  # it writes into one element twice
        with pytest.raises(RuntimeError, match="single memory location"):
            ALL[name](*of_one_shape(*[look(together) for look in looks]))
        assert lt.equal(together, values)
        return
    try:
        ALL[name](*of_one_shape(*[look(together) for look in looks]))
    except RuntimeError as error:  # matrices without gaps, as PyTorch refuses them
        assert "Please clone() the tensor" in str(error)
        assert lt.equal(together, values)
        return
    rtol = 1e-2 if dtype is lt.float16 else 1e-4  # products of other layouts round otherwise
    np.testing.assert_allclose(
        together.to(lt.float64).numpy(), alone.to(lt.float64).numpy(), rtol=rtol
    )


@pytest.mark.parametrize("n", [5, 40, 200])
@pytest.mark.parametrize("name", [n for n in ALL if n != "masked_scatter_"])  # that is refused
def test_a_tensor_may_be_its_own_operand(name, n):
    values = lt.rand(n, n) + 0.1
    alone, together = values.clone(), values.clone()
    ALL[name](alone, values)
    ALL[name](together, together)
    np.testing.assert_allclose(together.numpy(), alone.numpy(), rtol=1e-4)


@pytest.mark.parametrize("n", [5, 300])
def test_tensors_may_share_the_memory_of_numpys_arrays(n):
    for write, of, other in (
        (AT_THEIR_PLACE["div_"], slice(None), np.s_[:, :1]),
        (AT_THEIR_PLACE["atan2_"], np.s_[1:], np.s_[:-1]),
        (AT_THEIR_PLACE["pow_"], slice(None), slice(None)),
        (MOVING["index_add_"], slice(None), slice(None)),
        (MOVING["scatter_"], slice(None), slice(None)),
    ):
        array = np.random.default_rng(n).uniform(0.1, 1, (n, n))
        target, operand = lt.from_numpy(array[of]), lt.from_numpy(array[other])
        expected = target.clone()
        write(expected, operand.clone())
        write(target, operand)
        np.testing.assert_allclose(array[of], expected.numpy(), rtol=1e-12)


@pytest.mark.parametrize("n", [6, 300])
def test_gradients_are_those_of_a_copy(n):
    x, g = lt.rand(n, n, dtype=lt.float64) + 0.5, lt.randn(n, n, dtype=lt.float64)

    def normalized(x: Any) -> Any:
        y = x * 1
        y /= y[:, :1]
        y[1:, 1:] += y[:-1, :-1]
        return y.index_add_(0, reverse(y), y)

    def apart(x: Any) -> Any:
        y = x / x[:, :1].clone()
        shifted = lt.nn.functional.pad(y[:-1, :-1], (1, 0, 1, 0))
        y = y + shifted
        return y + y.flip(0)

    found = []
    for way in (normalized, apart, lambda x: checkpoint(normalized, x), lt.compile(normalized)):
        for _ in range(4):  # a compiled function is recorded, then replayed
            leaf = x.clone().requires_grad_()
            y = way(leaf)
            y.backward(g)
        found.append((y.detach(), leaf.grad))
    for y, grad in found[1:]:
        assert lt.allclose(y, found[0][0], rtol=1e-12)
        assert lt.allclose(grad, found[0][1], rtol=1e-12, atol=1e-12)


def peak_of(run: Callable[[], Any]) -> int:
    """Bytes that a call takes, at most."""
    lt.cpu.reset_peak_memory_stats()
    before = lt.cpu.memory_allocated()
    run()
    return lt.cpu.max_memory_allocated() - before


def test_a_refused_copy_leaves_the_target_as_it_was():
    x = lt.rand(300, 300)
    before, version = x.clone(), x._version
    lt.set_memory_limit(lt.cpu.memory_allocated() + 1000, "cpu")
    try:
        for write in (AT_THEIR_PLACE["div_"], AT_THEIR_PLACE["copy_"]):
            with pytest.raises(MemoryError):
                write(x[:, 1:], x[:, :-1])
        with pytest.raises(MemoryError):
            MOVING["scatter_add_"](x, x)
    finally:
        lt.set_memory_limit(None, "cpu")
    assert lt.equal(x, before)
    assert x._version == version


def test_where_the_search_takes_too_long_a_copy_is_read(monkeypatch):
    def too_hard(*_: Any, **__: Any) -> bool:
        raise np.exceptions.TooHardError

    monkeypatch.setattr(inplace, "_shares_memory", too_hard)
    x = lt.rand(300, 300) + 0.1
    expected = x / x[:, :1].clone()
    x /= x[:, :1]
    assert lt.allclose(x, expected)


def test_views_that_only_lie_between_each_other_are_not_copied():
    x = lt.rand(400, 6)
    expected = x[:, 0] + x[:, 1]

    def apart() -> None:
        x[:, 0] += x[:, 1]

    def across() -> None:
        x[:, 1:] += x[:, :-1]

    assert peak_of(apart) == 0
    assert lt.equal(x[:, 0], expected)
    assert peak_of(across) == 400 * 5 * 4  # the copy


@pytest.mark.parametrize("n", [6, 300])
def test_an_estimate_counts_the_copy(n):
    x = lt.rand(n, n)

    def step() -> None:
        y = x * 2
        y /= y[:, :1]
        y[:, 1:] -= y[:, :-1]
        y.index_add_(0, reverse(y), y)

    step()
    found = estimate(step)
    assert found.peak_bytes - found.devices[0].start_bytes == peak_of(step)
