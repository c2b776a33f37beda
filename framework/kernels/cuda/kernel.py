"""A kernel in CUDA C++: compiled by NVRTC when it is first called, launched through CuPy.

CuPy keeps what NVRTC made in its own cache on disk. Nothing here imports CuPy: a kernel gets the
array module, as the kernels of ops do, and asks it to compile. So the tests can hand it a module
that compiles the same source for the CPU (``tests/devices/cuda_on_cpu.py``).
"""

from __future__ import annotations

from typing import Any

THREADS = 256  # of a block: enough to hide the latency of memory, for every kernel here
MOST_BLOCKS = 1 << 15  # of a kernel whose threads take several elements each

TYPES = {"float32": "float", "float64": "double"}

PREAMBLE = """
#ifndef CUDA_ON_CPU
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif

__device__ inline float lt_sqrt(float x) { return sqrtf(x); }
__device__ inline double lt_sqrt(double x) { return sqrt(x); }
__device__ inline float lt_exp(float x) { return expf(x); }
__device__ inline double lt_exp(double x) { return exp(x); }
__device__ inline float lt_expm1(float x) { return expm1f(x); }
__device__ inline double lt_expm1(double x) { return expm1(x); }
__device__ inline float lt_log(float x) { return logf(x); }
__device__ inline double lt_log(double x) { return log(x); }
__device__ inline float lt_log1p(float x) { return log1pf(x); }
__device__ inline double lt_log1p(double x) { return log1p(x); }
__device__ inline float lt_tanh(float x) { return tanhf(x); }
__device__ inline double lt_tanh(double x) { return tanh(x); }
__device__ inline float lt_erf(float x) { return erff(x); }
__device__ inline double lt_erf(double x) { return erf(x); }
__device__ inline float lt_tail(float a) { return 0.5f * erfcf(a * 0.70710678f); }
__device__ inline double lt_tail(double a) { return 0.5 * erfc(a * 0.7071067811865476); }
__device__ inline float lt_abs(float x) { return fabsf(x); }
__device__ inline double lt_abs(double x) { return fabs(x); }
template <class X> __device__ inline X lt_sign(X x) { return x > 0 ? X(1) : x < 0 ? X(-1) : x; }
template <class X> __device__ inline bool lt_isfinite(X x) { return x - x == 0; }
/* NaN wins, as in NumPy. */
template <class X> __device__ inline X lt_maximum(X a, X b) { return a > b || a != a ? a : b; }
template <class X> __device__ inline X lt_minimum(X a, X b) { return a < b || a != a ? a : b; }
/* A comparison with NaN is false, as in Python. */
template <class X> __device__ inline X lt_max(X a, X b) { return b > a ? b : a; }
template <class X> __device__ inline X lt_min(X a, X b) { return b < a ? b : a; }

/* A loop over `count` elements that all threads share. */
#define LT_EACH(i, count)                                                    \\
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x,     \\
                   i##_step = (long long)gridDim.x * blockDim.x;             \\
         i < (count); i += i##_step)

/* The sum, or the largest, of a value of each thread of a block, for all of its threads. */
template <class X> __device__ inline X block_sum(X x, X *room) {
    for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? room[threadIdx.x % 32] : X(0);
    for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}
template <class X> __device__ inline X block_max(X x, X *room) {
    for (int d = 16; d; d >>= 1) x = lt_maximum(x, __shfl_xor_sync(0xffffffffu, x, d));
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? room[threadIdx.x % 32] : X(-INFINITY);
    for (int d = 16; d; d >>= 1) x = lt_maximum(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}
"""


class CudaKernel:
    """A function in CUDA C++.

    Args:
        name: Of the ``__global__`` function, which is ``extern "C"``.
        source: Its definition. ``T`` is the element type, float or double. Numbers that are not
            elements are ``long long``.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self._made: dict[Any, Any] = {}  # by the array module's name and NumPy's dtype

    def text(self, dtype: str) -> str:
        """Return what is compiled for an element type, by NumPy's name."""
        return f"{PREAMBLE}\ntypedef {TYPES[dtype]} T;\n{self.source}"

    def prepare(self, xp: Any, dtype: Any) -> Any:
        """Compile it for an element type, where nothing is half done if that fails."""
        key = xp.__name__, dtype
        if key not in self._made:
            module = xp.RawModule(code=self.text(dtype.name), options=("--std=c++17",))
            self._made[key] = module.get_function(self.name)
        return self._made[key]

    def launch(self, xp: Any, dtype: Any, blocks: int, threads: int, *arguments: Any) -> None:
        """Queue it on the stream that is current.

        Args:
            xp: The array module.
            dtype: NumPy's, of ``T``.
            blocks: How many; nothing happens for 0.
            threads: Of a block: a multiple of 32.
            *arguments: Arrays, ints, and numbers of ``T`` as floats.
        """
        if not blocks:
            return
        made = self._made.get((xp.__name__, dtype)) or self.prepare(xp, dtype)
        kind = dtype.type
        given = [kind(a) if isinstance(a, float) else a for a in arguments]
        made((blocks,), (threads,), tuple(given))


def has_cuda(xp: Any) -> bool:
    """True for an array module that compiles CUDA C++: CuPy."""
    return hasattr(xp, "RawModule")


def address(array: Any) -> int:
    """Return where an array of any strides begins, for kernels that are told its strides too."""
    return int(array.data.ptr)


def blocks_for(elements: int) -> int:
    """Return how many blocks walk over so many elements, THREADS at a time."""
    return min(-(-elements // THREADS), MOST_BLOCKS)


def is_float(*specs: Any, **_: Any) -> bool:
    """True for operands that are all float32, or all float64."""
    first = specs[0].dtype
    return first.name in TYPES and all(s is None or s.dtype is first for s in specs)
