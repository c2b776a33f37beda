"""``import torch`` means lowtide: the same objects, the same version to all who ask."""

from __future__ import annotations

from typing import Any

import pytest

from tests.as_torch.running import answers, run

SETUP = """
import importlib.metadata
import importlib.util
import lowtide
import lowtide.as_torch
spec_before = importlib.util.find_spec("torch")
import sys
before = set(sys.modules)
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.data.dataloader
from torch.nn import Linear
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import Conv2d, _ConvNd
from torch.nn.modules.utils import _pair
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, required
from torch.utils._pytree import tree_map
from torch.nn.utils.weight_norm import weight_norm
"""

TRUE = """
torch.nn is lowtide.nn
torch.Tensor is lowtide.Tensor
torch.optim is lowtide.optim
torch.float32 is lowtide.float32
str(torch.float32) == "torch.float32" and repr(torch.Size([2])) == "torch.Size([2])"
str(torch.strided) == "torch.strided" and str(torch.channels_last) == "torch.channels_last"
torch.ones(1).type() == "torch.FloatTensor" and torch.ones(1).type("torch.IntTensor").item() == 1
repr(torch.ones(1).int()) == "tensor([1], dtype=torch.int32)"
torch.relu is lowtide.relu
F is lowtide.nn.functional
Linear is lowtide.nn.Linear
Conv2d is lowtide.nn.Conv2d
issubclass(Conv2d, _ConvNd)
isinstance(torch.nn.BatchNorm2d(2), _BatchNorm)
isinstance(lowtide.ones(2), torch.Tensor)
torch.utils.data.dataloader.DataLoader is torch.utils.data.DataLoader
issubclass(torch.optim.SGD, Optimizer)
sys.modules["torch.nn"] is lowtide.nn
sys.modules["torch.nn.functional"] is lowtide.nn.functional
lowtide.nn.__spec__.name == "lowtide.nn"
lowtide.__spec__.name == "lowtide"
callable(torch.nn.utils.weight_norm)
torch.nn.utils.weight_norm is lowtide.nn.utils.weight_norm
spec_before is not None and spec_before.name == "torch"
importlib.util.find_spec("torch") is not None
importlib.util.find_spec("torch.nn.functional") is not None
importlib.util.find_spec("torch.nonsense") is None
importlib.util.find_spec("torch.nn.nonsense") is None
importlib.metadata.version("torch") == torch.__version__ == torch.version.__version__
importlib.metadata.version("Torch") == torch.__version__
importlib.metadata.metadata("torch")["Name"] == "torch"
importlib.metadata.requires("torch") is None
str(torch.__version__) == f"2.13.0+lowtide{lowtide.__version__}"
lowtide.__version__ == "0.1.0"
isinstance(torch.__version__, str)
torch.__version__ >= "2.1"
torch.__version__ > (2, 9)
not torch.__version__ < "2.9.1"
torch.__version__ >= "2.13"
torch.__version__ < "2.14.0.dev20260101"
tuple(int(n) for n in torch.__version__.split("+")[0].split(".")) == (2, 13, 0)
hasattr(torch, "__file__") and torch.__file__ == lowtide.__file__
"lowtide" in torch.__config__.show()
torch.version.hip is None
torch.cuda.is_available() == (torch.cuda.device_count() > 0)
"Linear" in dir(torch.nn) and "relu" in dir(torch) and "_foreach_add" in dir(torch)
not hasattr(torch, "nonsense") and not hasattr(torch.nn, "nonsense")
tree_map(lambda x: x + 1, {"a": [1, 2]}) == {"a": [2, 3]}
torch.ops.aten.add(torch.ones(1), 1).item() == 2
torch.torch is torch
torch._C._log_api_usage_once("x") is None
torch._dynamo.config.suppress_errors is False
torch._dynamo.is_compiling() is False
torch.typename(torch.ones(1)) == "torch.FloatTensor"
torch.compile(F.relu)(torch.ones(1)).item() == 1
torch.compile(F.relu, disable=True) is F.relu
""".strip().splitlines()

REFUSED = {
    "import torch.nonsense": ("ModuleNotFoundError", "torch.nonsense"),
    "import torch.nn.nonsense": ("ModuleNotFoundError", "torch.nn.nonsense"),
    "import torch.cli": ("ModuleNotFoundError", "torch.cli"),
    "import torch.framework.tensor": ("ModuleNotFoundError", "torch.framework"),
    "from torch import nonsense": ("ImportError", "'torch' has no attribute 'nonsense'"),
    "from torch.nn import nonsense": ("ImportError", "'torch.nn' has no attribute 'nonsense'"),
    "from torch.nn.functional import nonsense": (
        "ImportError",
        "'torch.nn.functional' has no attribute 'nonsense'",
    ),
    "torch.nonsense": ("AttributeError", "'torch' has no attribute 'nonsense'"),
    "torch.nn.nonsense": ("AttributeError", "'torch.nn' has no attribute 'nonsense'"),
    "torch._C.nonsense": ("AttributeError", "'torch._C' has no attribute 'nonsense'"),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return answers(SETUP, [*TRUE, *REFUSED])


@pytest.mark.parametrize("claim", TRUE)
def test_torch_is_lowtide(found: dict[str, Any], claim: str) -> None:
    assert found[claim] is True


@pytest.mark.parametrize("statement", REFUSED)
def test_what_is_absent_is_named(found: dict[str, Any], statement: str) -> None:
    kind, text = found[statement]
    assert kind == REFUSED[statement][0]
    assert REFUSED[statement][1] in text
    assert "lowtide 0.1.0" in text
    assert "docs/from_pytorch.md" in text


@pytest.mark.deep
def test_it_comes_before_an_installed_torch(tmp_path: Any) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('the other torch')")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import lowtide.as_torch, torch.nn"
    assert run("-c", code, str(tmp_path)).returncode == 0


@pytest.mark.deep
def test_a_torch_that_was_imported_before_is_refused(tmp_path: Any) -> None:
    (tmp_path / "torch.py").write_text("")
    code = "import sys; sys.path.insert(0, sys.argv[1]); import torch, lowtide.as_torch"
    done = run("-c", code, str(tmp_path))
    assert done.returncode == 1
    assert "ImportError: lowtide.as_torch lets `import torch` mean lowtide, but" in done.stderr
    assert "start the program with `lowtide run-as-torch`" in done.stderr


@pytest.mark.deep
def test_a_second_import_changes_nothing() -> None:
    code = """
import importlib, sys
import lowtide.as_torch
import torch
finders = list(sys.meta_path)
importlib.reload(lowtide.as_torch)
assert sys.meta_path == finders
import torch as again
assert again is torch
"""
    assert run("-c", code).returncode == 0


def test_import_torch_imports_nothing_heavy() -> None:
    code = """
import sys
import lowtide.as_torch, torch, torch.nn
heavy = {"scipy", "numba", "matplotlib", "cupy"} & set(sys.modules)
assert not heavy, heavy
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
