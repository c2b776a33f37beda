"""What ``lowtide.as_torch`` offers as ``torch.x.y`` is there as ``lowtide.x.y``, the same module.

Left out are stand-ins for machinery that lowtide does not have, below ``as_torch.private``, which
only programs written for PyTorch import.
"""

import importlib
import subprocess
import sys
import types

import pytest

import lowtide as lt
from lowtide import _torch_homes as homes
from lowtide import _torch_paths as paths

LISTED = sorted({*homes.HOMES, *homes.COLLECTIONS})
OFFERED = [p for p in LISTED if paths.is_offered(p)]


def test_there_are_many():
    assert len(OFFERED) >= 80
    assert {"cuda.memory", "autograd.grad_mode", "optim.adamw"} <= set(OFFERED)


@pytest.mark.parametrize("path", [*OFFERED, "utils.data.distributed", "nn.modules.utils"])
def test_a_path_is_a_module_with_names(path):
    module = importlib.import_module(f"lowtide.{path}")
    assert isinstance(module, types.ModuleType)
    assert importlib.import_module(f"lowtide.{path}") is module
    assert importlib.util.find_spec(f"lowtide.{path}") is not None
    names = homes.COLLECTIONS.get(path)
    if names is None:
        home = importlib.import_module(f"lowtide.{homes.home(path) or path}")
        own = f"lowtide.{path}" == module.__name__
        assert module is home or own
    else:
        wanted = [n.partition("=")[0] for listed in names.values() for n in listed.split()]
        assert [n for n in wanted if not hasattr(module, n)] == []
    assert module.__name__.startswith("lowtide")  # its spec is still its own


@pytest.mark.parametrize("path", [p for p in LISTED if not paths.is_offered(p)])
def test_a_stand_in_is_only_torchs(path):
    if importlib.util.find_spec("lowtide") and "lowtide.as_torch" in sys.modules:
        pytest.skip("another test of this process runs lowtide as torch")
    if path == "" or f"lowtide.{path}" in sys.modules:
        return
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"lowtide.{path}")


def test_functions_of_the_same_name_stay_functions():
    for path in (*homes.ALSO_FUNCTIONS, "multiprocessing.spawn"):
        importlib.import_module(f"lowtide.{path}")
        owner, _, name = path.rpartition(".")
        assert not isinstance(
            getattr(importlib.import_module(f"lowtide.{owner}"), name), types.ModuleType
        )
    assert (
        importlib.import_module("lowtide.cuda.memory").memory_allocated is lt.cuda.memory_allocated
    )


def test_as_torch_gives_the_same_modules():
    code = f"""
import importlib, lowtide
ours = {{p: importlib.import_module("lowtide." + p) for p in {OFFERED!r}}}
import lowtide.as_torch
theirs = {{p: importlib.import_module("torch." + p) for p in ours}}
own = [p for p, m in ours.items() if m.__name__ == "lowtide." + p]  # a file of that name
bad = [p for p, m in ours.items() if theirs[p] is not m and p not in own]
print(bad)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "line",
    [
        "from lowtide.autograd.grad_mode import no_grad",
        "import lowtide.cuda.memory as m; m.memory_allocated",
        "from lowtide.utils.data.distributed import DistributedSampler",
        "from lowtide.distributions.normal import Normal",
        "import lowtide; lowtide.distributions.normal.Normal",
        "from lowtide.distributions.multivariate_normal import Distribution, constraints",
        "import lowtide.as_torch; from torch.distributions.beta import Dirichlet, Distribution",
        "import lowtide; lowtide.fx.graph.Graph",
        "from lowtide.cuda.amp.grad_scaler import GradScaler",
        "import lowtide.autograd.gradcheck; assert callable(lowtide.autograd.gradcheck)",
    ],
)
def test_import_lines(line):
    subprocess.run([sys.executable, "-c", line], check=True)


@pytest.mark.parametrize(
    "name", ["_record_memory_history", "_snapshot", "_dump_snapshot", "memory_snapshot"]
)
def test_recording_of_allocations_names_the_profiler(name):
    memory = importlib.import_module("lowtide.cuda.memory")
    with pytest.raises(
        NotImplementedError, match=rf"{name}: .*MemoryProfiler.*to_pytorch_snapshot"
    ):
        getattr(memory, name)()
    profiling = importlib.import_module("lowtide.profiling")
    assert callable(profiling.MemoryProfiler.to_pytorch_snapshot)


def test_the_hash_in_names_of_files():
    hub = importlib.import_module("lowtide.hub")
    assert hub.HASH_REGEX.search("resnet18-f37072fd.pth").group(1) == "f37072fd"
