"""Kernels: functions whose calls run compiled code, from a library made once on a machine.

A kernel is written as a Python function that Numba compiles. The first call with arguments of some
types looks for a library that an earlier process made (:mod:`.library`); only where there is none
Numba is imported, and the library is made. Both take place under one lock.

Where libraries are not supported, or a kernel cannot be made into one, Numba calls it.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from importlib import import_module
from typing import Any, NamedTuple

from ....interrupts import defer_interrupts
from . import library, notices, signature

LOADING = "cached kernels"  # what watchers are told while a library is looked for
lock = threading.RLock()
watchers: list[Any] = []  # each has ``enter(name)`` and ``leave()``: for measuring time


class Packed(NamedTuple):
    """A call that is made by address, with packed arguments.

    Attributes:
        address: Of a C function.
        arguments: As it knows them.
        words: Their words, as :mod:`.signature` has them.
        result: What the call has returned: None, or a bool.
    """

    address: int
    arguments: list[Any]
    words: list[str]
    result: bool | None


class Kernel:
    """A compiled function.

    Args:
        function: Loops over arrays, ints and floats.
        options: Numba's, such as ``fastmath``.
        declared: The signature that it takes; compiled for each that it meets if None.
        overlaps: Its arrays may overlap (``support.jit.compiled``).
    """

    __name__: str

    def __init__(
        self,
        function: Callable[..., Any],
        options: dict[str, Any],
        declared: str | None = None,
        overlaps: bool = True,
    ) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self.options = options
        self.declared = declared
        self.overlaps = overlaps
        self._entries: list[Any] = []
        self._made: dict[str, Any] = {}  # entry of each signature; None: Numba must call it
        self._entry: Any = _unknown
        self._dispatcher: Any = None  # Numba's, which Python calls where there is no library
        self._callee: Any = None
        self._called: set[str] = set()  # signatures for which Numba has compiled it
        self._address = 0
        self._shared: dict[Any, Any] = {}  # of each entry, the one for several threads
        self._packed: dict[Any, int] = {}  # and the address of the one for packed arguments

    def __call__(self, *args: Any) -> Any:
        """Run it; the interpreter's lock is released meanwhile."""
        found = self._entry(*args)
        return self._call_other(args) if found is NotImplemented else found

    def share(self, *args: Any) -> bool:
        """Run it by several threads; False if it cannot be, or not yet.

        Args:
            *args: What :class:`.entry_code.SharedEntry` takes.
        """
        shared = self._shared.get(self._entry)
        if shared is None or shared(*args) is NotImplemented:
            noting = _noting(args)
            if noting is not None:
                noting.__shared_kernel__(self)
            return False
        return True

    def packed(self, args: tuple[Any, ...]) -> Packed | None:
        """Run it, and say how the same call is made by its address with packed arguments.

        Returns:
            None if there is no such function.
        """
        words = self.declared or signature.words(args)
        if words is None:
            return None
        self.prepare(words)
        entry = self._made[words]
        kinds = words.split(",")
        found = signature.plain(args, kinds)
        if entry is None or not self._packed[entry]:
            return None
        result = entry(*found)
        if result is NotImplemented:
            return None
        return Packed(self._packed[entry], found, kinds, result)

    def _call_other(self, args: tuple[Any, ...]) -> Any:
        for entry in self._entries:
            found = entry(*args)
            if found is not NotImplemented:
                self._entry = entry
                return found
        noting = _noting(args)
        if noting is not None:
            return noting.__compiled_kernel__(self, args)
        wanted = self.declared or signature.words(args)
        entry = None
        if wanted is not None:
            entry = self._made[wanted] if wanted in self._made else self._make(wanted)
        if entry is None:
            return self._call_numba(args, wanted)
        found = entry(*signature.plain(args, wanted.split(",")))  # type: ignore[union-attr]
        if found is NotImplemented:
            given = signature.words(args) or ", ".join(type(a).__name__ for a in args)
            raise TypeError(f"{self.__name__} takes ({wanted}), and was called with ({given})")
        return found

    def _call_numba(self, args: tuple[Any, ...], wanted: str | None) -> Any:
        if wanted is not None and wanted in self._called:
            return self._callable()(*args)
        with lock, _compilation():  # the first such call compiles
            found = self._callable()(*args)
            if wanted is not None:
                self._called.add(wanted)
        return found

    @property
    def address(self) -> int:
        """Address of the kernel as a C function of words, for a declared signature of those."""
        assert self.declared is not None
        if not self._address:
            self._make(self.declared)
        return self._address

    def prepare(self, words: str) -> None:
        """Load it for a signature, or compile it."""
        if words not in self._made:
            self._make(words)

    def _make(self, wanted: str) -> Any:
        with lock:
            if wanted in self._made:
                return self._made[wanted]
            entry = None
            if library.supported():
                entry = self._load(wanted) or self._compile(wanted)
            if entry is None and wanted == self.declared and set(wanted.split(",")) == {"i8"}:
                self._address = _c_function(self._callable(), wanted)
            if entry is not None:
                self._entries = [*self._entries, entry]
                self._entry = entry
            self._made[wanted] = entry
            return entry

    def _load(self, wanted: str) -> Any:
        with _watched(LOADING):
            found = library.load(self, wanted)
        if found is None:
            return None
        return self._noted(found)

    def _noted(self, found: Any) -> Any:
        self._shared[found.entry] = found.shared
        self._packed[found.entry] = found.packed
        self._address = found.address
        return found.entry

    def _compile(self, wanted: str) -> Any:
        start = time.perf_counter()
        notices.begin(self.__name__.strip("_"))
        with _watched(f"compiling {self.__name__}"), _compilation():
            from .translate import CannotTranslate, LinkError, make

            try:
                data = make(self, wanted)
                entry = self._noted(library.keep(self, wanted, data))
            except (CannotTranslate, LinkError, library.CannotLoad):
                entry = None  # it needs more than a library of ours has
        notices.add(time.perf_counter() - start)
        return entry

    def fingerprint_parts(self) -> tuple[Any, ...]:
        """What its compiled code is made of: see :mod:`.fingerprint`."""
        return self.py_func, self.options, self.declared, self.overlaps

    def numba_object(self) -> Any:
        """What Numba knows it as, where other kernels call it."""
        if not library.supported():
            return self._callable()
        if self._callee is None:
            with lock:
                if self._callee is None:
                    self._callee = _translation.Callee(self)
        return self._callee

    def _callable(self) -> Any:
        # Numba's dispatcher, which can be called from Python.
        if self._dispatcher is None:
            with lock:
                if self._dispatcher is None:
                    self._dispatcher = _dispatcher(self)
        return self._dispatcher


