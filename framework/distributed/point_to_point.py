"""Messages from one rank to another: ``send``, ``recv`` and their kin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..tensor import Tensor
from .buffers import Buffer
from .channel import Call, Steps
from .process_group import ProcessGroup, resolve
from .transport import DistBackendError, Transfer
from .work import Work

_LINE = 160  # bytes that say what follows


def send(
    tensor: Tensor,
    dst: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send a tensor to a rank, and wait until it may be written again."""
    _send("send", tensor, dst, group, tag, group_dst).wait()


def isend(
    tensor: Tensor,
    dst: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work:
    """Begin to send a tensor to a rank."""
    return _send("isend", tensor, dst, group, tag, group_dst)


def recv(
    tensor: Tensor,
    src: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive a tensor from a rank, of any if None; return the rank that sent it."""
    work = _receive("recv", tensor, src, group, tag, group_src)
    work.wait()
    return work.source_rank()


def irecv(
    tensor: Tensor,
    src: int | None = None,
    group: Any = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work:
    """Begin to receive a tensor from a rank, of any if None."""
    return _receive("irecv", tensor, src, group, tag, group_src)


class P2POp:
    """A message for ``batch_isend_irecv``.

    Args:
        op: ``isend`` or ``irecv``.
        tensor: What is sent or written.
        peer: The other rank, in the world.
        group: The group; the default one if None.
        tag: Of the message.
        group_peer: The other rank, in the group, instead.

    Raises:
        ValueError: ``op`` is another function.
    """

    def __init__(
        self,
        op: Callable[..., Work],
        tensor: Tensor,
        peer: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ValueError("Invalid ``op``. Expected ``op`` to be isend or irecv of this module.")
        self.op, self.tensor, self.peer = op, tensor, peer
        self.group, self.tag, self.group_peer = group, tag, group_peer


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Begin several messages; return a handle of each."""
    if not all(isinstance(one, P2POp) for one in p2p_op_list):
        raise ValueError("batch_isend_irecv: the list must have P2POp objects only.")
    return [m.op(m.tensor, m.peer, m.group, m.tag, m.group_peer) for m in p2p_op_list]


class _Received(Work):
    """A handle that knows who sent."""

    def __init__(self, call: Call, result: Sequence[Any], where: ProcessGroup) -> None:
        super().__init__(call, result)
        self._where = where
        self.source = -1

    def source_rank(self) -> int:
        """Return the rank that sent what was received."""
        return self._where.global_rank(self.source, "source_rank")


class _Arrival(Transfer):
    """The first message with a tag, from any rank."""

    def __init__(self, call: Call, tag: int) -> None:
        self._call, self._tag = call, tag
        self.peer, self.error = -1, None

    @property
    def done(self) -> bool:  # type: ignore[override]  # asked for, not told
        """Whether there is one."""
        found = self._call.channel.transport.waiting(self._tag)
        if found is not None:
            self.peer = found
        return found is not None


def _send(
    name: str, tensor: Any, dst: int | None, group: Any, tag: int, group_dst: int | None
) -> Work:
    where, peer = _other(name, tensor, dst, group, group_dst)
    if peer is None:
        raise ValueError(f"{name}: to which rank? Name it.")
    buffer = Buffer(tensor)

    def steps(call: Call) -> Steps:
        line = np.zeros(_LINE, np.uint8)
        text = np.frombuffer(_words(tensor).encode()[:_LINE], np.uint8)
        line[: text.size] = text
        yield [call.message(peer, tag, 0, line), call.message(peer, tag, 1, buffer.flat._array)]

    call = where.channel.start_message(f"{name} to rank {peer} of {_words(tensor)}", steps)
    return Work(call, [tensor])


def _receive(
    name: str, tensor: Any, src: int | None, group: Any, tag: int, group_src: int | None
) -> Work:
    where, peer = _other(name, tensor, src, group, group_src)
    buffer = Buffer(tensor, name)

    def steps(call: Call) -> Steps:
        source = peer
        if source is None:
            arrival = _Arrival(call, call.message_tag(tag, 0))
            yield [arrival]
            source = arrival.peer
        line = np.zeros(_LINE, np.uint8)
        yield [call.message(source, tag, 0, line, incoming=True)]
        found, wanted = bytes(line).rstrip(b"\0").decode(), _words(tensor)
        if found and found != wanted:  # an imagined rank says nothing
            raise DistBackendError(f"{name}: rank {source} sent {found}; expected {wanted}.")
        yield [call.message(source, tag, 1, buffer.flat._array, incoming=True)]
        buffer.settle()
        work.source = source

    whom = "any rank" if peer is None else f"rank {peer}"
    call = where.channel.start_message(f"{name} from {whom} of {_words(tensor)}", steps, later=True)
    work = _Received(call, [tensor], where)
    where.channel.poll()
    return work


def _words(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).rpartition('.')[2]} {tuple(tensor.shape)}"


def _other(
    name: str, tensor: Any, rank: int | None, group: Any, group_rank: int | None
) -> tuple[ProcessGroup, int | None]:
    where = resolve(group, name)
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a tensor; got {type(tensor).__name__}.")
    if where.size() == 1:
        raise ValueError(
            f"{name}: the group has one process, and no rank to exchange with. PyTorch waits for"
            " good here; guard the call with get_world_size() > 1."
        )
    if rank is not None and group_rank is not None:
        raise ValueError(f"{name}: name the rank in the world or in the group, not both.")
    found = where.group_rank(rank, name) if rank is not None else group_rank
    if found is not None:
        where.global_rank(found, name)
        if found == where.rank():
            raise ValueError(f"{name}: rank {found} is this process itself. Name another.")
    return where, found
