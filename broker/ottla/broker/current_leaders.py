"""Tells a client that asked the wrong broker the partition's leader and the leader's address (KIP-951)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar
from uuid import UUID

from ottla.metadata.image import Image
from ottla.metadata.model.partitions import NO_LEADER
from ottla.protocol import fetch, produce
from ottla.protocol.current_leader import Node, node_tags
from ottla.protocol.errors import ErrorCode

Answer = TypeVar("Answer", fetch.PartitionAnswer, produce.PartitionAnswer)
ERRORS = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


class CurrentLeaders:
    """The leaders that one answer names."""

    __slots__ = ("_image", "_listener", "_nodes")

    def __init__(self, image: Image, listener: str) -> None:
        self._image = image
        self._listener = listener
        self._nodes: dict[int, Node] = {}

    def of(self, topic: str | bytes, index: int) -> tuple[int, int] | None:
        """(leader, leader epoch) of a partition according to this broker's image; None where no leader is known, or
        where the leader has no address on the client's listener."""
        image = self._image
        found = image.topics.get(topic) if isinstance(topic, str) else image.topics_by_id.get(UUID(bytes=topic))
        state = None if found is None else image.partition(found.id, index)
        if state is None or state.leader == NO_LEADER:
            return None
        broker = image.brokers.get(state.leader)
        endpoint = None if broker is None else broker.endpoints.get(self._listener)
        if broker is None or endpoint is None:
            return None
        self._nodes[broker.id] = Node(broker.id, endpoint.host, endpoint.port, broker.rack)
        return state.leader, state.leader_epoch

    def beside(
        self, topic: str | bytes, answers: Iterable[Answer], tags_of: Callable[[int, int], bytes]
    ) -> list[Answer]:
        """The answers for a topic's partitions, completed: an answer with an error of `ERRORS` also names the
        leader."""
        told = []
        for answer in answers:
            if answer.error in ERRORS and (leader := self.of(topic, answer.index)) is not None:
                answer = answer._replace(tags=tags_of(*leader))
            told.append(answer)
        return told

    @property
    def tags(self) -> bytes:
        """The tagged fields of the whole answer: the addresses of the named leaders."""
        return node_tags(self._nodes.values())
