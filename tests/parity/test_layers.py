"""Every case of ``tests/modules/cases`` against PyTorch's layer of the same name.

Both get the same numbers as inputs, parameters and buffers. In float64: results, first and second
gradients, buffers, ``repr``, attributes and state dict; in float32 and bfloat16: results and
gradients against PyTorch's in float64.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lowtide as lt
from tests.modules.table import FAMILIES, Case, all_cases, array, build, construct, family, run

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:.*is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but"),
]

CASES = all_cases()
by_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)


def compared(case: Case) -> tuple[str, ...]:
    if case.differs:
        pytest.skip(case.differs)
    return tuple(m for m in case.modes if not (case.random and m == "train"))


def close(mine: dict, theirs: dict, rtol: float) -> None:
    """Everything both have is equal; what one does not have is zero in the other."""
    for name in {*mine, *theirs}:
        a, b = mine.get(name), theirs.get(name)
        if a is None or b is None:
            assert name.startswith(("grad", "second")), name
            assert not np.any(b if a is None else a), name
            continue
        assert a.shape == b.shape, name
        assert a.dtype == b.dtype, name
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=name)


@by_case
def test_values_gradients_and_buffers_match(case):
    for mode in compared(case):
        theirs = run(torch, case, mode, second=case.second)
        close(run(lt, case, mode, second=case.second), theirs, case.rtol)
        scattered = run(lt, case, mode, second=case.second, scattered=True)
        close(scattered, theirs, case.rtol)


@by_case
def test_the_layers_look_alike(case):
    mine, theirs = construct(lt, case), construct(torch, case)
    assert repr(mine) == repr(theirs)
    kinds = (int, float, str, bool, tuple, list, type(None))
    known = set(vars(torch.nn.Module()))
    for name, value in vars(theirs).items():
        if name[0] != "_" and name not in known and isinstance(value, kinds):
            assert getattr(mine, name) == value, name
    for name in ("parameters", "buffers", "modules"):
        ours = [n for n, _ in getattr(mine, f"named_{name}")()]
        assert ours == [n for n, _ in getattr(theirs, f"named_{name}")()]
    assert [p.requires_grad for p in mine.parameters()] == [
        p.requires_grad for p in theirs.parameters()
    ]


@by_case
def test_the_state_dict_goes_both_ways(case):
    mine, theirs = construct(lt, case), construct(torch, case)
    a, b = mine.state_dict(), theirs.state_dict()
    assert list(a) == list(b)
    for name in a:
        assert tuple(a[name].shape) == tuple(b[name].shape)
        assert str(a[name].dtype).split(".")[1] == str(b[name].dtype).split(".")[1]
    filled = build(torch, case, torch.float64).state_dict()
    mine.double().load_state_dict({n: lt.tensor(v.numpy()) for n, v in filled.items()})
    back = {n: torch.tensor(array(v)) for n, v in mine.state_dict().items()}
    theirs.double().load_state_dict(back)
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, filled[name])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@by_case
def test_lower_precision_stays_near(case, dtype):
    if not case.low:
        pytest.skip("the case says that rounding moves it over an edge")
    epsilon = lt.finfo(getattr(lt, dtype)).eps
    for mode in compared(case):
        rounded = Rounded(dtype)
        mine = run(lt, case, mode, dtype=getattr(lt, dtype), layer=rounded.ours(case))
        theirs = run(rounded, case, mode, dtype=torch.float64, layer=rounded.theirs(case))
        for name, b in theirs.items():
            a = mine.get(name)
            if a is None:
                continue
            assert a.shape == b.shape, name
            size = max(float(np.abs(b[np.isfinite(b)]).max(initial=0)), 1.0)
            np.testing.assert_allclose(a, b, rtol=0, atol=20 * epsilon * size, err_msg=name)


class Rounded:
    """PyTorch, but every tensor holds numbers of a lower precision, in float64."""

    def __init__(self, dtype: str) -> None:
        self.lower = getattr(torch, dtype)
        self.name = dtype

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    def tensor(self, values, dtype=None, **kwargs):
        made = torch.tensor(values, **kwargs)
        if made.is_floating_point():
            made = made.to(self.lower).to(torch.float64)
        return made if dtype is None else made.to(dtype)

    def theirs(self, case):
        layer = build(torch, case, torch.float64)
        for value in (*layer.parameters(), *layer.buffers()):
            if value.is_floating_point():
                value.data = value.data.to(self.lower).to(torch.float64)
        return layer

    def ours(self, case):
        return build(lt, case, getattr(lt, self.name))


INITS = [spec for name in FAMILIES for spec in getattr(family(name), "INITS", [])]


@pytest.mark.parametrize("spec", INITS, ids=lambda s: f"{s[0]}{s[1]}{s[2] or ''}")
def test_initial_values_have_the_same_distribution(spec):
    name, args, kwargs = spec
    torch.manual_seed(0)
    mine = getattr(lt.nn, name)(*args, **kwargs).state_dict()
    theirs = getattr(torch.nn, name)(*args, **kwargs).state_dict()
    for key, value in theirs.items():
        a, b = array(mine[key]).ravel(), value.numpy().ravel()
        assert a.dtype == b.dtype
        if len(set(b.tolist())) <= 1:
            np.testing.assert_array_equal(a, b)
            continue
        assert np.count_nonzero(a == 0) == np.count_nonzero(b == 0)  # padding rows
        # Kolmogorov and Smirnov's statistic; 1.95 has a chance of 0.001 for equal distributions.
        both = np.concatenate([a, b])
        gap = np.searchsorted(np.sort(a), both, "right") - np.searchsorted(
            np.sort(b), both, "right"
        )
        assert np.abs(gap).max() / len(a) < 1.95 * (2 / len(a)) ** 0.5, key
        # A uniform distribution's bound shows in the largest of n draws, up to about 10 / n.
        bound = max(abs(a).max(), abs(b).max())
        if len(a) > 500 and np.mean(np.abs(b) > 0.9 * bound) > 0.05:
            assert abs(abs(a).max() - abs(b).max()) < 0.02 * bound, key


OURS = {
    "linear", "activation", "loss", "conv", "pooling", "batchnorm", "instancenorm", "normalization",
    "dropout", "sparse", "padding", "upsampling", "fold", "distance", "flatten", "pixelshuffle",
    "channelshuffle", "adaptive",
}  # fmt: skip
ABSENT = {
    "CrossMapLRN2d": "LocalResponseNorm does the same",
    "NLLLoss2d": "an old name of NLLLoss",
}


def test_no_layer_of_these_families_is_missing():
    missing = set()
    for name in dir(torch.nn):
        cls = getattr(torch.nn, name)
        home = getattr(cls, "__module__", "").rpartition(".")
        ours = isinstance(cls, type) and home[0] == "torch.nn.modules" and home[2] in OURS
        if ours and name != "MultiheadAttention" and not hasattr(lt.nn, name):
            missing.add(name)
    assert missing == set(ABSENT)


OLD = [
    {"size_average": False},
    {"reduce": False},
    {"size_average": True, "reduce": True},
    {"size_average": False, "reduce": False},
]


@pytest.mark.parametrize("old", OLD, ids=str)
def test_the_old_forms_of_reduction_mean_the_same(old):
    for name in ("L1Loss", "CrossEntropyLoss", "BCEWithLogitsLoss", "TripletMarginLoss"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = getattr(torch.nn, name)(**old).reduction
        with pytest.warns(UserWarning, match="reduction"):
            assert getattr(lt.nn, name)(**old).reduction == theirs
