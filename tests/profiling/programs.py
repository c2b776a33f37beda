"""Programs that do to memory whatever a program can do; for tests that hold for all of them."""

from __future__ import annotations

import lowtide as lt
from lowtide import nn
from lowtide.nn import functional as F


class Block(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, 2, batch_first=True)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(d) for _ in range(2)])
        self.head = nn.Linear(d, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).mean(1)


def train(model, make, make_optimizer, steps=3, target=None):
    optimizer = make_optimizer(model.parameters())
    for _ in range(steps):
        loss = F.cross_entropy(model(make()), lt.tensor([0, 1, 2]) if target is None else target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def transformer():
    train(Model(), lambda: lt.randn(3, 5, 8), lambda p: lt.optim.AdamW(p, lr=0.01))


def convolutions():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 4),
    )
    train(net, lambda: lt.randn(3, 1, 8, 8), lambda p: lt.optim.SGD(p, lr=0.1, momentum=0.9))
    net.eval()
    with lt.no_grad():
        net(lt.randn(2, 1, 8, 8))


def recurrent():
    net = nn.LSTM(3, 5, num_layers=2, batch_first=True)
    x = lt.randn(2, 7, 3)
    for _ in range(2):
        out, (h, c) = net(x)
        (out.sum() + h.sum() * c.sum()).backward()


def views_and_writes():
    x = lt.randn(6, 4, requires_grad=True)
    y = x * 2.0
    y[1:3] = 5.0
    y.t()[0].mul_(3.0)
    part = y.reshape(2, 12)[:, ::2]
    part.add_(1.0)
    (y.exp() * part.sum()).sum().backward()
    z = lt.zeros(10)
    z[2:4].fill_(1.0)
    z.view(2, 5).transpose(0, 1).contiguous()


def hooks():
    x = lt.randn(5, requires_grad=True)
    y = x * 3.0
    y.register_hook(lambda g: g * 2.0)
    y.retain_grad()
    x.register_post_accumulate_grad_hook(lambda leaf: setattr(leaf, "grad", None))
    net = nn.Linear(5, 2)
    net.register_full_backward_hook(lambda m, gi, go: None)
    net.register_forward_hook(lambda m, args, out: out * 2.0)
    net(y).sum().backward()


def retained():
    x = lt.randn(20, requires_grad=True)
    loss = (x.exp() * x.sin()).sum()
    loss.backward(retain_graph=True)
    loss.backward()


def second_order():
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 1))
    x = lt.randn(3, 4, requires_grad=True)
    (g,) = lt.autograd.grad(net(x).sum(), x, create_graph=True)
    (g * g).sum().backward()


def without_graph():
    net = Model()
    with lt.no_grad():
        a = net(lt.randn(3, 5, 8))
    b = net(lt.randn(3, 5, 8)).detach()
    with lt.inference_mode():
        net(lt.randn(3, 5, 8))
    return a + b


def failures():
    x = lt.randn(4, 4, requires_grad=True)
    y = x.exp()
    for wrong in (lambda: y @ lt.randn(3, 3), lambda: y.sum().backward(lt.ones(7))):
        try:
            wrong()
        except RuntimeError:
            continue
        raise AssertionError("it should have failed")
    y.mul_(2.0)
    try:
        y.sum().backward()
    except RuntimeError:
        return
    raise AssertionError("the value was overwritten")


def accumulation():
    net = nn.Linear(4, 3)
    optimizer = lt.optim.Adagrad(net.parameters())
    for k in range(4):
        F.mse_loss(net(lt.randn(5, 4)), lt.randn(5, 3)).backward()
        if k % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def closures():
    net = nn.Linear(4, 1)
    optimizer = lt.optim.LBFGS(net.parameters(), max_iter=4)
    x, y = lt.randn(9, 4), lt.randn(9, 1)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)


def mixed_precision():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with lt.autocast("cpu", dtype=lt.bfloat16):
        loss = net(lt.randn(3, 4)).float().sum()
    loss.backward()
    half = lt.randn(5).half().requires_grad_()
    (half * half).sum().backward()


class Twice(lt.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * 2.0


def custom_functions():
    x = lt.randn(6, requires_grad=True)
    y = Twice.apply(x.exp())
    with lt.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), lt.tensor):
        z = y.exp().sin()
    (y.sum() + z.sum()).backward()


def libraries_and_conversions():
    x = lt.randn(30, requires_grad=True)
    values, order = x.sort()
    values.unique()
    lt.linalg.svd(lt.randn(4, 3))
    shared = lt.from_numpy(x.detach().numpy())
    (values[order > 3].double().sum() * shared[0]).backward()
    net = nn.Linear(3, 3)
    net.double()
    net.weight.data = lt.zeros(3, 3, dtype=lt.float64)
    net.load_state_dict(nn.Linear(3, 3).double().state_dict())
    lt.zeros(0, 4) + lt.zeros(0, 4)
    lt.empty(3, device="meta") * 2.0


PROGRAMS = [
    transformer,
    convolutions,
    recurrent,
    views_and_writes,
    hooks,
    retained,
    second_order,
    without_graph,
    failures,
    accumulation,
    closures,
    mixed_precision,
    custom_functions,
    libraries_and_conversions,
]
