"""Interoperability protocols of tensors: NumPy arrays, DLPack, pickle, ``copy``.

Memory is shared where it can be. The array that ``numpy()`` returns is a view of the pool's
block, and NumPy keeps that block alive through ``.base``: so the array outlives its tensor, and
its bytes stay in the ledger until it goes.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from .. import execution
from ..device import device
from ..devices import backend
from ..devices.storage_copy import copied_array, role_of_copy
from ..dtypes import BY_NAME
from ..memory.ledger import ROLE_NUMBER
from ..modes import local, value_read
from ..spec import Spec
from ..tensor import Tensor, install_method, instance, wrap
from .einops import register_backend


def numpy(self: Tensor, *, force: bool = False) -> Any:
    """Return the values as a NumPy array that shares memory.

    Args:
        self: A tensor on the CPU that does not require grad, or any one under ``no_grad``.
        force: Detach and copy from the device as needed.

    Raises:
        RuntimeError: It requires grad, and gradients are recorded.
        TypeError: It is on another device.

    Memory:
        The array keeps the tensor's whole storage alive.
    """
    if not execution.current.computes:
        found = execution.current.read(self, "numpy")
        if found is not execution.READ:
            return found
    if force:
        self = self.detach().cpu()
    if self.requires_grad and local.state.grad:
        raise RuntimeError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        )
    if self.device.type != "cpu":
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy "
            "the tensor to host memory first."
        )
    recorder = local.state.recorder
    if recorder is not None:  # a holder of the array may write what no region sees
        recorder.became_writable(self._storage)
    value_read("numpy")
    return self._array.view()  # an object of its own: reshaping it in place must not reach us


def __array__(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
    """Convert for ``numpy.asarray``, sharing memory unless a conversion or copy is needed."""
    array = numpy(self)
    if dtype is None or np.dtype(dtype) == array.dtype:
        return array.copy() if copy else array
    if copy is False:
        raise ValueError(
            f"a {self.dtype} tensor cannot become a NumPy array of {np.dtype(dtype)} without a "
            "copy. Drop copy=False."
        )
    return array.astype(dtype)


def __dlpack__(self: Tensor, **options: Any) -> Any:
    """Export the memory to another library as a DLPack capsule."""
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    self._need_values("__dlpack__")
    if self.device.type == "cpu":
        stream = options.pop("stream", None)
        if stream not in (None, -1):
            raise BufferError(f"a tensor on the cpu has no stream; got stream={stream}.")
        return numpy(self).__dlpack__(**options)
    if local.state.recorder is not None:
        local.state.recorder.became_writable(self._storage)
    return self._array.__dlpack__(**options)


def __dlpack_device__(self: Tensor) -> tuple[int, int]:
    """Return the DLPack device as (type, index)."""
    if self.device.type in ("cpu", "meta"):
        return (1, 0)
    kind, index = self._array.__dlpack_device__()
    return int(kind), int(index)


def to_dlpack(tensor: Tensor) -> Any:
    """Export a tensor's memory as a DLPack capsule."""
    return __dlpack__(tensor)


# pickle and copy


def _rebuild(
    cls: type,
    data: Any,
    dtype: str,
    shape: tuple[int, ...],
    where: str,
    role: str,
    requires_grad: bool,
    attributes: dict[str, Any],
    repeated: tuple[int, ...] = (),
) -> Tensor:
    # What a pickle calls. Values come as bytes, so that a pickle needs no NumPy of its own version.
    # ``repeated``: dims of stride 0, of which one element is in ``data``.
    whole = Spec(shape, BY_NAME[dtype], device(where))
    spec = whole.like([1 if d in repeated else n for d, n in enumerate(shape)])
    be = backend(spec.device)
    if data is None:
        storage, array = be.empty(spec, ROLE_NUMBER[role])
    else:
        host = np.frombuffer(data, spec.np_dtype).reshape(spec.shape)
        storage, array = be.from_host(host, spec, ROLE_NUMBER[role])
    if repeated:
        steps = [0 if d in repeated else s for d, s in enumerate(array.strides)]
        array = be.strided_view(storage, whole, (0, steps))
    return instance(cls, wrap(array, whole, storage), requires_grad, attributes)


def _role_name(t: Tensor) -> str:
    names = {n: name for name, n in ROLE_NUMBER.items()}
    return names[role_of_copy(t._storage)]


def __reduce_ex__(self: Tensor, protocol: int) -> Any:
    """Pickle the values, ``requires_grad`` and the attributes; the graph is not kept.

    Of an expanded dim one element is written. What tensors share is written with each of them, as
    by PyTorch's tensors in a plain pickle; ``lowtide.save`` writes it once.
    """
    shape, steps = tuple(self.shape), self._array.strides
    repeated = tuple([d for d, n in enumerate(shape) if n > 1 and steps[d] == 0])
    data: Any = None
    if self.device.type != "meta":
        array = self._array
        if repeated:
            array = array[tuple([slice(0, 1 if d in repeated else n) for d, n in enumerate(shape)])]
        data = np.ascontiguousarray(backend(self.device).to_host(array)).tobytes()
    return _rebuild, (
        type(self),
        data,
        self.dtype.name,
        shape,
        str(self.device),
        _role_name(self),
        self.requires_grad,
        dict(self.__dict__),
        *([repeated] if repeated else []),
    )


def __deepcopy__(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """Copy a leaf with its gradient and attributes.

    What tensors share, their copies share: see ``devices/storage_copy.py``.

    Raises:
        RuntimeError: It is no leaf.
    """
    found: Tensor | None = memo.get(id(self))
    if found is not None:
        return found
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            f"protocol at the moment; this one of shape {tuple(self.shape)} was made by "
            f"{self.grad_fn.name()}. Copy .detach() instead. If a module was copied, its weight "
            "may be computed by nn.utils.weight_norm or spectral_norm: use those of "
            "nn.utils.parametrizations, or run the module once under no_grad before."
        )
    storage, array = copied_array(self._array, self._spec, self._storage, memo)
    out = instance(type(self), wrap(array, self._spec, storage), self.requires_grad, {})
    memo[id(self)] = out
    out.__dict__.update(copy.deepcopy(self.__dict__, memo))
    if self._grad is not None:
        out._grad = copy.deepcopy(self._grad, memo)
    return out


def __copy__(self: Tensor) -> Tensor:
    """Return another leaf tensor that shares the memory."""
    t = wrap(self._array, self._spec, self._storage)
    return instance(type(self), t, self.requires_grad, dict(self.__dict__))


for _method in (
    numpy,
    __array__,
    __dlpack__,
    __dlpack_device__,
    __reduce_ex__,
    __deepcopy__,
    __copy__,
):
    install_method(_method.__name__, _method)

register_backend()  # for einops
