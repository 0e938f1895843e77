"""Keys can be read back, and a version that doesn't know some fields of a value keeps them."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.metadata import keys
from ottla.metadata.keys import ConfigResource, Kind
from ottla.metadata.model import (
    Broker,
    BrokerState,
    Cluster,
    Config,
    ControllerHolder,
    Election,
    Endpoint,
    Feature,
    LogEnd,
    Partition,
    ProducerIds,
    Quota,
    Ready,
    Reassignment,
    Report,
    Tombstone,
    TopicIntent,
    UnsupportedFormat,
    with_isr,
)
from ottla.metadata.store import Entry

TOPIC_ID = UUID("12345678-1234-4321-8765-123456789abc")


@given(st.uuids())
def test_uuids_as_kafka_writes_them(value: UUID) -> None:
    text = keys.uuid_text(value)
    assert len(text) == 22
    assert keys.uuid_from_text(text) == value


def test_kafkas_own_example_of_a_uuid() -> None:
    assert keys.uuid_text(UUID(int=0)) == "AAAAAAAAAAAAAAAAAAAAAA"
    with pytest.raises(ValueError, match="UUID"):
        keys.uuid_from_text("abcd")


names = st.text(max_size=8) | st.sampled_from(["<default>", "a/b", "%3C", "ä=,"])


@given(st.sampled_from(["topic", "broker", "group", "client-metrics"]), names)
def test_config_keys(kind: str, name: str) -> None:
    key = keys.config(ConfigResource(kind, name))
    assert keys.kind_of(key) is Kind.CONFIG
    assert keys.config_resource(key) == ConfigResource(kind, name)


@given(st.dictionaries(st.sampled_from(["user", "client-id", "ip"]), st.none() | names, min_size=1))
def test_quota_keys(entity: dict[str, str | None]) -> None:
    wanted = tuple(sorted(entity.items()))
    assert keys.quota_entity(keys.quota(wanted)) == wanted


def test_other_keys() -> None:
    assert keys.partition_id(keys.partition(TOPIC_ID, 17)) == (TOPIC_ID, 17)
    assert keys.partition_id(keys.election(TOPIC_ID, 3)) == (TOPIC_ID, 3)
    assert keys.topic_id(keys.ready(TOPIC_ID)) == keys.topic_id(keys.tombstone(TOPIC_ID)) == TOPIC_ID
    assert keys.broker_id(keys.broker(7)) == 7
    assert keys.partition_id(keys.reassignment(TOPIC_ID, 3)) == (TOPIC_ID, 3)
    assert keys.topic_name(keys.topic("a.b")) == "a.b"
    assert keys.feature_name(keys.feature("metadata.version")) == "metadata.version"
    assert keys.kind_of("something/of/later") is Kind.UNKNOWN


VALUES = [
    (keys.CLUSTER, Cluster("abc", 3, revision=9)),
    (keys.CLUSTER, Cluster("abc", 3, True, (1, 2), 9)),
    (keys.report(3, 1), Report(7, 2, {(TOPIC_ID, 1): LogEnd(4, 100, 5), (TOPIC_ID, 2): LogEnd(-1, 0, -1)}, 9)),
    (keys.CONTROLLER, ControllerHolder("broker 1", 1, 9)),
    (keys.CONTROLLER, ControllerHolder("controller-1", -3, 9, "there", 9404)),
    (keys.PRODUCER_IDS, ProducerIds(5000, 9)),
    (
        keys.broker(4),
        Broker(
            4,
            5,
            {"A": Endpoint("A", "h", 1), "B": Endpoint("B", "::1", 2, "SSL")},
            "r",
            BrokerState.DRAINING,
            "x",
            "m",
            previous_epoch=3,
            revision=9,
        ),
    ),
    (keys.topic("t"), TopicIntent("t", TOPIC_ID, ((1, 2), (2, 1)), 9)),
    (keys.ready(TOPIC_ID), Ready(2, 9)),
    (keys.tombstone(TOPIC_ID), Tombstone(TOPIC_ID, "t", (1, 2), 9)),
    (keys.partition(TOPIC_ID, 1), Partition(TOPIC_ID, 1, (1, 2), (1,), (5,), 1, 3, 4, revision=9)),
    (
        keys.partition(TOPIC_ID, 2),
        Partition(TOPIC_ID, 2, (1, 2, 3), (1,), (5,), -1, 3, 4, (3,), (2,), (2,), (1, 3), True, (4,), (1, 2), True, 9),
    ),
    (keys.config(ConfigResource("topic", "t")), Config({"a": "b"}, 9)),
    (keys.quota((("user", None),)), Quota({"rate": 1.5}, 9)),
    (keys.feature("f"), Feature(2, 9)),
    (keys.election(TOPIC_ID, 1), Election(True, 9)),
    (keys.reassignment(TOPIC_ID, 1), Reassignment((3, 1), 9)),
    (keys.reassignment(TOPIC_ID, 2), Reassignment(None, 9)),
]


@pytest.mark.parametrize(("key", "value"), VALUES, ids=lambda value: type(value).__name__)
def test_values_are_read_back_with_what_a_later_version_added(key: str, value: object) -> None:
    entry = Entry(key, value.encode(), 9, 5)  # type: ignore[attr-defined]
    decoded = type(value).decode(entry)  # type: ignore[attr-defined]
    assert decoded == value
    later = json.loads(entry.value) | {"of_later": [1, {"x": 2}]}
    read = type(value).decode(entry._replace(value=json.dumps(later).encode()))  # type: ignore[attr-defined]
    rewritten = json.loads(replace(read).encode())
    assert rewritten == later
    newer = json.dumps(later | {"format": 2}).encode()
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        type(value).decode(entry._replace(value=newer))  # type: ignore[attr-defined]


def test_epochs() -> None:
    partition = Partition(TOPIC_ID, 0, (1, 2), (1, 2), (10, 20), 1, 5, 7)
    assert partition.leads(1, 10)
    assert not partition.leads(1, 11)
    assert not partition.leads(2, 20)
    shrunk = with_isr(partition, (1,), (10,))
    assert (shrunk.leader_epoch, shrunk.partition_epoch) == (5, 8)
