"""Kernels compiled for less than this machine's processor: what it lacks is not asked of it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Prints which features are taken for granted, and whether a convolution and a bfloat16 product of
# small whole numbers, which have no rounding, are those of NumPy.
PROGRAM = """
import numpy as np
import lowtide as lt
from lowtide.framework.kernels.cpu.elementwise import copy as moves
from lowtide.framework.kernels.cpu.linalg import bfloat16_matmul
from lowtide.framework.kernels.cpu.support import jit, microkernel
print(*(jit.has(f) for f in ("avx2", "avx512f")), end=" ")
print(bfloat16_matmul.in_hardware(), microkernel.GROUP)
whole = np.random.default_rng(0)
a, b = (whole.integers(-3, 4, (128, 128)).astype(np.float32) for _ in range(2))
made = lt.tensor(a).to(lt.bfloat16) @ lt.tensor(b).to(lt.bfloat16)
print(np.array_equal(made.float().numpy(), lt.tensor(a @ b).to(lt.bfloat16).float().numpy()))
x, w = (whole.integers(-3, 4, s).astype(np.float32) for s in ((4, 16, 24, 24), (24, 16, 3, 3)))
windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
exact = np.einsum("nchwij,ocij->nohw", windows, w)
print(np.array_equal(lt.nn.functional.conv2d(lt.tensor(x), lt.tensor(w)).numpy(), exact))
"""


@pytest.mark.deep
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names x86's features")
@pytest.mark.parametrize(
    ("features", "expected"),
    [("", "False False False 32"), ("+64bit,+avx,+avx2,+fma", "True False False 32")],
)
def test_a_compiler_that_is_told_of_less(features, expected, tmp_path):
    environment = os.environ | {
        "NUMBA_CPU_NAME": "x86-64",
        "NUMBA_CPU_FEATURES": features,
        "LOWTIDE_CACHE_DIR": str(tmp_path),
    }
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [expected, "True", "True"]
