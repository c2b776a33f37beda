"""Elementwise functions against PyTorch: values, dtypes, two orders of gradient, error types."""

import numpy as np
import pytest

import lowtide as lt
from lowtide.framework.autograd.engine import grad
from lowtide.framework.dtypes import tolerance
from lowtide.nn import functional as F

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

ANY, POSITIVE, UNIT, ABOVE_ONE = (-2.0, 2.0), (0.3, 2.5), (-0.9, 0.9), (1.2, 3.0)
WIDE = (-8.0, 8.0)
SHAPES = ((3, 4), (2, 3, 2), (), (0, 3))
PAIRS = (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((2,), ()), ((0, 3), (1, 3)))

# name -> (range of the values, keyword arguments)
UNARY = {
    **dict.fromkeys(
        "neg abs sign square exp exp2 expm1 sin cos sinh cosh tanh atan asinh erf erfc sigmoid "
        "floor ceil round trunc frac deg2rad rad2deg sinc isnan isinf isfinite isposinf isneginf "
        "logical_not signbit nan_to_num relu selu celu real conj angle sgn positive "
        "absolute negative arctan arcsinh fix".split(),
        (ANY, {}),
    ),
    **dict.fromkeys(
        "sqrt rsqrt reciprocal log log2 log10 log1p lgamma digamma".split(), (POSITIVE, {})
    ),
    **dict.fromkeys("asin acos atanh erfinv arcsin arccos arctanh tan".split(), (UNIT, {})),
    **dict.fromkeys("acosh arccosh".split(), (ABOVE_ONE, {})),
    "logit": ((0.1, 0.9), {"eps": 0.15}),
}
FUNCTIONAL = {
    "relu": {}, "relu6": {}, "leaky_relu": {"negative_slope": 0.2}, "elu": {"alpha": 1.3},
    "selu": {}, "celu": {"alpha": 0.7}, "gelu": {}, "gelu tanh": {"approximate": "tanh"},
    "silu": {}, "mish": {}, "softplus": {"beta": 2.0, "threshold": 3.0}, "softplus plain": {},
    "hardtanh": {"min_val": -0.6, "max_val": 0.9}, "hardswish": {}, "hardsigmoid": {},
    "softsign": {}, "logsigmoid": {}, "tanhshrink": {}, "softshrink": {"lambd": 0.7},
    "hardshrink": {"lambd": 0.7}, "threshold": {"threshold": 0.3, "value": 5.0},
    "sigmoid": {}, "tanh": {},
}  # fmt: skip
BINARY = {
    **dict.fromkeys(
        "add sub mul maximum minimum fmax fmin logaddexp logaddexp2 eq ne lt le gt ge "
        "logical_and logical_or logical_xor not_equal less greater less_equal greater_equal "
        "subtract multiply".split(),
        (ANY, {}),
    ),
    **dict.fromkeys(
        "div true_divide divide floor_divide remainder fmod pow atan2 hypot xlogy copysign "
        "float_power".split(),
        (POSITIVE, {}),
    ),
    "add alpha": (ANY, {"alpha": 2}),
    "sub alpha": (ANY, {"alpha": 0.5}),
    "div floor": (POSITIVE, {"rounding_mode": "floor"}),
    "div trunc": (POSITIVE, {"rounding_mode": "trunc"}),
}
INTEGER = (
    "add sub mul div floor_divide remainder fmod maximum minimum eq lt ge logical_and logical_xor "
    "bitwise_and bitwise_or bitwise_xor atan2 copysign"
).split()
INTEGER_UNARY = (
    "neg abs sign square sqrt exp log1p sigmoid floor ceil round trunc isnan isinf isfinite "
    "logical_not bitwise_not relu signbit reciprocal"
).split()


def numbers(shape, low, high, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape)


def both(array, dtype="float64", requires_grad=False):
    ours = lt.tensor(array).to(getattr(lt, dtype))
    theirs = torch.tensor(array).to(getattr(torch, dtype))
    if requires_grad:
        ours.requires_grad_()
        theirs.requires_grad_()
    return ours, theirs


def as_numpy(t):
    if isinstance(t, torch.Tensor):
        t = t.detach().resolve_conj()
        return (t.to(torch.float64) if t.dtype.is_floating_point else t).numpy(force=True)
    t = t.detach()
    return (t.to(lt.float64) if t.is_floating_point() else t).numpy()


