"""The APIs of configuration and quotas answer `tests.peers.config_exchanges` as Apache Kafka 4.3.1 did: the same error
codes, names, types, values, sources, synonyms and flags. Only the texts of error messages are Ottla's own."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api import (
    alter_client_quotas,
    alter_configs,
    describe_client_quotas,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from ottla.broker.authorizer import AllowEverything
from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.follower import Follower
from ottla.metadata.identities import ConfigResource
from ottla.metadata.intents.facade import Intents
from ottla.metadata.model.brokers import Broker as Registered
from ottla.metadata.model.brokers import BrokerState
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.settings import Config
from ottla.metadata.model.topics import Ready, TopicIntent
from ottla.metadata.store import Guard, Put
from ottla.protocol.messages import read_request, read_response, write_request, write_response
from ottla.security.tls_listeners import TlsListeners
from ottla.settings.config import BrokerConfig
from ottla.settings.description import Source
from tests.peers.config_exchanges import EXCHANGES, RECORDED, plain
from tests.unit.broker.api.stand_in import request_of

HANDLERS = {
    module.API.key: module.handle
    for module in (
        describe_configs,
        alter_configs,
        incremental_alter_configs,
        list_config_resources,
        describe_client_quotas,
        alter_client_quotas,
    )
}
TOPIC_ID = UUID(int=7)
OTHER_DEFAULTS = {"socket.receive.buffer.bytes": ("-1", "102400")}  # Ottla's default and Kafka's, see docs/decisions.md


class BrokerStandIn:
    """The parts of a broker that these APIs' handlers use: configuration and metadata, in a real embedded store."""

    def __init__(self, config: BrokerConfig, store: EmbeddedStore) -> None:
        self.config = config
        self.id = config.node_id
        self.authorizer = AllowEverything()
        self.follower = Follower(store)
        self.intents = Intents(store, self.follower, Random(1))
        self.tls = TlsListeners(serves=True)
        self.follower.listen(self._configured)

    @property
    def image(self) -> Any:
        return self.follower.image

    def _configured(self, image: Any, changed: Any) -> None:
        broker, default = image.config("broker", str(self.id)), image.config("broker", "")
        self.config = self.config.with_dynamic(broker, default)[0]


async def _with_topic(store: EmbeddedStore) -> None:
    """Stores a topic, a registered broker, and the cluster-wide setting that Apache Kafka's formatting writes."""
    values = {
        keys.topic("t"): TopicIntent("t", TOPIC_ID, ((0,),)),
        keys.partition(TOPIC_ID, 0): Partition(TOPIC_ID, 0, (0,), (0,), (1,), 0),
        keys.ready(TOPIC_ID): Ready(1),
        keys.broker(0): Registered(0, 1, {}, state=BrokerState.RUNNING),
        keys.config(ConfigResource("broker", "")): Config({"min.insync.replicas": "1"}),
    }
    await store.transact([Guard(key, 0) for key in values], [Put(key, value.encode()) for key, value in values.items()])


async def _answers(folder: Path, properties: str) -> list[Any]:
    store = await EmbeddedStore.open(folder / "metadata.sqlite")
    await _with_topic(store)
    broker: Any = BrokerStandIn(BrokerConfig.from_sources(properties), store)
    await broker.follower.start()
    following = asyncio.create_task(broker.follower.run())
    answers = []
    for key, version, request in EXCHANGES:
        decoded = read_request(key, version, write_request(key, version, request))
        response = await HANDLERS[key](broker, request_of(key, version), decoded)
        answers.append(plain(asdict(read_response(key, version, write_response(key, version, response)))))
    following.cancel()
    await store.close()
    return answers


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(RECORDED.read_text())
    return loaded


@pytest.fixture(scope="module")
def answers(recorded: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return asyncio.run(_answers(tmp_path_factory.mktemp("metadata"), recorded["properties"]))


def _without_our_own(answer: Any) -> Any:
    """The answer without Ottla's own settings, and without the default of process.roles, because Kafka has no such
    default. If a default differs from Kafka's by decision, Kafka's takes its place.
    """
    for result in answer.get("results", []):
        result["configs"] = [entry for entry in result["configs"] if not entry["name"].startswith("ottla.")]
        for entry in result["configs"]:
            if entry["name"] == "process.roles":
                entry["synonyms"] = [synonym for synonym in entry["synonyms"] if synonym["source"] != Source.DEFAULT]
            if entry["name"] in OTHER_DEFAULTS:
                ours, kafkas = OTHER_DEFAULTS[entry["name"]]
                for stated in (entry, *entry["synonyms"]):
                    assert stated["value"] == ours
                    stated["value"] = kafkas
    return answer


def _without_messages(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {
            key: bool(value) if key == "error_message" else _without_messages(value) for key, value in answer.items()
        }
    return [_without_messages(item) for item in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize("index", range(len(EXCHANGES)))
def test_answers_as_apache_kafka(index: int, recorded: dict[str, Any], answers: list[Any]) -> None:
    expected, got = recorded["answers"][index], _without_our_own(answers[index])
    assert _without_messages(got) == _without_messages(expected), EXCHANGES[index]
