"""Mistakes that people make, and what the message of each must hold: rule, values, way out.

A mistake is a program of a line or a few; ``lt``, ``nn``, ``optim``, ``F`` and others are there
(``NAMES``). Of its message three parts are quoted: the rule that was broken, the values that broke
it, and the way out. A part is None where there is nothing to say, such as the values of an empty
list. ``page.py`` makes ``docs/mistakes.md`` of it.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = """
import numpy as np
import lowtide as lt
from lowtide import checkpointing as ck
from lowtide import nn, optim
from lowtide.nn import functional as F
from lowtide.profiling import advise, compare, estimate
from lowtide.utils import CheckpointDirectory
from lowtide.utils.checkpoint import checkpoint_sequential
from lowtide.utils.data import DataLoader, SequentialSampler, TensorDataset, random_split
"""


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        code: The program.
        error: The class of the error, by name.
        rule: What the message says of the rule.
        values: What it says of the values that broke it.
        way_out: What it says of what to do.
    """

    code: str
    error: str
    rule: str | None
    values: str | None
    way_out: str | None


def _section(*rows: tuple[str, str, str | None, str | None, str | None]) -> list[Mistake]:
    return [Mistake(*row) for row in rows]


# fmt: off
SHAPES = _section(
    ("lt.ones(3, 4) @ lt.ones(5, 6)", "RuntimeError",
     "contracts input.shape[-1] with other.shape[-2]", "(3, 4) and other (5, 6)", "pass other.mT"),
    ("nn.Linear(4, 2)(lt.ones(3, 5))", "RuntimeError",
     "contracts input.shape[-1] with weight.shape[-1]", "input (3, 5) and weight (2, 4)", "transpose it"),
    ("lt.ones(3, 4) + lt.ones(3, 5)", "RuntimeError",
     "each dimension must match or be 1", "(3, 4) and (3, 5), which differ at dimension 1", "Reshape or expand"),
    ("lt.ones(3, 4).view(5, 2)", "RuntimeError",
     "invalid for input of size", "'[5, 2]' is invalid for input of size 12", "Pass sizes whose product"),
    ("lt.ones(3, 4).t().view(12)", "RuntimeError",
     "spans across two contiguous subspaces", "(4, 3) as (12,)", "Use .reshape"),
    ("lt.ones(3, 4).reshape(-1, -1)", "RuntimeError",
     "only one dimension can be inferred", "(-1, -1)", "only one"),
    ("lt.cat([lt.ones(2, 3), lt.ones(2, 4)])", "RuntimeError",
     "sizes match except in dimension 0", "(2, 3) and (2, 4) for tensor number 1", "Sizes of tensors must match"),
    ("lt.cat([])", "ValueError", "non-empty list", None, "skip it"),
    ("lt.stack([lt.ones(2), lt.ones(3)])", "RuntimeError",
     "each tensor to be equal size", "(2,) at entry 0 and (3,) at entry 1", "Pad or crop"),
    ("lt.ones(3, 4).sum(2)", "IndexError",
     "expected to be in range of [-2, 1]", "got 2): sum of a tensor of 2 dimensions", "[-2, 1]"),
    ("lt.ones(3).sum('x')", "TypeError", "dim is an int or ints", "'x'", "an int"),
    ("lt.ones(3, 4).permute(0, 0)", "RuntimeError", "appears multiple times", "(0, 0)", "Name each once"),
    ("lt.ones(3).expand(2, 4)", "RuntimeError",
     "must match the existing size", "(4) must match the existing size (3)", "repeat copies"),
    ("lt.ones(5).split([2, 2])", "RuntimeError", "sum exactly to 5", "split_sizes=[2, 2]", "Change one"),
    ("lt.ones(3).chunk(0)", "RuntimeError", "greater than 0", "got: 0", "Pass 1 or more"),
    ("F.pad(lt.ones(3), (1, 1, 1, 1))", "RuntimeError",
     "two times the input dimension", "length 4 and input of dimension 1", "Two numbers"),
    ("F.interpolate(lt.ones(1, 1, 4, 4))", "ValueError", "either size or scale_factor", None, "Pass one"),
    ("lt.einsum('ij,jk->ik', lt.ones(2, 3), lt.ones(4, 5))", "RuntimeError",
     "does not broadcast with", "subscript j has size 4", "use another letter"),
    ("lt.einsum('ij-ik', lt.ones(2, 3))", "RuntimeError", "invalid subscript", "'-' in 'ij-ik'", "Use letters"),
    ("len(lt.tensor(1.0))", "TypeError", "0-d tensor", None, ".numel()"),
    ("list(lt.tensor(1.0))", "TypeError", "iteration over a 0-d tensor", None, ".item()"),
    ("lt.tensor([[1, 2], [3]])", "ValueError", "have one length", "length 2 at dim 1 (got 1)", "Pad the shorter"),
)

