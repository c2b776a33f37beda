"""Private ops of ``embedding_bag``: indices that point to nothing are errors."""

from __future__ import annotations

import pytest

import lowtide as lt
from lowtide.framework.ops.embedding import embedding_bag


@pytest.mark.parametrize("rows", [(0, 3), (3, 0)])
@pytest.mark.parametrize("dtype", [lt.float32, lt.float16])
def test_products_and_sums_of_rows_that_are_not_there_are_refused(rows, dtype):
    a, b = (lt.ones(n, 3, dtype=dtype) for n in rows)
    index = lt.tensor([2, 0])
    with pytest.raises(RuntimeError, match="rows of a table that has none"):
        embedding_bag._bag_products(a, b, index, index)
    with pytest.raises(RuntimeError, match="rows of a table that has none"):
        embedding_bag._bag(lt.ones(3, 3, dtype=dtype), lt.ones(2, dtype=dtype), index, index, 0)
