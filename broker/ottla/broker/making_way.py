"""A broker that the metadata store doesn't answer makes way for its clients when others lead what it led.

It doesn't hear of that. A client that takes it for the leader would wait for acknowledgements that no follower gives
any more, one time-out after the other. So it hangs up on everybody and turns away whoever comes, until the store has
confirmed a registration of its own and its image shows that. Clients ask another broker then, as if this one were dead.

A store that answers nobody is another matter: nobody else leads anything, and serving goes on for as long as it takes.
So once the store has been silent for a session, the broker asks the others who leads what it leads. One leader of a
newer epoch proves that the controller has moved on; a broker that merely doesn't know this one proves nothing, because
it may be behind.

The lease isn't kept alive any more from then on: the store may hear this broker, whose answers get lost, for ever.
Source: ours; an Apache Kafka broker that its controllers don't answer goes on as it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from ottla.metadata.image import Image
from ottla.metadata.model import NO_LEADER, Endpoint
from ottla.net.peer import Peer
from ottla.net.streams import Connect
from ottla.protocol.messages import read_response, write_request

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_METADATA, _METADATA_VERSION = 3, 8
_ANSWERED_S = 2.0
_TOPICS_MAX = 100  # that the others are asked about


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
        is_led_elsewhere: Callable[[], Awaitable[bool]],
        is_registered: Callable[[], bool],
        let_go: Callable[[], None],
    ) -> None:
        """`silence_s`: since when the store hasn't confirmed the registration. `is_led_elsewhere`: whether others lead
        what this broker leads. `is_registered`: whether its own image shows the registration that it
        holds. `let_go`: keeps the lease alive no more."""
        self.made = False
        self._doors = doors
        self._silence_s = silence_s
        self._session_s = session_s
        self._is_led_elsewhere = is_led_elsewhere
        self._is_registered = is_registered
        self._let_go = let_go

    async def run(self) -> None:
        """Looks once a second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.look()
            except Exception:  # of one look: the next one comes
                logger.exception("whether others lead couldn't be found out")

    async def look(self) -> None:
        """Makes way, or comes back, if it is time to."""
        if self.made:
            if not self._is_silent() and self._is_registered():
                self.made = False
                logger.info("the metadata store answers this broker again: it serves")
                self._doors.let_in()
        elif self._is_silent() and await self._is_led_elsewhere() and self._is_silent():
            self.made = True
            logger.warning(
                "the metadata store hasn't answered this broker for %.1f s, and others lead what it led: "
                "it hangs up, so that clients go to them",
                self._silence_s(),
            )
            self._let_go()
            self._doors.turn_away("the metadata store doesn't answer this broker, and others lead what it led")

    def _is_silent(self) -> bool:
        return self._silence_s() >= self._session_s()


async def is_led_elsewhere(broker: int, image: Image, listener: str, connect: Connect) -> bool:
    """Whether any other broker of the image names another leader, of a newer epoch, for a partition that this broker
    leads by its image. One that doesn't answer says nothing. `listener` is the name of the inter-broker listener."""
    led = {
        (image.intents_by_id[topic_id].name, state.index): state.leader_epoch
        for topic_id, partitions in image.partitions.items()
        for state in partitions.values()
        if state.leader == broker and len(state.replicas) > 1 and topic_id in image.intents_by_id
    }
    topics = sorted({topic for topic, _ in led})[:_TOPICS_MAX]
    endpoints = [each.endpoints.get(listener) for each in image.brokers.values() if each.id != broker]
    if not topics:
        return False
    cluster_id = None if image.cluster is None else image.cluster.id
    asked = [
        _leaders(connect, endpoint, f"broker-{broker}-link", topics, cluster_id)
        for endpoint in endpoints
        if endpoint is not None
    ]
    return any(
        leader not in (NO_LEADER, broker) and epoch > led.get(name, epoch)
        for told in await asyncio.gather(*asked)
        for name, (leader, epoch) in told.items()
    )


async def _leaders(
    connect: Connect, endpoint: Endpoint, client_id: str, topics: list[str], cluster_id: str | None
) -> dict[tuple[str, int], tuple[int, int]]:
    """(leader, leader epoch) by (topic, partition), as the broker at that address knows them; nothing where it doesn't
    answer, or is another cluster's."""
    message = {
        "topics": [{"name": topic} for topic in topics],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    peer = Peer(connect, endpoint.host, endpoint.port, client_id)
    try:
        async with asyncio.timeout(_ANSWERED_S):
            await peer.open()
            body = write_request(_METADATA, _METADATA_VERSION, message)
            answer = await peer.request(_METADATA, _METADATA_VERSION, body, _ANSWERED_S)
        told = read_response(_METADATA, _METADATA_VERSION, bytes(answer.frame[: answer.end]), answer.start)
    except Exception as error:  # whatever it is, this one says nothing
        logger.debug("%s:%d doesn't say who leads: %s", endpoint.host, endpoint.port, error)
        return {}
    finally:
        peer.close()
    if told.cluster_id != cluster_id:
        return {}
    return {
        (topic.name, each.partition_index): (int(each.leader_id), int(each.leader_epoch))
        for topic in told.topics
        for each in topic.partitions
    }
