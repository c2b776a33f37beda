"""Random statements: what a program of :mod:`tests.faults.programs` is made of.

A statement is a line of Python (or a block) on variables ``v0 v1 ...``, with ``T`` for the
framework, ``F`` for its ``nn.functional``, ``N(shape, seed)`` for a constant of normal numbers,
``L(shape, seed)`` for a leaf that requires grad, ``CK`` for a checkpointed call and ``SEEN(name)``
for a hook that takes note of a gradient. It is made by looking at the variables as they are in a
run on lowtide that goes along, so most statements are valid; some are meant to be refused.
"""

from __future__ import annotations

import random
from typing import Any

import lowtide as lt

SHAPES = [
    (),
    (1,),
    (3,),
    (4,),
    (2, 3),
    (3, 2),
    (1, 3),
    (3, 3),
    (2, 1),
    (2, 3, 4),
    (2, 2, 3),
    (4, 4),
]
EMPTY = [(0,), (0, 3), (2, 0)]
UNARY = """T.tanh(a)|T.sigmoid(a)|T.exp(-a * a)|T.sin(a)|T.cos(a)|a * 0.5|-a|a.abs()|T.relu(a)
F.gelu(a)|F.silu(a)|F.softplus(a)|F.elu(a)|T.atan(a)|a.square() * 0.3|T.sqrt(a * a + 1)|a + 1
T.log(a * a + 1)|a.clamp(-1, 1)|T.rsqrt(a * a + 1)|F.leaky_relu(a, 0.1)|1 / (a * a + 1)|a ** 3
T.erf(a)|T.expm1(a.clamp(max=1))|a.pow(2)|a.clone()|a * a|a.contiguous()|T.where(a > 0, a, -a)
F.hardtanh(a)|F.logsigmoid(a)|T.tril(a) if a.ndim > 1 else a * 2|a.sum()|a.mean()|a.flip(0)
a.positive()|a.roll(1)|T.nan_to_num(a)|T.reciprocal(a * a + 1)|a.sum_to_size(a.shape)
T.stack([a, a])|a.sign()|T.zeros_like(a)|T.logaddexp(a, -a)|T.cosh(a.clamp(-2, 2))|a.repeat(2)"""
ALONG = """a.sum(d)|a.mean(d)|a.sum(d, keepdim=True)|T.logsumexp(a, d)|a.amax(d)|a.amin(d)
a.norm(dim=d)|T.softmax(a, d)|T.log_softmax(a, d)|T.cumsum(a, d)|a.std(d)|a.var(d, keepdim=True)
a.prod(d)|T.cat([a, a * 2], d)|T.stack([a, a.tanh()], d)|(a + N(a.shape, 5)).sort(d)[0]
F.normalize(a, dim=d)|(a + N(a.shape, 6)).topk(1, d)[0]|(a + N(a.shape, 7)).max(d)[0]
a.unbind(d)[0] * 1|a.chunk(2, d)[0] * 1|a.split(1, d)[-1] * 1
a.index_select(d, T.tensor([0, 0]))|T.diff(a, dim=d)|T.cumprod(a.tanh(), d)
F.layer_norm(a, a.shape[d:])|a.logcumsumexp(d)|a.tensor_split(2, d)[1] * 1
a.unflatten(d, (-1, 1))|T.gather(a, d, T.zeros_like(a, dtype=T.int64))
T.repeat_interleave(a, 2, d)|a.cummax(d)[0]|F.glu(T.cat([a, a], d), d)
(a + N(a.shape, 9)).median(d)[0]|F.softmin(a, d)"""
VIEWS = """a[:]|a.view(-1)|a.view_as(a)|a.reshape(-1)|a.unsqueeze(0)|a.unsqueeze(-1)|a.squeeze()
a.flatten()|a[...]|a[None]|a.expand(2, *a.shape)|a.detach()|a.reshape(a.shape[::-1])|a.ravel()
a.squeeze(0)|a.movedim(0, -1)|a.T if a.ndim == 2 else a[:]|a.transpose(0, -1)
a.permute(tuple(range(a.ndim))[::-1])|a[0]|a[-1]|a[1:]|a[:-1]|a[::2]|a[..., 1:]|a[..., 0]
a.narrow(0, 0, 1)|a.select(-1, 0)|a.diagonal()|a.unfold(0, 2, 2)|a.unfold(-1, 1, 1)|a[1:2]
a.contiguous().as_strided((2,), (1,))|a.swapaxes(0, -1)|a[:, 0]|a.expand_as(a)
a.unbind(0)[0] * 1|a.split(1)[0] * 1|a.chunk(2)[0] * 1|a.view(1, *a.shape)
a.mT if a.ndim > 1 else a[...]|a[:1]"""
PICKS = """a[[0, 0]]|a[T.tensor([0, -1])]|a[a > 0]|a[..., [0]]|a.take(T.tensor([0]))
a.masked_select(a < 1)|T.index_select(a, 0, T.tensor([0]))|a.masked_fill(a > 1, 0.5)
a.index_add(0, T.tensor([0]), a[:1])|a.scatter(0, T.zeros_like(a, dtype=T.int64), 2.0)
a.index_fill(0, T.tensor([0]), 3.0)"""
PAIRS = """a + b|a - b|a * b|a / (b * b + 1)|T.where(a > b, a, b)|T.maximum(a, b)
T.minimum(a, b)|a @ b|T.lerp(a, b, 0.3)|T.atan2(a, b * b + 1)|T.hypot(a, b)|T.addcmul(a, a, b)
b - a * 2|a.mul(b).tanh()|F.mse_loss(a, b, reduction='sum')|F.smooth_l1_loss(a, b)|T.outer(a, b)
T.matmul(a, b.T)|T.einsum('ij,kj->ik', a, b)|T.einsum('i,i', a, b)|T.cat([a, b])|T.stack([a, b])
T.dot(a, b)|F.linear(a, b)|F.cosine_similarity(a, b, dim=-1)|T.add(a, b, alpha=2)|T.rsub(a, b)
T.bmm(a, b.mT)|T.addmm(a, a, b)|T.where(N(a.shape, 3) > 0, a, b)|F.huber_loss(a, b)|T.mv(a, b)"""
LAYERS = """F.conv1d(a.reshape(1, 1, -1), N((2, 1, 2), 1))
F.layer_norm(a, a.shape[-1:], N(a.shape[-1:], 2))
F.conv2d(a.reshape(1, 1, a.shape[0], -1), N((1, 1, 2, 2), 3), padding=1) if a.numel() else a * 1
a @ N((a.shape[-1], 2), 4)
F.cross_entropy(a.reshape(-1, a.shape[-1]), T.zeros(a.numel() // a.shape[-1], dtype=T.int64))
F.avg_pool1d(a.reshape(1, 1, -1), 2)|F.linear(a, N((2, a.shape[-1]), 5), N((2,), 6))
F.max_pool1d((a + N(a.shape, 8)).reshape(1, 1, -1), 2)|F.pad(a, (1, 1))|a.norm()
T.logdet(a @ a.mT + 9)|F.batch_norm(a.reshape(-1, a.shape[-1]), None, None, training=True)
F.rms_norm(a, a.shape[-1:])|F.binary_cross_entropy_with_logits(a, T.ones_like(a))
T.nn.Softmax(-1)(a)|T.einsum('...i->...', a)"""
WRITES = """a.add_(1)|a.mul_(2)|a.mul_(0.5)|a.zero_()|a.fill_(0.7)|a.tanh_()|a.sigmoid_()
a.neg_()|a.clamp_(-1, 1)|a.sub_(N(a.shape, 1))|a.mul_(N(a.shape, 2))|a.copy_(N(a.shape, 3))
a.masked_fill_(N(a.shape, 4) > 0, 0.3)|a[0] = 1.5|a[..., 0] = 0.25|a[1:] = N(a[1:].shape, 5)
a[T.tensor([0])] = 2.0|a[a > 0] = 0.1|a[...] = 0.4
a.index_put_((T.tensor([0]),), T.tensor(0.9, dtype=a.dtype))
a.index_fill_(0, T.tensor([0]), 0.6)|a.relu_()|a.exp_()|a.div_(2)|a.sin_()
a.index_add_(0, T.tensor([0]), N(a[:1].shape, 6))|a.pow_(2)|a.t_()|a.transpose_(0, -1)
a.squeeze_()|a.unsqueeze_(0)|a.zero_().add_(N(a.shape, 7))|a += 1|a *= 1.5|a[:1] *= 2|a.abs_()
a.lerp_(N(a.shape, 8), 0.5)|a.addcmul_(N(a.shape, 1), N(a.shape, 2))
a.masked_scatter_(N(a.shape, 3) > 0, N(a.shape, 4))|T.add(N(a.shape, 1), N(a.shape, 2), out=a)
a.add_(a)|a.mul_(a)|a.copy_(a.flip(0))|a.view(-1).add_(1)|a[0].mul_(3)|a.unsqueeze(0).sub_(0.5)
a.scatter_(0, T.zeros_like(a, dtype=T.int64), 0.8)|a.square_()|a.cos_()|a.reciprocal_()
a.cumsum_(0)|T.tanh(N(a.shape, 1), out=a)|a.requires_grad_()|a.expand(2, *a.shape).add_(1)
a.diagonal().mul_(2)"""
PAIR_WRITES = """a.add_(b)|a.mul_(b)|a.copy_(b)|a.sub_(b, alpha=2)|a.div_(b * b + 1)
a.lerp_(b, 0.3)|a.add_(b * b)|a.addcmul_(b, b)|a[:] = b|a[0] = b|a[..., 1:] = b|a[1:].copy_(b)
a.view(-1)[:1].add_(b.sum())|a -= b|a.index_put_((T.tensor([0, 1]),), b)
a.masked_fill_(b > 0, 0.5)|a[b > 0] = 0.2|a.masked_fill_(a > 0, b.sum())
a.index_put_((T.tensor([0, 0]),), b, accumulate=True)|a.index_add_(0, T.tensor([0]), b)
a.fill_(b.sum())|a.index_copy_(0, T.tensor([0]), b)|T.mul(b, 2, out=a)
a.scatter_add_(0, T.zeros_like(b, dtype=T.int64), b)|a.addmm_(b.clone(), b * 2)
a.where(b > 0, b).mul_(2)|a.t().add_(b)|a.diagonal().copy_(b)|a[[0]] = b|a.hypot_(b)"""


