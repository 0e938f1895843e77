"""One blocking connection to a broker: it sends requests and receives answers, and each wait has a time-out.

The connection owns a stream, the version ranges that the broker serves (its first request, ApiVersions, asks for them)
and the order of answers. A broker answers a connection's requests in the order in which they came, so `receive` needs
only a queue of the requests that were sent. Several requests may be on the way (`send` … `send` … `receive` …
`receive`). A caller that catches `ConnectionLost` must drop the connection: after a time-out or half a frame the stream
can't be used again.

Source: KIP-511, for the fallback if a broker doesn't serve this client's version of ApiVersions.
"""

from __future__ import annotations

import itertools
import math
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.fetch_response import FetchedPartition, read_fetch_response
from ottla.protocol.frames import API_VERSIONS, request_frame, response_body
from ottla.protocol.messages import Message, read_response, write_request
from ottla.protocol.sasl import SASL_AUTHENTICATE

from .logging_in import RENEWED_AT, BeginLogin, login_requests
from .names import Address
from .secured import Secured
from .streams import SPEAKS_TLS, TLS_ALERT, BlockingStream

RESPONSE_BYTES_MAX = 1 << 30
_Answer = TypeVar("_Answer")
_size = struct.Struct(">i")


class ConnectionLost(ConnectionError):
    """The connection to `address` failed. The broker may or may not have carried out the request under way."""

    def __init__(self, message: str, address: Address) -> None:
        super().__init__(message)
        self.address = address


class UnsupportedVersion(Exception):
    """The broker serves none of the versions of an API that this client supports."""


