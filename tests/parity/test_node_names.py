"""Gradient nodes go by PyTorch's names, which users meet in ``repr`` and in errors."""

from __future__ import annotations

import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

PROGRAMS = """
x + y; x - y; x * y; x / y; x**2; x**y; 2.0**x; -x; x.abs(); x.square() * 1; x.reciprocal()
x.sum(); x.sum(1); x.sum(0, keepdim=True); x.mean(); x.mean(1); x.prod(); x.prod(1); x.var()
x.std(); x.max(1).values; x.min(1).values; x.amax(1); T.maximum(x, y); x.cumsum(0); x.logsumexp(1)
x @ y.T; T.mm(x, y.T); T.mv(x, y[0]); T.dot(x[0], y[0]); T.bmm(x[None], y.T[None])
T.addmm(x[:, :4], x, y.T); T.baddbmm(x[None, :, :4], x[None], y.T[None])
x.view(-1); x.reshape(2, 12); x.t(); x.T; x.mT; x.transpose(0, 1); x.swapaxes(0, 1); x.permute(1, 0)
x.expand(3, 4, 6); x.unsqueeze(0); x[None].squeeze(); x.flatten(); x.narrow(1, 1, 2); x.select(0, 1)
x.split(2)[0]; x.chunk(2)[1]; x.unbind()[1]; x.diagonal(); x.movedim(0, 1); x.unfold(1, 2, 1)
x.as_strided((2, 2), (1, 2)); x.clone(); x.T.contiguous(); x.float()
x[0]; x[0:2]; x[:, 1]; x[None]; x[...]; x[T.tensor([0, 1])]; x[x > 0.5]
x.exp(); x.log(); x.sqrt(); x.rsqrt(); x.tanh(); x.sigmoid(); x.erf(); x.sin(); x.cos(); x.relu()
x.clamp(0.2, 0.8); x.clamp(min=0.2); x.clamp(y, y + 1); T.where(x > 0.5, x, y); x.fmod(y); x % 2
x.masked_fill(x > 0.5, 0.0); T.cat([x, y]); T.stack([x, y]); x.tril(); x.triu()
x.gather(1, T.zeros(4, 1, dtype=T.int64)); x.scatter(1, T.zeros(4, 1, dtype=T.int64), y)
x.softmax(1); x.log_softmax(1); F.gelu(x); F.silu(x); F.leaky_relu(x); F.softplus(x)
F.logsigmoid(x); F.conv1d(x[None], y.reshape(2, 4, 3))
F.conv2d(x[None, None], y[None, None, :2, :2])
F.max_pool2d(x[None], 2); F.avg_pool2d(x[None], 2); F.pad(x, (1, 1))
F.batch_norm(x, None, None, training=True); F.layer_norm(x, (6,)); F.group_norm(x, 2)
F.embedding(T.tensor([0, 1]), x); x.norm(); (x * 1).add_(1); (x * 1).mul_(y); (x * 1).fill_(2)
""".replace("\n", ";")


@pytest.mark.parametrize("program", [p.strip() for p in PROGRAMS.split(";") if p.strip()])
def test_a_node_has_the_name_of_pytorch(program):
    names = []
    for T in (torch, lt):
        T.manual_seed(0)
        x, y = (T.rand(4, 6, dtype=T.float64).add_(0.1).requires_grad_() for _ in range(2))
        out = eval(program, {"T": T, "F": T.nn.functional, "x": x, "y": y})
        names.append(out.grad_fn.name())
    assert names[1] == names[0]
