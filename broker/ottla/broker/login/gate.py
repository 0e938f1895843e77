"""A connection's login: gives the frames to a conversation, sends its answers, and lets the user in.

`Gate` gets the frames until a user is logged in. If the user's session has an end, a `Session` stands between the
connection and the broker afterwards: it lets the client log in anew, at most once a second, and closes the connection
at the first request after the end (KIP-368). The answer to a refused login, and the close behind it, come after a delay
(`connection.failed.authentication.delay.ms`), in which the connection isn't read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.broker.login.conversation import Conversation, Mechanism, Outcome
from ottla.broker.login.conversation import Session as UserSession
from ottla.net.connection import Connection
from ottla.net.pending import Pending
from ottla.net.pipeline import api_key_of
from ottla.protocol.errors import ProtocolError
from ottla.protocol.received import Memory
from ottla.protocol.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE, NotYet

if TYPE_CHECKING:
    from ottla.net.server import Dispatch, Reply

BEGUN_AGAIN_S = 1.0  # the shortest time between two logins of one connection, as in Kafka


@dataclass(slots=True)
class LoginCounters:
    """The logins at one listener: how many succeeded and failed, at the beginning of a connection and later."""

    succeeded: int = 0
    failed: int = 0
    succeeded_again: int = 0
    failed_again: int = 0
    expired: int = 0  # connections that were closed because a request came after the session's end


@dataclass(frozen=True, slots=True)
class Rules:
    """What all logins at one listener have in common. Times are in seconds."""

    mechanisms: Mapping[str, Mechanism]
    frame_bytes_max: int
    timeout_s: float
    failure_delay_s: float
    serve: Dispatch
    now_ms: Callable[[], int]
    counters: LoginCounters
    current: Callable[[], Rules]
    """The rules as the settings are at the moment: a client that logs in anew is judged by them."""


class Gate:
    """The login of one connection; see `ottla.net.connection.Login`. `before` is the session of a client that logs in
    anew."""

    __slots__ = ("_again", "_conversation", "_rules", "_waiting", "deadline", "frame_bytes_max")

    def __init__(self, rules: Rules, before: UserSession | None = None) -> None:
        self._rules = rules
        self._again = before is not None
        self._waiting: asyncio.Task[None] | None = None
        self._conversation = Conversation(rules.mechanisms, before)
        self.frame_bytes_max = rules.frame_bytes_max
        self.deadline = asyncio.get_running_loop().time() + rules.timeout_s

    @property
    def frame_bytes_min(self) -> int:
        return self._conversation.frame_bytes_min

    def dispatch(self, connection: Connection, frame: Memory, start: int, end: int) -> Reply:
        """Serves the frame as the login's next one. Raises ProtocolError."""
        rules = self._rules
        message = bytes(memoryview(frame)[start:end])
        try:
            outcome = self._conversation.arrived(message, rules.now_ms())
        except NotYet as wait:
            pending = Pending(connection, SASL_AUTHENTICATE)
            self._waiting = asyncio.ensure_future(self._answer_later(connection, pending, message, wait))
            pending.abandoned = self._give_up
            return pending
        if outcome.serve:
            return rules.serve(connection, frame, start, end)
        if outcome.refused:
            return self._refuse(connection, outcome, Pending(connection, SASL_AUTHENTICATE))
        if outcome.session is not None:
            self._let_in(connection, outcome.session)
        return () if outcome.answer is None else (outcome.answer,)

    def _give_up(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def _answer_later(self, connection: Connection, pending: Pending, message: bytes, wait: NotYet) -> None:
        try:
            async with asyncio.timeout_at(self.deadline):
                await wait.until()
            outcome = self._conversation.arrived(message, self._rules.now_ms())
        except (TimeoutError, NotYet, ProtocolError):
            connection.close("the keys that check its token can't be fetched")
            return
        if outcome.refused:
            self._refuse(connection, outcome, pending)
            return
        if not pending.wanted:
            return
        if outcome.session is not None:
            self._let_in(connection, outcome.session)
        pending.answer([] if outcome.answer is None else [outcome.answer])

    def _let_in(self, connection: Connection, session: UserSession) -> None:
        counters = self._rules.counters
        if self._again:
            counters.succeeded_again += 1
        else:
            counters.succeeded += 1
        dispatch = None if session.expires_ms is None else Session(self._rules, session).dispatch
        connection.admit(f"User:{session.user}", dispatch, by_token=session.by_token)

    def _refuse(self, connection: Connection, outcome: Outcome, pending: Pending) -> Reply:
        counters = self._rules.counters
        if self._again:
            counters.failed_again += 1
        else:
            counters.failed += 1
        if not outcome.delayed:
            connection.close(outcome.refused)
            return None
        asyncio.get_running_loop().call_later(self._rules.failure_delay_s, _turn_away, connection, pending, outcome)
        return pending


class Session:
    """The requests of a user whose session has an end."""

    __slots__ = ("_begun", "_rules", "_session")

    def __init__(self, rules: Rules, session: UserSession) -> None:
        self._rules = rules
        self._session = session
        self._begun = asyncio.get_running_loop().time()

    def dispatch(self, connection: Connection, frame: Memory, start: int, end: int) -> Reply:
        """Serves a request while the session lasts."""
        rules = self._rules
        if api_key_of(frame, start) == SASL_HANDSHAKE:
            now = asyncio.get_running_loop().time()
            if now - self._begun >= BEGUN_AGAIN_S:
                gate = Gate(rules.current(), self._session)
                connection.hold_until(gate)
                return gate.dispatch(connection, frame, start, end)
        expires_ms = self._session.expires_ms
        if expires_ms is not None and rules.now_ms() > expires_ms:
            rules.counters.expired += 1
            connection.close("its session has ended, and it hasn't logged in anew")
            return None
        return rules.serve(connection, frame, start, end)


def _turn_away(connection: Connection, pending: Pending, outcome: Outcome) -> None:
    if pending.wanted:
        pending.answer([] if outcome.answer is None else [outcome.answer])
        connection.close(outcome.refused)
