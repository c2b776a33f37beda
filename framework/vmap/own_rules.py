"""Rules of single ops, made of other calls: matrix products, convolutions, indexing.

Those that join levels with a dim of the op (channels of a convolution, rows of a table) work on the
values of all samples; an operand that samples share is repeated by ``batched.real``, which keeps
their gradients apart where that is asked for.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ..autograd.engine import ones_of, zeros_of
from ..dtypes import int64
from ..ops.attention.sdpa import ROWS, ROWS_FIRST
from ..ops.conversion.copy import _copy as copied
from ..ops.convolution.primitives import _conv, _conv_input_grad, _conv_weight_grad
from ..ops.creation.ranges import arange
from ..ops.embedding.embedding import _embedding, _embedding_grad
from ..ops.indexing.index_put import _index, _index_put, _index_put_add, _index_sum
from ..ops.indexing.where import _where
from ..ops.linalg.linear import linear
from ..ops.linalg.matmul import matmul
from ..ops.manipulation.cat import cat
from ..ops.registry import OPS
from ..tensor import Tensor
from .batched import batched, real
from .rules import by_dims, own, rows

# Matrix products


@own("matmul")
def _(call: Any) -> Any:
    a, b = call.inputs
    m, n = (s.ndim for s in call.specs)
    if not (m and n):
        return NotImplemented
    if call.unbatched(1) and n <= 2:  # one product over the rows of all samples
        return call.run([call.front(0, expand=False), b])
    if call.unbatched(0) and m == 2 and n == 1:
        return matmul(b, a.mT)
    if n == 1:  # a vector is a column of one
        return matmul(a, b.unsqueeze(-1)).squeeze(-1)
    if m == 1:
        return matmul(a.unsqueeze(0), b).squeeze(-2)
    ndim = max(m, n)
    return call.run([call.front(0, ndim, False), call.front(1, ndim, False)])


@own("linear")
def _(call: Any) -> Any:
    input, weight, bias = call.inputs
    if call.unbatched(1) and call.unbatched(2):
        return call.run([call.front(0), weight, bias])
    if call.unbatched(1):
        return linear(input, weight, None) + bias
    out = matmul(input, weight.mT if weight.ndim == 2 else weight)
    return out if bias is None else out + bias


@own("_addmatmul")
def _(call: Any) -> Any:
    input, a, b = call.inputs
    beta, alpha = call.attributes["beta"], call.attributes["alpha"]
    out = matmul(a, b)
    out = out if alpha == 1 else out * alpha
    return out if beta == 0 else out + (input if beta == 1 else input * beta)


# Convolutions: samples' rows are rows, samples' weights are groups of channels


def _as_channels(t: Tensor, call: Any, rows: int) -> Any:
    """All samples' channels as channels: (rows, samples * channels, ...)."""
    value = real(t, call.levels)
    lead = len(call.levels)
    shape = t.shape
    order = (lead, *range(lead), *range(lead + 1, value.ndim))
    return value.permute(*order).reshape((rows, prod(call.sizes) * shape[1], *shape[2:]))


