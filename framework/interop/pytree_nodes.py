"""Nodes of pytrees: the registered containers, and the structure that they make.

A *node* is a container of a registered type: tuple, list, dict, OrderedDict, defaultdict, deque and
named tuples are; :func:`register_pytree_node` adds others. Whatever else is met is a *leaf*, and so
is None. ``pytree.py`` has the functions that take trees apart.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

IsLeaf = Callable[[Any], bool] | None
KeyPath = tuple[Any, ...]


class MappingKey(NamedTuple):
    """One step of a path: the value of a key."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Any) -> Any:
        """Go this step."""
        return mapping[self.key]


class SequenceKey(NamedTuple):
    """One step of a path: the item at an index."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: Any) -> Any:
        """Go this step."""
        return sequence[self.idx]


class GetAttrKey(NamedTuple):
    """One step of a path: an attribute."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, obj: Any) -> Any:
        """Go this step."""
        return getattr(obj, self.name)


def keystr(kp: KeyPath) -> str:
    """Return a path as Python writes it: ``['a'][0].x``."""
    return "".join(map(str, kp))


def key_get(obj: Any, kp: KeyPath) -> Any:
    """Return what lies at a path below ``obj``."""
    for key in kp:
        obj = key.get(obj)
    return obj


class NodeDef(NamedTuple):
    """How one type is taken apart and put together: children and context, both ways."""

    type: type
    flatten_fn: Callable[[Any], tuple[Any, Any]]
    unflatten_fn: Callable[[Any, Any], Any]
    flatten_with_keys_fn: Callable[[Any], tuple[Any, Any]] | None = None


SUPPORTED_NODES: dict[type, NodeDef] = {}


def register_pytree_node(
    cls: type,
    flatten_fn: Callable[[Any], tuple[Any, Any]],
    unflatten_fn: Callable[[Any, Any], Any],
    *,
    serialized_type_name: str | None = None,
    to_dumpable_context: Any = None,
    from_dumpable_context: Any = None,
    flatten_with_keys_fn: Callable[[Any], tuple[Any, Any]] | None = None,
) -> None:
    """Register a container: instances of exactly this type are nodes from now on.

    Args:
        cls: The type; a subclass needs a separate registration.
        flatten_fn: Takes an instance apart: (list of children, context that can be compared).
        unflatten_fn: Makes one of (children, context).
        serialized_type_name: Ignored: structures are not written to files here.
        to_dumpable_context: Ignored, as above.
        from_dumpable_context: Ignored, as above.
        flatten_with_keys_fn: As ``flatten_fn``, each child with its step: (list of (key, child),
            context). Without it, the children are numbered.

    Raises:
        ValueError: The type is registered.
    """
    if cls in SUPPORTED_NODES:
        raise ValueError(f"{cls} is already registered as pytree node.")
    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, flatten_with_keys_fn)


def register_with_texts(
    cls: type, flatten_fn: Any, unflatten_fn: Any, *ignored: Any, **options: Any
) -> None:
    """Register a container in the older way: two functions of text follow, which nothing reads."""
    register_pytree_node(cls, flatten_fn, unflatten_fn, **options)


def register_dataclass(
    cls: type,
    *,
    field_names: list[str] | None = None,
    drop_field_names: list[str] | None = None,
    serialized_type_name: str | None = None,
) -> None:
    """Register a dataclass: its fields are the children, those to drop take their defaults.

    Raises:
        ValueError: It is no dataclass, or is registered.
    """
    import dataclasses

    if not dataclasses.is_dataclass(cls):
        raise ValueError(f"register_dataclass takes a dataclass; got {cls}. Decorate it first.")
    dropped = set(drop_field_names or ())
    names = field_names or [f.name for f in dataclasses.fields(cls) if f.init]
    names = [name for name in names if name not in dropped]

    def flatten(obj: Any) -> tuple[list[Any], Any]:
        return [getattr(obj, name) for name in names], names

    def with_keys(obj: Any) -> tuple[list[Any], Any]:
        return [(GetAttrKey(name), getattr(obj, name)) for name in names], names

    register_pytree_node(
        cls,
        flatten,
        lambda values, context: cls(**dict(zip(context, values, strict=True))),
        flatten_with_keys_fn=with_keys,
    )


