"""Functions that PyTorch has directly under ``torch``, in its kernels' order of arguments.

Libraries call a few of them in place of those of ``nn.functional``, which compute the same. Where a
loss takes a reduction, it is PyTorch's number for it: 0 none, 1 mean, 2 sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lowtide as _lt
from lowtide.nn import _reduction
from lowtide.nn import functional as _F

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def _listed(function: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[function.__name__] = function
    return function


@_listed
def embedding(
    weight: Any,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Look rows up, as ``nn.functional.embedding``, the table first; -1 is no padding."""
    padding = None if padding_idx == -1 else padding_idx
    return _F.embedding(indices, weight, padding, None, 2.0, scale_grad_by_freq, sparse)


@_listed
def batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Any:
    """Normalize over the batch, as ``nn.functional.batch_norm``."""
    return _F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


@_listed
def instance_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> Any:
    """Normalize each example's channels, as ``nn.functional.instance_norm``."""
    return _F.instance_norm(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )


@_listed
def grid_sampler(
    input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """Sample at a grid, as ``nn.functional.grid_sample``, with numbers for the modes."""
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    return _F.grid_sample(
        input, grid, modes[interpolation_mode], paddings[padding_mode], align_corners
    )


FUNCTIONS["grid_sampler_2d"] = FUNCTIONS["grid_sampler_3d"] = grid_sampler


@_listed
def affine_grid_generator(theta: Any, size: Any, align_corners: bool) -> Any:
    """Make a grid of affine maps, as ``nn.functional.affine_grid``."""
    return _F.affine_grid(theta, size, align_corners)


@_listed
def convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    """Convolve over one to three dims, or transposed, by the number of the weight's dims."""
    nd = weight.ndim - 2
    if transposed:
        back = (_F.conv_transpose1d, _F.conv_transpose2d, _F.conv_transpose3d)[nd - 1]
        return back(input, weight, bias, stride, padding, output_padding, groups, dilation)
    forth = (_F.conv1d, _F.conv2d, _F.conv3d)[nd - 1]
    return forth(input, weight, bias, stride, padding, dilation, groups)


@_listed
def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """The randomized leaky ReLU, as ``nn.functional.rrelu``."""
    if generator is not None:
        raise NotImplementedError("rrelu: lowtide draws from the default generator; leave it out.")
    return _F.rrelu(input, lower, upper, training)


@_listed
def dropout_(input: Any, p: float, train: bool) -> Any:
    """Zero elements in place, as ``nn.functional.dropout``."""
    return _F.dropout(input, p, train, inplace=True)


@_listed
def alpha_dropout_(input: Any, p: float, train: bool) -> Any:
    """Mask elements in place, as ``nn.functional.alpha_dropout``."""
    return _F.alpha_dropout(input, p, train, inplace=True)


@_listed
def kl_div(input: Any, target: Any, reduction: int = 1, *, log_target: bool = False) -> Any:
    """The Kullback-Leibler divergence, as ``nn.functional.kl_div``."""
    return _F.kl_div(
        input, target, reduction=_reduction.get_string(reduction), log_target=log_target
    )


@_listed
def poisson_nll_loss(
    input: Any, target: Any, log_input: bool, full: bool, eps: float, reduction: int
) -> Any:
    """The Poisson loss, as ``nn.functional.poisson_nll_loss``."""
    return _F.poisson_nll_loss(
        input, target, log_input, full, eps=eps, reduction=_reduction.get_string(reduction)
    )


@_listed
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    """The loss of logits, as ``nn.functional.binary_cross_entropy_with_logits``."""
    return _F.binary_cross_entropy_with_logits(
        input,
        target,
        weight,
        reduction=_reduction.get_string(reduction),
        pos_weight=pos_weight,
    )


@_listed
def margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: int = 1
) -> Any:
    """The ranking loss, as ``nn.functional.margin_ranking_loss``."""
    return _F.margin_ranking_loss(
        input1, input2, target, margin, reduction=_reduction.get_string(reduction)
    )


