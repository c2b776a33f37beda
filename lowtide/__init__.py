"""lowtide: one import name over framework/, modules/, optim/, profiling/ and recipes/.

This file is the public API, as one readable list. Each name has its home elsewhere, and is only
re-exported here. Whatever is heavy (CuPy, Numba, SciPy, Matplotlib) is imported on first use, never
here: ``import lowtide`` costs little more than ``import numpy``.
"""

import math as _math
import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if __name__ == "lowtide" and not _os.path.isfile(
    _os.path.join(__path__[0], "framework", "__init__.py")
):
    # A checkout, not an installed wheel: the folders lie beside this one.
    __path__.append(_os.path.dirname(__path__[0]))

__version__ = "0.1.0"

# Values and their types
from lowtide.framework.device import device as device
from lowtide.framework.device import get_default_device as get_default_device
from lowtide.framework.device import set_default_device as set_default_device
from lowtide.framework.dtypes import bfloat16 as bfloat16
from lowtide.framework.dtypes import bool_ as _bool
from lowtide.framework.dtypes import can_cast as can_cast
from lowtide.framework.dtypes import complex64 as complex64
from lowtide.framework.dtypes import complex128 as complex128
from lowtide.framework.dtypes import dtype as dtype
from lowtide.framework.dtypes import finfo as finfo
from lowtide.framework.dtypes import float8_e4m3fn as float8_e4m3fn
from lowtide.framework.dtypes import float8_e5m2 as float8_e5m2
from lowtide.framework.dtypes import float16 as float16
from lowtide.framework.dtypes import float32 as float32
from lowtide.framework.dtypes import float64 as float64
from lowtide.framework.dtypes import get_default_dtype as get_default_dtype
from lowtide.framework.dtypes import iinfo as iinfo
from lowtide.framework.dtypes import int8 as int8
from lowtide.framework.dtypes import int16 as int16
from lowtide.framework.dtypes import int32 as int32
from lowtide.framework.dtypes import int64 as int64
from lowtide.framework.dtypes import promote_types as promote_types
from lowtide.framework.dtypes import set_default_dtype as set_default_dtype
from lowtide.framework.dtypes import uint16 as uint16
from lowtide.framework.dtypes import uint32 as uint32
from lowtide.framework.dtypes import uint64 as uint64
from lowtide.framework.dtypes import uint8 as uint8
from lowtide.framework.memory_format import channels_last as channels_last
from lowtide.framework.memory_format import channels_last_3d as channels_last_3d
from lowtide.framework.memory_format import contiguous_format as contiguous_format
from lowtide.framework.memory_format import layout as layout
from lowtide.framework.memory_format import memory_format as memory_format
from lowtide.framework.memory_format import preserve_format as preserve_format
from lowtide.framework.memory_format import sparse_bsc as sparse_bsc
from lowtide.framework.memory_format import sparse_bsr as sparse_bsr
from lowtide.framework.memory_format import sparse_coo as sparse_coo
from lowtide.framework.memory_format import sparse_csc as sparse_csc
from lowtide.framework.memory_format import sparse_csr as sparse_csr
from lowtide.framework.memory_format import strided as strided
from lowtide.framework.spec import Size as Size
from lowtide.framework.tensor import Tensor as Tensor

# Ops: every public function of framework/ops
from lowtide.framework.ops import *  # noqa: F403

# NumPy's and other libraries' memory; printing
from lowtide.framework.interop import legacy_methods as _legacy_methods  # noqa: F401 - installs them
from lowtide.framework.interop.protocols import to_dlpack as to_dlpack
from lowtide.framework.ops.creation.from_data import from_dlpack as from_dlpack
from lowtide.framework.printing import set_printoptions as set_printoptions

