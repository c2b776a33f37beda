"""Modules that run a graph: the code made of it, over the parameters and submodules it names."""

from __future__ import annotations

import copy
import itertools
import linecache
import sys
import traceback
from typing import Any

from ...framework.tensor import Tensor
from ..module import Module
from ..parameter import Parameter
from .graph import Graph, PythonCode, attribute_at

_numbers = itertools.count()
trace_flat: Any = None  # traces a module, going through no other; set by tracer.py


class GraphModule(Module):
    """A module whose ``forward`` is a graph.

    Args:
        root: The module that was traced, or a dict of paths -> modules and tensors; what the graph
            names is taken over from it, not copied.
        graph: The graph; copied, as in PyTorch, so that both can be changed.
        class_name: The name of the class that is shown.

    Raises:
        RuntimeError: The graph names what is not in ``root``.
    """

    _code: str

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a separate class for each, since its ``forward`` is that graph's."""
        for known in cls.__mro__:
            if "_of_graph" in known.__dict__:
                return super().__new__(cls)
            if known is GraphModule:
                break
        made = type(cls.__name__, (cls,), {"_of_graph": True, "__doc__": cls.__doc__})
        return super().__new__(made)

    def __init__(self, root: Any, graph: Graph, class_name: str = "GraphModule") -> None:
        super().__init__()
        type(self).__name__ = type(self).__qualname__ = class_name
        self.training = bool(getattr(root, "training", True))
        for node in graph.nodes:
            if node.op in ("get_attr", "call_module"):
                path = str(node.target)
                if isinstance(root, dict):
                    if path not in root:
                        raise RuntimeError(
                            f"Node {node} referenced target {path} but that target was not "
                            "provided in `root`!"
                        )
                    _place(self, path, root[path])
                else:
                    _place(self, path, attribute_at(root, path))
        self.graph = graph
        self.meta: dict[str, Any] = {}

    @property
    def graph(self) -> Graph:
        """The graph; after changes to it call :meth:`recompile`, or set it again."""
        return self._graph

    @graph.setter
    def graph(self, g: Graph) -> None:
        if not isinstance(g, Graph):
            raise AssertionError(f"Expected a Graph instance, but got {type(g)}")
        self.__dict__["_graph"] = copy.deepcopy(g) if g.owning_module not in (None, self) else g
        self._graph.owning_module = self
        self.recompile()

    @property
    def code(self) -> str:
        """The Python code of ``forward``."""
        return self._code

    def recompile(self) -> PythonCode:
        """Make ``forward`` anew of the graph."""
        found = self._graph.python_code("self")
        origin = f"<graph of {type(self).__name__} {next(_numbers)}>"
        linecache.cache[origin] = (len(found.src), None, found.src.splitlines(True), origin)
        space = dict(found.globals)
        exec(compile(found.src, origin, "exec"), space)
        self.__dict__["_code"] = found.src
        kind: Any = type(self)
        kind.forward = space["forward"]
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph; each graph brings its own."""
        raise NotImplementedError("GraphModule.forward: there is no graph yet.")

    def add_submodule(self, target: str, m: Module) -> bool:
        """Put a module at a path; return False if something else is in the way."""
        *path, last = target.split(".")
        at: Any = self
        for name in path:
            if not hasattr(at, name):
                setattr(at, name, Module())
            at = getattr(at, name)
            if not isinstance(at, Module):
                return False
        at.add_module(last, m)
        return True

    def delete_submodule(self, target: str) -> bool:
        """Take the module at a path away; return False if there is none."""
        *path, last = target.split(".")
        at: Any = self
        for name in path:
            at = getattr(at, name, None)
        if not isinstance(at, Module) or not isinstance(getattr(at, last, None), Module):
            return False
        delattr(at, last)
        return True

    def delete_all_unused_submodules(self) -> None:
        """Take away all modules that no node calls or reads."""
        used: set[str] = set()
        for node in self._graph.nodes:
            if node.op in ("call_module", "get_attr"):
                parts = str(node.target).split(".")
                used |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
                if node.op == "call_module":
                    inner = self.get_submodule(node.target)
                    used |= {f"{node.target}.{name}" for name, _ in inner.named_modules() if name}
        for name in [name for name, _ in self.named_modules() if name and name not in used]:
            self.delete_submodule(name)

    def print_readable(self, print_output: bool = True, **ignored: Any) -> str:
        """Print the code, and return it."""
        if print_output:
            print(self._code)
        return self._code

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphModule:
        holder = Module()
        for name, value in self.__dict__.items():
            if name not in ("_graph", "_code"):
                holder.__dict__[name] = copy.deepcopy(value, memo)
        found = GraphModule(holder, copy.deepcopy(self._graph), type(self).__name__)
        for name, value in holder.__dict__.items():
            if name not in ("_graph", "_code"):
                found.__dict__[name] = value
        return found

    def __copy__(self) -> GraphModule:
        return GraphModule(self, copy.deepcopy(self._graph), type(self).__name__)

    def __reduce__(self) -> Any:
        root = Module()
        root.__dict__.update(
            {k: v for k, v in self.__dict__.items() if k not in ("_graph", "_code")}
        )
        return _traced_again, (root, self._graph.python_code("self"), type(self).__name__)

    def __str__(self) -> str:
        return f"{super().__repr__()}\n\n{self._code}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph; an error in it shows the line of its code."""
        try:
            return super().__call__(*args, **kwargs)
        except Exception as error:
            for frame in reversed(traceback.extract_tb(sys.exc_info()[2])):
                if frame.filename.startswith("<graph of "):
                    error.add_note(f"In the graph's code: {frame.line}")
                    break
            raise


def _place(module: Module, path: str, value: Any) -> None:
    # Puts what lies at a path of another module to the same path here.
    *outer, last = path.split(".")
    at: Any = module
    for name in outer:
        if not hasattr(at, name):
            setattr(at, name, Module())
        at = getattr(at, name)
    if isinstance(value, Tensor) and not isinstance(value, Parameter):
        at.register_buffer(last, value)
    else:
        setattr(at, last, value)


def _traced_again(root: Module, code: PythonCode, name: str) -> GraphModule:
    # What was pickled: its code, which is traced, as PyTorch does.
    space = dict(code.globals)
    exec(code.src, space)
    kind = type(name, (Module,), {"forward": space["forward"]})
    made = kind()
    made.__dict__.update(root.__dict__)
    return GraphModule(made, trace_flat(made), name)
