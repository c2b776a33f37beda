"""The programs that are run at edge values, beside PyTorch's elementwise catalogue.

A program is an expression of ``T`` (the framework), ``F`` (its nn.functional), its arguments, and
of what ``edge_values.run`` calls ``none``, ``cls``, ``second``, ``above`` and ``logits``.
"""

from __future__ import annotations

from typing import NamedTuple


class Program(NamedTuple):
    """An expression and what it is run on."""

    code: str
    names: str = "x"  # its arguments, each a letter
    rows: int = 1  # above 1: each argument is a matrix with that many columns
    within: dict[str, tuple[float, float]] | None = None  # the range an argument may be in


def _of(text: str, **options) -> list[tuple[str, Program]]:
    """Read lines of ``op: expression``."""
    pairs = [line.split(": ", 1) for line in text.strip().splitlines()]
    return [(name.strip(), Program(code.strip(), **options)) for name, code in pairs]


_UNARY = """
nn.functional.elu: F.elu(x, 0.7)
nn.functional.celu: F.celu(x, 1.3)
nn.functional.selu: F.selu(x)
nn.functional.silu: F.silu(x)
nn.functional.gelu: F.gelu(x)
nn.functional.gelu: F.gelu(x, approximate="tanh")
nn.functional.glu: F.glu(T.stack([x, x], 1), 1)
nn.functional.hardshrink: F.hardshrink(x, 0.5)
nn.functional.hardsigmoid: F.hardsigmoid(x)
nn.functional.hardswish: F.hardswish(x)
nn.functional.hardtanh: F.hardtanh(x, -1.0, 1.0)
nn.functional.leaky_relu: F.leaky_relu(x, 0.1)
nn.functional.leaky_relu: F.leaky_relu(x, -0.5)
nn.functional.leaky_relu: F.leaky_relu(x, 0.0)
nn.functional.logsigmoid: F.logsigmoid(x)
nn.functional.mish: F.mish(x)
nn.functional.relu: F.relu(x)
nn.functional.relu6: F.relu6(x)
nn.functional.rrelu: F.rrelu(x, 0.1, 0.3, training=False)
nn.functional.softplus: F.softplus(x, 1.0, 20.0)
nn.functional.softplus: F.softplus(x, 2.0, 6.0)
nn.functional.softshrink: F.softshrink(x, 0.5)
nn.functional.softsign: F.softsign(x)
nn.functional.tanhshrink: F.tanhshrink(x)
nn.functional.threshold: F.threshold(x, 0.5, 2.0)
clamp: T.clamp(x, -1.0, 2.0)
clamp: T.clamp(x, min=0.0)
clamp: T.clamp(x, max=0.5)
clamp: T.clamp(x, min=float("nan"))
clamp: T.clamp(x, 2.0, -1.0)
pow: x ** 2
pow: x ** 3
pow: x ** -1
pow: x ** 0
pow: x ** 0.5
pow: x ** -0.5
pow: x ** 1
pow: x ** 2.5
pow: 2 ** x
pow: 0.0 ** x
nan_to_num: T.nan_to_num(x, 1.0, 2.0, 3.0)
logit: T.logit(x)
logit: T.logit(x, 0.1)
round: T.round(x, decimals=1)
polygamma: T.polygamma(1, x)
polygamma: T.polygamma(2, x)
mvlgamma: T.mvlgamma(x, 1)
remainder: x % 2
fmod: T.fmod(x, 2.0)
lerp: T.lerp(x, T.ones_like(x), 1.0)
lerp: T.lerp(x, T.ones_like(x), 0.5)
lerp: T.lerp(x, T.ones_like(x), 0.25)
large_activations: F.relu(x.repeat(1000))[:64]
large_activations: F.leaky_relu(x.repeat(1000), 0.1)[:64]
large_activations: F.hardtanh(x.repeat(1000))[:64]
large_activations: F.hardsigmoid(x.repeat(1000))[:64]
large_activations: T.clamp(x.repeat(1000), -1.0, 2.0)[:64]
large_activations: T.abs(x.repeat(1000))[:64]
large_activations: F.softshrink(x.repeat(1000))[:64]
large_activations: F.hardshrink(x.repeat(1000))[:64]
large_activations: F.threshold(x.repeat(1000), 0.5, 2.0)[:64]
large_activations: F.elu(x.repeat(1000))[:64]
large_activations: T.sigmoid(x.repeat(1000))[:64]
large_activations: F.hardswish(x.repeat(1000))[:64]
"""
_BINARY = """
nn.functional.glu: F.glu(T.stack([x, y], 1), 1)
nn.functional.prelu: F.prelu(x.unsqueeze(1), y[:1])
maximum: T.maximum(x, y)
minimum: T.minimum(x, y)
clamp: T.clamp(x, min=y)
clamp: T.clamp(x, max=y)
clamp: T.clamp(x, y, y)
where: T.where(x > y, x, y)
lerp: T.lerp(x, y, 0.25)
lerp: T.lerp(x, y, 0.5)
lerp: T.lerp(x, y, 1.0)
pow: T.pow(x, y)
complex_abs: T.complex(x, y).abs()
nn.functional.l1_loss: F.l1_loss(x, y, reduction=none)
nn.functional.mse_loss: F.mse_loss(x, y, reduction=none)
nn.functional.huber_loss: F.huber_loss(x, y, reduction=none, delta=0.5)
nn.functional.smooth_l1_loss: F.smooth_l1_loss(x, y, reduction=none, beta=0.5)
nn.functional.smooth_l1_loss: F.smooth_l1_loss(x, y, reduction=none, beta=0.0)
nn.functional.soft_margin_loss: F.soft_margin_loss(x, y.detach(), reduction=none)
nn.functional.hinge_embedding_loss: F.hinge_embedding_loss(x, y.detach(), reduction=none)
nn.functional.kl_div: F.kl_div(x, y, reduction=none)
nn.functional.kl_div: F.kl_div(x, y, reduction=none, log_target=True)
nn.functional.poisson_nll_loss: F.poisson_nll_loss(x, y.detach(), reduction=none)
nn.functional.poisson_nll_loss: F.poisson_nll_loss(x, y.detach(), log_input=False, reduction=none)
nn.functional.poisson_nll_loss: F.poisson_nll_loss(x, y.detach(), full=True, reduction=none)
nn.functional.binary_cross_entropy_with_logits: logits(x, y, reduction=none)
"""
_UNIT = """
nn.functional.binary_cross_entropy: F.binary_cross_entropy(x, y.detach(), reduction=none)
nn.functional.binary_cross_entropy: F.binary_cross_entropy(x, y, reduction=none)
"""
_TERNARY = """
addcmul: T.addcmul(x, y, z, value=0.5)
addcdiv: T.addcdiv(x, y, z, value=0.5)
lerp: T.lerp(x, y, z)
clamp: T.clamp(x, y, z)
where: T.where(x > 0, y, z)
nn.functional.margin_ranking_loss: F.margin_ranking_loss(x, y, z.detach(), reduction=none)
"""
_VARIANCE = """
nn.functional.gaussian_nll_loss: F.gaussian_nll_loss(x, y.detach(), z, reduction=none)
"""
_ROWS = """
logsumexp: T.logsumexp(x, 1)
softmax: T.softmax(x, 1)
log_softmax: T.log_softmax(x, 1)
nn.functional.softmin: F.softmin(x, 1)
sum: x.sum(1)
mean: x.mean(1)
nansum: x.nansum(1)
nanmean: x.nanmean(1)
prod: x.prod(1)
amax: x.amax(1)
amin: x.amin(1)
aminmax: tuple(T.aminmax(x, dim=1))
max: tuple(x.max(1))
min: tuple(x.min(1))
argmax: x.argmax(1)
argmin: x.argmin(1)
median: x.median(1).values
nanmedian: x.nanmedian(1).values
mode: x.mode(1).values
sort: tuple(x.sort(1, stable=True))
kthvalue: x.kthvalue(2, 1).values
topk: x.topk(2, 1).values
quantile: x.quantile(0.4, 1)
nanquantile: x.nanquantile(0.4, 1)
cumsum: x.cumsum(1)
cumprod: x.cumprod(1)
cummax: tuple(x.cummax(1))
cummin: tuple(x.cummin(1))
logcumsumexp: x.logcumsumexp(1)
var: x.var(1)
std: x.std(1)
var_mean: T.var_mean(x, 1)
norm: T.linalg.vector_norm(x, 2, 1)
norm: T.linalg.vector_norm(x, 1, 1)
norm: T.linalg.vector_norm(x, 0, 1)
norm: T.linalg.vector_norm(x, 3, 1)
norm: T.linalg.vector_norm(x, 0.5, 1)
norm: T.linalg.vector_norm(x, float("inf"), 1)
norm: T.linalg.vector_norm(x, -float("inf"), 1)
norm: T.norm(x, 2, 1)
count_nonzero: T.count_nonzero(x, 1)
all: x.all(1)
any: x.any(1)
dist: T.linalg.vector_norm(x - 1, 2, 1)
diff: T.diff(x, dim=1)
nn.functional.normalize: F.normalize(x, dim=1)
nn.functional.layer_norm: F.layer_norm(x, (x.shape[1],))
nn.functional.rms_norm: F.rms_norm(x, (x.shape[1],))
nn.functional.max_pool1d: F.max_pool1d(x, 2, 1)
nn.functional.avg_pool1d: F.avg_pool1d(x, 2, 1)
nn.functional.lp_pool1d: F.lp_pool1d(x, 2, 2, 1)
nn.functional.adaptive_max_pool1d: F.adaptive_max_pool1d(x, 1)
nn.functional.cross_entropy: F.cross_entropy(x, cls, reduction=none)
nn.functional.cross_entropy: F.cross_entropy(x, cls, reduction=none, label_smoothing=0.1)
nn.functional.nll_loss: F.nll_loss(x, cls, reduction=none)
nn.functional.multi_margin_loss: F.multi_margin_loss(x, cls, reduction=none)
nn.functional.multilabel_margin_loss: F.multilabel_margin_loss(x, second, reduction=none)
nn.functional.multilabel_soft_margin_loss: F.multilabel_soft_margin_loss(x, above, reduction=none)
"""
_TWO_ROWS = """
nn.functional.cross_entropy: F.cross_entropy(x, y.detach(), reduction=none)
nn.functional.cosine_similarity: F.cosine_similarity(x, y)
nn.functional.pairwise_distance: F.pairwise_distance(x, y)
nn.functional.cosine_embedding_loss: F.cosine_embedding_loss(x, y, cls, reduction=none)
nn.functional.triplet_margin_loss: F.triplet_margin_loss(x, y, y * 0.5, reduction=none)
"""
_GRID = (
    "F.grid_sample(T.arange(1, 7, dtype=x.dtype).reshape(1, 1, 2, 3), x[None, None], "
    "mode={m!r}, padding_mode={p!r}, align_corners={c})[0, 0, 0]"
)

PROGRAMS: list[tuple[str, Program]] = [
    *_of(_UNARY),
    *_of(_BINARY, names="xy"),
    *_of(_UNIT, names="xy", within={"x": (0, 1), "y": (0, 1)}),
    *_of(_TERNARY, names="xyz"),
    *_of(_VARIANCE, names="xyz", within={"z": (0, float("inf"))}),
    *_of(_ROWS, rows=2),
    *_of(_ROWS, rows=3),
    *_of(_TWO_ROWS, names="xy", rows=2),
    *(
        ("nn.functional.grid_sample", Program(_GRID.format(m=m, p=p, c=c), rows=2, within=within))
        for m in ("bilinear", "nearest", "bicubic")
        for p in ("zeros", "border", "reflection")
        for c in (True, False)
        # At others PyTorch reads outside of its memory for the gradient.
        for within in ({"x": (-4, 4)} if (m, p != "zeros") == ("bilinear", True) else None,)
    ),
]
