"""Values can be read back, and keep fields that this version of Ottla doesn't know."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from ottla.metadata import keys
from ottla.metadata.features import LevelRange
from ottla.metadata.identities import ConfigResource
from ottla.metadata.keys import KINDS, kind_of
from ottla.metadata.model.acls import Acl
from ottla.metadata.model.brokers import Broker, BrokerState, ControllerHolder, Endpoint
from ottla.metadata.model.cluster import Cluster, LineageRow, LineageWord, ProducerIds
from ottla.metadata.model.partitions import Election, Partition, Reassignment, with_isr
from ottla.metadata.model.reports import LogEnd, Report
from ottla.metadata.model.settings import Config, Feature, Quota
from ottla.metadata.model.topics import Ready, Tombstone, TopicIntent
from ottla.metadata.model.users import LoginSecret, ScramKeys, Token
from ottla.metadata.model.value import FORMAT_MAX, UnsupportedFormat
from ottla.metadata.store import Entry
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.rights import AclOperation, ResourceType

ACL = AclBinding(ResourceType.GROUP, PatternType.LITERAL, "g", "User:u", "*", AclOperation.READ, Permission.ALLOW)
TOPIC_ID = UUID("12345678-1234-4321-8765-123456789abc")


VALUES = [
    (keys.cluster.key, Cluster("abc", 3, revision=9)),
    (keys.cluster.key, Cluster("abc", 3, True, (1, 2), 9)),
    (keys.report(3, 1), Report(7, 2, {(TOPIC_ID, 1): LogEnd(4, 100, 5), (TOPIC_ID, 2): LogEnd(-1, 0, -1)}, 9)),
    (keys.controller.key, ControllerHolder("broker 1", 1, 9)),
    (keys.controller.key, ControllerHolder("broker 1", 1, 9, features={"f": LevelRange(1, 3)})),
    (keys.controller.key, ControllerHolder("controller-1", -3, 9, "there", 9404)),
    (keys.producer_ids.key, ProducerIds(5000, 9)),
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
            features={"f": LevelRange(0, 1), "g": LevelRange(1, 3)},
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
    (
        keys.acl(
            AclBinding(ResourceType.GROUP, PatternType.LITERAL, "g", "User:u", "*", AclOperation.READ, Permission.ALLOW)
        ),
        Acl(9),
    ),
    (keys.election(TOPIC_ID, 1), Election(True, 9)),
    (keys.reassignment(TOPIC_ID, 1), Reassignment((3, 1), 9)),
    (keys.reassignment(TOPIC_ID, 2), Reassignment(None, 9)),
    (keys.lineage(3), LineageRow("abcd-_12", 9)),
    (keys.lineage_word("abcd-_12"), LineageWord()),
    (keys.scram("u", "SCRAM-SHA-256"), ScramKeys(b"\0salt", b"stored", b"server", 4096, 9)),
    (
        keys.token("id"),
        Token("User:o", "User:r", ("User:x",), 1, 2, 3, {"SCRAM-SHA-256": ScramKeys(b"s", b"k", b"l", 4096)}, 9),
    ),
    (keys.login_secret.key, LoginSecret(b"\xff\0", 9)),
]


def test_every_kind_has_a_value_here() -> None:
    assert {kind_of(key) for key, _ in VALUES} == {*KINDS.values()}
    assert all((kind := kind_of(key)) is not None and type(value) is kind.value for key, value in VALUES)


@pytest.mark.parametrize(("key", "value"), VALUES, ids=lambda value: type(value).__name__)
def test_values_are_read_back_with_what_a_later_version_added(key: str, value: object) -> None:
    entry = Entry(key, value.encode(), 9, 5)  # type: ignore[attr-defined]
    decoded = type(value).decode(entry)  # type: ignore[attr-defined]
    assert decoded == value
    later = json.loads(entry.value) | {"of_later": [1, {"x": 2}]}
    read = type(value).decode(entry._replace(value=json.dumps(later).encode()))  # type: ignore[attr-defined]
    rewritten = json.loads(replace(read).encode())
    assert rewritten == later
    newer = json.dumps(later | {"format": FORMAT_MAX + 1}).encode()
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        type(value).decode(entry._replace(value=newer))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("key", "value"), [(keys.broker(1), Broker(1, 5, {})), (keys.controller.key, ControllerHolder("controller-1", -3))]
)
def test_an_earlier_version_that_does_not_say_what_it_supports_supports_no_feature(key: str, value: Any) -> None:
    document = json.loads(value.encode())
    del document["features"]
    assert value.features
    assert type(value).decode(Entry(key, json.dumps(document).encode(), 9, 5)).features == {}


def test_epochs() -> None:
    partition = Partition(TOPIC_ID, 0, (1, 2), (1, 2), (10, 20), 1, 5, 7)
    assert partition.leads(1, 10)
    assert not partition.leads(1, 11)
    assert not partition.leads(2, 20)
    shrunk = with_isr(partition, (1,), (10,))
    assert (shrunk.leader_epoch, shrunk.partition_epoch) == (5, 8)
