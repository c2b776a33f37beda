"""Dropout: its mask is drawn again, its rate and scale are right."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.kernels.cpu.support import work_pool
from lowtide.framework.kernels.runtime import threads
from lowtide.framework.ops.registry import OPS
from lowtide.nn import functional as F


def ones(*shape):
    return lt.tensor(np.ones(shape), requires_grad=True)


def test_the_gradient_has_the_mask_of_the_forward_pass():
    x = ones(300, 401)
    out = F.dropout(x, 0.3)
    (g,) = grad(out.sum(), [x])
    np.testing.assert_array_equal(g.numpy(), out.detach().numpy())


def test_no_array_is_kept():
    x = ones(64, 64)
    assert sum(k.nbytes for k in F.dropout(x, 0.5).grad_fn.saved) == 0
    assert sum(k.nbytes for k in F.alpha_dropout(x, 0.5, True).grad_fn.saved) == 0


def test_rate_and_scale():
    out = F.dropout(ones(1000, 1000), 0.2).detach().numpy()
    assert set(np.unique(out)) == {0.0, 1.25}
    assert abs((out == 0).mean() - 0.2) < 0.002


def test_seeds_repeat_and_draws_differ():
    x = ones(100)
    lt.manual_seed(3)
    a, b = F.dropout(x).tolist(), F.dropout(x).tolist()
    lt.manual_seed(3)
    assert F.dropout(x).tolist() == a
    assert a != b


def test_long_inputs_are_drawn_as_short_ones():
    lt.manual_seed(3)
    long = F.dropout(ones(200_001)).detach().numpy()
    lt.manual_seed(3)
    short = F.dropout(ones(70_003)).detach().numpy()
    np.testing.assert_array_equal(long[:70_003], short)


def test_evaluation_returns_the_input_itself():
    x = ones(3)
    assert F.dropout(x, 0.5, training=False) is x


@pytest.mark.parametrize("contiguous", [True, False])
def test_in_place_writes_into_the_input(contiguous):
    x = ones(30, 20).mul(2.0)
    y = x if contiguous else x.mT
    assert F.dropout(y, 0.5, inplace=True) is y
    assert set(np.unique(x.detach().numpy())) == {0.0, 4.0}


def test_p_of_one_zeros_all():
    assert F.dropout(ones(4), 1.0).tolist() == [0.0] * 4


def test_channels_go_as_a_whole():
    for function, shape in ((F.dropout1d, (8, 64, 5)), (F.dropout2d, (8, 64, 5, 2))):
        out = function(ones(*shape), 0.5).detach().numpy().reshape(8, 64, -1)
        assert (out == out[..., :1]).all()
        assert set(np.unique(out)) == {0.0, 2.0}


@pytest.mark.parametrize("function", [F.alpha_dropout, F.feature_alpha_dropout])
def test_alpha_dropout_keeps_mean_and_variance(function):
    x = lt.tensor(np.random.default_rng(0).standard_normal((500, 400, 2)))
    out = function(x, 0.3, True).numpy()
    assert abs(out.mean()) < 0.02
    assert abs(out.std() - 1) < 0.02


@pytest.mark.parametrize("function", [F.dropout, F.dropout2d, F.alpha_dropout])
def test_a_probability_outside_0_1_is_refused(function):
    with pytest.raises(ValueError, match="between 0 and 1"):
        function(ones(2, 3, 4, 4), 1.5, True)


@pytest.mark.parametrize("dtype", [lt.float32, lt.float64, lt.float16])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.75, 1.0])
@pytest.mark.parametrize("zero", [lt.dropout, lt.alpha_dropout])
@pytest.mark.compiled
def test_the_compiled_mask_is_the_plain_one(zero, p, dtype, monkeypatch):
    op = OPS["_dropout"]
    values = np.random.default_rng(0).standard_normal((131, 1003)) * 3
    values[0, :5] = np.nan, np.inf, -np.inf, 0.0, -0.0
    x = lt.tensor(values).to(dtype)
    results = []
    for kernels in (op.kernels, []):
        monkeypatch.setattr(op, "kernels", kernels)
        monkeypatch.setattr(op, "plans", {})
        lt.manual_seed(5)
        t = x.clone().requires_grad_()
        lt.rand(3)  # the draw begins somewhere
        out = zero(t, p, training=True)
        (g,) = lt.autograd.grad(out, [t], x.nan_to_num(0.0, 1.0, 1.0))
        results.append((out.detach().numpy().tobytes(), g.numpy().tobytes()))
    assert results[0] == results[1]


def test_threads_draw_the_same_mask(monkeypatch):
    monkeypatch.setattr(threads, "LIMIT", 3)
    monkeypatch.setattr(threads, "_pool", None)
    x = lt.ones(1_234_567)
    results = []
    shared: list[bool] = []
    share = work_pool.share
    monkeypatch.setattr(work_pool, "share", lambda *args: shared.append(share(*args)) or shared[-1])
    for wanted in (1, 3):
        monkeypatch.setattr(threads, "_wanted", wanted)
        lt.manual_seed(2)
        results.append(lt.dropout(x.clone(), 0.3, inplace=True).numpy().tobytes())
    assert any(shared) or threads._pool is not None
    assert results[0] == results[1]
