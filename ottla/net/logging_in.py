"""The client's side of a login over Kafka's protocol: the requests, and streams that are logged in.

`login_requests` is the order of the requests as a generator: a task of an event loop and a blocking connection send
them in their own ways. `logged_in` makes of a `Connect` another one, whose streams have logged in before they are
handed out. Such a stream logs in anew before its session ends (KIP-368), between two requests: a broker closes a
connection over which a request comes after the session's end.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from ottla.net.streams import Connect, Stream
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.frames import request_frame, response_body
from ottla.protocol.messages import Message, milliseconds, read_response, write_request
from ottla.protocol.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE, ClientExchange, LoginRefused

HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 2
RENEWED_AT = 0.85  # the share of a session's life after which the client logs in anew, as in Java's client
ANSWER_BYTES_MAX = 1 << 20
LOGIN_SECONDS_MAX = 30.0
_CLIENT_ID = "ottla-login"
_size = struct.Struct(">i")

BeginLogin = Callable[[], ClientExchange]
"""Begins a login: a new exchange for each."""


class LoginFailed(OSError):
    """A broker was reached, but refused this process's login, or didn't prove that it knows the password."""


def login_requests(
    exchange: ClientExchange, authenticate_version: int = AUTHENTICATE_VERSION
) -> Generator[tuple[int, int, Message], Any, int]:
    """The requests of a login: yields (API key, version, message), and is sent each answer, as kio reads it. Returns
    the session's life in ms, 0 if it has no end. Raises LoginRefused."""
    answer = yield SASL_HANDSHAKE, HANDSHAKE_VERSION, {"mechanism": exchange.mechanism}
    if answer.error_code == ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(answer.mechanisms) or "none"
        raise LoginRefused(f"the broker doesn't offer the mechanism {exchange.mechanism}; it offers {offered}")
    if answer.error_code == ErrorCode.illegal_sasl_state:
        raise LoginRefused("the listener asks for no login: security.protocol must be PLAINTEXT or SSL")
    if answer.error_code != ErrorCode.none:
        raise LoginRefused(f"the broker refuses a login: {answer.error_code.name}")
    message: bytes | None = exchange.first()
    while message is not None:
        answer = yield SASL_AUTHENTICATE, authenticate_version, {"auth_bytes": message}
        if answer.error_code != ErrorCode.none:
            raise LoginRefused(answer.error_message or f"the broker refuses the login: {answer.error_code.name}")
        message = exchange.next(bytes(answer.auth_bytes))
    return milliseconds(answer.session_lifetime) if hasattr(answer, "session_lifetime") else 0


Begin = Callable[[], Awaitable[ClientExchange | None]]
"""Begins a login in a task of an event loop; None means that none is needed. Raises LoginRefused."""


def logged_in(connect: Connect, begin: Begin) -> Connect:
    """A `Connect` whose streams have logged in. `begin` is asked at each login, so that changed credentials count.
    Raises LoginFailed where the login is refused, and TimeoutError where it doesn't end
    in time."""

    async def connect_and_log_in(host: str, port: int) -> Stream:
        stream = await connect(host, port)
        logged = _LoggedInStream(stream, begin, f"{host}:{port}")
        try:
            await logged.log_in()
        except BaseException:  # also a cancelled attempt
            stream.close()
            raise
        return logged

    return connect_and_log_in


class _LoggedInStream:
    """A stream that logs in over another one. Its user sends a request only when the one before it is answered."""

    __slots__ = ("_begin", "_name", "_renewed_at", "_stream", "close", "read_exactly")

    def __init__(self, stream: Stream, begin: Begin, name: str) -> None:
        self._stream = stream
        self._begin = begin
        self._name = name
        self._renewed_at: float | None = None
        self.read_exactly = stream.read_exactly
        self.close = stream.close

    async def write(self, data: bytes) -> None:
        if self._renewed_at is not None and asyncio.get_running_loop().time() >= self._renewed_at:
            await self.log_in()
        await self._stream.write(data)

    async def log_in(self) -> None:
        """Logs in, if a login is needed. Raises LoginFailed, OSError, and TimeoutError if it doesn't end in time."""
        async with asyncio.timeout(LOGIN_SECONDS_MAX):
            await self._log_in()

    async def _log_in(self) -> None:
        self._renewed_at = None
        try:
            exchange = await self._begin()
            if exchange is None:
                return
            began = asyncio.get_running_loop().time()
            requests = login_requests(exchange)
            key, version, message = next(requests)
            for correlation_id in range(1, 100):
                await self._stream.write(
                    request_frame(key, version, correlation_id, _CLIENT_ID, write_request(key, version, message))
                )
                key, version, message = requests.send(await self._answer(key, version))
        except StopIteration as done:
            self._renewed_at = began + RENEWED_AT * done.value / 1000 if done.value else None
        except LoginRefused as refused:
            raise LoginFailed(f"the login at {self._name} failed: {refused}") from refused
        except ProtocolError as error:
            raise LoginFailed(f"the login at {self._name} failed: {error}") from error
        else:
            raise LoginFailed(f"the login at {self._name} doesn't end")

    async def _answer(self, key: int, version: int) -> Any:
        head = bytearray(_size.size)
        await self._stream.read_exactly(memoryview(head))
        (size,) = _size.unpack(head)
        if not _size.size <= size <= ANSWER_BYTES_MAX:
            raise ProtocolError(f"an answer of {size} bytes")
        frame = bytearray(size)
        await self._stream.read_exactly(memoryview(frame))
        _, start = response_body(key, version, frame)
        return read_response(key, version, bytes(frame), start)
