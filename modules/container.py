"""Module containers, which register the modules in them by index or name."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, TypeVar

from .module import Module, not_a_module

T = TypeVar("T", bound="_Indexed")


class _Indexed(Module):
    """Base of ordered containers, whose modules are named "0", "1", ... by default."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __dir__(self) -> list[str]:
        return [n for n in super().__dir__() if not n.isdigit()]

    def __getitem__(self, index: Any) -> Any:
        return self._modules[_name_at(self, index)]

    def __setitem__(self, index: Any, module: Module) -> None:
        setattr(self, _name_at(self, index), module)

    def __delitem__(self, index: Any) -> None:
        names = list(self._modules)
        for name in names[index] if isinstance(index, slice) else [_name_at(self, index)]:
            delattr(self, name)
        _renumber(self, list(self._modules.values()))

    def append(self: T, module: Module) -> T:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self: T, modules: Iterable[Module]) -> T:
        """Add modules at the end."""
        if not isinstance(modules, Iterable):
            raise TypeError(
                f"{type(self).__name__}.extend should be called with an iterable, but got "
                f"{type(modules).__name__}."
            )
        for module in list(modules):
            self.append(module)
        return self

    def pop(self, key: Any) -> Any:
        """Remove the module at an index, and return it."""
        found = self[key]
        del self[key]
        return found


# Functions and not methods: a subclass may have a method of any name.


def _name_at(container: Module, index: Any) -> str:
    k, n = operator.index(index), len(container._modules)
    if not -n <= k < n:
        raise IndexError(f"index {k} is out of range for {n} modules.")
    return list(container._modules)[k]


def _renumber(container: Module, modules: list[Module | None]) -> None:
    # The registry stays one object; its holders see the change.
    container._modules.clear()
    container._modules.update((str(k), m) for k, m in enumerate(modules))


def _insert(container: Module, index: int, module: Module) -> None:
    if not isinstance(module, Module):
        raise TypeError(not_a_module(module))
    modules = list(container._modules.values())
    modules.insert(index, module)
    _renumber(container, modules)


class Sequential(_Indexed):
    """A chain of modules: each is called on the result of the one before.

    Args:
        args: Modules, or one ``OrderedDict`` of modules by name.

    Example:
        >>> from lowtide import nn
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU()) + nn.Sequential(nn.Tanh())
        >>> len(net), net[-1]
        (3, Tanh())
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for k, module in enumerate(args):
                self.add_module(str(k), module)

    def forward(self, input: Any) -> Any:
        """Pass ``input`` through all modules."""
        for module in self:
            input = module(input)
        return input

    def insert(self, index: int, module: Module) -> Sequential:
        """Add a module before an index."""
        n = len(self)
        if not -n <= index <= n:
            raise IndexError(f"Index out of range: insert takes -{n} to {n}; got {index}.")
        _insert(self, index if index >= 0 else index + n, module)
        return self

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)

    def __add__(self, other: Any) -> Sequential:
        return Sequential(*self, *_sequential(other))

    def __iadd__(self, other: Any) -> Sequential:
        return self.extend(list(_sequential(other)))

    def __mul__(self, other: int) -> Sequential:
        return Sequential(*list(self) * _times(other))

    def __rmul__(self, other: int) -> Sequential:
        return self * other

    def __imul__(self, other: int) -> Sequential:
        modules = list(self)
        for _ in range(_times(other) - 1):
            self.extend(modules)
        return self


def _sequential(other: Any) -> Sequential:
    if not isinstance(other, Sequential):
        raise ValueError(
            f"add operator supports only objects of Sequential class, but {type(other)} is given. "
            "Use extend()."
        )
    return other


def _times(factor: Any) -> int:
    if not isinstance(factor, int):
        raise TypeError(
            f"unsupported operand type(s) for *: Sequential and {type(factor).__name__}. "
            "Multiply by an int."
        )
    if factor <= 0:
        raise ValueError(f"Non-positive multiplication factor {factor} for a Sequential.")
    return factor


class ModuleList(_Indexed):
    """A list whose modules are registered.

    Args:
        modules: What to begin with.
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def insert(self, index: int, module: Module) -> None:
        """Add a module before an index."""
        _insert(self, index, module)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self._modules.values())[index])  # type: ignore[arg-type]
        return super().__getitem__(index)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, modules: Iterable[Module]) -> ModuleList:
        return self.extend(modules)

    def __repr__(self) -> str:
        # Equal neighbors as one line: "(0-5): 6 x Block(...)".
        runs: list[list[Any]] = []
        for k, module in enumerate(self):
            shown = repr(module)
            if runs and runs[-1][2] == shown:
                runs[-1][1] = k
            else:
                runs.append([k, k, shown])
        if not runs:
            return f"{self._get_name()}()"
        lines = [
            f"({a}): {shown}" if a == b else f"({a}-{b}): {b - a + 1} x {shown}"
            for a, b, shown in runs
        ]
        inside = "\n".join(lines).replace("\n", "\n  ")
        return f"{self._get_name()}(\n  {inside}\n)"


class ModuleDict(Module):
    """A dict of names to modules, which are registered.

    Args:
        modules: A mapping, or pairs of name and module.
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[Any] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Remove everything."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Remove a module, and return it."""
        found = self[key]
        del self[key]
        return found

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._modules.keys()

    def items(self) -> ItemsView[str, Any]:
        """Names and modules."""
        return self._modules.items()

    def values(self) -> ValuesView[Any]:
        """The modules."""
        return self._modules.values()

    def update(self, modules: Mapping[str, Module] | Iterable[Any]) -> None:
        """Add modules under their names, in their order; present names are replaced.

        Raises:
            TypeError: ``modules`` is neither a mapping nor pairs.
            ValueError: A pair does not have two elements.
        """
        for name, module in named_pairs("ModuleDict.update", modules):
            self[name] = module


def named_pairs(caller: str, given: Any) -> list[tuple[str, Any]]:
    """Return the (name, value) pairs of a mapping, of an object with ``items()``, or of pairs."""
    if isinstance(given, Mapping) or hasattr(given, "items"):
        return list(given.items())
    if not isinstance(given, Iterable):
        raise TypeError(
            f"{caller} should be called with an iterable of key/value pairs, but got "
            f"{type(given).__name__}."
        )
    pairs = []
    for k, pair in enumerate(given):
        if not isinstance(pair, Iterable):
            raise TypeError(f"{caller} sequence element #{k} should be Iterable; is {type(pair)}.")
        pair = tuple(pair)
        if len(pair) != 2:
            raise ValueError(
                f"{caller} sequence element #{k} has length {len(pair)}; 2 is required."
            )
        pairs.append(pair)
    return pairs
