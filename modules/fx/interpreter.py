"""Interpreters of graphs: each node in turn, each kind by a method that a subclass may change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .graph import Graph, attribute_at
from .graph_module import GraphModule
from .node import Node, map_arg
from .proxy import Proxy
from .tracer import Tracer


class Interpreter:
    """Runs a graph node by node.

    Args:
        module: The module whose parameters and submodules the nodes name.
        garbage_collect_values: Let go of each value after its last use.
        graph: The graph; the module's own by default.
    """

    def __init__(
        self, module: Any, garbage_collect_values: bool = True, graph: Graph | None = None
    ) -> None:
        self.module, self.graph = module, graph if graph is not None else module.graph
        self.garbage_collect_values = garbage_collect_values
        self.env: dict[Node, Any] = {}
        self.user_to_last_uses: dict[Node, list[Node]] = {}
        last: dict[Node, Node] = {}
        for node in self.graph.nodes:
            for other in node.all_input_nodes:
                last[other] = node
        for node, user in last.items():
            self.user_to_last_uses.setdefault(user, []).append(node)

    def run(
        self,
        *args: Any,
        initial_env: dict[Node, Any] | None = None,
        enable_io_processing: bool = True,
    ) -> Any:
        """Run the graph with inputs; return what its output takes.

        Args:
            *args: The inputs.
            initial_env: Nodes whose values are known; they are not run.
            enable_io_processing: Ignored.

        Raises:
            RuntimeError: There are fewer inputs than the graph takes.
        """
        self.env = dict(initial_env or {})
        self.args_iter: Iterator[Any] = iter(args)
        for node in self.graph.nodes:
            if node in self.env:
                continue
            try:
                self.env[node] = self.run_node(node)
            except Exception as error:
                error.add_note(f"While executing {node.format_node()}")
                raise
            if self.garbage_collect_values:
                for gone in self.user_to_last_uses.get(node, []):
                    del self.env[gone]
            if node.op == "output":
                return self.env[node]
        return None

    def run_node(self, n: Node) -> Any:
        """Run one node."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return getattr(self, n.op)(n.target, args, kwargs)

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Take the next input; its default, if there is no more."""
        if target.startswith("*"):
            return list(self.args_iter)
        try:
            return next(self.args_iter)
        except StopIteration:
            if args:
                return args[0]
            raise RuntimeError(
                f"Expected positional argument for parameter {target}, but one was not passed in!"
            ) from None

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Read an attribute of the module."""
        return self.fetch_attr(target)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function."""
        return target(*args, **kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of the first argument."""
        return getattr(args[0], target)(*args[1:], **kwargs)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a submodule."""
        return self.fetch_attr(target)(*args, **kwargs)

    def output(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the output takes."""
        return args[0]

    def fetch_attr(self, target: str) -> Any:
        """Return what lies at a dotted path of the module."""
        return attribute_at(self.module, target)

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a node's arguments with values in place of nodes."""
        return self.map_nodes_to_values(n.args, n), self.map_nodes_to_values(n.kwargs, n)

    def map_nodes_to_values(self, args: Any, n: Node) -> Any:
        """Return arguments with values in place of nodes."""

        def value(other: Node) -> Any:
            if other not in self.env:
                raise RuntimeError(
                    f"Node {n} referenced nonexistent value {other}! Run Graph.lint() to diagnose."
                )
            return self.env[other]

        return map_arg(args, value)


class Transformer(Interpreter):
    """An interpreter that makes another graph: override a kind of node, call :meth:`transform`."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.new_graph = Graph()
        self.tracer = Tracer()
        self.tracer.graph, self.tracer.root = self.new_graph, module
        self.tracer._paths_of_modules = {id(m): p for p, m in module.named_modules()}
        self.tracer._paths_of_tensors = {id(t): p for p, t in module.named_parameters()}

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make an input."""
        default = args[0] if args else ...
        return Proxy(self.new_graph.placeholder(target, default_value=default), self.tracer)

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a node that reads an attribute."""
        return self.tracer.create_proxy("get_attr", target, args, kwargs)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of a function."""
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of a method."""
        return self.tracer.create_proxy("call_method", target, args, kwargs)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call of a submodule."""
        return self.tracer.create_proxy("call_module", target, args, kwargs)

    def transform(self) -> GraphModule:
        """Return a module that runs the new graph."""
        result = super().run()
        if result is not None:
            self.new_graph.output(self.tracer.create_arg(result))
        return GraphModule(self.module, self.new_graph)
