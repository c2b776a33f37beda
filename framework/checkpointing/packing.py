"""Packing: values saved for backward are compressed.

Lossless, :func:`pack` with no argument: truth values take one bit, and integers the narrowest
integer type that holds the smallest and the largest of them. Gradients do not change.

Lossy, only when asked for: floats as ``bfloat16`` or ``float16`` (rounded to nearest), or as
``int8`` by blocks: each block of consecutive elements is divided by its largest magnitude, which is
kept in float32, and rounded to 255 steps. The error of an element is at most 1/254 of the largest
in its block (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022, in its linear
form). What it does to gradients, ``checkpointing.verify(..., strict=False)`` measures. A value that
something still holds when backward comes is used as it is.

Not optimal: the range of integers is read by the host, which waits for a GPU. Integers on meta have
no values, and count as they are.
"""

from __future__ import annotations

from typing import Any

from ..devices import backend, on_device
from ..dtypes import (
    BOOL,
    FLOAT,
    INT,
    as_dtype,
    bfloat16,
    bool_,
    float16,
    float32,
    int8,
    int16,
    int32,
    uint8,
)
from ..memory.ledger import TEMPORARY, WORKSPACE
from ..modes import run_kernel
from ..spec import Spec
from ..tensor import Tensor
from .stash import Stash, Stashed, UncopiedStorage, array_of, new_storage

_NARROW = (
    (uint8, 0, 255),
    (int8, -128, 127),
    (int16, -(1 << 15), (1 << 15) - 1),
    (int32, -(1 << 31), (1 << 31) - 1),
)
_CHUNK = 1 << 16  # elements that are rounded at a time on the host
_CHUNK_ELSEWHERE = 1 << 22
_SMALLEST = 1e-36  # what a block of zeros is divided by: 127 over it is a float32


class pack(Stash):
    """Compress saved values; a stash (decision, policy or context manager).

    Args:
        to: None packs without loss. ``bfloat16`` or ``float16``, a dtype or its name, rounds wider
            floats to it; ``"int8"`` keeps 8 bits an element and a float32 for each block. What is
            not floating point is packed without loss in any case.
        block: Elements of a block, with ``"int8"``.
        min_bytes: Smaller values stay as they are.

    Raises:
        ValueError: There is no such packing.

    Memory:
        Of n elements: booleans ceil(n / 8) bytes; integers n times 1, 2 or 4; two-byte floats 2 n;
        ``int8`` n + 4 ceil(n / block).

    Example:
        >>> import lowtide as lt
        >>> x = lt.ones(1000, requires_grad=True)
        >>> with lt.checkpointing.pack("bfloat16"):
        ...     y = x.exp().sum()
        >>> [v.held_bytes for v in y.grad_fn.next_functions[0][0].saved]
        [2000]
    """

    def __init__(self, to: Any = None, block: int = 256, min_bytes: int | str = 0) -> None:
        super().__init__(min_bytes)
        if isinstance(to, str):
            to = to.removeprefix("lowtide.")
        try:
            self.to = None if to is None else as_dtype(to)
        except TypeError:
            self.to = bool_
        if self.to not in (None, bfloat16, float16, int8):
            raise ValueError(
                f"pack: values are packed without loss (None), as bfloat16, float16 or int8; got "
                f"{to!r}."
            )
        if not isinstance(block, int) or block < 1:
            raise ValueError(f"pack: block is a number of elements, at least 1; got {block!r}.")
        self.block = block

    def __repr__(self) -> str:
        if self.to is None:
            return "pack()"
        extra = f", block={self.block}" if self.to is int8 else ""
        return f"pack({self.to.name!r}{extra})"

    @property
    def lossless(self) -> bool:
        """Whether values come back as they were."""
        return self.to is None

    def stash(self, tensor: Tensor) -> Stashed:
        """Compress the storage of ``tensor``."""
        storage, spec = tensor._storage, tensor._spec
        dtype, device = spec.dtype, spec.device
        if storage.nbytes % dtype.itemsize:
            return UncopiedStorage(storage)
        if dtype.category == FLOAT and self.to is not None:
            if self.to is int8:
                return _Blocks(storage, dtype, device, self.block)
            if self.to.itemsize < dtype.itemsize:
                return _Cast(storage, dtype, device, self.to)
        elif dtype.category == BOOL:
            if backend(device).xp is None or _extremes(storage, uint8, device)[1] <= 1:
                return _Bits(storage, device)
        elif dtype.category == INT and dtype.itemsize > 1 and backend(device).xp is not None:
            low, high = _extremes(storage, dtype, device)
            for narrow, least, most in _NARROW:
                if least <= low and high <= most and narrow.itemsize < dtype.itemsize:
                    return _Cast(storage, dtype, device, narrow)
        return UncopiedStorage(storage)


