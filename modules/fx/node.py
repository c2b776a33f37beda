"""Nodes of a traced graph: one call each, with the nodes it takes and those that take it."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graph import Graph

OPCODES = ("placeholder", "get_attr", "call_function", "call_method", "call_module", "output")
# In place, or of an effect: a node that is not used stays for it
IMPURE = frozenset({builtins.setattr, builtins.print})


def map_aggregate(a: Any, fn: Callable[[Any], Any]) -> Any:
    """Return nested tuples, lists, dicts and slices with ``fn`` applied to all else."""
    if isinstance(a, tuple):
        found = [map_aggregate(x, fn) for x in a]
        return type(a)(*found) if hasattr(a, "_fields") else tuple(found)
    if isinstance(a, list):
        return [map_aggregate(x, fn) for x in a]
    if isinstance(a, dict):
        return {key: map_aggregate(x, fn) for key, x in a.items()}
    if isinstance(a, slice):
        return slice(*[map_aggregate(x, fn) for x in (a.start, a.stop, a.step)])
    return fn(a)


def map_arg(a: Any, fn: Callable[[Node], Any]) -> Any:
    """Return arguments with ``fn`` applied to each node in them."""
    return map_aggregate(a, lambda x: fn(x) if isinstance(x, Node) else x)


class Node:
    """One call of a traced program.

    Attributes:
        graph: The graph it is in.
        name: Its name, which is unique there.
        op: What it is: ``placeholder`` (an input), ``get_attr`` (a parameter or buffer),
            ``call_function``, ``call_method``, ``call_module``, or ``output``.
        target: What is called: a function; a method's name; the path of a module or attribute.
        args: Arguments by place; nodes stand for what they compute.
        kwargs: Arguments by name.
        users: Nodes that take this one, as the keys of a dict.
        type: The annotated type, if there is one.
        meta: Whatever a program notes about it.
    """

    def __init__(
        self,
        graph: Graph,
        name: str,
        op: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        return_type: Any = None,
    ) -> None:
        if op not in OPCODES:
            raise ValueError(f"Node: op is one of {', '.join(OPCODES)}; got {op!r}.")
        self.graph, self.name, self.op, self.target, self.type = (
            graph,
            name,
            op,
            target,
            return_type,
        )
        self._prev = self._next = self  # a ring with the graph's root
        self._erased = False
        self._inputs: dict[Node, None] = {}
        self.users: dict[Node, None] = {}
        self.meta: dict[str, Any] = {}
        self._take(tuple(args), dict(kwargs))

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for other in self._inputs:
            other.users.pop(self, None)
        self._inputs = {}
        self._args, self._kwargs = args, kwargs
        map_arg((args, kwargs), lambda n: self._inputs.setdefault(n))
        for other in self._inputs:
            other.users.setdefault(self)

    @property
    def args(self) -> tuple[Any, ...]:
        """Arguments by place; setting them keeps ``users`` right."""
        return self._args

    @args.setter
    def args(self, args: tuple[Any, ...]) -> None:
        self._take(tuple(args), self._kwargs)

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments by name; setting them keeps ``users`` right."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, kwargs: dict[str, Any]) -> None:
        self._take(self._args, dict(kwargs))

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes among the arguments, each once."""
        return list(self._inputs)

    @property
    def next(self) -> Node:
        """The node after this one."""
        return self._next

    @property
    def prev(self) -> Node:
        """The node before this one."""
        return self._prev

    def prepend(self, x: Node) -> None:
        """Move ``x`` before this node."""
        if x.graph is not self.graph:
            raise ValueError(f"prepend: {x.name} is a node of another graph; copy it first.")
        if x is not self:
            x._unlink()
            before = self._prev
            before._next, x._prev, x._next, self._prev = x, before, self, x

    def append(self, x: Node) -> None:
        """Move ``x`` behind this node."""
        self._next.prepend(x)

    def _unlink(self) -> None:
        self._prev._next, self._next._prev = self._next, self._prev
        self._prev = self._next = self

    def update_arg(self, idx: int, arg: Any) -> None:
        """Replace an argument by its place."""
        args = list(self._args)
        args[idx] = arg
        self.args = tuple(args)

    def insert_arg(self, idx: int, arg: Any) -> None:
        """Put an argument before that at a place."""
        self.args = (*self._args[:idx], arg, *self._args[idx:])

    def update_kwarg(self, key: str, arg: Any) -> None:
        """Replace an argument by its name."""
        self.kwargs = {**self._kwargs, key: arg}

    def replace_input_with(self, old_input: Node, new_input: Node) -> None:
        """Take another node wherever ``old_input`` was taken."""
        swapped = map_arg((self._args, self._kwargs), lambda n: new_input if n is old_input else n)
        self._take(*swapped)

    def replace_all_uses_with(
        self,
        replace_with: Node,
        delete_user_cb: Callable[[Node], bool] = lambda user: True,
        *,
        propagate_meta: bool = False,
    ) -> list[Node]:
        """Let those who take this node take another; return them."""
        if propagate_meta:
            replace_with.meta.update(self.meta)
        changed = [user for user in self.users if delete_user_cb(user)]
        for user in changed:
            user.replace_input_with(self, replace_with)
        return changed

    def is_impure(self) -> bool:
        """True for an input, an output, and what writes: it stays though nothing uses it."""
        if self.op in ("placeholder", "output"):
            return True
        if self.op == "call_module":
            return True  # it may write its buffers, as batch normalization does
        if self.op == "call_method":
            return self.target.endswith("_") and not self.target.endswith("__")
        name = getattr(self.target, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        return self.op == "call_function" and (self.target in IMPURE or in_place)

    def format_node(self) -> str:
        """Return a line that shows the node."""
        if self.op == "placeholder":
            default = f"(default={self.args[0]!r})" if self.args else ""
            head = f"%{self.name} : [num_users={len(self.users)}] = placeholder"
            return f"{head}[target={self.target}]{default}"
        if self.op == "output":
            return f"return {self.args[0]}"
        return (
            f"%{self.name} : [num_users={len(self.users)}] = {self.op}"
            f"[target={pretty_target(self.target)}](args = {self.args}, kwargs = {self.kwargs})"
        )

    def __repr__(self) -> str:
        return self.name


def pretty_target(target: Any) -> str:
    """Return what is called as a reader would write it."""
    if isinstance(target, str):
        return target
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", repr(target))
    if isinstance(target, types.BuiltinFunctionType) and module.startswith("_"):
        module = module[1:]  # of operator, whose own name is _operator
    for home in ("lowtide", "lowtide.nn.functional"):  # where users find it
        if module.startswith("lowtide.") and getattr(sys.modules.get(home), name, None) is target:
            return f"{home}.{name}"
    return f"{module}.{name}" if module not in ("", "builtins") else name


Argument = Any
Target = Any
