"""On the CPU, autocast gives PyTorch's result types; the scaler its scales."""

from __future__ import annotations

import numpy as np
import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


def inputs(lib, dtype):
    """Named tensors for the calls below."""
    rng = np.random.default_rng(0)
    shapes = {"m": (4, 4), "v": (4,), "b": (2, 4, 4), "i": (1, 2, 6, 6), "k": (2, 2, 3, 3)}
    made = {n: lib.tensor(rng.random(s).astype("f4")).to(dtype) for n, s in shapes.items()}
    made["t"] = lib.tensor([0, 1, 2, 3])
    return made


CALLS = {
    "matmul": lambda lib, F, x: x["m"] @ x["m"],
    "mm": lambda lib, F, x: lib.mm(x["m"], x["m"]),
    "matmul with a vector": lambda lib, F, x: lib.matmul(x["m"], x["v"]),
    "bmm": lambda lib, F, x: lib.bmm(x["b"], x["b"]),
    "addmm": lambda lib, F, x: lib.addmm(x["m"], x["m"], x["m"]),
    "baddbmm": lambda lib, F, x: lib.baddbmm(x["b"], x["b"], x["b"]),
    "linear": lambda lib, F, x: F.linear(x["m"], x["m"], x["v"]),
    "conv2d": lambda lib, F, x: F.conv2d(x["i"], x["k"]),
    "conv_transpose2d": lambda lib, F, x: F.conv_transpose2d(x["i"], x["k"]),
    "prelu": lambda lib, F, x: F.prelu(x["m"], x["v"]),
    "attention": lambda lib, F, x: F.scaled_dot_product_attention(x["b"], x["b"], x["b"]),
    "einsum": lambda lib, F, x: lib.einsum("ij,jk->ik", x["m"], x["m"]),
    "relu": lambda lib, F, x: F.relu(x["m"]),
    "softmax": lambda lib, F, x: F.softmax(x["m"], -1),
    "log_softmax": lambda lib, F, x: F.log_softmax(x["m"], -1),
    "layer_norm": lambda lib, F, x: F.layer_norm(x["m"], (4,)),
    "group_norm": lambda lib, F, x: F.group_norm(x["i"], 2),
    "max_pool2d": lambda lib, F, x: F.max_pool2d(x["i"], 2),
    "exp": lambda lib, F, x: lib.exp(x["m"]),
    "sum": lambda lib, F, x: x["m"].sum(),
    "mean": lambda lib, F, x: x["m"].mean(),
    "prod": lambda lib, F, x: x["v"].prod(),
    "add": lambda lib, F, x: x["m"] + x["m"],
    "affine_grid": lambda lib, F, x: F.affine_grid(x["b"][:1, :2, :3], (1, 1, 2, 2), False),
    "grid_sample": lambda lib, F, x: F.grid_sample(x["i"], x["i"][..., :2], align_corners=False),
    "cdist": lambda lib, F, x: lib.cdist(x["m"], x["m"]),
    "quantile": lambda lib, F, x: x["v"].quantile(0.5),
    "inverse": lambda lib, F, x: lib.linalg.inv(x["m"]),
    "svdvals": lambda lib, F, x: lib.linalg.svdvals(x["m"]),
    "qr": lambda lib, F, x: lib.linalg.qr(x["m"])[0],
    "mse_loss": lambda lib, F, x: F.mse_loss(x["m"], x["m"]),
    "l1_loss": lambda lib, F, x: F.l1_loss(x["m"], x["m"]),
    "smooth_l1_loss": lambda lib, F, x: F.smooth_l1_loss(x["m"], x["m"]),
    "huber_loss": lambda lib, F, x: F.huber_loss(x["m"], x["m"]),
    "cross_entropy": lambda lib, F, x: F.cross_entropy(x["m"], x["t"]),
    "linear_cross_entropy": lambda lib, F, x: F.linear_cross_entropy(x["m"], x["m"], x["t"]),
    "nll_loss": lambda lib, F, x: F.nll_loss(x["m"], x["t"]),
    "kl_div": lambda lib, F, x: F.kl_div(x["m"], x["m"], reduction="sum"),
    "binary_cross_entropy": lambda lib, F, x: F.binary_cross_entropy(x["m"], x["m"]),
    "with_logits": lambda lib, F, x: F.binary_cross_entropy_with_logits(x["m"], x["m"]),
    "poisson_nll_loss": lambda lib, F, x: F.poisson_nll_loss(x["m"], x["m"]),
    "soft_margin_loss": lambda lib, F, x: F.soft_margin_loss(x["m"], x["m"]),
    "hinge": lambda lib, F, x: F.hinge_embedding_loss(x["m"], x["m"].sign()),
    "triplet": lambda lib, F, x: F.triplet_margin_loss(x["m"], x["m"], x["m"]),
    "multi_margin": lambda lib, F, x: F.multi_margin_loss(x["m"], x["t"]),
    "cosine_embedding": lambda lib, F, x: F.cosine_embedding_loss(x["m"], x["m"], x["v"].sign()),
    "margin_ranking": lambda lib, F, x: F.margin_ranking_loss(x["v"], x["v"], x["v"]),
}


def result(lib, name, dtype, cast):
    """The dtype that a call gives in a region, or the kind of error."""
    x = inputs(lib, getattr(lib, dtype))
    with lib.autocast("cpu", dtype=getattr(lib, cast)):
        try:
            return str(CALLS[name](lib, lib.nn.functional, x).dtype).partition(".")[2]
        except (RuntimeError, NotImplementedError) as error:
            return type(error).__name__


@pytest.mark.parametrize("cast", ["bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_result_types_on_the_cpu(name, dtype, cast):
    assert result(lt, name, dtype, cast) == result(torch, name, dtype, cast)


def test_the_scaler_goes_through_the_same_scales():
    rng = np.random.default_rng(0)
    infinite = rng.random(60) < 0.2
    scales = []
    for lib in (lt, torch):
        p = lib.zeros(3, requires_grad=True)
        optimizer = lib.optim.SGD([p], lr=0.1)
        scaler = lib.amp.GradScaler(
            "cpu", init_scale=1000.0, growth_interval=3, growth_factor=1.7, backoff_factor=0.3
        )
        found = []
        for bad in infinite:
            optimizer.zero_grad()
            scaler.scale((p * (float("inf") if bad else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            found.append((scaler.get_scale(), p.detach().tolist()))
        scales.append(found)
    assert [s for s, _ in scales[0]] == [s for s, _ in scales[1]]
    np.testing.assert_allclose(scales[0][-1][1], scales[1][-1][1], rtol=1e-6)
    assert len({s for s, _ in scales[0]}) > 10
