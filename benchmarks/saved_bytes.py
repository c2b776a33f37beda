"""What a block keeps for backward beside PyTorch's eager mode: bytes, exact, on the CPU.

Each block is written once and run with both libraries. Counted are the storages that the graph
keeps alive, each once, without parameters and buffers; what flows into the block counts. In lowtide
``profiling.saved_tensors`` lists them, on ``meta``: nothing is computed, and the bytes are those of
the cpu. In PyTorch ``saved_tensors_hooks`` sees them. ``EXPECTED`` has lowtide's bytes as formulas,
and ``tests/profiling/analysis/test_saved_tensors.py`` holds them.

A second table has the GPT block in a region of activation checkpointing whose policy repeats no
matrix product. There the ledger is asked: what lives after the forward, less the result.

    python -m benchmarks.saved_bytes [--json FILE]
"""

import argparse
import importlib.util
import json
import math
from pathlib import Path

import lowtide as lt
from lowtide.checkpointing import policy, save_matmuls

E = 4  # bytes of a float32
P = 0.1  # dropout, where there is any
S, B, H, A = 256, 4, 256, 8  # GPT and encoder layer: length, batch, width, heads
FF = 4 * H
N, C, SIDE = 16, 64, 32  # residual block: batch, channels, height and width
T, ROWS, INPUTS, CELLS = 64, 32, 64, 128  # LSTM: length, batch, features, hidden size
BATCH, PIXELS, WIDTH, CLASSES = 256, 784, 1024, 10  # perceptron