def _choices(text: str) -> list[str]:
    return [s for line in text.split("\n") for s in line.split("|")]


TEMPLATES = {
    name: _choices(text)
    for name, text in {
        "unary": UNARY,
        "along": ALONG,
        "view": VIEWS,
        "pick": PICKS,
        "pair": PAIRS,
        "layer": LAYERS,
        "write": WRITES,
        "pair_write": PAIR_WRITES,
    }.items()
}
WEIGHTS = {
    "unary": 16, "along": 9, "view": 16, "pick": 4, "pair": 13, "layer": 5, "write": 10,
    "pair_write": 8, "leaf": 4, "flag": 4, "block": 6, "hook": 7, "backward": 3, "grad": 3,
    "region": 5, "convert": 1,
}  # fmt: skip
# Of halves only what rounds alike: others are compared in float64.
IN_HALF = ("unary", "view", "pair", "write", "pair_write", "leaf", "hook", "flag", "block")
ROUGH = ("prod", "sort", "topk", "median", "cum", "max", "min", "pow", "a ** 3", "sign", "recip")


class Maker:
    """Makes statements for the variables of a run that goes along.

    Args:
        seed: Of the choices.
        dtype: Name of the program's dtype.
        noisy: Also draw random numbers (which no other framework draws alike).
    """

    def __init__(self, seed: int, dtype: str, noisy: bool = False) -> None:
        self.rng = random.Random(seed)
        self.dtype = dtype
        self.noisy = noisy
        self.next = 0
        self.values: dict[str, Any] = {}

    def statement(self, values: dict[str, Any]) -> str:
        """One more, given the variables."""
        self.values = values
        rng = self.rng
        if len(self.tensors()) < 2:
            return self.leaf()
        kinds = WEIGHTS if self.dtype in ("float64", "float32") else dict.fromkeys(IN_HALF, 1)
        kind = rng.choices(list(kinds), kinds.values())[0]
        return getattr(self, kind, lambda: self.simple(kind))()

    def tensors(self) -> list[str]:
        return [n for n, v in self.values.items() if n[0] == "v" and isinstance(v, lt.Tensor)]

    def name(self) -> str:
        self.next += 1
        return f"v{self.next - 1}"

    def some(self) -> str:
        names = self.tensors()
        floating = [n for n in names if self.values[n].is_floating_point()] or names
        return self.rng.choice(floating[-6:] if self.rng.random() < 0.7 else floating)

    def mate(self, a: str) -> str:
        """Another variable, of a shape that fits if there is one; or a constant."""
        x = self.values[a]
        fits = [n for n in self.tensors() if _fits(self.values[n].shape, x.shape)]
        r = self.rng.random()
        if r < 0.7 and fits:
            return self.rng.choice(fits)
        return self.some() if r < 0.8 else f"N({tuple(x.shape)}, {self.rng.randrange(99)})"

    def filled(self, kind: str) -> str:
        """A template of one kind with variables put in; it may begin with ``a`` itself."""
        choices = TEMPLATES[kind]
        if self.dtype not in ("float64", "float32"):
            choices = [c for c in choices if not any(r in c for r in ROUGH)]
        text = self.rng.choice(choices)
        if self.noisy and kind == "unary" and self.rng.random() < 0.2:
            text = "F.dropout(a, 0.5)"
        a = self.some()
        # PyTorch's `.data` counts writes by itself, and cdist has no gradient of second order.
        names = {"a": a, "d": str(self.rng.choice([0, -1]))}
        if "pair" in kind:
            b = self.mate(a)
            names["b"] = (
                f"{a}.clone()" if b == a and ("[" in text or "copy_" in text) else b
            )  # x[:] = x is no write here
        return _put(text, names)

    def simple(self, kind: str) -> str:
        text = self.filled(kind)
        return text if "write" in kind else f"{self.name()} = {text}"

    def leaf(self) -> str:
        shape = self.rng.choice(EMPTY if self.rng.random() < 0.06 else SHAPES)
        make = "L" if self.rng.random() < 0.75 else "N"
        return f"{self.name()} = {make}({shape}, {self.rng.randrange(99)})"

    def convert(self) -> str:
        return f"{self.name()} = {self.some()}.{self.rng.choice(['float()', 'double()'])}"

    def flag(self) -> str:
        a = self.some()
        choices = ["retain_grad()"] * 3 + ["requires_grad_()"]
        if self.rng.random() < 0.3:
            return f"{self.name()} = {a}.detach().clone().requires_grad_()"
        return f"{a}.{self.rng.choice(choices)}"

    def block(self) -> str:
        kinds = ["write", "write", "pair_write", "unary", "view", "pair"]
        mode = self.rng.choice(["T.no_grad()", "T.no_grad()", "T.set_grad_enabled(False)"])
        lines = [f"with {mode}:"]
        for _ in range(self.rng.randrange(1, 3)):
            text = self.simple(self.rng.choice(kinds))
            # PyTorch says that a view made here requires grad, if its base does; lowtide does not.
            lines.append(
                f"    {text}" + (".detach()" if text.startswith(f"v{self.next - 1} =") else "")
            )
        if self.rng.random() < 0.4:
            lines += ["    with T.enable_grad():", f"        {self.simple(self.rng.choice(kinds))}"]
        return "\n".join(lines)

    def hook(self) -> str:
        want = [n for n in self.tensors() if self.values[n].requires_grad]
        a = self.rng.choice(want) if want and self.rng.random() < 0.9 else self.some()
        return self.rng.choice(
            [
                f"{a}.register_hook(lambda g: g * 2)",
                f"{a}.register_hook(lambda g: g + 1)",
                f"{a}.register_hook(SEEN('{a}'))",
                f"{a}.register_hook(lambda g: g.sum() * g)",
                f"{a}.register_post_accumulate_grad_hook(SEEN('{a}'))",
                f"{a}.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2) and None)",
            ]
        )

    def loss(self) -> str:
        a = self.some()
        terms = [
            f"({x} * N({tuple(self.values[x].shape)}, 11)).sum()" for x in {a: 0, self.some(): 0}
        ]
        return " + ".join(terms)

    def backward(self) -> str:
        options = self.rng.choice(
            ["", "retain_graph=True", "retain_graph=True", "create_graph=True"]
        )
        if self.rng.random() < 0.2:
            a = self.some()
            return f"{a}.backward(N({tuple(self.values[a].shape)}, 12), {options})".replace(
                ", )", ")"
            )
        return f"({self.loss()}).backward({options})"

    def grad(self) -> str:
        a, b = self.some(), self.some()
        targets = a if a == b else f"{a}, {b}"
        names = ", ".join(self.name() for _ in targets.split(", "))
        unused = self.rng.choice(["True", "True", "True", "False"])
        rest = self.rng.choice(["create_graph=True", "create_graph=True", "retain_graph=True"])
        return (
            f"{names}, = T.autograd.grad({self.loss()}, [{targets}], allow_unused={unused}, {rest})"
        )

    def region(self, depth: int = 0) -> str:
        """A function of some variables, called in a checkpointed region; nested ones inside."""
        outer, pad = self.values, "    "
        given = sorted({self.some() for _ in range(self.rng.randrange(1, 4))})
        f = f"f{self.next}"
        first = self.name()
        # The variables inside are worked out on copies, so that shapes are known.
        inside = {n: outer[n].detach().clone() for n in given}
        lines = [f"def {f}({', '.join(given)}):"]
        made = []
        for _ in range(self.rng.randrange(2, 6)):
            self.values = inside
            if self.rng.random() < 0.15 and depth < 2 and len(self.tensors()) > 1:
                text = self.region(depth + 1)
                self.values = inside
            else:
                kinds = ["unary"] * 3 + ["along", "view", "pair", "pair"]
                text = self.simple(self.rng.choice(kinds))
                if made and self.rng.random() < 0.25:
                    self.values = {n: inside[n] for n in made}
                    text = self.filled(self.rng.choice(["write", "write", "view"]))
            if "requires_grad_" in text or "+=" in text or "*=" in text or "-=" in text:
                continue
            trial = run_quietly(text, inside)
            if trial is None:
                continue
            inside = trial
            made = [n for n in inside if n[0] == "v" and n not in given]
            lines += [pad + line for line in text.split("\n")]
        self.values = outer
        result = made[-1] if made else f"{given[0]} * 2"
        lines.append(f"{pad}return {result}")
        lines.append(f"{first} = CK({f}, {', '.join(given)})")
        return "\n".join(lines)


def _fits(small: Any, large: Any) -> bool:
    pairs = zip(reversed(small), reversed(large), strict=False)
    return len(small) <= len(large) and all(m in (1, n) for m, n in pairs)


def _put(text: str, names: dict[str, str]) -> str:
    # `a`, `b`, `d` as whole words, outside of strings and not as attributes or keywords.
    out, word = "", ""
    quoted = False
    for c in text + "\0":
        if c.isalnum() or c == "_":
            word += c
            continue
        attribute = out.endswith(".") and not out.endswith("..")
        out += word if quoted or attribute or (c == "=" and "(" in out) else names.get(word, word)
        word = ""
        quoted ^= c == "'"
        out += c
    return out.rstrip("\0")


def run_quietly(text: str, values: dict[str, Any]) -> dict[str, Any] | None:
    """The variables after a statement on lowtide, without a graph; None if it raised."""
    from tests.faults.programs import names_for

    space = {**names_for(lt), **values}
    try:
        with lt.no_grad():
            exec(text, space)
    except Exception:  # the statement is not taken: that is what is asked here
        return None
    return {n: v for n, v in space.items() if n in values or (n[0] == "v" and n[1:].isdigit())}
