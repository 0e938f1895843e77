"""Produce and Fetch of clients that have few rights."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api import produce
from ottla.broker.authorization.rules import Rules
from ottla.broker.authorizer import AclAuthorizer
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.acls import Acl
from ottla.net.pending import Pending
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_response
from ottla.protocol.rights import AclOperation, ResourceType
from tests.unit.broker.api.test_produce_and_fetch import (
    PRODUCE,
    VERSION,
    Stage,
    answer_of,
    asked,
    batch_of,
    values,
)

READ, WRITE, DENIED = AclOperation.READ, AclOperation.WRITE, ErrorCode.topic_authorization_failed
TOPICS = [{"topic": "t", "partitions": [asked(0)]}]


class Guarded(Stage):
    """The stage with an authorizer, and a client that is User:a."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.image = Image()
        self.broker.authorizer = AclAuthorizer(Rules([], allow_if_none=False), lambda: self.image)
        self.broker.image = self.image
        self.client.principal, self.client.client_host = "User:a", "10.0.0.1"  # type: ignore[attr-defined]
        self.client.listener = SimpleNamespace(name="PLAINTEXT")  # type: ignore[attr-defined]

    def grant(self, operation: AclOperation, name: str = "t", kind: ResourceType = ResourceType.TOPIC) -> AclBinding:
        binding = AclBinding(kind, PatternType.LITERAL, name, "User:a", "*", operation, Permission.ALLOW)
        self._change({binding: Acl(1)}, [])
        return binding

    def withdraw(self, binding: AclBinding) -> None:
        self._change({}, [binding])

    def _change(self, put: dict[AclBinding, Acl], removed: list[AclBinding]) -> None:
        self.image = Image(acls=self.image.acls.changed(put, removed))
        self.broker.authorizer.changed(self.image, Changed(acls=frozenset([*put, *removed])))


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[Guarded], Awaitable[None]]], None]:
    async def scene(body: Callable[[Guarded], Awaitable[None]]) -> None:
        stage = Guarded(tmp_path)
        await body(stage)
        await stage.settle()
        assert stage.failures == []

    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
    return lambda body: asyncio.run(scene(body))


def fetched(parts: Any) -> dict[tuple[str, int], int]:
    """The error codes in an answer to Fetch."""
    responses = answer_of(parts).responses
    return {(topic.topic, each.partition_index): each.error_code for topic in responses for each in topic.partitions}


def test_only_the_topics_that_the_client_may_write_to_are_written(play: Any) -> None:
    async def body(stage: Guarded) -> None:
        batch = [{"index": 0, "records": bytes(batch_of([b"x"]))}]
        both = [{"name": name, "partition_data": batch} for name in ("t", "no")]

        def written(acks: int) -> Any:
            return stage.ask(produce, PRODUCE, {"acks": acks, "timeout": 1000, "topic_data": both})

        def errors(reply: Any) -> dict[str, int]:
            answer = read_response(PRODUCE, VERSION, b"".join(map(bytes, reply))[9:])
            return {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}

        assert errors(written(1)) == {"t": DENIED, "no": DENIED}
        assert values(stage, 0) == []
        grant = stage.grant(WRITE)
        for _ in range(2):
            assert errors(written(1)) == {"t": 0, "no": DENIED}
        assert values(stage, 0) == [b"x", b"x"]
        stage.withdraw(grant)
        assert errors(written(1)) == {"t": DENIED, "no": DENIED}
        assert not stage.client.closed
        assert written(0) is None
        assert stage.client.closed
        assert values(stage, 0) == [b"x", b"x"]

    play(body)


def test_a_fetch_that_waits_gets_no_records_once_the_right_is_withdrawn(play: Any) -> None:
    async def body(stage: Guarded) -> None:
        grant = stage.grant(READ)
        pending = stage.fetch(max_wait=2_000, session_epoch=-1, topics=TOPICS)
        assert isinstance(pending, Pending)
        stage.withdraw(grant)
        stage.grant(WRITE)
        stage.produce({0: batch_of([b"secret"])})
        await asyncio.sleep(0.05)
        assert fetched(pending.parts) == {("t", 0): DENIED}

    play(body)


def test_a_session_hears_of_a_lost_right_although_there_is_no_news(play: Any) -> None:
    async def body(stage: Guarded) -> None:
        grant = stage.grant(READ)
        assert fetched(stage.fetch(session_epoch=0, topics=TOPICS, min_bytes=0)) == {("t", 0): 0}
        [session] = stage.sessions._sessions.values()

        def again(epoch: int) -> dict[tuple[str, int], int]:
            return fetched(stage.fetch(session_id=session.id, session_epoch=epoch, topics=[], min_bytes=0))

        assert again(1) == {}
        stage.withdraw(grant)
        assert again(2) == again(3) == {("t", 0): DENIED}
        stage.grant(READ)
        assert again(4) == {("t", 0): 0}
        assert again(5) == {}

    play(body)


def test_a_topic_with_the_name_of_all_topics_is_a_topic_like_any_other(play: Any) -> None:
    """A client that asks for the topic `*` or for a topic without a name doesn't get other topics by it."""

    async def body(stage: Guarded) -> None:
        stage.grant(READ, "x")
        for name in ("", "*", "x"):
            topics = [{"topic": name, "partitions": [asked(0)]}, *TOPICS]
            assert fetched(stage.fetch(session_epoch=-1, topics=topics))["t", 0] == DENIED

    play(body)


def test_a_client_that_claims_to_be_a_replica_needs_the_right_on_the_cluster(play: Any) -> None:
    async def body(stage: Guarded) -> None:
        stage.grant(READ)
        follower = {
            "replica_id": 1,
            "session_epoch": -1,
            "topics": [*TOPICS, {"topic": "no", "partitions": [asked(0)]}],
        }
        assert set(fetched(stage.fetch(**follower)).values()) == {DENIED}
        stage.grant(AclOperation.CLUSTER_ACTION, "kafka-cluster", ResourceType.CLUSTER)
        assert fetched(stage.fetch(**follower))["t", 0] != DENIED

    play(body)
