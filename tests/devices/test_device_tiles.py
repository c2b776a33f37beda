"""On other devices than the host tiles are large: few array calls, and the values of the CPU.

The shapes here are larger than a tile of the host. Some tests make the device's tiles small, so
that a call has several.
"""

import numpy as np
import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.devices.sim import array, backend
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.ops.attention.tiling import Tiling
from lowtide.framework.ops.convolution import routes
from lowtide.framework.ops.registry import OPS
from lowtide.nn import functional as F

SIZES = [1 << 25, 1 << 17, 1 << 13]


@pytest.fixture(params=SIZES, ids="{} bytes".format)
def tile(request, monkeypatch):
    def forget():
        routes.route.cache_clear()
        for op in OPS.values():
            op.plans.clear()

    monkeypatch.setattr(thresholds, "TILE_BYTES_ELSEWHERE", request.param)
    forget()
    yield request.param
    monkeypatch.undo()
    forget()


@pytest.fixture
def calls(monkeypatch):
    """Count array calls on sim: each wraps what NumPy returned."""
    count = [0]
    lift = array.lift

    def counted(*given):
        count[0] += 1
        return lift(*given)

    monkeypatch.setattr(array, "lift", counted)
    monkeypatch.setattr(backend, "lift", counted)
    return count


def numbers(*shape, seed=0):
    values = np.random.default_rng((*shape, seed)).standard_normal(shape)
    return lt.tensor(values)


def compare(function, *given):
    """Assert that sim gives the values and gradients of the CPU, in float64."""
    found = []
    for where in ("cpu", "sim"):
        leaves = [t.detach().to(where).requires_grad_(t.is_floating_point()) for t in given]
        lt.manual_seed(7)
        out = function(*leaves)
        out.backward(numbers(*out.shape, seed=9).to(where))
        results = [out.detach(), *[t.grad for t in leaves if t.grad is not None]]
        found.append([t.cpu().numpy() for t in results])
    for expected, actual in zip(*found, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.quick(10)
@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("how", ["plain", "causal", "hidden", "added", "dropout", "dropped causal"])
def test_attention_equals_that_of_the_cpu(how, shared, tile):
    rows, columns = (150, 150) if "causal" in how else (141, 75)
    q = numbers(5, 6, rows, 8)
    k, v = (numbers(5, 6 // shared, columns, n, seed=n) for n in (8, 7))
    options = {"is_causal": "causal" in how, "enable_gqa": shared > 1}
    options["dropout_p"] = 0.3 if "drop" in how else 0.0
    if how == "hidden":
        seen = (numbers(5, 1, rows, columns) > -0.5).bool()
        compare(
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, **options), q, k, v, seen
        )
    elif how == "added":
        for shape in ((6, 1, columns), (5, 1, rows, columns), (rows, columns)):
            compare(
                lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, **options),
                q,
                k,
                v,
                numbers(*shape, seed=3),
            )
    else:
        compare(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), q, k, v)


@pytest.mark.quick(6)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(3000, 30), (40, 5, 90), (3, 7000), (70000, 2)])
def test_cross_entropy_equals_that_of_the_cpu(shape, smoothing, tile):
    x, w = numbers(*shape), numbers(shape[1], seed=2).abs()
    classes = np.random.default_rng(1).integers(0, shape[1], (shape[0], *shape[2:]))
    t = lt.tensor(classes)
    for weight in ([], [w]):
        compare(
            lambda x, t, *w: F.cross_entropy(
                x,
                t,
                *[a.detach() for a in w],
                reduction="none",
                ignore_index=1,
                label_smoothing=smoothing,
            ),
            x,
            t,
            *weight,
        )


