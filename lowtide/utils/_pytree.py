"""Pytrees, where PyTorch keeps them: nested containers, their leaves and their structure."""

from collections import OrderedDict as _OrderedDict
from typing import Any

from lowtide.framework.interop import pytree as _tree
from lowtide.framework.interop import pytree_nodes as _nodes
from lowtide.framework.interop.pytree import arg_tree_leaves as arg_tree_leaves
from lowtide.framework.interop.pytree import map_only as map_only
from lowtide.framework.interop.pytree import tree_all as tree_all
from lowtide.framework.interop.pytree import tree_all_only as tree_all_only
from lowtide.framework.interop.pytree import tree_any as tree_any
from lowtide.framework.interop.pytree import tree_any_only as tree_any_only
from lowtide.framework.interop.pytree import tree_flatten as tree_flatten
from lowtide.framework.interop.pytree import tree_flatten_with_path as tree_flatten_with_path
from lowtide.framework.interop.pytree import tree_iter as tree_iter
from lowtide.framework.interop.pytree import tree_leaves as tree_leaves
from lowtide.framework.interop.pytree import tree_leaves_with_path as tree_leaves_with_path
from lowtide.framework.interop.pytree import tree_map as tree_map
from lowtide.framework.interop.pytree import tree_map_ as tree_map_
from lowtide.framework.interop.pytree import tree_map_only as tree_map_only
from lowtide.framework.interop.pytree import tree_map_only_ as tree_map_only_
from lowtide.framework.interop.pytree import tree_map_with_path as tree_map_with_path
from lowtide.framework.interop.pytree import tree_structure as tree_structure
from lowtide.framework.interop.pytree import tree_unflatten as tree_unflatten
from lowtide.framework.interop.pytree_nodes import SUPPORTED_NODES as SUPPORTED_NODES
from lowtide.framework.interop.pytree_nodes import GetAttrKey as GetAttrKey
from lowtide.framework.interop.pytree_nodes import KeyPath as KeyPath
from lowtide.framework.interop.pytree_nodes import LeafSpec as LeafSpec
from lowtide.framework.interop.pytree_nodes import MappingKey as MappingKey
from lowtide.framework.interop.pytree_nodes import NodeDef as NodeDef
from lowtide.framework.interop.pytree_nodes import SequenceKey as SequenceKey
from lowtide.framework.interop.pytree_nodes import TreeSpec as TreeSpec
from lowtide.framework.interop.pytree_nodes import is_namedtuple_class as is_namedtuple_class
from lowtide.framework.interop.pytree_nodes import is_namedtuple_instance as is_namedtuple_instance
from lowtide.framework.interop.pytree_nodes import key_get as key_get
from lowtide.framework.interop.pytree_nodes import keystr as keystr
from lowtide.framework.interop.pytree_nodes import register_dataclass as register_dataclass
from lowtide.framework.interop.pytree_nodes import register_pytree_node as register_pytree_node
from lowtide.framework.interop.pytree_nodes import tree_is_leaf as tree_is_leaf

PyTree = Any
Context = Any

_broadcast_to_and_flatten = _tree.broadcast_to_and_flatten
_deregister_pytree_node = _nodes.deregister_pytree_node
_get_node_type = _nodes.get_node_type
_is_leaf = _nodes.tree_is_leaf
_register_pytree_node = _nodes.register_with_texts

# How the containers of Python are taken apart, for classes that are registered as like them.
_tuple_flatten, _tuple_unflatten = SUPPORTED_NODES[tuple][1:3]
_list_flatten, _list_unflatten = SUPPORTED_NODES[list][1:3]
_dict_flatten, _dict_unflatten, _dict_flatten_with_keys = SUPPORTED_NODES[dict][1:4]
_ordereddict_flatten, _ordereddict_unflatten = SUPPORTED_NODES[_OrderedDict][1:3]
