"""The random stream: known answers, equality of its implementations, state, distributions."""

import math
import pickle
import sys
import tracemalloc

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.devices import backend
from lowtide.framework.random import generator as generators
from lowtide.framework.random import philox as stream
from lowtide.framework.random.philox import Rng

KERNELS = stream._KERNELS
REAL = (np.float32, np.float64)


@pytest.fixture
def plain(monkeypatch):
    """Only the array version runs, whatever has been compiled."""
    monkeypatch.setattr(stream, "_compiled", lambda xp, n: False)


def words(n, rng, first=0):
    out = np.empty(n, np.uint32)
    stream.bits(np, out, rng, first)
    return out


def test_words_are_philox_4x32_10(plain):
    # The known answer of Random123 for counter 0 and key 0.
    assert words(4, Rng(0, 0)).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def philox_by_hand(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_the_definition_in_python_gives_the_published_answers(counter, key, expected):
    assert philox_by_hand(counter, key) == expected


def test_words_follow_the_definition_over_a_carry_of_the_counter(plain):
    seed, offset = 0xDEADBEEF_12345678, (1 << 32) - 2
    got = words(16, Rng(seed, offset)).tolist()
    expected = []
    for counter in range(offset, offset + 4):
        low, high = counter & 0xFFFFFFFF, counter >> 32
        expected += philox_by_hand([low, high, 0, 0], [seed & 0xFFFFFFFF, seed >> 32])
    assert got == expected


@pytest.mark.parametrize("n", [0, 1, 4, 5, 63, 64, 65, 2047, 2048, 2049, 10_003])
def test_compiled_words_equal_plain_words(n, monkeypatch):
    from lowtide.framework.kernels.cpu.random import philox

    compiled = np.empty(n, np.uint32)
    philox.bits(compiled, 1 << 63, (1 << 32) - 7)
    monkeypatch.setattr(stream, "_compiled", lambda xp, n: False)
    assert np.array_equal(compiled, words(n, Rng(1 << 63, (1 << 32) - 7)))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("n", [0, 3, 10_003])
def test_compiled_uniforms_equal_plain_uniforms(name, n, monkeypatch):
    dtype = getattr(lt, name).np
    found = []
    for compiled in (True, False):
        monkeypatch.setattr(stream, "_compiled", lambda xp, n, compiled=compiled: compiled)
        found.append(np.empty(n, dtype))
        stream.uniform(np, found[-1], Rng(11, (1 << 32) - 5))
    assert np.array_equal(*found)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("n", "mean", "std"), [(9, 0.0, 1.0), (20_001, 0.3, 1.7), (0, 0.0, 1.0)])
def test_compiled_normals_equal_plain_normals(name, n, mean, std, monkeypatch):
    from lowtide.framework.kernels.cpu.random import philox

    dtype = getattr(lt, name).np
    compiled, plain = np.empty(n, dtype), np.empty(n, dtype)
    philox.normal(compiled, 1 << 63, (1 << 32) - 7, mean, std)
    monkeypatch.setattr(stream, "_compiled", lambda xp, n: False)
    stream.normal(np, plain, Rng(1 << 63, (1 << 32) - 7), mean, std)
    assert np.array_equal(compiled.view(f"u{dtype.itemsize}"), plain.view(f"u{dtype.itemsize}"))


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("int64", -3, 10),
        ("int64", -7, (1 << 32) - 7),
        ("int64", -5, (1 << 32) - 4),
        ("int64", -(1 << 63), 1 << 63),
        ("int64", -(1 << 63), (1 << 63) - 1),
        ("int32", 0, 1 << 31),
        ("uint8", 0, 256),
        ("int8", -128, 128),
        ("bool", 0, 2),
        ("float32", -9, 1 << 24),
    ],
)
@pytest.mark.parametrize("n", [0, 1, 5003])
def test_compiled_integers_equal_plain_integers(dtype, low, high, n, monkeypatch):
    from lowtide.framework.kernels.cpu.random import philox

    compiled, plain = np.empty(n, dtype), np.empty(n, dtype)
    philox.integers(compiled, (1 << 64) - 1, (1 << 32) - 7, low, high - low)
    monkeypatch.setattr(stream, "_compiled", lambda xp, n: False)
    stream.integers(np, plain, Rng((1 << 64) - 1, (1 << 32) - 7), low, high)
    assert np.array_equal(compiled, plain)


