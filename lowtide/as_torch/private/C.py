"""``torch._C``: of PyTorch's compiled part, what libraries probe when they start.

Names that only steer PyTorch's compiler, its tracer or its profile of usage do nothing. Names of
values are lowtide's own. All others are absent, and a library that asks for one hears so.
"""

from __future__ import annotations

from typing import Any

import lowtide as _lt
from lowtide.as_torch.private import cnn as _nn  # noqa: F401
from lowtide.overrides import DisableTorchFunction as DisableTorchFunction
from lowtide.overrides import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass

Generator, Size, device, dtype = _lt.Generator, _lt.Size, _lt.device, _lt.dtype
layout, memory_format = _lt.layout, _lt.memory_format
_TensorBase = TensorBase = _lt.Tensor
_GLIBCXX_USE_CXX11_ABI = True
has_lapack = True
has_mkl = has_mkldnn = _has_mkldnn = has_cuda = has_cudnn = has_spectral = False
_has_cuda = _has_cudnn = _has_mps = _has_xpu = False


class _Functions:
    """The functions of ``torch``, by attribute."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_lt, name)


_VariableFunctions = _VariableFunctionsClass = _Functions()


def _log_api_usage_once(*args: Any) -> None:
    """Do nothing: usage is not reported."""


def _log_api_usage_metadata(*args: Any) -> None:
    """Do nothing: usage is not reported."""


def _get_tracing_state() -> None:
    """None: nothing is traced."""


def _is_tracing() -> bool:
    """False: nothing is traced."""
    return False


def _get_graph_executor_optimize(*args: Any) -> bool:
    """False: nothing is compiled."""
    return False


def _steers_nothing(*args: Any, **kwargs: Any) -> bool:
    """Return False: it would steer a compiler that is not there."""
    return False


for _name in (
    "_jit_set_profiling_executor",
    "_jit_set_profiling_mode",
    "_jit_override_can_fuse_on_cpu",
    "_jit_override_can_fuse_on_gpu",
    "_jit_set_texpr_fuser_enabled",
    "_jit_set_nvfuser_enabled",
    "_set_graph_executor_optimize",
    "_jit_set_bailout_depth",
    "_debug_set_fusion_group_inlining",
    "_jit_set_inline_everything_mode",
    "_jit_texpr_fuser_enabled",
    "_jit_nvfuser_enabled",
):
    globals()[_name] = _steers_nothing


def _len_torch_dispatch_stack() -> int:
    """Return 0: there are no dispatch modes."""
    return 0


def _len_torch_function_stack() -> int:
    """Return 0: there are no modes of functions."""
    return 0


def _is_torch_function_enabled() -> bool:
    """False: a tensor's class does not override functions here."""
    return False


def _is_torch_function_mode_enabled() -> bool:
    """False: there are no modes of functions."""
    return False


def _get_default_device() -> str:
    """Return the name of the default device."""
    return str(_lt.get_default_device())


def _get_cublas_allow_tf32() -> bool:
    """False: a matrix product runs in the precision of its inputs."""
    return False


def _add_docstr(obj: Any, doc: str) -> Any:
    """Return the object; its docstring stays its own."""
    return obj


def is_grad_enabled() -> bool:
    """True if operations are recorded."""
    return bool(_lt.is_grad_enabled())


def _set_grad_enabled(mode: bool) -> None:
    """Record operations from now on, or do not."""
    _lt.set_grad_enabled(mode)


def _cuda_getDeviceCount() -> int:
    """Return the number of GPUs."""
    return _lt.cuda.device_count()


def parse_schema(text: str) -> Any:
    """Not supported: there are no schemas.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        f"torch._C.parse_schema reads a schema of PyTorch's operators, got {text!r}; lowtide has "
        "none. An op of lowtide is declared in Python: docs/add_an_op.md."
    )


class _DispatchKeys:
    # Names of PyTorch's tables of kernels; here they are names and no more.
    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


DispatchKey = _DispatchKeys()


class DispatchKeySet(frozenset[str]):
    """A set of names of PyTorch's tables of kernels, which nothing here looks at."""

    def __new__(cls, key: Any = ()) -> DispatchKeySet:
        """Make a set of one name, or of several."""
        return super().__new__(cls, (key,) if isinstance(key, str) else key)

    def __or__(self, other: Any) -> DispatchKeySet:
        return DispatchKeySet(frozenset(self) | frozenset(other))


class _ExcludeDispatchKeyGuard:
    """A block without some tables of kernels: it changes nothing."""

    def __init__(self, keys: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


def _cuda_isInBadFork() -> bool:
    """False: a forked process that may not use CUDA hears so from CuPy."""
    return False


def _get_privateuseone_backend_name() -> str:
    """Return PyTorch's name of a device that is not there."""
    return "privateuseone"


_get_privateuse1_backend_name = _get_privateuseone_backend_name
_jit_can_fuse_on_cpu = _jit_can_fuse_on_gpu = _jit_set_nvfuser_guard_mode = _steers_nothing

_TensorMeta = type(_lt.Tensor)


def _are_functorch_transforms_active() -> bool:
    """False: a transform's values are tensors."""
    return False


def _disabled_torch_function_impl(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Call the function."""
    return func(*args, **(kwargs or {}))


class PyTorchFileReader:
    """PyTorch's reader of its files, for code that names it.

    Raises:
        NotImplementedError: One is made; ``torch.load`` reads such files.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"torch.{type(self).__name__}: lowtide reads and writes files by torch.load and "
            "torch.save alone; load reads PyTorch's files of tensors too."
        )


class PyTorchFileWriter(PyTorchFileReader):
    """PyTorch's writer of its files, for code that names it; as the reader."""
