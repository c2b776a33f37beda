"""Pytrees: taken apart and put together, by structure and by path."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

import lowtide as lt
from lowtide.utils import _pytree as tree


class Point(NamedTuple):
    x: Any
    y: Any


class Pair:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


NESTED: Any = {
    "a": [1, (2, None)],
    "b": OrderedDict([("z", 3), ("y", Point(4, 5))]),
    "c": deque([6, 7], maxlen=3),
    "d": defaultdict(list, {"k": 8}),
    "e": (),
}


def test_leaves_come_in_order_and_none_is_one() -> None:
    assert tree.tree_leaves(NESTED) == [1, 2, None, 3, 4, 5, 6, 7, 8]
    assert list(tree.tree_iter(NESTED)) == tree.tree_leaves(NESTED)
    assert tree.tree_leaves(3) == [3]


def test_a_tree_is_made_again() -> None:
    leaves, spec = tree.tree_flatten(NESTED)
    again = tree.tree_unflatten(leaves, spec)
    assert again == NESTED
    assert [type(v) for v in again.values()] == [type(v) for v in NESTED.values()]
    assert again["c"].maxlen == 3
    assert again["d"].default_factory is list
    assert isinstance(again["b"]["y"], Point)
    assert (spec.num_leaves, spec.num_nodes, spec.num_children) == (9, 17, 5)


def test_structures_compare() -> None:
    assert tree.tree_structure([1, 2]) == tree.tree_structure([3, 4])
    assert tree.tree_structure([1, 2]) != tree.tree_structure((1, 2))
    assert tree.tree_structure({"a": 1}) != tree.tree_structure({"b": 1})
    assert tree.tree_structure(1) == tree.LeafSpec()
    assert isinstance(tree.tree_structure(1), tree.LeafSpec)
    assert not isinstance(tree.tree_structure([1]), tree.LeafSpec)
    assert len({tree.tree_structure([1]), tree.tree_structure([2])}) == 1
    assert repr(tree.tree_structure({"a": [1, 2]})) == (
        "TreeSpec(dict, ['a'], [TreeSpec(list, None, [*, *])])"
    )


def test_leaves_are_mapped_with_those_of_other_trees() -> None:
    assert tree.tree_map(lambda a, b: a + b, {"a": [1, 2]}, {"a": [10, 20]}) == {"a": [11, 22]}
    assert tree.tree_map(len, [[1], [2, 3]], is_leaf=lambda x: x != [[1], [2, 3]]) == [1, 2]
    assert tree.tree_map(lambda a, rest: rest, (1, 2), ("x", [3])) == ("x", [3])
    assert tree.tree_map(lambda a, b: a - b, {"a": 3, "b": 5}, {"b": 1, "a": 1}) == {"a": 2, "b": 4}


def test_some_leaves_are_mapped() -> None:
    assert tree.tree_map_only(int, lambda x: -x, [1, "a", 2.0]) == [-1, "a", 2.0]
    assert tree.tree_map_only((int, float), lambda x: -x, [1, "a", 2.0]) == [-1, "a", -2.0]
    assert tree.tree_map_only(lambda x: x == 1, lambda x: 9, [1, 2]) == [9, 2]
    met: list[int] = []
    given = [1, "a"]
    assert tree.tree_map_only_(int, met.append, given) is given
    assert met == [1]
    t = {"w": lt.ones(2), "n": 3}
    doubled = tree.tree_map_only(lt.Tensor, lambda x: x * 2, t)
    assert doubled["w"].tolist() == [2.0, 2.0]


def test_questions_to_all_leaves() -> None:
    assert tree.tree_all(lambda x: x > 0, [1, (2,)])
    assert not tree.tree_any(lambda x: x > 2, [1, (2,)])
    assert tree.tree_all_only(int, lambda x: x > 0, [1, "a"])
    assert tree.tree_any_only(str, lambda x: x == "a", [1, "a"])
    assert tree.arg_tree_leaves([1], a=(2, 3)) == [1, 2, 3]


def test_leaves_have_paths() -> None:
    pairs, spec = tree.tree_flatten_with_path(NESTED)
    assert [tree.keystr(path) for path, _ in pairs] == [
        "['a'][0]",
        "['a'][1][0]",
        "['a'][1][1]",
        "['b']['z']",
        "['b']['y'].x",
        "['b']['y'].y",
        "['c'][0]",
        "['c'][1]",
        "['d']['k']",
    ]
    assert [tree.key_get(NESTED, path) for path, _ in pairs] == [leaf for _, leaf in pairs]
    assert spec == tree.tree_structure(NESTED)
    named = tree.tree_map_with_path(lambda path, x, y: (tree.keystr(path), x, y), [1], [2])
    assert named == [("[0]", 1, 2)]


def test_other_containers_are_registered() -> None:
    tree.register_pytree_node(
        Pair, lambda p: ([p.first, p.second], None), lambda children, _: Pair(*children)
    )
    try:
        mapped = tree.tree_map(lambda x: x + 1, [Pair(1, (2,))])
        assert (mapped[0].first, mapped[0].second) == (2, (3,))
        assert tree.tree_leaves_with_path(Pair(1, 2))[1] == ((tree.SequenceKey(1),), 2)
        with pytest.raises(ValueError, match="is already registered as pytree node"):
            tree.register_pytree_node(Pair, None, None)  # type: ignore[arg-type]
    finally:
        tree._deregister_pytree_node(Pair)
    assert tree.tree_is_leaf(Pair(1, 2))


def test_dataclasses_are_registered() -> None:
    @dataclass
    class Batch:
        x: Any
        note: str = "default"

    tree.register_dataclass(Batch, drop_field_names=["note"])
    try:
        mapped = tree.tree_map(lambda x: x * 2, Batch(3, "lost"))
        assert mapped == Batch(6, "default")
        (path,) = [tree.keystr(p) for p, _ in tree.tree_leaves_with_path(Batch(1))]
        assert path == ".x"
    finally:
        tree._deregister_pytree_node(Batch)
    with pytest.raises(ValueError, match="takes a dataclass"):
        tree.register_dataclass(Pair)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ([1, 2, 3], "Node arity mismatch; expected 2, but got 3."),
        ((1, 2), "Node type mismatch"),
        (5, "Node type mismatch"),
    ],
)
def test_other_structures_are_refused(other: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tree.tree_map(lambda a, b: a, [1, 2], other)


def test_wrong_numbers_and_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="has length 1 but the spec refers to a pytree that holds"):
        tree.tree_unflatten([1], tree.tree_structure([1, 2]))
    with pytest.raises(TypeError, match="Expected `treespec` to be instance of TreeSpec"):
        tree.tree_unflatten([1], [1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"missing key\(s\): \{'a'\}; extra key\(s\): \{'b'\}"):
        tree.tree_map(lambda a, b: a, {"a": 1}, {"b": 2})


def test_a_leaf_is_broadcast_to_a_structure() -> None:
    spec = tree.tree_structure([1, (2, 3)])
    assert tree._broadcast_to_and_flatten(0, spec) == [0, 0, 0]
    assert tree._broadcast_to_and_flatten([0, 1], spec) == [0, 1, 1]
    assert tree._broadcast_to_and_flatten((0, 1), spec) is None
