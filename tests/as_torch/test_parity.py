"""The same code with PyTorch and with lowtide in its place, in processes of their own."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.as_torch.running import answers, printed

pytestmark = pytest.mark.parity

FILLED = """
import torch
import numpy as np
from torch import nn

def filled(model):
    # the same values in both: not random
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            n = torch.arange(p.numel(), dtype=torch.float64)
            p.copy_((torch.sin(n * 0.7 + i) * 0.3).reshape(p.shape))
    return model

def trained(model, loss_of, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for _ in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found

def wave(*shape):
    n = torch.arange(int(np.prod(shape)), dtype=torch.float64)
    return torch.cos(n * 0.37).reshape(shape).float()
"""

PROGRAMS = {
    "scaled_mm": """
        E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
        a, b = wave(16, 32).to(E4), wave(48, 32).to(E5).t()
        one, rows, columns = torch.tensor(0.5), wave(16, 1) + 2, wave(1, 48) + 2
        found = [torch._scaled_mm(a, b, one, one, out_dtype=torch.float32),
                 torch._scaled_mm(a, b, one[None], one, wave(48), out_dtype=torch.float32),
                 torch._scaled_mm(a, b, rows, columns, out_dtype=torch.float32),
                 torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True),
                 torch._scaled_mm(a, a.t(), one, one, scale_result=one * 0.25, out_dtype=E5)]
        out = torch.empty(16, 48)
        same = torch._scaled_mm(a, b, one, one, out_dtype=torch.float32, out=out) is out
        def refused(*args):
            try:
                torch._scaled_mm(*args)
            except Exception as error:
                return type(error).__name__
        result = [[str(t.dtype).split(".")[1], t.float().flatten()[::7].tolist()] for t in found]
        # PyTorch's type of this error depends on the processor: ValueError without AVX-512.
        floats = refused(a.float(), b.float(), one, one) in ("RuntimeError", "ValueError")
        result += [same, str(torch._scaled_mm(a, b, one, one).dtype).split(".")[1],
            floats, refused(a, b[:9], one, one), refused(a, b),
            refused(a[None], b, one, one), refused(a, b, rows[:3], columns),
            [str(torch.hash_tensor(wave(3, 4), 1).tolist()), torch.finfo(E4).max]]
        """,
    "native": """
        x, c = wave(2, 4, 3), torch.ones(4)
        w, b, mean, var = c * 2, c - 1.5, c * 0, c + 0
        found = [*torch.native_layer_norm(x, [3], None, None, 1e-5),
                 *torch.native_batch_norm(x, w, b, mean, var, True, 0.1, 1e-5), mean, var,
                 *torch.native_batch_norm(x, w, b, mean, var, False, 0.1, 1e-5),
                 torch.native_batch_norm(x.bfloat16(), None, None, None, None, True, .1, .1)[1],
                 *torch.native_group_norm(x, w, b, 2, 4, 3, 2, 1e-5),
                 *torch.native_dropout(x, 0.5, False),
                 torch.native_channel_shuffle(x[..., None], 2), torch.native_norm(x.to_sparse(), 2)]
        p = torch.tensor([0.0, 1.0])
        found += [torch.binomial(torch.full((3, 1), 7.0), p),
                  torch._sample_dirichlet(x.abs() + 1).sum(-1).round()]
        drawn = [torch._standard_gamma(x + 2, torch.Generator().manual_seed(3)) for _ in "ab"]
        a = torch.full((5,), 4.0, requires_grad=True)
        torch._standard_gamma(a).sum().backward()
        def refused(f, *args):
            try:
                f(*args)
            except Exception as error:
                return type(error).__name__
        of = lambda t: [str(t.dtype).split(".")[1], list(t.shape), t.double().flatten().tolist()]
        result = [of(t) for t in found] + [
            bool((drawn[0] == drawn[1]).all()), bool((a.grad > 0).all()),
            refused(torch.binomial, p.int(), p), refused(torch.binomial, p.double(), p),
            refused(torch.native_group_norm, x, w, b, 2, 4, 4, 2, 1e-5),
            refused(torch._standard_gamma, p.long())]
        """,
    "pytree": """
        from collections import OrderedDict, defaultdict, deque, namedtuple
        from torch.utils import _pytree as tree
        P = namedtuple("P", "x y")
        t = {"b": [1, (2, None)], "a": OrderedDict(z=P(3, 4)), "d": deque([5], 2),
             "e": defaultdict(list, k=6)}
        leaves, spec = tree.tree_flatten(t)
        pairs, _ = tree.tree_flatten_with_path(t)
        result = [leaves, [tree.keystr(p) for p, _ in pairs], spec.num_leaves, spec.num_nodes,
                  spec.num_children, tree.tree_map_only(int, lambda x: -x, t["b"]),
                  tree._broadcast_to_and_flatten([1, 2], tree.tree_structure([1, (2, 3)])),
                  repr(tree.tree_unflatten(leaves, spec)) == repr(t)]
        """,
    "fx": """
        from torch import fx
        import torch.nn.functional as F
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.fc = nn.Conv2d(1, 2, 3), nn.Linear(2, 2)
                self.scale = nn.Parameter(torch.ones(2, 1, 1))
                self.tail = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
            def forward(self, x, *rest, k=2.0, **more):
                y = F.relu(self.conv(x)) * self.scale + k
                a, b = y.chunk(2, dim=1)
                y = torch.cat([b, a], 1).mean((2, 3))
                return {"y": self.fc(self.tail(y)), "n": -y[:, :1], "size": y.shape[0]}
        traced = fx.symbolic_trace(filled(Net()).eval())
        y = traced(wave(2, 1, 5, 5))
        result = [[n.op, n.name, len(n.users), n.target if isinstance(n.target, str) else
                   n.target.__name__] for n in traced.graph.nodes]
        result += [y["y"].tolist(), y["n"].tolist(), y["size"]]
        """,
    "foreach": """
        xs = [wave(3) + 2, wave(2, 2) + 3]
        values = lambda ts: [t.tolist() for t in ts]
        result = [values(getattr(torch, name)(xs)) for name in sorted(dir(torch))
                  if name.startswith("_foreach_") and not name.endswith("_") and name[9:] in
                  "abs sqrt exp log neg reciprocal rsqrt sigmoid sign sin round trunc erf norm "
                  "max frac log1p expm1 powsum".split()]
        for name in ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "clamp_min"):
            f = getattr(torch, f"_foreach_{name}")
            result += [values(f(xs, 2.0)), values(f(xs, [2.0, 3.0])), values(f(xs, xs))]
        result += [values(torch._foreach_addcdiv(xs, xs, xs, 0.5)),
                   values(torch._foreach_lerp(xs, torch._foreach_neg(xs), 0.25))]
        ys = torch._foreach_clone(xs)
        torch._foreach_add_(ys, xs, alpha=3)
        result.append(values(ys))
        """,
    "prune": """
        from torch.nn.utils import prune
        m, other = filled(nn.Linear(4, 6)), filled(nn.Linear(3, 3))
        prune.l1_unstructured(m, "weight", 0.3)
        prune.ln_structured(m, "weight", 1, 2, 0)
        prune.global_unstructured([(other, "weight"), (other, "bias")], prune.L1Unstructured,
                                  amount=0.5)
        m(wave(2, 4)).sum().backward()
        result = [m.weight_mask.tolist(), m.weight.tolist(), m.weight_orig.grad.tolist(),
                  sorted(m.state_dict()), other.weight_mask.tolist(), prune.is_pruned(m)]
        prune.remove(m, "weight")
        result += [m.weight.tolist(), sorted(n for n, _ in m.named_parameters())]
        """,
    "fusion": """
        conv, norm = filled(nn.Conv2d(2, 3, 3)).eval(), filled(nn.BatchNorm2d(3)).eval()
        norm.running_mean.add_(0.5)
        fused = nn.utils.fuse_conv_bn_eval(conv, norm)
        result = [fused.weight.tolist(), fused.bias.tolist()]
        """,
}

PACKAGES = {
    "einops": """
        import einops
        from einops.layers.torch import Rearrange
        x = wave(2, 3, 4)
        result = [Rearrange("a b c -> (a b) c")(x).tolist(),
                  einops.einsum(x, x, "a b c, a d c -> a b d").tolist()]
        """,
    "timm": """
        import timm
        m = filled(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3))
        r = filled(timm.create_model("resnet18", num_classes=3)).eval()
        y = torch.tensor([0, 2])
        result = [trained(m, lambda: nn.functional.cross_entropy(m(wave(2, 3, 32, 32)), y)),
                  r(wave(2, 3, 32, 32)).tolist()]
        """,
    "torchmetrics": """
        import torchmetrics as tm
        p, t = wave(12, 3).softmax(-1), torch.arange(12) % 3
        a, b = wave(20), wave(40)[20:]
        result = []
        for metric in (tm.Accuracy(task="multiclass", num_classes=3),
                       tm.AUROC(task="multiclass", num_classes=3),
                       tm.ConfusionMatrix(task="multiclass", num_classes=3)):
            metric.update(p, t)
            result.append(metric.compute().tolist())
        for metric in (tm.MeanSquaredError(), tm.R2Score(), tm.PearsonCorrCoef()):
            metric.update(a, b)
            result.append(metric.compute().tolist())
        """,
    "pytorch_metric_learning": """
        from pytorch_metric_learning import losses, miners
        e, labels = wave(16, 8), torch.arange(16) % 4
        result = [loss(e, labels).item() for loss in
                  (losses.TripletMarginLoss(), losses.ContrastiveLoss(), losses.NTXentLoss(),
                   losses.SupConLoss(), losses.CircleLoss())]
        """,
    "torchdiffeq": """
        from torchdiffeq import odeint, odeint_adjoint
        class Field(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(2, 2)
            def forward(self, t, y):
                return self.layer(y).tanh()
        m, t = filled(Field()), torch.linspace(0, 1, 5)
        result = [odeint(m, wave(3, 2), t, method=how)[-1].tolist()
                  for how in ("dopri5", "rk4", "midpoint", "bosh3")]
        odeint_adjoint(m, wave(3, 2), t).sum().backward()
        result.append(m.layer.weight.grad.tolist())
        """,
    "gpytorch": """
        import gpytorch
        class Model(gpytorch.models.ExactGP):
            def __init__(self, x, y, likelihood):
                super().__init__(x, y, likelihood)
                self.mean = gpytorch.means.ConstantMean()
                self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            def forward(self, x):
                return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))
        x = torch.linspace(0, 1, 20)
        y = torch.sin(6 * x)
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        model = Model(x, y, likelihood)
        mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        result = [trained(model, lambda: -mll(model(x), y))]
        model.eval(), likelihood.eval()
        with torch.no_grad():
            result.append(likelihood(model(torch.linspace(0, 1, 5))).mean.tolist())
        """,
    "skorch": """
        from skorch import NeuralNetRegressor
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = filled(nn.Linear(4, 1))
            def forward(self, X):
                return self.layer(X)
        X, y = wave(32, 4).numpy(), wave(32, 1).numpy()
        net = NeuralNetRegressor(Model, max_epochs=3, lr=0.1, train_split=None, verbose=0)
        net.fit(X, y)
        result = [net.predict(X).tolist(), net.history[:, "train_loss"]]
        """,
}


NEEDS = {  # of lowtide, to import the package
    "timm": "nn.SyncBatchNorm",
    "gpytorch": "nn.parallel",
    "skorch": "distributions",
}


def alike(a: Any, b: Any, path: str = "") -> None:
    if isinstance(a, list):
        assert isinstance(b, list), path
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            alike(x, y, f"{path}[{i}]")
    elif isinstance(a, float):
        assert b == pytest.approx(a, rel=2e-4, abs=2e-5), path
    else:
        assert a == b, path


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_same(name: str) -> None:
    alike(
        printed(FILLED + _dedented(PROGRAMS[name]), True),
        printed(FILLED + _dedented(PROGRAMS[name]), False),
    )


@pytest.mark.deep
@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_gives_the_same(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install --no-deps {name}")
    needed = NEEDS.get(name)
    if needed and answers("import lowtide as lt", [f"lt.{needed}"])[f"lt.{needed}"][0] != "<":
        pytest.skip(f"{name} imports torch.{needed}, which lowtide does not have")
    alike(
        printed(FILLED + _dedented(PACKAGES[name]), True),
        printed(FILLED + _dedented(PACKAGES[name]), False),
    )


def _dedented(code: str) -> str:
    import textwrap

    return textwrap.dedent(code)


def test_versions_compare_as_pytorchs_do() -> None:
    import torch

    pairs = [("2.13.0+cpu", other) for other in ("2.13", "2.9", "2.13.0", "2.13.1", "2.13.0rc1")]
    questions = [
        f"V({a!r}) {sign} {b!r}" for a, b in pairs for sign in ("<", "<=", "==", ">", "!=")
    ]
    found = answers("from lowtide.as_torch.torch_version import TorchVersion as V", questions)
    expected = {q: eval(q, {"V": torch.torch_version.TorchVersion}) for q in questions}
    assert found == expected
