"""In-place view ops: the tensor itself becomes another view (``squeeze_``, ``t_``).

The storage stays, the array, the spec and the place in the graph are exchanged; other views of the
same memory do not change.
"""

from __future__ import annotations

from ...autograd.view_history import check_writable
from ...interrupts import defer_interrupts
from ...modes import enable_grad, local
from ...tensor import wrap
from ..registry import function


def rebind_as_view(name, input, make):
    """Rebind a tensor to a view of itself, ``make(tensor)``; its version increases by one."""
    check_writable(input, name)
    old = wrap(input._array, input._spec, input._storage)
    old._node, old._index, old._requires_grad = input._node, input._index, input._requires_grad
    old._viewed, old._extra = input._viewed, None
    if old._node is None:
        out = make(old)
    else:  # also under no_grad: no value changes, and without a history the gradient would be lost
        with enable_grad():
            out = make(old)
    storage, state = input._storage, local.state
    with defer_interrupts():
        if state.recorder is not None:
            state.recorder.aliased_in_place(input)
        input._array, input._spec = out._array, out._spec
        storage.version += 1
        if input._node is None and input._requires_grad:
            return input  # a leaf, under no_grad: it stays one
        input._viewed = out._viewed
        input._viewed.version = storage.version
        input._node, input._index, input._requires_grad = out._node, out._index, out._requires_grad
    return input


@function(method=True, public=False)
def squeeze_(input, dim=None):
    """Remove dims of size 1 of this tensor in place."""
    return rebind_as_view("squeeze_", input, lambda x: x.squeeze(dim))


@function(method=True, public=False)
def unsqueeze_(input, dim):
    """Insert a dimension of size 1 into this tensor in place."""
    return rebind_as_view("unsqueeze_", input, lambda x: x.unsqueeze(dim))


@function(method=True, public=False)
def transpose_(input, dim0, dim1):
    """Swap two dimensions of this tensor in place."""
    return rebind_as_view("transpose_", input, lambda x: x.transpose(dim0, dim1))


@function(method=True, public=False)
def swapaxes_(input, axis0, axis1):
    """Swap two dimensions of this tensor in place (NumPy's name)."""
    return input.transpose_(axis0, axis1)


@function(method=True, public=False)
def swapdims_(input, dim0, dim1):
    """Swap two dimensions of this tensor in place."""
    return input.transpose_(dim0, dim1)


@function(method=True, public=False)
def t_(input):
    """Transpose this matrix in place."""
    return rebind_as_view("t_", input, lambda x: x.t())
