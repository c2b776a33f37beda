"""Graphs of traced calls: made node by node, changed, checked, and written as Python code."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from .code import Namespace, PythonCode, Writer
from .node import Node, map_aggregate, map_arg, pretty_target


class Graph:
    """A traced program: its nodes, in the order of their calls.

    Args:
        owning_module: The module it belongs to, if any.
        tracer_cls: The class of the tracer that made it.
    """

    def __init__(self, owning_module: Any = None, tracer_cls: Any = None, **ignored: Any) -> None:
        self._root = Node(self, "", "output", "root", (), {})  # of the ring, in no list
        self._names = Namespace()
        self._insert_before = self._root
        self.owning_module, self._tracer_cls = owning_module, tracer_cls

    @property
    def nodes(self) -> _Nodes:
        """The nodes in order; they may be erased and moved meanwhile."""
        return _Nodes(self)

    # Making nodes

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        """Make a node where the graph inserts, at its end by default.

        Raises:
            ValueError: An argument is a node of another graph, or ``op`` is none.
        """
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        chosen = self._names.create_name(name or _name_of(op, target))

        def check(n: Node) -> Node:
            if n.graph is not self:
                raise ValueError(
                    f"create_node: {n.name} is a node of another graph; copy it with node_copy."
                )
            return n

        map_arg((args, kwargs), check)
        node = Node(self, chosen, op, target, args, kwargs, type_expr)
        self._insert_before.prepend(node)
        return node

    def placeholder(self, name: str, type_expr: Any = None, default_value: Any = ...) -> Node:
        """Make an input."""
        args = () if default_value is ... else (default_value,)
        return self.create_node("placeholder", name, args, type_expr=type_expr)

    def get_attr(self, qualified_name: str, type_expr: Any = None) -> Node:
        """Make a node that reads a parameter, a buffer or another attribute by its path."""
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_function(
        self,
        the_function: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        type_expr: Any = None,
        name: str | None = None,
    ) -> Node:
        """Make a call of a function."""
        return self.create_node("call_function", the_function, args, kwargs, name, type_expr)

    def call_method(
        self, method_name: str, args: Any = None, kwargs: Any = None, type_expr: Any = None
    ) -> Node:
        """Make a call of a method of the first argument."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_module(
        self, module_name: str, args: Any = None, kwargs: Any = None, type_expr: Any = None
    ) -> Node:
        """Make a call of a submodule by its path."""
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def output(self, result: Any, type_expr: Any = None) -> Node:
        """Make the end: what the program returns."""
        return self.create_node("output", "output", (result,), type_expr=type_expr)

    def node_copy(self, node: Node, arg_transform: Callable[[Node], Any] = lambda x: x) -> Node:
        """Copy a node of another graph; ``arg_transform`` gives the nodes here for its own."""
        args, kwargs = map_arg((node.args, node.kwargs), arg_transform)
        found = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        found.meta = dict(node.meta)
        return found

    def graph_copy(
        self, g: Graph, val_map: dict[Node, Node], return_output_node: bool = False
    ) -> Any:
        """Copy all nodes of another graph but its output, whose value here is returned.

        Args:
            g: The other graph.
            val_map: Its nodes -> nodes here; filled, and what is there is not copied.
            return_output_node: Return (value, output node) instead.
        """
        for node in g.nodes:
            if node in val_map:
                continue
            if node.op == "output":
                found = map_arg(node.args[0], lambda n: val_map[n])
                return (found, node) if return_output_node else found
            val_map[node] = self.node_copy(node, lambda n: val_map[n])
        return None

    # Changing it

    def erase_node(self, to_erase: Node) -> None:
        """Take a node out.

        Raises:
            RuntimeError: Others take it.
        """
        if to_erase.users:
            raise RuntimeError(
                f"Tried to erase Node {to_erase} but it still had {len(to_erase.users)} users in "
                f"the graph: {to_erase.users}! Call replace_all_uses_with first."
            )
        if to_erase.graph is not self:
            raise RuntimeError(f"Attempting to remove {to_erase} from wrong graph!")
        if to_erase._erased:
            return
        if self._insert_before is to_erase:
            self._insert_before = to_erase._next
        to_erase._unlink()
        to_erase._take((), {})
        to_erase._erased = True

    @contextlib.contextmanager
    def _inserting(self, before: Node) -> Iterator[None]:
        was, self._insert_before = self._insert_before, before
        try:
            yield
        finally:
            self._insert_before = was

    def inserting_before(self, n: Node | None = None) -> Any:
        """Return a block in which nodes are made before ``n``, or at the graph's beginning."""
        return self._inserting(self._root._next if n is None else n)

    def inserting_after(self, n: Node | None = None) -> Any:
        """Return a block in which nodes are made behind ``n``, or at the graph's beginning."""
        return self._inserting((self._root if n is None else n)._next)

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Erase nodes that nothing uses and that write nothing; return whether there were some.

        Calls of modules stay, for they may write buffers.
        """
        impure = is_impure_node or Node.is_impure
        changed = False
        for node in reversed(list(self.nodes)):
            if not node.users and not impure(node):
                self.erase_node(node)
                changed = True
        return changed

    # Asking

    def find_nodes(self, *, op: str, target: Any = None, sort: bool = True) -> list[Node]:
        """Return the nodes of a kind, in order; of one target, if given."""
        return [n for n in self.nodes if n.op == op and (target is None or n.target == target)]

    def output_node(self) -> Node:
        """Return the node of the output.

        Raises:
            RuntimeError: There is none.
        """
        found = self.find_nodes(op="output")
        if not found:
            raise RuntimeError("output_node: the graph has no output; make one with output().")
        return found[-1]

    def lint(self) -> None:
        """Check the graph: names, order, and targets in the owning module.

        Raises:
            RuntimeError: A node is used before it is there, or a name or target is wrong.
        """
        seen: set[Node] = set()
        names: set[str] = set()
        for node in self.nodes:
            for other in node.all_input_nodes:
                if other not in seen:
                    raise RuntimeError(
                        f"Argument '{other}' of Node '{node}' was used before it has been defined! "
                        "Please check that Nodes in the graph are topologically ordered."
                    )
            if node.name in names:
                raise RuntimeError(f"Node redefined name {node.name}!")
            if self.owning_module is not None and node.op in ("get_attr", "call_module"):
                attribute_at(self.owning_module, node.target)
            seen.add(node)
            names.add(node.name)

    def print_tabular(self) -> None:
        """Print a table of the nodes."""
        rows = [("opcode", "name", "target", "args", "kwargs")]
        rows += [
            (n.op, n.name, pretty_target(n.target), str(n.args), str(n.kwargs)) for n in self.nodes
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        for row in rows:
            print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())

    def __str__(self) -> str:
        return "graph():\n" + "\n".join(f"    {n.format_node()}" for n in self.nodes)

    # As code

    def python_code(self, root_module: str = "self", **ignored: Any) -> PythonCode:
        """Return the graph as a function ``forward``, which lets go of each value in time."""
        return Writer(root_module).write(self)

    def __deepcopy__(self, memo: Any = None) -> Graph:
        copied = Graph(tracer_cls=self._tracer_cls)
        val_map: dict[Node, Node] = {}
        found = copied.graph_copy(self, val_map, return_output_node=True)
        if found is not None:
            value, old = found
            copied.output(value, old.type).meta = dict(old.meta)
        return copied

    def on_generate_code(self, make_transformer: Any) -> Any:
        """Not supported.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("Graph.on_generate_code: lowtide writes the code in one way.")


