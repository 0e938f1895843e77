"""Every codec in both directions: each client writes topics in each codec, and each other client reads the same
bytes."""

import uuid
from collections.abc import Callable

import pytest
from kafka import KafkaAdminClient

from ottla.protocol.batches import iterate_headers
from tests.conformance.conftest import Target
from tests.peers.clients import CLIENTS, Client
from tests.peers.records import CODECS, expected_digest
from tests.peers.wire import Wire

FETCH, METADATA = 1, 3


@pytest.fixture(scope="module")
def topics(target: Target) -> dict[tuple[str, str], str]:
    """(client, codec) → a topic of one partition, for this client to write with this codec."""
    run = uuid.uuid4().hex[:8]
    names = {(client.name, codec): f"codec-{run}-{client.name}-{codec}" for client in CLIENTS for codec in CODECS}
    wanted = {"num_partitions": 1, "replication_factor": target.replication_factor}
    admin = KafkaAdminClient(bootstrap_servers=target.bootstrap)
    admin.create_topics(dict.fromkeys(names.values(), wanted), wait_for_metadata=True)
    admin.close()
    return names


@pytest.fixture(scope="module")
def written(target: Target, topics: dict[tuple[str, str], str]) -> Callable[[Client], list[str]]:
    """A function that has a client write its topics, at most once, and returns the topics' names."""
    done: dict[str, list[str]] = {}

    def write(client: Client) -> list[str]:
        if client.name not in done:
            codecs = {topics[client.name, codec]: codec for codec in CODECS}
            client.produce(target.bootstrap, codecs)
            done[client.name] = list(codecs)
        return done[client.name]

    return write


@pytest.mark.parametrize("reader", CLIENTS, ids=lambda client: client.name)
def test_reads_what_every_client_wrote(target: Target, written: Callable[[Client], list[str]], reader: Client) -> None:
    names = [name for writer in CLIENTS for name in written(writer)]
    assert reader.digests(target.bootstrap, names) == dict.fromkeys(names, expected_digest())


@pytest.mark.parametrize("writer", CLIENTS, ids=lambda client: client.name)
def test_batches_stay_compressed_as_they_came(
    target: Target, written: Callable[[Client], list[str]], writer: Client
) -> None:
    """The broker keeps each batch's codec: fetched batches have the codec that the client set."""
    for codec, topic in zip(range(5), written(writer), strict=True):
        with Wire(leader(target, topic)) as wire:
            answer = wire.call(FETCH, 11, fetch_request(topic))
        records = answer.responses[0].partitions[0].records
        assert {header.codec for _, header in iterate_headers(records)} == {codec}


def leader(target: Target, topic: str) -> str:
    """The address of partition 0's leader."""
    with Wire(target.bootstrap.split(",")[0]) as wire:
        answer = wire.call(METADATA, 9, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
    (leader,) = (each for each in answer.brokers if each.node_id == answer.topics[0].partitions[0].leader_id)
    return f"{leader.host}:{leader.port}"


def fetch_request(topic: str) -> dict[str, object]:
    """Asks for all of partition 0 without a session, in version 11: the last version with topic names and without
    tags."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    return {
        "replica_id": -1,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
    }
