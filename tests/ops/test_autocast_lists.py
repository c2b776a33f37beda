"""Results have the dtypes that PyTorch's lists say: for CUDA on the stand-in device, for the CPU.

Source of the lists: ``AT_FORALL_LOWER_PRECISION_FP`` and its like in PyTorch's
``ATen/autocast_mode.h``. PyTorch itself is compared on the CPU, in ``tests/parity``.
"""

import pytest

import lowtide as lt

F, L = lt.nn.functional, lt.linalg
LABELS = lt.tensor([0, 1, 2, 3], device="sim")
ROWS = lt.zeros(4, 4, dtype=lt.int64, device="sim")
ONES = lt.ones(4, device="sim")


def drawn(*shape):
    return lt.rand(*shape).to("sim") * 0.5 + 0.25


LOW = {  # of tensors of these shapes
    "mm": (lt.mm, (4, 4), (4, 4)),
    "mv": (lt.mv, (4, 4), (4,)),
    "matmul of vectors": (lt.matmul, (4,), (4,)),
    "addmv": (lt.addmv, (4,), (4, 4), (4,)),
    "addr": (lt.addr, (4, 4), (4,), (4,)),
    "bmm": (lt.bmm, (2, 3, 3), (2, 3, 3)),
    "addmm": (lt.addmm, (3, 3), (3, 3), (3, 3)),
    "baddbmm": (lt.baddbmm, (2, 3, 3), (2, 3, 3), (2, 3, 3)),
    "addbmm": (lt.addbmm, (3, 3), (2, 3, 3), (2, 3, 3)),
    "chain_matmul": (lt.chain_matmul, (3, 3), (3, 3)),
    "vecdot": (L.vecdot, (3,), (3,)),
    "linear": (F.linear, (3, 3), (3, 3)),
    "conv2d": (F.conv2d, (1, 2, 4, 4), (2, 2, 3, 3)),
    "prelu": (F.prelu, (3, 3), (1,)),
}
WIDE = {  # of a matrix
    **{
        name: getattr(lt, name)
        for name in "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt".split()
    },
    "sinh": lt.sinh,
    "tan": lt.tan,
    "a power": lambda x: x**2,
    "a power of tensors": lambda x: x**x,
    "a power of a number": lambda x: 2**x,
    "softplus": F.softplus,
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "norm": lt.norm,
    "matrix_norm": L.matrix_norm,
    "nuclear norm": lambda x: L.matrix_norm(x, "nuc"),
    "vector_norm": L.vector_norm,
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "poisson_nll_loss": lambda x: F.poisson_nll_loss(x, x),
    "cosine_embedding_loss": lambda x: F.cosine_embedding_loss(x, x, ONES),
    "nll_loss": lambda x: F.nll_loss(x, LABELS),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS),
    "hinge_embedding_loss": lambda x: F.hinge_embedding_loss(x, ONES),
    "kl_div": lambda x: F.kl_div(x, x, reduction="sum"),
    "l1_loss": lambda x: F.l1_loss(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "huber_loss": lambda x: F.huber_loss(x, x),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "margin_ranking_loss": lambda x: F.margin_ranking_loss(x, x, x),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x, ROWS),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, x),
    "triplet_margin_loss": lambda x: F.triplet_margin_loss(x, x, x),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, LABELS),
    "bce with logits": lambda x: F.binary_cross_entropy_with_logits(x, x),
    "dist": lambda x: lt.dist(x, x),
    "pdist": F.pdist,
    "cdist": lambda x: lt.cdist(x, x),
    "renorm": lambda x: lt.renorm(x, 2, 0, 1.0),
    "logsumexp": lambda x: lt.logsumexp(x, 1),
    **{
        name: lambda x, name=name: getattr(lt, name)(x, 0)
        for name in "prod cumprod cumsum sum softmax log_softmax".split()
    },
    **{
        mode: lambda x, mode=mode: F.interpolate(x[None, None], scale_factor=2, mode=mode)
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")
    },
    "antialias": lambda x: F.interpolate(x[None, None], size=2, mode="bilinear", antialias=True),
    "linear": lambda x: F.interpolate(x[None], scale_factor=2, mode="linear"),
}
WIDEST = {
    "addcdiv": lambda a, b: lt.addcdiv(a, b, b),
    "addcmul": lambda a, b: lt.addcmul(a, b, a),
    "atan2": lt.atan2,
    "bilinear": lambda a, b: F.bilinear(a, a, b[None]),
    "cross": lambda a, b: lt.cross(a[:, :3], b[:, :3], dim=1),
    "dot": lambda a, b: lt.dot(a[0], b[0]),
    "vdot": lambda a, b: lt.vdot(a[0], b[0]),
    "inner": lt.inner,
    "tensordot": lambda a, b: lt.tensordot(a, b, 1),
    "index_put": lambda a, b: a.index_put((LABELS,), b),
    "scatter_add": lambda a, b: a.scatter_add(0, ROWS, b),
    "grid_sample": lambda a, b: F.grid_sample(a[None, None], b.reshape(1, 2, 4, 2)),
}


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("dtype", [lt.float32, lt.float16])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_lower_precision(name, dtype):
    function, *shapes = LOW[name]
    with lt.autocast("sim", dtype=lt.float16):
        assert function(*[drawn(*s).to(dtype) for s in shapes]).dtype is lt.float16


@pytest.mark.parametrize("name", WIDE)
def test_float32(name):
    x = drawn(4, 4).half()
    with lt.autocast("sim", dtype=lt.float16):
        assert WIDE[name](x).dtype is lt.float32


@pytest.mark.parametrize("name", WIDEST)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_widest_dtype_of_the_inputs(name):
    half, single = drawn(4, 4).half(), drawn(4, 4)
    with lt.autocast("sim", dtype=lt.float16):
        assert WIDEST[name](half, half).dtype is lt.float16
        for pair in ((half, single), (single, half), (single, single)):
            assert WIDEST[name](*pair).dtype is lt.float32


WIDE_ON_THE_CPU = {
    "fft": lambda x: lt.fft.ifft(lt.fft.fft(x)).real,
    "rfft": lambda x: lt.fft.irfft(lt.fft.rfft(x)),
    "trace": lt.trace,
    "lstsq": lambda x: L.lstsq(x, x).solution,
    "triangular_solve": lambda x: lt.triangular_solve(x, x)[0],
    "reflect": lambda x: F.pad(x[None], (1, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x[None], (1, 1), mode="replicate"),
    "max_pool3d": lambda x: F.max_pool3d(x[None, None], 1),
}


@pytest.mark.parametrize("name", WIDE_ON_THE_CPU)
def test_what_the_cpu_computes_in_float32(name):
    x = (lt.rand(4, 4) + 4 * lt.eye(4)).bfloat16()
    with lt.autocast("cpu"):
        assert WIDE_ON_THE_CPU[name](x).dtype is lt.float32


def test_products_of_vectors_keep_their_dtype_on_the_cpu():
    x, v = lt.rand(4, 4), lt.rand(4)
    with lt.autocast("cpu"):
        assert (x @ x).dtype is (x @ v).dtype is lt.bfloat16
        for found in (x.mv(v), v.dot(v), lt.vdot(v, v), lt.addmv(v, x, v), lt.addr(x, v, v)):
            assert found.dtype is lt.float32
        assert lt.inner(v, v).dtype is lt.float32
