"""Shared memory between processes: sends objects without copying their arrays through pipes.

A message is a pickle in which large tensors and arrays are only named; their bytes lie in a
segment, a file without a name whose descriptor is passed over the socket once. So there is nothing
to clean up: when the last process that maps a segment ends, however it ends, the system frees it.
The receiver copies tensors into its own pool, where they are counted, and gives the segment back:
its pages are written again for a later message.

Large is what is worth a segment; small tensors travel inside the pickle.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ..device import device
from ..devices import backend
from ..dtypes import BY_NAME
from ..memory.ledger import INPUT
from ..spec import Spec
from ..tensor import Tensor, wrap

LARGE = 1 << 15  # bytes from which an array goes into the segment
INLINE = 1 << 16  # bytes up to which a pickle goes over the socket
ROUND = 1 << 20  # segments are multiples of it: batches of about one size reuse them
ALIGNMENT = 64


class SharedMemorySender:
    """Sends objects from a worker through shared memory.

    Args:
        conn: A duplex connection to the process that has the :class:`SharedMemoryReceiver`.
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self._segments: dict[int, mmap.mmap] = {}
        self._free: list[int] = []
        self._made = 0

    def freed(self, numbers: list[int]) -> None:
        """Reuse segments that the receiver has read."""
        self._free += numbers

    def send(self, value: Any) -> None:
        """Send an object.

        Raises:
            RuntimeError: A tensor in it has a history.
            pickle.PicklingError: Something in it cannot be pickled.
        """
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        pickler.dump(value)
        body: Any = stream.getbuffer()
        arrays, end = pickler.arrays, pickler.end
        if len(body) > INLINE:
            arrays.append((np.frombuffer(body, np.uint8), end))
            end += len(body)
        if not arrays:
            self.conn.send_bytes(pickle.dumps((None, None, (), bytes(body))))
            return
        number, new, dropped = self._segment(end)
        memory = np.frombuffer(self._segments[number], np.uint8)
        for array, offset in arrays:
            target = memory[offset : offset + array.nbytes]
            np.copyto(target.view(array.dtype).reshape(array.shape), array)
        inline = bytes(body) if len(body) <= INLINE else (arrays[-1][1], len(body))
        size = None if new is None else len(self._segments[number])
        self.conn.send_bytes(pickle.dumps((number, size, dropped, inline)))
        if new is not None:
            reduction.send_handle(self.conn, new, None)
            os.close(new)

    def _segment(self, size: int) -> tuple[int, int | None, tuple[int, ...]]:
        # (its number, its descriptor if it is new, numbers of segments that are no more)
        for k, number in enumerate(self._free):
            if len(self._segments[number]) >= size:
                del self._free[k]
                return number, None, ()
        dropped = tuple(self._free[:1])  # too small: one goes for the one that comes
        for number in dropped:
            self._free.remove(number)
            del self._segments[number]
        length = -(-size // ROUND) * ROUND
        handle = _nameless_file(length)
        self._made += 1
        self._segments[self._made] = mmap.mmap(handle, length)
        return self._made, handle, dropped


def _nameless_file(length: int) -> int:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("lowtide-batch", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, length)
    return handle


class _Pickler(pickle.Pickler):
    # Lays large arrays out one behind the other, and names them in the pickle.

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.arrays: list[tuple[Any, int]] = []
        self.end = 0
        self._named: dict[int, Any] = {}

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if value.requires_grad and not value.is_leaf:
                raise RuntimeError(
                    "a worker cannot send a tensor that has a history (it requires grad and is no "
                    "leaf): the graph stays behind. Return .detach()."
                )
            if value.device.type not in ("cpu", "meta"):
                raise RuntimeError(
                    f"a worker sends tensors of the cpu; got one on {value.device}. Move batches "
                    "to a device in the main process."
                )
            if type(value) is Tensor and value.nbytes >= LARGE and value.device.type == "cpu":
                what = ("tensor", value.dtype.name, tuple(value.shape), value.requires_grad)
                return self._lay(value, what, value._array)
        elif type(value) is np.ndarray and value.nbytes >= LARGE and value.dtype.kind in "biufc":
            return self._lay(value, ("array", value.dtype.str, value.shape, False), value)
        return None

    def _lay(self, value: Any, what: tuple[Any, ...], array: Any) -> Any:
        named = self._named.get(id(value))
        if named is None:
            named = self._named[id(value)] = (*what, self.end)
            self.arrays.append((array, self.end))
            self.end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return named


class SharedMemoryReceiver:
    """Receives objects in the main process through shared memory.

    Args:
        conn: The other end.
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self._segments: dict[int, mmap.mmap] = {}
        self._read: list[int] = []

    def receive(self) -> Any:
        """Wait for a message; ``open`` decodes it."""
        number, size, dropped, body = pickle.loads(self.conn.recv_bytes())
        for old in dropped:
            self._segments.pop(old, None)
        if size is not None:
            handle = reduction.recv_handle(self.conn)
            try:
                self._segments[number] = mmap.mmap(handle, size, prot=mmap.PROT_READ)
            finally:
                os.close(handle)
        return number, body

    def open(self, message: Any) -> Any:
        """Decode a message into an object in memory of this process."""
        number, body = message
        memory = None if number is None else memoryview(self._segments[number])
        try:
            if isinstance(body, tuple):
                assert memory is not None
                body = memory[body[0] : body[0] + body[1]]
            return _Unpickler(io.BytesIO(body), memory).load()
        finally:
            if number is not None:
                self._read.append(number)

    def read(self) -> list[int]:
        """Return the segments read since the last call, which the sender may reuse."""
        read, self._read = self._read, []
        return read

    def forget(self) -> None:
        """Unmap all segments."""
        self._segments.clear()


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, memory: memoryview | None) -> None:
        super().__init__(stream)
        self._memory = memory
        self._made: dict[int, Any] = {}

    def persistent_load(self, named: Any) -> Any:
        kind, dtype, shape, requires_grad, offset = named
        if offset in self._made:
            return self._made[offset]
        assert self._memory is not None
        if kind == "array":
            value: Any = np.ndarray(shape, dtype, self._memory, offset).copy()
        else:
            spec = Spec(shape, BY_NAME[dtype], device("cpu"))
            shared = np.ndarray(shape, spec.np_dtype, self._memory, offset)
            storage, array = backend(spec.device).from_host(shared, spec, INPUT)
            value = wrap(array, spec, storage)
            value._requires_grad = requires_grad
        self._made[offset] = value
        return value
