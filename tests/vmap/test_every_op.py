"""vmap over each operand of each op equals a loop over samples, in values and gradients.

Samples are those that ops declare (``tests/samples.py``); the values of several seeds are a batch.
"""

import warnings
from itertools import combinations

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework import testing
from lowtide.framework.autograd.engine import grad
from lowtide.framework.kernels.runtime import thresholds
from lowtide.framework.ops.convolution import routes
from lowtide.framework.ops.registry import OPS
from lowtide.framework.tensor import Tensor
from tests.ops.test_compiled_entries import SMALL

COUNT = 3
REFUSED = {n for n, op in OPS.items() if op.infer is None}
QUICK = (  # one of each kind of rule; the rest is of the deep tier
    "mul", "_where", "_softmax", "_sum", "_gather", "_cat", "matmul", "linear", "_conv",
    "_max_pool", "_layer_norm", "_index", "_index_put", "_embedding", "_cross_entropy", "_solve",
    "_class_mean",
    "_attention", "_relu_with_bitmask", "_median", "_view", "_expand", "_squared_error_total",
)  # fmt: skip
NAMES = [
    n if n in QUICK else pytest.param(n, marks=pytest.mark.deep) for n in sorted({*OPS} - REFUSED)
]


def batches(op, dtype=lt.float64):
    """(samples of a batch, attributes): COUNT lists of inputs that are alike in shape."""
    made = [testing.samples(op, testing.Make(dtype, seed=s)) for s in range(COUNT)]
    for same in zip(*made, strict=True):
        yield [inputs for inputs, _ in same], same[0][1]


def mapped_sets(op, inputs):
    """Which operands are batched: each tensor alone, and all of them."""
    tensors = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
    chosen = [(i,) for i in tensors]
    if len(tensors) > 2:
        chosen += list(combinations(tensors, 2))[:3]
    if len(tensors) > 1:
        chosen.append(tuple(tensors))
    return chosen


def leaves(op, values):
    """Leaves with these values; those with a gradient rule require grad."""
    return testing.place(values, "cpu", op)


def weights_like(outputs):
    random = np.random.default_rng(5)
    made = []
    for o in outputs:
        v = random.standard_normal(tuple(o.shape))
        made.append(lt.tensor(v, dtype=o.dtype))
    return made


def near(a, b, what):
    assert tuple(a.shape) == tuple(b.shape), f"{what}: {tuple(a.shape)} for {tuple(b.shape)}"
    assert a.dtype is b.dtype, f"{what}: {a.dtype} for {b.dtype}"
    x, y = a.detach().to_dense().numpy(), b.detach().to_dense().numpy()
    close = (
        1e-9 if (b.dtype.itemsize == 8 and not b.is_complex()) or b.dtype.itemsize == 16 else 1e-4
    )
    np.testing.assert_allclose(x, y, rtol=close, atol=close, err_msg=what)


def shown(op):
    """How many results are compared: those with bits of neighbours in a byte are not."""
    return [
        k
        for k, n in enumerate(op.returns)
        if not n.startswith("bitmask") and n not in ("above", "apart")
    ]


def check(op, rows, attributes, batched):
    first = rows[0]
    inputs = []
    for i, x in enumerate(first):
        if i in batched:
            inputs.append(lt.stack([r[i].detach() for r in rows]))
        else:
            inputs.append(x)
    inputs = leaves(op, inputs)
    dims = tuple(0 if i in batched else None for i in range(len(inputs)))
    keep = shown(op)

    def one(*xs):
        out = testing.call(op, xs, attributes)
        return tuple(out[k] for k in keep)

    expected = [
        one(*[x[k] if i in batched else x for i, x in enumerate(inputs)]) for k in range(COUNT)
    ]
    expected = [lt.stack(list(column)) for column in zip(*expected, strict=True)]
    found = lt.vmap(one, dims)(*inputs)
    for f, e in zip(found, expected, strict=True):
        near(f, e, "result")
    wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    pairs = [(f, e) for f, e in zip(found, expected, strict=True) if e.requires_grad]
    if not wanted or not pairs:
        return
    u = weights_like([e for _, e in pairs])
    got = grad([f for f, _ in pairs], wanted, u, allow_unused=True, materialize_grads=True)
    want = grad([e for _, e in pairs], wanted, u, allow_unused=True, materialize_grads=True)
    for g, w in zip(got, want, strict=True):
        near(g, w, "gradient from outside")
    # Inside: one gradient per sample, of shared operands too.
    places = tuple(i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad)
    plain = [x.detach() if isinstance(x, Tensor) else x for x in inputs]

    def scalar(*xs):
        total = 0.0
        for o in one(*xs):
            if o.dtype.is_floating_point:
                total = total + (o * o).sum()
            elif o.dtype.is_complex:
                total = total + (o * o.conj()).sum().real
        return total

    inner = lt.func.grad(scalar, places)
    try:
        want = [
            [
                g.to_dense()
                for g in inner(*[x[k] if i in batched else x for i, x in enumerate(plain)])
            ]
            for k in range(COUNT)
        ]
    except NotImplementedError:
        return
    got = lt.vmap(inner, dims)(*plain)
    for g, column in zip(got, zip(*want, strict=True), strict=True):
        near(g, lt.stack(list(column)), "gradient of each sample")


def test_the_quick_choice_is_of_ops():
    assert {*QUICK} <= {*OPS}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_results_whose_shape_depends_on_values_are_refused(name):
    op = OPS[name]
    inputs, attributes = testing.samples(op, testing.Make())[0]
    batch = [lt.stack([x, x]) if isinstance(x, Tensor) else x for x in inputs]
    dims = tuple(0 if isinstance(x, Tensor) else None for x in inputs)
    with pytest.raises(RuntimeError, match=r"not possible to vmap over.*dynamic shape"):
        lt.vmap(lambda *xs: testing.call(op, xs, attributes), dims)(*batch)


@pytest.mark.parametrize("name", NAMES)
def test_vmap_equals_a_loop(name):
    go_over(OPS[name])


@pytest.mark.deep
@pytest.mark.parametrize("name", sorted({*OPS} - REFUSED))
def test_vmap_equals_a_loop_where_kernels_are_compiled(name, monkeypatch):
    for limit, value in SMALL.items():
        monkeypatch.setattr(thresholds, limit, value)
    for op in OPS.values():
        monkeypatch.setattr(op, "plans", {})
    routes.route.cache_clear()
    try:
        go_over(OPS[name], lt.float32)
    finally:
        routes.route.cache_clear()


def go_over(op, dtype=lt.float64):
    """Check every sample of an op, with each choice of batched operands."""
    name = op.name
    failed = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        for number, (rows, attributes) in enumerate(batches(op, dtype)):
            for chosen in mapped_sets(op, rows[0]):
                try:
                    check(op, rows, attributes, chosen)
                except Exception as error:
                    error.add_note(f"sample {number}, batched {chosen}")
                    error.add_note(testing.describe(rows[0], attributes))
                    failed[number, chosen] = error
    if failed:
        raise ExceptionGroup(f"{name}: {[*failed]}", list(failed.values()))
