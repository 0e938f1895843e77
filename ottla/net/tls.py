"""The TLS channel: a connection whose bytes are encrypted, beside the plain one of `ottla.net.channel`.

OpenSSL's state machine works on two buffers in memory, and this module moves their content to and from the socket by
the event loop's callbacks. Of six ways this one took the least CPU time, because it makes one system call for many
records of 16 KiB. Files can't be sent by `sendfile`: their bytes are read and encrypted. They are read only while they
are in the page cache, by the same rule as for `sendfile` (`ottla.net.outgoing`).

1. Bytes that were encrypted must be sent as they are. So `send` counts bytes as sent once they are encrypted; if the
   socket doesn't take them, the channel keeps them, sends them as soon as it can, and takes no others before. That
   are at most `CHUNK_BYTES` and their overhead.
2. Bytes that were received may lie decrypted or encrypted in the channel while the socket has none, so the channel
   itself calls the callback of `on_readable` again, in a turn (`ottla.net.turns`).
3. OpenSSL's buffers in memory never shrink, so they get small pieces. That bounds the memory of an idle connection.
4. A client that takes its answers fast can't hold the event loop: after `TURN_BYTES` the channel says that it is full,
   until the loop's next turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable

from ottla.net.handshakes import HANDSHAKE_SECONDS, Handshakes
from ottla.net.turns import Readers, Turns
from ottla.protocol.received import Buffer

CHUNK_BYTES = 64 * 1024  # plain bytes that are encrypted at once
TURN_BYTES = 1024 * 1024
_FED_BYTES = 32 * 1024  # encrypted bytes that OpenSSL gets at once
_UNREAD_BYTES_MAX = 64 * 1024  # of answers that TLS makes by itself
_RECORD_BYTES = 16 * 1024 + 512  # the size of a record, and more than its overhead
_HANDSHAKE_BYTES_MAX = 256 * 1024  # a client's certificates are far smaller
_PLAINTEXT = (
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "WRONG_VERSION_NUMBER",
    "UNEXPECTED_MESSAGE",
    "RECORD_LAYER_FAILURE",
)

Succeeded = Callable[["TlsChannel"], None]
Failed = Callable[[str], None]


class TlsChannel:
    """A connected socket that doesn't block, and speaks TLS as a server. `handshake` must be called first."""

    __slots__ = (
        "_allowance",
        "_closed",
        "_context",
        "_descriptor",
        "_ended",
        "_failed",
        "_failure",
        "_handshake_bytes",
        "_handshakes",
        "_incoming",
        "_loop",
        "_outgoing",
        "_readable",
        "_readers",
        "_socket",
        "_succeeded",
        "_tls",
        "_turns",
        "_unsent",
        "_waited_s",
        "_waits_since",
        "_writable",
    )

    def __init__(
        self, connected: socket.socket, handshakes: Handshakes, turns: Turns, readers: Readers | None = None
    ) -> None:
        """`readers` calls back when bytes have arrived; by default the event loop does. Reads of bytes that the channel
        has already wait in `turns`."""
        self._socket = connected
        self._descriptor = connected.fileno()
        self._loop = asyncio.get_running_loop()
        self._readers: Readers = self._loop if readers is None else readers
        self._handshakes = handshakes
        self._turns = turns
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._context: Callable[[], ssl.SSLContext] | None = None  # set during the handshake
        self._succeeded: Succeeded | None = None
        self._failed: Failed | None = None
        self._handshake_bytes = 0
        self._waited_s = 0.0  # how long the handshake has waited for the peer
        self._waits_since: float | None = None
        self._readable: Callable[[], None] | None = None
        self._writable: Callable[[], None] | None = None
        self._unsent: memoryview | None = None  # encrypted bytes that the socket hasn't taken
        self._allowance = TURN_BYTES
        self._failure: OSError | None = None
        self._ended = False  # whether the peer has said that it sends no more
        self._closed = False

    # ---- the handshake

    def handshake(self, context: Callable[[], ssl.SSLContext], succeeded: Succeeded, failed: Failed) -> None:
        """Begins the handshake. At its end `succeeded` or `failed` is called, the latter with the reason, which is
        empty if the peer went away without a byte. `context` is called when the peer has sent its first bytes."""
        self._context, self._succeeded, self._failed = context, succeeded, failed
        self._handshakes.begin(self)
        self._await_peer()

    @property
    def peer_certificate(self) -> bytes | None:
        """The DER of the certificate that the peer has shown and that was verified; None if the peer has shown none."""
        assert self._tls is not None
        return self._tls.getpeercert(binary_form=True)

    def give_up_if_late(self, now: float) -> None:
        """See `UnderWay`."""
        if self._waits_since is not None and self._waited_s + now - self._waits_since > HANDSHAKE_SECONDS:
            self._handshake_failed(f"it didn't end within {HANDSHAKE_SECONDS:g} s")

    def _await_peer(self) -> None:
        self._waits_since = self._loop.time()
        self._readers.add_reader(self._descriptor, self._peer_has_sent)

    def _peer_has_sent(self) -> None:
        self._readers.remove_reader(self._descriptor)
        assert self._waits_since is not None
        self._waited_s += self._loop.time() - self._waits_since
        self._waits_since = None
        self._handshakes.turns.wait(self._step)

    def _step(self) -> None:
        """Takes the handshake as far as it gets with the bytes that have arrived."""
        if self._closed or self._context is None:
            return
        raw = memoryview(self._handshakes.raw)[:_FED_BYTES]
        try:
            received = self._socket.recv_into(raw)
        except (BlockingIOError, InterruptedError):
            self._await_peer()
            return
        except OSError as error:
            self._handshake_failed(error.strerror or str(error))
            return
        if not received:
            self._handshake_failed("the peer hung up" if self._handshake_bytes else "")
            return
        self._handshake_bytes += received
        self._incoming.write(raw[:received])
        try:
            if self._tls is None:
                if self._has_hung_up():
                    self._handshake_failed("the peer hung up before its turn")
                    return
                self._tls = self._context().wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._handshake_bytes > _HANDSHAKE_BYTES_MAX:
                self._handshake_failed(f"the peer has sent more than {_HANDSHAKE_BYTES_MAX} bytes")
            elif self._flushed_handshake():
                self._await_peer()
            return
        except (ssl.SSLError, ValueError) as error:
            self._flushed_handshake()
            self._handshake_failed(reason_of(error))
            return
        if not self._flushed_handshake():
            return
        self._handshakes.end(self)
        succeeded = self._succeeded
        self._context = self._succeeded = self._failed = None
        assert succeeded is not None
        succeeded(self)
        if not self._closed and self._readable is not None:
            self.on_readable(self._readable)

    def _has_hung_up(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def _flushed_handshake(self) -> bool:
        """Sends what the handshake has to send: a few kilobytes, which a new connection's buffer takes."""
        data = self._outgoing.read()
        if not data:
            return True
        if self._unsent is not None:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return True
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._handshake_failed(error.strerror or str(error))
            return False
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self._loop.add_writer(self._descriptor, self._writable_again)
        return True

    def _handshake_failed(self, reason: str) -> None:
        self._handshakes.end(self)
        with contextlib.suppress(OSError):  # with unread bytes, the close would be a reset that overtakes the alert
            self._socket.recv_into(self._handshakes.raw)
        failed = self._failed
        self._context = self._succeeded = self._failed = None
        if failed is not None:
            failed(reason)

    # ---- bytes

    def receive_into(self, buffer: Buffer) -> int:
        """See `Channel`. Raises ssl.SSLError, an OSError, for bytes that aren't TLS or were changed."""
        if self._failure is not None:
            raise self._failure
        tls, incoming = self._tls, self._incoming
        assert tls is not None
        into = memoryview(buffer)
        filled = self._decrypted(tls, into, 0) if incoming.pending or tls.pending() else 0
        if not filled:
            if self._ended:
                return 0
            raw = memoryview(self._handshakes.raw)
            received = self._socket.recv_into(raw[: len(into) + _RECORD_BYTES])
            if not received:
                return 0  # without a close-notify, too: frames have sizes, so a cut can't make a whole frame
            for begin in range(0, received, _FED_BYTES):
                incoming.write(raw[begin : min(begin + _FED_BYTES, received)])
                filled = self._decrypted(tls, into, filled)
        if self._outgoing.pending and self._unsent is None:
            self._send_encrypted(more=False)  # an answer to an update of keys, or an alert
        elif self._outgoing.pending > _UNREAD_BYTES_MAX:
            raise ConnectionError("the peer asks for new keys again and again, and reads nothing")
        if self._ended or (filled == len(into) and (incoming.pending or tls.pending())):
            self._turns.wait(self._readable_again)
        if not filled and not self._ended:
            raise BlockingIOError
        return filled

    def _decrypted(self, tls: ssl.SSLObject, into: memoryview, filled: int) -> int:
        """Decrypts to into[filled:] as much as there is, and returns where it ends."""
        size = len(into)
        try:
            while filled < size:
                count = tls.read(size - filled, into[filled:])
                if not count:
                    self._ended = True
                    break
                filled += count  # type: ignore[operator]
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._ended = True
        return filled

    def send(self, data: Buffer, *, more: bool) -> int:
        """See `Channel`."""
        self._may_send()
        view = memoryview(data)
        sent = 0
        size = len(view)
        while sent < size:
            chunk = view[sent : sent + CHUNK_BYTES]
            self._encrypt(chunk)
            sent += len(chunk)
            if not self._send_encrypted(more=more or sent < size) or self._allowance <= 0:
                break
        return sent

    def send_file(self, descriptor: int, position: int, size: int) -> int:
        """See `Channel`. The bytes must be in the page cache."""
        self._may_send()
        chunk = os.pread(descriptor, min(size, CHUNK_BYTES), position)
        if chunk:
            self._encrypt(chunk)
            self._send_encrypted(more=len(chunk) < size)
        return len(chunk)

    def _may_send(self) -> None:
        """Raises BlockingIOError while earlier bytes wait, or the turn's bytes are used up."""
        if self._failure is not None:
            raise self._failure
        if self._unsent is not None or self._allowance <= 0:
            raise BlockingIOError

    def _encrypt(self, chunk: Buffer) -> None:
        assert self._tls is not None
        self._tls.write(chunk)
        self._allowance -= len(chunk)

    def _send_encrypted(self, *, more: bool) -> bool:
        """Sends the encrypted bytes. Returns False if the socket didn't take all of them. Raises OSError."""
        data = self._outgoing.read()
        try:
            sent = self._socket.send(data, socket.MSG_MORE if more else 0)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent == len(data):
            return True
        self._unsent = memoryview(data)[sent:]
        self._loop.add_writer(self._descriptor, self._writable_again)
        return False

    # ---- callbacks

    def on_readable(self, callback: Callable[[], None]) -> None:
        """See `Channel`. During the handshake the callback isn't called."""
        self._readable = callback
        if self._context is None and self._tls is not None:
            self._readers.add_reader(self._descriptor, callback)
            if self._incoming.pending or self._tls.pending() or self._ended or self._failure is not None:
                self._turns.wait(self._readable_again)

    def not_readable(self) -> None:
        """See `Channel`."""
        self._readable = None
        if self._context is None:
            self._readers.remove_reader(self._descriptor)

    def _readable_again(self) -> None:
        if self._readable is not None and not self._closed:
            self._readable()

    def on_writable(self, callback: Callable[[], None]) -> None:
        """See `Channel`."""
        self._writable = callback
        self._loop.add_writer(self._descriptor, self._writable_again)

    def not_writable(self) -> None:
        """See `Channel`."""
        self._writable = None
        if self._unsent is None:
            self._loop.remove_writer(self._descriptor)

    def _writable_again(self) -> None:
        """Sends the bytes that waited; then more can be sent."""
        if self._unsent is not None:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._failure, self._unsent = error, None
                self._loop.remove_writer(self._descriptor)
                if self._writable is not None:
                    self._writable()  # which meets the failure, also while nothing is read from the connection
                else:
                    self._readable_again()
                return
            if sent < len(self._unsent):
                self._unsent = self._unsent[sent:]
                return
            self._unsent = None
        self._allowance = TURN_BYTES
        if self._writable is not None:
            self._writable()
        else:
            self._loop.remove_writer(self._descriptor)

    def close(self) -> None:
        """See `Channel`. Says goodbye (close-notify) if that takes no wait."""
        if self._closed:
            return
        self._closed = True
        self._handshakes.end(self)
        established = self._context is None and self._tls is not None and self._failure is None
        self._context = self._succeeded = self._failed = self._readable = self._writable = None
        self._readers.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        if established and self._unsent is None:
            self._say_goodbye()
        self._socket.close()

    def _say_goodbye(self) -> None:
        assert self._tls is not None
        with contextlib.suppress(ssl.SSLError, ValueError):  # mostly SSLWantReadError: the peer's goodbye isn't awaited
            self._tls.unwrap()
        with contextlib.suppress(OSError):
            if data := self._outgoing.read():
                self._socket.send(data)


def reason_of(error: Exception) -> str:
    """A few words on why a handshake failed."""
    if not isinstance(error, ssl.SSLError):
        return str(error)
    reason = error.reason or error.strerror or str(error)
    if reason in _PLAINTEXT:
        return f"the peer doesn't speak TLS ({reason})"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate isn't trusted: {error.verify_message}"
    return reason