INDICES = _section(
    ("lt.ones(3)[5]", "IndexError", "out of bounds", "index 5", "go from -3 to 2"),
    ("lt.ones(3)[0, 0]", "IndexError", "too many indices", "got 2 for shape (3,)", "Leave some out"),
    ("lt.ones(3)[lt.tensor([True, False])]", "IndexError",
     "does not match the shape of the indexed tensor", "[2] at index 0", "from that tensor"),
    ("lt.ones(3)[lt.tensor([0.5])]", "IndexError", "must be long, int, byte or bool", "float32", ".to("),
    ("lt.ones(3, 4).gather(1, lt.tensor([[9]]))", "RuntimeError",
     "out of bounds for dimension 1", "index 9", "up to 3"),
    ("nn.Embedding(10, 4)(lt.tensor([10]))", "IndexError",
     "weight has rows 0 to 9", "[10, 10]", "Use a larger table"),
    ("nn.Embedding(10, 4)(lt.ones(3))", "RuntimeError", "to have an integer dtype", "float32", ".to(lowtide.int64)"),
    ("F.one_hot(lt.tensor([5]), 3)", "RuntimeError", "smaller than num_classes", "5 and 3", "num_classes=6"),
    ("lt.ones(3).topk(5)", "RuntimeError", "k must be in [0, 3]", "got 5", "Pass a smaller one"),
)

LAYERS = _section(
    ("nn.Conv2d(3, 8, 3)(lt.ones(2, 1, 8, 8))", "RuntimeError",
     "input must have 3 channels", "input (2, 1, 8, 8)", "Pass channels in dim 1"),
    ("nn.Conv2d(1, 8, 5)(lt.ones(2, 1, 3, 3))", "RuntimeError",
     "can't be greater than actual input size", "input (2, 1, 3, 3)", "Pad the input"),
    ("nn.Conv2d(1, 8, 3)(lt.ones(28, 28))", "RuntimeError",
     "Expected 3D (unbatched) or 4D", "input (28, 28)", "Add or remove a dimension"),
    ("nn.BatchNorm1d(4)(lt.ones(3, 5))", "RuntimeError",
     "running_mean should contain", "5 elements not 4", "number of channels"),
    ("nn.BatchNorm1d(4)(lt.ones(1, 4))", "ValueError",
     "more than 1 value per channel", "[1, 4]", "Use a larger batch"),
    ("nn.LayerNorm(4)(lt.ones(3, 5))", "RuntimeError",
     "expected input with shape [*, 4]", "[3, 5]", "Pass the sizes of its last dimensions"),
    ("nn.GroupNorm(3, 4)", "ValueError", "divisible by num_groups", "4 and 3", "must be divisible"),
    ("nn.LSTM(4, 8)(lt.ones(5, 2, 3))", "RuntimeError",
     "equal to input_size", "Expected 4, got 3", "Features come last"),
    ("nn.MultiheadAttention(10, 3)", "AssertionError", "divisible by num_heads", "10 and 3", "must be divisible"),
    ("F.max_pool2d(lt.ones(1, 1, 2, 2), 3)", "RuntimeError",
     "Output size is too small", "(1, 1, 2, 2) with kernel (3, 3)", "Pad the input"),
    ("F.scaled_dot_product_attention(lt.ones(2, 3, 4), lt.ones(2, 3, 5), lt.ones(2, 3, 4))", "RuntimeError",
     "share their last dimension", "(2, 3, 5)", "Transpose one"),
    ("nn.Dropout(1.5)", "ValueError", "between 0 and 1", "1.5", "Pass the share of zeros"),
    ("F.cross_entropy(lt.ones(3, 5), lt.ones(3))", "RuntimeError",
     "expected scalar type Long", "float32", "Convert target"),
    ("F.cross_entropy(lt.ones(3, 5), lt.tensor([0, 5, 1]))", "IndexError",
     "class indices 0 to 4", "Target 5", "or ignore_index"),
    ("F.cross_entropy(lt.ones(3, 5), lt.tensor([0, 1]))", "ValueError",
     "match target batch_size", "target (2,)", "Put classes in dim 1"),
    ("F.binary_cross_entropy(lt.tensor([1.5]), lt.ones(1))", "RuntimeError",
     "should be between 0 and 1", None, "binary_cross_entropy_with_logits"),
    ("F.mse_loss(lt.ones(3, 1), lt.ones(3))", "UserWarning",
     "different to the input size", "[3, 1]", "ensure they have the same size"),
    ("F.softmax(lt.ones(3, 4))", "UserWarning", "Implicit dimension choice", None, "dim=X"),
)

