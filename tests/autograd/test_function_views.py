"""Functions that return views or their inputs, or write into views: a right gradient or an error.

The reference of a random program is made of ordinary ops without one write in place: a write is a
product with a tensor of factors, and a Function whose backward scales by ``c`` is
``c * x - (c - 1) * x.detach()``. What the reference cannot say has to be an error that names the
class.
"""

from __future__ import annotations

import random

import pytest

import lowtide as lt
from lowtide.autograd import Function

SCALE = 5.0  # by which every backward here multiplies, so that one that is left out is seen
REFUSED = r"Scaled.*(\.clone\(\)|out-of-place)"


def function(forward, dirty=False):
    class Scaled(Function):
        @staticmethod
        def forward(ctx, x):
            if dirty:
                ctx.mark_dirty(x)
            return forward(x)

        @staticmethod
        def backward(ctx, *grads):
            return SCALE * sum(grads)

    return Scaled.apply


VIEWS = {
    "whole": lambda x: x[:],
    "input": lambda x: x,
    "twice": lambda x: x[:].view_as(x),
    "turned": lambda x: x.mT.mT,
}
SOURCES = {
    "base": lambda z: z,
    "rows": lambda z: z[1:],
    "columns": lambda z: z[:, ::2],
    "transposed": lambda z: z.mT,
    "view of view": lambda z: z[1:].mT[1:],
}
PARTS = {
    "all": lambda z: z,
    "first row": lambda z: z[0],
    "last rows": lambda z: z[1:],
    "a column": lambda z: z[:, 1],
}


def scaled(x):
    return SCALE * x - (SCALE - 1) * x.detach()


def factors(shape, view, k, dtype):
    """Ones, and ``k`` where ``view`` of a tensor of that shape lies."""
    out = lt.ones(shape, dtype=dtype)
    view(out).fill_(k)
    return out


class Program:
    """One random program, run with writes in place and, beside it, without."""

    def __init__(self, seed, kind):
        self.draw = random.Random(seed)
        self.dtype = self.draw.choice([lt.float64, lt.float32])
        self.shape = (self.draw.randint(2, 4), self.draw.randint(2, 4))
        n = self.shape[0] * self.shape[1]
        start = lt.tensor([self.draw.uniform(0.5, 2) for _ in range(n)], dtype=self.dtype)
        self.kind = kind
        self.source = SOURCES[self.draw.choice(list(SOURCES))]
        self.x, self.rx = (start.view(self.shape).clone().requires_grad_() for _ in range(2))
        weight = lt.tensor([self.draw.uniform(0.5, 2) for _ in range(n)], dtype=self.dtype)
        self.weight = weight.view(self.shape)
        self.z, self.rz = self.x * self.weight, self.rx * self.weight
        self.early = self.z[:1]  # a view from before
        self.loss, self.rloss = self.x.sum() * 0, self.rx.sum() * 0
        self.refusals = self.reads = 0
        self.outdated = False
        self.apply()

    def apply(self):
        part = self.source(self.z)
        if self.kind == "hidden":
            self.y = function(lambda x: (x * 2)[:])(part)
            self.ry = scaled(self.source(self.rz)) + self.source(self.rz).detach()
        elif self.kind == "dirty":
            self.y = function(lambda x: x.mul_(2), dirty=True)(part)
            assert self.y is part
            gain = factors(self.shape, self.source, SCALE, self.dtype)
            less = factors(self.shape, self.source, SCALE - 1, self.dtype) - 1
            self.rz = self.rz * gain - self.rz.detach() * less
        elif self.kind == "two":
            self.y, self.other = function(lambda x: (x[:], x.view_as(x)))(part)
            self.ry = scaled(self.source(self.rz))
        else:
            self.y = function(VIEWS[self.kind])(part)
            self.ry = scaled(self.source(self.rz))
        self.child = self.y[:1]

    def of_y(self):
        return self.source(self.rz) if self.kind == "dirty" else self.ry

    def refused(self, f):
        with pytest.raises(RuntimeError, match=REFUSED):
            f()
        self.refusals += 1

    def write_base(self):
        part, k = PARTS[self.draw.choice(list(PARTS))], self.draw.choice([-3.0, 0.5])
        part(self.z).mul_(k)
        self.rz = self.rz * factors(self.shape, part, k, self.dtype)
        self.outdated = self.kind not in ("hidden", "dirty")

    def write_constants(self):
        with lt.no_grad():
            self.z.mul_(2)
        self.rz = self.rz + self.rz.detach()
        if self.kind not in ("hidden", "dirty"):
            self.ry = self.ry + self.ry.detach()

    def write_output(self):
        target = self.draw.choice([lambda: self.y, lambda: self.y[:1], lambda: self.child])
        if self.kind in ("hidden", "dirty"):
            row = target() is not self.y
            target().mul_(-2)
            inside = (lambda y: y[:1]) if row else (lambda y: y)
            if self.kind == "hidden":
                self.ry = self.ry * factors(self.ry.shape, inside, -2, self.dtype)
            else:
                where = lambda z: inside(self.source(z))  # noqa: E731
                self.rz = self.rz * factors(self.shape, where, -2, self.dtype)
        else:
            self.refused(lambda: target().mul_(-2))

    def read_output(self):
        read = self.draw.choice(
            [lambda: self.y, lambda: self.child, lambda: getattr(self, "other", self.y)]
        )
        if self.outdated:
            self.refused(lambda: (read() ** 2).sum())
            self.refused(lambda: read().grad_fn)
            return
        self.reads += 1
        y = read()
        self.loss = self.loss + (y**2).sum()
        r = self.of_y()
        self.rloss = self.rloss + ((r if y.shape == r.shape else r[:1]) ** 2).sum()

    def read_base(self):
        early = self.draw.random() < 0.5
        self.loss = self.loss + ((self.early if early else self.z) ** 2).sum()
        self.rloss = self.rloss + ((self.rz[:1] if early else self.rz) ** 2).sum()

    def run(self):
        for _ in range(self.draw.randint(1, 3)):
            self.draw.choice([self.write_base, self.write_constants, self.write_output])()
        self.read_output()
        self.read_base()
        assert self.loss.item() == pytest.approx(self.rloss.item(), rel=1e-4)
        self.loss.backward()
        self.rloss.backward()
        assert lt.allclose(self.x.grad, self.rx.grad, rtol=1e-4)


