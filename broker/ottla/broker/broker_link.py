"""The connection that a broker keeps to another broker. Over it, the broker asks which revision the other broker has
applied, and notices the other broker's death.

A link belongs to one registration of the other broker. The link's task is the only one that uses the connection. While
there is no question to ask, the task waits for the connection's end: a process that dies closes its sockets, so its
death is noticed at once, long before its lease expires. A live broker, too, closes a connection that was idle for too
long, or that brought a question that the broker doesn't know; but it accepts the next connection at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ottla.net.peer import Peer
from ottla.protocol.applied_revision import AWAIT_REVISION, VERSION, Question, read_answer, write_question
from ottla.protocol.errors import ProtocolError

_ASKED_FOR_MS = 1000  # the asked broker answers after this time, even if it hasn't applied the revision
_ANSWERED_S = 5.0  # the longest wait for an answer, and for a connection
_BACK_OFF_S_MIN = 0.05
_BACK_OFF_S_MAX = 5.0
_BRIEF_S = 0.1  # after two connections in a row that ended sooner, the next one is made after a pause


class Told(Protocol):
    """The receiver of a link's events."""

    def answered(self, wanted: int, applied: int, seconds: float) -> None:
        """The link asked the broker for revision `wanted`, and the broker answered that it has applied revision
        `applied`. The answer came `seconds` after the revision was wanted, or after the connection was made, whichever
        was later."""

    def unanswered(self, why: str) -> None:
        """Called when the broker can't be reached, or doesn't answer."""

    def cut(self) -> None:
        """Called when the open connection has ended."""

    def back(self) -> None:
        """Called when there is a connection again."""


class BrokerLink:
    """A link to another broker, over the connections that `dial` makes. `dial` raises OSError where the broker has no
    address.

    The owner runs `run` as a task.
    """

    def __init__(self, dial: Callable[[], Peer], told: Told) -> None:
        self._dial = dial
        self._told = told
        self._wanted = 0
        self._wanted_at = 0.0
        self._connected_at = 0.0
        self._applied = 0
        self._peer: Peer | None = None
        self._kept = False  # whether the connection was idle for a while, or an answer came over it
        self._lost = False
        self._idling: asyncio.Timeout | None = None
        self._failures = 0  # failed attempts in a row
        self._brief = 0  # connections in a row that ended within _BRIEF_S
        self._asks_at = float("-inf")  # the time before which no question is sent

    def want(self, revision: int) -> None:
        """Asks the broker for this revision as soon as possible."""
        if revision > self._wanted:
            self._wanted, self._wanted_at = revision, _now()
        if self._idling is not None and not self._idling.expired():
            self._idling.reschedule(max(self._asks_at, _now()))

    async def run(self) -> None:
        """Keeps the connection, and asks for the wanted revisions, until cancelled."""
        try:
            while True:
                try:
                    peer = await self._connected()
                except OSError as error:
                    self._failed(str(error) or "it can't be reached")
                    await asyncio.sleep(self._asks_at - _now())
                    continue
                if self._applied < self._wanted and _now() >= self._asks_at:
                    await self._ask(peer)
                else:
                    await self._idle(peer)
        finally:
            if self._peer is not None:
                self._peer.close()

    async def _connected(self) -> Peer:
        if self._peer is not None and self._peer.connected:
            return self._peer
        self._kept = False
        peer = self._peer = self._dial()
        async with asyncio.timeout(_ANSWERED_S):
            await peer.open()
        self._connected_at = _now()
        if self._lost:
            self._lost = False
            self._told.back()
        return peer

    async def _idle(self, peer: Peer) -> None:
        """Waits until the connection ends, or there is a question to ask."""
        self._kept = True
        try:
            async with asyncio.timeout_at(self._asks_at if self._applied < self._wanted else None) as self._idling:
                await peer.until_cut()
        except TimeoutError:
            return
        finally:
            self._idling = None
        self._cut()
        self._brief = self._brief + 1 if _now() - self._connected_at < _BRIEF_S else 0
        if self._brief > 1:
            await asyncio.sleep(_BRIEF_S)

    async def _ask(self, peer: Peer) -> None:
        wanted, began = self._wanted, max(self._wanted_at, self._connected_at)
        question = write_question(Question(wanted, _ASKED_FOR_MS))
        try:
            answer = await peer.request(AWAIT_REVISION, VERSION, question, _ANSWERED_S)
            applied = read_answer(answer.frame, answer.start, answer.end)
        except (OSError, ProtocolError) as error:
            kept = self._kept
            if isinstance(error, ConnectionError):
                self._cut()
            if not kept:  # an idle connection may have been closed: the next one shows whether the broker answers
                self._failed(str(error) or "no answer came")
            return
        self._kept = True
        self._failures = 0
        self._applied = max(self._applied, applied)
        self._told.answered(wanted, applied, _now() - began)

    def _cut(self) -> None:
        if not self._lost:
            self._lost = True
            self._told.cut()

    def _failed(self, why: str) -> None:
        self._asks_at = _now() + min(_BACK_OFF_S_MIN * 2.0 ** min(self._failures, 16), _BACK_OFF_S_MAX)
        self._failures += 1
        self._told.unanswered(why)


def _now() -> float:
    return asyncio.get_running_loop().time()
