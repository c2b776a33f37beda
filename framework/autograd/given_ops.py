"""Ops that autograd calls; the files that define them register them here."""

from __future__ import annotations

from typing import Any

tiles: Any  # ops/views/tiled.py
stack: Any  # ops/manipulation/cat.py
strided_view: Any  # ops/views/as_strided.py
grad_of_sparse: Any  # ops/sparse/gradients.py
roots_of_sparse: Any

# inside vmap: vmap/gradients.py
grad_in_vmap: Any
batched_grad: Any
function_in_vmap: Any  # vmap/custom_function.py