def assert_same(ours, theirs, scale=1.0):
    assert tuple(ours.shape) == tuple(theirs.shape)
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
    rtol, atol = (1e-6, 1e-9) if ours.dtype is lt.float64 else tolerance(ours.dtype)
    np.testing.assert_allclose(
        as_numpy(ours), as_numpy(theirs), rtol=scale * rtol, atol=scale * atol
    )


# What PyTorch cannot differentiate.
NO_DERIVATIVE = ("torch::autograd::NotImplemented",)
NO_SECOND_DERIVATIVE = ("HardsigmoidBackward0",)


def base_name(t):
    return "" if t.grad_fn is None else t.grad_fn.name()


def compare(function, other, arrays):
    """Value, gradient and second gradient in float64."""
    xs, ys = zip(*[both(a, requires_grad=True) for a in arrays], strict=True)
    a, b = function(*xs), other(*ys)
    assert_same(a, b)
    if not b.requires_grad:
        return
    if base_name(b) in NO_DERIVATIVE:
        return
    w, v = both(numbers(tuple(b.shape), -1, 1, 5))
    first = grad(a, list(xs), w, create_graph=True, allow_unused=True, materialize_grads=True)
    theirs = torch.autograd.grad(
        b, ys, v, create_graph=True, allow_unused=True, materialize_grads=True
    )
    for g, h in zip(first, theirs, strict=True):
        assert_same(g, h)
    total = sum((g * g).sum() for g in first if g.requires_grad)
    reference = sum((h * h).sum() for h in theirs if h.requires_grad)
    if not isinstance(reference, torch.Tensor) or base_name(b) in NO_SECOND_DERIVATIVE:
        return
    if isinstance(total, lt.Tensor):
        second = grad(total, list(xs), allow_unused=True, materialize_grads=True)
    else:  # lowtide knows that the gradient does not depend on the inputs
        second = [lt.zeros_like(x) for x in xs]
    expected = torch.autograd.grad(reference, ys, allow_unused=True, materialize_grads=True)
    for g, h in zip(second, expected, strict=True):
        assert_same(g, h)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number_agree(name, shape):
    (low, high), keywords = UNARY[name]
    f, g = getattr(lt, name), getattr(torch, name)
    compare(lambda x: f(x, **keywords), lambda x: g(x, **keywords), [numbers(shape, low, high)])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_activations_agree(name, shape):
    keywords, base = FUNCTIONAL[name], name.split()[0]
    f, g = getattr(F, base), getattr(torch.nn.functional, base)
    compare(lambda x: f(x, **keywords), lambda x: g(x, **keywords), [numbers(shape, *WIDE)])


@pytest.mark.parametrize("shapes", PAIRS)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers_agree(name, shapes):
    ((low, high), keywords), base = BINARY[name], name.split()[0]
    f, g = getattr(lt, base), getattr(torch, base)
    arrays = [numbers(s, low, high, k) for k, s in enumerate(shapes)]
    compare(lambda x, y: f(x, y, **keywords), lambda x, y: g(x, y, **keywords), arrays)


@pytest.mark.parametrize("name", ["add", "mul", "div", "pow", "maximum", "atan2", "lerp"])
def test_inputs_need_not_be_contiguous(name):
    arrays = [numbers((2, 3, 4), *POSITIVE, k) for k in range(2)]
    extra = (0.3,) if name == "lerp" else ()

    def run(m):
        return lambda x, y: getattr(m, name)(x.permute(2, 0, 1), y.permute(2, 0, 1), *extra)

    compare(run(lt), run(torch), arrays)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("lerp", {"weight": 0.2}), ("lerp", {"weight": 0.9}), ("pow", {"exponent": 2}),
        ("pow", {"exponent": 3}), ("pow", {"exponent": -1}), ("pow", {"exponent": 0.5}),
        ("pow", {"exponent": 0}), ("pow", {"exponent": -1.7}), ("clamp", {"min": 0.5}),
        ("clamp", {"max": 1.5}), ("clamp", {"min": 0.5, "max": 1.5}), ("clamp_min", {"min": 1.0}),
        ("clamp_max", {"max": 1.0}), ("round", {"decimals": 1}), ("xlogy", {"other": 2.0}),
        ("remainder", {"other": 0.7}), ("fmod", {"other": 0.7}), ("eq", {"other": 1}),
    ],
)  # fmt: skip
def test_scalars_agree(name, extra):
    arrays = [numbers((3, 4), *POSITIVE, k) for k in range(2 if name == "lerp" else 1)]
    values = tuple(extra.values()) if name == "xlogy" else ()
    words = {} if name == "xlogy" else extra
    compare(
        lambda *x: getattr(lt, name)(*x, *values, **words),
        lambda *x: getattr(torch, name)(*x, *values, **words),
        arrays,
    )


