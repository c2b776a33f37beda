"""Every layer of ``lowtide.nn`` inside a region: the same bits, nothing kept, no higher peak.

The cases are those of ``tests/modules/table.py``, so a new layer comes here by itself.
"""

from __future__ import annotations

import gc

import pytest

import lowtide as lt
from lowtide import nn
from tests.checkpointing.twice import assert_same, bits, gradients, live, outcome, plain
from tests.modules.table import FAMILIES, build, call, combine, construct, family, inputs

# Bytes that a layer keeps beside its results: indices of sequences, computed in Python from their
# lengths. No kernel made them.
KEPT = {
    "CTCLoss(4,in a row)": 48,
    "RNN(3,4,2,bidirectional=True,packed)": 144,
    "LSTM(3,4,2,bidirectional=True,packed)": 144,
    "GRU(3,4,2,bidirectional=True,packed)": 144,
    "GRU(3,4,unsorted)": 152,
    "GRU(2,3,list)": 192,
}
# These keep their input as it was before they wrote into it, like the plain run.
IN_PLACE = {"SiLU", "Mish", "Hardswish", "Threshold", "RReLU"}  # the last in training only
# One kernel makes the result and what is kept: if that is wanted again, the result comes too.
TOGETHER = ("CrossEntropyLoss", "FractionalMaxPool2d", "RReLU")


def prepared(case, mode, seed=5):
    """The layer and its inputs; where the case writes into them, they are results of ops."""
    lt.manual_seed(seed)
    layer = build(lt, case, lt.float32).train(mode == "train")
    made, leaves = inputs(lt, case, lt.float32)
    if case.kwargs.get("inplace"):
        made = tuple(m * 1 if hasattr(m, "dtype") else m for m in made)
    return layer, made, leaves


def results(case, mode, region):
    """Outputs, gradients, buffers and the state of the generator, as bits."""
    layer, made, leaves = prepared(case, mode)
    outs = region(call, lt, case, layer, made)
    found = {"outputs": bits(outs)}
    loss = combine(lt, case, "out", outs)
    if loss is not None:
        loss.backward()
    wanted = {**leaves, **dict(layer.named_parameters())}
    found["gradients"] = {n: bits(p.grad) for n, p in wanted.items()}
    found["buffers"] = bits(dict(layer.named_buffers()))
    found["generator"] = bits(lt.get_rng_state())
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_gives_the_same_bits(name):
    different = {}
    for case in family(name).CASES:
        for mode in case.modes:
            expected, found = results(case, mode, plain), results(case, mode, lt.checkpoint)
            wrong = [key for key in expected if expected[key] != found[key]]
            if wrong:
                different[case.id, mode] = wrong
    assert different == {}


def story(case, mode, region):
    """Bytes kept beside inputs and outputs, those of the outputs, the peaks of both passes."""
    layer, made, _ = prepared(case, mode)
    ledger = lt.framework.devices.backend(lt.device("cpu")).ledger
    given = {id(t._storage) for t in made if isinstance(t, lt.Tensor)}
    before = ledger.live
    ledger.reset_peak()
    outs = region(call, lt, case, layer, made)
    forward = ledger.peak - before
    made_bytes = {id(t._storage): t._storage.nbytes for t in outs if id(t._storage) not in given}
    kept = ledger.live - before - sum(made_bytes.values())
    roots = [t for t in outs if t.requires_grad]
    ones = [lt.ones_like(t) for t in roots]
    arriving = sum(t.nbytes for t in ones)
    ledger.reset_peak()
    if roots:
        lt.autograd.backward(roots, ones)
    return kept, sum(t.nbytes for t in outs), forward + arriving, ledger.peak - before


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_keeps_nothing_and_peaks_no_higher(name):
    gc.collect()
    gc.disable()
    kept, higher = {}, {}
    try:
        for case in family(name).CASES:
            for mode in case.modes:
                story(case, mode, plain)  # what is made once is there from now on
                _, outs, forward, backward = story(case, mode, plain)
                left, _, _, peak = story(case, mode, lt.checkpoint)
                expected = KEPT.get(case.id, 0)
                in_place = IN_PLACE if mode == "train" else IN_PLACE - {"RReLU"}
                if case.kwargs.get("inplace") and case.layer in in_place:
                    expected = sum(t.nbytes for t in prepared(case, mode)[1])
                if left != expected:
                    kept[case.id, mode] = left
                # All that was there in forward, or in backward, and the gradients that arrive.
                if peak > max(forward, backward) + outs * (case.layer in TOGETHER):
                    higher[case.id, mode] = (peak, forward, backward)
    finally:
        gc.enable()
    assert (kept, higher) == ({}, {})


