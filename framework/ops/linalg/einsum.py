"""einsum: sums of products over named dimensions, as a chain of matrix products.

Operands are contracted pairwise from left to right. Each pair becomes one batched product: the
letters both have and someone still needs are the batch, those that are not needed any more are
summed over. Everything is made of permute, reshape, sum and matmul, so every derivative comes with
them. Not optimal: the order is the written one, however large an intermediate result it makes.
"""

from __future__ import annotations

from math import prod

from ..registry import function
from .matmul import matmul

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _fail(problem, way_out):
    raise RuntimeError(f"einsum(): {problem}. {way_out}")


def _from_sublists(args):
    # einsum(x, [0, 1], y, [1, 2], [0, 2]): the same equation in numbers.
    def letters(sublist):
        return "".join("..." if s is Ellipsis else LETTERS[s] for s in sublist)

    operands = list(args[0 : len(args) - len(args) % 2 : 2])
    terms = [letters(s) for s in args[1::2]]
    equation = ",".join(terms)
    if len(args) % 2:
        equation += "->" + letters(args[-1])
    return equation, operands


def _labels(term, ndim, position):
    """One label per dim: a letter, or a number for a dim of the ellipsis, counted from its end."""
    before, dots, after = term.partition("...")
    named = before + after
    for c in named:
        if c not in LETTERS:
            _fail(f"invalid subscript {c!r} in {term!r}", "Use letters, ',', '->' and '...'")
    extra = ndim - len(named)
    if extra < 0 or (extra and not dots):
        _fail(
            f"the number of subscripts in the equation ({len(named)}) does not match the number "
            f"of dimensions ({ndim}) for operand {position}",
            "Name every dimension, or write '...' for the rest.",
        )
    return [*before, *range(-extra, 0), *after]


def _output(equation, inputs):
    _, arrow, right = equation.partition("->")
    ellipsis = sorted({c for labels in inputs for c in labels if isinstance(c, int)})
    if not arrow:
        every = [c for labels in inputs for c in labels if isinstance(c, str)]
        return [*ellipsis, *sorted(c for c in set(every) if every.count(c) == 1)]
    before, dots, after = right.partition("...")
    result = [*before, *(ellipsis if dots else ()), *after]
    known = {c for labels in inputs for c in labels}
    for c in result:
        if c not in known:
            _fail(f"output subscript {c} does not appear in the inputs", "Remove it there.")
        if result.count(c) > 1:
            _fail(f"output subscript {c} appears more than once", "Name each dimension once.")
    return result


def _prepare(x, labels, sizes):
    # A letter that occurs twice means the diagonal; a size of 1 broadcasts, so it is dropped.
    for c in dict.fromkeys(labels):
        while labels.count(c) > 1:
            first = labels.index(c)
            second = labels.index(c, first + 1)
            x = x.diagonal(0, first, second)
            labels = [d for k, d in enumerate(labels) if k not in (first, second)] + [c]
    keep = [k for k, c in enumerate(labels) if x.shape[k] == sizes[c]]
    if len(keep) < len(labels):
        x = x.reshape(*(x.shape[k] for k in keep))
        labels = [labels[k] for k in keep]
    return x, labels


def _sum_out(x, labels, needed):
    gone = [k for k, c in enumerate(labels) if c not in needed]
    if gone:
        x = x.sum(gone)
    return x, [c for c in labels if c in needed]


def _contract(a, a_labels, b, b_labels, needed, sizes):
    """The sum over products of two operands, keeping the labels that are needed."""
    a, a_labels = _sum_out(a, a_labels, needed | set(b_labels))
    b, b_labels = _sum_out(b, b_labels, needed | set(a_labels))
    batch = [c for c in a_labels if c in b_labels and c in needed]
    inner = [c for c in a_labels if c in b_labels and c not in needed]
    rows = [c for c in a_labels if c not in b_labels]
    columns = [c for c in b_labels if c not in a_labels]

    def arrange(x, labels, *groups):
        x = x.permute(*(labels.index(c) for g in groups for c in g)) if labels else x
        return x.reshape(
            *(sizes[c] for c in groups[0]), *(prod(sizes[c] for c in g) for g in groups[1:])
        )

    result = batch + rows + columns
    if not inner:  # nothing to add up: a broadcast product
        left = arrange(a, a_labels, batch + rows).reshape(
            *(sizes[c] for c in batch + rows), *(1 for _ in columns)
        )
        right = arrange(b, b_labels, batch + columns).reshape(
            *(sizes[c] for c in batch), *(1 for _ in rows), *(sizes[c] for c in columns)
        )
        return left * right, result
    left = arrange(a, a_labels, batch, rows, inner)
    right = arrange(b, b_labels, batch, inner, columns)
    out = matmul(left, right)
    return out.reshape(*(sizes[c] for c in result)), result


@function(deep=True)
def einsum(*args):
    """Sum products over named dimensions: ``einsum("bij,bjk->bik", a, b)`` is ``a @ b``.

    Args:
        *args: An equation and its operands; or operands, each followed by its list of dimension
            numbers, and at the end perhaps the result's. A letter that occurs twice in one operand
            takes the diagonal; ``...`` stands for any further dimensions, which broadcast. Without
            ``->`` the result has the letters that occur once, in alphabetical order.

    Returns:
        Tensor with one dimension per letter of the result.

    Raises:
        RuntimeError: The equation does not fit the operands.

    Memory:
        Keeps what each pairwise product keeps: both operands, and intermediate results.
    """
    if isinstance(args[0], str):
        equation, operands = args[0], list(args[1:])
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = list(operands[0])
    else:
        equation, operands = _from_sublists(args)
    equation = equation.replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    if not operands or len(terms) != len(operands):
        _fail(
            f"the equation {equation!r} names {len(terms)} operands; got {len(operands)}",
            "Separate the terms of operands by ','.",
        )
    labels = [_labels(t, x.ndim, k) for k, (t, x) in enumerate(zip(terms, operands, strict=True))]
    result = _output(equation, labels)
    sizes = {}
    for k, (x, names) in enumerate(zip(operands, labels, strict=True)):
        for c, n in zip(names, x.shape, strict=True):
            seen = sizes.get(c, 1)
            if 1 not in (seen, n) and seen != n:
                _fail(
                    f"subscript {c} has size {n} for operand {k} which does not broadcast with "
                    f"previously seen size {seen}",
                    "Reshape an operand, or use another letter.",
                )
            sizes[c] = n if seen == 1 else seen
    prepared = [_prepare(x, names, sizes) for x, names in zip(operands, labels, strict=True)]
    value, held = prepared[0]
    for k, (other, names) in enumerate(prepared[1:], 1):
        needed = set(result).union(*(later for _, later in prepared[k + 1 :]))
        value, held = _contract(value, held, other, names, needed, sizes)
    value, held = _sum_out(value, held, set(result))
    if held != result:
        value = value.permute(*(held.index(c) for c in result))
    return value
