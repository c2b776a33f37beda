"""Functions that other functions made bear the names by which users know them.

``repr``, profilers, and Python's own errors about arguments show ``__qualname__``.
"""

import importlib
import types
import warnings
from pathlib import Path

import pytest

import lowtide as lt

PRIVATE = (
    "lowtide.framework",
    "lowtide.modules",
    "lowtide.optim",
    "lowtide.profiling",
    "lowtide.recipes",
    "lowtide.as_torch",
    "lowtide.__main__",
)


def modules():
    """Every module that lowtide's users import."""
    found = ["lowtide"]
    root = Path(lt.__file__).parent
    for path in root.rglob("*.py"):  # by their files: to import as_torch would change what is shown
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(("lowtide", *(parts[:-1] if parts[-1] == "__init__" else parts)))
        if not name.startswith(PRIVATE) and not name.endswith("_command"):
            found.append(name)
    return sorted(set(found))


def functions(owner):
    """(name, function) of the public names of a module or class, special methods of Tensor too."""
    for name in dir(owner):
        if name.startswith("_") and not (owner is lt.Tensor and name.startswith("__")):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = getattr(owner, name, None)
        if isinstance(value, property):
            value = value.fget
        if callable(value) and not isinstance(value, types.ModuleType):
            yield name, value


def shown(value):
    names = [getattr(value, n, "") for n in ("__name__", "__qualname__", "__module__")]
    return " ".join(n for n in names if isinstance(n, str))


@pytest.mark.parametrize("module", modules())
def test_names(module):
    try:
        owner = importlib.import_module(module)
    except ImportError as error:
        pytest.skip(str(error))
    bad = []
    for name, value in functions(owner):
        classes = (
            [(name, value)]
            if not isinstance(value, type)
            else [(name, value), *((f"{name}.{n}", f) for n, f in functions(value))]
        )
        for path, found in classes:
            if "<" in shown(found) or "<locals>" in repr(found) or "<lambda>" in repr(found):
                bad.append(f"{module}.{path}: {shown(found)}")
    assert bad == []


@pytest.mark.parametrize("home", ["lowtide", "Tensor", "functional", "linalg", "special", "fft"])
def test_errors_about_arguments_name_the_function(home):
    owner = {
        "lowtide": lt,
        "Tensor": lt.Tensor,
        "functional": lt.nn.functional,
    }.get(home) or getattr(lt, home)
    count = 0
    for name, value in functions(owner):
        if isinstance(value, type) or name.startswith("__") or not hasattr(value, "__code__"):
            continue
        given = (lt.ones(1),) if home == "Tensor" else ()
        for words in ({"no_such_argument": 1}, {}):
            try:
                value(*given, *([None] * 40 if not words else []), **words)
            except TypeError as error:
                count += 1
                assert "<" not in str(error).replace("<class", ""), (name, str(error))
            except Exception:  # it takes what it is given
                continue
    assert count >= 20, count


def test_twins_and_reflected_operators():
    for name in ("__radd__", "__rsub__", "__eq__", "__lt__", "addcmul_", "addcdiv_", "eq_", "gt_"):
        made = getattr(lt.Tensor, name)
        assert made.__qualname__ in (name, f"Tensor.{name}")
        assert made.__name__ == name
    with pytest.raises(TypeError, match=r"^addcmul_\(\) got an unexpected keyword"):
        lt.ones(1).addcmul_(1, 2, wrong=3)
