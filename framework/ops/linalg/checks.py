"""Declarations, checks and error messages that linear algebra ops share.

The array library fails a whole stack for one bad matrix. ``attempted`` finds out which, so that
the ``_ex`` forms can say so in a tensor, and ``raise_first`` in a :class:`~..errors.LinAlgError`.
"""

from __future__ import annotations

import functools
import inspect
from collections import namedtuple
from contextlib import nullcontext
from math import prod

from ...dtypes import FLOAT
from ...errors import LinAlgError
from ...memory.short_traceback import shorten
from ..creation.ranges import eye
from ..inplace import write_out
from ..registry import function


def named(name, *fields):
    """Return PyTorch's named results: a tuple with fields."""
    return namedtuple(name, fields)


def linear_algebra(**options):
    """Declare a linear algebra composition, with ``out=`` support."""

    def declare(f):
        @functools.wraps(f)
        def g(*args, out=None, **kwargs):
            try:
                if out is None:
                    return f(*args, **kwargs)
                inputs = (*args, *kwargs.values())
                return write_out(f.__name__, functools.partial(f, *args, **kwargs), inputs, out)
            except MemoryError as error:  # these call one another
                shorten(error)
                raise

        old = inspect.signature(f)
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [*old.parameters.values(), inspect.Parameter("out", kind, default=None)]
        g.__signature__ = old.replace(parameters=parameters)
        return function(**{"public": False, **options})(g)

    return declare


def check_matrices(name, *tensors, letters="AB"):
    """Raise an error unless a tensor is a stack of floating or complex matrices.

    Raises:
        RuntimeError: Fewer than two dimensions, or integers.
        TypeError: No Tensor.
    """
    for letter, x in zip(letters, tensors, strict=False):
        if not hasattr(x, "dtype"):
            raise TypeError(
                f"{name}: argument '{letter}' must be Tensor, not {type(x).__name__}. Convert it "
                "with lowtide.tensor()."
            )
        if x.ndim < 2:
            raise RuntimeError(
                f"{name}: The input tensor {letter} must have at least 2 dimensions; got shape "
                f"{tuple(x.shape)}. Add one with .unsqueeze()."
            )
        check_float(name, x)


def check_float(name, x):
    """Raise an error for integers.

    Raises:
        RuntimeError: They are.
    """
    if x.dtype.category < FLOAT:
        raise RuntimeError(
            f"{name}: Expected a floating point or complex tensor as input. Got {x.dtype}. "
            "Convert it with .to(lowtide.float32)."
        )


def check_square(name, x, letter="A"):
    """Raise an error unless a tensor is a stack of square matrices.

    Raises:
        RuntimeError: It is not.
    """
    check_matrices(name, x, letters=letter)
    m, n = x.shape[-2:]
    if m != n:
        raise RuntimeError(
            f"{name}: {letter} must be batches of square matrices, but they are {m} by {n} "
            f"matrices. Pass square ones, or use linalg.lstsq or linalg.pinv."
        )


def strict(xp):
    """A context in which the array module raises where a factorization fails."""
    if xp.__name__ == "cupy":
        from cupyx import errstate

        return errstate(linalg="raise")
    return nullcontext()


def converging(xp, name, compute, *args, **kwargs):
    """Call an iterative routine of the array module, and report non-convergence.

    Raises:
        LinAlgError: It does not end.
    """
    try:
        return compute(*args, **kwargs)
    except xp.linalg.LinAlgError:
        raise LinAlgError(
            f"{name}: The algorithm failed to converge: the input matrix contains non-finite "
            "values, or is ill-conditioned. Look for NaN with .isfinite()."
        ) from None


def attempted(xp, compute, arrays, number, checked, message):
    """Compute for all matrices at once or, if that fails, one by one.

    Args:
        xp: The array module.
        compute: Takes the arrays; raises the array module's error where one matrix fails.
        arrays: Stacks of matrices, with one batch shape.
        number: Called as ``number(xp, first)`` with the first array's matrix where it failed.
        checked: Raise for the first that fails.
        message: For :func:`raise_first`.

    Returns:
        (results, infos): of a matrix that failed, NaN and its number, of others, 0.
    """
    shape, like = arrays[0].shape[:-2], arrays[-1]
    try:
        with strict(xp):
            return compute(*arrays), no_failure(xp, shape)
    except xp.linalg.LinAlgError:
        pass
    made, infos = [], []
    for matrices in zip(*[a.reshape(prod(shape), *a.shape[-2:]) for a in arrays], strict=True):
        try:
            with strict(xp):
                made.append(compute(*matrices))
            infos.append(0)
        except xp.linalg.LinAlgError:
            made.append(xp.full(like.shape[-2:], xp.nan, dtype=like.dtype))
            infos.append(number(xp, matrices[0]))
    info = xp.asarray(infos, dtype="int32").reshape(shape)
    if checked:
        raise_first(info, message)
    return xp.stack(made).reshape(like.shape), info


def no_failure(xp, shape):
    """Return an ``info`` without failures."""
    return xp.zeros(shape, dtype="int32")


def raise_first(info, message):
    """Raise an error for the first matrix that failed.

    Raises:
        LinAlgError: ``message`` with the place in the batch and its ``info`` filled in.
    """
    where = ""
    if info.ndim:
        flat = info.reshape(-1).tolist()
        first = next(k for k, i in enumerate(flat) if i)
        where, number = f"(Batch element {first}): ", flat[first]
    else:
        number = int(info)
    raise LinAlgError(message.format(where=where, number=number))


def zero_pivot(xp, matrix):
    """Return the number of the first zero on the diagonal of U, counted from 1."""
    from .lu import eliminate

    lu = eliminate(xp, xp.array(matrix), True)[0]
    zero = (xp.diagonal(lu) == 0).tolist()
    return zero.index(True) + 1 if True in zero else len(zero)


def conditioned(make, *shape):
    """A sample of well-conditioned matrices."""
    m = make(*shape)
    return m * 0.5 + 3.0 * eye(m.shape[-1], dtype=m.dtype)