@_listed
def hinge_embedding_loss(input: Any, target: Any, margin: float = 1.0, reduction: int = 1) -> Any:
    """The hinge loss of distances, as ``nn.functional.hinge_embedding_loss``."""
    return _F.hinge_embedding_loss(
        input, target, margin, reduction=_reduction.get_string(reduction)
    )


@_listed
def cosine_embedding_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: int = 1
) -> Any:
    """The cosine loss, as ``nn.functional.cosine_embedding_loss``."""
    return _F.cosine_embedding_loss(
        input1, input2, target, margin, reduction=_reduction.get_string(reduction)
    )


@_listed
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = 1,
) -> Any:
    """The triplet loss, as ``nn.functional.triplet_margin_loss``."""
    return _F.triplet_margin_loss(
        anchor,
        positive,
        negative,
        margin,
        p,
        eps,
        swap,
        reduction=_reduction.get_string(reduction),
    )


@_listed
def frobenius_norm(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The square root of the sum of squares."""
    return _lt.linalg.vector_norm(input, 2, dim or None, keepdim)


@_listed
def nuclear_norm(input: Any, dim: Any = (-2, -1), keepdim: bool = False) -> Any:
    """The sum of singular values."""
    return _lt.linalg.matrix_norm(input, "nuc", dim, keepdim)


@_listed
def norm_except_dim(v: Any, pow: int = 2, dim: int = 0) -> Any:
    """The norm over all dimensions but one; over all for -1."""
    if dim == -1:
        return _lt.linalg.vector_norm(v, pow)
    return _lt.linalg.vector_norm(v, pow, [d for d in range(v.dim()) if d != dim], keepdim=True)


@_listed
def _weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    """A direction scaled to a length: ``v * g / norm(v)``."""
    return v * (g / norm_except_dim(v, 2, dim))


@_listed
def _softmax(input: Any, dim: int, half_to_float: bool) -> Any:
    """The softmax; in float32, if asked."""
    return _F.softmax(input, dim, dtype=_lt.float32 if half_to_float else None)


@_listed
def _log_softmax(input: Any, dim: int, half_to_float: bool) -> Any:
    """The logarithm of the softmax; in float32, if asked."""
    return _F.log_softmax(input, dim, dtype=_lt.float32 if half_to_float else None)


@_listed
def _stack(tensors: Any, dim: int = 0) -> Any:
    """Stack, as ``torch.stack``."""
    return _lt.stack(tensors, dim)


@_listed
def adaptive_max_pool1d(input: Any, output_size: Any) -> tuple[Any, Any]:
    """The maxima of so many windows, and where they are."""
    return _F.adaptive_max_pool1d(input, output_size, return_indices=True)  # type: ignore[no-any-return]


@_listed
def max_pool1d_with_indices(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Any, Any]:
    """The maxima of windows, and where they are."""
    pooled = (kernel_size, stride or None, padding, dilation, ceil_mode, True)
    return _F.max_pool1d(input, *pooled)  # type: ignore[no-any-return]


@_listed
def set_default_tensor_type(t: Any) -> None:
    """Set the default dtype by the name of a tensor's type, such as ``torch.DoubleTensor``.

    Raises:
        TypeError: It is no type of floating-point tensors of the CPU.
    """
    names = {
        "FloatTensor": _lt.float32,
        "DoubleTensor": _lt.float64,
        "HalfTensor": _lt.float16,
        "BFloat16Tensor": _lt.bfloat16,
    }
    name = t if isinstance(t, str) else getattr(t, "__name__", str(t))
    found = names.get(name.removeprefix("torch."))
    if found is None:
        raise TypeError(
            "set_default_tensor_type takes one of torch.FloatTensor, DoubleTensor, HalfTensor, "
            f"BFloat16Tensor; got {t!r}. For GPUs call set_default_device('cuda')."
        )
    _lt.set_default_dtype(found)


@_listed
def typename(obj: Any) -> str:
    """The name of an object's type: ``torch.FloatTensor`` of a tensor."""
    if isinstance(obj, _lt.Tensor):
        return str(obj.type())
    kind = obj if isinstance(obj, type) or callable(obj) else type(obj)
    module = getattr(kind, "__module__", None) or ""
    name = getattr(kind, "__qualname__", None) or type(obj).__name__
    return name if module in ("", "builtins") else f"{module}.{name}"


@_listed
def get_num_interop_threads() -> int:
    """One: one operation runs at a time."""
    return 1


@_listed
def set_num_interop_threads(n: int) -> None:
    """Do nothing: one operation runs at a time."""


@_listed
def is_vulkan_available() -> bool:
    """False: there is no such device."""
    return False


@_listed
def is_distributed(input: Any) -> bool:
    """False."""
    return False


@_listed
def is_warn_always_enabled() -> bool:
    """False: a warning is shown as Python's filters say."""
    return False


@_listed
def set_warn_always(b: bool) -> None:
    """Do nothing: a warning is shown as Python's filters say."""


@_listed
def compiled_with_cxx11_abi() -> bool:
    """True, as in PyTorch's own builds; nothing of lowtide is C++."""
    return True


@_listed
def get_device_module(device: Any = None) -> Any:
    """Return the module of a kind of device: ``torch.cuda``, ``torch.cpu``.

    Raises:
        RuntimeError: There is none.
    """
    where = _lt.get_default_device() if device is None else _lt.device(device)
    found = {"cuda": _lt.cuda, "cpu": _lt.cpu}.get(where.type)
    if found is None:
        raise RuntimeError(f"get_device_module: {where.type} has no module; cuda and cpu have.")
    return found


@_listed
def get_deterministic_debug_mode() -> int:
    """0, 1 or 2: nothing, a warning, or an error where an operation is not deterministic."""
    if not _lt.are_deterministic_algorithms_enabled():
        return 0
    return 1 if _lt.is_deterministic_algorithms_warn_only_enabled() else 2


@_listed
def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Set it by number, or as "default", "warn", "error"; here all operations are deterministic.

    Raises:
        ValueError: It is none of these.
    """
    names = {"default": 0, "warn": 1, "error": 2}
    found = names.get(debug_mode, -1) if isinstance(debug_mode, str) else debug_mode
    if found not in (0, 1, 2):
        raise ValueError(
            f"set_deterministic_debug_mode takes 0, 1, 2 or one of {', '.join(names)}; got "
            f"{debug_mode!r}."
        )
    _lt.use_deterministic_algorithms(found > 0, warn_only=found == 1)


def _for_device(device_type: str) -> None:
    # The older names of autocast's state, one for each kind of device.
    short = {"cpu": "cpu", "cuda": "gpu"}[device_type]
    pairs: dict[str, Callable[..., Any]] = {
        f"get_autocast_{short}_dtype": lambda: _lt.get_autocast_dtype(device_type),
        f"set_autocast_{short}_dtype": lambda dtype: _lt.set_autocast_dtype(device_type, dtype),
    }
    if device_type == "cpu":
        pairs["is_autocast_cpu_enabled"] = lambda: _lt.is_autocast_enabled("cpu")
        pairs["set_autocast_cpu_enabled"] = lambda on: _lt.set_autocast_enabled("cpu", on)
    for name, function in pairs.items():
        function.__name__ = function.__qualname__ = name
        function.__doc__ = f"Autocast's state on {device_type}."
        FUNCTIONS[name] = function


_for_device("cpu")
_for_device("cuda")
globals().update(FUNCTIONS)


def __getattr__(name: str) -> Any:
    """Whatever else ``torch._VF`` is asked for is a function of lowtide."""
    found = getattr(_lt, name, None) if not name.startswith("__") else None
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
