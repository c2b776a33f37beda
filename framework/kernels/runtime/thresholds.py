"""Sizes from which another way of computing pays, and sizes of what is computed at a time.

Each has the measurement behind it, as ``python -m benchmarks.thresholds`` makes it; the table and
the machine are in docs/benchmarks.md. They are read when a call is planned or made, never copied at
import: a test may set them. What only one kernel asks (the rows of its own tile) stands in its
file.

Words for parts, here and in all of ``kernels`` and ``ops``: a *tile* is what is computed at a time,
so that it stays in a cache; a *chunk* is the range that one thread takes at a time; a *panel* is
what stays in registers; a *strided walk* visits an array of any strides (``common/strided.py``).
"""

COMPILED = 1 << 12
"""Elements from which a compiled loop is used in place of NumPy's calls.

Forward and backward of ``relu``, ``silu``, softmax take 1.0 to 1.2 times NumPy's time for 2^10
elements, 0.9 for 2^12, 0.5 to 0.8 for 2^14.
"""

COMPILED_HEAVY = 1
"""The same, where a loop does much for an element or takes the place of many calls.

Cross entropy takes 0.8 of NumPy's time for 16 logits, dropout 0.5 for 2^8 elements, distances of
pairs 0.6 for 2^2 coordinates, normalizations 0.93 for 2^8.
"""

COMPILED_MOVE = 1 << 14
"""The same, where elements are only moved or read by place, which NumPy's loops do well.

A transposed copy takes 3 times NumPy's time for 2^12 elements, 1.6 for 2^14.
"""

COMPILED_STEP = 1
"""Elements of all parameters of an optimizer from which its steps are compiled loops.

AdamW takes 0.2 of the time of its tensor ops from the first element on.
"""

THREAD = 1 << 19
"""Additions of two elements that a thread must have to do before it is woken for them.

Two threads take 1.0 to 1.6 times the time of one for 2^19 elements (``silu``, layer norm, softmax,
``relu`` with its gradient, a step of AdamW), 0.75 to 1 for 2^20, 0.7 for 2^21.
"""

SHARED = 1 << 15
"""The same, where compiled code shares out the chunks, which takes microseconds."""

COPY_THREAD = 1 << 20
"""Elements of a copy that a thread must have: memory is soon busy enough.

Two threads take 1.7 times the time of one for 2^20 elements, transposed, converted or neither, 0.7
to 1 for 2^21.
"""

CHUNK = 1 << 17
"""Elements of a chunk, where there are more chunks than threads: so that no thread waits long.

Between 2^13 and 2^21 it makes no difference on an idle machine; on a busy one, who is late leaves
the rest of his to others.
"""

COMPILED_SUM = 1 << 16
"""Elements of a sum from which it is a compiled loop.

It takes 1.4 times NumPy's time for 2^14 elements, 0.9 for 2^16, 0.4 for 2^18.
"""

SHARED_UFUNC = 1 << 16
"""Elements from which NumPy's elementwise functions are called by way of threads that may share
them (``kernels/common/shared_ufuncs.py``)."""

UFUNC_THREAD = 1 << 17
"""Elements of such a call that a thread must have, half as many where rows lie apart.

Two threads take 1.8 (``add``) and 0.85 (``exp``) times the time of one for 2^16 elements, 1.0 and
0.7 for 2^18, 0.55 and 0.6 for 2^20.
"""

NUMPY_THREADS = 1 << 21
"""Elements from which NumPy's own call is cut into slices, by threads of Python.

Two threads take 1.0 (``exp``) to 1.6 (``add``) times the time of one for 2^19 elements, 0.7 to 1.2
for 2^20, 0.6 to 0.7 for 2^21.
"""

PRODUCT = 1 << 21
"""Operations of a matrix product that a thread must have, if compiled code shares out the chunks.

Two threads take 1.1 times the time of one for 2^20.3 (96 x 96 x 96), 0.9 for 2^22, 0.7 for 2^23,
0.57 for 2^25. From as many operations one thread calls MKL, where that is installed: the call takes
3 us more than NumPy's.
"""

BLAS_MATRIX = 1 << 18
"""Multiplications of a product of two matrices from which OpenBLAS starts its threads."""

BLAS_VECTOR = 1 << 13
"""The same, of a product with a vector."""

PRODUCT_THREAD = 1 << 24
"""Operations of a matrix product or a convolution from which another thread takes part.

Attention takes 1.2 to 1.5 times the time of one thread for 2^23, 0.95 to 1.1 for 2^24, 0.94 for
2^25, 0.7 for 2^27; a convolution 1.2, 0.9, 0.9 and 0.6. bfloat16's products ask for twice as many.
"""

TILE = 1 << 16
"""Elements of a tile of elementwise work: four such arrays of float32 are 1 MiB.

Tiles of 2^14 take 2.4 times as long, those of 2^18 0.5 to 0.9 of the time, at four times the
workspace: between tiles two threads wait for the interpreter's lock.
"""

HALF_BLOCK = 1 << 17
"""Elements for each thread, up to four, of a block of rows of halves that are converted at a time.

Softmax and layer normalization of two million bfloat16, forward and backward, with one thread:
5.5 ms for 2^15, 4.3 for 2^16, 4.4 for 2^17, 5.3 for 2^18 and above. With two threads and four
million, blocks of 2^17 to 2^20 take what all at once takes.
"""

CHANNEL_BLOCK_THREADS = 1
"""Threads up to which batch normalization converts channels of halves a block at a time.

With two, blocks take 1.7 times what all at once takes, for their planes lie apart; with one the
same.
"""

IMAGE_BLOCK = 1 << 20
"""The same of the images of a convolution, or of their results, for each thread up to four."""

IMAGE_WEIGHTS = 4
"""How many times as many elements as the weight such a block has, at least: a route may transform
the weight for each."""

TILE_BYTES = 1 << 20
"""Bytes of a tile of products and what they are made from: half of a core's second cache.

Attention's tiles of 2^18 bytes take 1.3 times as long, those of 2^22 0.8, at four times the
workspace; the columns of a convolution (8 x 2 x 224 x 224 by 2 x 2) 1.4, and 0.9 with 2^21.
"""

TILE_BYTES_ELSEWHERE = 1 << 25
"""Bytes of such a tile on other devices, where a call costs more than the memory: 32 MiB."""


def tile_bytes(host: bool) -> int:
    """Return the bytes of a tile on the host, or on other devices."""
    return TILE_BYTES if host else TILE_BYTES_ELSEWHERE


def tile_elements(host: bool) -> int:
    """Return the elements of a tile of elementwise work on the host, or on other devices."""
    return TILE if host else TILE_BYTES_ELSEWHERE // 8
