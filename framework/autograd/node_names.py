"""PyTorch's names of graph nodes, where they differ from our op's name.

``_sum`` is ``SumBackward0`` over everything and ``SumBackward1`` over dims; one ``_permute`` serves
``t``, ``transpose`` and ``permute``, which say which they are by an attribute that does nothing
else. A name that is never printed (of helpers, of fused ops that PyTorch composes) follows the
op's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..spec import Spec


def _reduction(name: str) -> Callable[..., str]:
    def named(input: Any, **attributes: Any) -> str:
        over_all = len(attributes["dim"]) == input.ndim and not attributes["keepdim"]
        return f"{name}Backward{int(not over_all)}"

    return named


def _scalar(name: str, with_scalar: int, with_tensor: int) -> Callable[..., str]:
    # The number says whether the last input is a tensor.
    def named(*specs: Any, **_: Any) -> str:
        tensor = isinstance(specs[-1], Spec)
        return f"{name}Backward{with_tensor if tensor else with_scalar}"

    return named


def _pow(input: Any, exponent: Any, **_: Any) -> str:
    if not isinstance(input, Spec):
        return "PowBackward2"
    return f"PowBackward{int(isinstance(exponent, Spec))}"


def _clamp(input: Any, *bounds: Any) -> str:
    return f"ClampBackward{int(not any(isinstance(b, Spec) for b in bounds))}"


def _matmul(input: Any, other: Any, **_: Any) -> str:
    dims = (input.ndim, other.ndim)
    names = {(1, 1): "Dot", (2, 1): "Mv", (2, 2): "Mm", (3, 3): "Bmm"}
    return f"{names.get(dims, 'Matmul')}Backward0"


def _addmatmul(input: Any, first: Any, second: Any, **_: Any) -> str:
    names = {(2, 1): "Addmv", (2, 2): "Addmm", (3, 3): "Baddbmm", (1, 1): "Addr"}
    return f"{names.get((first.ndim, second.ndim), 'Addmatmul')}Backward0"


def _pool(name: str) -> Callable[..., str]:
    def named(*specs: Any, **attributes: Any) -> str:
        with_indices = "WithIndices" if name == "MaxPool" else ""
        return f"{name}{len(attributes['kernel'])}D{with_indices}Backward0"

    return named


def _border(*_: Any, **attributes: Any) -> str:
    padded = sum(map(any, zip(attributes["before"], attributes["after"], strict=True)))
    name = {"reflect": "Reflection", "replicate": "Replication"}.get(attributes["mode"])
    return f"{name}Pad{padded}DBackward0" if name else "CatBackward0"


def _named(default: str) -> Callable[..., str]:
    def named(*_: Any, **attributes: Any) -> str:
        return f"{attributes.get('named') or default}Backward0"

    return named


def _total(*_: Any, divisor: int, **__: Any) -> str:
    return "SumBackward0" if divisor == 1 else "MeanBackward0"  # as it is of few elements


NODE_NAMES: dict[str, str | Callable[..., str]] = {
    "_sum": _reduction("Sum"), "_mean": _reduction("Mean"), "_prod": _reduction("Prod"),
    "pow": _pow, "matmul": _matmul, "_addmatmul": _addmatmul,
    "_max_dim": "MaxBackward0", "_min_dim": "MinBackward0",
    "fmod": _scalar("Fmod", 0, 1), "remainder": _scalar("Remainder", 0, 1),
    "_fill": _scalar("Fill", 2, 3), "masked_fill": _scalar("MaskedFill", 0, 1),
    "_relu_with_bitmask": "ReluBackward0", "_leaky_relu_with_bitmask": "LeakyReluBackward0",
    "_hardtanh_with_bitmask": "HardtanhBackward0",
    "_hardsigmoid_with_bitmask": "HardsigmoidBackward0",
    "_absolute_error_with_bitmask": "AbsoluteErrorBackward0", "_squared_error_total": _total,
    "_bent_error_total": _total, "_bce_with_logits_total": _total,
    "_binary_cross_entropy_total": _total,
    "_threshold_with_bitmask": "ThresholdBackward0", "_clamp_with_bitmask": "ClampBackward1",
    "_clamp": _clamp, "_narrow": _named("Slice"), "_select": _named("Select"),
    "_permute": _named("Permute"), "_view": _named("View"),
    "_conv": "ConvolutionBackward0", "_conv_input_grad": "ConvolutionBackward0",
    "_max_pool": _pool("MaxPool"), "_avg_pool": _pool("AvgPool"),
    "_batch_norm": "NativeBatchNormBackward0", "_layer_norm": "NativeLayerNormBackward0",
    "_group_norm": "NativeGroupNormBackward0", "_norm": "LinalgVectorNormBackward0",
    "logsigmoid": "LogSigmoidBackward0", "_pad": "ConstantPadNdBackward0",
    "_pad_border": _border,
    "_convert": "ToCopyBackward0", "_copy": "CopyBackwards",
    "_index_masked": "IndexBackward0", "_reshape_copy": "UnsafeViewBackward0",
}  # fmt: skip


def node_name(name: str, specs: tuple[Any, ...], attributes: dict[str, Any]) -> str:
    """Return the name of the node that a call of an op records."""
    found = NODE_NAMES.get(name)
    if found is None:
        return "".join(part.title() for part in name.strip("_").split("_")) + "Backward0"
    return found if isinstance(found, str) else found(*specs, **attributes)
