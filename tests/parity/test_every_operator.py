"""Each operator in PyTorch's own catalogue, on each of the catalogue's samples.

``op_db`` holds some 630 operators with about 19,000 samples. In float64 and complex128, value,
first and second gradient are compared; in the other dtypes the values and the result's dtype; and
calls that PyTorch refuses must raise the same type. Whatever differs is in ``differences.py``
with the reason, and must still differ; what is absent is in ``docs/operators.md``.
"""

import warnings

import pytest

from lowtide.framework.codegen.operators_page import AGREEING, absent_names

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's test suite needs it")
pytestmark = [
    pytest.mark.parity,
    # The catalogue itself touches deprecated and beta corners of PyTorch.
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.parity import differences, oracle

PRESENT, MISSING = [], []
for _name, _op in oracle.OPERATORS.items():
    try:
        oracle.counterpart(_op.op)
    except oracle.Absent:
        MISSING.append(_name)
    else:
        PRESENT.append(_name)
OTHER_DTYPES = ("float32", "bfloat16", "float16", "complex64", "int64", "int32", "uint8", "bool")


def check(known, name, run):
    """Run a comparison; one that is known to differ must differ."""
    if name not in known:
        return run()
    try:
        run()
    except (Exception, pytest.fail.Exception):
        return None
    pytest.fail(f"{name} agrees now: take it out of tests/parity/differences.py")


def compare_all(op, dtype, wish):
    orders = []
    for sample in op.sample_inputs("cpu", dtype, requires_grad=wish):
        try:
            orders.append(oracle.compare(op, sample, dtype))
        except Exception as error:
            error.add_note(f"sample: {oracle.describe(sample)}")
            raise
    return [order for order in orders if order is not None]


@pytest.mark.parametrize("name", PRESENT)
def test_values_and_two_orders_of_gradient(name):
    op = oracle.OPERATORS[name]
    if torch.float64 not in op.dtypes:
        assert name in differences.NOT_FLOAT64
        return
    orders = check(
        differences.FLOAT64,
        name,
        lambda: compare_all(op, torch.float64, wish=op.supports_autograd),
    )
    if orders is not None:
        assert orders or name in differences.NOTHING_TO_COMPARE
        if name in differentiable():
            assert max(orders) >= 1


@pytest.mark.parametrize(
    "name", [n for n in PRESENT if torch.complex128 in oracle.OPERATORS[n].dtypes]
)
def test_complex_values_and_two_orders_of_gradient(name):
    op = oracle.OPERATORS[name]
    wish = op.supports_autograd and torch.complex128 in op.supported_backward_dtypes("cpu")
    check(differences.COMPLEX128, name, lambda: compare_all(op, torch.complex128, wish))


@pytest.mark.parametrize("dtype", OTHER_DTYPES)
@pytest.mark.parametrize("name", PRESENT)
def test_values_in_other_dtypes(name, dtype):
    op = oracle.OPERATORS[name]
    if getattr(torch, dtype) in op.dtypes:
        known = differences.OTHER_DTYPES.get(dtype, {})
        check(known, name, lambda: compare_all(op, getattr(torch, dtype), wish=False))


@pytest.mark.parametrize("name", [n for n in PRESENT if oracle.OPERATORS[n].error_inputs_func])
def test_refusals_have_the_same_type(name):
    op = oracle.OPERATORS[name]
    function = oracle.counterpart(op.op)

    def run():
        for sample, kind, arguments, options in oracle.refusals(op):
            try:
                with pytest.raises(kind):
                    function(*arguments, **options)
            except BaseException as error:
                error.add_note(f"sample: {oracle.describe(sample)}")
                raise

    check(differences.ERRORS, name, run)


def test_what_is_absent_is_documented():
    # Samples of these are sparse: tests/parity/test_sparse.py compares them.
    elsewhere = {"sparse.mm", "sparse.sampled_addmm"}
    undocumented = {n.split("/")[0] for n in MISSING} - absent_names() - elsewhere
    assert not undocumented


def differentiable():
    """Operators whose gradients are compared on every sample: the figure in docs/operators.md."""
    return {
        name
        for name in PRESENT
        if oracle.OPERATORS[name].supports_autograd
        and torch.float64 in oracle.OPERATORS[name].dtypes
        and name not in differences.FLOAT64
        and name not in differences.WITHOUT_GRADIENT
    }


def test_how_many_operators_agree():
    agreeing = {name.split("/")[0] for name in differentiable()}
    agreeing -= {name.split("/")[0] for name in differences.FLOAT64}
    assert len(agreeing) >= 350
    assert len(agreeing) == AGREEING  # which docs/operators.md states
