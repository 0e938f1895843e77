"""The requests of a login in their order, up to the first request that a connection may make as a user. Pure.

A conversation gets one frame after the other and says what follows from each: an answer, the user, or a refusal. Until
a user is logged in, these frames are accepted and no others; each other one ends the connection:

1. at most one ApiVersions, at the beginning; one of a version that isn't served doesn't count (KIP-511);
2. a SaslHandshake, which names a mechanism. Version 1 says that the messages come as SaslAuthenticate requests, version
   0 that they come as they are, with their size in front of them. An unknown mechanism is answered by the known ones;
3. the messages of the mechanism.

An authenticated client logs in anew by the steps 2 and 3 (KIP-368), by the same mechanism and as the same user. Source:
Apache Kafka 4.3's SaslServerAuthenticator.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ottla.net.pipeline import FRAME_BYTES_MIN
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.flexible import is_flexible
from ottla.protocol.frames import API_VERSIONS, read_request_header, response_frame, skip_tagged_fields
from ottla.protocol.messages import latest_version, read_request, write_response
from ottla.protocol.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE, LoggedIn, LoginRefused, ServerExchange, refusal

API_VERSIONS_MAX = 4
MESSAGE_BYTES_MAX = 80 * 1024  # the longest token has 64 KiB; longer messages would hold the event loop
_size = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Mechanism:
    """A mechanism that a listener offers. `begin` begins a login by it. `session_ms_max` is the longest session, in ms;
    0 means that sessions have no end."""

    begin: Callable[[], ServerExchange]
    session_ms_max: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """A user who is logged in: by which mechanism, and until when, in ms since the Unix epoch (None: for ever)."""

    user: str
    mechanism: str
    expires_ms: int | None = None
    by_token: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a frame.

    `answer` is a whole frame. With `refused`, a reason for the log, the connection is closed after the answer; answer
    and close come after a delay if the refusal is one that costs an attacker time (`delayed`). With `serve`, the frame
    is an ApiVersions request for the usual handler. `session` ends the login.
    """

    answer: bytes | None = None
    refused: str = ""
    delayed: bool = False
    serve: bool = False
    session: Session | None = None


class _Step(enum.Enum):
    GREETING = enum.auto()  # ApiVersions or SaslHandshake
    HANDSHAKE = enum.auto()
    REQUESTS = enum.auto()  # messages in SaslAuthenticate requests
    MESSAGES = enum.auto()  # messages as they are
    WRONG_MECHANISM = enum.auto()  # another login of the same user began with another mechanism