class Connection:
    """A connection that is open from construction until `close`. Not safe to share between threads.

    `timeout_s` bounds the wait for the whole answer to one request. `connect_timeout_s` bounds the opening of the
    connection. `open_by` (in time.monotonic's seconds) is a deadline for the opening together with the exchange of
    versions, because a listener may accept a connection and then stay silent. `security` encrypts the
    connection and logs in, if the listener asks for it; a login that the broker refuses raises LoginRefused, and isn't
    worth another attempt. `through` is the address to connect to, if it isn't the broker's own one, such as that of a
    port-forward; the broker's certificate has to be for its own address all the same.
    """

    def __init__(
        self,
        address: Address,
        client_id: str,
        *,
        timeout_s: float = 30.0,
        connect_timeout_s: float = 10.0,
        open_by: float = math.inf,
        security: Secured | None = None,
        through: tuple[str, int] | None = None,
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._deadline = open_by
        self._begin_login = None if security is None else security.begin_login
        self._renewed_at = math.inf  # the time at which the client logs in anew, before its session ends
        self._correlation_ids = itertools.count()
        self._buffer = bytearray(1 << 16)
        self._sent: deque[tuple[int, int, int]] = deque()  # (correlation id, API key, version) not yet answered
        try:
            allowed_s = min(connect_timeout_s, max(open_by - time.monotonic(), 0.001))
            tls = None if security is None else security.tls
            self._stream = BlockingStream(through or address, allowed_s, tls, address[0])
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {address}: {_reason(error)}", address) from error
        try:
            self._versions = self._ask_versions()
            if self._begin_login is not None:
                self._log_in(self._begin_login)
        except BaseException:  # also Ctrl-C
            self.close()
            raise
        self._deadline = math.inf

    def version(self, api_key: int, lowest: int, highest: int) -> int:
        """The API's newest version in [lowest, highest] that the broker serves. Raises UnsupportedVersion."""
        served = self._versions.get(api_key)
        if served is None or served[0] > highest or served[1] < lowest:
            has = "no version" if served is None else f"versions {served[0]} to {served[1]}"
            raise UnsupportedVersion(
                f"{self.address} serves {has} of API {api_key}, and this client needs one of {lowest} to {highest}"
            )
        return min(served[1], highest)

    def request(
        self, api_key: int, version: int, message: Message, *, extra_s: float = 0.0, within_s: float | None = None
    ) -> Any:
        """Sends one request and waits for its answer.

        `extra_s`, the time for which the broker itself may delay the answer, is added to the connection's time-out.
        `within_s` is a time-out in place of that sum.
        """
        self.send(api_key, version, message)
        return self.receive(extra_s=extra_s if within_s is None else within_s - self._timeout_s)

    def send(self, api_key: int, version: int, message: Message, *, answered: bool = True) -> None:
        """Sends one request. `answered` is False only for Produce with acks=0, to which brokers send no answer."""
        if time.monotonic() >= self._renewed_at and self._begin_login is not None and not self._sent:
            self._log_in(self._begin_login)
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        frame = request_frame(
            api_key, version, correlation_id, self._client_id, write_request(api_key, version, message)
        )
        try:
            self._stream.write(frame, self._timeout_s)
        except OSError as error:
            raise ConnectionLost(f"sending to {self.address} failed: {_reason(error)}", self.address) from error
        if answered:
            self._sent.append((correlation_id, api_key, version))

    def receive(self, *, extra_s: float = 0.0) -> Any:
        """The answer to the oldest unanswered request, as an object of the library kio."""

        def read(api_key: int, version: int, frame: memoryview, position: int) -> Any:
            if api_key == API_VERSIONS and bytes(frame[position : position + 2]) == b"\x00\x23":
                version = 0  # a broker that lacks the request's version answers by version 0, with error 35
            return read_response(api_key, version, bytes(frame), position)

        return self._receive(read, extra_s)

    def receive_fetched(self, *, extra_s: float = 0.0) -> tuple[ErrorCode, list[FetchedPartition]]:
        """The answer to the oldest unanswered request, which must be a Fetch: its error and its partitions.

        The partitions' records are views of the connection's buffer, valid until the next answer is received.
        """
        return self._receive(lambda _, version, frame, at: read_fetch_response(version, frame, at), extra_s)

    def _receive(self, read: Callable[[int, int, memoryview, int], _Answer], extra_s: float) -> _Answer:
        correlation_id, api_key, version = self._sent.popleft()
        frame = self._read_frame(min(time.monotonic() + self._timeout_s + extra_s, self._deadline))
        try:
            answered_id, position = response_body(api_key, version, frame)
            if answered_id != correlation_id:
                raise ProtocolError(f"the answer's correlation id is {answered_id}, the request's was {correlation_id}")
            return read(api_key, version, frame, position)
        except (ProtocolError, struct.error, IndexError) as error:
            message = f"{self.address} sent an invalid answer: {error}"
            raise ConnectionLost(message, self.address) from error

    def answers_within(self, seconds: float) -> bool:
        """Whether the next answer begins to arrive, or the connection ends, within `seconds`."""
        return self._stream.readable_within(seconds)

    @property
    def unanswered(self) -> int:
        """The number of requests that wait for their answer."""
        return len(self._sent)

    def close(self) -> None:
        """Closes the connection; safe to call twice."""
        self._stream.close()

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        names = {"client_software_name": "ottla", "client_software_version": "0.1.0"}
        answer = self.request(API_VERSIONS, 3, names)
        if answer.error_code == ErrorCode.unsupported_version:
            answer = self.request(API_VERSIONS, 0, {})
        if answer.error_code != ErrorCode.none:
            raise ConnectionLost(f"{self.address} refused ApiVersions: {answer.error_code.name}", self.address)
        return {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}

    def _log_in(self, begin: BeginLogin) -> None:
        began, self._renewed_at = time.monotonic(), math.inf
        requests = login_requests(begin(), self.version(SASL_AUTHENTICATE, 0, 2))
        try:
            request = next(requests)
            while True:
                request = requests.send(self.request(*request))
        except StopIteration as done:
            if done.value:
                self._renewed_at = began + RENEWED_AT * done.value / 1000

    def _read_frame(self, deadline: float) -> memoryview:
        head = self._read_exactly(4, deadline)
        if head[:2] == TLS_ALERT:
            raise ConnectionLost(f"{self.address} {SPEAKS_TLS}", self.address)
        size = _size.unpack(head)[0]
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            message = f"{self.address} announced an answer of {size} bytes; is it a Kafka listener?"
            raise ConnectionLost(message, self.address)
        return self._read_exactly(size, deadline)

    def _read_exactly(self, size: int, deadline: float) -> memoryview:
        """The next `size` bytes, as a view of a buffer that the next call overwrites."""
        if size > len(self._buffer):
            self._buffer = bytearray(
                size
            )  # kept for later answers, because new memory has to be cleared, which costs as much as a copy
        view = memoryview(self._buffer)[:size]
        filled = 0
        while filled < size:
            try:
                received = self._stream.read_into(view[filled:], max(deadline - time.monotonic(), 0.001))
            except OSError as error:
                raise ConnectionLost(f"waiting for {self.address} failed: {_reason(error)}", self.address) from error
            if received == 0:
                raise ConnectionLost(f"{self.address} closed the connection", self.address)
            filled += received
        return view


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return error.strerror or str(error)