class _Packed:
    # Arrays that the ledger counts as saved activations.
    __slots__ = ("device", "dtype", "size", "storages")

    def __init__(self, storage: Any, dtype: Any, device: Any) -> None:
        self.storages: list[Any] = []
        self.size = storage.nbytes // dtype.itemsize
        self.dtype = dtype
        self.device = device

    @property
    def nbytes(self) -> int:
        """Bytes of the compressed arrays."""
        return sum(s.nbytes for s in self.storages)

    def _take(self, count: int, dtype: Any) -> Any:
        storage, array = new_storage(self.device, count, dtype)
        self.storages.append(storage)
        return array

    def _array(self, k: int, dtype: Any) -> Any:
        return array_of(self.storages[k], self.device, dtype)

    def restore(self) -> Any:
        """Decompress into a new storage."""
        storage, out = new_storage(self.device, self.size, self.dtype, TEMPORARY)
        if backend(self.device).xp is not None:
            self.unpack(out)
        return storage

    def unpack(self, out: Any) -> None:
        """Decompress into an array."""
        raise NotImplementedError


class _Cast(_Packed):
    # As another dtype: narrower integers, or rounded floats.
    __slots__ = ("narrow",)

    def __init__(self, storage: Any, dtype: Any, device: Any, narrow: Any) -> None:
        super().__init__(storage, dtype, device)
        self.narrow = narrow
        out = self._take(self.size, narrow)
        be = backend(device)
        if be.xp is not None:
            run_kernel(be.copy, out, array_of(storage, device, dtype))

    def unpack(self, out: Any) -> None:
        """Convert back from the smaller dtype."""
        run_kernel(backend(self.device).copy, out, self._array(0, self.narrow))


