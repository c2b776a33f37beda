"""The compiled multilinear hash of a file's rows.

``framework/serialization/multilinear_hash.py`` defines it.
One kernel with one signature, since its first use on a machine waits for the compiler (0.4 s).
The sums of 32-bit products need no order, so the compiler splits them into lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .support.jit import compiled


def _sum_of_rows(words: Any, keys: Any, factor: Any) -> Any:
    total = np.uint64(0)
    for start in range(0, words.size, keys.size):
        row = words[start : start + keys.size]
        of_row = np.uint64(0)
        for i in range(keys.size):
            of_row += np.uint64(row[i]) * np.uint64(keys[i])
        total = total * factor + of_row
    return total


sum_of_rows: Any = compiled(_sum_of_rows, signature="u4:1Cru,u4:1Cr,u8")  # wherever words lie
