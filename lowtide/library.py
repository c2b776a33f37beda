"""Ops of libraries by name: functions with a custom gradient, called as they are.

``custom_op`` makes a function an object that takes a gradient (``register_autograd``) and other
functions for other devices (``register_kernel``). Shapes and bytes are found by running it: an
implementation for ``meta`` can be registered, as PyTorch's ``register_fake``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable as _Callable
from collections.abc import Sequence as _Sequence
from typing import Any

from lowtide.framework.autograd.function import Function as _Function
from lowtide.framework.tensor import Tensor as _Tensor

_ops: dict[str, CustomOpDef] = {}
_waiting: dict[str, _Callable[..., Any]] = {}  # functions for meta of ops that are not there yet


class CustomOpDef:
    """An op of a library: called like the function it was made of.

    Attributes:
        name: ``"namespace::name"``.
    """

    def __init__(self, name: str, fn: _Callable[..., Any], mutates_args: Any) -> None:
        self.name, self._fn, self._mutates = name, fn, mutates_args
        self._kernels: dict[str, _Callable[..., Any]] = {}
        self._backward: _Callable[..., Any] | None = None
        self._setup: _Callable[..., Any] | None = None
        self._signature = inspect.signature(fn)
        self.__doc__, self.__name__ = fn.__doc__, fn.__name__

    def register_kernel(self, device_types: str | _Sequence[str], fn: Any = None, /) -> Any:
        """Register the function for kinds of devices: "cpu", "cuda", "meta"."""
        if fn is None:
            return lambda f: self.register_kernel(device_types, f)
        for kind in [device_types] if isinstance(device_types, str) else device_types:
            self._kernels[kind] = fn
        return fn

    def register_fake(self, fn: Any, /) -> Any:
        """Register the function for tensors of the device meta."""
        return self.register_kernel("meta", fn)

    register_abstract = impl_abstract = register_fake

    def register_autograd(
        self, backward: _Callable[..., Any], /, *, setup_context: Any = None
    ) -> None:
        """Register the gradient.

        Args:
            backward: Of (ctx, *gradients of results), gives one gradient for each argument.
            setup_context: Of (ctx, inputs, output): saves what backward needs.
        """
        self._backward, self._setup = backward, setup_context

    def register_vmap(self, func: Any = None, /) -> Any:
        """Not supported.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            f"{self.name}: register_vmap has no counterpart; vmap calls the function's own ops."
        )

    def _run(self, args: tuple[Any, ...]) -> Any:
        kinds = {a.device.type for a in args if isinstance(a, _Tensor)}
        found = next((self._kernels[k] for k in sorted(kinds) if k in self._kernels), self._fn)
        return found(*args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function for the device of the tensors; record its gradient, if it has one."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = tuple(bound.arguments.values())
        if bound.kwargs:
            named = list(bound.kwargs)
            raise TypeError(
                f"{self.name}: arguments that are given by name alone ({', '.join(named)}) are not "
                "supported. Let the function take them by place."
            )
        if self._backward is None:
            return self._run(given)
        op = self

        class Custom(_Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                output = op._run(inputs)
                if op._setup is not None:
                    op._setup(ctx, inputs, output)
                return output

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                assert op._backward is not None
                return op._backward(ctx, *grads)

        return Custom.apply(*given)


def custom_op(
    name: str,
    fn: _Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: Any = (),
    device_types: Any = None,
    schema: str | None = None,
    tags: Any = None,
) -> Any:
    """Make a function an op of a library; a decorator without ``fn``.

    Args:
        name: ``"namespace::name"``.
        fn: The function: tensors and other values by place.
        mutates_args: Names of arguments that it writes; accepted, writes are seen by versions.
        device_types: Kinds of devices it is for; all by default.
        schema: PyTorch's schema; ignored, the function has a signature.
        tags: Ignored.

    Raises:
        ValueError: The name has no namespace.
    """
    if fn is None:
        return lambda f: custom_op(name, f, mutates_args=mutates_args, device_types=device_types)
    if "::" not in name:
        raise ValueError(f"custom_op: a name is 'namespace::name'; got {name!r}.")
    _ops[name] = found = CustomOpDef(name, fn, mutates_args)
    if name in _waiting:
        found.register_fake(_waiting.pop(name))
    return found


def _of(op: Any) -> CustomOpDef:
    found = op if isinstance(op, CustomOpDef) else _ops.get(op)
    if found is None:
        raise RuntimeError(
            f"There is no op {op!r}: declare it with lowtide.library.custom_op first."
        )
    return found


def register_fake(op: Any, func: Any = None, /, **ignored: Any) -> Any:
    """Register an op's function for tensors of the device meta; a decorator without ``func``.

    Of an op that is not there, such as one of a library's compiled part, it is kept until then.
    """
    if func is None:
        return lambda f: register_fake(op, f)
    if isinstance(op, str) and op not in _ops:
        _waiting[op] = func
        return func
    return _of(op).register_fake(func)


impl_abstract = register_fake


def register_kernel(op: Any, device_types: Any, func: Any = None, /, **ignored: Any) -> Any:
    """Register an op's function for kinds of devices; a decorator without ``func``."""
    return _of(op).register_kernel(device_types, func)


def register_autograd(
    op: Any, backward: Any, /, *, setup_context: Any = None, **ignored: Any
) -> None:
    """Register an op's gradient."""
    _of(op).register_autograd(backward, setup_context=setup_context)


def wrap_triton(triton_kernel: Any, /) -> Any:
    """Not supported.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError("wrap_triton: lowtide runs no Triton kernels; write it in CuPy.")


class Library:
    """A namespace of PyTorch's dispatcher: it can be made, and takes no implementations.

    Raises:
        NotImplementedError: An op is defined or implemented in it.
    """

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        self.ns, self.kind = ns, kind

    def define(self, schema: str, *args: Any, **kwargs: Any) -> Any:
        """Not supported."""
        raise NotImplementedError(
            f"Library({self.ns!r}).define: lowtide has no dispatcher of PyTorch's. Use "
            "lowtide.library.custom_op."
        )

    def impl(self, op_name: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Not supported."""
        raise NotImplementedError(
            f"Library({self.ns!r}).impl: lowtide has no dispatcher of PyTorch's. Use "
            "lowtide.library.custom_op."
        )
