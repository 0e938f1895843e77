"""The topic and cluster APIs answer as Apache Kafka 4.3.1 did to `tests.peers.topic_exchanges`, sentences included.

Left out of the exchanges, because we differ on purpose: the first Metadata answer about an automatically created topic
(Kafka: unknown, ask again), and one invalid name among many in DescribeTopicPartitions (Kafka fails the whole request).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api import (
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_topic_partitions,
    elect_leaders,
    list_partition_reassignments,
    metadata,
)
from ottla.broker.api.registry import RequestContext
from ottla.broker.config import BrokerConfig
from ottla.broker.topic_descriptions import EncodedTopics
from ottla.controller.runner import Controller
from ottla.metadata.cluster import join_cluster
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.follower import Follower
from ottla.metadata.intents import Intents
from ottla.metadata.keys import ConfigResource
from ottla.metadata.model import Broker as Registered
from ottla.metadata.model import BrokerState, Endpoint
from ottla.metadata.registration import Registration
from ottla.protocol.messages import read_request, read_response, write_request, write_response
from tests.peers.topic_exchanges import CREATE, EXCHANGES, RECORDED, play

HANDLERS = {
    module.API.key: module.handle
    for module in (
        create_partitions,
        create_topics,
        delete_topics,
        describe_cluster,
        describe_topic_partitions,
        elect_leaders,
        list_partition_reassignments,
        metadata,
    )
}
CONTEXT = RequestContext(0, 0, 1, "test", "PLAINTEXT", "User:ANONYMOUS", "127.0.0.1", 1)


class BrokerStandIn(SimpleNamespace):
    """What handlers of these APIs need of a broker, on a real embedded store with a real controller."""

    @property
    def image(self) -> Any:
        return self.follower.image


async def _answers(folder: Path) -> list[Any]:
    store = await EmbeddedStore.open(folder / "metadata.sqlite")
    config = BrokerConfig.from_sources("node.id=0\nlog.dirs=/nowhere\nlisteners=PLAINTEXT://127.0.0.1:9092\n")
    follower = Follower(store)
    broker: Any = BrokerStandIn(
        id=0,
        config=config,
        follower=follower,
        intents=Intents(store, follower, Random(1)),
        encoded_topics=EncodedTopics(),
        internal_topics=SimpleNamespace(want_offsets_topic=lambda: None),
    )
    await join_cluster(store, None)
    await follower.start()
    endpoints = {"PLAINTEXT": Endpoint("PLAINTEXT", "127.0.0.1", 9092)}
    await Registration(store, Registered(0, 0, endpoints, state=BrokerState.RUNNING)).register()
    controller = Controller(store, follower, "test")
    tasks = [asyncio.ensure_future(follower.run()), asyncio.ensure_future(controller.run())]
    # What Apache Kafka writes when it formats its storage.
    await broker.intents.alter_config(ConfigResource("broker", ""), lambda present: {"min.insync.replicas": "1"})
    broker.config = config.with_dynamic({}, follower.image.config("broker", ""))[0]

    async def ask(key: int, version: int, request: dict[str, Any]) -> Any:
        decoded = read_request(key, version, write_request(key, version, request))
        response = await HANDLERS[key](broker, replace(CONTEXT, api_version=version), decoded)
        return read_response(key, version, write_response(key, version, response))

    async def settle() -> None:
        """Nothing to wait for: our answer comes when the image shows the change."""

    try:
        return await play(ask, settle)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()


@pytest.fixture(scope="module")
def recorded() -> list[Any]:
    loaded: list[Any] = json.loads(RECORDED.read_text())
    return loaded


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return asyncio.run(_answers(tmp_path_factory.mktemp("metadata")))


def _comparable(answer: Any, key: int) -> Any:
    """Without the sentences about settings, which are ours."""
    if key == CREATE:
        for topic in answer["topics"]:
            if topic["error_code"] == 40:
                topic["error_message"] = bool(topic["error_message"])
    return answer


@pytest.mark.parametrize("index", range(len(EXCHANGES)))
def test_answers_as_apache_kafka(index: int, recorded: list[Any], answers: list[Any]) -> None:
    key = EXCHANGES[index][0]
    assert _comparable(answers[index], key) == _comparable(recorded[index], key), EXCHANGES[index]