@pytest.mark.parametrize("name", ["addcmul", "addcdiv", "lerp", "clamp"])
def test_functions_of_three_tensors_agree(name):
    arrays = [numbers(s, *POSITIVE, k) for k, s in enumerate(((3, 4), (4,), (3, 1)))]
    if name == "clamp":
        arrays[1] = arrays[1] * 0.3
    words = {"value": 0.5} if name.startswith("addc") else {}
    compare(
        lambda *x: getattr(lt, name)(*x, **words),
        lambda *x: getattr(torch, name)(*x, **words),
        arrays,
    )


def test_glu_and_prelu_agree():
    x = numbers((3, 4, 2), *ANY)
    compare(lambda t: F.glu(t, 1), lambda t: torch.nn.functional.glu(t, 1), [x])
    compare(F.prelu, torch.nn.functional.prelu, [x, numbers((4,), *ANY, 3)])
    compare(F.prelu, torch.nn.functional.prelu, [x, numbers((1,), *ANY, 3)])


EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 1.5, np.inf, -np.inf, np.nan, 100.0, -100.0]
)


@pytest.mark.parametrize("name", [*UNARY, *FUNCTIONAL])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_edges_agree(name, dtype):
    base = name.split()[0]
    keywords = FUNCTIONAL[name] if name in FUNCTIONAL else UNARY[name][1]
    places = (F, torch.nn.functional) if name in FUNCTIONAL else (lt, torch)
    edges = EDGES
    if base in ("gelu", "lgamma"):  # lgamma(-inf) is -inf in SciPy; gelu(inf) is nan in PyTorch
        edges = EDGES[~np.isinf(EDGES)]
    x, y = both(edges, dtype)
    assert_same(getattr(places[0], base)(x, **keywords), getattr(places[1], base)(y, **keywords), 4)


@pytest.mark.parametrize("name", [*UNARY, *FUNCTIONAL])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_lower_precisions_agree(name, dtype):
    base = name.split()[0]
    (low, high), keywords = UNARY.get(name, (WIDE, FUNCTIONAL.get(name)))
    places = (F, torch.nn.functional) if name in FUNCTIONAL else (lt, torch)
    if name == "sinc" and dtype != "float32":
        pytest.skip("PyTorch rounds the product with pi to the half type; lowtide does not")
    x, y = both(numbers((3, 4), low, high), dtype)
    assert_same(getattr(places[0], base)(x, **keywords), getattr(places[1], base)(y, **keywords), 4)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_lower_precisions_of_two_numbers_agree(name, dtype):
    ((low, high), keywords), base = BINARY[name], name.split()[0]
    pairs = [both(numbers((3, 4), low, high, k), dtype) for k in range(2)]
    assert_same(
        getattr(lt, base)(*[p[0] for p in pairs], **keywords),
        getattr(torch, base)(*[p[1] for p in pairs], **keywords),
        4,
    )


WHOLE = ["int64", "int32", "int8", "uint8", "bool"]


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("name", [*INTEGER_UNARY, *INTEGER])
def test_integers_agree(name, dtype):
    signed = dtype not in ("uint8", "bool")
    pairs = [both(np.array([-7, 3, 5, 0, 2] if signed else [7, 3, 5, 0, 2]), dtype)]
    if name in INTEGER:
        pairs.append(both(np.array([2, -3, 5, 4, 7] if signed else [2, 3, 5, 4, 7]), dtype))
    try:
        expected = getattr(torch, name)(*[p[1] for p in pairs])
    except (RuntimeError, TypeError):
        with pytest.raises((RuntimeError, TypeError)):
            getattr(lt, name)(*[p[0] for p in pairs])
        return
    assert_same(getattr(lt, name)(*[p[0] for p in pairs]), expected)


