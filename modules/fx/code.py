"""Graphs as Python code: the source of a ``forward``, which lets go of each value in time."""

from __future__ import annotations

import builtins
import keyword
import math
import operator
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from .node import Node, pretty_target

if TYPE_CHECKING:
    from .graph import Graph

_INFIX = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/",
    operator.floordiv: "//", operator.mod: "%", operator.pow: "**", operator.matmul: "@",
    operator.and_: "&", operator.or_: "|", operator.xor: "^", operator.lshift: "<<",
    operator.rshift: ">>", operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=", operator.eq: "==", operator.ne: "!=",
}  # fmt: skip


class PythonCode(NamedTuple):
    """A graph as text: the source of ``forward``, and the values that its names stand for."""

    src: str
    globals: dict[str, Any]


class Namespace:
    """Names of a graph's nodes, each given once."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def create_name(self, candidate: str) -> str:
        """Return a name that is free: the candidate, or that with a number."""
        name = re.sub(r"[^0-9a-zA-Z_]+", "_", candidate) or "_unnamed"
        if name[0].isdigit():
            name = f"_{name}"
        base, number = name, 0
        match = re.fullmatch(r"(.*?)_(\d+)", name)
        if match:
            base, number = match[1], int(match[2])
        while (
            name in self._used
            or keyword.iskeyword(name)
            or hasattr(builtins, name)
            or (name in ("self", "inf", "nan", "device"))
        ):
            number += 1
            name = f"{base}_{number}"
        self._used.add(name)
        return name


class Writer:
    """Writes a graph as Python: values without a literal go into the function's globals."""

    def __init__(self, root: str) -> None:
        self.root, self.globals = root, {"inf": math.inf, "nan": math.nan}
        self.names = Namespace()

    def write(self, graph: Graph) -> PythonCode:
        """Return the source and the values that its names stand for."""
        last: dict[Node, Node] = {}
        for node in graph.nodes:
            for other in node.all_input_nodes:
                last[other] = node
            self.names._used.add(node.name)
        dying: dict[Node, list[str]] = {}
        for node, user in last.items():
            if user.op != "output":
                dying.setdefault(user, []).append(node.name)
        parameters, body, ended = [self.root], [], False
        for node in graph.nodes:
            if node.op == "placeholder":
                parameters.append(self.parameter(node))
                given = str(node.target).lstrip("*")
                if given != node.name:  # the name it was given by holds it no longer
                    body.append(f"{node.name} = {given}; {given} = None")
            elif node.op == "output":
                body.append(f"return {self.text(node.args[0])}")
                ended = True
            else:
                gone = "".join(f"; {name} = None" for name in dying.get(node, ()))
                unused = f"; {node.name} = None" if node not in last else ""
                body.append(f"{node.name} = {self.call(node)}{gone}{unused}")
        if not ended:
            body.append("return None")
        lines = "\n".join(f"    {line}" for line in body)
        src = f"def forward({', '.join(parameters)}):\n{lines}\n"
        return PythonCode(src, self.globals)

    def parameter(self, node: Node) -> str:
        """Return an input with its default."""
        return f"{node.target}={self.text(node.args[0])}" if node.args else str(node.target)

    def call(self, node: Node) -> str:
        """Return the expression of a node."""
        if node.op == "get_attr":
            return self.path(node.target)
        if node.op == "call_module":
            return f"{self.path(node.target)}({self.arguments(node.args, node.kwargs)})"
        if node.op == "call_method":
            first, *rest = node.args
            return f"{self.text(first)}.{node.target}({self.arguments(rest, node.kwargs)})"
        infix = _INFIX.get(node.target) if not node.kwargs and len(node.args) == 2 else None
        if infix:
            return f"{self.text(node.args[0])} {infix} {self.text(node.args[1])}"
        if node.target is operator.getitem and not node.kwargs and len(node.args) == 2:
            return f"{self.text(node.args[0])}[{self.text(node.args[1])}]"
        if node.target is getattr and len(node.args) == 2 and str(node.args[1]).isidentifier():
            return f"{self.text(node.args[0])}.{node.args[1]}"
        return f"{self.value(node.target)}({self.arguments(node.args, node.kwargs)})"

    def path(self, target: str) -> str:
        """Return a path below the module."""
        found = self.root
        for name in target.split("."):
            plain = name.isidentifier() and not keyword.iskeyword(name)
            found = f"{found}.{name}" if plain else f'getattr({found}, "{name}")'
        return found

    def arguments(self, args: Any, kwargs: dict[str, Any]) -> str:
        """Return the arguments of a call."""
        return ", ".join(
            [*map(self.text, args), *(f"{k}={self.text(v)}" for k, v in kwargs.items())]
        )

    def text(self, a: Any) -> str:
        """Return an argument: a literal, or a name for it."""
        if isinstance(a, Node):
            return a.name
        if isinstance(a, tuple) and hasattr(a, "_fields"):
            return f"{self.value(type(a))}({', '.join(map(self.text, a))})"
        if isinstance(a, tuple):
            return f"({', '.join(map(self.text, a))}{',' if len(a) == 1 else ''})"
        if isinstance(a, list):
            return f"[{', '.join(map(self.text, a))}]"
        if isinstance(a, dict):
            return "{" + ", ".join(f"{k!r}: {self.text(v)}" for k, v in a.items()) + "}"
        if isinstance(a, slice):
            return f"slice({self.text(a.start)}, {self.text(a.stop)}, {self.text(a.step)})"
        if a is None or a is Ellipsis or type(a) in (bool, int, float, complex, str, bytes):
            return "..." if a is Ellipsis else repr(a)
        return self.value(a)

    def value(self, a: Any) -> str:
        """Return a name for a function, a dtype, a device and so on."""
        for name, known in self.globals.items():
            if known is a:
                return name
        wish = pretty_target(a) if callable(a) else f"const_{a}"
        name = self.names.create_name(wish.replace(".", "_"))
        self.globals[name] = a
        return name
