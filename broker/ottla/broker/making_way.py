"""A broker whose registration has ended, while the metadata store doesn't answer it, makes way for its clients.

Others lead what it led, and it doesn't hear of that. A client that takes it for the leader would wait for
acknowledgements that no follower gives any more, one time-out after the other. So it hangs up on everybody and turns
away whoever comes, until the store has confirmed a registration of its own and its image shows that. Clients ask
another broker then, as if this one were dead.

A store that answers nobody is another matter: registrations stay in everybody's metadata, nobody else leads anything,
and serving goes on for as long as it takes. So once the store has been silent for a session, the broker asks the others
which brokers there are. A broker that isn't among them, as one other broker knows it from the store, has lost its
registration for certain.

The lease isn't kept alive any more from then on: where somebody deleted the registration alone, the store may hear this
broker, whose answers get lost, for ever. Source: ours; an Apache Kafka broker that its controllers don't answer goes on
as it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from ottla.metadata.image import Image
from ottla.net.peer import Connect, Peer
from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages import read_response, write_request

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_METADATA, _METADATA_VERSION = 3, 8
_ANSWERED_S = 2.0


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
        is_missing_elsewhere: Callable[[], Awaitable[bool]],
        is_registered: Callable[[], bool],
        let_go: Callable[[], None],
    ) -> None:
        """`silence_s`: since when the store hasn't confirmed the registration. `is_missing_elsewhere`: whether another
        broker's metadata hasn't got this one. `is_registered`: whether its own image shows the registration that it
        holds. `let_go`: keeps the lease alive no more."""
        self.made = False
        self._doors = doors
        self._silence_s = silence_s
        self._session_s = session_s
        self._is_missing_elsewhere = is_missing_elsewhere
        self._is_registered = is_registered
        self._let_go = let_go

    async def run(self) -> None:
        """Looks once a second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Makes way, or comes back, if it is time to."""
        if self.made:
            if not self._is_silent() and self._is_registered():
                self.made = False
                logger.info("the metadata store answers this broker again: it serves")
                self._doors.let_in()
        elif self._is_silent() and await self._is_missing_elsewhere() and self._is_silent():
            self.made = True
            logger.warning(
                "the metadata store hasn't answered this broker for %.1f s, and its registration has ended: "
                "it hangs up, so that clients go to those who lead now",
                self._silence_s(),
            )
            self._let_go()
            self._doors.turn_away("the metadata store doesn't answer this broker, and its registration has ended")

    def _is_silent(self) -> bool:
        return self._silence_s() >= self._session_s()


async def is_missing_elsewhere(broker: int, image: Image, listener: str, connect: Connect) -> bool:
    """Whether any other broker of the image answers that there is no such broker. One that doesn't answer says nothing.
    `listener` is the name of the inter-broker listener."""
    addresses = [
        endpoint
        for other in image.brokers.values()
        if other.id != broker and (endpoint := other.endpoints.get(listener)) is not None
    ]
    asked = [_brokers(connect, endpoint.host, endpoint.port, f"broker-{broker}-link") for endpoint in addresses]
    return any(told and broker not in told for told in await asyncio.gather(*asked))


async def _brokers(connect: Connect, host: str, port: int, client_id: str) -> set[int]:
    """The ids of all brokers, as the broker at that address knows them; none where it doesn't answer."""
    message = {
        "topics": [],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    peer = Peer(connect, host, port, client_id)
    try:
        async with asyncio.timeout(_ANSWERED_S):
            await peer.open()
            body = write_request(_METADATA, _METADATA_VERSION, message)
            answer = await peer.request(_METADATA, _METADATA_VERSION, body, _ANSWERED_S)
        told = read_response(_METADATA, _METADATA_VERSION, bytes(answer.frame[: answer.end]), answer.start)
        return {int(each.node_id) for each in told.brokers}
    except (OSError, ProtocolError):
        return set()
    finally:
        peer.close()
