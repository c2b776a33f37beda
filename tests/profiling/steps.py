"""Steps of training and evaluation, each ready to run again and again; for tests of predictions."""

from __future__ import annotations

import functools
import runpy
from pathlib import Path

import lowtide as lt
from lowtide import nn, optim
from lowtide.nn import functional as F
from lowtide.utils.data import DataLoader, TensorDataset

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
STEPS = {}  # name -> function that makes a step
NEEDS_VALUES = ("lstm of packed", "recipe vowels", "recipe resnet")  # sizes from values


def named(name):
    def keep(make):
        STEPS[name] = make
        return make

    return keep


@functools.cache
def recipe(name):
    return runpy.run_path(str(RECIPES / f"{name}.py"), run_name=name)


def training(model, loss_of, make=optim.SGD, **options):
    optimizer = make(model.parameters(), lr=0.01, **options)

    def step():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.item()

    step.holds = model, optimizer  # for tests that look at them
    return step


def mlp():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 5))


def classified(model, *shape, classes=5, make=optim.SGD, **options):
    x, y = lt.randn(*shape), lt.randint(0, classes, shape[:1])
    return training(model, lambda: F.cross_entropy(model(x), y), make, **options)


def mlp_with(make, **options):
    return lambda: classified(mlp(), 32, 20, make=make, **options)


for kind, given in {
    "SGD": {},
    "SGD momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "RMSprop": {},
    "Adagrad": {},
    "Adafactor": {},
    "NAdam": {},
}.items():
    STEPS[f"mlp, {kind}"] = mlp_with(getattr(optim, kind.split()[0]), **given)


@named("mlp large enough for compiled steps")
def _():
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))
    return classified(model, 128, 64, classes=8, make=optim.AdamW)


@named("cnn with batch norm")
def _():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.LeakyReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    return classified(model, 8, 3, 16, 16, make=optim.Adam)


@named("lstm")
def _():
    lstm, head = nn.LSTM(6, 16, 2, batch_first=True, dropout=0.1), nn.Linear(16, 5)
    model = nn.ModuleList([lstm, head])
    x, y = lt.randn(4, 9, 6), lt.randint(0, 5, (4,))
    return training(model, lambda: F.cross_entropy(head(lstm(x)[0][:, -1]), y), optim.Adam)


@named("lstm of packed sequences")
def _():
    lstm = nn.LSTM(6, 16, batch_first=True)
    x, lengths = lt.randn(3, 9, 6), lt.tensor([4, 9, 2])

    def loss():
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])[0].square().mean()

    return training(lstm, loss)


@named("gru")
def _():
    gru = nn.GRU(6, 16, bidirectional=True)
    x = lt.randn(9, 4, 6)
    return training(gru, lambda: gru(x)[0].square().mean())


@named("embedding bag")
def _():
    model = nn.EmbeddingBag(50, 12, mode="mean")
    x, offsets = lt.randint(0, 50, (30,)), lt.tensor([0, 7, 20])
    return training(model, lambda: model(x, offsets).square().sum(), optim.Adagrad)


@named("multi-head attention")
def _():
    model = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True)
    x = lt.randn(3, 7, 16)
    return training(model, lambda: model(x, x, x)[0].square().mean(), optim.AdamW)


@named("transformer encoder")
def _():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    x = lt.randn(3, 7, 16)
    mask = lt.zeros(3, 7, dtype=lt.bool)
    mask[0, 4:] = True
    return training(model, lambda: model(x, src_key_padding_mask=mask).square().mean(), optim.AdamW)


@named("gradient accumulation")
def _():
    model, x = mlp(), lt.randn(24, 20)
    optimizer = optim.Adam(model.parameters())

    def step():
        for part in x.chunk(3):
            (model(part).square().mean() / 3).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


@named("gradient penalty")
def _():
    model, x = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 1)), lt.randn(16, 20)

    def loss():
        y = x.detach().requires_grad_()
        out = model(y).sum()
        (g,) = lt.autograd.grad(out, y, create_graph=True)
        return out + (g.norm(dim=1) - 1).square().mean()

    return training(model, loss, optim.Adam)


@named("evaluation under no_grad")
def _():
    model, x, y = mlp().eval(), lt.randn(64, 20), lt.randint(0, 5, (64,))

    def step():
        with lt.no_grad():
            return sum(
                (model(a).argmax(1) == b).float().mean().item()
                for a, b in zip(x.split(16), y.split(16), strict=True)
            )

    return step


@named("inference mode")
def _():
    model, x = mlp().eval(), lt.randn(64, 20)

    def step():
        with lt.inference_mode():
            model(x).softmax(1)

    return step


