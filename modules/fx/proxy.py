"""Proxies: what a traced program gets in place of tensors, and notes what is done to it."""

from __future__ import annotations

import dis
import operator
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from .node import Node


class TraceError(ValueError):
    """A program cannot be traced: what it does next depends on a value."""


class Proxy:
    """Stands for the value of a node.

    Operators, attributes and methods make further nodes; so do functions of ``lowtide`` that are
    called with it, while a tracer is at work.
    """

    def __init__(self, node: Node, tracer: Any) -> None:
        self.node, self.tracer = node, tracer

    def __repr__(self) -> str:
        return f"Proxy({self.node.name})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Attribute(self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make a node that calls the value."""
        return self.tracer.create_proxy("call_method", "__call__", (self, *args), kwargs)

    def __iter__(self) -> Iterator[Any]:
        # `a, b = proxy` says how many there are: the instruction that asks for them does.
        frame = sys._getframe(1)
        for instruction in dis.get_instructions(frame.f_code):
            if instruction.offset == frame.f_lasti and instruction.opname == "UNPACK_SEQUENCE":
                item = operator.getitem
                return (item(self, i) for i in range(instruction.argval))
        return self.tracer.iter(self)

    def __bool__(self) -> bool:
        return self.tracer.to_bool(self)

    def __len__(self) -> int:
        raise RuntimeError(
            f"'len' is not supported in symbolic tracing: the length of {self.node.name} is a "
            "value. Use size(), or wrap the function that asks with fx.wrap."
        )

    def __index__(self) -> int:
        raise TraceError(
            f"{self.node.name} is used as a number of Python, whose value is not known while the "
            "program is traced. Keep the computation in tensors, or fx.wrap the function."
        )

    def __contains__(self, item: Any) -> bool:
        raise TraceError(f"`in` asks for the values of {self.node.name}, which are not known.")

    def keys(self) -> Any:
        """Not supported: ``**proxy`` would need its keys."""
        return self.tracer.keys(self)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


class Attribute(Proxy):
    """An attribute of a proxy: a method if it is called, else a value."""

    def __init__(self, root: Proxy, attr: str) -> None:
        self.root, self.attr, self.tracer = root, attr, root.tracer
        self._node: Node | None = None

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The node that reads it, made when it is first asked for: a method needs none."""
        if self._node is None:
            made = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {})
            self._node = made.node
        return self._node

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make a node that calls the method."""
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class ParameterProxy(Proxy):
    """Stands for a parameter or buffer, whose shape, dtype and device are known."""

    def __init__(self, node: Node, tracer: Any, param: Any) -> None:
        super().__init__(node, tracer)
        self.param = param

    shape = property(attrgetter("param.shape"))
    dtype = property(attrgetter("param.dtype"))
    device = property(attrgetter("param.device"))
    ndim = property(attrgetter("param.ndim"))
    requires_grad = property(attrgetter("param.requires_grad"))

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of a dimension."""
        return self.param.size(dim)

    def dim(self) -> int:
        """The number of dimensions."""
        return int(self.param.dim())

    def numel(self) -> int:
        """The number of elements."""
        return int(self.param.numel())

    nelement, ndimension = numel, dim


_BOTH = """add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift"""
_ONE = """lt le gt ge eq ne neg pos invert getitem"""


def _forward(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Proxy, *args: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, *args), {})

    return call


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (other, self), {})

    return call


for _name in [*_BOTH.split(), *_ONE.split()]:
    setattr(Proxy, f"__{_name.strip('_')}__", _forward(getattr(operator, _name)))
for _name in _BOTH.split():
    setattr(Proxy, f"__r{_name.strip('_')}__", _reflected(getattr(operator, _name)))
Proxy.__hash__ = object.__hash__  # type: ignore[method-assign]  # `==` is a node
