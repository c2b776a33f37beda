"""Functions and methods take their arguments by PyTorch's names, in each of its overloads."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

import lowtide as lt
from tests.parity import signatures

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

from tests.parity.alike import compare, shown  # noqa: E402 - it imports PyTorch
from tests.parity.oracle import RANDOM  # noqa: E402

OVERLOADS = signatures.theirs()
DRAWS = 60  # per overload, until PyTorch takes one
# They change the whole process; or equal values and batches of sparse matrices decide.
LEFT_OUT = {"set_num_threads", "set_num_interop_threads", "kthvalue", "sparse_csc_tensor"}
# Drawn at random, or not filled: their shapes are compared.
DRAWN = RANDOM | set("dropout alpha_dropout feature_alpha_dropout poisson random".split())
DRAWN |= {"resize", "resize_as"}
OPTIONAL = set("dim keepdim upper largest sorted descending stable alpha value".split())


def value(T, kind, rng, dtypes):
    """Draw a value for a parameter of an annotation, the same for both frameworks."""
    kinds = kind.replace("_complex", "Number").split(" | ")
    if kind.startswith(("tuple[Tensor", "list[Tensor")):
        return [tensor(T, rng, dtypes) for _ in range(rng.choice((1, 2, 3)))]
    choice = rng.choice(kinds)
    if choice.startswith("Sequence[_int") or choice in ("_size", "_symsize", "tuple[_int, ...]"):
        return [rng.choice((0, 1, 2, 3)) for _ in range(rng.choice((1, 2, 3)))]
    if choice.startswith("Sequence"):
        return [0.5, 1.5]
    if choice == "Tensor":
        return tensor(T, rng, dtypes)
    if choice in ("_int", "int", "Number", "IntLikeType"):
        return rng.choice((0, 1, 2, 3, -1))
    if choice == "_float":
        return rng.choice((0.25, 0.5, 2.0))
    if choice == "_bool":
        return rng.choice((True, False))
    if choice == "_dtype":
        return getattr(T, rng.choice(("float32", "float64", "int64")))
    if choice == "None":
        return None
    if choice == "str":
        return rng.choice(("sum", "mean", "ij", "reduced", "left", "amax", "trunc"))
    if choice == "Callable":
        return lambda *numbers: sum(numbers) * 0.5
    raise LookupError(kind)


def tensor(T, rng, dtypes):
    shape = rng.choice(((1,), (3,), (3, 3), (3, 3), (2, 3, 3), (1, 3, 3)))
    numbers = np.random.default_rng(rng.randrange(9)).normal(size=shape)
    kind = rng.choice(dtypes)
    if kind == "int64":
        numbers = np.abs(numbers).astype(np.int64)
    if kind == "bool":
        numbers = numbers > 0
    return T.tensor(numbers.tolist(), dtype=getattr(T, kind))


def call(T, home, name, overload, seed):
    """Call a function with all arguments by name, those of an overload that it needs."""
    rng = random.Random(f"{home} {name} {overload} {seed}")
    dtypes = rng.choice((["float64"], ["int64"], ["float64", "int64"], ["float64", "bool"]))
    owner = tensor(T, rng, dtypes) if home == "Tensor" else T
    given = {}
    for p in overload:
        if p.required or (p.name in OPTIONAL and rng.random() < 0.5):
            given[p.name] = value(T, p.kind, rng, dtypes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        T.manual_seed(seed)
        return getattr(owner, name)(**given), given


def cases():
    for home, functions in OVERLOADS.items():
        for name, listed in functions.items():
            where = lt if home == "torch" else lt.Tensor
            if not callable(getattr(where, name, None)) or name in LEFT_OUT:
                continue
            for k, overload in enumerate(listed):
                yield pytest.param(home, name, overload, id=f"{home}.{name}-{k}")


@pytest.mark.parametrize(("home", "name", "overload"), list(cases()))
def test_each_overload_is_taken_by_name(home, name, overload):
    if any(p.variadic for p in overload):
        pytest.skip("what is variadic has no name")
    if any(p.required and p.kind == "" for p in overload):
        pytest.skip("PyTorch's stubs do not say what it takes")
    refused = None
    for seed in range(DRAWS):
        try:
            expected, given = call(torch, home, name, overload, seed)
        except Exception:
            continue
        try:
            found, given = call(lt, home, name, overload, seed)
        except (RuntimeError, NotImplementedError) as error:
            refused = error  # dtypes that only PyTorch mixes, and such: the names are taken
            continue
        except TypeError as error:
            if "only scalars" not in str(error):
                raise
            refused = error
            continue
        break
    else:
        if refused is None:
            pytest.skip("nothing that was drawn fits")
        raise refused
    if isinstance(found, lt.Tensor) and isinstance(expected, torch.Tensor):
        assert tuple(found.shape) == tuple(expected.shape), given
        assert shown(found.dtype) == shown(expected.dtype), given
        if name.strip("_") in DRAWN or found.layout is not lt.strided:
            return
        if found.dtype in (lt.float32, lt.bfloat16):
            found, expected = found.double(), expected.double()
            assert np.allclose(found.numpy(), expected.numpy(), 1e-5, 1e-5, equal_nan=True), given
            return
    if isinstance(found, lt.Tensor | list | tuple):
        compare(found, expected)


@pytest.mark.parametrize("home", OVERLOADS)
def test_every_name_is_taken_or_has_a_reason(home):
    found = [
        (function, name)
        for _, function, _, missing in signatures.compared({home: OVERLOADS[home]})
        for name in missing
    ]
    assert [x for x in found if signatures.reason_of(home, *x) is None] == []
    listed = {x for words in signatures.REASONS.values() for x in words.split()}
    here = {f"{home}.{function}:{name}" for function, name in found}
    assert {x for x in listed if x.startswith(f"{home}.")} == here


@pytest.mark.parametrize("home", OVERLOADS)
def test_a_function_is_a_method_where_pytorch_has_both(home):
    where, there = (lt, lt.Tensor) if home == "torch" else (lt.Tensor, lt)
    other = "Tensor" if home == "torch" else "torch"
    both = [n for n in OVERLOADS[home] if hasattr(where, n) and n in OVERLOADS[other]]
    assert len(both) > 200
    assert [n for n in both if not hasattr(there, n)] == []


def test_the_page_is_current():
    assert signatures.PAGE.read_text(encoding="utf-8") == signatures.page(), (
        "run python -m tests.parity.signatures"
    )


def test_a_name_without_a_reason_is_an_error(monkeypatch):
    monkeypatch.setattr(signatures, "REASONS", {"none": "torch.add:nonesuch"})
    with pytest.raises(ValueError, match=r"refused without a reason.*'out_dtype'.*add:nonesuch"):
        signatures.page()