class Conversation:
    """One login. `before` is the session of a client that logs in anew."""

    def __init__(self, mechanisms: Mapping[str, Mechanism], before: Session | None = None) -> None:
        self._mechanisms = mechanisms
        self._before = before
        self._step = _Step.GREETING if before is None else _Step.HANDSHAKE
        self._mechanism = ""
        self._exchange: ServerExchange | None = None

    @property
    def frame_bytes_min(self) -> int:
        """The smallest frame that can come next: a message without a header may be empty."""
        return 0 if self._step is _Step.MESSAGES else FRAME_BYTES_MIN

    def arrived(self, frame: bytes, now_ms: int) -> Outcome:
        """What follows from the next frame, without its size. Raises ProtocolError for a malformed frame."""
        if self._step is _Step.MESSAGES:
            return self._message(frame, now_ms)
        if self._step is _Step.WRONG_MECHANISM:
            assert self._before is not None
            return Outcome(
                refused=f"another login by {self._mechanism} after one by {self._before.mechanism}", delayed=True
            )
        key, version, correlation_id, _, position = read_request_header(frame)
        if self._step is _Step.REQUESTS:
            return self._request(key, version, correlation_id, frame, position, now_ms)
        if key == API_VERSIONS and self._step is _Step.GREETING:
            if version <= API_VERSIONS_MAX:
                self._step = _Step.HANDSHAKE
            return Outcome(serve=True)
        if key == SASL_HANDSHAKE:
            return self._handshake(version, correlation_id, frame, position)
        return Outcome(refused=f"a request of API {key} before the login", delayed=key != API_VERSIONS)

    def _handshake(self, version: int, correlation_id: int, frame: bytes, position: int) -> Outcome:
        if not 0 <= version <= latest_version(SASL_HANDSHAKE):
            raise ProtocolError(f"version {version} of SaslHandshake isn't served")
        name = read_request(SASL_HANDSHAKE, version, frame, position).mechanism
        mechanism = self._mechanisms.get(name)
        error = ErrorCode.unsupported_sasl_mechanism if mechanism is None else ErrorCode.none
        body = write_response(SASL_HANDSHAKE, version, {"error_code": error, "mechanisms": tuple(self._mechanisms)})
        answer = response_frame(SASL_HANDSHAKE, version, correlation_id, body)
        if mechanism is None:
            return Outcome(answer, refused="the listener doesn't offer the client's mechanism", delayed=True)
        self._mechanism = name
        if self._before is not None and self._before.mechanism != name:
            self._step = _Step.WRONG_MECHANISM
        else:
            self._exchange = mechanism.begin()
            self._step = _Step.REQUESTS if version else _Step.MESSAGES
        return Outcome(answer)

    def _request(
        self, key: int, version: int, correlation_id: int, frame: bytes, position: int, now_ms: int
    ) -> Outcome:
        if key == SASL_HANDSHAKE and 0 <= version <= latest_version(SASL_HANDSHAKE):
            body = write_response(SASL_HANDSHAKE, version, {"error_code": ErrorCode.illegal_sasl_state})
            answer = response_frame(key, version, correlation_id, body)
            return Outcome(answer, refused="a second SaslHandshake during a login", delayed=True)
        if key != SASL_AUTHENTICATE:
            return Outcome(refused=f"a request of API {key} during the login", delayed=True)
        if not 0 <= version <= latest_version(SASL_AUTHENTICATE):
            raise ProtocolError(f"version {version} of SaslAuthenticate isn't served")
        if is_flexible(key, version):
            position = skip_tagged_fields(frame, position)
        message = bytes(read_request(key, version, frame, position).auth_bytes)
        fields: dict[str, object] = {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": b""}
        session, refused = None, ""
        try:
            reply = self._respond(message)
            if isinstance(reply, LoggedIn):
                session, lifetime_ms = self._session(reply, now_ms)
                fields |= {"auth_bytes": reply.message, "session_lifetime": lifetime_ms}
            else:
                fields |= {"auth_bytes": reply}
        except LoginRefused as error:
            refused = f"login refused, {self._mechanism}: {error.why}"
            fields |= {
                "error_code": ErrorCode.sasl_authentication_failed,
                "error_message": str(error),
                "auth_bytes": b"",
            }
        answer = response_frame(key, version, correlation_id, write_response(key, version, fields))
        return Outcome(answer, refused=refused, delayed=bool(refused), session=session)

    def _message(self, message: bytes, now_ms: int) -> Outcome:
        try:
            reply = self._respond(message)
            if not isinstance(reply, LoggedIn):
                return Outcome(_size.pack(len(reply)) + reply)
            session, _ = self._session(reply, now_ms)
        except LoginRefused as error:
            return Outcome(refused=f"login refused, {self._mechanism}: {error.why}", delayed=True)
        return Outcome(_size.pack(len(reply.message)) + reply.message, session=session)

    def _respond(self, message: bytes) -> bytes | LoggedIn:
        assert self._exchange is not None
        if len(message) > MESSAGE_BYTES_MAX:
            raise LoginRefused(refusal(self._mechanism), f"a message of {len(message)} bytes")
        reply = self._exchange.respond(message)
        if isinstance(reply, LoggedIn) and self._before is not None and reply.user != self._before.user:
            raise LoginRefused(
                f"Cannot change principals during re-authentication from User.{self._before.user}: User.{reply.user}",
                "another user than before",
            )
        return reply

    def _session(self, user: LoggedIn, now_ms: int) -> tuple[Session, int]:
        """(the session of a user who has just logged in, its life in ms; 0 if it has no end or ends at once)."""
        longest_ms = self._mechanisms[self._mechanism].session_ms_max
        ends = [now_ms + longest_ms] if longest_ms > 0 else []
        if user.expires_ms is not None:
            ends.append(user.expires_ms)
        expires_ms = min(ends, default=None)
        session = Session(user.user, self._mechanism, expires_ms, user.by_token)
        return session, 0 if expires_ms is None else max(expires_ms - now_ms, 0)
