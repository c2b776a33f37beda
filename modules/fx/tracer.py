"""The symbolic tracer: a module is called with proxies, and the calls it makes become a graph.

Three things are replaced while it runs: ``Module.__call__`` (a leaf becomes a node, the others are
gone through), ``Module.__getattr__`` (a parameter becomes a node that reads it), and the functions
of lowtide's namespaces, also where the module's own files have imported them by name: with a proxy
among their arguments they become nodes. All are put back when the trace ends.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from ...framework.tensor import Tensor
from ..container import Sequential
from ..module import Module
from ..parameter import Parameter
from . import graph_module
from .graph import Graph
from .graph_module import GraphModule
from .interception import OPERATORS, OURS, function_patches, wrap, yielding
from .node import Node, map_aggregate
from .proxy import ParameterProxy, Proxy, TraceError

_lock = threading.RLock()
_tracing = [0]


def is_fx_tracing() -> bool:
    """True while a module is traced."""
    return bool(_tracing[0])


class Tracer:
    """Traces modules; override :meth:`is_leaf_module` to say what becomes one node.

    Args:
        autowrap_modules: Modules whose functions become nodes when called with proxies.
        autowrap_functions: Functions that do.
        param_shapes_constant: Ignored: shapes of parameters are known.
    """

    def __init__(
        self,
        autowrap_modules: tuple[types.ModuleType, ...] = (math,),
        autowrap_functions: tuple[Callable[..., Any], ...] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        self._modules, self._functions = autowrap_modules, autowrap_functions

    # What subclasses may change

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        """True for layers of lowtide, which become one node; ``Sequential`` is gone through."""
        gone_through = isinstance(m, Sequential | GraphModule)
        return type(m).__module__.startswith(OURS) and not gone_through

    def call_module(
        self, m: Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Note a call of a leaf, or go through another module."""
        path = self.path_of_module(m)
        if self.is_leaf_module(m, path):
            return self.create_proxy("call_module", path, args, kwargs)
        return forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return what a module's attribute is while it is traced: a proxy for a tensor of it."""
        if not isinstance(attr_val, Tensor):
            return attr_val
        path = self._paths_of_tensors.get(id(attr_val))
        if path is None:
            return attr_val
        if path not in parameter_proxy_cache:
            node = self.create_node("get_attr", path, (), {})
            parameter_proxy_cache[path] = ParameterProxy(node, self, attr_val)
        return parameter_proxy_cache[path]

    def iter(self, obj: Proxy) -> Iterator[Any]:
        """Not supported: a loop over a proxy needs its length."""
        raise TraceError(
            "Proxy object cannot be iterated. This can be attempted when the Proxy is used in a "
            "loop or as a *args or **kwargs function argument. fx.wrap the function that does."
        )

    def to_bool(self, obj: Proxy) -> bool:
        """Not supported: a condition needs a value."""
        raise TraceError(
            "symbolically traced variables cannot be used as inputs to control flow: the value of "
            f"{obj.node.name} is not known. Pass it in concrete_args, or fx.wrap the function."
        )

    def keys(self, obj: Proxy) -> Any:
        """Note that the keys are asked for."""
        return self.create_proxy("call_method", "keys", (obj,), {})

    def proxy(self, node: Node) -> Proxy:
        """Return a proxy of a node."""
        return Proxy(node, self)

    # Nodes

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        """Make a node of the graph that is being traced."""
        return self.graph.create_node(kind, target, args, kwargs, name, type_expr)

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
    ) -> Proxy:
        """Make a node of arguments with proxies, and return its proxy."""
        found = self.create_node(
            kind, target, self.create_arg(args), self.create_arg(kwargs), name, type_expr
        )
        return self.proxy(found)

    def create_arg(self, a: Any) -> Any:
        """Return an argument as nodes hold it: proxies as nodes, tensors as nodes that read them.

        Raises:
            NotImplementedError: It is a module that is no part of what is traced.
        """
        return map_aggregate(a, self._one_arg)

    def _one_arg(self, a: Any) -> Any:
        if isinstance(a, Proxy):
            return a.node
        if isinstance(a, Tensor):
            path = self._paths_of_tensors.get(id(a))
            if path is None:
                number = 0
                while hasattr(self.root, f"_tensor_constant{number}"):
                    number += 1
                path = f"_tensor_constant{number}"
                setattr(self.root, path, a)
                self._paths_of_tensors[id(a)] = path
            return self.create_node("get_attr", path, (), {})
        if isinstance(a, Module):
            return self.create_node("get_attr", self.path_of_module(a), (), {})
        return a

    def path_of_module(self, mod: Module) -> str:
        """Return the dotted path of a submodule.

        Raises:
            NameError: It is no part of what is traced.
        """
        path = self._paths_of_modules.get(id(mod))
        if path is None:
            raise NameError(
                f"{type(mod).__name__} is not installed as a submodule of what is traced. Assign "
                "it to an attribute of the module before."
            )
        return path

    # The trace

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> Graph:
        """Trace a module, or a function; return its graph.

        Args:
            root: What to trace.
            concrete_args: Arguments that are known: name -> value. They are no inputs of the
                graph.

        Raises:
            TraceError: What it does next depends on a value.
        """
        if isinstance(root, Module):
            self.root: Any = root
            function = type(root).forward
            first = 1
        else:
            self.root, function, first = Module(), root, 0
        self.graph = Graph(tracer_cls=type(self))
        self._paths_of_modules = {id(m): path for path, m in self.root.named_modules()}
        self._paths_of_tensors: dict[int, str] = {}
        for path, t in [*self.root.named_parameters(), *self.root.named_buffers()]:
            self._paths_of_tensors.setdefault(id(t), path)
        for path, m in self.root.named_modules():
            for name, value in vars(m).items():
                if isinstance(value, Tensor):
                    found = f"{path}.{name}" if path else name
                    self._paths_of_tensors.setdefault(id(value), found)
        args, kwargs = self._inputs(function, first, concrete_args or {})
        given = [self.root, *args] if first else args
        called = _without_stars(function)
        with self._replaced(function):
            result = called(*given, **kwargs)
        self.create_node("output", "output", (self.create_arg(result),), {})
        return self.graph

    def _inputs(
        self, function: Any, first: int, concrete: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        starred: list[str] = []  # behind all others, where a function has them
        for p in list(inspect.signature(function).parameters.values())[first:]:
            if p.name in concrete:
                value = concrete[p.name]
            elif p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                starred.append(("*" if p.kind is p.VAR_POSITIONAL else "**") + p.name)
                continue
            else:
                default = () if p.default is p.empty else (p.default,)
                value = self.proxy(self.create_node("placeholder", p.name, default, {}))
            if p.kind is p.KEYWORD_ONLY:
                kwargs[p.name] = value
            else:
                args.append(value)
        if not starred:
            return args, kwargs
        last = [self.proxy(self.create_node("placeholder", name, (), {})) for name in starred]
        return [*args, *kwargs.values(), *last], {}

    @contextlib.contextmanager
    def _replaced(self, function: Any) -> Iterator[None]:
        cache: dict[str, Any] = {}
        plain_call, plain_getattr = Module.__call__, Module.__getattr__
        inside = threading.get_ident()

        def call(module: Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != inside or id(module) not in self._paths_of_modules:
                return plain_call(module, *args, **kwargs)
            forward = functools.partial(plain_call, module)
            return self.call_module(module, forward, args, kwargs)

        def getattribute(module: Module, name: str) -> Any:
            found = plain_getattr(module, name)
            if threading.get_ident() != inside:
                return found
            return self.getattr(name, found, cache)

        with _lock:
            _tracing[0] += 1
            undo = [
                *function_patches(
                    self.root, function, self._modules, self._functions, self.create_proxy
                )
            ]
            operators = {f"__{name}__": getattr(Tensor, f"__{name}__") for name in OPERATORS}
            for name, plain in operators.items():
                setattr(Tensor, name, yielding(plain))
            kind: Any = Module
            kind.__call__, kind.__getattr__ = call, getattribute
            for space, name, replacement in undo:
                space[name] = replacement[1]
            try:
                yield
            finally:
                kind.__call__, kind.__getattr__ = plain_call, plain_getattr
                for name, plain in operators.items():
                    setattr(Tensor, name, plain)
                for space, name, replacement in undo:
                    space[name] = replacement[0]
                _tracing[0] -= 1


def _without_stars(function: Any) -> Any:
    # The same code with *args and **kwargs as plain parameters, which a proxy can stand for: a
    # function's variables begin with its parameters, those with stars behind all others.
    code = getattr(function, "__code__", None)
    if code is None or not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return function
    stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    plain = code.replace(
        co_argcount=code.co_argcount + code.co_kwonlyargcount + stars,
        co_kwonlyargcount=0,
        co_posonlyargcount=0,
        co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
    )
    return types.FunctionType(
        plain, function.__globals__, function.__name__, None, function.__closure__
    )


def symbolic_trace(root: Any, concrete_args: dict[str, Any] | None = None) -> GraphModule:
    """Trace a module or function; return a module that runs the graph.

    Args:
        root: What to trace.
        concrete_args: Arguments that are known: name -> value.

    Raises:
        TraceError: What it does next depends on a value: a condition, a loop over a tensor.

    Example:
        >>> from lowtide import fx, nn
        >>> traced = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
        >>> [node.op for node in traced.graph.nodes]
        ['placeholder', 'call_module', 'call_module', 'output']
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args)
    name = type(root).__name__ if isinstance(root, Module) else root.__name__
    return GraphModule(tracer.root, graph, name)


class _Flat(Tracer):
    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        return True


graph_module.trace_flat = lambda root: _Flat().trace(root)

__all__ = ["Parameter", "Tracer", "is_fx_tracing", "symbolic_trace", "wrap"]
