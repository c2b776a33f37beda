"""Sizes from which another way of computing pays, and sizes of what is computed at a time.

Each has the measurement behind it, as ``python -m benchmarks.thresholds`` makes it; the table and
the machine are in docs/benchmarks.md. They are read when a call is planned or made, never copied at
import: a test may set them. What only one kernel asks (the rows of its own tile) stands in its
file.

Words for parts, here and in all of ``kernels`` and ``ops``: a *tile* is what is computed at a time,
so that it stays in a cache; a *chunk* is the range that one thread takes at a time; a *panel* is
what stays in registers; a *strided walk* visits an array of any strides (``common/strided.py``).
"""

COMPILED = 1 << 14
"""Elements from which a compiled loop is used in place of NumPy's calls."""

COMPILED_HEAVY = 1 << 12
"""The same, where a loop does much for an element: a row of a table, a distance, a gate."""

COMPILED_STEP = 1 << 14
"""Elements of all parameters of an optimizer from which its steps are compiled loops."""

THREAD = 1 << 18
"""Additions of two elements that a thread must have to do before it is woken for them."""

CHUNK = 1 << 17
"""Elements of a chunk, where there are more chunks than threads: so that nobody waits long."""

NUMPY_THREADS = 1 << 19
"""Elements of a result from which NumPy's own call is cut into chunks."""

PRODUCT_THREAD = 1 << 23
"""Operations of a matrix product or a convolution that another thread must have to do."""

TILE = 1 << 16
"""Elements of a tile of elementwise work: four such arrays of float32 are 1 MiB."""

TILE_BYTES = 1 << 20
"""Bytes of a tile of products and what they are made from: half of a core's second cache."""