class _Bits(_Packed):
    # One bit an element: bit k of byte j is element j + k * bytes, so neighbours stay neighbours.
    __slots__ = ()

    def __init__(self, storage: Any, device: Any) -> None:
        super().__init__(storage, bool_, device)
        count = -(-self.size // 8)
        out = self._take(count, uint8)
        be = backend(device)
        xp = be.xp
        if xp is not None:
            _, work = held = new_storage(device, count, uint8, WORKSPACE)
            run_kernel(on_device(be, _to_bits), out, work, array_of(storage, device), xp)
            del held

    def unpack(self, out: Any) -> None:
        """Expand bits to bools."""
        be = backend(self.device)
        run_kernel(on_device(be, _from_bits), out.view("uint8"), self._array(0, uint8), be.xp)


def _to_bits(out: Any, work: Any, values: Any, xp: Any) -> None:
    out.fill(0)
    for k in range(8):
        part = values[k * out.size : (k + 1) * out.size]
        if part.size:
            xp.left_shift(part, k, out=work[: part.size])
            xp.bitwise_or(out[: part.size], work[: part.size], out=out[: part.size])


def _from_bits(out: Any, bits: Any, xp: Any) -> None:
    for k in range(8):
        part = out[k * bits.size : (k + 1) * bits.size]
        if part.size:
            xp.right_shift(bits[: part.size], k, out=part)
            xp.bitwise_and(part, 1, out=part)


class _Blocks(_Packed):
    # 8 bits an element, and the largest magnitude of each block. A block in which there is an
    # infinity or NaN comes back as NaN.
    __slots__ = ("block",)

    def __init__(self, storage: Any, dtype: Any, device: Any, block: int) -> None:
        super().__init__(storage, dtype, device)
        self.block = block
        out = self._take(self.size, int8)
        largest = self._take(-(-self.size // block), float32)
        be = backend(device)
        if be.xp is not None:
            values = array_of(storage, device, dtype)
            for rows, piece, one, factor in self._pieces():
                target, x = _like(out, piece), _like(values, piece)
                big = largest[rows].reshape(-1, 1)
                run_kernel(on_device(be, _to_blocks), target, big, x, one, factor, be)

    def unpack(self, out: Any) -> None:
        """Dequantize block by block."""
        be = backend(self.device)
        steps, largest = self._array(0, int8), self._array(1, float32)
        for rows, piece, one, factor in self._pieces():
            target, given = _like(out, piece), _like(steps, piece)
            big = largest[rows].reshape(-1, 1)
            run_kernel(on_device(be, _from_blocks), target, given, big, one, factor, be)

    def _pieces(self) -> Any:
        # (blocks, (first element, rows, columns), workspace of that shape, workspace of a column):
        # some whole blocks at a time, then what is left.
        block, near = self.block, self.device.type in ("cpu", "sim", "meta")
        step = max((_CHUNK if near else _CHUNK_ELSEWHERE) // block, 1)
        whole, rest = divmod(self.size, block)
        space, one = new_storage(self.device, min(step * block, self.size), float32, WORKSPACE)
        column, factor = new_storage(self.device, min(step, max(whole, 1)), float32, WORKSPACE)
        pieces = [(k, min(step, whole - k), block) for k in range(0, whole, step)]
        if rest:
            pieces.append((whole, 1, rest))
        for k, rows, columns in pieces:
            work = one[: rows * columns].reshape(rows, columns)
            piece = (k * block, rows, columns)
            yield slice(k, k + rows), piece, work, factor[:rows].reshape(rows, 1)
        del space, column


def _like(flat: Any, piece: tuple[int, int, int]) -> Any:
    first, rows, columns = piece
    return flat[first : first + rows * columns].reshape(rows, columns)


def _to_blocks(out: Any, big: Any, x: Any, one: Any, factor: Any, be: Any) -> None:
    xp = be.xp
    be.copy(one, x)
    xp.abs(one, out=one)
    xp.max(one, axis=1, keepdims=True, out=big)
    xp.maximum(big, _SMALLEST, out=factor)
    xp.divide(127.0, factor, out=factor)
    be.copy(one, x)
    xp.multiply(one, factor, out=one)
    xp.rint(one, out=one)
    be.copy(out, one)


def _from_blocks(out: Any, steps: Any, big: Any, one: Any, factor: Any, be: Any) -> None:
    xp = be.xp
    xp.multiply(big, 1 / 127, out=factor)
    be.copy(one, steps)
    xp.multiply(one, factor, out=one)
    be.copy(out, one)


def _extremes(storage: Any, dtype: Any, device: Any) -> tuple[int, int]:
    be = backend(device)
    values = array_of(storage, device, dtype)
    held = [be.empty(Spec((), dtype, device), WORKSPACE) for _ in range(2)]
    (_, low), (_, high) = held
    run_kernel(on_device(be, _range), low, high, values, be.xp)
    return int(be.item(low)), int(be.item(high))


def _range(low: Any, high: Any, values: Any, xp: Any) -> None:
    xp.min(values, out=low)
    xp.max(values, out=high)


__all__ = ["pack"]
