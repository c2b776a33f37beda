"""Optimizer steps that pass over a parameter once: on the CPU, where Numba compiles them.

The plain steps are lines of tensor ops, each a pass over memory, some with a result as large as
the parameter. Here a step reads and writes every element once and allocates nothing. On meta the
same parameters take the same road, so that predicted and measured bytes agree.
"""

from __future__ import annotations

from typing import Any

LEAST = 1 << 14  # elements in all, below which plain steps are fast enough without Numba


def fits(elements: int, *tensors: Any) -> bool:
    """True for contiguous tensors of one float type on the CPU (or meta).

    Args:
        elements: Of all that the optimizer steps.
        *tensors: A parameter, its gradient and its state.
    """
    first = tensors[0]._spec
    if elements < LEAST or first.dtype.name not in ("float32", "float64"):
        return False
    if first.device.type not in ("cpu", "meta"):
        return False
    return all(
        t._spec is first and t._viewed is None and t._array.flags.c_contiguous for t in tensors
    )


def adam(p: Any, g: Any, m: Any, v: Any, step: int, group: dict[str, Any], decoupled: bool) -> None:
    """One step of Adam or AdamW, in place."""
    b1, b2 = group["betas"]
    decay = group["weight_decay"]
    keep = 1.0 - group["lr"] * decay if decoupled else 1.0
    root, rate = (1 - b2**step) ** -0.5, group["lr"] / (1 - b1**step)
    numbers = (b1, b2, 1 - b1, 1 - b2, keep, 0.0 if decoupled else decay, root, group["eps"], rate)
    _run("adam", (p, g, m, v), numbers, written=(p, m, v))


def momentum(p: Any, g: Any, buffer: Any, group: dict[str, Any]) -> None:
    """One step of SGD with momentum, in place."""
    numbers = (
        group["weight_decay"], -1.0 if group["maximize"] else 1.0, group["momentum"],
        1 - group["dampening"], 1.0 if group["nesterov"] else 0.0, group["lr"],
    )  # fmt: skip
    _run("momentum", (p, g, buffer), numbers, written=(p, buffer))


def _run(name: str, tensors: Any, numbers: Any, written: Any) -> None:
    for t in written:
        t._storage.version += 1
    if tensors[0].device.type == "meta":
        return
    from ..framework.kernels.cpu import steps
    from ..framework.kernels.cpu.threads import spread

    arrays = [t._array.reshape(-1) for t in tensors]
    kind = arrays[0].dtype.type
    n = arrays[0].size
    spread(getattr(steps, name), n, n, *arrays, *[kind(x) for x in numbers])