def deregister_pytree_node(cls: type) -> None:
    """Forget a registration; none is no error."""
    SUPPORTED_NODES.pop(cls, None)


# The containers of Python


def _dict_flatten(d: Any) -> tuple[list[Any], Any]:
    return list(d.values()), list(d)


def _dict_unflatten(values: Any, context: Any) -> dict[Any, Any]:
    return dict(zip(context, values, strict=True))


def _keyed(d: Any) -> tuple[list[Any], Any]:
    return [(MappingKey(key), value) for key, value in d.items()], list(d)


def _keyed_default(d: Any) -> tuple[list[Any], Any]:
    return _keyed(d)[0], [d.default_factory, list(d)]


def _named(t: Any) -> tuple[list[Any], Any]:
    return [(GetAttrKey(n), v) for n, v in zip(t._fields, t, strict=True)], type(t)


def _refill(values: Any, context: Any) -> Any:
    return defaultdict(context[0], zip(context[1], values, strict=True))


def _dict_of(kind: type) -> Callable[[Any, Any], Any]:
    return lambda values, keys: kind(zip(keys, values, strict=True))


register_pytree_node(tuple, lambda t: (list(t), None), lambda values, _: tuple(values))
register_pytree_node(list, lambda t: (t, None), lambda values, _: list(values))
register_pytree_node(dict, _dict_flatten, _dict_unflatten, flatten_with_keys_fn=_keyed)
register_pytree_node(
    OrderedDict,
    _dict_flatten,
    _dict_of(OrderedDict),
    flatten_with_keys_fn=_keyed,
)
register_pytree_node(
    defaultdict,
    lambda d: (list(d.values()), [d.default_factory, list(d)]),
    _refill,
    flatten_with_keys_fn=_keyed_default,
)
register_pytree_node(
    deque, lambda d: (list(d), d.maxlen), lambda values, length: deque(values, maxlen=length)
)


class namedtuple:
    """Stands in :class:`TreeSpec` for all named tuples; their own type is the context."""


_NAMED = NodeDef(
    namedtuple, lambda t: (list(t), type(t)), lambda values, kind: kind(*values), _named
)


