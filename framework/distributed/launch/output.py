"""What workers write: read from pipes, passed on line by line, the last lines kept.

Lines of several workers never mix. Each has its rank in front.
"""

from __future__ import annotations

import os
import re
import select
from collections import deque

LINE_END = re.compile(rb"\r\n|\r|\n")  # progress bars end what they write with \r
LONGEST = 1 << 20  # bytes of a line that are kept back; of more, the line is broken
KEPT_LINES, KEPT_BYTES = 60, 1000  # of the tail: so many lines, and so much of each
CHUNK, MOST_CHUNKS = 1 << 16, 1 << 10


class Stream:
    r"""One pipe of a worker, stdout or stderr.

    Attributes:
        source: The pipe's end that is read; None once it has ended.
        tail: The last lines.

    Example:
        >>> read, write = os.pipe()
        >>> stream = Stream(read, 1, "[3]: ")
        >>> stream.lines(b"one\ntw"), stream.lines(b"o\n"), stream.lines(b"50%\r100%")
        (b'[3]: one\n', b'[3]: two\n', b'[3]: 50%\r')
        >>> stream.rest()
        b'[3]: 100%\n'
        >>> list(stream.tail)
        ['one', 'two', '50%', '100%']
        >>> os.close(read), os.close(write)
        (None, None)
    """

    def __init__(self, source: int, sink: int, prefix: str, alone: bool = False) -> None:
        """Read a pipe without waiting for it.

        Args:
            source: File descriptor to read.
            sink: File descriptor to write to.
            prefix: What stands in front of each line.
            alone: There is one worker: its bytes are passed on as they come.
        """
        self.source: int | None = source
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._sink, self._prefix, self._alone = sink, prefix.encode(), alone
        self._begun = b""
        os.set_blocking(source, False)

    def pump(self) -> bool:
        """Pass on what is there to read.

        Returns:
            False at the end of the pipe.

        Raises:
            BrokenPipeError: Nothing reads what the launcher writes.
        """
        if self.source is None:
            return False
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return True
        if not data:
            self.source = None
            return False
        lines = self.lines(data)
        write(self._sink, data if self._alone else lines)
        return True

    def drain(self) -> None:
        """Pass on all that is there to read, and the line that has no end yet."""
        for _ in range(MOST_CHUNKS):  # what left the session may go on to write
            if self.source is None or not select.select([self.source], [], [], 0)[0]:
                break
            self.pump()
        rest = self.rest()
        if rest and not self._alone:
            write(self._sink, rest)

    def lines(self, data: bytes) -> bytes:
        """The lines that end in ``data``, with the prefix; what follows is kept for the next."""
        text = self._begun + data
        pieces, start = [], 0
        for found in LINE_END.finditer(text):
            pieces.append(text[start : found.end()])
            start = found.end()
        self._begun = text[start:]
        if len(self._begun) > LONGEST:
            pieces.append(self._begun + b"\n")
            self._begun = b""
        return b"".join(map(self._shown, pieces))

    def rest(self) -> bytes:
        """A line that was begun and not ended, ended here."""
        text, self._begun = self._begun, b""
        return self._shown(text + b"\n") if text else b""

    def _shown(self, piece: bytes) -> bytes:
        self.tail.append(piece[:KEPT_BYTES].decode(errors="replace").rstrip("\r\n"))
        return self._prefix + piece


def write(sink: int, data: bytes) -> None:
    """Write all of ``data`` to a file descriptor, also one that does not wait.

    Raises:
        BrokenPipeError: Nothing reads it.
    """
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(sink, left) :]
        except BlockingIOError:
            select.select([], [sink], [])
