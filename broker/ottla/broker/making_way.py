"""A broker that the metadata store doesn't answer, while it answers other brokers, makes way for its clients.

Its registration has ended by then, others lead what it led, and it doesn't hear of that. A client that takes it for the
leader would wait for acknowledgements that no follower gives any more, one time-out after the other. So it hangs up on
everybody and turns away whoever comes, until the store has confirmed its registration, or another one, and its image
shows that. Clients ask another broker then, as if this one were dead.

A store that answers nobody is another matter: nobody else leads anything, and serving goes on for as long as it takes.
What tells the two apart are the other brokers. The controller writes a lineage word every few seconds
(`metadata/lineage.py`), so a broker that hears the store applies newer and newer revisions. The rule: once the store
has been silent for a session, another broker must say twice what it has applied, and have moved on in between.

The lease isn't kept alive any more either: the store may hear this broker, whose answers get lost, and would keep its
partitions from moving. Source: ours; an Apache Kafka broker that its controllers don't answer goes on as it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

logger = logging.getLogger(__name__)

LOOK_S = 1.0


class Doors(Protocol):
    """Who lets clients in: the server."""

    def turn_away(self, why: str) -> None:
        """Closes every connection, and each new one at once."""

    def let_in(self) -> None:
        """Serves who comes from now on."""


class MakingWay:
    """Looks after one broker. `run` is a task of the owner's."""

    def __init__(
        self,
        doors: Doors,
        *,
        silence_s: Callable[[], float],
        session_s: Callable[[], float],
        applied_elsewhere: Callable[[float], Mapping[int, int]],
        is_registered: Callable[[], bool],
        let_go: Callable[[], None],
    ) -> None:
        """`silence_s`: since when the store hasn't confirmed the registration. `applied_elsewhere`: the revisions that
        other brokers, by their ids, have told since a moment of the event loop's clock; it also asks them for newer
        ones. `is_registered`: whether the image shows the registration that this broker holds. `let_go`: keeps the
        lease alive no more."""
        self.made = False
        self._doors = doors
        self._silence_s = silence_s
        self._session_s = session_s
        self._applied_elsewhere = applied_elsewhere
        self._is_registered = is_registered
        self._let_go = let_go
        self._since: float | None = None  # when the silence was first seen to be longer than a session
        self._first: dict[int, int] = {}  # what the others had applied when they said it first since then

    async def run(self) -> None:
        """Looks once a second, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look(asyncio.get_running_loop().time())

    def look(self, now: float) -> None:
        """Makes way, or comes back, if it is time to."""
        if self._silence_s() < self._session_s():
            self._since = None
            if self.made and self._is_registered():
                self.made = False
                logger.info("the metadata store answers this broker again: it serves")
                self._doors.let_in()
            return
        if self.made:
            return
        if self._since is None:
            self._since = now
            self._first = {}
        told = self._applied_elsewhere(self._since)
        ahead = [broker for broker, revision in told.items() if revision > self._first.setdefault(broker, revision)]
        if ahead:
            self.made = True
            logger.warning(
                "the metadata store hasn't answered this broker for %.1f s, and answers broker %d: "
                "it hangs up, so that clients go to those who lead now",
                self._silence_s(), ahead[0],
            )  # fmt: skip
            self._let_go()
            self._doors.turn_away("the metadata store doesn't answer this broker")