@pytest.mark.parametrize("lost", [0, 41])
@pytest.mark.parametrize("n", [1, 2, 3, 64, 65, 3000, 100_001])
def test_compiled_order_is_that_of_a_sort(n, lost):
    from lowtide.framework.kernels.cpu.random import philox

    seed, counter = (1 << 64) - 3, (1 << 32) - 9
    keys = words(2 * n, Rng(seed, counter)).view(np.int64)
    expected = np.argsort(keys)
    if lost and n > 100_000:  # hundreds are equal without the bits that their places take
        assert len(np.unique(keys >> lost)) < n - 300
    out = np.empty(n, np.int64)
    philox.order(out, keys, seed, counter, lost)
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_large_permutations_are_those_of_the_plain_sort(dtype, monkeypatch):
    dtype = getattr(lt, dtype)
    g = lt.Generator().manual_seed(3)
    strided = lt.empty(10_000, 2, dtype=dtype)
    monkeypatch.setattr(stream, "_compiled", lambda xp, n: True)
    a = lt.randperm(10_000, generator=g, dtype=dtype)
    g.manual_seed(3)
    lt.randperm(10_000, generator=g, dtype=dtype, out=strided[:, 0])
    monkeypatch.setattr(stream, "_compiled", lambda xp, n: False)
    b = lt.randperm(10_000, generator=g.manual_seed(3), dtype=dtype)
    assert a.tolist() == b.tolist() == strided[:, 0].tolist()
    assert sorted(a.tolist()) == list(range(10_000))


def test_uniform_depends_on_flat_position_only():
    small, large = np.empty(100, np.float32), np.empty((50, 1000), np.float32)
    stream.uniform(np, small, Rng(4, 9))
    stream.uniform(np, large, Rng(4, 9))
    assert np.array_equal(small, large.ravel()[:100])


@pytest.mark.parametrize("fill", [stream.uniform, stream.normal])
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("compiled", [False, True])
def test_filling_needs_little_memory(fill, dtype, compiled, monkeypatch):
    monkeypatch.setattr(stream, "_compiled", lambda xp, n: compiled)
    out = np.empty(1 << 19, dtype)
    fill(np, out[:4096], Rng(1, 2))
    tracemalloc.start()
    fill(np, out, Rng(1, 2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 66_000


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_uniforms_fill_the_unit_interval_without_its_end(name):
    x = lt.rand(20_000, dtype=getattr(lt, name)).double().array
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.01
    assert abs(x.var() - 1 / 12) < 0.005


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_normals_have_their_moments(name):
    x = lt.randn(40_001, dtype=getattr(lt, name)).double().array
    assert abs(x.mean()) < 0.02
    assert abs(x.std() - 1) < 0.02
    assert abs((x**3).mean()) < 0.06
    assert abs((x**4).mean() - 3) < 0.15


def test_normals_pass_kolmogorov_and_smirnov():
    x = np.sort(lt.randn(20_000, dtype=lt.float64).array)
    cdf = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    distance = np.abs(cdf - np.arange(1, len(x) + 1) / len(x)).max()
    assert distance < 1.95 / math.sqrt(len(x))  # 0.1 % of streams are farther off


def test_complex_normals_have_variance_one():
    x = lt.randn(20_000, dtype=lt.complex64).array
    assert abs((np.abs(x) ** 2).mean() - 1) < 0.03


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-5, 5), (0, 1 << 40), (-(1 << 63), 1 << 63)])
def test_integers_cover_their_range_evenly(low, high):
    out = np.empty(20_000, np.int64)
    stream.integers(np, out, Rng(1, 2), low, high)
    assert out.min() >= low
    assert out.max() < high
    middle = low + (high - low) // 2
    assert abs((out >= middle).mean() - 0.5) < 0.02