def is_namedtuple_class(cls: type) -> bool:
    """True for a type that ``collections.namedtuple`` or ``typing.NamedTuple`` made."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def is_namedtuple_instance(obj: object) -> bool:
    """True for a named tuple."""
    return is_namedtuple_class(type(obj))


def node_of(tree: Any) -> NodeDef | None:
    """Return how a value is taken apart; None for a leaf."""
    kind = type(tree)
    found = SUPPORTED_NODES.get(kind)
    if found is None and isinstance(tree, tuple) and is_namedtuple_class(kind):
        return _NAMED
    return found


def get_node_type(tree: Any) -> Any:
    """Return the type that a value is registered as; its own, for a leaf."""
    found = node_of(tree)
    return type(tree) if found is None else found.type


def tree_is_leaf(tree: Any, is_leaf: IsLeaf = None) -> bool:
    """True if ``tree`` is no registered container, or ``is_leaf`` says so."""
    return (is_leaf is not None and bool(is_leaf(tree))) or node_of(tree) is None


class TreeSpec:
    """The structure of a pytree: the type of a node, its context, and the children's structures.

    Attributes:
        type: The container's type; None for a leaf.
        context: What else it takes to make one: a dict's keys, a deque's length.
        children_specs: One structure for each child.
        num_leaves: Leaves below.
        num_nodes: Nodes below, this one and leaves included.
        num_children: Children.
    """

    __slots__ = ("children_specs", "context", "num_children", "num_leaves", "num_nodes", "type")

    def __init__(self, type: Any, context: Any, children_specs: list[TreeSpec]) -> None:
        self.type, self.context, self.children_specs = type, context, list(children_specs)
        self.num_children = len(self.children_specs)
        leaves = [c.num_leaves for c in self.children_specs]
        self.num_leaves: int = 1 if type is None else sum(leaves)
        self.num_nodes: int = 1 + sum(c.num_nodes for c in self.children_specs)

    def is_leaf(self) -> bool:
        """True for the structure of a leaf."""
        return self.type is None

    def children(self) -> list[TreeSpec]:
        """Return the children's structures."""
        return list(self.children_specs)

    def child(self, index: int) -> TreeSpec:
        """Return a child's structure."""
        return self.children_specs[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeSpec):
            return NotImplemented
        return (
            self.type is other.type
            and self.context == other.context
            and self.children_specs == other.children_specs
        )

    def __hash__(self) -> int:
        return hash((self.type, self.num_leaves, self.num_nodes))

    def __repr__(self) -> str:
        if self.is_leaf():
            return "*"
        inner = ", ".join(map(repr, self.children_specs))
        return f"TreeSpec({self.type.__name__}, {self.context!r}, [{inner}])"

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """Make the containers of this structure around leaves.

        Raises:
            ValueError: There are more or fewer of them than the structure has.
        """
        leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(
                f"treespec.unflatten(leaves): `leaves` has length {len(leaves)} but the spec "
                f"refers to a pytree that holds {self.num_leaves} items ({self})."
            )
        return self._made_of(iter(leaves))

    def _made_of(self, leaves: Iterator[Any]) -> Any:
        if self.is_leaf():
            return next(leaves)
        node = _NAMED if self.type is namedtuple else SUPPORTED_NODES[self.type]
        return node.unflatten_fn([c._made_of(leaves) for c in self.children_specs], self.context)

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """Take another tree apart as far as this structure goes: one subtree for each leaf.

        Raises:
            ValueError: It has another structure.
        """
        found: list[Any] = []
        self._take_apart(tree, found)
        return found

    def _take_apart(self, tree: Any, found: list[Any]) -> None:
        if self.is_leaf():
            found.append(tree)
            return
        node = node_of(tree)
        dicts = (dict, OrderedDict, defaultdict)  # any of them may stand for another
        kind = get_node_type(tree)
        if node is None or (kind is not self.type and not (kind in dicts and self.type in dicts)):
            raise ValueError(f"Node type mismatch; expected {self.type!r}, but got {kind!r}.")
        children, context = node.flatten_fn(tree)
        children = list(children)
        if kind in dicts:
            keys = self.context[1] if self.type is defaultdict else self.context
            missing, extra = set(keys) - set(tree), set(tree) - set(keys)
            if missing or extra:
                said = [f"missing key(s): {missing}"] if missing else []
                said += [f"extra key(s): {extra}"] if extra else []
                raise ValueError(f"Node keys mismatch; {'; '.join(said)}.")
            children = [tree[key] for key in keys]
        elif len(children) != self.num_children:
            raise ValueError(
                f"Node arity mismatch; expected {self.num_children}, but got {len(children)}."
            )
        elif kind is not deque and context != self.context:
            raise ValueError(
                f"Node context mismatch for custom node type {self.type!r}: expected "
                f"{self.context!r}, but got {context!r}."
            )
        for spec, child in zip(self.children_specs, children, strict=True):
            spec._take_apart(child, found)


class _OfLeaves(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, TreeSpec) and instance.is_leaf()


class LeafSpec(TreeSpec, metaclass=_OfLeaves):
    """The structure of a leaf."""

    __slots__ = ()

    def __new__(cls) -> Any:
        """Return the one there is."""
        return LEAF


LEAF = TreeSpec(None, None, [])
