"""Three pieces of ordinary model code, written once and run in both frameworks."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.dtypes import tolerance

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


def gpt_block(T, p, batch):
    """A token and position embedding, causal attention by hand, an MLP, and the loss."""
    tokens, targets = batch
    F = T.nn.functional
    n, t = tokens.shape
    width, heads = p["wte"].shape[1], 2
    x = p["wte"][tokens] + p["wpe"][T.arange(t)]
    h = F.layer_norm(x, (width,), p["ln1.w"], p["ln1.b"])
    q, k, v = F.linear(h, p["qkv.w"], p["qkv.b"]).split(width, dim=-1)
    q, k, v = (a.view(n, t, heads, width // heads).transpose(1, 2) for a in (q, k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
    future = T.tril(T.ones(t, t)) == 0
    scores = scores.masked_fill(future, float("-inf"))
    y = T.softmax(scores, dim=-1) @ v
    y = y.transpose(1, 2).contiguous().view(n, t, width)
    x = x + F.linear(y, p["proj.w"], p["proj.b"])
    h = F.layer_norm(x, (width,), p["ln2.w"], p["ln2.b"])
    x = x + F.linear(F.gelu(F.linear(h, p["up.w"], p["up.b"])), p["down.w"], p["down.b"])
    logits = x @ p["wte"].T  # the embedding is tied to the head
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def lenet(T, p, batch):
    """Two convolutions with batch norm and max pooling, two linear layers, and the loss."""
    images, labels = batch
    F = T.nn.functional
    x = F.conv2d(images, p["conv1.w"], p["conv1.b"], padding=2)
    x = F.batch_norm(x, None, None, p["bn1.w"], p["bn1.b"], training=True)
    x = F.max_pool2d(F.relu(x), 2)
    x = F.conv2d(x, p["conv2.w"], p["conv2.b"], stride=1)
    x = F.batch_norm(x, None, None, p["bn2.w"], p["bn2.b"], training=True)
    x = F.max_pool2d(T.relu(x), kernel_size=2, stride=2)
    x = T.flatten(x, 1)
    x = T.tanh(F.linear(x, p["fc1.w"], p["fc1.b"]))
    return F.nll_loss(F.log_softmax(F.linear(x, p["fc2.w"], p["fc2.b"]), dim=1), labels)


def lstm(T, p, batch):
    """A cell from chunk, sigmoid and tanh, run over a sequence, and the squared error."""
    sequence, wanted = batch
    steps, n, _ = sequence.shape
    hidden = p["w_hh"].shape[1]
    h = sequence.new_zeros(n, hidden)
    c = T.zeros_like(h)
    outputs = []
    for x in sequence:
        gates = x @ p["w_ih"].t() + h @ p["w_hh"].t() + p["bias"]
        i, f, g, o = gates.chunk(4, 1)
        c = T.sigmoid(f) * c + T.sigmoid(i) * T.tanh(g)
        h = T.sigmoid(o) * T.tanh(c)
        outputs.append(h)
    out = T.stack(outputs).reshape(steps * n, hidden) @ p["head"]
    return ((out.view(steps, n) - wanted) ** 2).mean()


def _weights(**shapes):
    rng = np.random.default_rng(0)
    return {k: rng.normal(0, 0.3, s) for k, s in shapes.items()}


def _gpt_case():
    rng = np.random.default_rng(1)
    w = 8
    shapes = {
        "wte": (11, w), "wpe": (6, w), "ln1.w": (w,), "ln1.b": (w,), "ln2.w": (w,), "ln2.b": (w,),
        "qkv.w": (3 * w, w), "qkv.b": (3 * w,), "proj.w": (w, w), "proj.b": (w,),
        "up.w": (4 * w, w), "up.b": (4 * w,), "down.w": (w, 4 * w), "down.b": (w,),
    }  # fmt: skip
    return gpt_block, _weights(**shapes), (rng.integers(0, 11, (2, 6)), rng.integers(0, 11, (2, 6)))


def _lenet_case():
    rng = np.random.default_rng(2)
    shapes = {
        "conv1.w": (3, 1, 5, 5),
        "conv1.b": (3,),
        "bn1.w": (3,),
        "bn1.b": (3,),
        "conv2.w": (4, 3, 3, 3),
        "conv2.b": (4,),
        "bn2.w": (4,),
        "bn2.b": (4,),
        "fc1.w": (7, 16),
        "fc1.b": (7,),
        "fc2.w": (5, 7),
        "fc2.b": (5,),
    }
    return lenet, _weights(**shapes), (rng.normal(size=(3, 1, 12, 12)), rng.integers(0, 5, 3))


def _lstm_case():
    rng = np.random.default_rng(3)
    shapes = {"w_ih": (20, 3), "w_hh": (20, 5), "bias": (20,), "head": (5, 1)}
    return lstm, _weights(**shapes), (rng.normal(size=(4, 2, 3)), rng.normal(size=(4, 2)))


def _train(T, model, weights, batch, steps):
    """The losses, the first step's gradients and the final weights of plain SGD."""
    parameters = {k: T.tensor(v, requires_grad=True) for k, v in weights.items()}
    data = tuple(T.tensor(b) for b in batch)
    losses, first = [], {}
    for step in range(steps):
        loss = model(T, parameters, data)
        loss.backward()
        losses.append(loss.item())
        with T.no_grad():
            for k, p in parameters.items():
                if step == 0:
                    first[k] = p.grad.clone().numpy()
                p -= 0.1 * p.grad
                p.grad = None
    return losses, first, {k: p.detach().numpy() for k, p in parameters.items()}


@pytest.mark.parametrize("case", [_gpt_case, _lenet_case, _lstm_case])
def test_three_steps_of_a_model_equal_those_of_pytorch(case):
    model, weights, batch = case()
    losses, gradients, final = _train(lt, model, weights, batch, 3)
    expected_losses, expected_gradients, expected_final = _train(torch, model, weights, batch, 3)
    rtol, atol = tolerance(lt.float64)
    np.testing.assert_allclose(losses, expected_losses, rtol, atol)
    for k in weights:
        np.testing.assert_allclose(gradients[k], expected_gradients[k], rtol, atol, err_msg=k)
        np.testing.assert_allclose(final[k], expected_final[k], rtol, atol, err_msg=k)
