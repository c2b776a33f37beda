"""ONNX, which lowtide does not write: a library may ask whether an export is under way."""

from __future__ import annotations

from typing import Any, NoReturn

__path__: list[str] = []  # so that Python asks for modules below: lowtide._torch_paths


def is_in_onnx_export() -> bool:
    """False: no export is under way."""
    return False


def is_onnxrt_backend_supported() -> bool:
    """False: nothing is compiled."""
    return False


def _raise_unsupported(name: str) -> NoReturn:
    raise NotImplementedError(
        f"torch.onnx.{name}: lowtide writes no ONNX files, for it traces no programs. Save the "
        "state dict with lowtide.save or safetensors, load it in PyTorch, and export it there."
    )


def export(*args: Any, **kwargs: Any) -> Any:
    """Not supported.

    Raises:
        NotImplementedError: Always.
    """
    _raise_unsupported("export")


def dynamo_export(*args: Any, **kwargs: Any) -> Any:
    """Not supported.

    Raises:
        NotImplementedError: Always.
    """
    _raise_unsupported("dynamo_export")


def register_custom_op_symbolic(symbolic_name: str, symbolic_fn: Any, opset_version: int) -> None:
    """Do nothing: it would say how an export writes an op."""


def unregister_custom_op_symbolic(symbolic_name: str, opset_version: int) -> None:
    """Do nothing, as :func:`register_custom_op_symbolic`."""


class OperatorExportTypes:
    """Kinds of export, for code that passes one on."""

    ONNX, ONNX_ATEN, ONNX_ATEN_FALLBACK, ONNX_FALLTHROUGH = range(4)


class TrainingMode:
    """Modes of export, for code that passes one on."""

    EVAL, PRESERVE, TRAINING = range(3)