def test_draws_start_at_fresh_counters():
    g = lt.Generator().manual_seed(7)
    assert [g.draw(1), g.draw(4), g.draw(5), g.draw(0), g.draw(1)] == [
        Rng(7, 0),
        Rng(7, 1),
        Rng(7, 2),
        Rng(7, 4),
        Rng(7, 4),
    ]


def test_a_seed_repeats_the_stream():
    lt.manual_seed(3)
    first = [lt.rand(5), lt.randn(5), lt.randint(100, (5,)), lt.randperm(5)]
    lt.manual_seed(3)
    again = [lt.rand(5), lt.randn(5), lt.randint(100, (5,)), lt.randperm(5)]
    assert [x.tolist() for x in first] == [x.tolist() for x in again]


def test_state_is_bytes_and_restores_the_stream():
    lt.manual_seed(2**64 - 1)
    lt.rand(9)
    state = lt.get_rng_state()
    a = lt.randn(6).tolist()
    lt.set_rng_state(state)
    expected = [*[255] * 8, 3, *[0] * 7]
    assert (state.dtype, state.tolist(), lt.randn(6).tolist()) == (lt.uint8, expected, a)


FORMS = {
    "as it is": lambda s: s,
    "byte": lambda s: s.byte(),
    "to uint8": lambda s: s.to(lt.uint8),
    "cpu": lambda s: s.cpu().clone(),
    "list": lambda s: lt.tensor(s.tolist(), dtype=lt.uint8),
    "ByteTensor": lambda s: lt.ByteTensor(s.tolist()),
    "numpy": lambda s: lt.from_numpy(s.numpy().copy()),
    "of earlier versions": lambda s: s.view(lt.int64),
}


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("form", FORMS)
def test_a_state_survives_what_programs_do_with_it(form, seed):
    rng = np.random.default_rng(seed)
    g = lt.Generator().manual_seed(int(rng.integers(0, 1 << 63)) * 2 + 1)
    lt.rand(int(rng.integers(1, 2000)), generator=g)
    state = FORMS[form](g.get_state())
    drawn = lt.rand(4, generator=g).tolist()
    again = lt.Generator().set_state(state)
    assert lt.rand(4, generator=again).tolist() == drawn
    assert again.initial_seed() == g.initial_seed()


def test_state_of_another_form_is_refused():
    g = lt.Generator().manual_seed(3)
    state = g.get_state()
    others = [state.to(d) for d in (lt.int8, lt.int16, lt.int64, lt.float32, lt.float64, lt.bool)]
    others += [state[:8], state.reshape(4, 4), lt.zeros(2), state.view(lt.int64).byte()]
    others += [lt.zeros(5056, dtype=lt.uint8)]  # PyTorch's
    for other in others:
        with pytest.raises(RuntimeError, match="set_state takes what get_state returned, 16 bytes"):
            g.set_state(other)
    with pytest.raises(TypeError, match="the tensor that get_state returned; got list"):
        g.set_state([3, 0])
    assert g.get_state().tolist() == state.tolist()


def test_fork_gives_the_stream_back():
    lt.manual_seed(5)
    with lt.fork_rng():
        lt.manual_seed(9)
        lt.rand(100)
    forked = lt.rand(3).tolist()
    lt.manual_seed(5)
    assert lt.rand(3).tolist() == forked


def test_seeds_beyond_64_bits_are_refused():
    with pytest.raises(ValueError, match="64 bits"):
        lt.manual_seed(1 << 64)


def test_negative_seed_means_its_bits():
    assert lt.manual_seed(-1).initial_seed() == 2**64 - 1


def test_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="for generator"):
        lt.rand(3, generator=lt.Generator("cuda"))


def test_generator_survives_pickling():
    g = lt.Generator().manual_seed(3)
    g.draw(10)
    assert pickle.loads(pickle.dumps(g)).draw(1) == g.draw(1)