def _from_channels(value: Any, call: Any) -> Any:
    rows, channels, *rest = value.shape
    lead = len(call.levels)
    count = prod(call.sizes)
    apart = value.view((rows, *call.sizes, channels // count if count else channels, *rest))
    order = (*range(1, lead + 1), 0, *range(lead + 1, apart.ndim))
    return batched(apart.permute(*order), call.levels)


def _as_filters(t: Tensor, call: Any) -> Any:
    """All samples' weights as one: (samples * out channels, ...)."""
    return real(t, call.levels).reshape((prod(call.sizes) * t.shape[0], *t.shape[1:]))


def _grouped(call: Any) -> dict[str, Any]:
    return {**call.attributes, "groups": call.attributes["groups"] * prod(call.sizes)}


@own("_conv")
def _(call: Any) -> Any:
    input, weight, bias = call.inputs
    if call.unbatched(1) and call.unbatched(2):
        return call.run([call.rows(0), weight, bias])
    if not prod(call.sizes):
        return NotImplemented
    if call.unbatched(1):
        out = _conv(input, weight, None, **call.attributes)
    else:
        planes = _as_channels(input, call, input.shape[0])
        out = _from_channels(_conv(planes, _as_filters(weight, call), None, **_grouped(call)), call)
    if bias is not None:
        out = out + bias.view((-1, *(1,) * (input.ndim - 2)))
    return out


@own("_conv_input_grad")
def _(call: Any) -> Any:
    grad, weight = call.inputs
    if call.unbatched(1):
        return call.run([call.rows(0), weight])
    if not prod(call.sizes):
        return NotImplemented
    planes = _as_channels(grad, call, grad.shape[0])
    made = _conv_input_grad(planes, _as_filters(weight, call), **_grouped(call))
    return _from_channels(made, call)


@own("_conv_weight_grad")
def _(call: Any) -> Any:
    input, grad = call.inputs
    if not prod(call.sizes):
        return NotImplemented
    made = _conv_weight_grad(
        _as_channels(input, call, input.shape[0]),
        _as_channels(grad, call, grad.shape[0]),
        **_grouped(call),
    )
    return call.seen(made)


# Normalization: rows of all samples are rows, and their weights are applied by themselves


@own("_layer_norm", "_group_norm", "_instance_norm", "_rms_norm", "_batch_norm")
def _(call: Any) -> Any:
    input, *given = call.inputs
    shape, affine = call.attributes["shape"], call.attributes["affine"]
    if all(call.unbatched(k) for k in range(1, len(call.inputs))) and call.op.name != "_batch_norm":
        value = call.front(0)
        merged = (prod(call.sizes) * len(input), *input.shape[1:])
        changed = {"shape": (prod(call.sizes) * shape[0], *shape[1:])}
        return call.run([value.reshape(merged), *given], changed)
    if any(w is not None for w in given):
        found = call.op.function(input, *[None] * len(given), **call.attributes)
        out, *rest = found if isinstance(found, tuple) else (found,)
        out = out.reshape(shape)
        weight, bias = (*given, None)[:2]
        out = out if weight is None else out * weight.reshape(affine)
        out = out if bias is None else out + bias.reshape(affine)
        out = out.reshape(input.shape)
        return (out, *rest) if rest else out
    rows, channels, *_ = shape
    if not prod(call.sizes):
        return NotImplemented
    planes = _as_channels(input.reshape(shape), call, rows)
    wide = (1, channels * prod(call.sizes), *affine[2:])
    changed = {**call.attributes, "shape": tuple(planes.shape), "affine": wide}
    out, *rest = call.op.function(planes, None, None, **changed)
    out = _from_channels(out, call).reshape(input.shape)
    return (out, *[call.seen(r, k) for k, r in enumerate(rest, 1)])


@own("_norm_grad")
def _(call: Any) -> Any:
    grad, input, weight, mean, rstd = call.inputs
    shape, axes, affine = (call.attributes[n] for n in ("shape", "axes", "affine"))
    if not prod(shape):
        return NotImplemented
    g, x = grad.reshape(shape), input.reshape(shape)
    x = (x if mean is None else x - mean) * rstd
    over = [d for d, n in enumerate(affine) if n != shape[d] or n == 1]
    db = g.sum(over).reshape(-1)
    if weight is None:
        dw = zeros_of(call.plan.results[1])
    else:
        dw = (g * x).sum(over).reshape(-1)
        g = g * weight.reshape(affine)
    dx = g - x * (g * x).mean(axes, True)
    if mean is not None:
        dx = dx - g.mean(axes, True)
    dx = (dx * rstd).reshape(input.shape)
    return tuple(t.to(r.dtype) for t, r in zip((dx, dw, db), call.plan.results, strict=False))


# Reductions and orders of all elements, where no dim is named


@own("_argmax", "_argmin", "_all", "_any", "_count_nonzero", "_norm", "_amax", "_amin")
def _(call: Any) -> Any:
    if call.attributes["dim"] is not None:
        return by_dims(call)
    x = call.inputs[0].reshape(-1)
    flat = {**call.attributes, "dim": 0 if call.op.name.startswith("_arg") else (0,)}
    flat.pop("keepdim", None)
    keep = {"keepdim": False} if "keepdim" in call.attributes else {}
    out = call.op.function(x, **flat, **keep)
    return out.reshape(call.plan.results[0].shape)


# Views and copies with one entry per dim


@own("_expand")
def _(call: Any) -> Any:
    shape = call.attributes["shape"]
    return call.run([call.front(0, len(shape))], {"shape": (*call.sizes, *shape)})


@own("_slice", "_slice_amid_zeros")
def _(call: Any) -> Any:
    changed = {"key": (*[(0, n, 1) for n in call.sizes], *call.attributes["key"])}
    if "shape" in call.attributes:
        changed["shape"] = (*call.sizes, *call.attributes["shape"])
    return call.run([call.front(0)], changed)


@own("_as_strided")
def _(call: Any) -> Any:
    value, changed = call.front(0), dict(call.attributes)
    steps = tuple(value.stride())
    changed["size"] = (*call.sizes, *changed["size"])
    changed["stride"] = (*steps[: len(call.levels)], *changed["stride"])
    return call.run([value], {**changed, "geometry": steps})


@own("_pad", "_pad_border", "_pad_border_grad")
def _(call: Any) -> Any:
    none = (0,) * len(call.levels)
    before, after = call.attributes["before"], call.attributes["after"]
    changed = {"before": (*none, *before), "after": (*none, *after)}
    return call.run([call.front(0)], changed)


@own("_repeat")
def _(call: Any) -> Any:
    counts = call.attributes["counts"]
    ones = (1,) * len(call.levels)
    return call.run([call.front(0, len(counts))], {"counts": (*ones, *counts)})


@own("_permute")
def _(call: Any) -> Any:
    lead = len(call.levels)
    dims = (*range(lead), *[d + lead for d in call.attributes["dims"]])
    return call.run([call.front(0)], {"dims": dims})


@own("_cat")
def _(call: Any) -> Any:
    # A vector of no elements joins anything; with levels before its dims it would not.
    full = [i for i, s in enumerate(call.specs) if tuple(s.shape) != (0,)]
    if len(full) < len(call.specs) and full:
        found = call.op.function(*[call.inputs[i] for i in full], **call.attributes)
        return found.to(call.plan.results[0].dtype)
    return by_dims(call)


@own("_stack")
def _(call: Any) -> Any:
    dim = call.attributes["dim"] + len(call.levels)
    return call.run([call.front(i) for i in range(len(call.inputs))], {"dim": dim})


# Indexing: the levels are further indices


def _index_of_all(call: Any, index: Any) -> tuple[Any, tuple[int, ...]]:
    """Indices into the values of all samples, levels' positions first: (count, *sizes, *shape)."""
    lead = len(call.levels)
    value = real(index, call.levels)  # (*sizes, count, *shape)
    value = value.movedim(lead, 0)
    rest = value.ndim - 1 - lead
    positions = []
    for k, n in enumerate(call.sizes):
        places = arange(n, dtype=value.dtype, device=value.device)
        places = places.view((*(1,) * k, n, *(1,) * (lead - 1 - k + rest)))
        positions.append(places.expand(value.shape[1:]).unsqueeze(0))

    dims = tuple([d + lead for d in call.attributes["dims"]])
    return cat([*positions, value]), (*range(lead), *dims)


@own("_index")
def _(call: Any) -> Any:
    input, index = call.inputs
    lead, at = len(call.levels), call.attributes["at"]
    dims = tuple([d + lead for d in call.attributes["dims"]])
    if call.unbatched(1):
        return call.run([call.front(0), index], {"dims": dims, "at": at + lead})
    every, dims = _index_of_all(call, index)
    found = _index(real(input, call.levels), every, dims, 0)
    return call.seen(_moved(found, lead, index.ndim - 1, at))


def _moved(value: Any, lead: int, count: int, at: int) -> Any:
    # The dims of the indices, behind the levels, to their place.
    source = range(lead, lead + count)
    return value.movedim(tuple(source), tuple([k + at for k in source])) if at and count else value


def _put(put: Any) -> Any:
    def rule(call: Any) -> Any:
        input, index, values = call.inputs
        lead, at = len(call.levels), call.attributes["at"]
        target = real(input, call.levels)
        every, dims = _index_of_all(call, index)
        if isinstance(values, Tensor):
            count = index.ndim - 1
            ndim = input.ndim - len(call.attributes["dims"]) + count
            v = real(values, call.levels)
            missing = ndim - values.ndim
            v = v.reshape((*call.sizes, *(1,) * missing, *values.shape))
            if at and count:
                source = tuple(range(lead + at, lead + at + count))
                v = v.movedim(source, tuple([k - at for k in source]))
            values = v
        return batched(put(target, every, values, dims, 0), call.levels)

    return rule


own("_index_put")(_put(_index_put))
own("_index_put_add")(_put(_index_put_add))


@own("_embedding")
def _(call: Any) -> Any:
    weight, index = call.inputs
    if call.unbatched(0):
        return call.run([weight, call.front(1)])
    if call.attributes["padding"] is not None:
        return NotImplemented
    rows, features = weight.shape
    table = real(weight, call.levels).reshape((prod(call.sizes) * rows, features))
    return call.seen(_embedding(table, _shifted(call, index, rows), None))


@own("_embedding_grad")
def _(call: Any) -> Any:
    grad, index = call.inputs
    rows, padding = call.attributes["rows"], call.attributes["padding"]
    if padding is not None:
        grad = grad.masked_fill((index == padding).unsqueeze(-1), 0)
    count = prod(call.sizes)
    if not count:
        return NotImplemented
    found = _embedding_grad(
        real(grad, call.levels), _shifted(call, index, rows), count * rows, None
    )
    return call.seen(found)


def _shifted(call: Any, index: Any, rows: int) -> Any:
    # Each sample's indices point into a table of its own.
    every = real(index, call.levels)
    steps = arange(prod(call.sizes), dtype=int64, device=index.device) * rows
    steps = steps.view((*call.sizes, *(1,) * index.ndim))
    return every + (steps if every.dtype is int64 else steps.to(every.dtype))


@own("_index_sum")
def _(call: Any) -> Any:
    input, index = call.inputs
    lead, at = len(call.levels), call.attributes["at"]
    shape = (*call.sizes, *call.attributes["shape"])
    dims = tuple([d + lead for d in call.attributes["dims"]])
    if call.unbatched(1):
        return call.run([call.front(0), index], {"shape": shape, "dims": dims, "at": at + lead})
    every, dims = _index_of_all(call, index)
    count = index.ndim - 1
    g = real(input, call.levels)
    if at and count:
        source = tuple(range(lead + at, lead + at + count))
        g = g.movedim(source, tuple([k - at for k in source]))
    return batched(_index_sum(g, every, shape, dims, 0), call.levels)


@own("_searchsorted")
def _(call: Any) -> Any:
    sorted_, input = call.inputs
    if call.unbatched(0) and sorted_.ndim == 1:
        return call.run([sorted_, call.front(1)])
    if sorted_.ndim == 1 and input.ndim != 1:
        found = call.op.function(sorted_, input.reshape(-1), **call.attributes)
        return found.reshape(input.shape)
    return call.run([call.front(0), call.front(1)])


# Losses


@own("_cross_entropy", "_nll")
def _(call: Any) -> Any:
    input, target, *rest = call.inputs
    if input.ndim > 1:
        return rows(call)
    found = call.op.function(input.unsqueeze(0), target.unsqueeze(0), *rest, **call.attributes)
    return found.squeeze(0)


@own("_nll_grad")
def _(call: Any) -> Any:
    if not call.unbatched(2):
        return NotImplemented
    shape = call.attributes["shape"]
    if len(shape) == 1:
        operands = [call.front(i).reshape(-1) for i in (0, 1)]
        return call.run([*operands, call.inputs[2]], {"shape": (prod(call.sizes), *shape)})
    changed = {"shape": (prod(call.sizes) * shape[0], *shape[1:])}
    return call.run([call.rows(0), call.rows(1), call.inputs[2]], changed)


@own(*[n for n in OPS if n.endswith("_total")])
def _(call: Any) -> Any:
    attributes = dict(call.attributes)
    divisor = attributes.pop("divisor")
    losses = OPS[call.op.name.removesuffix("_total")].function(*call.inputs, **attributes)
    total = losses.sum()
    return total if divisor == 1 else total / divisor


# Bits of neighbours in a byte: those of all samples together, seen by the node alone


@own(*[n for n, op in OPS.items() if op.returns == ("out", "bitmask") and len(op.inputs) == 1])
def _(call: Any) -> Any:
    out, bitmask = call.op.function(call.front(0), **call.attributes)
    return batched(out, call.levels), bitmask


@own("_absolute_error_with_bitmask")
def _(call: Any) -> Any:
    return OPS["_absolute_error"].function(*call.inputs), None, None


@own("_select_by_mask")
def _(call: Any) -> Any:
    grad, bitmask = call.inputs
    if not call.unbatched(1):
        return NotImplemented
    ones = ones_of(call.specs[0])
    inside, outside = call.attributes["inside"], call.attributes["outside"]
    mask = call.op.function(ones, bitmask, inside=1.0, outside=0.0) != 0
    return _where(mask, grad * inside, grad * outside)


@own("_sign_by_masks")
def _(call: Any) -> Any:
    grad, *masks = call.inputs
    if not (call.unbatched(1) and call.unbatched(2)):
        return NotImplemented
    sign = call.op.function(ones_of(call.specs[0]), *masks)
    return (grad * sign).masked_fill(sign == 0, 0)


# The rest


@own("_fill")
def _(call: Any) -> Any:
    return copied(*call.inputs)


@own("masked_fill")
def _(call: Any) -> Any:
    input, mask, value = call.inputs
    if isinstance(value, Tensor) and not call.unbatched(2):
        return _where(mask, value.to(input.dtype), input)
    ndim = max(input.ndim, mask.ndim)
    return call.run([call.front(0, ndim), call.front(1, ndim), value])


@own("_prod")
def _(call: Any) -> Any:
    dim = call.attributes["dim"]
    if len(dim) < 2:
        return by_dims(call)
    flat = {**call.attributes, "dim": (0,), "keepdim": False}
    out = call.op.function(call.inputs[0].reshape(-1), **flat)
    return out.reshape(call.plan.results[0].shape)


@own("_prelu", "_prelu_backward")
def _(call: Any) -> Any:
    *arrays, weight = call.inputs
    if call.unbatched(len(arrays)):  # its channels are the dim after the rows
        ndim = arrays[-1].ndim
        each = isinstance(weight, Tensor) and weight.ndim == ndim and weight.numel() > 1
        if each or not ndim:  # a weight for each element
            return call.run([*[call.front(k, max(ndim, 1)) for k in range(len(arrays))], weight])
        return call.run([*[call.rows(k) for k in range(len(arrays))], weight])
    return _where(arrays[-1] > 0, arrays[0], arrays[0] * weight)


@own("_bce_with_pos_weight", "_bce_with_pos_weight_backward")
def _(call: Any) -> Any:
    last = len(call.inputs) - 1
    if not call.unbatched(last):
        return NotImplemented
    ndim = max(s.ndim for s in call.specs)
    operands = [call.front(k, ndim) for k in range(last)]
    # Its compiled loops take no operand that is repeated by stride 0, but for the gradient.
    operands = [x.contiguous() if isinstance(x, Tensor) else x for x in operands]
    return call.run([*operands, call.inputs[last]])


@own("_prelu_weight_backward")
def _(call: Any) -> Any:
    grad, input = call.inputs
    return (grad * input).masked_fill(input > 0, 0).sum_to_size(call.attributes["shape"])


@own("_pinv")
def _(call: Any) -> Any:
    ndim = call.specs[0].ndim - 2
    return call.run([call.front(0), call.front(1, ndim), call.front(2, ndim)])


@own("_trilinear_weight")
def _(call: Any) -> Any:
    a, b, c = call.inputs
    pairs = (b.unsqueeze(2) * c.unsqueeze(1)).reshape(len(b), b.shape[1] * c.shape[1])
    return matmul(a.mT, pairs).reshape(call.plan.results[0].shape)


@own("_attention", "_attention_grad")
def _(call: Any) -> Any:
    k = call.names.index("attn_mask")
    mask = call.inputs[k]
    if call.attributes.get("order") == ROWS_FIRST:  # rows of samples come first here
        return call.op.function(*call.inputs, **{**call.attributes, "order": ROWS}).transpose(0, 1)
    shared = mask is None or (call.unbatched(k) and (mask.ndim < 4 or len(mask) == 1))
    if not shared:
        if call.attributes.get("bias"):
            return NotImplemented  # its gradient has the mask's shape
        count = call.specs[call.names.index("query")].shape[0]
        shape = (1,) * (4 - mask.ndim) + tuple(mask.shape)
        if call.unbatched(k) or shape != tuple(mask.shape) or shape[0] != count:
            mask = batched(real(mask.expand((count, *shape[1:])), call.levels), call.levels)
            inputs = (*call.inputs[:k], mask, *call.inputs[k + 1 :])
            return call.op.function(*inputs, **call.attributes)
    elif mask is not None and call.attributes.get("bias"):
        return NotImplemented
    return call.run([mask if i == k and shared else call.rows(i) for i in range(len(call.inputs))])
