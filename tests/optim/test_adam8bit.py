"""Adam whose state has eight bits: the numbers it rounds to, its steps, and its bytes.

The oracle is Adam in NumPy, in double precision, from the state as it is before each step; a new
state is compared with it decoded, since two numbers may be equally near.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.kernels.common import dynamic_code
from lowtide.framework.kernels.runtime import thresholds
from lowtide.optim import Adam8bit, AdamW, AdamW8bit, fuse_into_backward

BLOCK = 256
STATE = ("state1", "state2", "absmax1", "absmax2")
SIGNED, UNSIGNED = (np.array(dynamic_code.numbers(s)) for s in (True, False))


@pytest.fixture(params=["compiled", "plain"])
def road(request, monkeypatch):
    """Take the compiled loops for any size, or for none; pieces are small, so there are several."""
    monkeypatch.setattr(thresholds, "COMPILED_STEP", 0 if request.param == "compiled" else 1 << 60)
    monkeypatch.setattr(thresholds, "TILE", 2 * BLOCK)
    return request.param


def blocks_of(x: Any) -> list[Any]:
    """A flat array in blocks; the last may be shorter."""
    return [x[k : k + BLOCK] for k in range(0, len(x), BLOCK)]


def decoded(state: dict[str, Any]) -> list[Any]:
    """Both means in double precision."""
    found = []
    for table, k in ((SIGNED, 1), (UNSIGNED, 2)):
        codes = blocks_of(state[f"state{k}"].numpy().reshape(-1))
        scales = state[f"absmax{k}"].numpy()
        parts = [table[c] * float(s) for c, s in zip(codes, scales, strict=True)]
        found.append(np.concatenate(parts) if parts else np.zeros(0))
    return found


def nearest_distance(x: Any, table: Any) -> Any:
    """How far each of some numbers, divided by the largest of its block, is from the table."""
    found = []
    for block in blocks_of(x):
        top = np.abs(block).max()
        found.append(np.abs(block[:, None] - table * top).min(1))
    return np.concatenate(found)


def oracle(p: Any, g: Any, m: Any, v: Any, step: int, o: dict[str, Any], decoupled: bool) -> Any:
    """One step of Adam in NumPy: the new p, m and v."""
    g = -g if o.get("maximize") else g
    b1, b2 = o.get("betas", (0.9, 0.999))
    decay = o.get("weight_decay", 1e-2 if decoupled else 0)
    if decoupled:
        p = p * (1 - o["lr"] * decay)
    else:
        g = g + decay * p
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    return p - o["lr"] * (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + 1e-8), m, v


# The numbers


def test_the_numbers_are_those_of_the_paper():
    # By the bits of a code: leading zeros count decades down from 1, a one ends the count, the rest
    # cuts the decade. The pattern is the rank; without a sign there is one bit more, which never
    # counts decades, so that the pattern begins at 2.
    for signed in (True, False):
        expected = [0.0]
        for pattern in range(1 if signed else 2, 128 if signed else 256):
            fraction = pattern.bit_length() - 1
            part = (pattern - 2**fraction + 0.5) / 2**fraction
            zeros = 7 - pattern.bit_length() if signed else 8 - pattern.bit_length()
            expected.append(10.0**-zeros * (0.1 + 0.9 * part))
        expected.append(1.0)
        np.testing.assert_allclose(dynamic_code.magnitudes(signed), expected, rtol=1e-12)
    assert (len(SIGNED), len(UNSIGNED)) == (256, 256)
    assert (np.diff(SIGNED) > 0).all()
    assert (np.diff(UNSIGNED) > 0).all()
    assert SIGNED[dynamic_code.ZERO] == 0


def test_the_numbers_are_those_of_bitsandbytes():
    # create_dynamic_map of bitsandbytes 0.50.2, in float32
    signed = {
        0: -0.992968738079071,
        63: -0.10703125596046448,
        64: -0.09859374910593033,
        100: -0.0074687497690320015,
        126: -5.500000384017767e-07,
        127: 0.0,
        128: 5.500000384017767e-07,
        129: 3.250000190746505e-06,
        131: 2.1249998098937795e-05,
        191: 0.10703125596046448,
        254: 0.992968738079071,
        255: 1.0,
    }
    unsigned = {
        0: 0.0,
        1: 3.2500003044333425e-07,
        2: 7.749999895168003e-07,
        6: 8.874999366526026e-06,
        7: 1.5624998923158273e-05,
        62: 0.009859374724328518,
        63: 0.010703125968575478,
        126: 0.09929687529802322,
        127: 0.103515625,
        200: 0.6167968511581421,
        254: 0.9964843988418579,
        255: 1.0,
    }
    for table, golden in ((SIGNED, signed), (UNSIGNED, unsigned)):
        np.testing.assert_allclose(table[list(golden)], list(golden.values()), rtol=3e-7)


def test_every_number_keeps_its_code(road):
    # Without memory (betas of 0) the means are the gradient and its square.
    g = np.concatenate([SIGNED[1:], [0.0]])  # the largest magnitude is 1
    p = lt.zeros(BLOCK, requires_grad=True)
    optimizer = Adam8bit([p], betas=(0.0, 0.0), min_8bit_size=0)
    p.grad = lt.tensor(g, dtype=lt.float32)
    optimizer.step()
    state = optimizer.state[p]
    assert state["state1"].tolist() == [*range(1, 256), dynamic_code.ZERO]
    assert state["absmax1"].tolist() == [1.0]
    p.grad = lt.tensor(np.sqrt(UNSIGNED), dtype=lt.float32)
    optimizer.step()
    assert state["state2"].tolist() == list(range(256))


def test_rounding_goes_to_the_nearest_number_of_a_block(road):
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(np.log(1e-9), 0, 5 * BLOCK - 40))  # five blocks, one not whole
    g = (sizes * rng.choice([-3.0, 3.0], len(sizes))).astype(np.float32)
    g[BLOCK : 2 * BLOCK] = 0  # one of zeros
    g[2 * BLOCK] = -7  # one whose largest is negative: there is no -1
    g[3 * BLOCK : 4 * BLOCK] *= 1e-30  # one whose squares are below the smallest float32
    p = lt.zeros(len(g), requires_grad=True)
    optimizer = Adam8bit([p], betas=(0.0, 0.0), min_8bit_size=0)
    p.grad = lt.tensor(g)
    optimizer.step()
    m, v = decoded(optimizer.state[p])
    tops = [np.abs(b).max() for b in blocks_of(g)]
    np.testing.assert_array_equal(optimizer.state[p]["absmax1"].numpy(), tops)
    exact = np.repeat(np.array(tops, np.float64), BLOCK)[: len(g)]
    assert (np.abs(m - g) <= nearest_distance(g.astype(np.float64), SIGNED) + 1e-6 * exact).all()
    square = g * g  # in float32, as it is computed: those of the tiny block are 0
    least = np.repeat([b.max() for b in blocks_of(square)], BLOCK)[: len(g)] * UNSIGNED[1]
    expected = np.where(square > 0, np.maximum(square, least), 0)
    distance = nearest_distance(expected.astype(np.float64), UNSIGNED)
    assert (np.abs(v - expected) <= distance + 1e-6 * exact**2).all()
    assert ((v > 0) == (square > 0)).all()


# Steps


OPTIONS = [
    {"lr": 0.01},
    {"lr": 0.01, "weight_decay": 0.1},
    {"lr": 0.01, "maximize": True, "betas": (0.8, 0.95)},
]


@pytest.mark.parametrize("dtype", [lt.float32, lt.float64, lt.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", [Adam8bit, AdamW8bit])
@pytest.mark.compiled
def test_a_step_is_adams_from_the_decoded_state(kind, options, dtype, road):
    rng = np.random.default_rng(1)
    n = 3 * BLOCK + 100
    p = lt.tensor(rng.standard_normal(n)).to(dtype).requires_grad_()
    optimizer = kind([p], min_8bit_size=0, **options)
    m, v = np.zeros(n), np.zeros(n)
    tolerance = {lt.float32: 2e-6, lt.float64: 2e-7, lt.bfloat16: 2e-2}[dtype]
    for step in range(1, 6):
        before = p.detach().to(lt.float64).numpy().copy()
        p.grad = lt.tensor(rng.standard_normal(n) * np.linspace(0.01, 1, n)).to(dtype)
        g = p.grad.to(lt.float64).numpy()
        optimizer.step()
        expected, m, v = oracle(before, g, m, v, step, options, kind is AdamW8bit)
        after = p.detach().to(lt.float64).numpy()
        np.testing.assert_allclose(after, expected, rtol=tolerance, atol=tolerance)
        found = decoded(optimizer.state[p])
        for mean, table, got in ((m, SIGNED, found[0]), (v, UNSIGNED, found[1])):
            top = np.abs(mean).max()
            assert (np.abs(got - mean) <= nearest_distance(mean, table) + 2e-6 * top).all() or (
                table is UNSIGNED and (np.abs(got - mean) <= UNSIGNED[1] * top).all()
            )
        m, v = found


def test_small_parameters_step_exactly_as_adams():
    ends = []
    for kind in (AdamW, AdamW8bit):
        p = lt.linspace(-1, 1, 4095).requires_grad_()
        optimizer = kind([p], lr=0.1)
        for k in range(3):
            p.grad = (p * (k + 1)).sin().detach()
            optimizer.step()
        ends.append(p.detach().numpy().tobytes())
    assert ends[0] == ends[1]
    assert {k: v.dtype for k, v in optimizer.state[p].items() if k != "step"} == {
        "state1": lt.float32,
        "state2": lt.float32,
    }
    half = lt.ones(3, dtype=lt.bfloat16).requires_grad_()
    half.grad = lt.ones(3, dtype=lt.bfloat16)
    optimizer = Adam8bit([half])
    optimizer.step()
    assert optimizer.state[half]["state1"].dtype is lt.float32


def test_a_group_may_keep_its_state_whole():
    a, b = lt.ones(4096, requires_grad=True), lt.ones(4096, requires_grad=True)
    optimizer = Adam8bit([{"params": [a]}, {"params": [b], "min_8bit_size": 1 << 62}])
    a.grad = b.grad = lt.ones(4096)
    optimizer.step()
    kinds = [optimizer.state[p]["state1"].dtype for p in (a, b)]
    assert kinds == [lt.uint8, lt.float32]


def test_a_strided_parameter_takes_the_steps_of_a_contiguous_one(road):
    values = np.random.default_rng(0).standard_normal((7, 9, 37))  # rows end within blocks
    ends = []
    for order in (None, (2, 0, 1), (1, 2, 0)):
        p = lt.tensor(values)
        if order is not None:
            back = [order.index(k) for k in range(3)]
            p = p.permute(order).contiguous().permute(back)
        p = p.detach().requires_grad_()
        assert p.is_contiguous() is (order is None)
        optimizer = AdamW8bit([p], lr=0.1, min_8bit_size=0)
        for k in range(3):
            p.grad = lt.tensor(np.cos(values + k))
            optimizer.step()
        state = optimizer.state[p]
        ends.append([p.detach().numpy(), *[state[name].numpy() for name in STATE]])
    for strided in ends[1:]:
        np.testing.assert_allclose(strided[0], ends[0][0], rtol=1e-9)
        for got, expected in zip(strided[1:], ends[0][1:], strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_parameters_without_elements_and_of_one(road):
    empty, one = lt.zeros(3, 0, requires_grad=True), lt.ones((), requires_grad=True)
    optimizer = Adam8bit([empty, one], lr=0.25, min_8bit_size=0)
    empty.grad, one.grad = lt.zeros(3, 0), lt.tensor(2.0)
    optimizer.step()
    assert one.item() == pytest.approx(0.75)
    assert optimizer.state[empty]["absmax1"].shape == (0,)
    assert optimizer.state[one]["absmax1"].tolist() == pytest.approx([0.2])


@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_threads_makes_the_same_step(threads, monkeypatch):
    from lowtide.framework.kernels.runtime import threads as pool

    monkeypatch.setattr(thresholds, "THREAD", 1 << 10)
    monkeypatch.setattr(pool, "_wanted", threads)
    p = lt.linspace(-1, 1, 20000).requires_grad_()
    optimizer = AdamW8bit([p], lr=0.1)
    for k in range(2):
        p.grad = (p * (k + 1)).sin().detach()
        optimizer.step()
    state = optimizer.state[p]
    found = [t.detach().numpy().tobytes() for t in (p, *[state[n] for n in STATE])]
    monkeypatch.setattr(pool, "_wanted", 1)
    q = lt.linspace(-1, 1, 20000).requires_grad_()
    alone = AdamW8bit([q], lr=0.1)
    for k in range(2):
        q.grad = (q * (k + 1)).sin().detach()
        alone.step()
    assert found == [t.detach().numpy().tobytes() for t in (q, *[alone.state[q][n] for n in STATE])]


def test_an_element_beside_a_much_larger_one_makes_no_leap(road):
    # Its v, ten decades below the block's, would round to 0, and m / eps be 90 times the rate.
    p = lt.zeros(2, requires_grad=True)
    optimizer = Adam8bit([p], lr=1.0, min_8bit_size=0)
    moved = []
    for g in ([1.0, 1e-5], [1.0, 0.0], [1.0, 0.0]):
        before = p[1].item()
        p.grad = lt.tensor(g)
        optimizer.step()
        moved.append(abs(p[1].item() - before))
    assert moved[0] == pytest.approx(1.0, rel=1e-2)
    assert max(moved[1:]) < 0.1


def test_what_is_not_finite_is_not_hidden(road):
    for bad in (float("nan"), float("inf")):
        p = lt.ones(2 * BLOCK, requires_grad=True)
        optimizer = Adam8bit([p], lr=0.1, min_8bit_size=0)
        for k in range(2):
            p.grad = lt.ones(2 * BLOCK)
            p.grad[3] = bad if k == 0 else 1.0
            optimizer.step()
        assert p[:BLOCK].isnan().any()
        assert p[BLOCK:].isfinite().all(), "and it stays in its block"


def test_a_training_run_has_adamws_losses(road):
    rng = np.random.default_rng(0)
    x = lt.tensor(rng.standard_normal((1024, 32)).astype(np.float32))
    target = (x @ lt.tensor(rng.standard_normal((32, 8)).astype(np.float32))).tanh()
    losses = {}
    for kind in (AdamW, AdamW8bit):
        lt.manual_seed(0)
        net = nn.Sequential(nn.Linear(32, 160), nn.Tanh(), nn.Linear(160, 8))
        optimizer = kind(net.parameters(), lr=1e-3)
        losses[kind] = []
        for k in range(100):
            batch = slice(64 * k % 1024, 64 * k % 1024 + 64)
            optimizer.zero_grad()
            loss = (net(x[batch]) - target[batch]).square().mean()
            loss.backward()
            optimizer.step()
            losses[kind].append(loss.item())
    assert optimizer.state[net[0].weight]["state1"].dtype is lt.uint8
    assert losses[AdamW][-1] < 0.3 * losses[AdamW][0]
    np.testing.assert_allclose(losses[AdamW8bit], losses[AdamW], rtol=5e-3)


# Bytes


def state_bytes(n: int) -> int:
    """Two bytes an element, and two float32 a block."""
    return 2 * n + 2 * 4 * -(-n // BLOCK)


@pytest.mark.parametrize("shape", [(160, 160), (4096,), (4097,), (33, 257)])
def test_state_takes_two_bytes_an_element_and_its_scales(shape):
    p = lt.ones(shape, requires_grad=True)
    p.grad = lt.ones(shape)
    optimizer = AdamW8bit([p])
    before = lt.memory_stats("cpu")["by_role"]["optimizer"]
    optimizer.step()
    taken = lt.memory_stats("cpu")["by_role"]["optimizer"] - before
    assert taken == state_bytes(p.numel())
    assert taken <= 2.05 * p.numel()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_compiled_step_takes_not_one_byte(device):
    p = lt.ones(160, 160, device=device, requires_grad=True)
    p.grad = lt.ones(160, 160, device=device)
    optimizer = AdamW8bit([p])
    extra = []
    for _ in range(3):
        lt.reset_peak_memory_stats(device)
        before = lt.memory_allocated(device)
        optimizer.step()
        extra.append(lt.max_memory_allocated(device) - before)
    assert extra == [state_bytes(160 * 160), 0, 0]


def extra_of(step, device):
    lt.reset_peak_memory_stats(device)
    before = lt.memory_allocated(device)
    step()
    return lt.max_memory_allocated(device) - before


@pytest.mark.parametrize("strided", [False, True])
def test_a_plain_step_takes_pieces_however_large_the_parameter(strided, monkeypatch):
    monkeypatch.setattr(thresholds, "TILE_BYTES_ELSEWHERE", 8192)  # without compiled loops
    taken = []
    for side in (100, 200):
        p = lt.ones(side, side, device="sim")
        p = (p.T if strided else p).detach().requires_grad_()
        p.grad = lt.ones(side, side, device="sim")
        optimizer = AdamW8bit([p])
        optimizer.step()
        taken.append(extra_of(optimizer.step, "sim"))
    assert taken[0] == taken[1], "the size does not matter"
    assert taken[0] <= 12 * 1024 * 4 + 4 * 1024  # pieces, and the tables of numbers


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_step_that_is_not_compiled_computes_aside(device, monkeypatch):
    monkeypatch.setattr(thresholds, "COMPILED_STEP", 1 << 60)
    p = lt.ones(100, 100, device=device).requires_grad_()
    p.grad = lt.ones(100, 100, device=device)
    optimizer = AdamW8bit([p])
    optimizer.step()
    aside = p.nbytes + state_bytes(p.numel())
    tables = 4 * (2 * 256 + 2 * 255)
    assert aside + tables <= extra_of(optimizer.step, device) <= 8 * aside + tables


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_parameters_of_half_precision_share_two_pieces_of_float32(device):
    ps = [lt.ones(300, 300, device=device, dtype=lt.bfloat16).requires_grad_() for _ in range(3)]
    optimizer = AdamW8bit(ps)
    for p in ps:
        p.grad = lt.ones(300, 300, device=device, dtype=lt.bfloat16)
    optimizer.step()
    assert extra_of(optimizer.step, device) == 2 * thresholds.TILE * 4


@pytest.mark.parametrize("kind", ["bfloat16", "strided"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_compiled_step_of_another_layout_takes_two_pieces(kind, device, monkeypatch):
    monkeypatch.setattr(thresholds, "COMPILED_STEP", 0)
    monkeypatch.setattr(thresholds, "TILE", 1024)
    p = lt.ones(100, 200, device=device, dtype=lt.bfloat16 if kind == "bfloat16" else lt.float32)
    p = (p.T if kind == "strided" else p).detach().requires_grad_()
    p.grad = lt.ones_like(p)
    if kind == "strided":
        p.grad = lt.ones(100, 200, device=device).T
    optimizer = AdamW8bit([p])
    optimizer.step()
    lt.reset_peak_memory_stats(device)
    before = lt.memory_allocated(device)
    optimizer.step()
    assert lt.max_memory_allocated(device) - before == 2 * 1024 * 4


def test_an_estimate_foretells_the_bytes():
    net = nn.Linear(64, 80)
    optimizer = AdamW8bit(net.parameters())

    def step():
        optimizer.zero_grad()
        net(lt.ones(2, 64)).sum().backward()
        optimizer.step()

    foretold = lt.profiling.estimate(step)
    lt.reset_peak_memory_stats()
    step()
    assert foretold.peak_bytes == lt.max_memory_allocated()


def test_one_gradient_at_a_time_and_eight_bits():
    side = 128
    net = nn.Sequential(*[nn.Linear(side, side, bias=False) for _ in range(4)])
    optimizer = AdamW8bit(net.parameters())
    fuse_into_backward(optimizer)
    before = lt.memory_stats("cpu")["by_role"]
    net(lt.ones(1, side)).sum().backward()
    after = lt.memory_stats("cpu")["by_role"]
    assert after["gradient"] == before["gradient"]
    assert after["optimizer"] - before["optimizer"] == 4 * state_bytes(side * side)


# Saved state


def test_the_state_dict_keeps_eight_bits(tmp_path):
    p = lt.linspace(-1, 1, 5000).requires_grad_()
    optimizer = AdamW8bit([p], lr=0.1)
    p.grad = p.detach().cos()
    optimizer.step()
    lt.save(optimizer.state_dict(), tmp_path / "state")
    ends = []
    for saved in (optimizer.state_dict(), lt.load(tmp_path / "state")):
        q = p.detach().clone().requires_grad_()
        again = AdamW8bit([q])
        again.load_state_dict(copy.deepcopy(saved))
        assert {n: again.state[q][n].dtype for n in STATE} == {
            "state1": lt.uint8,
            "state2": lt.uint8,
            "absmax1": lt.float32,
            "absmax2": lt.float32,
        }
        q.grad = q.detach().cos()
        again.step()
        ends.append(q.detach().numpy().tobytes())
    p.grad = p.detach().cos()
    optimizer.step()
    assert ends == [p.detach().numpy().tobytes()] * 2


# What it refuses


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amsgrad": True}, "does not support amsgrad"),
        ({"optim_bits": 8}, "only supports optim_bits=32"),
        ({"args": object()}, "takes no args object; got object"),
        ({"lr": -1}, "Invalid learning rate: -1"),
        ({"betas": (1.0, 0.9)}, "Invalid beta parameter at index 0"),
        ({"min_8bit_size": -1}, "Invalid min_8bit_size value"),
    ],
)
@pytest.mark.parametrize("kind", [Adam8bit, AdamW8bit])
def test_bad_options(kind, options, message):
    with pytest.raises(ValueError, match=f"{kind.__name__}.*{message}"):
        kind([lt.ones(1, requires_grad=True)], **options)


def test_complex_parameters_are_refused():
    p = lt.ones(2, dtype=lt.complex64).requires_grad_()
    p.grad = lt.ones(2, dtype=lt.complex64)
    with pytest.raises(RuntimeError, match="complex"):
        Adam8bit([p]).step()
    assert p.tolist() == [1, 1]


@pytest.mark.parametrize("place", ["sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_steps_on_another_device_are_those_of_the_cpu(place):
    if place == "cuda" and not lt.cuda.is_available():
        pytest.skip("no cuda device")
    values = np.random.default_rng(0).standard_normal((70, 9)).astype(np.float32)
    ends = []
    for device in ("cpu", place):
        p = lt.tensor(values).to(device).requires_grad_()
        optimizer = Adam8bit([p], lr=0.1, min_8bit_size=0)
        for k in range(3):
            p.grad = (p.detach() * (k + 1)).sin()
            optimizer.step()
        assert optimizer.state[p]["state1"].device == p.device
        ends.append(p.detach().cpu().numpy())
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4, atol=1e-5)