DTYPES = _section(
    ("lt.ones(3, 3) @ lt.ones(3, 3).double()", "RuntimeError",
     "expected its inputs to have the same dtype", "other lowtide.float64", "Convert one"),
    ("nn.Linear(3, 3)(lt.ones(2, 3).double())", "RuntimeError",
     "same dtype", "input lowtide.float64, weight lowtide.float32", "Convert one"),
    ("nn.Linear(3, 3)(lt.ones(2, 3, dtype=lt.int64))", "RuntimeError",
     "same dtype", "input lowtide.int64", "Convert one"),
    ("lt.tensor([1, 2], requires_grad=True)", "RuntimeError",
     "only Tensors of floating point", "int64", "Convert"),
    ("lt.arange(4).mean()", "RuntimeError", "must be either a floating point", "int64", "pass dtype="),
    ("lt.ones(3) & lt.ones(3)", "NotImplementedError", "integer and bool", "float32", "Convert"),
    ("x = lt.arange(3); x += 0.5", "RuntimeError", "can't be cast", "float32", "Use the out-of-place op"),
    ("lt.add(lt.ones(3), 1, out=lt.ones(3).int())", "RuntimeError",
     "can't be cast", "int32", "Pass an out="),
    ("lt.zeros(3, dtype='float33')", "TypeError", "must be lowtide.dtype", "str", "lowtide.dtype"),
    ("lt.tensor(['a'])", "ValueError", "too many dimensions", "'str'", None),
    ("F.relu([1, 2])", "TypeError", "takes Tensors", "list", "lowtide.tensor()"),
    ("lt.add(None, 1)", "TypeError", "at least one input must be a Tensor", "only scalars", "Wrap one"),
    ("lt.ones(3).sum(dims=0)", "TypeError", "unexpected keyword", "'dims'", None),
    ("if lt.ones(3): pass", "RuntimeError", "more than one value is ambiguous", None, "Use .any()"),
    ("lt.ones(3).item()", "RuntimeError", "cannot be converted to Scalar", "3 elements", "Use .tolist()"),
    ("lt.ones(3, device='gpu')", "RuntimeError", "must be one of cpu, cuda, meta", "'gpu'", "cuda:0"),
    ("lt.ones(3) + lt.ones(3, device='meta')", "RuntimeError",
     "all tensors on one device", "input on cpu, other on meta", "Move one"),
    ("lt.ones(3, device='meta').tolist()", "NotImplementedError", "needs values", "meta", "Run on cpu"),
    ("lt.manual_seed('a')", "ValueError", "a seed is an integer", "'a'", "integer"),
    ("lt.randint(5, 5, (2,))", "RuntimeError", "to be less than", "from=5 >= to=5", "is not drawn"),
    ("lt.multinomial(lt.tensor([-1.0, 2.0]), 1)", "RuntimeError", "element < 0", None, "Pass softmax's result"),
    ("lt.linspace(0, 1, -1)", "RuntimeError", "must be non-negative", "-1", "non-negative"),
    ("lt.arange(0, 5, -1)", "RuntimeError", "inconsistent with step sign", "0 -> 5 by -1", "step sign"),
    ("lt.linalg.inv(lt.zeros(2, 2))", "LinAlgError", "singular", "diagonal element 1", "Use linalg.pinv"),
    ("lt.linalg.cholesky(-lt.eye(2))", "LinAlgError",
     "positive-definite", "order 1", "Add a multiple of the identity"),
    ("lt.linalg.norm(lt.arange(3))", "RuntimeError", "Expected a floating point", "int64", "Convert"),
)

