"""A broker without a connection to the metadata store disconnects its clients once other brokers lead its partitions.

Such a broker doesn't get the news of elections. A producer that still takes this broker for the leader would wait in
vain for its records to be committed, one time-out after the other, because the followers copy from the new leader. So
the broker closes all connections and refuses new ones, until the store has confirmed its registration and its image
shows that registration. Clients then ask another broker, as if this one were dead.

If the store answers no broker at all, no other broker can be elected, and this broker goes on serving its clients. So
once the store hasn't answered this broker for a session's time-out, the broker asks the other brokers for the leaders
of its partitions. If one answer names another leader with a newer epoch, the controller has elected that leader. An
answer that names no other leader proves nothing, because the broker that gave it may be behind.

From then on the broker no longer renews its lease: if only the store's answers got lost, the store would receive the
renewals and keep the registration for ever. Source: ours; an Apache Kafka broker that its controllers don't answer goes
on serving its clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from ottla.metadata.image import Image
from ottla.metadata.model.brokers import Endpoint
from ottla.metadata.model.partitions import NO_LEADER
from ottla.net.peer import Peer
from ottla.net.streams import Connect
from ottla.protocol.messages import read_response, write_request

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_METADATA, _METADATA_VERSION = 3, 8
_ANSWERED_S = 2.0
_TOPICS_MAX = 100  # the most topics about which the other brokers are asked


class Doors(Protocol):
    """The server, which accepts or refuses clients' connections."""

    def turn_away(self, why: str) -> None:
        """Closes every connection, and each new one as soon as it is accepted, for the reason `why`."""

    def let_in(self) -> None:
        """Accepts and serves new connections again."""


class MakingWay:
    """Decides for one broker whether it turns its clients away. The owner runs `run` as a task."""

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
        """`silence_s` returns for how many seconds the metadata store hasn't confirmed the registration, and
        `session_s` the session's time-out in seconds. `is_led_elsewhere` returns whether another broker leads a
        partition that this broker believes it leads, and `is_registered` whether this broker's image shows its present
        registration. `let_go` ends the renewal of the lease."""
        self.made = False
        self._doors = doors
        self._silence_s = silence_s
        self._session_s = session_s
        self._is_led_elsewhere = is_led_elsewhere
        self._is_registered = is_registered
        self._let_go = let_go

    async def run(self) -> None:
        """Calls `look` once a second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.look()
            except Exception:  # the next look follows in a second
                logger.exception("the check whether other brokers lead this broker's partitions failed; it is repeated")

    async def look(self) -> None:
        """Turns clients away, or accepts them again, if the module's conditions for this hold."""
        if self.made:
            if not self._is_silent() and self._is_registered():
                self.made = False
                logger.info("the metadata store answers this broker again: the broker serves clients again")
                self._doors.let_in()
        elif self._is_silent() and await self._is_led_elsewhere() and self._is_silent():
            self.made = True
            logger.warning(
                "the metadata store hasn't answered this broker for %.1f s, and other brokers lead its partitions: "
                "this broker closes its clients' connections, so that the clients go to those brokers",
                self._silence_s(),
            )
            self._let_go()
            self._doors.turn_away(
                "the metadata store doesn't answer this broker, and other brokers lead its partitions"
            )

    def _is_silent(self) -> bool:
        return self._silence_s() >= self._session_s()


async def is_led_elsewhere(broker: int, image: Image, listener: str, connect: Connect) -> bool:
    """Asks the other brokers of the image whether one of them names another leader, with a newer epoch, for a partition
    that `broker` leads according to the image. Brokers that don't answer are left out. `listener` is the name of the
    inter-broker listener."""
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
    """(leader, leader epoch) by (topic, partition), as the broker at `endpoint` answers; empty where it doesn't answer,
    or belongs to another cluster."""
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
    except Exception as error:  # whatever the error is, this broker is left out
        logger.debug("the broker at %s:%d doesn't say which brokers lead: %s", endpoint.host, endpoint.port, error)
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