def test_own_generator_leaves_the_default_alone():
    lt.manual_seed(1)
    lt.rand(4, generator=lt.Generator().manual_seed(2))
    assert lt.get_rng_state().view(lt.int64).tolist() == [1, 0]


def test_meta_draws_leave_the_cpu_alone():
    lt.manual_seed(1)
    lt.randn(100, device="meta").uniform_()
    assert lt.get_rng_state().view(lt.int64).tolist() == [1, 0]


FACTORIES = {
    "rand": lambda d: lt.rand(3, 700, device=d),
    "rand_double": lambda d: lt.rand(1001, dtype=lt.float64, device=d),
    "randn_like": lambda d: lt.randn_like(lt.empty(5, device=d)),
    "randint": lambda d: lt.randint(-5, 1000, (50,), device=d),
    "randperm": lambda d: lt.randperm(31, device=d),
    "bernoulli": lambda d: lt.full((40,), 0.5, device=d).bernoulli(),
    "bernoulli_": lambda d: lt.zeros(4, 5, device=d).bernoulli_(0.3),
    "random_": lambda d: lt.zeros(6, dtype=lt.uint8, device=d).random_(),
    "uniform_": lambda d: lt.zeros(6, device=d).uniform_(-3, 4),
    "exponential_": lambda d: lt.zeros(6, device=d).exponential_(2.0),
    "multinomial": lambda d: lt.multinomial(lt.tensor([0.1, 0.2, 0.7], device=d), 2),
    "replaced": lambda d: lt.multinomial(
        lt.tensor([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]], device=d), 9, replacement=True
    ),
    "normal": lambda d: lt.randn(2, 3, dtype=lt.float16, device=d),
    "poisson": lambda d: lt.poisson(lt.full((5,), 4.0, device=d)),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_devices_draw_alike(name, device):
    make = FACTORIES[name]
    lt.manual_seed(17)
    expected = make("cpu")
    lt.manual_seed(17)
    got = make(device)
    assert (got.shape, got.dtype, got.device) == (expected.shape, expected.dtype, device)
    if backend(device).xp is not None:
        np.testing.assert_allclose(
            got.cpu().double().array, expected.double().array, rtol=1e-5, atol=1e-6
        )


def test_in_place_draws_count_as_writes():
    x = lt.zeros(3)
    x.normal_()
    assert x._version == 1


def test_in_place_draw_refuses_a_leaf_that_requires_grad():
    x = lt.zeros(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.uniform_()
    with lt.no_grad():
        x.uniform_()
    assert x.is_leaf


def test_in_place_draw_reaches_the_base_of_a_strided_view():
    x = lt.zeros(3, 4)
    x.t().normal_()
    assert (x.array != 0).all()


def test_gradient_stops_at_an_overwritten_value():
    x = lt.ones(3, requires_grad=True)
    y = x * 2
    z = y.clone()
    y.uniform_()
    (y + z).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_uniform_stays_below_its_end():
    x = lt.empty(50_000).uniform_(1.0, 1.0000002)
    assert float(x.array.max()) < 1.0000002


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: lt.rand(2, dtype=lt.int64), NotImplementedError, "floating"),
        (lambda: lt.zeros(2, dtype=lt.int64).normal_(), NotImplementedError, "floating"),
        (lambda: lt.zeros(2).uniform_(2, 1), RuntimeError, "from=2"),
        (lambda: lt.zeros(2).normal_(0, -1), RuntimeError, "std >= 0.0"),
        (lambda: lt.zeros(2).exponential_(0), RuntimeError, "lambda > 0"),
        (lambda: lt.randint(5, 5, (2,)), RuntimeError, "less than"),
        (lambda: lt.randint(0, 300, (2,), dtype=lt.uint8), RuntimeError, "out of bounds"),
        (lambda: lt.bernoulli(lt.tensor([1.5])), RuntimeError, "p_in"),
        (lambda: lt.zeros(2).bernoulli_(2), RuntimeError, r"\[0, 1\]"),
        (lambda: lt.multinomial(lt.zeros(2), 1), RuntimeError, "sum of probabilities"),
        (lambda: lt.multinomial(lt.tensor([-1.0, 2]), 1), RuntimeError, "element < 0"),
        (lambda: lt.multinomial(lt.ones(2), 3), RuntimeError, "without replacement"),
        (lambda: lt.multinomial(lt.ones(2), 0), RuntimeError, "n_sample <= 0"),
        (lambda: lt.normal(0.0, -1.0, (2,)), RuntimeError, "std"),
        (lambda: lt.normal(0.0, 1.0), TypeError, "size"),
        (lambda: lt.poisson(lt.tensor([-1.0])), RuntimeError, "Poisson"),
    ],
)
def test_impossible_draws_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_multinomial_follows_its_weights():
    drawn = lt.multinomial(lt.tensor([1.0, 2.0, 0.0, 7.0]), 20_000, replacement=True).array
    share = np.bincount(drawn, minlength=4) / 20_000
    assert share[2] == 0
    np.testing.assert_allclose(share, [0.1, 0.2, 0.0, 0.7], atol=0.02)


