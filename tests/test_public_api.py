"""The public names: they resolve, they are documented, and PyTorch's are among them."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import re
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest

import lowtide as lt

ROOT = Path(__file__).resolve().parents[1]

# What PyTorch scripts are made of; by namespace.
EXPECTED = {
    "": """
        Tensor Size device dtype finfo iinfo Generator
        float32 float float64 double float16 half bfloat16 uint8 int8 int16 short int32 int int64
        long bool complex64 cfloat complex128 cdouble
        tensor as_tensor from_numpy zeros ones empty full eye arange linspace
        zeros_like ones_like empty_like full_like rand randn randint randperm rand_like randn_like
        add sub mul div pow neg abs exp log sqrt rsqrt sin cos tanh sigmoid relu clamp where
        maximum minimum eq ne lt le gt ge logical_and logical_not isnan isfinite isinf
        sum mean prod max min argmax argmin std var any all cumsum norm
        matmul mm bmm dot einsum outer
        reshape permute transpose unsqueeze squeeze flatten stack cat chunk split unbind
        gather scatter index_select masked_select masked_fill take_along_dim
        sort topk argsort unique nonzero tril triu
        is_tensor numel allclose equal
        no_grad enable_grad set_grad_enabled inference_mode is_grad_enabled
        manual_seed seed initial_seed get_rng_state set_rng_state
        get_default_dtype set_default_dtype get_default_device set_default_device
        promote_types result_type can_cast
        OutOfMemoryError autograd nn optim utils backends cuda
        memory_allocated max_memory_allocated reset_peak_memory_stats memory_reserved
        memory_summary empty_cache set_memory_limit
    """,
    "autograd": "backward grad Function gradcheck gradgradcheck no_grad graph",
    "autograd.graph": "saved_tensors_hooks save_on_cpu Node",
    "nn": "Module Parameter Linear Sequential ModuleList ReLU GELU Tanh Sigmoid Identity "
    "CrossEntropyLoss MSELoss functional init",
    "nn.functional": "linear relu gelu softmax log_softmax cross_entropy mse_loss dropout",
    "nn.init": "kaiming_uniform_ xavier_uniform_ normal_ zeros_ ones_",
    "optim": "Optimizer SGD Adam AdamW NAdam RAdam Adamax Adagrad Adadelta RMSprop Rprop ASGD "
    "LBFGS Adafactor Muon lr_scheduler swa_utils Adam8bit AdamW8bit fuse_into_backward",
    "optim.lr_scheduler": "LRScheduler LambdaLR MultiplicativeLR StepLR MultiStepLR ConstantLR "
    "LinearLR ExponentialLR PolynomialLR CosineAnnealingLR CosineAnnealingWarmRestarts OneCycleLR "
    "CyclicLR ReduceLROnPlateau SequentialLR ChainedScheduler",
    "optim.swa_utils": "AveragedModel SWALR update_bn get_ema_avg_fn get_ema_multi_avg_fn",
    "amp": "autocast GradScaler custom_fwd custom_bwd is_autocast_available",
    "cuda.amp": "autocast GradScaler custom_fwd custom_bwd",
    "cpu.amp": "autocast GradScaler",
    "random": "manual_seed seed initial_seed get_rng_state set_rng_state fork_rng",
    "cuda": "is_available device_count memory_allocated max_memory_allocated synchronize",
    "Tensor": "backward grad requires_grad requires_grad_ detach clone item tolist numpy to cpu "
    "float long bool view reshape permute transpose T mT expand sum mean max min argmax add_ mul_ "
    "zero_ fill_ copy_ shape dtype device ndim size dim numel is_contiguous contiguous __getitem__ "
    "__setitem__ __add__ __radd__ __sub__ __rsub__ __mul__ __truediv__ __pow__ __matmul__ __neg__ "
    "__eq__ __lt__ __and__ __invert__ __iter__ __len__ __repr__ __array__",
}


def resolve(path: str) -> object:
    found: object = lt
    for part in filter(None, path.split(".")):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("namespace", EXPECTED, ids=lambda n: n or "lowtide")
def test_the_names_of_pytorch_scripts_are_there(namespace: str) -> None:
    home = resolve(namespace)
    assert [n for n in EXPECTED[namespace].split() if not hasattr(home, n)] == []


def test_every_name_of_all_resolves() -> None:
    assert [n for n in lt.__all__ if not hasattr(lt, n)] == []


def test_all_has_no_private_and_no_internal_name() -> None:
    hidden = {"framework", "modules", "recipes", "cli"}
    assert [n for n in lt.__all__ if n.startswith("_") or n in hidden] == []


def undocumented(home: object, names: list[str]) -> list[str]:
    """Names whose object says nothing of itself."""
    found = []
    for name in names:
        value = inspect.getattr_static(home, name)
        documented = callable(value) or isinstance(value, property | types.ModuleType)
        origin = getattr(value, "__module__", None) or getattr(value, "__name__", "")
        if origin.startswith("multiprocessing."):
            continue  # the standard library's own
        if documented and not (inspect.getdoc(value) or "").strip():
            found.append(name)
    return found


def public(home: object) -> list[str]:
    return [n for n in vars(home) if not n.startswith("_")]


def namespaces() -> list[str]:
    """Every module a user may name: the files of the face, and the packages it leads to."""
    face = ROOT / "lowtide"
    files = [p.relative_to(face).with_suffix("") for p in face.rglob("*.py")]
    dotted = {".".join(p.parts).removesuffix("__init__").removesuffix(".") for p in files}
    dotted = {n for n in dotted if not n.endswith("_command")} - {"__main__", "cli"}
    dotted = {n for n in dotted if n.partition(".")[0] != "as_torch"}  # after it, torch is lowtide
    return sorted(dotted | {"optim", "optim.lr_scheduler", "optim.swa_utils", "profiling"})


NAMESPACES = namespaces()


@pytest.mark.parametrize("namespace", NAMESPACES, ids=lambda n: n or "lowtide")
def test_every_public_name_is_documented(namespace: str) -> None:
    if namespace == "nn.einops":
        pytest.importorskip("einops", reason="these layers are einops'")
    home = importlib.import_module(f"lowtide.{namespace}".removesuffix("."))
    assert undocumented(home, public(home)) == []


def test_every_member_of_the_profiler_is_documented() -> None:
    profiling = lt.profiling
    classes = [c for c in vars(profiling).values() if inspect.isclass(c)]
    members = {c.__name__: undocumented(c, public(c)) for c in classes}
    assert {name: found for name, found in members.items() if found} == {}
    assert len(classes) > 10


def test_every_tensor_method_is_documented() -> None:
    assert undocumented(lt.Tensor, public(lt.Tensor)) == []


@pytest.mark.parametrize("name", ["float32", "bool", "int64", "bfloat16", "complex64"])
def test_a_dtype_is_the_same_object_after_pickling(name: str) -> None:
    d = getattr(lt, name)
    assert pickle.loads(pickle.dumps(d)) is d


def test_dtypes_have_their_short_names() -> None:
    assert (lt.float, lt.double, lt.half) == (lt.float32, lt.float64, lt.float16)
    assert (lt.long, lt.int, lt.short) == (lt.int64, lt.int32, lt.int16)
    assert (lt.cfloat, lt.cdouble) == (lt.complex64, lt.complex128)


def test_running_out_of_memory_is_a_memory_error_and_a_runtime_error() -> None:
    assert issubclass(lt.MemoryLimitError, lt.OutOfMemoryError)
    assert issubclass(lt.OutOfMemoryError, MemoryError)
    assert issubclass(lt.OutOfMemoryError, RuntimeError)


def test_the_example_of_the_readme_prints_what_it_says() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code, expected = re.findall(r"```(?:python|text)\n(.*?)```", text, re.DOTALL)[:2]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # alone, so that the bytes are its own
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.stdout == expected, done.stderr


@pytest.mark.parametrize("home", ["", "nn", "optim", "autograd", "utils.data", "distributions"])
def test_annotations_of_public_classes_resolve(home: str) -> None:
    """Model libraries ask ``typing.get_type_hints`` of their classes, which asks ours."""
    module = importlib.import_module(f"lowtide.{home}".rstrip("."))
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    assert classes
    for each in classes:
        typing.get_type_hints(each)
