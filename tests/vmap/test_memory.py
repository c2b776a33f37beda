"""What vmap takes: bytes of ordinary ops, exactly foretold, nothing left behind."""

import gc

import pytest

import lowtide as lt
from lowtide.func import functional_call, grad, jacrev, vmap
from lowtide.nn import functional as F
from tests.profiling.predictions import measured, predicted

nn = lt.nn


def peak_of(step):
    gc.collect()
    lt.cpu.reset_peak_memory_stats()
    step()
    return lt.cpu.max_memory_allocated()


def model_and_data(batch=8):
    lt.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.LayerNorm(64),
        nn.Linear(64, 32),
        nn.GELU(),
        nn.Dropout(0.5),
        nn.Linear(32, 3),
    )
    return model, lt.randn(batch, 2, 4, 4), lt.randint(0, 3, (batch,))


def per_sample_step():
    model, x, y = model_and_data()
    params = {n: p.detach() for n, p in model.named_parameters()}

    def loss(p, a, b):
        out = functional_call(model, p, (a.unsqueeze(0),))
        return F.cross_entropy(out, b.unsqueeze(0))

    def step():
        grads = vmap(grad(loss), (None, 0, 0), randomness="different")(params, x, y)
        for n, p in params.items():
            p.sub_(grads[n].mean(0) * 0.1)

    return step


def training_step():
    model, x, y = model_and_data()
    optimizer = lt.optim.SGD(model.parameters(), lr=0.1)
    params = dict(model.named_parameters())

    def step():
        optimizer.zero_grad()
        out = vmap(
            lambda a: functional_call(model, params, (a.unsqueeze(0),))[0], randomness="different"
        )(x)
        F.cross_entropy(out, y).backward()
        optimizer.step()

    return step


def jacobian_step():
    model, x, _ = model_and_data()
    model.eval()
    return lambda: jacrev(model)(x[:1])


def checkpointed_step():
    model, x, _ = model_and_data()
    model.eval()

    def f(a):
        return lt.checkpoint(model, a.unsqueeze(0)).sum()

    return lambda: vmap(grad(f))(x)


STEPS = {
    "gradients of each sample": per_sample_step,
    "training": training_step,
    "jacobian": jacobian_step,
    "checkpointed": checkpointed_step,
}


@pytest.mark.parametrize("name", STEPS)
def test_an_estimate_is_exact(name):
    step = STEPS[name]()
    for _ in range(2):
        foretold = predicted(step)
        assert measured(step) == foretold


@pytest.mark.parametrize("name", STEPS)
def test_nothing_is_left_without_the_garbage_collector(name):
    step = STEPS[name]()
    step()
    gc.collect()
    gc.disable()
    try:
        before = lt.cpu.memory_allocated()
        for _ in range(3):
            step()
        assert lt.cpu.memory_allocated() == before
    finally:
        gc.enable()


def test_shared_weights_are_not_repeated():
    x, w = lt.randn(64, 32), lt.randn(32, 128)

    def plain():
        return F.linear(x, w.T)

    mapped = vmap(lambda a: F.linear(a, w.T))
    plain(), mapped(x)
    assert peak_of(lambda: mapped(x)) == peak_of(plain)


def test_chunks_take_less():
    x = lt.randn(64, 256)

    def f(a):
        return (a.outer(a).sin() @ a).sum()

    whole = peak_of(lambda: vmap(f)(x)) - lt.cpu.memory_allocated()
    parts = peak_of(lambda: vmap(f, chunk_size=8)(x)) - lt.cpu.memory_allocated()
    assert parts * 4 < whole
