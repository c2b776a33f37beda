"""A fingerprint of a kernel's code as this process imported it.

A library of a kernel may be loaded only by a process whose kernel is the same. The files on disk do
not tell: an upgrade or a ``git checkout`` may have replaced them after they were imported. So what
is hashed are the code objects in memory, which are also what Numba compiles: of the kernel, and of
every function that it reaches through its global names, with the values of those names.
"""

from __future__ import annotations

import hashlib
import opcode
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

# Their versions are in the identity of a library: their code is named, not hashed.
_NAMED = frozenset({"numba", "llvmlite", "numpy", "scipy", *sys.stdlib_module_names})
_IMPORT = opcode.opmap["IMPORT_NAME"]
_OF_EVERY_CLASS = frozenset(
    {
        "__annotations__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__static_attributes__",
        "__weakref__",
    }
)
_PLAIN = (int, float, complex, str, bytes, type(None), type(...))
_PACKAGE = __name__.rpartition(".")[0]
_COMPILER = ("fingerprint", "entry", "entry_code", "link", "runtime", "translate")


_hashes: dict[int, tuple[CodeType, str]] = {}  # by id; held, so that no other object has it


class Unknown(Exception):
    """The code uses something that has no fingerprint; its library is not kept."""


def of_kernel(kernel: Any) -> str:
    """Return the fingerprint of a kernel: 32 hexadecimal digits.

    Raises:
        Unknown: It uses an object that is neither code, nor a number, nor a name.
    """
    walk = _Walk()
    found = hashlib.blake2b(walk.of(kernel).encode("utf-8", "surrogateescape"), digest_size=16)
    for text in walk.texts():
        found.update(text.encode("utf-8", "surrogateescape") + b"\0")
    return found.hexdigest()


def of_source(path: str) -> str:
    """Return a hash of a file; a module of the compiler takes it of itself, as ``SOURCE``."""
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()


SOURCE = of_source(__file__)


def of_compiler() -> str:
    """Return the fingerprint of what turns kernels into libraries: the hashes of its modules.

    A module that is imported had its hash taken then. One that is not (importing the translator
    imports Numba) is hashed as an import would find it.
    """
    return " ".join(_source_of(name) for name in _COMPILER)


def _source_of(name: str) -> str:
    module = sys.modules.get(f"{_PACKAGE}.{name}")
    return _on_disk(name) if module is None else module.SOURCE


@cache
def _on_disk(name: str) -> str:
    return of_source(str(Path(__file__).with_name(f"{name}.py")))


class _Walk:
    """Describes values as text, and the functions and classes that they reach once each."""

    def __init__(self) -> None:
        self._reached: list[Any] = []  # holds each, so that no id is used twice
        self._numbers: dict[int, int] = {}

    def texts(self) -> Iterator[str]:
        """Yield a text for each function and class; more may be reached meanwhile."""
        k = 0
        while k < len(self._reached):
            thing = self._reached[k]
            yield self._class(thing) if isinstance(thing, type) else self._function(thing)
            k += 1

    def of(self, value: Any) -> str:
        """Return the text of a value, in which functions and classes are numbers."""
        if hasattr(type(value), "fingerprint_parts"):  # a kernel, or what one is made of
            return type(value).__name__ + self.of(value.fingerprint_parts())
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, (FunctionType, type)):
            return self._reach(value)
        if isinstance(value, CodeType):
            return self.code(value)
        if isinstance(value, (tuple, list)):
            return f"{type(value).__name__}({', '.join(map(self.of, value))})"
        if isinstance(value, (set, frozenset)):
            return f"set({', '.join(sorted(map(self.of, value)))})"
        if isinstance(value, dict):
            items = sorted((self.of(k), self.of(v)) for k, v in value.items())
            return f"dict({', '.join(f'{k}: {v}' for k, v in items)})"
        return self._other(value)

    def _other(self, value: Any) -> str:
        if isinstance(value, (np.generic, np.ndarray)) and not value.dtype.hasobject:
            return f"{value.dtype.str} {value.shape} {value.tobytes().hex()}"
        if isinstance(value, np.dtype):
            return f"dtype {value.str}"
        if isinstance(value, np.ufunc):
            return f"ufunc {value.__name__}"
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, partial):
            return f"partial{self.of((value.func, value.args, value.keywords))}"
        if isinstance(value, BuiltinFunctionType) and _root(value) in _NAMED:
            return f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, (staticmethod, classmethod)):
            return self.of(value.__func__)
        if isinstance(value, property):
            return self.of((value.fget, value.fset, value.fdel))
        raise Unknown(f"{type(value).__module__}.{type(value).__qualname__}")

    def _reach(self, thing: FunctionType | type) -> str:
        if _root(thing) in _NAMED:
            return f"{thing.__module__}.{thing.__qualname__}"
        number = self._numbers.get(id(thing))
        if number is None:
            number = self._numbers[id(thing)] = len(self._reached)
            self._reached.append(thing)
        return f"code {number}"

    def _class(self, kind: type) -> str:
        inside = {n: v for n, v in vars(kind).items() if n not in _OF_EVERY_CLASS}
        return f"class {kind.__qualname__} {self.of(kind.__bases__)} {self.of(inside)}"

    def _function(self, function: FunctionType) -> str:
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        known = function.__globals__
        names = sorted(set(_names(function.__code__)))
        parts = [self.code(function.__code__), self.of(function.__defaults__)]
        parts += [self.of(function.__kwdefaults__), self.of(cells)]
        for name in names:
            if name in known:
                parts.append(f"{name} = {self.of(known[name])}")
                parts += self._attributes(known[name], names)
        return "\n".join(parts)

    def _attributes(self, module: Any, names: list[str]) -> list[str]:
        # ``module.name``: bytecode does not say which names are attributes. All that could be.
        if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] in _NAMED:
            return []
        inside = vars(module)
        return [f"{module.__name__}.{n} = {self.of(inside[n])}" for n in names if n in inside]

    def code(self, code: CodeType) -> str:
        """Return a hash of a code object, without its file and lines."""
        known = _hashes.get(id(code))
        if known is None:
            known = _hashes[id(code)] = code, self._hash(code)
        return known[1]

    def _hash(self, code: CodeType) -> str:
        parts = (
            code.co_name,
            code.co_code.hex(),
            code.co_exceptiontable.hex(),
            code.co_flags,
            code.co_argcount,
            code.co_posonlyargcount,
            code.co_kwonlyargcount,
            code.co_names,
            code.co_varnames,
            code.co_freevars,
            code.co_cellvars,
        )
        text = f"{parts} {self.of(code.co_consts)}"
        return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _names(code: CodeType) -> Iterator[str]:
    if _IMPORT in code.co_code[::2]:
        raise Unknown(f"an import inside {code.co_qualname}")
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _root(thing: Any) -> str:
    return (thing.__module__ or "").partition(".")[0]
