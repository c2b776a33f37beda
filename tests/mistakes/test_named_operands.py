"""Errors that name what they are about: op and operand, buffer, layer, and the way out."""

import copy
import random

import pytest

import lowtide as lt
from lowtide import nn
from lowtide.framework.ops.registry import OPS
from lowtide.framework.testing import Make, samples
from lowtide.optim.swa_utils import AveragedModel

DRAWN = sorted(n for n, op in OPS.items() if op.samples is not None and not n.startswith("_"))


@pytest.mark.parametrize("name", DRAWN)
def test_values_of_inference_mode_that_backward_needs(name):
    """Drawn operands of every op: it trains, or the error names the op, operand and shape."""
    op, rng = OPS[name], random.Random(name)
    listed = samples(op, Make())
    for inputs, attributes in rng.sample(listed, min(3, len(listed))):
        places = [
            k
            for k, x in enumerate(inputs)
            if isinstance(x, lt.Tensor) and x.layout is lt.strided and x.dtype.is_floating_point
        ]
        if len(places) < 2:
            continue
        frozen = rng.choice(places)
        given = list(inputs)
        with lt.inference_mode():
            given[frozen] = inputs[frozen].clone()
        for k in places:
            if k != frozen:
                given[k] = inputs[k].detach().clone().requires_grad_()
        try:
            op.function(*given, **attributes)
        except (lt.GradientError, NotImplementedError) as error:
            if "Inference tensors" not in str(error):
                continue
            words = str(error)
            assert f"of shape {tuple(given[frozen].shape)} and dtype {given[frozen].dtype}" in words
            assert "backward of " in words
            assert ".clone()" in words
            assert "<" not in words
            given[frozen] = given[frozen].clone()  # the way out
            op.function(*given, **attributes)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda w, t: w * t, "backward of mul reads its other"),
        (lambda w, t: t @ w, "backward of matmul reads its input"),
        (lambda w, t: nn.functional.linear(w, t), "backward of linear reads its weight"),
        (lambda w, t: (w * 1).mul_(t), "backward of mul reads its other"),
        (lambda w, t: Kept.apply(w, t), "backward of KeptBackward reads its saved tensor 1"),
    ],
)
def test_a_table_made_under_inference_mode(call, words):
    with lt.inference_mode():
        table = lt.ones(4, 4).cos()
    w = lt.ones(4, 4, requires_grad=True)
    with pytest.raises(lt.GradientError, match=rf"{words}, of shape \(4, 4\).*clone\(\)"):
        call(w, table)
    call(w, table.clone()).sum().backward()


class Kept(lt.autograd.Function):
    """Keeps both of its inputs."""

    @staticmethod
    def forward(ctx, w, t):
        ctx.save_for_backward(w, t)
        return w * t

    @staticmethod
    def backward(ctx, g):
        _, t = ctx.saved_tensors
        return g * t, None


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_an_average_names_what_only_one_side_has(seed, use_buffers):
    rng = random.Random(seed)
    model = nn.Sequential(*(rng.choice([nn.Linear, nn.BatchNorm1d])(*n) for n in [(2, 2)] * 3))
    average = AveragedModel(model, use_buffers=use_buffers)
    side, name = rng.choice(["model", "average"]), f"late{rng.randrange(9)}"
    where = rng.randrange(3)
    holder = (model if side == "model" else average.module)[where]
    kind = rng.choice(["buffer", "parameter", "shape"])
    if kind == "buffer":
        holder.register_buffer(name, lt.ones(rng.randrange(1, 4)))
    elif kind == "parameter":
        holder.register_parameter(name, nn.Parameter(lt.ones(2)))
    else:
        holder.weight = nn.Parameter(lt.ones(7))
    wanted = rf"only the {side} has '{where}.{name}'.*(register them in both)"
    if kind == "shape":
        wanted = rf"'{where}.weight' has shape .*\(7,\)"
    before = [t.clone() for t in average.state_dict().values()]
    with pytest.raises(ValueError, match=wanted):
        average.update_parameters(model)
    assert all(lt.equal(a, b) for a, b in zip(before, average.state_dict().values(), strict=True))
    if kind != "shape":
        other = (average.module if side == "model" else model)[where]
        if kind == "buffer":
            other.register_buffer(name, getattr(holder, name).clone())
        else:
            other.register_parameter(name, nn.Parameter(getattr(holder, name).clone()))
        average.update_parameters(model)
        assert int(average.n_averaged) == 1


@pytest.mark.parametrize("lazy", [nn.LazyLinear(2), nn.LazyBatchNorm1d(), nn.LazyConv1d(2, 1)])
def test_an_average_of_a_lazy_layer(lazy):
    model = nn.Sequential(copy.deepcopy(lazy))
    with pytest.raises(ValueError, match=r"'0.weight' of the model has no shape yet. Run"):
        AveragedModel(model)
    model(lt.ones(2, 3, 4) if "Conv" in type(lazy).__name__ else lt.ones(2, 3))
    AveragedModel(model).update_parameters(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.Conv1d(3, 2, 1), nn.Embedding(3, 2)])
def test_the_copy_of_a_layer_with_a_computed_weight(norm, layer):
    x = lt.ones(1, 3, 4) if isinstance(layer, nn.Conv1d) else lt.ones(1, 3)
    if isinstance(layer, nn.Embedding):
        x = lt.tensor([0, 2])
    module = getattr(nn.utils, norm)(copy.deepcopy(layer))
    module(x)
    with pytest.raises(RuntimeError, match=rf"graph leaves.*{norm}.*parametrizations.*no_grad"):
        copy.deepcopy(nn.Sequential(module))
    with lt.no_grad():
        module(x)
    again = copy.deepcopy(nn.Sequential(module))[0]  # one way out
    assert [n for n, _ in again.named_parameters()] == [n for n, _ in module.named_parameters()]
    new = getattr(nn.utils.parametrizations, norm)(copy.deepcopy(layer))  # and the other
    new(x)
    assert lt.allclose(copy.deepcopy(new.eval())(x), new(x))
