"""Creates the internal topics, in which the cluster keeps its own state, when they are first needed.

As in Kafka an internal topic is created with exactly the partitions and replicas that the settings state: if only one
broker of a cluster runs, the offsets topic isn't created with one replica. Until the topic can be created, clients get
an error at which they try again. Source: Kafka's DefaultAutoTopicCreationManager.
"""

from __future__ import annotations

import asyncio
import logging

from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC
from ottla.metadata.intents.facade import Intents
from ottla.metadata.intents.topics import NewTopic
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.settings.config import BrokerConfig

logger = logging.getLogger(__name__)

CREATE_TIMEOUT_SECONDS = 30.0
COMPLAIN_EVERY_SECONDS = 30.0


def internal_topic(name: str, settings: BrokerConfig) -> NewTopic:
    """The internal topic `name` as a broker with these settings creates it."""
    return _RECIPES[name](settings)


class InternalTopics:
    """Creates internal topics, with one attempt for each topic at a time."""

    def __init__(self, intents: Intents, settings: BrokerConfig) -> None:
        self._intents = intents
        self._settings = settings
        self._attempts: dict[str, asyncio.Task[None]] = {}
        self._complained_at = -COMPLAIN_EVERY_SECONDS

    def want(self, name: str) -> None:
        """Begins an attempt to create an internal topic, unless one is under way."""
        if name not in self._attempts:
            topic = internal_topic(name, self._settings)
            attempt = asyncio.get_running_loop().create_task(self._create(topic), name=f"create {name}")
            self._attempts[name] = attempt
            attempt.add_done_callback(lambda _: self._attempts.pop(name, None))

    async def stop(self) -> None:
        """Cancels the attempts to create topics that are under way."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)

    async def _create(self, topic: NewTopic) -> None:
        try:
            await self._intents.create_topic(topic, CREATE_TIMEOUT_SECONDS)
        except KafkaError as error:
            if error.code is not ErrorCode.topic_already_exists:
                self._complain(topic, error)
        else:
            logger.info("created %s with %d partitions", topic.name, topic.partition_count)

    def _complain(self, topic: NewTopic, error: KafkaError) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._complained_at >= COMPLAIN_EVERY_SECONDS:
            self._complained_at = now
            logger.warning("%s can't be created yet, so clients wait: %s", topic.name, error)


def _offsets_topic(settings: BrokerConfig) -> NewTopic:
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(settings.get_int("offsets.topic.segment.bytes")),
    }
    return NewTopic(
        OFFSETS_TOPIC,
        settings.get_int("offsets.topic.num.partitions"),
        settings.get_int("offsets.topic.replication.factor"),
        configs=configs,
    )


def _transactions_topic(settings: BrokerConfig) -> NewTopic:
    """`__transaction_state`. Its partitions never allow an unclean election: if a decision to commit were lost, some
    partitions would have the transaction committed, and others aborted."""
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(settings.get_int("transaction.state.log.min.isr")),
        "segment.bytes": str(settings.get_int("transaction.state.log.segment.bytes")),
        "unclean.leader.election.enable": "false",
    }
    return NewTopic(
        TRANSACTIONS_TOPIC,
        settings.get_int("transaction.state.log.num.partitions"),
        settings.get_int("transaction.state.log.replication.factor"),
        configs=configs,
    )


_RECIPES = {OFFSETS_TOPIC: _offsets_topic, TRANSACTIONS_TOPIC: _transactions_topic}
"""An internal topic's name → the function that describes the topic for its creation."""
