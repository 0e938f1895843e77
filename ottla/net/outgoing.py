"""Sends a connection's answers, which consist of bytes and ranges of files, in order, as fast as the peer receives.

Small parts are joined for one system call, ranges of files are sent by `sendfile`. The rule that this module protects:
the event loop doesn't wait for a disk here. Bytes of a file are sent only if they are in the page cache. If the next
piece isn't, a thread of its volume reads it ahead (`DiskThreads`), and the connection's other parts wait behind it.

For a moment after a piece was read ahead, or was found in the page cache, it is sent without another check. The first
reason is that many calls may be needed until the peer has received it. The second is that a file system may cache
nothing, or a machine may be so short of memory that it drops the piece at once. Then the event loop does wait for the
disk, but every answer is sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from ottla.net.channel import Channel
from ottla.net.disk_threads import DiskThreads
from ottla.net.pending import KNOWN_SECONDS, READ_AHEAD_BYTES, FileRange, OpenFile, Part

READ_BYTES_MAX = 32 * 1024  # file ranges up to this size are read and joined with other parts, to save system calls
_JOINED_BYTES_MAX = 64 * 1024
_IN_MEMORY = (bytes, bytearray, memoryview)
_InMemory = bytes | bytearray | memoryview


class Outgoing:
    """The queue of parts on their way into one channel, on the event loop.

    The owner adds parts to `parts`. While `stopped`, nothing is sent, either because the socket's buffer is full
    (`full`) or because a piece is being read ahead. `go_on` is called when it is time to `send` again, `failed` when a
    read ahead has failed.
    """

    __slots__ = (
        "_channel",
        "_failed",
        "_go_on",
        "_known",
        "_known_until",
        "_loop",
        "_reading",
        "_threads",
        "full",
        "parts",
        "stopped",
    )

    def __init__(
        self,
        channel: Channel,
        threads: DiskThreads,
        go_on: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._channel = channel
        self._threads = threads
        self._go_on = go_on
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self.parts: deque[Part] = deque()
        self._reading: asyncio.Future[None] | None = None  # the read ahead under way
        self._known = 0  # bytes at the start of the first part that are in memory
        self._known_until = 0.0
        self.full = False
        self.stopped = False

    @property
    def held_bytes(self) -> int:
        """The bytes in memory that haven't been sent."""
        return sum(len(part) for part in self.parts if isinstance(part, _IN_MEMORY))

    def use(self, channel: Channel) -> None:
        """Sends through `channel` from now on: it moves bytes through the present channel."""
        self._channel = channel

    def send(self) -> None:
        """Sends the queued parts. Afterwards all of them are sent, or `stopped` is set. Raises OSError."""
        parts = self.parts
        try:
            while parts:
                part = parts.popleft()
                if not isinstance(part, _IN_MEMORY):
                    if part.size > READ_BYTES_MAX:
                        if not self._send_file(part):
                            return
                        continue
                    data = self._read(part)
                    if data is None:
                        if self._read_ahead(part):
                            return
                        continue
                    part = data
                if parts:
                    part = self._joined(part)
                try:
                    sent = self._channel.send(part, more=bool(parts))
                except (BlockingIOError, InterruptedError):
                    sent = 0  # the file range before this part has filled the socket's buffer
                if sent < len(part):
                    parts.appendleft(memoryview(part)[sent:])
                    raise BlockingIOError
        except (BlockingIOError, InterruptedError):
            if not self.full:
                self.full = self.stopped = True
                self._channel.on_writable(self._go_on)
            return
        if self.full:
            self._not_full()

    def close(self) -> None:
        """Drops all parts and cancels the read-ahead under way. To be called before the channel is closed."""
        if self.full:
            self._not_full()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self.parts.clear()

    def _not_full(self) -> None:
        self.full = self.stopped = False
        self._channel.not_writable()

    def _joined(self, first: _InMemory) -> _InMemory:
        """`first` and the small parts behind it joined, so that they take one system call."""
        waiting = self.parts
        parts = [first]
        size = len(first)
        while waiting and size < _JOINED_BYTES_MAX:
            part = waiting[0]
            if not isinstance(part, _IN_MEMORY):
                if part.size > READ_BYTES_MAX:
                    break
                data = self._read(part)
                if data is None:
                    break  # the range is read ahead when its turn comes
                part = data
            parts.append(part)
            size += len(part)
            waiting.popleft()
        return b"".join(parts) if len(parts) > 1 else first

    def _read(self, part: FileRange) -> _InMemory | None:
        """The bytes of a small range of a file; None if the event loop would have to wait for the disk."""
        data: _InMemory
        known = self._take_known() if self._known else 0
        try:
            data = part.file.pread_cached(part.size, part.position)
        except BlockingIOError:
            if known < part.size:
                return None
            data = part.file.pread(part.size, part.position)
        if len(data) < part.size:
            raise _cut_short()
        return data

    def _send_file(self, part: FileRange) -> bool:
        """Sends a range of a file. Returns False if it stopped because a thread must first read a piece into memory.

        Raises BlockingIOError if the socket's buffer is full.
        """
        file, position, left = part.file, part.position, part.size
        known = self._take_known()
        while left:
            if not known:
                known = file.cached(min(left, READ_AHEAD_BYTES), position)
                if not known:
                    return not self._read_ahead(_Rest(file, position, left))
                self._known_until = self._loop.time() + KNOWN_SECONDS
            try:
                sent = self._channel.send_file(file.fileno(), position, known)
            except (BlockingIOError, InterruptedError):
                self.parts.appendleft(_Rest(file, position, left))
                self._known = known
                raise
            if not sent:
                raise _cut_short()
            position += sent
            left -= sent
            known -= sent
        return True

    def _take_known(self) -> int:
        """The number of bytes at the start of the first part that are known to be in memory. Resets the number to 0."""
        known, self._known = self._known, 0
        return known if known and self._loop.time() < self._known_until else 0

    def _read_ahead(self, part: FileRange) -> bool:
        """Puts a range back into the queue, and has a thread read its first piece. Until then nothing more is sent.

        Returns False if the process can't start another thread: then the event loop reads the piece itself, and waits
        for the disk.
        """
        self.parts.appendleft(part)
        if self.full:
            self._not_full()
        size = min(part.size, READ_AHEAD_BYTES)
        try:
            reading = self._threads.run(part.file.volume, partial(part.file.read_ahead, size, part.position))
        except OSError:
            self._known, self._known_until = size, self._loop.time() + KNOWN_SECONDS
            return False
        self.stopped = True
        self._reading = reading
        reading.add_done_callback(partial(self._was_read, size))
        return True

    def _was_read(self, size: int, reading: asyncio.Future[None]) -> None:
        if reading is not self._reading:
            return  # the connection is closed
        self._reading = None
        self.stopped = False
        error = reading.exception()
        if error is None:
            self._known, self._known_until = size, self._loop.time() + KNOWN_SECONDS
            self._go_on()
        else:
            self._failed(error)


class _Rest:
    """The rest of a file range, after its beginning was sent."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: OpenFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size


def _cut_short() -> OSError:
    """The error for a file that is shorter than the answer's size field announced: the frame can't be completed."""
    return OSError(0, "a log file ends before the bytes that an answer must contain")
