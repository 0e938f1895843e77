"""The offsets topic is created by one request at a time, with the configured settings. While it can't be created, this
is logged rarely."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.internal_topics import InternalTopics
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC
from ottla.metadata.intents.topics import NewTopic
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.settings.config import BrokerConfig


class RefusingIntents:
    """Creates topics once `ready` is set; raises `error` if there is one."""

    def __init__(self, error: KafkaError | None = None) -> None:
        self.asked: list[NewTopic] = []
        self.ready = asyncio.Event()
        self.error = error

    async def create_topic(self, topic: NewTopic, timeout_s: float) -> None:
        self.asked.append(topic)
        await self.ready.wait()
        if self.error is not None:
            raise self.error


def test_one_attempt_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        intents: Any = RefusingIntents(KafkaError(ErrorCode.invalid_replication_factor, "1 of 3 brokers"))
        topics = InternalTopics(intents, BrokerConfig({"node.id": "1", "offsets.topic.num.partitions": "7"}))
        for _ in range(5):
            topics.want(OFFSETS_TOPIC)
            await asyncio.sleep(0)
        (topic,) = intents.asked
        assert (topic.name, topic.partition_count, topic.replication_factor) == ("__consumer_offsets", 7, 3)
        assert topic.configs["cleanup.policy"] == "compact"
        assert topic.configs["segment.bytes"] == "104857600"
        intents.ready.set()
        for _ in range(5):
            await asyncio.sleep(0)
            topics.want(OFFSETS_TOPIC)
        assert len(intents.asked) > 1
        await topics.stop()

    with caplog.at_level("WARNING"):
        asyncio.run(scene())
    assert caplog.text.count("1 of 3 brokers") == 1


def test_the_topic_of_transactions_never_loses_a_decision() -> None:
    async def scene() -> None:
        intents: Any = RefusingIntents()
        topics = InternalTopics(intents, BrokerConfig({"node.id": "1"}))
        topics.want(TRANSACTIONS_TOPIC)
        await asyncio.sleep(0)
        (topic,) = intents.asked
        assert (topic.name, topic.partition_count, topic.replication_factor) == ("__transaction_state", 50, 3)
        assert topic.configs == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "2",
            "segment.bytes": "104857600",
            "unclean.leader.election.enable": "false",
        }
        await topics.stop()

    asyncio.run(scene())