GRADIENTS = _section(
    ("x = lt.ones(3, requires_grad=True); y = (x * x).sum(); y.backward(); y.backward()", "GradientError",
     "was freed by an earlier backward", "MulBackward0", "retain_graph=True"),
    ("lt.ones(3).sum().backward()", "RuntimeError", "does not require grad", "element 0", "outside no_grad"),
    ("lt.ones(3, requires_grad=True).mul(2).backward()", "RuntimeError",
     "only for scalar outputs", "(3,)", "Reduce it"),
    ("lt.ones(3, requires_grad=True).mul(2).backward(lt.ones(4))", "RuntimeError",
     "Mismatch in shape", "(4,) and output[0] has a shape of (3,)", "must be equal"),
    ("x = lt.ones(3, requires_grad=True); y = x.exp(); y.add_(1); y.sum().backward()", "GradientError",
     "modified by an inplace operation", "add_ at", "clone before"),
    ("x = lt.ones(3, requires_grad=True); x.add_(1)", "RuntimeError",
     "a leaf Variable that requires grad", "add_", "Write under lowtide.no_grad()"),
    ("x = lt.ones(3, requires_grad=True); x[0] = 1", "RuntimeError",
     "a view of a leaf Variable", "fill_", "Write under lowtide.no_grad()"),
    ("x, z = lt.ones(3, requires_grad=True), lt.ones(3, requires_grad=True)\n"
     "lt.autograd.grad((x * 2).sum(), z)", "RuntimeError",
     "not have been used in the graph", "input 0 of shape (3,)", "allow_unused=True"),
    ("x = lt.ones(3, requires_grad=True); y = x * 2; y.sum().backward(); y.grad", "UserWarning",
     "not a leaf", None, ".retain_grad()"),
    ("lt.ones(3, requires_grad=True).mul(2)[0:1].detach_()", "RuntimeError",
     "Can't detach views", None, "Use detach()"),
    ("y = lt.ones(3, requires_grad=True) * 2; y.requires_grad = False", "RuntimeError",
     "of leaf variables", "MulBackward0", "Use .detach()"),
    ("import copy; copy.deepcopy(lt.ones(3, requires_grad=True) * 2)", "RuntimeError",
     "graph leaves", None, "Copy .detach()"),
    ("with lt.inference_mode():\n    a = lt.ones(3)\nb = lt.ones(3, requires_grad=True)\n(a * b).sum().backward()",
     "GradientError", "cannot be saved for backward", "backward of mul reads its input, of shape (3,)",
     "Use its .clone()"),
    ("class G(lt.autograd.Function):\n    @staticmethod\n    def forward(ctx, a, b):\n        return a * b\n"
     "    @staticmethod\n    def backward(ctx, g):\n        return g\n"
     "x = lt.ones(3, requires_grad=True)\nG.apply(x, x).sum().backward()", "RuntimeError",
     "incorrect number of gradients", "expected 2, got 1", "Return one per argument"),
    ("lt.ones(3, requires_grad=True).numpy()", "RuntimeError",
     "requires grad", None, "detach().numpy()"),
    ("y = lt.ones(3, requires_grad=True) * 2; y.register_hook(lambda g: lt.ones(4)); y.sum().backward()",
     "RuntimeError", "has changed the size", "(3,), what it returned (4,)", None),
    ("with lt.autograd.detect_anomaly():\n    x = lt.zeros(1, requires_grad=True)\n    (x.sqrt() * 0).sum().backward()",
     "RuntimeError", "returned nan values", "SqrtBackward0", "It was made at"),
)

