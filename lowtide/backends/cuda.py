"""Switches of the CUDA libraries: accepted, and without effect.

Matrix products run in the precision of their inputs, so ``allow_tf32`` stays a wish.
"""

from importlib.util import find_spec


class _Matmul:
    allow_tf32: bool = False
    allow_fp16_reduced_precision_reduction: bool = False
    allow_bf16_reduced_precision_reduction: bool = False


matmul = _Matmul()


def is_built() -> bool:
    """True if CuPy, which runs lowtide's kernels on NVIDIA GPUs, is installed."""
    return find_spec("cupy") is not None
