"""Double backward through Functions that save what forward computed: the right number or an error.

A random Function computes ``y = outer(inner(x)) * mask``, and its backward uses inputs, outputs,
masks and intermediates, saved in different ways. The reference is the same formula in ordinary ops.
"""

from __future__ import annotations

import random

import pytest

import lowtide as lt
from lowtide.autograd import Function
from lowtide.autograd.function import once_differentiable

# name: (value of x, its derivative by x and value, whether the derivative uses the value)
STEPS = {
    "square": (lambda x: x * x, lambda x, y: 2 * x, False),
    "exp": (lambda x: x.exp(), lambda x, y: y, True),
    "sin": (lambda x: x.sin(), lambda x, y: x.cos(), False),
    "tanh": (lambda x: x.tanh(), lambda x, y: 1 - y * y, True),
    "triple": (lambda x: 3 * x, lambda x, y: 3.0, False),
}
WRITTEN = {"square": "square_", "exp": "exp_", "sin": "sin_", "tanh": "tanh_"}
# Constants as far as a derivative goes, each computed from x.
MASKS = {
    "none": lambda x: lt.ones_like(x),
    "compared": lambda x: (x > 0.7).to(x.dtype) + 0.5,
    "drawn": lambda x: lt.rand_like(x) + 0.5,
    "drawn in place": lambda x: x.clone().bernoulli_(0.5) + 0.5,
    "sign": lambda x: x.sign(),
    "rounded": lambda x: x.round() + x.floor() + 2,
    "filled": lambda x: (x * 2).fill_(1.5),
    "integers": lambda x: x.argsort(-1).to(x.dtype) + 1,
    "chosen": lambda x: lt.where(x > 0.7, lt.full_like(x, 2.0), lt.ones_like(x)),
    "copied": lambda x: x.exp().copy_(x > 0.7) + 1,
}


def made(how, name, x):
    """An intermediate value, computed in one of many ways."""
    f = STEPS[name][0]
    if how == "written" and name in WRITTEN:
        return getattr(x.clone(), WRITTEN[name])()
    if how == "copied":
        return lt.empty_like(x).copy_(f(x))
    if how == "viewed":
        return f(x.reshape(-1)[:]).view(x.shape)
    if how == "parts":
        out = lt.zeros_like(x)
        out[0] = f(x[0])
        out[1:] = f(x[1:])
        return out
    if how == "joined":
        return lt.stack([f(row) for row in x.unbind(0)])
    if how == "out":
        return lt.mul(f(x), 1.0, out=lt.empty_like(x))
    if how == "wider":
        return f(x.to(lt.float64)).to(x.dtype)
    return f(x)


