"""Parameter containers: a list and a dict whose tensors are registered.

A tensor put in becomes a Parameter; anything else is kept as it is, as a plain attribute.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..framework.tensor import Tensor
from .container import named_pairs
from .module import Module
from .parameter import Parameter


def _registered(value: Any) -> Any:
    if isinstance(value, Tensor) and not isinstance(value, Parameter):
        return Parameter(value)
    return value


def _name_at(container: ParameterList, index: Any) -> str:
    k, n = operator.index(index), len(container)
    if not -n <= k < n:
        raise IndexError(f"index {k} is out of range for {n} parameters.")
    return str(k % n)


def _shown(key: Any, value: Any, dtype: Any) -> str:
    if not isinstance(value, Tensor):
        return f"  ({key}): Object of type: {type(value).__name__}"
    kind = "Parameter" if isinstance(value, Parameter) else "Tensor"
    size = "x".join(str(n) for n in value.shape)
    where = f" (GPU {value.get_device()})" if value.is_cuda else ""
    return f"  ({key}): {kind} containing: [{dtype(value)} of size {size}{where}]"


class ParameterList(Module):
    """A list whose tensors are registered as parameters.

    Args:
        values: What to begin with.
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        if values is not None:
            self.extend(values)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([self[k] for k in range(len(self))])

    def __dir__(self) -> list[str]:
        return [n for n in super().__dir__() if not n.isdigit()]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)([self[k] for k in range(*index.indices(len(self)))])
        return getattr(self, _name_at(self, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        setattr(self, _name_at(self, index), _registered(value))

    def append(self, value: Any) -> ParameterList:
        """Add a value at the end."""
        setattr(self, str(self._size), _registered(value))
        self._size += 1
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add values at the end.

        Raises:
            TypeError: ``values`` cannot be iterated, or is a single tensor.
        """
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise TypeError(
                "ParameterList.extend should be called with an iterable, but got "
                f"{type(values).__name__}."
            )
        for value in list(values):
            self.append(value)
        return self

    def __iadd__(self, parameters: Iterable[Any]) -> ParameterList:
        return self.extend(parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: a ParameterList cannot be called."""
        raise RuntimeError("ParameterList should not be called. Call what uses its parameters.")

    def extra_repr(self) -> str:
        """A line for each value: what it is, its dtype and its size."""
        return "\n".join(_shown(k, v, lambda t: t.dtype) for k, v in enumerate(self))


class ParameterDict(Module):
    """A dict whose tensors are registered as parameters, in the order of :meth:`update`.

    Args:
        parameters: A mapping, or pairs of name and value.
    """

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        if parameters is not None:
            self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise TypeError(
                "Index given to ParameterDict cannot be used as a key as it is not a string "
                f"(type is '{type(key).__name__}'). Use str(key)."
            )
        setattr(self, key, _registered(value))
        self._keys[key] = None

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._keys))

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def copy(self) -> ParameterDict:
        """Return a ParameterDict of the same values."""
        return ParameterDict(OrderedDict(self.items()))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, which is set to ``default`` if missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Remove everything."""
        for key in list(self._keys):
            del self[key]

    def pop(self, key: str) -> Any:
        """Remove a value, and return it."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last inserted (key, value)."""
        if not self._keys:
            raise KeyError("popitem(): dictionary is empty")
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or ``default``."""
        return self[key] if key in self._keys else default

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """Return a new ParameterDict of these keys, each with ``default``."""
        return ParameterDict([(k, default) for k in keys])

    def keys(self) -> Any:
        """The keys."""
        return self._keys.keys()

    def items(self) -> Iterator[tuple[str, Any]]:
        """Keys and values."""
        return ((k, self[k]) for k in self._keys)

    def values(self) -> Iterator[Any]:
        """The values."""
        return (self[k] for k in self._keys)

    def update(self, parameters: Any) -> None:
        """Add values under their keys; present keys are replaced.

        The order is that of an ``OrderedDict``, a ``ParameterDict`` or pairs. The keys of any other
        mapping are sorted, as PyTorch does: an optimizer's state names parameters by number.
        """
        pairs = named_pairs("ParameterDict.update", parameters)
        sortable = isinstance(parameters, Mapping) and not isinstance(parameters, OrderedDict)
        if sortable and all(isinstance(key, str) for key, _ in pairs):
            pairs.sort(key=lambda pair: pair[0])
        for key, value in pairs:
            self[key] = value

    def __or__(self, other: ParameterDict) -> ParameterDict:
        joined = self.copy()
        joined.update(other)
        return joined

    def __ror__(self, other: ParameterDict) -> ParameterDict:
        joined = other.copy()
        joined.update(self)
        return joined

    def __ior__(self, other: ParameterDict) -> ParameterDict:
        self.update(other)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: a ParameterDict cannot be called."""
        raise RuntimeError("ParameterDict should not be called. Call what uses its parameters.")

    def extra_repr(self) -> str:
        """A line for each value: what it is, its type and its size."""
        return "\n".join(_shown(k, v, lambda t: t.type()) for k, v in self.items())