MODULES = _section(
    ("class M(nn.Module):\n    def __init__(self):\n        self.l = nn.Linear(2, 2)\nM()", "AttributeError",
     "before Module.__init__() call", "'l'", "Call super().__init__()"),
    ("class M(nn.Module):\n    pass\nM()(lt.ones(2))", "NotImplementedError",
     'missing the required "forward"', "[M]", "Define forward"),
    ("nn.Sequential(nn.Linear(2, 2), F.relu)", "TypeError", "not a Module subclass", "relu", "nn.ReLU()"),
    ("m = nn.Linear(2, 2); m.weight = lt.zeros(2, 2)", "TypeError",
     "cannot assign", "'weight'", "Wrap it in nn.Parameter"),
    ("nn.Linear(2, 2).load_state_dict(nn.Linear(3, 2).state_dict())", "RuntimeError",
     "size mismatch for weight", "(2, 3) from checkpoint", "current model is (2, 2)"),
    ("nn.Linear(2, 2).load_state_dict({})", "RuntimeError", "Missing key(s)", '"bias", "weight"', "strict=False"),
    ("nn.Linear(2, 2).load_state_dict({**nn.Linear(2, 2).state_dict(), 'x': lt.zeros(1)})", "RuntimeError",
     "Unexpected key(s)", '"x"', "strict=False"),
    ("nn.Linear(2, 2).set_checkpointing('all')", "TypeError",
     "a policy is called with each value", "str", "Pass one of lowtide.checkpointing.policies"),
    ("checkpoint_sequential(nn.Sequential(nn.Linear(2, 2)), 3, lt.ones(2, 2))", "ValueError",
     "segments must be in [1, 1]", "got 3", "[1, 1]"),
    ("lt.compile(3)", "TypeError", "takes a module or a function", "int", "by name"),
    ("lt.autocast('gpu')", "RuntimeError", "unsupported autocast device_type", "'gpu'", "Use one of"),
)

OPTIMIZERS = _section(
    ("optim.SGD(nn.Linear(2, 2), lr=0.1)", "TypeError",
     "an iterable of Tensors or dicts", "Linear", "Pass its parameters()"),
    ("optim.SGD(lt.ones(3, requires_grad=True), lr=0.1)", "TypeError",
     "an iterable of Tensors", "a Tensor", "Wrap it in a list"),
    ("optim.SGD([], lr=0.1)", "ValueError", "empty parameter list", None, "model.parameters()"),
    ("optim.SGD([lt.ones(3, requires_grad=True) * 2], lr=0.1)", "ValueError",
     "non-leaf Tensor", None, "Pass the leaf"),
    ("optim.SGD([lt.ones(3)], lr=-1)", "ValueError", "It must be >= 0", "-1", ">= 0"),
    ("optim.AdamW([lt.ones(3)], lr='1e-3')", "TypeError", "Invalid learning rate", "'1e-3', a str", "float("),
    ("optim.Adam([lt.ones(3)], betas=(1.0, 0.9))", "ValueError", "Invalid beta", "1.0", "It must be in [0, 1)"),
    ("p = lt.ones(3); optim.SGD([{'params': [p]}, {'params': [p]}], lr=0.1)", "ValueError",
     "more than one parameter group", None, "List each in one"),
    ("one, two = optim.AdamW([lt.ones(3)]), optim.AdamW([lt.ones(3), lt.ones(2)])\n"
     "one.load_state_dict(two.state_dict())", "ValueError",
     "doesn't match the size of optimizer's group", "sizes [2]", "has [1]"),
    ("optim.lr_scheduler.StepLR(nn.Linear(2, 2), 3)", "TypeError",
     "is not an Optimizer", "Linear", "Pass the optimizer"),
    ("optim.LBFGS([lt.ones(3)]).step()", "TypeError", "needs a closure", None, "computes the loss again"),
    ("p = lt.ones(2, requires_grad=True); (p * float('nan')).sum().backward()\n"
     "nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)", "RuntimeError",
     "non-finite", "order 2.0", "error_if_nonfinite=False"),
)

