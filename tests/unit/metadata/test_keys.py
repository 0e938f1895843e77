"""The table of the kinds of metadata: every kind has a field in the image and among its changes, and keys can be read
back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest

from ottla.metadata import keys
from ottla.metadata.identities import ConfigResource
from ottla.metadata.image import SHOWN_BY_TOPICS, Changed, Image
from ottla.metadata.keys import KINDS, Kind, MappedKind, SingleKind, kind_of
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.rights import AclOperation, ResourceType

TOPIC_ID = UUID("12345678-1234-4321-8765-123456789abc")
ACL = AclBinding(
    ResourceType.TOPIC, PatternType.PREFIXED, "a/", "User:é", "*", AclOperation.ALTER_CONFIGS, Permission.DENY
)

NOT_SHOWN = {keys.lineage_word}  # only guards of transactions need its keys
# What the image has beside the kinds' fields: its revision, and what follows from topics.
FROM_OTHER_FIELDS = {"revision", "topics", "topics_by_id", "intents_by_id", "metric_names"}


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_every_kind_has_a_field_of_the_image(kind: Kind) -> None:
    if kind in NOT_SHOWN:
        assert kind.field == ""
    elif isinstance(kind, SingleKind):
        assert getattr(Image(), kind.field) is None
    else:
        assert isinstance(getattr(Image(), kind.field), Mapping)
        # A new snapshot is compared with the image by the revisions of values (`lineage.check_successor`).
        assert "revision" in {field.name for field in fields(kind.value)}


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind not in NOT_SHOWN], ids=str)
def test_every_kind_is_among_the_changes(kind: Kind) -> None:
    nothing = False if isinstance(kind, SingleKind) else frozenset()
    assert getattr(Changed(), "topics" if kind.field in SHOWN_BY_TOPICS else kind.field) == nothing


def test_every_field_has_a_kind() -> None:
    of_kinds = [kind.field for kind in KINDS.values() if kind not in NOT_SHOWN]
    assert len(of_kinds) == len(set(of_kinds))
    assert {field.name for field in fields(Image)} == {*of_kinds, *FROM_OTHER_FIELDS}
    assert {field.name for field in fields(Changed)} == {*of_kinds, "topics"} - {*SHOWN_BY_TOPICS}


IDENTITIES: list[tuple[MappedKind[..., Any], tuple[Any, ...], str]] = [
    (keys.topic, ("a.b",), "topics/a.b"),
    (keys.tombstone, (TOPIC_ID,), "tombstones/EjRWeBI0QyGHZRI0VniavA"),
    (keys.config, (ConfigResource("broker", ""),), "configs/broker/<default>"),
    (keys.quota, ((("client-id", None), ("user", "a/b")),), "quotas/client-id=<default>,user=a%2Fb"),
    (keys.feature, ("metadata.version",), "features/metadata.version"),
    (keys.token, ("AbC-_1",), "tokens/AbC-_1"),
    (keys.scram, ("a/b ,ü", "SCRAM-SHA-256"), "scram/SCRAM-SHA-256/a%2Fb%20%2C%C3%BC"),
    (keys.acl, (ACL,), "acls/topic/prefixed/a%2F/User%3A%C3%A9/%2A/alter_configs/deny"),
    (keys.election, (TOPIC_ID, 3), "elections/EjRWeBI0QyGHZRI0VniavA/3"),
    (keys.reassignment, (TOPIC_ID, 3), "reassignments/EjRWeBI0QyGHZRI0VniavA/3"),
    (keys.partition, (TOPIC_ID, 17), "partitions/EjRWeBI0QyGHZRI0VniavA/17"),
    (keys.ready, (TOPIC_ID,), "ready/EjRWeBI0QyGHZRI0VniavA"),
    (keys.lineage, (12,), "lineage/00000012"),
    (keys.lineage_word, ("abcd-_12",), "lineage-word/abcd-_12"),
    (keys.broker, (7,), "brokers/7"),
    (keys.report, (7, 1), "reports/7/1"),
]


@pytest.mark.parametrize(("kind", "identity", "key"), IDENTITIES, ids=lambda part: str(part))
def test_keys_are_laid_out_as_ever_and_can_be_read_back(
    kind: MappedKind[..., Any], identity: tuple[Any, ...], key: str
) -> None:
    assert kind(*identity) == key
    assert kind.of(key) == (identity if len(identity) > 1 else identity[0])
    assert kind_of(key) is kind
    assert key.startswith(kind.prefix)


def test_kinds_with_only_one_key() -> None:
    single = {kind.key: kind for kind in KINDS.values() if isinstance(kind, SingleKind)}
    assert single == {
        "cluster": keys.cluster,
        "controller": keys.controller,
        "producer-ids": keys.producer_ids,
        "login-secret": keys.login_secret,
    }
    assert all(kind_of(key) is kind for key, kind in single.items())
    assert {kind for kind, _, _ in IDENTITIES} | {*single.values()} == {*KINDS.values()}


def test_keys_of_later_versions_are_of_no_kind() -> None:
    assert kind_of("something/of/later") is None
    assert kind_of("") is None
