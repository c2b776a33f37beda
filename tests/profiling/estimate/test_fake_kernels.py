"""What an estimate answers where a program asks for values that only computing would give."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn, optim
from lowtide.nn import functional as F
from lowtide.profiling import MemoryProfiler, advise, estimate
from lowtide.profiling.estimate import fake_kernels
from lowtide.profiling.record.recording import ALLOC, FREE
from tests.profiling.predictions import measured, predicted


class Told(Exception):
    """Brings out of the copy what the step saw."""


def seen(look, *args):
    """What ``look`` returns in an estimate."""

    def step():
        raise Told(look(*args))

    with pytest.raises(Told) as caught:
        estimate(step)
    return caught.value.args[0]


@pytest.fixture
def big():
    x = lt.randn(600, 600)
    return lambda: x @ x  # computed in the step: too large to be known


@pytest.mark.parametrize("dtype", [lt.float32, lt.bfloat16, lt.float64, lt.complex64])
def test_numbers_are_one_counts_zero_and_claims_false(big, dtype):
    assert seen(lambda: big().to(dtype)[0, 0].item()) == 1
    assert seen(lambda: big().argmax().item()) == 0
    assert seen(lambda: (big() > 0)[0, 0].item()) is False
    assert seen(lambda: big().numpy()[:2, 0].tolist()) == [1.0, 1.0]


def test_a_program_may_divide_and_take_logarithms(big):
    def look():
        x = big().abs().sum()
        share = big().softmax(1)[0].numpy()
        chosen = np.random.default_rng(0).choice(600, p=share / share.sum())
        return 1 / x.item(), math.log(float(x)), 0 <= chosen < 600

    assert seen(look) == (1.0, 0.0, True)


@pytest.mark.quick(4)
@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [lt.float32, lt.bfloat16, lt.float16, lt.complex64])
@pytest.mark.parametrize("cheap", [True, False])
def test_numbers_are_finite(where, dtype, cheap, monkeypatch):
    if not cheap:
        monkeypatch.setattr(fake_kernels, "CHEAP_BYTES", -1)
    x = lt.ones(600, 600, device=where).to(dtype)

    def look():
        y = x @ x
        return (
            bool(y.isfinite().all()),
            bool(y.isnan().any()),
            bool(lt.isinf(y.sum())),
            bool(~y.isfinite().all()),
            bool(lt.isposinf(y[0, 0].real)),
        )

    assert seen(look) == (True, False, False, False, False)


def test_what_was_presumed_does_not_outlive_a_write(big):
    def look():
        mask = big().isfinite()
        mask[:] = big() > 0
        return bool(mask[0, 0])

    assert seen(look) is False


def test_a_guard_against_nan_lets_the_step_go_on():
    model, x = nn.Linear(20, 300), lt.randn(40, 20)
    optimizer = optim.AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if not lt.isfinite(loss):
            return
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()

    for _ in range(2):
        assert predicted(step) == measured(step)


CHECKS = """
def checks(y):
    assert (y >= 0).all()
    assert (y >= 0).all() and (y <= 1).all(), "both"
    assert not (y < 0).any()
    if not bool((y <= 1).all()):
        raise ValueError("too large")
    if (y < 0).any().item():
        raise ValueError(f"below 0 by {y.min():.3f}")
    if (y > 2).any():
        return 1
    return 2
