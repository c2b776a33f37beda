"""Workspace of reductions: what arrives from other ranks lies here until it is added up.

Which bytes live must not depend on when a message arrives: then every run of a step has one peak,
and an estimate can tell it. So a collective's workspace is taken when it is called and given back
when it was waited for. The reductions of a backward pass, of which there may be hundreds,
share one workspace: each takes a part of it, and waits while none is free.
"""

from __future__ import annotations

from collections import deque

from ..dtypes import uint8
from ..memory.ledger import COMMUNICATION
from ..ops.creation.fill import empty
from ..tensor import Tensor
from .transport import NOBODY, Transfer

_ALIGNMENT = 64  # bytes


class Turn(Transfer):
    """The turn of a reduction to use a part of a workspace.

    Attributes:
        part: The part, flat, of dtype uint8; None while it waits.
    """

    __slots__ = ("part",)

    def __init__(self) -> None:
        super().__init__(NOBODY)
        self.part: Tensor | None = None

    def tensors(self, count: int, like: Tensor) -> list[Tensor]:
        """Return so many flat tensors of the part, each as long as ``like`` and of its dtype."""
        assert self.part is not None
        n = like.numel()
        nbytes = count * n * like.itemsize
        some = self.part if nbytes == self.part.numel() else self.part[:nbytes]
        some = some.view(like.dtype)
        return [some] if count == 1 else [some[k * n : (k + 1) * n] for k in range(count)]


class Workspace:
    """Memory for what arrives, on the CPU, of role ``communication``.

    Args:
        nbytes: Bytes that one reduction needs at a time, see ``reduction.py``.
        parts: How many reductions may be under way at a time.
    """

    def __init__(self, nbytes: int, parts: int = 1) -> None:
        each = -(-nbytes // _ALIGNMENT) * _ALIGNMENT if parts > 1 else nbytes
        self.nbytes = nbytes
        whole = empty(each * parts, dtype=uint8, device="cpu")
        whole._storage.set_role(COMMUNICATION)
        # Most reductions are small: a view that need not be made is most of what can be saved.
        self._free = deque(
            [whole] if parts == 1 else [whole[k * each : (k + 1) * each] for k in range(parts)]
        )
        self._waiting: deque[Turn] = deque()

    def ask(self) -> Turn:
        """Ask for a part; the turn is done once there is one."""
        turn = Turn()
        self._waiting.append(turn)
        self._serve()
        return turn

    def give_back(self, turn: Turn) -> None:
        """Give back the part of a turn, or stop waiting for one."""
        if turn.done:
            assert turn.part is not None
            self._free.append(turn.part)
            turn.part = None
        else:
            self._waiting.remove(turn)
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._free:
            turn = self._waiting.popleft()
            turn.part = self._free.popleft()
            turn.done = True
