"""Averages of models: means against NumPy, buffers, BatchNorm statistics, bytes."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.kernels.runtime import thresholds
from lowtide.optim.swa_utils import (
    AveragedModel,
    get_ema_avg_fn,
    get_ema_multi_avg_fn,
    get_swa_avg_fn,
    get_swa_multi_avg_fn,
    update_bn,
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("seen", lt.zeros(2))
        self.register_buffer("count", lt.tensor(0))

    def forward(self, x: lt.Tensor) -> lt.Tensor:
        return self.linear(x)


def walk(model, averaged, steps=5):
    """Change a model and average it; the weights it had."""
    seen = []
    with lt.no_grad():
        for k in range(steps):
            model.linear.weight.copy_(lt.tensor(np.random.default_rng(k).standard_normal((2, 3))))
            model.seen.fill_(float(k))
            model.count.fill_(10 * k)
            averaged.update_parameters(model)
            seen.append(model.linear.weight.detach().numpy().copy())
    return seen


@pytest.mark.parametrize(
    "how", [{}, {"avg_fn": get_swa_avg_fn()}, {"multi_avg_fn": get_swa_multi_avg_fn()}]
)
def test_the_mean_of_all(how):
    model = Net()
    averaged = AveragedModel(model, **how)
    seen = walk(model, averaged)
    np.testing.assert_allclose(
        averaged.module.linear.weight.detach().numpy(), np.mean(seen, axis=0), atol=1e-6
    )
    assert averaged.n_averaged.item() == 5
    x = lt.ones(1, 3)
    assert averaged(x).tolist() == averaged.module(x).tolist()


@pytest.mark.parametrize(
    "how", [{"avg_fn": get_ema_avg_fn(0.7)}, {"multi_avg_fn": get_ema_multi_avg_fn(0.7)}]
)
def test_a_decaying_mean(how):
    model = Net()
    averaged = AveragedModel(model, **how)
    seen = walk(model, averaged)
    expected = seen[0]
    for w in seen[1:]:
        expected = 0.7 * expected + 0.3 * w
    np.testing.assert_allclose(averaged.module.linear.weight.detach().numpy(), expected, atol=1e-6)


def test_buffers_are_copied_or_averaged():
    for use, seen, count in ((False, 4.0, 40), (True, 2.0, 20)):
        model = Net()
        averaged = AveragedModel(model, use_buffers=use)
        walk(model, averaged)
        assert averaged.module.seen.tolist() == [seen, seen]
        assert averaged.module.count.item() == pytest.approx(count, abs=3)  # rounded down each time


def test_an_average_is_saved_and_loaded():
    model = Net()
    averaged = AveragedModel(model)
    walk(model, averaged)
    again = AveragedModel(Net())
    again.load_state_dict(averaged.state_dict())
    assert again.n_averaged.item() == 5
    assert again.module.linear.weight.tolist() == averaged.module.linear.weight.tolist()


def test_the_average_shares_nothing_with_the_model_and_an_update_takes_pieces(monkeypatch):
    monkeypatch.setattr(thresholds, "TILE", 256)
    model = nn.Linear(64, 64)
    averaged = AveragedModel(model)
    assert averaged.module.weight._storage is not model.weight._storage
    averaged.update_parameters(model)
    lt.reset_peak_memory_stats()
    before = lt.memory_allocated()
    averaged.update_parameters(model)
    assert lt.max_memory_allocated() - before <= 2 * 256 * 4
    assert lt.memory_allocated() == before


def test_both_functions_and_bad_decays_are_refused():
    with pytest.raises(AssertionError, match="Only one"):
        AveragedModel(Net(), avg_fn=get_swa_avg_fn(), multi_avg_fn=get_swa_multi_avg_fn())
    for make in (get_ema_avg_fn, get_ema_multi_avg_fn):
        with pytest.raises(ValueError, match="Invalid decay value 1.5"):
            make(1.5)


def test_update_bn_takes_the_mean_over_all_batches():
    model = nn.Sequential(nn.BatchNorm1d(2, momentum=0.3), nn.Linear(2, 2))
    model.eval()
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((8, 2)).astype(np.float32) for _ in range(3)]
    update_bn([(lt.tensor(b), None) for b in batches], model)
    norm = model[0]
    np.testing.assert_allclose(
        norm.running_mean.numpy(), np.mean([b.mean(0) for b in batches], 0), atol=1e-6
    )
    np.testing.assert_allclose(
        norm.running_var.numpy(), np.mean([b.var(0, ddof=1) for b in batches], 0), atol=1e-6
    )
    assert norm.momentum == 0.3
    assert not model.training
    plain = nn.Linear(2, 2)
    update_bn([], plain)  # nothing to do, and nothing is run