# Gradients
from lowtide.framework.autograd.anomaly import is_anomaly_enabled as is_anomaly_enabled
from lowtide.framework.modes import enable_grad as enable_grad
from lowtide.framework.modes import inference_mode as inference_mode
from lowtide.framework.modes import is_grad_enabled as is_grad_enabled
from lowtide.framework.modes import is_inference_mode_enabled as is_inference_mode_enabled
from lowtide.framework.modes import no_grad as no_grad
from lowtide.framework.modes import set_grad_enabled as set_grad_enabled

# Mixed precision
from lowtide.framework.amp.autocast import autocast as autocast
from lowtide.framework.amp.autocast import autocast_decrement_nesting as autocast_decrement_nesting
from lowtide.framework.amp.autocast import autocast_increment_nesting as autocast_increment_nesting
from lowtide.framework.amp.autocast import clear_autocast_cache as clear_autocast_cache
from lowtide.framework.amp.autocast import get_autocast_dtype as get_autocast_dtype
from lowtide.framework.amp.autocast import is_autocast_cache_enabled as is_autocast_cache_enabled
from lowtide.framework.amp.autocast import is_autocast_enabled as is_autocast_enabled
from lowtide.framework.amp.autocast import set_autocast_cache_enabled as set_autocast_cache_enabled
from lowtide.framework.amp.autocast import set_autocast_dtype as set_autocast_dtype
from lowtide.framework.amp.autocast import set_autocast_enabled as set_autocast_enabled

# Activation checkpointing, and budgets of bytes
from lowtide.framework.checkpointing.budget import memory_budget as memory_budget
from lowtide.framework.checkpointing.regions import checkpoint as checkpoint

# Errors
from lowtide.framework.errors import CaptureError as CaptureError
from lowtide.framework.errors import CaptureWarning as CaptureWarning
from lowtide.framework.errors import CheckpointError as CheckpointError
from lowtide.framework.errors import GradientError as GradientError
from lowtide.framework.errors import InfeasibleBudget as InfeasibleBudget
from lowtide.framework.errors import MemoryLimitError as MemoryLimitError
from lowtide.framework.errors import OutOfMemoryError as OutOfMemoryError
from lowtide.framework.errors import SerializationError as SerializationError

# Randomness: one stream for all devices
from lowtide.framework.random.generator import Generator as Generator
from lowtide.framework.random.generator import default_generator as default_generator
from lowtide.framework.random.generator import fork_rng as fork_rng
from lowtide.framework.random.generator import get_rng_state as get_rng_state
from lowtide.framework.random.generator import initial_seed as initial_seed
from lowtide.framework.random.generator import manual_seed as manual_seed
from lowtide.framework.random.generator import seed as seed
from lowtide.framework.random.generator import set_rng_state as set_rng_state

# Files
from lowtide.framework.serialization import load as load
from lowtide.framework.serialization import save as save

# Wishes that scripts state: remembered, and without effect
from lowtide.framework.compat import (
    are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled,
)
from lowtide.framework.capture.compiling import compile as compile
from lowtide.framework.compat import get_float32_matmul_precision as get_float32_matmul_precision
from lowtide.framework.compat import (
    is_deterministic_algorithms_warn_only_enabled as is_deterministic_algorithms_warn_only_enabled,
)
from lowtide.framework.compat import set_float32_matmul_precision as set_float32_matmul_precision
from lowtide.framework.compat import set_flush_denormal as set_flush_denormal
from lowtide.framework.compat import use_deterministic_algorithms as use_deterministic_algorithms

# Threads
from lowtide.framework.kernels.runtime.threads import get_num_threads as get_num_threads
from lowtide.framework.kernels.runtime.threads import set_num_threads as set_num_threads

