"""File ranges that aren't in memory: their connections wait for the disk, and no others do."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ottla.broker.log.disk import RealFile
from ottla.broker.log.residency import PAGE_CACHE
from ottla.net.connection import Connection
from ottla.net.disk_threads import THREADS_PER_VOLUME, VolumeThreads
from ottla.net.outgoing import READ_BYTES_MAX
from ottla.net.pending import KNOWN_SECONDS, READ_AHEAD_BYTES
from ottla.net.server import Limits, Server
from tests.unit.net.test_connection import ORDINARY, PIPELINED, Slice, connect, frame
from tests.unit.waiting import until

CONTENT = bytes(range(256)) * 12288  # three times the size of one read-ahead
SMALL = READ_BYTES_MAX
SOON_S = 2.0  # generous for a busy machine: a connection that waits for the disk would wait for ever


class ColdFile(RealFile):
    """A file on a disk that answers only when `answers` is set. In memory are only the pages that were read ahead."""

    __slots__ = ("answers", "asked_on_loop", "error", "reads", "warm")

    def __init__(self, volume: int = 1) -> None:
        with tempfile.TemporaryFile() as temporary:
            super().__init__(os.dup(temporary.fileno()))
        self.pwrite(CONTENT, 0)
        self.volume = volume
        self.answers = threading.Event()
        self.error: Exception | None = None
        self.reads: list[tuple[int, int]] = []
        self.warm: set[int] = set()  # the numbers of the pages in memory

    def _is_warm(self, size: int, position: int) -> bool:
        return self.cached(size, position) == size

    def cached(self, size: int, position: int) -> int:
        at = position
        while at < position + size and at // 4096 in self.warm:
            at = (at // 4096 + 1) * 4096
        return min(at, position + size) - position

    def pread_cached(self, size: int, position: int) -> bytes:
        if not self._is_warm(size, position):
            raise BlockingIOError
        return self.pread(size, position)

    def read_ahead(self, size: int, position: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.reads.append((size, position))
        self.answers.wait(30)
        if self.error is not None:
            raise self.error
        self.warm.update(range(position // 4096, (position + size - 1) // 4096 + 1))


class Broker:
    """Answers a payload `cold…` with a range of a file, and any other payload with itself."""

    def __init__(self) -> None:
        self.files = [ColdFile()]
        self.size = len(CONTENT)

    def __call__(self, connection: Connection, buffer: bytearray, start: int, end: int):
        payload = bytes(buffer[start + 8 : end])
        if payload.startswith(b"cold"):
            return [b"head", Slice(self.files[int(payload[4:5] or b"0")], 0, self.size), b"tail"]
        return [payload]


def run(scenario: Callable) -> None:
    async def main() -> None:
        broker = Broker()
        threads = VolumeThreads(idle_seconds=0.2)
        server = Server(broker, Limits(), frozenset({PIPELINED}), disk_threads=threads)
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        server.accept()
        try:
            await asyncio.wait_for(scenario(server, listener.port, broker), 30)
        finally:
            for file in broker.files:
                file.answers.set()
            await server.close()

    asyncio.run(main())


def disk_threads() -> int:
    return sum(thread.name == "disk" for thread in threading.enumerate())


@pytest.mark.parametrize("size", [100, SMALL, SMALL + 1, len(CONTENT)])
def test_a_cold_read_holds_nobody_but_its_own_connection(size):
    async def scenario(server, port, broker):
        broker.size = size
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"cold") + frame(ORDINARY, b"behind"))
        await until(lambda: bool(broker.files[0].reads))
        other, to_other = await connect(port)
        for _ in range(20):
            began = time.monotonic()
            to_other.write(frame(ORDINARY, b"beat"))
            assert await other.readexactly(4) == b"beat"
            assert time.monotonic() - began < SOON_S
        broker.files[0].answers.set()
        assert await reader.readexactly(4 + size + 4 + 6) == b"head" + CONTENT[:size] + b"tail" + b"behind"
        assert all(asked <= READ_AHEAD_BYTES for asked, _ in broker.files[0].reads)
        assert server.memory.used_bytes == 0

    run(scenario)


def test_what_is_in_memory_is_sent_before_the_rest_is_read():
    async def scenario(server, port, broker):
        cold = broker.files[0]
        cold.warm.update(range(100))
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"cold"))
        await reader.readexactly(4 + 100 * 4096)
        await until(lambda: cold.reads == [(READ_AHEAD_BYTES, 100 * 4096)])
        cold.answers.set()
        assert await reader.readexactly(len(CONTENT) - 100 * 4096 + 4) == CONTENT[100 * 4096 :] + b"tail"

    run(scenario)


def test_a_peer_that_takes_an_answer_bit_by_bit_costs_one_question_a_piece(monkeypatch):
    monkeypatch.setattr("ottla.net.outgoing.KNOWN_SECONDS", 60.0)  # long enough on a busy machine

    class Counting(ColdFile):
        questions = 0

        def cached(self, size: int, position: int) -> int:
            Counting.questions += 1
            return super().cached(size, position)

    async def scenario(server, port, broker):
        broker.files = [Counting()]
        broker.files[0].warm.update(range(len(CONTENT) // 4096))
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", port))
            (connection,) = await connections(server)
            connection._channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            await loop.sock_sendall(sock, frame(ORDINARY, b"cold"))
            got = b""
            while len(got) < 4 + len(CONTENT) + 4:
                got += await loop.sock_recv(sock, 1 << 20)
        assert got == b"head" + CONTENT + b"tail"
        assert Counting.questions == len(CONTENT) // READ_AHEAD_BYTES

    run(scenario)


async def connections(server: Server) -> list[Connection]:
    """Waits until there is an open connection; returns all open ones."""
    open_ones = server.listeners["PLAINTEXT"].connections
    await until(lambda: bool(open_ones))
    return list(open_ones)


def test_a_file_system_that_keeps_nothing_in_memory_is_read_all_the_same():
    class Forgetful(ColdFile):
        def read_ahead(self, size: int, position: int) -> None:
            self.reads.append((size, position))

    async def scenario(server, port, broker):
        broker.files = [Forgetful()]
        for size in (SMALL, len(CONTENT)):
            broker.size = size
            reader, writer = await connect(port)
            writer.write(frame(ORDINARY, b"cold"))
            assert await reader.readexactly(4 + size + 4) == b"head" + CONTENT[:size] + b"tail"

    run(scenario)


def test_who_hangs_up_while_the_disk_is_waited_for_leaves_nothing_behind():
    async def scenario(server, port, broker):
        cold = broker.files[0]
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(3 * THREADS_PER_VOLUME):
            _, writer = await connect(port)
            writer.write(frame(ORDINARY, b"cold"))
            await asyncio.sleep(0.01)
            writer.transport.abort()
        await until(lambda: not server.connection_count)
        assert server.memory.used_bytes == 0
        began = len(cold.reads)
        assert began <= THREADS_PER_VOLUME
        cold.answers.set()
        await until(lambda: not disk_threads())
        assert len(cold.reads) == began, "a file was read for a closed connection"
        assert len(os.listdir("/proc/self/fd")) <= descriptors

    run(scenario)


def test_what_was_given_up_on_a_stuck_volume_leaves_its_queue():
    """Before the fix, each connection that came and went left its read in the queue, with the open file, as long as the
    volume was stuck."""

    async def scenario(server, port, broker):
        for _ in range(5 * THREADS_PER_VOLUME):
            _, writer = await connect(port)
            writer.write(frame(ORDINARY, b"cold"))
            await asyncio.sleep(0.01)
            writer.transport.abort()
        await until(lambda: not server.connection_count)
        (volume,) = server.disk_threads._volumes.values()
        await until(lambda: not volume._waiting)
        assert not broker.files[0].answers.is_set()
        broker.files[0].answers.set()
        await until(lambda: not disk_threads())

    run(scenario)


def test_a_file_that_was_cut_while_it_was_read_ahead_closes_its_connection_only():
    async def scenario(server, port, broker):
        cold = broker.files[0]
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"cold"))
        await until(lambda: bool(cold.reads))
        cold.truncate(100_000)
        cold.answers.set()
        assert len(await reader.read(-1)) == 4 + 100_000
        other, to_other = await connect(port)
        to_other.write(frame(ORDINARY, b"beat"))
        assert await other.readexactly(4) == b"beat"

    run(scenario)


def test_a_disk_that_fails_closes_the_connection(caplog):
    caplog.set_level("INFO", "ottla.net")

    async def scenario(server, port, broker):
        cold = broker.files[0]
        cold.error = OSError(5, "Input/output error")
        cold.answers.set()
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"cold"))
        assert await reader.read(-1) == b"head"
        assert server.memory.used_bytes == 0

    run(scenario)
    assert "a file range of an answer can't be read from disk: [Errno 5] Input/output error" in caplog.text


@pytest.mark.parametrize("size", [SMALL, len(CONTENT)])
def test_an_answer_is_read_on_the_loop_where_no_thread_can_be_begun(size, monkeypatch):
    """Before the fix, the connection was closed, and so was each connection that sent the request again."""

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario(server, port, broker):
        broker.size = size
        reader, writer = await connect(port)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            writer.write(frame(ORDINARY, b"cold") + frame(ORDINARY, b"behind"))
            assert await reader.readexactly(4 + size + 4 + 6) == b"head" + CONTENT[:size] + b"tail" + b"behind"
        assert server.memory.used_bytes == 0

    run(scenario)


def test_many_cold_reads_of_a_stuck_volume_take_few_threads_and_none_from_another():
    async def scenario(server, port, broker):
        before = disk_threads()  # threads of the test before, which end when they have been idle for a while
        broker.files = [ColdFile(volume=1), ColdFile(volume=2)]
        stuck, slow = broker.files
        slow.answers.set()
        waiting = []
        for _ in range(40):
            reader, writer = await connect(port)
            writer.write(frame(ORDINARY, b"cold0"))
            waiting.append((reader, writer))
        await until(lambda: server.connection_count == 40 and len(stuck.reads) == THREADS_PER_VOLUME)
        reader, writer = await connect(port)
        writer.write(frame(ORDINARY, b"cold1"))
        assert await reader.readexactly(8 + len(CONTENT)) == b"head" + CONTENT + b"tail"
        assert len(stuck.reads) == THREADS_PER_VOLUME
        assert disk_threads() - before <= 2 * THREADS_PER_VOLUME
        assert server.memory.used_bytes == 0
        stuck.answers.set()
        for reader, _ in waiting:
            assert await reader.readexactly(8 + len(CONTENT)) == b"head" + CONTENT + b"tail"

    run(scenario)


@contextmanager
def cold_pages(size: int) -> Iterator[RealFile]:
    """A file whose pages are only on the disk. Skips the test if the file system keeps them in memory."""
    with tempfile.NamedTemporaryFile(dir=os.environ.get("OTTLA_TEST_DISK", "/var/tmp")) as named:
        os.pwrite(named.fileno(), os.urandom(size), 0)
        os.fsync(named.fileno())
        os.posix_fadvise(named.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield RealFile(os.open(named.name, os.O_RDWR))


def test_the_kernel_tells_what_is_in_memory():
    size = 4 << 20
    with cold_pages(size) as file:
        if file.cached(size, 0):
            pytest.skip("this file system keeps everything in memory")
        assert file.cached(1, size - 1) == 0
        with pytest.raises(BlockingIOError):
            file.pread_cached(100, size // 2)
        for _ in range(50):  # the kernel may take pages back as soon as they are read
            file.read_ahead(size, 0)
            if file.cached(size, 0) == size:
                break
        assert file.cached(size, 0) == size
        assert file.cached(12345, 6789) == 12345
        assert file.pread_cached(100, size // 2) == file.pread(100, size // 2)
        assert file.pread_cached(100, size - 50) == file.pread(50, size - 50)
        assert file.pread_cached(100, size) == b""
        for _ in range(50):  # the kernel skips pages that are in use at the moment
            os.posix_fadvise(file.fileno(), size // 2, size // 2, os.POSIX_FADV_DONTNEED)
            time.sleep(KNOWN_SECONDS)
            if file.cached(size, 0) <= size // 2:
                break
        assert 0 < file.cached(size, 0) <= size // 2
        assert file.cached(size, 100) <= size // 2 - 100


def test_what_was_just_written_is_in_memory():
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as named:
        file = RealFile(os.open(named.name, os.O_RDWR))
        file.pwrite(CONTENT, 0)
        assert file.cached(len(CONTENT), 0) == len(CONTENT)
        assert file.cached(len(CONTENT) - 5000, 4999) == len(CONTENT) - 5000
        assert file.pread_cached(1000, 7) == CONTENT[7:1007]


def test_what_was_written_or_found_a_moment_ago_is_not_asked_about(monkeypatch):
    asked: list[tuple[int, int]] = []
    now = 100.0

    def has_all(descriptor: int, size: int, position: int) -> bool:
        asked.append((size, position))
        return True

    monkeypatch.setattr(PAGE_CACHE, "has_all", has_all)
    monkeypatch.setattr("ottla.broker.log.residency.time.monotonic", lambda: now)
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as named:
        file = RealFile(os.open(named.name, os.O_RDWR))
        for position in range(0, 50_000, 1000):
            file.pwrite(CONTENT[:1000], position)
        assert file.cached(50_000, 0) == 50_000
        assert file.cached(1000, 49_000) == 1000
        assert asked == [], "pages that were just written count as cached, without a question to the kernel"
        now += KNOWN_SECONDS
        assert file.cached(20_000, 10_000) == 20_000
        assert file.cached(15_000, 12_000) == 15_000
        assert asked == [(20_000, 10_000)], "the kernel is asked again after KNOWN_SECONDS, once for a range"
        assert file.cached(20_000, 30_000) == 20_000
        assert file.cached(40_000, 10_000) == 40_000
        assert asked == [(20_000, 10_000), (20_000, 30_000)]
        now += KNOWN_SECONDS * 0.6
        file.pwrite(CONTENT[:1000], 50_000)
        now += KNOWN_SECONDS * 0.6
        assert file.cached(1000, 50_000) == 1000
        assert asked[2:] == [(1000, 50_000)], (
            "a write beside a known range doesn't extend the time for which the range is known"
        )
        file.truncate(40_000)
        assert file.cached(10_000, 30_000) == 10_000
        assert asked[-1] == (10_000, 30_000), "after a truncation the kernel is asked again"


def test_a_file_system_without_nowait_is_read_as_ever():
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as named:
        file = RealFile(os.open(named.name, os.O_RDWR))
        file.pwrite(CONTENT, 0)
        assert file.pread_cached(1000, 7) == CONTENT[7:1007]
        assert file.cached(len(CONTENT), 0) == len(CONTENT)


def test_a_stuck_thread_doesnt_keep_a_process_from_ending():
    program = """
