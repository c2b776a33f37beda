"""vmap with grad, vjp, Jacobians, modules, checkpoints, autocast; and autograd.grad in batches."""

import pytest

import lowtide as lt
from lowtide.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    replace_all_batch_norm_modules_,
    stack_module_state,
    vjp,
    vmap,
)
from lowtide.nn import functional as F

nn = lt.nn


@pytest.fixture
def x():
    lt.manual_seed(0)
    return lt.randn(4, 3, dtype=lt.float64)


def loop(f, *args):
    found = [f(*[a[k] for a in args]) for k in range(len(args[0]))]
    return lt.stack(found)


def equal(a, b, tolerance=1e-10):
    assert tuple(a.shape) == tuple(b.shape)
    assert (a - b).abs().max().item() <= tolerance


def test_jacobians_of_each_sample(x):
    def f(a):
        return lt.stack([a.sin().sum(), (a * a[0]).prod()])

    for transform in (jacrev, jacfwd):
        equal(vmap(transform(f))(x), loop(transform(f), x))
    equal(jacrev(f)(x[0]), jacfwd(f)(x[0]))
    equal(jacrev(f, chunk_size=1)(x[0]), jacfwd(f, chunk_size=2)(x[0]))
    g = hessian(lambda a: f(a).prod())
    equal(vmap(g)(x), loop(g, x))


def test_a_jacobian_is_a_vmap_of_products(x):
    def f(a):
        return a.exp() * a[0]

    _, product = vjp(f, x[0])
    equal(vmap(product)(lt.eye(3, dtype=lt.float64))[0], jacrev(f)(x[0]))
    columns = vmap(lambda v: jvp(f, (x[0],), (v,))[1], out_dims=1)(lt.eye(3, dtype=lt.float64))
    equal(columns, jacrev(f)(x[0]))
    out, linear = linearize(f, x[0])
    equal(out, f(x[0]))
    equal(vmap(linear, out_dims=1)(lt.eye(3, dtype=lt.float64)), jacrev(f)(x[0]))


def test_jacobians_can_be_differentiated(x):
    leaf = x[0].clone().requires_grad_()
    (jacrev(lambda a: a**3)(leaf) ** 2).sum().backward()
    equal(leaf.grad, 36 * x[0] ** 3)
    leaf.grad = None
    (jacfwd(lambda a: a**3)(leaf) ** 2).sum().backward()
    equal(leaf.grad, 36 * x[0] ** 3)


def test_outputs_that_do_not_depend_have_zero_rows(x):
    def f(a):
        return lt.ones(2, dtype=lt.float64), a * 2

    for transform in (jacrev, jacfwd):
        zero, two = transform(f)(x[0])
        assert zero.tolist() == [[0.0] * 3] * 2
        equal(two, 2 * lt.eye(3, dtype=lt.float64))


def test_vectors_in_batches(x):
    w = x.clone().requires_grad_()
    y = (w @ w.T).tanh()
    vectors = lt.randn(5, 4, 4, dtype=lt.float64)
    (found,) = lt.autograd.grad(y, w, vectors, is_grads_batched=True, retain_graph=True)
    expected = [lt.autograd.grad(y, w, v, retain_graph=True)[0] for v in vectors]
    equal(found, lt.stack(expected))
    other = lt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="not have been used"):
        lt.autograd.grad(y, other, vectors, is_grads_batched=True, retain_graph=True)
    found = lt.autograd.grad(y, [w, other], vectors, is_grads_batched=True, allow_unused=True)
    assert found[1] is None


def test_vectorized_jacobians_of_autograd(x):
    jacobian, hessian_ = lt.autograd.functional.jacobian, lt.autograd.functional.hessian

    def f(a, b):
        return (a * b).sin(), a.sum() * b

    for strategy in ("reverse-mode", "forward-mode"):
        found = jacobian(f, (x[0], x[1]), vectorize=True, strategy=strategy)
        for row, other in zip(found, jacobian(f, (x[0], x[1])), strict=True):
            for a, b in zip(row, other, strict=True):
                equal(a, b)
    equal(hessian_(lambda a: a.prod(), x[0], vectorize=True), hessian_(lambda a: a.prod(), x[0]))
    with pytest.raises(RuntimeError, match="not supported together"):
        jacobian(f, (x[0], x[1]), vectorize=True, strict=True)


