"""A stand-in of a broker for handlers of the topic and cluster APIs. Its metadata store (embedded), its follower of the
metadata and its controller are real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from ottla.broker.api import (
    alter_partition_reassignments,
    alter_user_scram_credentials,
    api_versions,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_topic_partitions,
    describe_user_scram_credentials,
    elect_leaders,
    list_partition_reassignments,
    metadata,
    unregister_broker,
    update_features,
)
from ottla.broker.authorizer import authorizer_of
from ottla.broker.awaited_elections import AwaitedElections
from ottla.broker.request import Request
from ottla.broker.topic_descriptions import EncodedTopics
from ottla.controller.runner import Controller
from ottla.metadata.cluster import join_cluster
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.follower import Follower
from ottla.metadata.identities import ConfigResource
from ottla.metadata.intents.facade import Intents
from ottla.metadata.model.brokers import Broker as Registered
from ottla.metadata.model.brokers import BrokerState, Endpoint
from ottla.metadata.registration import Registration
from ottla.metadata.renewal import RenewalTask
from ottla.protocol.messages import read_request, read_response, write_request, write_response
from ottla.settings.config import BrokerConfig

HANDLERS = {
    module.API.key: module.handle
    for module in (
        alter_partition_reassignments,
        alter_user_scram_credentials,
        api_versions,
        create_acls,
        create_partitions,
        create_topics,
        delete_acls,
        delete_topics,
        describe_acls,
        describe_cluster,
        describe_topic_partitions,
        describe_user_scram_credentials,
        elect_leaders,
        list_partition_reassignments,
        metadata,
        unregister_broker,
        update_features,
    )
}


def request_of(api_key: int, api_version: int, client_id: str = "test") -> Request:
    """A request over a connection that sends nothing."""
    connection: Any = SimpleNamespace(
        listener=SimpleNamespace(name="PLAINTEXT"),
        principal="User:ANONYMOUS",
        client_host="127.0.0.1",
        answered=lambda: None,
    )
    return Request(api_key, api_version, 1, client_id, connection)


class BrokerStandIn(SimpleNamespace):
    """Broker 0, registered and running."""

    @property
    def image(self) -> Any:
        return self.follower.image

    async def ask(self, key: int, version: int, request: dict[str, Any]) -> Any:
        """The handler's answer as kio's object; request and answer are encoded and decoded on the way."""
        decoded = read_request(key, version, write_request(key, version, request))
        broker: Any = self
        response = await HANDLERS[key](broker, request_of(key, version), decoded)
        return read_response(key, version, write_response(key, version, response))


async def _nobody_else(deadline: float = 0.0) -> frozenset[int]:
    """Takes the place of the wait for other brokers: there are none."""
    return frozenset()


@asynccontextmanager
async def broker_stand_in(folder: Path, settings: str = "", *, controlled: bool = True) -> AsyncIterator[BrokerStandIn]:
    """A stand-in with these properties, on an empty store. Without `controlled`, there is no controller. Then topics
    that a request creates, for example, are recorded in the store but get no partitions."""
    store = await EmbeddedStore.open(folder / "metadata.sqlite")
    config = BrokerConfig.from_sources(f"node.id=0\nlog.dirs=/x\nlisteners=PLAINTEXT://127.0.0.1:9092\n{settings}")
    follower = Follower(store)
    broker = BrokerStandIn(
        id=0,
        config=config,
        follower=follower,
        intents=Intents(store, follower, Random(1)),
        encoded_topics=EncodedTopics(),
        internal_topics=SimpleNamespace(want=lambda name: None),
        awaited_elections=AwaitedElections(0, lambda: follower.image, asyncio.get_running_loop().time),
        advertised_apis=[],
        authorizer=authorizer_of(config, lambda: follower.image),
        applied_revisions=SimpleNamespace(everywhere=_nobody_else, everywhere_by=_nobody_else),
    )
    follower.listen(broker.authorizer.changed)
    await join_cluster(store, None)
    await follower.start()
    endpoints = {"PLAINTEXT": Endpoint("PLAINTEXT", "127.0.0.1", 9092)}
    await Registration(
        store, Registered(0, 0, endpoints, state=BrokerState.RUNNING), RenewalTask(store), 60, told=lambda broker: None
    ).register()
    controller = Controller(store, follower, "test")
    running = [follower.run, controller.run] if controlled else [follower.run]
    tasks = [asyncio.ensure_future(run()) for run in running]
    # Apache Kafka writes this setting when it formats its storage.
    await broker.intents.alter_config(ConfigResource("broker", ""), lambda present: {"min.insync.replicas": "1"})
    broker.config = config.with_dynamic({}, follower.image.config("broker", ""))[0]
    try:
        yield broker
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()
