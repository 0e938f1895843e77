"""An answer that comes later, and what answers are made of. Pure.

A handler that can't answer at once returns a `Pending`; the connection keeps it in its place among the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

KNOWN_SECONDS = 0.1  # for so long, what of a file was found in memory counts as being there
READ_AHEAD_BYTES = 1024 * 1024  # which a thread reads at once of what isn't in memory


class OpenFile(Protocol):
    """A file that parts of answers are read from."""

    def fileno(self) -> int: ...

    @property
    def volume(self) -> Hashable: ...

    def pread(self, size: int, position: int) -> bytes: ...

    def pread_cached(self, size: int, position: int) -> bytes | bytearray:
        """As `pread`, without waiting for the disk. Raises BlockingIOError where it would have to."""

    def cached(self, size: int, position: int) -> int:
        """How many of these bytes can be sent without waiting for the disk, before the first one that can't."""

    def read_ahead(self, size: int, position: int) -> None:
        """Brings these bytes into memory. Waits for the disk."""


class FileRange(Protocol):
    """A piece of a file to send; holding it keeps the file open."""

    @property
    def file(self) -> OpenFile: ...
    @property
    def position(self) -> int: ...
    @property
    def size(self) -> int: ...


Part = bytes | bytearray | memoryview | FileRange


class Asking(Protocol):
    """The connection that a request came by, as far as its answer needs it."""

    def answered(self) -> None:
        """One of its requests has its answer."""

    def may_go_on(self) -> None:
        """A request that couldn't start may be able to now."""

    def close(self) -> None:
        """Ends it."""


class Pending:
    """An answer that comes later. `answer` may be called once, from the event loop."""

    __slots__ = ("_connection", "abandoned", "answering", "api_key", "behind", "hurry", "overtakable", "parts", "size")

    def __init__(self, connection: Asking, api_key: int) -> None:
        self._connection: Asking | None = connection
        self.api_key = api_key
        self.size = 0  # of the request, once it waits
        self.parts: Sequence[Part] | None = None
        self.abandoned: Callable[[], None] | None = None  # called when the connection closes first
        self.answering: Callable[[], None] | None = None  # called before the answer leaves
        self.behind: int | None = None  # the API of a request that can't start before this answer
        self.hurry: Callable[[], None] | None = None  # called when there is one
        self.overtakable = False  # pipelined requests may start meanwhile

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for the answer: the connection is there, and it hasn't been given."""
        return self._connection is not None

    def answer(self, parts: Sequence[Part]) -> None:
        """Sends `parts` as soon as the answers before it are out; none means that the request has no answer."""
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
        """From now on requests of the pipelined APIs are served before this one is answered; their answers follow."""
        if self._connection is not None:
            self.overtakable = True
            self._connection.may_go_on()

    def close_connection(self) -> None:
        """For a request without an answer (acks=0) that failed: closing is all that can be said."""
        if self._connection is not None:
            self._connection.close()

    def forget(self) -> None:
        """The connection is gone."""
        self._connection = None
        if self.abandoned is not None:
            self.abandoned()
            self.abandoned = None
