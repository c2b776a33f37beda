"""``torch._utils``: flat buffers of many tensors, and other helpers that libraries import."""

from __future__ import annotations

import copy
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import lowtide as _lt

STRINGS_AND_OBJECTS = re.compile(r"[SaUO]")  # NumPy's codes of dtypes that no tensor has


def _flatten_dense_tensors(tensors: Sequence[Any]) -> Any:
    """Return one tensor of one dimension with the elements of all, in order."""
    return _lt.cat([t.reshape(-1) for t in tensors])


def _unflatten_dense_tensors(flat: Any, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Return views of ``flat`` in the shapes of ``tensors``, in order.

    Raises:
        RuntimeError: ``flat`` has fewer or more elements than they have.
    """
    sizes = [t.numel() for t in tensors]
    if flat.numel() != sum(sizes):
        raise RuntimeError(
            f"_unflatten_dense_tensors: flat has {flat.numel()} elements, the tensors have "
            f"{sum(sizes)}. Pass what _flatten_dense_tensors made of tensors of these shapes."
        )
    parts = flat.split(sizes)
    return tuple(p.view(t.shape) for p, t in zip(parts, tensors, strict=True))


def _take_tensors(tensors: Iterable[Any], size_limit: int) -> Iterator[list[Any]]:
    """Yield groups of tensors of one dtype and device, each below a number of bytes."""
    groups: dict[Any, list[Any]] = {}
    for t in tensors:
        key = t.dtype, t.device
        group = groups.setdefault(key, [])
        if group and sum(other.nbytes for other in group) + t.nbytes > size_limit:
            yield groups.pop(key)
            group = groups.setdefault(key, [])
        group.append(t)
    yield from groups.values()


def _accumulate(iterable: Iterable[Any], fn: Callable[[Any, Any], Any] = operator.add) -> Any:
    """Yield the running sums, as itertools.accumulate."""
    return itertools.accumulate(iterable, fn)


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the index of a GPU; of the current one for None, with ``optional``.

    Raises:
        ValueError: It is another device.
    """
    if isinstance(device, int):
        return device
    if device is None and optional:
        return _lt.cuda.current_device() if _lt.cuda.is_available() else -1
    found = None if device is None else _lt.device(device)
    if found is not None and found.type == "cpu" and allow_cpu:
        return -1
    if found is None or found.type != "cuda":
        raise ValueError(
            f"Expected a torch.device with a specified index or an integer, got: {device}"
        )
    return found.index or 0


def _get_all_device_indices() -> list[int]:
    """Return the indices of all GPUs."""
    return list(range(_lt.cuda.device_count()))


def _get_available_device_type() -> str | None:
    """Return "cuda" if there is a GPU, else None."""
    return "cuda" if _lt.cuda.is_available() else None


def is_compiling() -> bool:
    """False: nothing is compiled."""
    return False


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Take a prefix off the keys of a state dict that begin with it, in place.

    Args:
        state_dict: Names -> tensors, such as those of a DataParallel, ``module.weight``.
        prefix: What to take off: ``"module."``.
    """
    for key in list(state_dict):
        if key.startswith(prefix):
            state_dict[key.removeprefix(prefix)] = state_dict.pop(key)
    versions: Any = getattr(state_dict, "_metadata", None) or {}
    for key in list(versions):
        if key and (key == prefix.removesuffix(".") or key.startswith(prefix)):
            versions[key[len(prefix) :]] = versions.pop(key)


class ExceptionWrapper:
    """An exception of another thread or process, to be raised in this one."""

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        import sys
        import traceback

        kind, value, trace = exc_info if exc_info is not None else sys.exc_info()
        self.exc_type: Any = kind
        self.exc_msg = "".join(traceback.format_exception(kind, value, trace))
        self.where = where

    def reraise(self) -> None:
        """Raise it, with the other's traceback in its message."""
        message = f"Caught {self.exc_type.__name__} {self.where}.\nOriginal {self.exc_msg}"
        try:
            error = self.exc_type(message)
        except Exception:  # its constructor takes something else
            raise RuntimeError(message) from None
        raise error


class KeyErrorMessage(str):
    """A text that shows its line breaks where a KeyError shows its ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _get_available_devices() -> list[str]:
    """Return the names of the kinds of devices there are."""
    return ["cpu", *(["cuda"] if _lt.cuda.is_available() else [])]


def _standard_normal(shape: Any, dtype: Any, device: Any) -> Any:
    """Return random numbers of mean 0 and variance 1."""
    return _lt.randn(tuple(shape), dtype=dtype, device=device)


def _no_grad_uniform_(tensor: Any, a: float, b: float, generator: Any = None) -> Any:
    """Fill with uniform random numbers, unrecorded."""
    with _lt.no_grad():
        return tensor.uniform_(a, b, generator=generator)


def _no_grad_normal_(tensor: Any, mean: float, std: float, generator: Any = None) -> Any:
    """Fill with normal random numbers, unrecorded."""
    with _lt.no_grad():
        return tensor.normal_(mean, std, generator=generator)


def _get_activation_fn(activation: str) -> Any:
    """Return the function "relu" or "gelu".

    Raises:
        RuntimeError: It is another.
    """
    if activation not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {activation}")
    return getattr(_lt.nn.functional, activation)


def _get_clones(module: Any, n: int) -> Any:
    """Return a list of copies of a module."""
    return _lt.nn.ModuleList([copy.deepcopy(module) for _ in range(n)])
