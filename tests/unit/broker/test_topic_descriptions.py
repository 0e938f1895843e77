"""Descriptions of topics for the clients of one listener, when brokers are down, starting, or not on that listener."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest

from ottla.broker.topic_descriptions import (
    METADATA,
    EncodedTopics,
    controller_for_clients,
    describe_partition,
    describe_topic,
    reachable_brokers,
)
from ottla.metadata import keys
from ottla.metadata.image import Image, Topic
from ottla.metadata.model.brokers import Broker, BrokerState, Endpoint
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.topics import Ready, TopicIntent
from ottla.metadata.store import Change, Entry, Revision, Snapshot
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import EncodedArray, read_response, write_response

IDS = [UUID(int=number, version=4) for number in range(3)]
BOTH = ("IN", "OUT")


def registered(broker_id: int, *listeners: str, state: BrokerState = BrokerState.RUNNING) -> Broker:
    endpoints = {name: Endpoint(name, f"{name.lower()}{broker_id}", 9092) for name in listeners}
    return Broker(broker_id, broker_id, endpoints, state=state)


def partition(leader: int) -> Partition:
    return Partition(IDS[0], 0, (1, 2, 3), (1, 2), (1, 2), leader, 7)


FULL = {1: registered(1, *BOTH), 2: registered(2, "IN"), 3: registered(3, *BOTH)}


@pytest.mark.parametrize(
    ("leader", "listener", "version", "brokers", "error", "shown_leader", "offline"),
    [
        (1, "IN", 13, FULL, ErrorCode.none, 1, ()),
        (1, "OUT", 13, FULL, ErrorCode.none, 1, (2,)),
        (2, "OUT", 13, FULL, ErrorCode.listener_not_found, -1, (2,)),
        (2, "OUT", 5, FULL, ErrorCode.leader_not_available, -1, (2,)),
        (-1, "IN", 13, FULL, ErrorCode.leader_not_available, -1, ()),
        (1, "IN", 13, {2: FULL[2]}, ErrorCode.leader_not_available, -1, (1, 3)),
        (
            1,
            "IN",
            13,
            {1: registered(1, "IN", state=BrokerState.STARTING)},
            ErrorCode.leader_not_available,
            -1,
            (1, 2, 3),
        ),
        (1, "IN", 13, {1: registered(1, "IN", state=BrokerState.DRAINING)}, ErrorCode.none, 1, (2, 3)),
    ],
)
def test_partitions(
    leader: int,
    listener: str,
    version: int,
    brokers: Mapping[int, Broker],
    error: ErrorCode,
    shown_leader: int,
    offline: tuple[int, ...],
) -> None:
    shown = describe_partition(partition(leader), brokers, listener, version)
    assert (shown["error_code"], shown["leader_id"], shown["offline_replicas"]) == (error, shown_leader, offline)
    assert (shown["replica_nodes"], shown["isr_nodes"], shown["leader_epoch"]) == ((1, 2, 3), (1, 2), 7)


def test_version_0_leaves_out_what_is_down() -> None:
    shown = describe_partition(partition(1), {1: FULL[1], 3: FULL[3]}, "IN", 0)
    assert (shown["replica_nodes"], shown["isr_nodes"]) == ((1, 3), (1,))
    assert shown["error_code"] is ErrorCode.replica_not_available


def image(brokers: Mapping[int, Broker]) -> Image:
    entries = []
    for number, topic_id in enumerate(IDS):
        state = Partition(topic_id, 0, (1,), (1,), (1,), 1)
        entries += [
            Entry(keys.topic(f"t{number}"), TopicIntent("", topic_id, ((1,),)).encode(), 1, 1),
            Entry(keys.ready(topic_id), Ready(1).encode(), 1, 1),
            Entry(keys.partition(topic_id, 0), state.encode(), 1, 1),
        ]
    entries += [Entry(keys.broker(broker.id), broker.encode(), 1, 1) for broker in brokers.values()]
    return Image.of(Snapshot(1, tuple(entries)))


def test_brokers_and_the_controller_that_clients_are_told() -> None:
    known = image(FULL | {4: registered(4, "IN", state=BrokerState.STARTING)})
    assert [(b["node_id"], b["host"]) for b in reachable_brokers(known.brokers.values(), "OUT")] == [
        (1, "out1"),
        (3, "out3"),
    ]
    assert [b["node_id"] for b in reachable_brokers(known.brokers.values(), "IN")] == [1, 2, 3]
    assert controller_for_clients(known, 2) == 2
    assert controller_for_clients(known, 4) == 1
    assert controller_for_clients(image({}), 4) == -1


@pytest.mark.parametrize("version", range(14))
def test_an_encoded_topic_reads_as_a_described_one(version: int) -> None:
    known = image(FULL)
    topics = [known.topics[name] for name in ("t0", "t1", "t2")]
    plain = [describe_topic(topic, known, "IN", version, 5) for topic in topics]
    encoded = EncodedTopics().of(topics, known, "IN", version, 5)
    assert write_response(METADATA, version, {"topics": plain}) == write_response(
        METADATA, version, {"topics": encoded}
    )
    read = read_response(METADATA, version, write_response(METADATA, version, {"topics": [encoded[0], plain[1]]}))
    assert [topic.name for topic in read.topics] == ["t0", "t1"]


@pytest.mark.parametrize("version", range(14))
def test_topics_that_are_encoded_one_after_the_other_read_as_the_list(version: int) -> None:
    known = image(FULL)
    plain = [describe_topic(known.topics[name], known, "IN", version, 5) for name in ("t0", "t1", "t2")]
    topics = EncodedArray(METADATA, version, "topics")
    for topic in plain:
        partitions = EncodedArray(METADATA, version, "topics.partitions")
        partitions.extend(topic["partitions"])
        topics.extend([{**topic, "partitions": partitions}])
    assert write_response(METADATA, version, {"topics": topics}) == write_response(METADATA, version, {"topics": plain})


def test_encoded_topics_are_kept_until_they_or_a_broker_change() -> None:
    cache = EncodedTopics()
    before = image(FULL)

    def encode(now: Image, listener: str = "IN", version: int = 12, operations: int = 0) -> list[bytes]:
        return [bytes(e) for e in cache.of(sorted_topics(now), now, listener, version, operations)]

    def kept(now: Image) -> list[int]:
        return [id(e) for e in cache.of(sorted_topics(now), now, "IN", 12, 0)]

    first = kept(before)
    assert kept(before) == first
    assert encode(before, listener="OUT") == encode(before)  # the leader is on both listeners, and is the only replica
    assert encode(before, operations=1) != encode(before)
    state = Partition(IDS[1], 0, (1,), (1,), (1,), 1, 5)
    entry = Entry(keys.partition(IDS[1], 0), state.encode(), 2, 1)
    after, _ = before.apply(Revision(2, (Change(entry.key, entry),)))
    second = kept(after)
    assert second[0] == first[0]
    assert second[1] != first[1]
    old = encode(after)
    gone, _ = after.apply(Revision(3, (Change(keys.broker(1), None),)))
    assert all(one != other for one, other in zip(encode(gone), old, strict=True))


def sorted_topics(now: Image) -> list[Topic]:
    return [now.topics[name] for name in sorted(now.topics)]
