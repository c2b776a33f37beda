"""TorchScript's decorators, which leave what they decorate as it is."""

from collections.abc import Callable as _Callable
from typing import Any, Final, NoReturn, TypeVar

from lowtide.modules.module import Module as _Module

__all__ = [
    "Attribute", "Final", "RecursiveScriptModule", "ScriptFunction", "ScriptModule", "annotate",
    "export", "fork", "freeze", "ignore", "interface", "is_scripting", "is_tracing", "load",
    "optimize_for_inference", "save", "script", "script_if_tracing", "script_method", "trace",
    "trace_module", "unused", "wait",
]  # fmt: skip
T = TypeVar("T")


def script(obj: T, *args: Any, **kwargs: Any) -> T:
    """Return ``obj`` itself: Python runs it."""
    return obj


def trace(func: T, example_inputs: Any = None, *args: Any, **kwargs: Any) -> T:
    """Return ``func`` itself; the example is not run."""
    return func


def script_if_tracing(fn: T) -> T:
    """Return ``fn`` itself."""
    return fn


def export(fn: T) -> T:
    """Return ``fn`` itself."""
    return fn


def unused(fn: T) -> T:
    """Return ``fn`` itself."""
    return fn


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """Return the function, or a decorator that does."""
    if callable(drop):
        return drop
    keep: _Callable[[T], T] = lambda fn: fn  # noqa: E731
    return keep


def annotate(the_type: Any, the_value: T) -> T:
    """Return the value."""
    return the_value


def is_scripting() -> bool:
    """False: Python runs everything."""
    return False


def is_tracing() -> bool:
    """False: Python runs everything."""
    return False


class ScriptModule(_Module):
    """A module whose methods a compiler would take; here it is a module."""


class RecursiveScriptModule(ScriptModule):
    """What ``script`` makes of a module in PyTorch; here there are none."""


class ScriptFunction:
    """What ``script`` makes of a function in PyTorch; here it returns the function.

    Raises:
        NotImplementedError: One is made.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("jit.ScriptFunction: lowtide compiles none. Call the function.")


class Attribute:
    """A value with the type that a compiler shall take it for."""

    def __init__(self, value: Any, type: Any) -> None:
        self.value, self.type = value, type


script_method = interface = unused


def trace_module(mod: T, inputs: Any, *args: Any, **kwargs: Any) -> T:
    """Return ``mod`` itself; the examples are not run."""
    return mod


def freeze(mod: T, *args: Any, **kwargs: Any) -> T:
    """Return ``mod`` itself."""
    return mod


optimize_for_inference = freeze


class _Done:
    # What fork() gives: the result is there.
    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> Any:
        return self._value

    value = wait

    def done(self) -> bool:
        return True


def fork(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``func`` now; :func:`wait` gives its result."""
    return _Done(func(*args, **kwargs))


def wait(future: Any) -> Any:
    """Return the result of a :func:`fork`."""
    return future.wait()


def _raise_unsupported(name: str) -> NoReturn:
    raise NotImplementedError(
        f"jit.{name}: lowtide has no TorchScript, whose files hold programs. Save the state dict "
        "with lowtide.save, and make the module in Python."
    )


def save(m: Any, f: Any, _extra_files: Any = None) -> None:
    """Not supported.

    Raises:
        NotImplementedError: Always.
    """
    _raise_unsupported("save")


def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Not supported.

    Raises:
        NotImplementedError: Always.
    """
    _raise_unsupported("load")


from lowtide.jit import annotations as annotations  # noqa: E402