class Case:
    """One random Function beside its formula in ordinary ops."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.first, self.second = draw.choice(list(STEPS)), draw.choice(list(STEPS))
        self.mask = draw.choice(list(MASKS))
        self.how = draw.choice(
            ["plain", "written", "copied", "viewed", "parts", "joined", "out", "wider"]
        )
        self.keep = draw.choice(["saved", "attribute", "list", "dict"])
        self.cure = draw.choice(["none", "none", "none", "detach", "recompute", "output"])
        self.weighted = draw.random() < 0.5
        self.dtype = draw.choice([lt.float64, lt.float64, lt.float32])
        shape = draw.choice([(2, 3), (3, 2), (4, 1)])
        values = [draw.uniform(0.3, 1.1) for _ in range(shape[0] * shape[1])]
        self.x = lt.tensor(values, dtype=self.dtype).view(shape)
        if draw.random() < 0.5:
            self.x = self.x.mT.contiguous().mT
        self.w = lt.full_like(self.x, 1.3)
        self.drawn = None
        # The weight's gradient uses the value before the weight: an intermediate.
        uses = STEPS[self.first][2] or self.weighted
        self.uses_made = uses or self.second in ("square", "sin", "exp", "tanh")

    def reference(self, x, w, m, hold):
        """The gradients by x and w for a gradient of ones, in ordinary ops."""
        u = STEPS[self.first][0](x)
        u = u.detach() if hold else u
        return self.formula(x, w, u, m, 1.0, 0.0)

    def formula(self, x, w, u, m, g, gu):
        y = STEPS[self.second][0](u)
        dy = STEPS[self.second][1](u, y)
        du = STEPS[self.first][1](x, u)
        return (g * dy * m * w + gu) * du, g * y * m

    def function(self):
        case = self

        class Composed(Function):
            @staticmethod
            def forward(ctx, x, w):
                u = made(case.how, case.first, x)
                m = case.drawn = MASKS[case.mask](x)
                ctx.save_for_backward(x, w, m, u if case.keep == "saved" else None)
                if case.keep == "attribute":
                    ctx.u = u
                elif case.keep == "list":
                    ctx.kept = [None, u]
                elif case.keep == "dict":
                    ctx.kept = {"u": u}
                y = STEPS[case.second][0](u) * m * w
                return (y, u) if case.cure == "output" else y

            @staticmethod
            def backward(ctx, g, gu=0.0):
                x, w, m, u = ctx.saved_tensors
                if case.keep == "attribute":
                    u = ctx.u
                elif case.keep == "list":
                    u = ctx.kept[1]
                elif case.keep == "dict":
                    u = ctx.kept["u"]
                if case.cure == "detach":
                    u = u.detach()
                elif case.cure == "recompute":
                    u = STEPS[case.first][0](x)
                gx, gw = case.formula(x, w, u, m, g, gu)
                return gx, gw if ctx.needs_input_grad[1] else None

        return Composed.apply

    def run(self):
        """Whether the second derivative was refused."""
        x, w = self.x.clone().requires_grad_(), self.w.clone().requires_grad_(self.weighted)
        wanted = [x, w] if self.weighted else [x]
        out = self.function()(x, w)
        y = out[0] if self.cure == "output" else out
        first = lt.autograd.grad(y.sum(), wanted, create_graph=True)
        x0 = self.x.clone().requires_grad_()
        w0 = self.w.clone().requires_grad_(self.weighted)
        right = self.reference(x0, w0, self.drawn, hold=self.cure == "detach")[: len(wanted)]
        for a, b in zip(first, right, strict=True):
            assert lt.allclose(a, b, rtol=1e-4)
        total = sum((a * a).sum() for a in first)
        total_right = sum((b * b).sum() for b in right)
        if not total.requires_grad:
            assert not total_right.requires_grad
            return False
        if self.weighted:  # nothing that is missing depends on the weight
            (a,) = lt.autograd.grad(total, w, retain_graph=True)
            (b,) = lt.autograd.grad(total_right, w0, retain_graph=True)
            assert lt.allclose(a, b, rtol=1e-3)
        if self.cure == "none" and self.uses_made:
            with pytest.raises(
                lt.GradientError, match=r"^Composed\.backward .*argument 0.*\.detach"
            ):
                lt.autograd.grad(total, x)
            return True
        (a,) = lt.autograd.grad(total, x, allow_unused=True)
        (b,) = lt.autograd.grad(total_right, x0, allow_unused=True)
        none = lt.zeros_like(x)
        assert lt.allclose(none if a is None else a, none if b is None else b, rtol=1e-3)
        return False


@pytest.mark.parametrize("part", range(8))
def test_random_functions(part):
    refused = [Case(f"{part} {k}").run() for k in range(50)]
    assert 10 <= sum(refused) <= 40


def power_of(keep, wrap=lambda f: f):
    class Power(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x
            keep(ctx, x, y)
            return y * x

        @staticmethod
        @wrap
        def backward(ctx, g):
            return g * 3 * ctx.saved_tensors[0]

    return Power


def third(x):
    x = lt.tensor([x], dtype=lt.float64, requires_grad=True)
    return x, lambda f: lt.autograd.grad(f(x).sum(), x, create_graph=True)[0]


def test_the_error_names_the_class_the_value_and_the_way_out():
    _, gradient = third(16.0)
    g = gradient(power_of(lambda ctx, x, y: ctx.save_for_backward(y)).apply)
    assert g.tolist() == [768.0]
    message = (
        r"Power\.backward cannot be differentiated: Power\.saved_tensors\[0\] \(shape \(1,\)\) was "
        r"computed in forward from argument 0.*compute it again in backward, or return it as a "
        r"further output.*@once_differentiable.*\.detach\(\)"
    )
    with pytest.raises(lt.GradientError, match=message):
        g.backward()


def test_finite_differences_twice_do_not_pass_in_silence():
    x, _ = third(0.5)
    power = power_of(lambda ctx, x, y: ctx.save_for_backward(y)).apply
    assert lt.autograd.gradcheck(power, (x,))
    with pytest.raises(lt.GradientError, match="Power"):
        lt.autograd.gradgradcheck(power, (x,))


def test_a_graph_that_is_not_differentiated_again_is_left_alone():
    _, gradient = third(2.0)
    g = gradient(power_of(lambda ctx, x, y: ctx.save_for_backward(y)).apply)
    other = lt.ones(1, dtype=lt.float64, requires_grad=True)
    (h,) = lt.autograd.grad((g * other).sum(), other)
    assert h.tolist() == [12.0]


def test_through_hooks_of_saved_tensors():
    x, _ = third(2.0)
    with lt.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), lt.from_numpy):
        y = power_of(lambda ctx, x, y: ctx.save_for_backward(y)).apply(x)
    (g,) = lt.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(lt.GradientError, match="Power"):
        g.backward()


def test_attributes_are_as_they_were_after_backward():
    class Keeps(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.y = x * x
            ctx.several = (x, ctx.y)
            return ctx.y * x

        @staticmethod
        def backward(ctx, g):
            assert ctx.y.requires_grad == ctx.several[1].requires_grad == lt.is_grad_enabled()
            ctx.seen = True
            return g * 3 * ctx.several[1]

    x = lt.tensor([2.0], requires_grad=True)
    out = Keeps.apply(x)
    before = out.grad_fn.y, out.grad_fn.several
    for create in (True, False):
        lt.autograd.grad(out.sum(), x, create_graph=create, retain_graph=True)
        assert out.grad_fn.y is before[0]
        assert out.grad_fn.several is before[1]
        assert out.grad_fn.seen


def test_once_differentiable_keeps_plain_values():
    def plain(backward):
        def checked(ctx, g):
            assert not ctx.saved_tensors[0].requires_grad
            return backward(ctx, g)

        return once_differentiable(checked)

    _, gradient = third(2.0)
    power = power_of(lambda ctx, x, y: ctx.save_for_backward(y), plain)
    assert gradient(power.apply).tolist() == [12.0]


def test_what_a_function_inside_forward_makes_is_followed():
    class Inner(Function):
        @staticmethod
        def forward(ctx, x):
            return lt.from_numpy(x.numpy() ** 2)  # leaves lowtide

        @staticmethod
        def backward(ctx, g):
            return g

    class Power(Function):
        @staticmethod
        def forward(ctx, x):
            y = Inner.apply(x)
            ctx.save_for_backward(y)
            return y * x

        @staticmethod
        def backward(ctx, g):
            return g * 3 * ctx.saved_tensors[0]

    _, gradient = third(2.0)
    g = gradient(Power.apply)
    with pytest.raises(lt.GradientError, match="Power"):
        g.backward()


def test_a_value_of_another_argument_is_not_missing():
    class Both(Function):
        @staticmethod
        def forward(ctx, x, w, c):
            s = w.sin()
            ctx.save_for_backward(x, s, c.exp())
            return x * x * s

        @staticmethod
        def backward(ctx, g):
            x, s, e = ctx.saved_tensors
            return g * 2 * x * s * (e / e), g * x * x, None

    x, w = (lt.tensor([v], dtype=lt.float64, requires_grad=True) for v in (2.0, 0.5))
    (g,) = lt.autograd.grad(Both.apply(x, w, lt.ones(1)).sum(), x, create_graph=True)
    (h,) = lt.autograd.grad(g.sum(), x, retain_graph=True)
    assert h.tolist() == (2 * w.detach().sin()).tolist()
    with pytest.raises(lt.GradientError, match="Both.*argument 1"):
        lt.autograd.grad(g.sum(), w)


def test_forward_keeps_nothing_alive():
    class Long(Function):
        @staticmethod
        def forward(ctx, x):
            for _ in range(5):
                x = x + 1
            peaks.append(lt.memory_allocated("cpu") - before)
            return x

        @staticmethod
        def backward(ctx, g):
            return g

    peaks = []
    x = lt.ones(1000, requires_grad=True)
    before = lt.memory_allocated("cpu")
    Long.apply(x)
    assert peaks == [4000]
    assert lt.memory_allocated("cpu") == before