DATA = _section(
    ("TensorDataset(lt.ones(3), lt.ones(4))", "AssertionError", "Size mismatch", "[3, 4]", "belongs to a row"),
    ("DataLoader([1, 2], batch_size=0)", "ValueError", "positive integer", "batch_size=0", "batch_size=None"),
    ("list(DataLoader([lt.ones(2), lt.ones(3)], batch_size=2))", "RuntimeError",
     "to be equal size", "[(2,), (3,)]", "pass a collate_fn"),
    ("list(DataLoader([object(), object()], batch_size=2))", "TypeError",
     "batch must contain tensors", "class 'object'", "Pass a collate_fn"),
    ("DataLoader([1, 2], shuffle=True, sampler=SequentialSampler([1, 2]))", "ValueError",
     "mutually exclusive", "shuffle", "A RandomSampler shuffles"),
    ("random_split([1, 2, 3], [1, 1])", "ValueError", "does not equal the length", "2 and 3", "Fractions"),
)

FILES = _section(
    ("lt.load('nothing.pt')", "FileNotFoundError", "No such file", "'nothing.pt'", None),
    ("open('x.pt', 'w').write('hello world'); lt.load('x.pt')", "SerializationError",
     "the header's length", "x.pt", "no safetensors file"),
    ("lt.save({'a': lt.ones(1000)}, 'c.pt'); import os; os.truncate('c.pt', 1000); lt.load('c.pt')",
     "SerializationError", "ends at byte", "entry 'a'", "It was cut off"),
    ("lt.save({'f': lambda x: x}, 'l.pt')", "SerializationError",
     "a file holds tensors", "f is a builtins.function", "Save its name"),
    ("lt.save(1, 'nowhere/x.pt')", "SerializationError", "does not exist", "nowhere", "Create it"),
)

MEMORY = _section(
    ("lt.set_memory_limit(2**20); lt.zeros(2**20)", "MemoryLimitError",
     "would pass the limit", "4.00 MiB on cpu", "use a smaller batch"),
    ("lt.set_memory_limit(-1)", "ValueError", "non-negative", "-1", "Pass None"),
    ("advise(lambda: lt.ones(3).sum())", "ValueError", "needs to know what fits", "cpu", "pass limit="),
    ("m, x = nn.Sequential(nn.Linear(2, 2)), lt.ones(2, 2)\ndef step():\n    m(x).sum().backward()\n"
     "compare(step, no_grad='encoder')", "ValueError",
     "reaches no module", "'encoder'", "It reaches m: 0"),
)
# fmt: on

SECTIONS = {
    "Shapes": SHAPES,
    "Indices": INDICES,
    "Layers and losses": LAYERS,
    "Dtypes, devices, values": DTYPES,
    "Gradients": GRADIENTS,
    "Modules": MODULES,
    "Optimizers": OPTIMIZERS,
    "Data": DATA,
    "Files": FILES,
    "Memory": MEMORY,
}