class _Nodes:
    def __init__(self, graph: Graph, backwards: bool = False) -> None:
        self._graph, self._backwards = graph, backwards

    def __iter__(self) -> Iterator[Node]:
        root = self._graph._root
        node = root._prev if self._backwards else root._next
        while node is not root:
            following = node._prev if self._backwards else node._next
            if not node._erased:
                yield node
            if not node._erased:  # it may have been moved, and new ones put behind it
                following = node._prev if self._backwards else node._next
            node = following

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __reversed__(self) -> _Nodes:
        return _Nodes(self._graph, not self._backwards)


def attribute_at(root: Any, path: str) -> Any:
    """Return what lies at a dotted path below a module.

    Raises:
        RuntimeError: Nothing does.
    """
    found = root
    for name in path.split("."):
        if not hasattr(found, name):
            raise RuntimeError(
                f"Node referenced nonexistent target {path}: {type(found).__name__} has no {name}."
            )
        found = getattr(found, name)
    return found


def _name_of(op: str, target: Any) -> str:
    if not isinstance(target, str):
        target = getattr(target, "__name__", type(target).__name__)
    name = str(target).replace(".", "_").lstrip("_")
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower() if op != "placeholder" else target


__all__ = ["Graph", "Namespace", "PythonCode", "attribute_at", "map_aggregate"]
