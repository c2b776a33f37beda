"""Inside CPU autocast, each operator in PyTorch's catalogue has results of PyTorch's dtypes.

The samples come as they are, all in bfloat16, and with every other tensor in bfloat16. What
PyTorch refuses is not compared.
"""

import warnings

import pytest

import lowtide as lt

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's test suite needs it")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.parity import oracle

SAMPLES = 12  # of each operator: the later ones differ in shapes and options

DIFFERENT = {
    "chalf": "there is no complex32",
    "histogram": "refused for bfloat16, as in PyTorch outside of the samples' kind",
    "histogramdd": "refused for bfloat16",
    "linalg.pinv": "computed in float32, where PyTorch's last product is in bfloat16",
    "linalg.pinv/hermitian": "as linalg.pinv",
    "linalg.solve_ex": "in float32; PyTorch has no kernel but for matrices without elements",
    "linalg.solve_triangular": "mixed dtypes are refused, as outside of autocast",
    "nn.functional.linear_cross_entropy/chunked": "a loss in float32",
    "nn.functional.linear_cross_entropy/chunked_none": "a loss in float32",
    "nn.functional.max_pool3d": "in float32 with indices, too",
}


def converted(value, cast):
    if isinstance(value, torch.Tensor):
        return cast(value)
    if isinstance(value, list | tuple):
        return type(value)(converted(v, cast) for v in value)
    if isinstance(value, dict):
        return {k: converted(v, cast) for k, v in value.items()}
    return value


def caster(chosen):
    """Return what converts the float32 tensors at some places to bfloat16."""
    place = iter(range(10_000))

    def cast(t):
        is_single = t.dtype == torch.float32
        return t.to(torch.bfloat16) if is_single and chosen(next(place)) else t

    return cast


KINDS = {
    "float32": lambda k: False,
    "bfloat16": lambda k: True,
    "even": lambda k: k % 2 == 0,
    "odd": lambda k: k % 2 == 1,
}


def dtypes(library, function, arguments, options):
    with library.autocast("cpu", dtype=library.bfloat16):
        found = function(*arguments, **options)
    return [str(t.dtype).split(".")[-1] for t in oracle.leaves([found], library.Tensor)]


def compare(op):
    """Compare the dtypes of the results; return how many calls."""
    count = 0
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=False))[:SAMPLES]
    for sample in samples:
        for kind, chosen in KINDS.items():
            cast = caster(chosen)
            arguments = converted([sample.input, *sample.args], cast)
            options = converted(sample.kwargs, cast)
            try:
                ours = oracle.convert(arguments), oracle.convert(options)
                expected = dtypes(torch, op.op, arguments, options)
            except (oracle.NotComparable, oracle.Absent):
                continue
            except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
                continue  # PyTorch refuses it
            found = dtypes(lt, oracle.counterpart(op.op), *ours)
            assert found == expected, f"{kind}: {oracle.describe(sample)}"
            count += 1
    return count


def comparable():
    for name, op in oracle.OPERATORS.items():
        try:
            oracle.counterpart(op.op)
        except oracle.Absent:
            continue
        if torch.float32 in op.dtypes:
            yield name


@pytest.mark.parametrize("name", list(comparable()))
def test_results_have_the_dtypes_of_pytorch(name):
    op = oracle.OPERATORS[name]
    if name not in DIFFERENT:
        compare(op)
        return
    with pytest.raises((AssertionError, RuntimeError, AttributeError, NotImplementedError)):
        compare(op)
