"""Checks that every live broker has applied a topic's creation or deletion when a broker answers the administrator.

The check runs at the moment at which the answer is sent, and reads the state of the brokers' processes directly, so no
event can happen between the answer and the check. A broker counts as live if it has a registration that the answering
broker saw both before and after its wait for the other brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from ottla.broker.applied_revisions import AppliedRevisions
from ottla.broker.dispatch import Dispatcher
from ottla.broker.node import Broker
from ottla.broker.request import Request
from ottla.metadata import keys
from ottla.metadata.image import Image
from ottla.metadata.model.topics import TopicIntent

from .cluster import World

CREATE_TOPICS, DELETE_TOPICS = 19, 20


class administrators_watched:  # used as a context manager
    """Appends a sentence to `wrong` for each live broker that hasn't applied a creation or deletion at the moment at
    which another broker answers the administrator's request."""

    def __init__(self, world: Callable[[], World | None], wrong: list[str]) -> None:
        self._world = world
        self._wrong = wrong

    def __enter__(self) -> None:
        self._before = (AppliedRevisions.everywhere, Dispatcher._send)
        everywhere, send = self._before
        waited: dict[asyncio.Task[Any] | None, tuple[Image, frozenset[int]]] = {}

        async def noted(revisions: AppliedRevisions) -> frozenset[int]:
            image = revisions._image()
            behind = await everywhere(revisions)
            waited[asyncio.current_task()] = (image, behind)
            return behind

        def looked_at(dispatcher: Dispatcher, request: Request, began: int, response: Any, body: bytes) -> None:
            broker = dispatcher._broker
            image, behind = waited.pop(asyncio.current_task(), (broker.image, frozenset[int]()))
            if request.api_key in (CREATE_TOPICS, DELETE_TOPICS):
                self._look(broker, request.api_key, response, image, behind)
            send(dispatcher, request, began, response, body)

        AppliedRevisions.everywhere = noted  # type: ignore[method-assign]
        Dispatcher._send = looked_at  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        AppliedRevisions.everywhere, Dispatcher._send = self._before  # type: ignore[method-assign]

    def _look(self, broker: Broker, api_key: int, response: Any, before: Image, behind: frozenset[int]) -> None:
        world = self._world()
        assert world is not None
        made = api_key == CREATE_TOPICS
        topics = _done(response["topics" if made else "responses"])
        for node, other in world.brokers():
            if other is broker or not (_registered(other, before) and _registered(other, broker.image)):
                continue
            if node.id in behind:
                world.counts["topic changes answered before a slow broker applied them"] += len(topics)
                continue
            for name, topic_id in topics:
                world.counts["topic changes checked on another broker"] += 1
                if why := self._unmade(other, name, topic_id) if made else _undeleted(other, topic_id):
                    done = "created" if made else "deleted"
                    self._wrong.append(f"unseen: {name} was {done} by broker {broker.id}, but on {node.host} {why}")

    def _unmade(self, other: Broker, name: str, topic_id: UUID) -> str:
        """Names the part of a created topic that the broker `other` lacks. Empty if `other` has the whole topic, or if
        the topic has been deleted meanwhile."""
        world = self._world()
        assert world is not None
        entry = world.store.entries.get(keys.topic(name))
        if entry is None or TopicIntent.decode(entry).id != topic_id:
            return ""
        return (
            next(_unopened(other, topic_id), "") if topic_id in other.image.topics_by_id else "the topic doesn't exist"
        )


def _done(results: list[dict[str, Any]]) -> list[tuple[str, UUID]]:
    """(name, id) of the topics whose creation or deletion succeeded."""
    return [(each["name"], each["topic_id"]) for each in results if not each.get("error_code") and each["topic_id"]]


def _registered(other: Broker, image: Image) -> bool:
    registered = image.brokers.get(other.id)
    return registered is not None and registered.epoch == other.replicas.broker_epoch


def _undeleted(other: Broker, topic_id: UUID) -> str:
    return "the topic still exists" if topic_id in other.image.topics_by_id else ""


def _unopened(other: Broker, topic_id: UUID) -> Iterator[str]:
    """Names each partition that the broker `other` leads by its image, but whose log isn't open. A closed log isn't a
    violation if a disk is full or has failed, or if the name of the log's directory is taken."""
    for index, state in other.image.partitions[topic_id].items():
        leads = state.leads(other.id, other.replicas.broker_epoch)
        wanting = (topic_id, index) in other.replicas._unopened or other.logs.failed or other.logs.full
        if leads and not wanting and other.partitions.get_by_id(topic_id, index) is None:
            yield f"the log of partition {index}, which this broker leads, isn't open"
