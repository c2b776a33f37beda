"""Ternary elementwise functions: addcmul, addcdiv, lerp."""

from __future__ import annotations

from ...dtypes import BOOL, COMPLEX, FLOAT, bool_
from ...kernels.common.elementwise import same_shape_float32
from ...kernels.common.wrapping import fitting
from ...spec import Spec
from ..old_calls import old_call
from ..registry import function, op
from ..signatures import broadcast, broadcast_shapes, common_dtype, per_element
from .arithmetic import check_factor, conjugate


def _triples(make):
    for a, b, c in (
        ((3, 4), (3, 4), (3, 4)),
        ((3, 1), (4,), ()),
        ((), (2, 3), (3,)),
        ((0,), (), (1,)),
    ):
        for value in (1, 0.5):
            yield (make(*a), make(*b), make(*c, low=0.5, high=2.0)), {"value": value}


def _check_value(name, common, value):
    if common.category == BOOL:
        raise NotImplementedError(
            f"\"{name}\" not implemented for 'Bool'. Convert one with .to(lowtide.int64)."
        )
    check_factor(name, "value", common, value)


def _add_triple(name, combine_name, doc):
    def kernel(xp, out, input, tensor1, tensor2, *, value=1):
        if value == 1:
            getattr(xp, combine_name)(tensor1, tensor2, out=out)
        else:  # in this order, which decides where it overflows
            xp.multiply(tensor1, fitting(value, out.dtype), out=out)
            getattr(xp, combine_name)(out, tensor2, out=out)
        xp.add(out, input, out=out)

    def infer(input, tensor1, tensor2, *, value):
        spec = broadcast(input, tensor1, tensor2, op_name=name)
        _check_value(name, spec.dtype, value)
        return spec

    kernel.__doc__ = doc
    made = op(
        name=name,
        infer=infer,
        promote="float" if name == "addcdiv" else "arith",
        flops=per_element(3),
        samples=_triples,
        elementwise=True,
        old=("value",),
    )(kernel)

    def in_place(self, tensor1, tensor2, *_old, value=1):
        if _old:
            return old_call(in_place, ("value",), (self, tensor1, tensor2, *_old), value=value)
        common = self.dtype
        types = getattr(tensor1, "dtype", common), getattr(tensor2, "dtype", common)
        if not common is types[0] is types[1]:
            common = common_dtype(self, tensor1, tensor2)  # in their own the term may not fit
            if common not in types:
                tensor1 = tensor1.to(common)
        term = tensor1 * tensor2 if name == "addcmul" else tensor1 / tensor2
        if common.category < FLOAT or isinstance(value, complex):
            _check_value(name, common_dtype(self, term), value)
        return self._add_(term if value == 1 else term * value)

    in_place.__name__, in_place.__doc__ = f"{name}_", f"In-place twin of ``{name}``."
    function(method=True)(in_place)

    @made.vjp("input")
    def _(g):
        return g

    return made


def scaled(g, value):
    """A gradient times an attribute that is mostly 1."""
    return g if value == 1 else g * value


addcmul = _add_triple(
    "addcmul", "multiply", "Add a scaled product: ``input + value * tensor1 * tensor2``."
)
addcdiv = _add_triple(
    "addcdiv", "true_divide", "Add a scaled quotient: ``input + value * tensor1 / tensor2``."
)


@addcmul.vjp("tensor1")
def _(g, tensor2, value):
    return scaled(g * conjugate(tensor2), conjugate(value))


@addcmul.vjp("tensor2")
def _(g, tensor1, value):
    return scaled(g * conjugate(tensor1), conjugate(value))


@addcdiv.vjp("tensor1")
def _(g, tensor2, value):
    return scaled(g / conjugate(tensor2), conjugate(value))


@addcdiv.vjp("tensor2")
def _(g, tensor1, tensor2, value):
    return scaled(-g * conjugate(tensor1 / (tensor2 * tensor2)), conjugate(value))


def _lerps(make):
    for a, b in (((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 3)), ((0, 3), (1, 3))):
        yield (make(*a), make(*b), 0.3), {}
        yield (make(*a), make(*b), 0.8), {}
        yield (make(*a), make(*b), make(*b)), {}


def _lerp_infer(input, end, weight):
    if input.dtype.category < FLOAT:
        raise NotImplementedError(
            f"\"lerp\" not implemented for '{input.dtype.name}'. Convert it with .float()."
        )
    if isinstance(weight, Spec):
        wrong = weight.ndim and weight.dtype is not input.dtype
    else:
        wrong = weight.category == COMPLEX != input.dtype.category
    if wrong:
        raise RuntimeError(
            f"lerp: expected dtype {input.dtype} for `weight`; got {weight!r}. Convert it."
        )
    shape = broadcast_shapes("lerp", input.shape, end.shape, weight.shape)
    out = Spec(shape, input.dtype)
    of_weights = out if isinstance(weight, Spec) and weight.ndim else out.like(())
    return out, out, of_weights, of_weights.like(dtype=bool_)


@op(
    infer=_lerp_infer,
    scratch=("rest", "share", "late"),
    promote=("same", ("input", "end")),
    flops=per_element(3),
    inplace="lerp_",
    samples=_lerps,
    tensors=("input", "end"),
    elementwise=True,
)
def lerp(xp, out, rest, share, late, input, end, weight):
    """Interpolate linearly: ``input + weight * (end - input)``; exactly ``end`` at weight 1.

    From weights of 0.5 on it counts from the end, ``end - (1 - weight) * (end - input)``.
    """
    xp.subtract(end, input, out=rest)
    if getattr(weight, "ndim", 0):
        xp.absolute(weight, out=share)
        xp.greater_equal(share, 0.5, out=late)
        xp.subtract(weight, late, out=share)
        xp.multiply(rest, share, out=rest)
        if out is not input:
            xp.copyto(out, input)
        xp.copyto(out, end, where=late)
        xp.add(out, rest, out=out)
        return
    from_end = bool(abs(weight) >= 0.5)
    xp.multiply(rest, weight - 1 if from_end else weight, out=rest, casting="same_kind")
    xp.add(end if from_end else input, rest, out=out)


def _of_arrays(input, end, weight):
    return isinstance(weight, Spec) and same_shape_float32(input, end, weight)


@lerp.loop(when=_of_arrays)
def _(input, end, weight):
    late = abs(weight) >= 0.5
    share = weight - 1 if late else weight
    return (end if late else input) + share * (end - input)


@lerp.vjp("input")
def _(g, weight):
    return g * conjugate(1 - weight)


@lerp.vjp("end")
def _(g, weight):
    return g * conjugate(weight)


@lerp.vjp("weight")
def _(g, input, end):
    return g * conjugate(end - input)