import asyncio, threading
from ottla.net.disk_threads import VolumeThreads

async def main():
    VolumeThreads().run(1, threading.Event().wait)
    await asyncio.sleep(0.05)
    assert any(thread.name == "disk" for thread in threading.enumerate())

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20)


def test_a_reader_that_waits_for_a_stuck_disk_keeps_no_large_answer_from_being_begun():
    """Such a reader isn't closed. Frames with large answers hold all memory, so none of these answers would begin."""

    async def scenario(server, port, broker):
        server.memory.large_answers[ORDINARY] = 1_000_000
        _, writer = await connect(port)
        writer.write(frame(ORDINARY, b"cold"))
        await until(lambda: bool(broker.files[0].reads))
        assert server.memory.used_bytes == 0, "the range of the file doesn't count as used memory"
        server.memory.hold_frames("frames", server.memory.limit_bytes, 0.0)
        other, to_other = await connect(port)
        to_other.write(frame(ORDINARY, b"large"))
        assert await asyncio.wait_for(other.readexactly(5), 10) == b"large"
        server.memory.release("frames", 0.0)

    run(scenario)


def test_a_connection_waits_for_its_disk_and_isnt_idle():
    async def scenario(server, port, broker):
        _, writer = await connect(port)
        writer.write(frame(ORDINARY, b"cold"))
        await until(lambda: bool(broker.files[0].reads))
        (connection,) = server.listeners["PLAINTEXT"].connections
        assert not connection.idle
        assert connection.waits_for_broker
        writer.write(frame(ORDINARY, b"x" * 300_000)[:200_000])
        await until(lambda: connection._inbox is not None)
        assert not connection.waits_for_broker, "the peer has sent only part of a frame"

    run(scenario)