def bytes_on(where, case):
    """Live bytes and peaks of a checkpointed step on a device."""
    ledger = lt.framework.devices.backend(lt.device(where)).ledger
    lt.manual_seed(5)
    with lt.device(where):
        layer = construct(lt, case).to(lt.float32)
        made, _ = inputs(lt, case, lt.float32, device=where)
        if case.kwargs.get("inplace"):
            made = tuple(m * 1 for m in made)
        before = ledger.live
        ledger.reset_peak()
        outs = lt.checkpoint(call, lt, case, layer, made)
        found = [ledger.live - before, ledger.peak - before]
        loss = combine(lt, case, "out", outs)
        ledger.reset_peak()
        if loss is not None:
            loss.backward()
        return [*found, ledger.live - before, ledger.peak - before]


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", FAMILIES)
def test_bytes_on_meta_are_those_on_the_cpu(name):
    gc.collect()
    gc.disable()
    different = {}
    try:
        for case in family(name).CASES:
            if case.meta and case.note != "packed":  # its sizes lie on the CPU in any case
                bytes_on("cpu", case)  # what is made once is there from now on
                cpu, meta = bytes_on("cpu", case), bytes_on("meta", case)
                if cpu != meta:
                    different[case.id] = (cpu, meta)
    finally:
        gc.enable()
    assert different == {}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_leaves_no_bytes(name):
    gc.collect()
    gc.disable()
    left = {}
    try:
        for case in family(name).CASES:
            results(case, case.modes[0], lt.checkpoint)
            before = live()
            results(case, case.modes[0], lt.checkpoint)
            left[case.id] = live() - before
    finally:
        gc.enable()
    assert {i: n for i, n in left.items() if n} == {}


# Beyond single layers


@pytest.mark.parametrize("wrap", ["weight_norm", "spectral_norm", "orthogonal"])
@pytest.mark.usefixtures("leak_check")
def test_parametrized_weights(wrap):
    def step(region):
        layer = getattr(nn.utils.parametrizations, wrap)(nn.Linear(4, 4))
        model = nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 3))
        x = lt.randn(5, 4, requires_grad=True)
        found = []
        for _ in range(2):
            found.append(gradients(region(model, x), x, *model.parameters()))
        return found, dict(model.named_buffers())

    assert_same(step)


class Block(nn.Module):
    """Attention, dropout, normalization: a block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.second = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, activation="gelu")
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        x = self.second(self.first(x))
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.usefixtures("leak_check")
def test_training_steps_of_blocks(nested):
    def step(region):
        blocks = nn.ModuleList([Block() for _ in range(3)])
        optimizer = lt.optim.AdamW(blocks.parameters(), 0.01)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            for _ in range(2):  # gradients accumulate
                x = lt.randn(2, 5, 8)

                def run(x):
                    for block in blocks:
                        x = region(block, x)
                    return x

                loss = (region(run, x) if nested else run(x)).square().mean()
                loss.backward()
                losses.append(loss)
            optimizer.step()
        return losses, dict(blocks.named_parameters()), dict(blocks.named_buffers())

    assert_same(step)


@pytest.mark.usefixtures("leak_check")
def test_parameters_updated_while_backward_runs():
    def step(region):
        blocks = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)])
        optimizer = lt.optim.SGD(blocks.parameters(), 0.1, momentum=0.9)
        handle = lt.optim.fuse_into_backward(optimizer)
        for _ in range(3):
            x = lt.randn(2, 4)
            y = region(lambda x: region(blocks[2:], region(blocks[:2], x)).sin(), x)
            y.sum().backward()
        handle.remove()
        return y, dict(blocks.named_parameters())

    assert_same(step)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.usefixtures("leak_check")
def test_recurrent_layers_over_pieces_of_time(kind):
    def step(region):
        layer = getattr(nn, kind)(3, 4, num_layers=2, dropout=0.3, bidirectional=False)
        x = lt.randn(9, 2, 3, requires_grad=True)
        state, outs = None, []
        for piece in x.split(3):
            out, state = region(layer, piece, state)
            outs.append(out)
        y = lt.cat(outs)
        return y, state, gradients(y, x, *layer.parameters())

    assert_same(step)


def test_every_kind_of_dropout_draws_once():
    drawn = {}
    for kind in (
        "Dropout",
        "Dropout1d",
        "Dropout2d",
        "Dropout3d",
        "AlphaDropout",
        "FeatureAlphaDropout",
        "RReLU",
    ):
        layer = getattr(nn, kind)()
        shape = (2, 3, *[4] * (int(kind[-2]) if kind[-1] == "d" else 2))

        def step(region, layer=layer, shape=shape):
            x = lt.randn(*shape, requires_grad=True)
            y = region(lambda x: layer(layer(x).exp()).sin(), x)
            return y, gradients(y, x)

        assert_same(step)
        drawn[kind] = outcome(step, lt.checkpoint)[1]
    assert len(drawn) == 7


def test_random_factories_inside():
    def f(x):
        size = tuple(x.shape)
        noise = lt.randn(size) + lt.rand_like(x) + lt.randint(5, size) + lt.randn_like(x)
        noise = noise * lt.normal(lt.zeros(size), lt.full(size, 0.1)) + lt.normal(0.0, 1.0, size)
        order = lt.randperm(size[0])
        mask = lt.bernoulli(lt.full(size, 0.5)) + lt.multinomial(lt.ones(size[1]), 4)
        kinds = lt.arange(size[1]) + lt.linspace(0, 1, size[1]) + lt.eye(*size) + lt.ones(size)
        own = lt.rand(size, generator=lt.Generator().manual_seed(4))
        h = (x * noise).exp() * mask.sin() + (x * kinds * own).cos()
        return h[order] * lt.zeros_like(x).uniform_(-1, 1).exp() + lt.poisson(lt.ones(size)) * x

    def step(region):
        x = lt.randn(3, 4, requires_grad=True)
        y = region(f, x)
        return y, gradients(y, x)

    assert_same(step)
    x = lt.randn(3, 4, requires_grad=True)
    before = live()
    y = lt.checkpoint(f, x)
    assert live() - before == y.nbytes
