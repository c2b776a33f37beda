"""Every op, on every sample it declares: another device gives what the CPU gives.

``sim`` runs everywhere and refuses what CuPy would refuse; ``cuda`` runs where there is one.
"""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.autograd.engine import grad, ones_of
from lowtide.framework.devices import backend
from lowtide.framework.devices.cuda import device_count
from lowtide.framework.dtypes import bfloat16, float32, float64, tolerance
from tests.samples import over_samples

TWINS = ["sim", *[pytest.param("cuda", marks=pytest.mark.gpu)] * bool(device_count())]


@pytest.fixture(params=TWINS)
def twin(request):
    return lt.device(request.param)


@pytest.mark.gpu
def test_cuda_is_among_the_twins():
    if not device_count():  # said once, instead of once per sample
        pytest.skip("no cuda device: every op ran on sim only")
    assert len(TWINS) == 2


def host(t):
    return np.array(backend(t.device).to_host(t.detach().to_dense().array), copy=True)


# Each column of these results may have either sign: their squares are compared.
SIGNLESS = {"_eigh": 1}


def run(op, inputs, attributes, where):
    """Results, gradients and saved values of one sample on one device."""
    inputs = testing.place(inputs, where, op)
    outputs = testing.call(op, inputs, attributes)
    saved = testing.saved_of(outputs)
    assert all(o.device is where for o in outputs)
    signless = SIGNLESS.get(op.name)
    outputs = [o * o.conj() if k == signless else o for k, o in enumerate(outputs)]
    real = [o for o in outputs if o.requires_grad]
    sources = [x for x in testing.differentiable(op, inputs) if x.requires_grad]
    gradients = []
    if real and sources:
        ones = [ones_of(o._spec) for o in real]
        gradients = grad(real, sources, ones, allow_unused=True)
    return [host(o) for o in outputs], [None if g is None else host(g) for g in gradients], saved


def assert_equal(actual, expected, dtype, steps=0):
    """Compare arrays; ``steps``: how many units in the last place of the largest may differ."""
    rtol, atol = tolerance(dtype)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        if e is None:
            assert a is None
            continue
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        if e.dtype.kind in "biu":
            np.testing.assert_array_equal(a, e)
        else:
            if e.dtype.kind == "V":
                a, e = a.astype(np.float32), e.astype(np.float32)
            more = steps * rtol * np.abs(e).max(initial=0)
            np.testing.assert_allclose(a, e, rtol=4 * rtol, atol=4 * atol + more)


@pytest.mark.quick(250)
@over_samples
@pytest.mark.parametrize("dtype", [float64, bfloat16], ids=lambda d: d.name)
def test_results_and_gradients_equal_those_of_the_cpu(op, inputs, attributes, dtype, twin):
    outputs, gradients, saved = run(op, inputs, attributes, lt.device("cpu"))
    there, gradients_there, saved_there = run(op, inputs, attributes, twin)
    assert_equal(there, outputs, dtype)
    assert_equal(gradients_there, gradients, dtype)
    assert saved_there == saved


@over_samples(made_in=float32)
def test_no_bytes_stay_behind(op, inputs, attributes, twin):
    before = backend(twin).ledger.live
    run(op, inputs, attributes, twin)
    assert backend(twin).ledger.live == before