@pytest.mark.parametrize("kind", [*VIEWS, "two", "hidden", "dirty"])
def test_random_programs(kind):
    programs = [Program(f"{kind} {k}", kind) for k in range(60)]
    for program in programs:
        program.run()
    refusals = sum(p.refusals > 0 for p in programs)
    reads = sum(p.reads > 0 for p in programs)
    assert reads >= 10
    assert refusals == 0 if kind in ("hidden", "dirty") else refusals >= 20


def leaf(*values):
    return lt.tensor(list(values), dtype=lt.float64, requires_grad=True)


@pytest.mark.parametrize("forward", VIEWS.values(), ids=VIEWS)
def test_an_output_whose_base_was_written_is_refused(forward):
    x = lt.ones(2, 2, requires_grad=True)
    z = x * 1
    y = function(forward)(z)
    z.mul_(-3)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"Output 0 of Scaled is a view.*Return \.clone"):
            y.sum()
    assert z.sum().item() == -12


def test_a_write_that_no_gradient_sees_leaves_the_output_as_it_is():
    x = leaf(1.0, 2.0)
    y = function(lambda x: x[:])(x)
    with lt.no_grad():
        x.mul_(3)
    y.sum().backward()
    assert x.grad.tolist() == [SCALE, SCALE]


def test_a_view_of_a_constant_is_refused_after_any_write():
    class Scaled(Function):
        @staticmethod
        def forward(ctx, x, c):
            return c[:]

        @staticmethod
        def backward(ctx, g):
            return g, None

    x, c = leaf(1.0, 2.0), lt.tensor([5.0, 6.0], dtype=lt.float64)
    y = Scaled.apply(x, c)
    assert lt.autograd.grad(y.sum(), x)[0].tolist() == [1.0, 1.0]
    c.mul_(2)  # not recorded, and yet y has another value now
    with pytest.raises(RuntimeError, match=REFUSED):
        y.sum()


def test_an_output_that_is_a_view_of_another():
    def pair(x):
        t = x * 1
        return t, t[:1]

    a, b = function(pair)(lt.ones(1, requires_grad=True))
    with pytest.raises(RuntimeError, match="Output 1 of Scaled"):
        b.mul_(2)
    a.mul_(2)
    with pytest.raises(RuntimeError, match="Output 1 of Scaled"):
        b.sum()


def test_as_strided_does_not_leave_the_output():
    z = leaf(1.0, 2.0, 3.0) * 1
    y = function(lambda x: x[:])(z[1:])
    with pytest.raises(RuntimeError, match=REFUSED):
        y.as_strided((3,), (1,), 0)
    assert y.as_strided((1,), (1,), 2).tolist() == [3.0]


@pytest.mark.parametrize("view", [lambda x: x[:], lambda x: x[:1], lambda x: x.view(1, 2)])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_dirty_view_of_a_leaf_is_refused_and_the_leaf_stays_one(view, recorded):
    x = leaf(1.0, 2.0)
    with lt.set_grad_enabled(recorded):
        part = view(x)
    with pytest.raises(RuntimeError, match="Scaled.*a view of a leaf"):
        function(lambda x: x.mul_(2), dirty=True)(part)
    assert x.is_leaf
    with lt.no_grad():  # as any write under no_grad
        function(lambda x: x.mul_(2), dirty=True)(part)
    assert x.is_leaf


def test_a_dirty_output_of_a_function_is_refused():
    y = function(lambda x: x[:])(leaf(1.0) * 1)
    with pytest.raises(RuntimeError, match=REFUSED):
        function(lambda x: x.mul_(2), dirty=True)(y)


def test_views_of_outputs_hold_nothing_alive():
    before = lt.memory_allocated("cpu")
    x = lt.ones(1000, requires_grad=True)
    z = x * 1
    y = function(lambda x: x[:])(z)
    del z
    y.sum().backward()
    del x, y
    assert lt.memory_allocated("cpu") == before