MODELS = {
    "dense": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)),
        lambda: lt.randn(5, 6),
    ),
    "convolutional": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 1, groups=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        lambda: lt.randn(5, 2, 4, 4),
    ),
    "transformer": (
        lambda: nn.Sequential(
            nn.Embedding(10, 8),
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
            nn.Linear(8, 3),
        ),
        lambda: lt.randint(0, 10, (5, 7)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_per_sample_gradients(name):
    lt.manual_seed(0)
    make, data = MODELS[name]
    model, x = make().double(), data()
    x = x.double() if x.dtype.is_floating_point else x
    y = lt.randint(0, 3, (5, 7) if name == "transformer" else (5,))
    leaves = dict(model.named_parameters())
    params = {n: p.detach() for n, p in leaves.items()}

    def loss(p, a, b):
        out = functional_call(model, p, (a.unsqueeze(0),))
        return F.cross_entropy(out.reshape(-1, 3), b.reshape(-1))

    each = [grad(loss)(params, x[k], y[k]) for k in range(5)]
    found, values = vmap(grad_and_value(loss), (None, 0, 0))(params, x, y)
    equal(values, lt.stack([loss(params, x[k], y[k]) for k in range(5)]))
    for n, g in found.items():
        equal(g, lt.stack([e[n] for e in each]))
    # From outside, what samples share has one gradient, in memory of its own size.
    vmap(loss, (None, 0, 0))(leaves, x, y).sum().backward()
    for n, p in leaves.items():
        equal(p.grad, sum(e[n] for e in each))

    def penalty(p):
        return sum((g**2).sum() for g in vmap(grad(loss), (None, 0, 0))(p, x, y).values())

    def penalty_by_loop(p):
        return sum((g**2).sum() for k in range(5) for g in grad(loss)(p, x[k], y[k]).values())

    expected = grad(penalty_by_loop)(params)
    for n, g in grad(penalty)(params).items():
        equal(g, expected[n], 1e-8)


def test_an_ensemble(x):
    models = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double().eval() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    assert all(p.requires_grad and p.is_leaf for p in parameters.values())

    def run(p, b, a):
        return functional_call(models[0], (p, b), (a,))

    out = vmap(run, (0, 0, None))(parameters, buffers, x)
    equal(out, lt.stack([m(x) for m in models]))
    out.square().sum().backward()
    for k, model in enumerate(models):
        model(x).square().sum().backward()
        for n, p in model.named_parameters():
            equal(parameters[n].grad[k], p.grad)


def test_what_cannot_be_stacked():
    with pytest.raises(RuntimeError, match="at least one model"):
        stack_module_state([])
    with pytest.raises(RuntimeError, match="same class"):
        stack_module_state([nn.Linear(1, 1), nn.ReLU()])
    with pytest.raises(RuntimeError, match="training/eval mode"):
        stack_module_state([nn.Linear(1, 1), nn.Linear(1, 1).eval()])
    with pytest.raises(RuntimeError, match="other parameters"):
        stack_module_state([nn.Linear(1, 1), nn.Linear(1, 1, bias=False)])
    frozen = nn.Linear(1, 1).requires_grad_(False)
    with pytest.raises(RuntimeError, match="requires_grad"):
        stack_module_state([nn.Linear(1, 1), frozen])


def test_batch_norm_without_running_statistics():
    model = nn.Sequential(nn.BatchNorm1d(3))
    assert replace_all_batch_norm_modules_(model) is model
    data = lt.randn(2, 5, 3)
    equal(vmap(model)(data), loop(model, data), 1e-5)


def test_recurrent_layers_in_each_sample():
    lt.manual_seed(0)
    data = lt.randn(3, 5, 2, 4, dtype=lt.float64)
    for layer in (nn.LSTM(4, 3), nn.GRU(4, 3), nn.RNN(4, 3)):
        layer.double()
        parameters = {n: p.detach() for n, p in layer.named_parameters()}

        def loss(p, a, layer=layer):
            return functional_call(layer, p, (a,))[0].square().sum()

        found = vmap(grad(loss), (None, 0))(parameters, data)
        for n, g in found.items():
            equal(g, lt.stack([grad(loss)(parameters, d)[n] for d in data]))


def test_checkpoint_inside_and_around(x):
    w = lt.randn(3, dtype=lt.float64, requires_grad=True)

    def block(a):
        return (a.sin() * w).exp()

    def f(a):
        return lt.checkpoint(block, a).sum()

    equal(vmap(grad(f))(x), vmap(grad(lambda a: block(a).sum()))(x))
    expected = lt.autograd.grad(vmap(block)(x).sum(), w)[0]
    equal(lt.autograd.grad(vmap(f)(x).sum(), w)[0], expected)
    equal(lt.autograd.grad(lt.checkpoint(vmap(block), x).sum(), w)[0], expected)


def test_autocast_holds_inside(x):
    w = lt.randn(2, 3)
    with lt.autocast("cpu"):
        out = vmap(lambda a: F.linear(a, w))(x.float())
    assert out.dtype is lt.bfloat16
    assert out.shape == (4, 2)


class Cube(lt.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a, w):
        return a * a * a * w, a + w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g, h):
        a, w = ctx.saved_tensors
        return g * 3 * a * a * w + h, g * a * a * a + h


SEEN = []


class Exp(lt.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        out = a.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]

    @staticmethod
    def vmap(info, in_dims, a):
        SEEN.append((info.batch_size, info.randomness, in_dims, tuple(a.shape)))
        return Exp.apply(a), 0


def test_custom_functions_of_ops(x):
    w = x[1]

    def f(a, w):
        p, q = Cube.apply(a, w)
        return (p * p * q).sum()

    def plain(a, w):
        p, q = a * a * a * w, a + w
        return (p * p * q).sum()

    for argument in (0, 1):
        for dims in ((0, None), (0, 0)):
            args = (x, w if dims[1] is None else x.flip(0))
            a = vmap(grad(f, argument), dims)(*args)
            equal(a, vmap(grad(plain, argument), dims)(*args))
        equal(
            vmap(hessian(f, argument), (0, None))(x, w),
            vmap(hessian(plain, argument), (0, None))(x, w),
            1e-8,
        )
    equal(
        grad(lambda w: vmap(f, (0, None))(x, w).sum())(w),
        grad(lambda w: vmap(plain, (0, None))(x, w).sum())(w),
    )


def test_custom_functions_with_a_rule(x):
    SEEN.clear()
    equal(vmap(grad(lambda a: Exp.apply(a).sum()))(x), x.exp())
    assert SEEN == [(4, "error", (0,), (4, 3))]
    equal(vmap(vmap(Exp.apply), randomness="same")(x), x.exp())


def test_custom_functions_without_one_are_refused(x):
    class Bare(lt.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a

    with pytest.raises(RuntimeError, match=r"vmap over Bare.*generate_vmap_rule"):
        vmap(Bare.apply)(x)
    assert Bare.apply(x).shape == (4, 3)


ORDERS = {  # of arrival: the shared gradient first, or last
    "first": lambda a, step: step(a) * 2 - a.sin() * step(a + 1),
    "last": lambda a, step: a.sin() * step(a + 1) - step(a) * 2,
    "between": lambda a, step: a.exp() - step(a) + a.sin() * a,
    "of a view": lambda a, step: a[:2] - step(a)[1:] + a[1:].exp(),
}
STEPS = {
    "round": lt.Tensor.round,
    "detach": lambda a: a.detach() + 0 * a.sign(),
    "shared": lambda a: a + a.floor(),
    "as_strided": lambda a: a.contiguous().as_strided((3,), (1,)) * 2,
    "overlapping": lambda a: a.contiguous().as_strided((3, 2), (1, 0)).sum(1),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("step", STEPS)
def test_a_gradient_of_one_sample_meets_one_of_all(x, order, step):
    def f(a):
        return ORDERS[order](a, STEPS[step])

    a = x[0].contiguous()
    rows = [lt.autograd.functional.vjp(f, a, v)[1] for v in lt.eye(len(f(a)), dtype=lt.float64)]
    equal(jacrev(f)(a), lt.stack(rows))
    equal(jacfwd(f)(a), lt.stack(rows))

    def size(a):
        return (f(a) ** 2).sum()

    def slope(a):
        return grad(size)(a)

    second = [lt.autograd.functional.vjp(slope, a, v)[1] for v in lt.eye(3, dtype=lt.float64)]
    equal(hessian(size)(a), lt.stack(second), 1e-9)