def test_multinomial_without_replacement_draws_each_once():
    drawn = lt.multinomial(lt.ones(6, 9), 9).array
    assert all(sorted(row) == list(range(9)) for row in drawn.tolist())


def test_permutation_has_every_number_once():
    assert sorted(lt.randperm(1000).tolist()) == list(range(1000))


def test_normal_takes_tensors_of_means_and_deviations():
    x = lt.normal(lt.tensor([100.0, -100.0]), lt.tensor([0.0, 1.0]))
    assert x.tolist()[0] == 100
    assert abs(x.tolist()[1] + 100) < 10


def test_importing_lowtide_compiles_nothing():
    import subprocess

    code = (
        f"import lowtide, sys; assert 'numba' not in sys.modules and {KERNELS!r} not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fork_also_gives_back_the_stream_of_a_device_met_inside():
    lt.manual_seed(5)
    expected = generators.Generator("cpu").manual_seed(5).get_state().tolist()
    known = generators._generators.pop(lt.device("sim"), None)
    try:
        with lt.random.fork_rng():
            lt.manual_seed(9)
            generators.generator_of(lt.device("sim")).draw(100)
        assert lt.get_rng_state("sim").tolist() == expected
    finally:
        if known is not None:
            generators._generators[lt.device("sim")] = known


def test_the_namespace_random_has_pytorchs_names():
    state = lt.random.get_rng_state()
    drawn = lt.rand(3).tolist()
    lt.random.set_rng_state(state)
    assert lt.rand(3).tolist() == drawn
    assert lt.random.manual_seed(3) is lt.random.default_generator
    assert lt.random.initial_seed() == 3


def test_random_integers_refuse_complex_dtypes():
    with pytest.raises(NotImplementedError, match="not implemented for lowtide.complex64"):
        lt.randint(0, 3, (2,), dtype=lt.complex64)


@pytest.mark.parametrize("n", [1, 4, 10, 11, 38])
def test_a_draw_without_replacement_is_a_race_of_exponential_times(n):
    weights = np.random.default_rng(0).random((3, 40))
    weights[:, ::20] = 0  # these never arrive
    picked = lt.multinomial(lt.tensor(weights), n, generator=lt.Generator().manual_seed(8))
    noise = np.empty((3, 40))
    stream.uniform(np, noise, Rng(8, 0))
    with np.errstate(divide="ignore"):
        arrivals = -np.log1p(-noise) / weights
    assert picked.tolist() == np.argsort(arrivals, axis=1)[:, :n].tolist()


def test_more_draws_than_weights_above_zero_pick_each_index_once():
    picked = lt.multinomial(lt.tensor([0.0] * 37 + [1.0, 2.0, 3.0]), 8).tolist()
    assert sorted(picked[:3]) == [37, 38, 39]
    assert len(set(picked)) == 8