def gpt(lib, fused, around=None):
    """A pre-norm block: causal attention and a GELU perceptron, each added to what came in.

    Args:
        lib: lowtide or torch.
        fused: ``scaled_dot_product_attention``; else the softmax of the products written out.
        around: What calls the block with what flows into it; None calls it plainly.
    """
    nn, F = lib.nn, lib.nn.functional
    norms, qkv, proj = [nn.LayerNorm(H), nn.LayerNorm(H)], nn.Linear(H, 3 * H), nn.Linear(H, H)
    up, down = nn.Linear(H, FF), nn.Linear(FF, H)
    start = lib.ones(B, S, H).requires_grad_()
    hidden = lib.ones(S, S, dtype=lib.bool).triu(1)

    def attention(x):
        parts = qkv(x).split(H, -1)
        q, k, v = (t.view(B, S, A, H // A).transpose(1, 2) for t in parts)
        if fused:
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=P, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (H // A) ** -0.5
            weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
            out = F.dropout(weights, P) @ v
        return F.dropout(proj(out.transpose(1, 2).reshape(B, S, H)), P)

    def through(x):
        x = x + attention(norms[0](x))
        return x + F.dropout(down(F.gelu(up(norms[1](x)))), P)

    def block():
        x = start.clone()  # made here, so that it counts
        return through(x) if around is None else around(through, x)

    return block, [*norms, qkv, proj, up, down, hidden]


def encoder_layer(lib):
    """``nn.TransformerEncoderLayer`` as it is by default: ReLU, norms after the sums."""
    layer = lib.nn.TransformerEncoderLayer(H, A, FF, dropout=P, batch_first=True)
    start = lib.ones(B, S, H).requires_grad_()
    return lambda: layer(start.clone()), [layer]


def residual(lib):
    """A basic block of a ResNet: convolution, batch norm, ReLU, twice, around a sum."""
    nn, F = lib.nn, lib.nn.functional
    convolutions = [nn.Conv2d(C, C, 3, padding=1, bias=False) for _ in range(2)]
    norms = [nn.BatchNorm2d(C) for _ in range(2)]
    start = lib.ones(N, C, SIDE, SIDE).requires_grad_()

    def block():
        x = start.clone()
        y = F.relu(norms[0](convolutions[0](x)))
        return F.relu(norms[1](convolutions[1](y)) + x)

    return block, [*convolutions, *norms]


def recurrent(lib):
    """``nn.LSTM`` over a sequence."""
    layer = lib.nn.LSTM(INPUTS, CELLS)
    start = lib.ones(T, ROWS, INPUTS).requires_grad_()
    return lambda: layer(start.clone())[0], [layer]


def perceptron(lib, p):
    """Three linear layers with ReLU and, with ``p``, dropout between them; cross entropy."""
    nn, F = lib.nn, lib.nn.functional
    layers = [nn.Linear(PIXELS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)]
    start = lib.ones(BATCH, PIXELS).requires_grad_()
    labels = lib.zeros(BATCH, dtype=lib.int64)

    def block():
        x = start.clone()
        for layer in layers[:-1]:
            x = F.relu(layer(x))
            x = F.dropout(x, p) if p else x
        return F.cross_entropy(layers[-1](x), labels, reduction="sum")

    return block, [*layers, labels]


BLOCKS = {
    "GPT block, softmax(q k^T) written out, dropout 0.1": lambda lib: gpt(lib, False),
    "GPT block, scaled_dot_product_attention, dropout 0.1": lambda lib: gpt(lib, True),
    "nn.TransformerEncoderLayer, dropout 0.1": encoder_layer,
    "ResNet basic block": residual,
    "nn.LSTM over 64 steps": recurrent,
    "MLP, ReLU": lambda lib: perceptron(lib, 0.0),
    "MLP, ReLU and dropout 0.1": lambda lib: perceptron(lib, P),
}


REGIONS = {  # what is recomputed -> (fused, policy)
    "written out, recompute dropout": (False, policy({"op:dropout": "recompute"}, default="save")),
    "written out, save_matmuls": (False, save_matmuls),
    "scaled_dot_product_attention, save_matmuls": (True, save_matmuls),
}


def bits(count):
    """Bytes of one bit an element."""
    return -(-count // 8)


SBH = S * B * H * E
NORM = 2 * S * B * E  # mean and reciprocal deviation of each row
MAP = N * C * SIDE * SIDE  # elements of a feature map
EXPECTED = {  # names as above
    # norm 1, its result, q k v, attention's result, norm 2, its result, GELU's input and result
    "GPT block, softmax(q k^T) written out, dropout 0.1": (
        16 * SBH + 2 * NORM + 2 * A * S * S * B * E
    ),
    "GPT block, scaled_dot_product_attention, dropout 0.1": 16 * SBH + 2 * NORM + A * S * B * E,
    # x, q k v, attention's result, both norms' inputs, norm 1's result, dropout's result
    "nn.TransformerEncoderLayer, dropout 0.1": (
        8 * SBH + S * B * FF * E + bits(S * B * FF) + 2 * NORM + A * S * B * E
    ),
    "ResNet basic block": 4 * MAP * E + 2 * bits(MAP) + 2 * 2 * C * E,
    # input, result, gates, cells
    "nn.LSTM over 64 steps": T * ROWS * (INPUTS + 6 * CELLS) * E,
    "MLP, ReLU": (BATCH * (PIXELS + 2 * WIDTH + CLASSES + 2) * E + 2 * bits(BATCH * WIDTH)),
    "MLP, ReLU and dropout 0.1": (
        BATCH * (PIXELS + 2 * WIDTH + CLASSES + 2) * E + 2 * bits(BATCH * WIDTH)
    ),
}


EXPECTED_IN_REGIONS = {
    # as without a region, less what dropout made of the weights
    "written out, recompute dropout": 16 * SBH + 2 * NORM + A * S * S * B * E,
    # what flows in, q k v, attention's result, both projections' results; the products q k^T
    "written out, save_matmuls": 10 * SBH + A * S * S * B * E,
    "scaled_dot_product_attention, save_matmuls": 10 * SBH + A * S * B * E,
}


def kept_in_region(name):
    """Bytes that live after the forward of a block in a region, less its result."""
    fused, decides = REGIONS[name]
    with lt.device("meta"):
        block, _ = gpt(lt, fused, lambda f, x: lt.checkpoint(f, x, policy=decides))
        before = lt.memory_allocated("meta")
        result = block()
        return lt.memory_allocated("meta") - before - result.nbytes


def kept_by_lowtide(name):
    """Bytes that a block's graph keeps alive."""
    with lt.device("meta"):
        block, _ = BLOCKS[name](lt)
        return lt.profiling.saved_tensors(block).total_bytes


def kept_by_torch(name):
    """The same in PyTorch: the storages that saved_tensors_hooks see."""
    import torch

    block, others = BLOCKS[name](torch)
    apart = set()  # parameters, buffers, masks and labels: there before the block runs
    for other in others:
        if isinstance(other, torch.nn.Module):
            tensors = [*other.parameters(), *other.buffers()]
        else:
            tensors = [other]
        apart |= {t.untyped_storage().data_ptr() for t in tensors}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in apart:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor  # alive until the result goes, so no address comes twice

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = block()
    del result
    return sum(kept.values())


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    has_torch = importlib.util.find_spec("torch") is not None
    rows = []
    for name in BLOCKS:
        ours, theirs = kept_by_lowtide(name), kept_by_torch(name) if has_torch else None
        rows.append({"block": name, "lowtide": ours, "torch": theirs})
        print(f"{name:54}{ours:>14,}", end="")
        print(f"{theirs:>14,}{ours / theirs:>8.3f}" if theirs else "")
    theirs = kept_by_torch(next(iter(BLOCKS))) if has_torch else None
    for name in REGIONS:
        ours = kept_in_region(name)
        rows.append({"block": f"GPT block in a region, {name}", "lowtide": ours, "torch": theirs})
        print(f"in a region: {name:41}{ours:>14,}", end="")
        print(f"{theirs:>14,}{ours / theirs:>8.3f}" if theirs else "")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