# Memory
from lowtide.framework.devices.memory_statistics import empty_cache as empty_cache
from lowtide.framework.devices.memory_statistics import get_memory_limit as get_memory_limit
from lowtide.framework.devices.memory_statistics import max_memory_allocated as max_memory_allocated
from lowtide.framework.devices.memory_statistics import max_memory_reserved as max_memory_reserved
from lowtide.framework.devices.memory_statistics import memory_allocated as memory_allocated
from lowtide.framework.devices.memory_statistics import memory_reserved as memory_reserved
from lowtide.framework.devices.memory_statistics import memory_stats as memory_stats
from lowtide.framework.devices.memory_statistics import memory_summary as memory_summary
from lowtide.framework.devices.memory_statistics import (
    reset_peak_memory_stats as reset_peak_memory_stats,
)
from lowtide.framework.devices.memory_statistics import set_memory_limit as set_memory_limit
from lowtide.framework.devices.memory_statistics import synchronize as synchronize

# Namespaces
from lowtide import amp as amp
from lowtide import autograd as autograd
from lowtide import backends as backends
from lowtide import compiler as compiler
from lowtide import cpu as cpu
from lowtide import cuda as cuda
from lowtide import distributed as distributed
from lowtide import fft as fft
from lowtide import func as func
from lowtide import jit as jit
from lowtide import linalg as linalg
from lowtide import nn as nn
from lowtide import optim as optim
from lowtide import profiling as profiling
from lowtide import random as random
from lowtide import signal as signal
from lowtide import sparse as sparse
from lowtide import special as special
from lowtide import testing as testing
from lowtide import utils as utils
from lowtide import version as version
from lowtide.framework.vmap.transform import vmap as vmap

if _TYPE_CHECKING:
    checkpointing: _Any  # a module that can be called, of which type checkers know nothing
    from lowtide import accelerator as accelerator  # in use, when they are first asked for
    from lowtide import distributions as distributions
    from lowtide import functional as functional
    from lowtide import fx as fx
    from lowtide import hub as hub
    from lowtide import library as library
    from lowtide import mps as mps
    from lowtide import onnx as onnx
    from lowtide import overrides as overrides
    from lowtide import serialization as serialization
    from lowtide import storage as storage
    from lowtide import types as types
    from lowtide import xpu as xpu
else:
    from lowtide import checkpointing as checkpointing

# Plans within a budget of bytes
from lowtide.profiling.estimate.budget_fit import fit as fit

from lowtide.profiling.publisher import publish_if_asked as _publish_if_asked

# To be put where PyTorch has it, below
from lowtide.modules import averaging as _averaging

# For IPython, which looks here after `%load_ext lowtide`
from lowtide.profiling import load_ipython_extension as load_ipython_extension
from lowtide.profiling import unload_ipython_extension as unload_ipython_extension

# Modules that PyTorch has under more names
from lowtide._torch_paths import install as _install_paths

# Constants
inf, nan, pi, e, newaxis = _math.inf, _math.nan, _math.pi, _math.e, None

# PyTorch has averages of models under optim, which may not import modules here
for _name in (
    "AveragedModel",
    "update_bn",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
):
    setattr(optim.swa_utils, _name, getattr(_averaging, _name))

# PyTorch's other names of the dtypes; from here on they are no longer Python's
bool = _bool
short, int, long = int16, int32, int64
half, float, double = float16, float32, float64
cfloat, cdouble = complex64, complex128

_install_paths()  # lowtide.cuda.memory, and such
_publish_if_asked()  # for `lowtide top`

_HIDDEN = {"cli", "framework", "modules", "recipes"}  # ours, but not public
_HIDDEN |= {"load_ipython_extension", "unload_ipython_extension"}
_LATER = (  # namespaces imported when they are first asked for
    "accelerator", "distributions", "functional", "futures", "fx", "hub", "library", "mps",
    "multiprocessing", "onnx", "overrides", "profiler", "quasirandom", "serialization", "storage",
    "types", "xpu",
)  # fmt: skip
__all__ = sorted([*(n for n in globals() if not n.startswith("_") and n not in _HIDDEN), *_LATER])


def __getattr__(name: str) -> _Any:
    """Import a namespace of ``_LATER``, which few programs want."""
    if name in _LATER:
        return __import__("importlib").import_module(f"lowtide.{name}")
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