def _noting(args: tuple[Any, ...]) -> Any:
    # An array that notes what is done with it, as NumPy's `__array_ufunc__` lets it; or None.
    return next((a for a in args if hasattr(type(a), "__compiled_kernel__")), None)


class Part(Kernel):
    """A function for kernels to call: it becomes part of them."""

    def __call__(self, *args: Any) -> Any:
        """Run it alone, as a test does."""
        return self._callable()(*args)


class Spelled:
    """A function for kernels to call whose instructions are written out: Numba's ``intrinsic``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._made: Any = None

    def fingerprint_parts(self) -> tuple[Any, ...]:
        """What its instructions are written by: see :mod:`.fingerprint`."""
        return (self._function,)

    def numba_object(self) -> Any:
        """What Numba knows it as."""
        if self._made is None:
            from numba.extending import intrinsic

            self._made = intrinsic(self._function)
        return self._made

    def __call__(self, *args: Any) -> Any:
        """Only compiled functions call it."""
        raise TypeError(f"{self._function.__name__} is called by compiled functions only")


class Deferred:
    """A module of the compiler, or a function of it, that is imported when it is used."""

    def __init__(self, module: str, name: str = "") -> None:
        self._path = module, name

    def fingerprint_parts(self) -> tuple[Any, ...]:
        """Its name; the version of its package is in the identity of a library."""
        return self._path

    def numba_object(self) -> Any:
        """The module or the function itself."""
        module, name = self._path
        found = import_module(module)
        return getattr(found, name) if name else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.numba_object(), name)

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self.numba_object()(*args)


_translation = Deferred(f"{__package__}.translate")
_dispatcher = Deferred(f"{__package__}.numba_dispatcher", "dispatcher")


def _unknown(*args: Any) -> Any:
    return NotImplemented


_functions: list[Any] = []  # which C functions belong to


def _c_function(dispatcher: Any, words: str) -> int:
    import numba

    kinds = [numba.types.int64] * len(words.split(","))
    make: Any = numba.cfunc(numba.types.int64(*kinds), error_model="numpy")
    _functions.append(make(dispatcher.py_func))
    return int(_functions[-1].address)


@contextmanager
def _compilation() -> Iterator[None]:
    # Ctrl-C waits until it has ended: Numba would be left half imported, or its registries half
    # filled, and no later kernel could be compiled. And NUMBA_DISABLE_JIT is meant for functions
    # that a user debugs: kernels have no other way to run, so it does not count for them. The
    # collector would look through all that Numba keeps again and again: a twentieth of the time.
    collecting = gc.isenabled()
    with defer_interrupts():
        gc.disable()
        disabled = os.environ.pop("NUMBA_DISABLE_JIT", None)
        config: Any = sys.modules.get("numba.core.config")
        if config is not None:
            before, config.DISABLE_JIT = config.DISABLE_JIT, 0
        try:
            yield
        finally:
            if collecting:
                gc.enable()
            if disabled is not None:
                os.environ["NUMBA_DISABLE_JIT"] = disabled
            if config is not None:
                config.DISABLE_JIT = before
            elif disabled is not None and "numba.core.config" in sys.modules:
                sys.modules["numba.core.config"].reload_config()


@contextmanager
def _watched(name: str) -> Iterator[None]:
    seen = list(watchers)
    for w in seen:
        w.enter(name)
    try:
        yield
    finally:
        for w in seen:
            w.leave()