@pytest.mark.deep
@pytest.mark.parametrize(
    ("groups", "stride", "padding", "dilation"), [(1, 1, 1, 1), (2, 2, 0, 1), (1, 1, 2, 3)]
)
def test_convolution_equals_that_of_the_cpu(groups, stride, padding, dilation, tile):
    x, w, b = numbers(9, 8, 31, 33), numbers(6, 8 // groups, 3, 3), numbers(6)
    compare(lambda x, w, b: F.conv2d(x, w, b, stride, padding, dilation, groups), x, w, b)


def picked(x, i):
    return F.embedding_bag(i % x.shape[0], x, mode="mean")


OTHERS = {
    "cdist": lambda x, y, i: lt.cdist(x, y),
    "bilinear": lambda x, y, i: F.bilinear(x, y.flip(0), y[:5, :, None] * x[0]),
    "bag": lambda x, y, i: picked(x, i),
    "weighted bag": lambda x, y, i: F.embedding_bag(
        i % x.shape[0], x, per_sample_weights=y.new_ones(i.shape), mode="sum"
    ),
    "tril": lambda x, y, i: (x @ y.mT).tril(-3) + (x @ y.mT).triu(7),
    "few lines": lambda x, y, i: x[:9].tril(2) - x[:9].triu(1),
    "masked": lambda x, y, i: x.masked_scatter(x > 0, y),
    "dropout": lambda x, y, i: F.dropout(x, 0.4) + F.alpha_dropout(y, 0.3),
    "channels": lambda x, y, i: F.dropout2d(x[:, :, None, None], 0.4),
    "rrelu": lambda x, y, i: F.rrelu(x, 0.1, 0.4, training=True),
    "nll": lambda x, y, i: F.nll_loss(x, i[:, 0] % x.shape[1]),
    "labels": lambda x, y, i: F.multilabel_margin_loss(x, i[:, :1].expand(x.shape) % x.shape[1]),
    "linear": lambda x, y, i: F.linear_cross_entropy(x, y, i[:, 0] % y.shape[0]),
    "sparse": lambda x, y, i: lt.sparse.mm((x > 1).double().detach().to_sparse(), y[:20] * 2),
    "ramp": lambda x, y, i: x * lt.arange(x.numel(), device=x.device).view(x.shape),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_ops_equal_those_of_the_cpu(name, tile):
    x, y = numbers(900, 20), numbers(900, 20, seed=1)
    i = lt.tensor(np.random.default_rng(2).integers(0, 5000, (900, 11)))
    compare(OTHERS[name], x, y, i)


def test_a_tile_of_attention_has_all_examples_and_heads_that_fit():
    shape = (8, 6, 256, 64)
    (only,) = Tiling(shape, shape, True, 4, host=False)
    assert only == (slice(0, 8), slice(0, 6), slice(0, 256), 256)
    large = Tiling((64, 6, 256, 64), (64, 6, 256, 64), True, 4, host=False)
    assert large.elements * 4 <= thresholds.TILE_BYTES_ELSEWHERE
    assert len(list(large)) == 4
    small = Tiling((2, 1, 3, 4), (2, 1, 3, 4), False, 4, host=False)
    assert small.elements == 2 * 3 * 3, "no more than the scores"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.into, self.back = nn.LayerNorm(48), nn.Linear(48, 144), nn.Linear(48, 48)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (a.view(n, t, 6, 8).transpose(1, 2) for a in self.into(self.norm(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.back(y.transpose(1, 2).reshape(n, t, c))


def gpt():
    model = nn.Sequential(nn.Embedding(3000, 48), Block(), Block(), nn.Linear(48, 3000))
    tokens = lt.tensor(np.random.default_rng(0).integers(0, 3000, (8, 129)))
    return model, tokens[:, :-1], tokens[:, 1:].reshape(-1)


def conv_net():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    return model, lt.randn(64, 3, 32, 32), lt.arange(64) % 10


@pytest.mark.parametrize(("net", "most"), [(gpt, 550), (conv_net, 1510)])
def test_a_training_step_makes_few_array_calls(net, most, calls):
    model, x, t = net()
    model, x, t = model.to("sim"), x.to("sim"), t.to("sim")

    def step():
        out = model(x)
        F.cross_entropy(out.view(-1, out.shape[-1]), t).backward()

    step()
    calls[0] = 0
    step()
    assert 0 < calls[0] <= most