TYPES = ["bool", "uint8", "int8", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("a", TYPES)
@pytest.mark.parametrize("b", [*TYPES, 1, 1.5, True])
@pytest.mark.parametrize("shapes", [((2,), (2,)), ((2,), ()), ((), (2,)), ((), ())])
@pytest.mark.parametrize("name", ["add", "div", "eq"])
def test_promotion_agrees(name, a, b, shapes):
    x, y = both(np.ones(shapes[0]), a)
    u, v = both(np.ones(shapes[1]), b) if isinstance(b, str) else (b, b)
    ours, theirs = getattr(lt, name)(x, u), getattr(torch, name)(y, v)
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")


OPERATORS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}


@pytest.mark.parametrize("sign", OPERATORS)
@pytest.mark.parametrize("other", [3, 2.5, True, None, "text", "tensor"])
@pytest.mark.parametrize("dtype", ["int64", "float32", "bool"])
@pytest.mark.parametrize("reflected", [False, True])
def test_operators_agree_in_result_or_error(sign, other, dtype, reflected):
    x, y = both(np.array([1, 2, 3]), dtype)
    pairs = [(x, other), (y, other)]
    if other == "tensor":
        pairs = [(x, x), (y, y)]
    if reflected:
        pairs = [p[::-1] for p in pairs]
    try:
        expected = OPERATORS[sign](*pairs[1])
    except (RuntimeError, TypeError) as error:
        with pytest.raises((RuntimeError, TypeError)) as caught:
            OPERATORS[sign](*pairs[0])
        assert isinstance(caught.value, TypeError) == isinstance(error, TypeError)
        return
    ours = OPERATORS[sign](*pairs[0])
    if isinstance(expected, bool | str):  # "text" % t formats
        assert ours == expected
    else:
        assert_same(ours, expected)


IN_PLACE = (
    "add mul sub div pow clamp relu exp sigmoid tanh sqrt neg abs floor lerp addcmul eq "
    "logical_not remainder"
).split()


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_twins_agree_with_gradients(name):
    extra = {
        "clamp": (0.5, 1.0),
        "lerp": (2.0, 0.3),
        "addcmul": (2.0, 3.0),
        **dict.fromkeys("add mul sub div pow eq remainder".split(), (1.5,)),
    }.get(name, ())
    x, y = both(numbers((3, 4), *POSITIVE), requires_grad=True)

    def run(m, leaf):
        t = leaf * 1
        values = (
            [m.full((), v, dtype=m.float64) for v in extra]
            if name in ("lerp", "addcmul")
            else extra
        )
        return getattr(t, f"{name}_")(*values)

    a, b = run(lt, x), run(torch, y)
    assert_same(a, b)
    if name not in ("eq", "logical_not"):
        a.sum().backward()
        b.sum().backward()
        assert_same(x.grad, y.grad)


def test_ties_and_ends_share_gradients_alike():
    a, b = np.array([1.0, 2.0, np.nan, 3.0]), np.array([1.0, 3.0, 1.0, np.nan])
    for name in ("maximum", "minimum", "fmax", "fmin"):
        xs, ys = zip(both(a, requires_grad=True), both(b, requires_grad=True), strict=True)
        getattr(lt, name)(*xs).sum().backward()
        getattr(torch, name)(*ys).sum().backward()
        for x, y in zip(xs, ys, strict=True):
            assert_same(x.grad, y.grad)


@pytest.mark.parametrize("name", ["abs", "sgn", "angle", "exp", "log", "sqrt", "sin", "conj",
                                  "square", "reciprocal", "real", "imag", "neg"])  # fmt: skip
def test_complex_functions_agree(name):
    z = numbers((3, 2), *POSITIVE) + 1j * numbers((3, 2), *ANY, 1)
    x, y = both(z, "complex128", requires_grad=True)
    a, b = getattr(lt, name)(x), getattr(torch, name)(y)
    assert_same(a, b)
    g = grad(a.real.sum(), [x])[0]
    h = torch.autograd.grad(b.real.sum(), [y])[0]
    np.testing.assert_allclose(g.numpy(), h.resolve_conj().numpy(), rtol=1e-6, atol=1e-9)
