"""Kernels of an op in order of preference, and the choice among them.

A plan chooses once: the first kernel of the list that is for the device, the dtypes and the call;
else the plain one, which takes everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..spec import Spec

DEVICES = ("cpu", "cuda")
DTYPES = ("own", "half", "mixed")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of an op, and the calls that it supports.

    Attributes:
        function: Takes what the op's plain kernel takes.
        device: ``kernel_key`` of the backends it is for: "cpu" or "cuda".
        when: Called with the specs and attributes; False leaves the call to later kernels. None:
            always.
        layout: Predicate on arrays; inputs that fail it are copied to workspace first. None: any.
        layouts: Predicates for inputs by name, in place of ``layout``.
        scratch: True for the op's scratch buffers; False if it takes none; or what is called as
            ``when`` is and returns the specs of those that it takes.
        dtypes: ``"own"``: what the op's ``half`` says. ``"half"``: float16 or bfloat16 among the
            inputs, which it takes as they are; ``when`` sees the promoted specs. ``"mixed"``: it
            converts as it goes, where the others would have large operands converted a tile at a
            time, and returns False for arrays that it leaves to them; only of elementwise ops.
        overwrites: Inputs over which it can write its first result: it reads an element before it
            writes there. A kernel that does not say so gets memory of its own to write.
    """

    function: Callable[..., Any]
    device: str = "cpu"
    when: Callable[..., bool] | None = None
    layout: Callable[[Any], bool] | None = None
    layouts: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    scratch: bool | Callable[..., tuple[Spec, ...]] = True
    dtypes: str = "own"
    overwrites: tuple[str, ...] = ()


def choose(
    kernels: list[Kernel],
    device: str,
    specs: tuple[Any, ...],
    converted: tuple[Any, ...],
    attributes: dict[str, Any],
) -> Kernel | None:
    """Return the first kernel that supports a call, or None for the plain one.

    Args:
        kernels: Of the op.
        device: ``kernel_key`` of the backend.
        specs: The inputs' specs, promoted.
        converted: The same after ``half="float32"``: what a kernel of ``dtypes="own"`` is given.
        attributes: Of the call.
    """
    for k in kernels:
        if k.device != device or k.dtypes == "mixed":
            continue
        if k.dtypes == "half" and not any(isinstance(s, Spec) and s.dtype.is_half for s in specs):
            continue
        if k.when is None or k.when(*(specs if k.dtypes == "half" else converted), **attributes):
            return k
    return None


def mixed_kernel(kernels: list[Kernel], device: str) -> Callable[..., Any] | None:
    """Return the mixed-dtype kernel of an op, if it has one."""
    return next((k.function for k in kernels if k.device == device and k.dtypes == "mixed"), None)