"""


@pytest.mark.parametrize("times", [0, 100])
def test_a_program_that_checks_is_one_that_passes(big, times):
    names = {}
    exec(compile(CHECKS, "checks.py", "exec"), names)  # pytest changes assertions of its own
    for _ in range(times):  # the interpreter has other instructions for what runs often
        names["checks"](lt.ones(3))
    assert seen(lambda: names["checks"](big())) == 2


PROBABILITIES = [
    lambda y: y,
    lambda y: y.sigmoid(),
    lambda y: y.clamp(0, 1)[::3],
    lambda y: y.double(),
]
CHECKED = {
    "binary_cross_entropy": lambda y: F.binary_cross_entropy(y, y.detach()),
    "BCELoss": lambda y: nn.BCELoss(reduction="none")(y, y.detach()),
    "gaussian_nll_loss": lambda y: F.gaussian_nll_loss(y, y, y.detach()),
    "quantile": lambda y: y[:20, :20].quantile(y[3].detach(), dim=0),
    "Binomial": lambda y: lt.distributions.Binomial(5 * lt.ones_like(y), y).sample(),
    "Normal": lambda y: lt.distributions.Normal(y, y + 1).log_prob(y),
    "lu_factor": lambda y: lt.linalg.lu_factor(y[:20, :20]),
    "coo": lambda y: lt.sparse_coo_tensor((y[:2] > 2).long(), y[2], (3, 3)).to_dense(),
}


@pytest.mark.quick(9)
@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("make", range(len(PROBABILITIES)))
def test_our_own_checks_of_values_are_passed(big, name, make):
    def step():
        CHECKED[name](PROBABILITIES[make](big()))

    for _ in range(30 * (make == 1)):
        CHECKED[name](lt.rand(40, 40))

    assert estimate(step).peak_bytes > 0


def test_a_loop_that_waits_ends(big):
    def until():
        return next(k for k in itertools.count(1) if (big()[:2] > 0).all())

    x = lt.randn(400, 400)

    def converged():
        y, n = x, 0
        while y.norm().item() > 1e-3:
            y, n = y @ x, n + 1
        return n

    assert seen(until) == 1000
    assert seen(converged) == 999


def test_an_error_names_what_was_guessed(big):
    line = test_an_error_names_what_was_guessed.__code__.co_firstlineno + 4

    def step():
        return 1 / big().argmax().item()

    with pytest.raises(ZeroDivisionError) as caught:
        estimate(step)
    notes = "\n".join(caught.value.__notes__)
    assert f"test_fake_kernels.py:{line} (1x)" in notes
    assert "were guessed, which may be why it failed: item() at " in notes
    assert notes.count("were guessed") == 1
    assert "run_apart" not in notes  # the copy's own frames say nothing


@pytest.mark.quick(2)
@pytest.mark.parametrize("size", [20, 600])
@pytest.mark.parametrize("made", ["before", "in the step", "from zeros"])
def test_a_causal_mask_is_known(size, made):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)
    x = lt.randn(2, size, 8)
    kept = nn.Transformer.generate_square_subsequent_mask(size)

    def mask():
        if made == "in the step":
            return nn.Transformer.generate_square_subsequent_mask(size)
        if made == "from zeros":
            later = lt.ones(size, size, dtype=lt.bool).triu(1)
            return lt.zeros(size, size).masked_fill(later, float("-inf"))
        return kept

    def step():
        model(x, mask=mask()).square().mean().backward()
        model.zero_grad()

    assert predicted(step) == measured(step)
    # Told that it is causal, attention does not keep the mask.
    with MemoryProfiler(timeline=True) as prof:
        step()
    assert blocks(estimate(step).recording) == blocks(prof.recording)


def blocks(recording):
    """What is taken and given back, in order."""
    return [row[1:5] for row in recording.events.rows() if row[1] in (ALLOC, FREE)]


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_goes_on_and_its_history_grows(search):
    model, x = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 3)), lt.randn(64, 20)
    optimizer = optim.LBFGS(model.parameters(), max_iter=4, max_eval=40, line_search_fn=search)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x[:, :3])
        loss.backward()
        return loss

    found = estimate(lambda: optimizer.step(closure))
    assert found.guesses == {}  # nothing but what LBFGS presumes itself
    real = measured(lambda: optimizer.step(closure))
    assert (found.peak_bytes, found.peak_roles) == (real["peak"], real["roles"])


def test_a_gradient_scaler_steps():
    model, x = nn.Linear(300, 300), lt.randn(40, 300)  # gradients too large to be known
    optimizer, scaler = optim.AdamW(model.parameters()), lt.amp.GradScaler("cpu")

    def step():
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    for _ in range(2):
        assert predicted(step) == measured(step)


def test_pythons_random_numbers_are_those_of_the_real_step():
    def step():
        return [lt.empty(n) for n in random.sample(range(1, 10_000), 20)]

    state = random.getstate()
    found = predicted(step)
    assert random.getstate() == state
    assert found == measured(step)


@pytest.mark.parametrize("judge", [estimate, advise])
def test_a_result_in_place_of_the_function_says_what_to_write(judge):
    model, name = lt.nn.Linear(2, 2), judge.__name__
    with pytest.raises(TypeError, match="got a Tensor, a result that was computed") as caught:
        judge(model(lt.ones(1, 2)))
    assert f"Pass {name}(model, x) in place of {name}(model(x))" in str(caught.value)


def test_a_shape_that_depends_on_values_names_the_users_expression_and_line():
    x = lt.randn(10)

    def masked():
        y = x * 2
        return y[y > 0].sum()

    line = masked.__code__.co_firstlineno + 2
    with pytest.raises(NotImplementedError) as caught:
        estimate(masked)
    text = str(caught.value)
    assert text.startswith("y[y > 0] (")
    assert f"test_fake_kernels.py:{line}): the shape of its result depends on values" in text
    with pytest.raises(NotImplementedError, match=r"^lt.nonzero\( x \* 2 \) \("):
        estimate(
            lambda: lt.nonzero(
                x * 2
            )
        )  # fmt: skip


def test_an_expression_whose_source_is_not_to_be_had_gives_the_ops_name():
    names = {"x": lt.randn(10)}
    exec("def f():\n    y = x * 2\n    return y[y > 0]", names)
    with pytest.raises(NotImplementedError, match="the shape of its result depends on values"):
        estimate(names["f"])
