"""A process's output as lines, whatever bytes it writes and however much of them."""

from __future__ import annotations

import codecs
import io
import os
from typing import IO

CHUNK_BYTES = 64 * 1024
MAX_LINE_CHARS = 1024 * 1024  # a longer line is passed on in pieces, so that memory stays bounded


class LineSplitter:
    """Turns chunks of bytes into whole lines of text.

    Bytes that are not UTF-8 become U+FFFD. A carriage return ends a line too: each state of a
    progress bar is then a line, instead of one line that grows for ever.
    """

    def __init__(self) -> None:
        utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder = io.IncrementalNewlineDecoder(utf8, translate=True)
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that these bytes complete, without their ends."""
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        if len(self._rest) >= MAX_LINE_CHARS:
            lines.append(self._rest)
            self._rest = ""
        return lines

    def finish(self) -> list[str]:
        """Return what is left at the end of the output: a last line without an end, if any."""
        *lines, last = (self._rest + self._decoder.decode(b"", final=True)).split("\n")
        self._rest = ""
        return [*lines, last] if last else lines


class OutputPipe:
    """The reading end of one stream of a process; never blocks."""

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe
        self._splitter = LineSplitter()

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self._pipe.fileno()

    @property
    def closed(self) -> bool:
        """Tell whether `close` was called."""
        return self._pipe.closed

    def read_lines(self) -> list[str] | None:
        """Return the lines of one chunk, or `None` when the process has closed the stream."""
        try:
            data = os.read(self._pipe.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return []
        return self._splitter.feed(data) if data else None

    def close(self) -> list[str]:
        """Close the pipe and return the last line, if it had no end."""
        self._pipe.close()
        return self._splitter.finish()
