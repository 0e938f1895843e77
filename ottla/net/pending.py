"""Answers that come later (`Pending`), and the parts of which answers are made (`Part`). Pure.

A handler that can't answer immediately returns a `Pending`. The connection keeps it in its place among the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

KNOWN_SECONDS = 0.1  # for this time after they were found in memory, bytes of a file count as being in memory
READ_AHEAD_BYTES = 1024 * 1024  # the bytes of a file that a thread reads at once if they aren't in memory


class OpenFile(Protocol):
    """A file from which parts of answers are read."""

    def fileno(self) -> int: ...

    @property
    def volume(self) -> Hashable: ...

    def pread(self, size: int, position: int) -> bytes: ...

    def pread_cached(self, size: int, position: int) -> bytes | bytearray:
        """The same as `pread`, without waiting for the disk. Raises BlockingIOError if `pread` would have to wait."""

    def cached(self, size: int, position: int) -> int:
        """How many bytes from `position` on, at most `size`, can be sent without waiting for the disk."""

    def read_ahead(self, size: int, position: int) -> None:
        """Reads `size` bytes from `position` on into the page cache. Waits for the disk."""


class FileRange(Protocol):
    """A piece of a file to send. While a reference to it exists, the file stays open."""

    @property
    def file(self) -> OpenFile: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...


Part = bytes | bytearray | memoryview | FileRange


class Asking(Protocol):
    """The connection by which a request came, with only those methods that its `Pending` calls."""

    def answered(self) -> None:
        """Called when one of the connection's requests has got its answer."""

    def may_go_on(self) -> None:
        """Called when a request that couldn't start may be able to start now."""

    def close(self) -> None:
        """Closes the connection."""


class Pending:
    """An answer that comes later. `answer` may be called once, from the event loop."""

    __slots__ = ("_connection", "abandoned", "answering", "api_key", "behind", "hurry", "overtakable", "parts", "size")

    def __init__(self, connection: Asking, api_key: int) -> None:
        self._connection: Asking | None = connection
        self.api_key = api_key
        self.size = 0  # the request's bytes, set when the request begins to wait in the pipeline
        self.parts: Sequence[Part] | None = None
        self.abandoned: Callable[[], None] | None = None  # called when the connection closes before the answer
        self.answering: Callable[[], None] | None = None  # called before the answer is sent
        self.behind: int | None = None  # the API of a request that waits for this answer
        self.hurry: Callable[[], None] | None = None  # called when a request waits for this answer
        self.overtakable = False  # pipelined requests may start before this answer

    @property
    def wanted(self) -> bool:
        """Whether the connection still waits for the answer: it is open, and has no answer yet."""
        return self._connection is not None

    def answer(self, parts: Sequence[Part]) -> None:
        """Sends `parts` as soon as all earlier answers are sent. Without parts, the request has no answer."""
        connection = self._connection
        if connection is None:
            return
        self.parts = parts
        self._connection = None
        self.abandoned = None
        if self.answering is not None:
            self.answering()
        connection.answered()

    def let_others_start(self) -> None:
        """From now on requests of the pipelined APIs may start before this answer. It is still sent before theirs."""
        if self._connection is not None:
            self.overtakable = True
            self._connection.may_go_on()

    def close_connection(self) -> None:
        """Closes the connection because a request without an answer (acks=0) failed: the client can't learn of the
        failure in another way."""
        if self._connection is not None:
            self._connection.close()

    def forget(self) -> None:
        """Drops the answer, because the connection was closed."""
        self._connection = None
        if self.abandoned is not None:
            self.abandoned()
            self.abandoned = None