@named("autocast and a gradient scaler")
def _():
    model, x, y = mlp(), lt.randn(32, 20), lt.randint(0, 5, (32,))
    optimizer, scaler = optim.AdamW(model.parameters()), lt.amp.GradScaler("cpu")

    def step():
        optimizer.zero_grad()
        with lt.autocast("cpu", dtype=lt.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


@named("half precision")
def _():
    model = mlp().to(lt.bfloat16)
    x = lt.randn(32, 20, dtype=lt.bfloat16)
    return training(model, lambda: model(x).square().mean(), optim.AdamW)


@named("data loader")
def _():
    data = TensorDataset(lt.randn(50, 20), lt.randint(0, 5, (50,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = mlp()
    optimizer = optim.AdamW(model.parameters())

    def step():
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return step


@named("hooks, saved-tensor hooks and a custom function")
def _():
    class Scaled(lt.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.save_for_backward(x)
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ctx.k + 0 * x, None

    model, x = mlp(), lt.randn(8, 20)
    model[0].register_forward_hook(lambda module, args, out: out.clone())
    model[3].register_full_backward_hook(lambda module, grads, outs: None)
    model[0].weight.register_hook(lambda g: g * 2)

    def loss():
        with lt.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
            hidden = model[0](x)
        return Scaled.apply(model[3](hidden), 3.0).mean()

    return training(model, loss)


@named("in-place writes, views and indexing")
def _():
    w = nn.Parameter(lt.randn(12, 12))
    index, mask = lt.tensor([3, 1, 1]), lt.eye(12, dtype=lt.bool)

    def step():
        x = (w * 2).clone()
        x[2:4] = 1.0
        x.add_(w.T)[:, index].mul(3)
        y = x.masked_fill(mask, 0.0).view(3, 4, 12).transpose(0, 1).contiguous()
        lt.cat([y.relu_().flatten(), x[index].flatten()]).topk(5)[0].sum().backward()
        w.grad = None

    return step


@named("only some parameters")
def _():
    model = mlp()
    model[0].requires_grad_(False)
    x = lt.randn(8, 20)

    def step():
        model(x).sum().backward(inputs=[model[3].bias])
        model[3].bias.grad = None

    return step


# Recipes' models, each as its recipe uses it

RECIPE_MODELS = {}  # name -> function that makes (model, function that makes a loss, optimizer)


def modelled(make):
    RECIPE_MODELS[make.__name__] = make
    return make


@modelled
def autoencoder():
    names = recipe("autoencoder")
    model, x = names["Autoencoder"](4, 4), lt.rand(4, 1, 28, 28)
    return model, lambda: names["bound"](model, x), optim.Adam


@modelled
def chargpt():
    names = recipe("chargpt")
    model = names["GPT"](30, 16, width=20, depth=2, heads=5, dropout=0.1)
    text = lt.randint(0, 30, (400,))

    def loss():
        starts = lt.randint(len(text) - 16, (3,))
        x, y = names["windows"](text, starts, 16)
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    return model, loss, optim.AdamW


@modelled
def deepnet():
    model = recipe("deepnet")["DeepNet"](64, 8, 20, 5, 0.1, "sqrt")
    x, y = lt.randint(0, 256, (8, 1, 8, 8), dtype=lt.uint8), lt.randint(0, 5, (8,))
    return model, lambda: F.cross_entropy(model(x), y), optim.AdamW


@modelled
def diamonds():
    model = recipe("diamonds")["Appraiser"](9, 16)
    x, y = lt.randn(32, 9), lt.randn(32, 1)
    return model, lambda: F.mse_loss(model(x), y), optim.AdamW


@modelled
def digits():
    model = recipe("digits")["Perceptron"](64, 32, 5)
    x, y = lt.randn(16, 64), lt.randint(0, 5, (16,))
    return model, lambda: F.cross_entropy(model(x), y), optim.Adam


@modelled
def fashion():
    model = recipe("fashion")["Net"](4)
    x, y = lt.rand(4, 1, 28, 28), lt.randint(0, 10, (4,))
    return model, lambda: F.cross_entropy(model(x), y), optim.AdamW


@modelled
def resnet():
    names = recipe("resnet")
    model, x, y = names["ResNet"](1, 4), lt.rand(4, 1, 28, 28), lt.randint(0, 10, (4,))
    sgd = functools.partial(optim.SGD, momentum=0.9, nesterov=True)
    return model, lambda: F.cross_entropy(model(names["augment"](x)), y), sgd


@modelled
def sentiment():
    names = recipe("sentiment")
    model = names["Classifier"](names["Encoder"](40, 24, 2, 4), 24)
    x, y = lt.randint(0, 40, (4, 11)), lt.randint(0, 2, (4,))
    return model, lambda: F.cross_entropy(model(x, x != 0), y), optim.AdamW


@modelled
def vowels():
    names = recipe("vowels")
    model = names["Speaker"](12, 8, 9)
    data = names["Spoken"]([lt.randn(n, 12).numpy() for n in (7, 4, 9)], lt.tensor([0, 3, 8]), 0.1)
    loader = DataLoader(data, batch_size=3, collate_fn=names["collate"])

    def loss():
        ((x, lengths, labels),) = loader
        return F.cross_entropy(model(x, lengths), labels)

    return model, loss, optim.Adam


def trains(model, loss_of, make):
    return training(model, loss_of, make)


def evaluates(model, loss_of, make):
    model.eval()

    def step():
        with lt.no_grad():
            return loss_of().item()

    return step


def accumulates(model, loss_of, make):
    optimizer = make(model.parameters(), lr=0.01)

    def step():
        for _ in range(3):
            (loss_of() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def differentiates_twice(model, loss_of, make):
    parameters = list(model.parameters())

    def step():
        gradients = lt.autograd.grad(loss_of(), parameters, create_graph=True)
        sum(g.square().sum() for g in gradients).backward()
        model.zero_grad()

    return step


for _name, _make in RECIPE_MODELS.items():
    for _mode in (trains, evaluates, accumulates, differentiates_twice):
        STEPS[f"recipe {_name} {_mode.__name__}"] = lambda make=_make, mode=_mode: mode(*make())


@named("recipe chargpt writes")
def _():
    model = recipe("chargpt")["GPT"](30, 16, width=20, depth=1, heads=5)
    prompt = lt.zeros(1, 3, dtype=lt.int64)
    return lambda: model.write(prompt, 4)
