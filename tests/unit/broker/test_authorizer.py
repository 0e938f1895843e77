"""The authorizer around the rules: what it keeps, when it drops it, and what it writes to the audit log."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.broker import authorizer as module
from ottla.broker.authorization.rules import Rules
from ottla.broker.authorizer import (
    AUDIT_LOGGER,
    AclAuthorizer,
    AllowEverything,
    allowed_names,
    allows_on_cluster,
    authorizer_of,
)
from ottla.broker.request import Request
from ottla.metadata.image import Changed, Image, Topic
from ottla.metadata.model.acls import Acl
from ottla.metadata.persistent import PersistentMap
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.rights import AclOperation, ResourceType
from ottla.settings.config import BrokerConfig, InvalidConfiguration

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
GRANT = AclBinding(TOPIC, PatternType.LITERAL, "t", "User:a", "*", READ, Permission.ALLOW)
TOPIC_ID = UUID(int=7, version=4)


def request(principal: str = "User:a", host: str = "10.0.0.1", key: int = 1) -> Request:
    connection: Any = SimpleNamespace(principal=principal, client_host=host, listener=SimpleNamespace(name="L"))
    return Request(key, 0, 1, "c", connection)


class Scene:
    """An authorizer, and the metadata that it follows."""

    def __init__(self, *super_users: str) -> None:
        self.image = Image()
        self.authorizer = AclAuthorizer(Rules(super_users, allow_if_none=False), lambda: self.image)

    def change(self, put: tuple[AclBinding, ...] = (), removed: tuple[AclBinding, ...] = ()) -> None:
        acls = self.image.acls.changed(dict.fromkeys(put, Acl(1)), removed)
        self.image = Image(acls=acls, topics_by_id=self.image.topics_by_id)
        self.authorizer.changed(self.image, Changed(acls=frozenset((*put, *removed))))

    def make_topic(self, name: str) -> None:
        topic = Topic(name, TOPIC_ID, {})
        self.image = Image(acls=self.image.acls, topics_by_id=PersistentMap({TOPIC_ID: topic}))


def test_decisions_follow_the_metadata() -> None:
    scene = Scene()
    assert not scene.authorizer.allows(request(), READ, TOPIC, "t")
    scene.change((GRANT,))
    assert scene.authorizer.allows(request(), READ, TOPIC, "t")
    assert not scene.authorizer.allows(request("User:b"), READ, TOPIC, "t")
    assert scene.authorizer.allows_topic(request(), READ, "t")
    scene.change(removed=(GRANT,))
    assert not scene.authorizer.allows(request(), READ, TOPIC, "t")
    assert not scene.authorizer.allows_topic(request(), READ, "t")
    assert scene.authorizer.changes == 2


def test_a_connection_whose_principal_changes_gets_the_rights_of_the_new_one() -> None:
    scene = Scene()
    scene.change((GRANT,))
    asking = request()
    assert scene.authorizer.allows_topic(asking, READ, "t")
    asking.connection.principal = "User:b"
    assert not scene.authorizer.allows_topic(asking, READ, "t")


def test_a_topic_is_found_by_its_id_and_an_unknown_id_is_left_to_the_caller() -> None:
    scene = Scene()
    scene.change((GRANT,))
    assert scene.authorizer.allows_topic(request(), WRITE, TOPIC_ID.bytes)
    scene.make_topic("t")
    assert scene.authorizer.allows_topic(request(), READ, TOPIC_ID.bytes)
    assert not scene.authorizer.allows_topic(request(), WRITE, TOPIC_ID.bytes)
    scene.image = Image(acls=scene.image.acls)
    scene.authorizer.changed(scene.image, Changed(tombstones=frozenset({TOPIC_ID})))
    assert scene.authorizer.allows_topic(request(), WRITE, TOPIC_ID.bytes)


def test_the_number_of_kept_decisions_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_MAX", 100)
    scene = Scene()
    scene.change((GRANT,))
    for number in range(1_000):
        assert not scene.authorizer.allows(request(host=f"10.0.1.{number % 250}"), WRITE, TOPIC, f"t{number}")
        assert not scene.authorizer.allows_topic(request(), WRITE, f"t{number}")
    assert scene.authorizer.allows(request(), READ, TOPIC, "t")
    kept = sum(len(client.decisions) + len(client.topics) for client in scene.authorizer._clients.values())
    assert kept <= 100


def test_the_audit_log_has_kafkas_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, AUDIT_LOGGER)
    scene = Scene()
    scene.change((GRANT,))
    for _ in range(2):  # also when the decision is kept
        caplog.clear()
        scene.authorizer.allows(request(host="::1"), WRITE, TOPIC, "t", 3)
        scene.authorizer.allows(request(), READ, TOPIC, "t")
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            (
                "INFO",
                "Principal = User:a is Denied operation = WRITE from host = 0:0:0:0:0:0:0:1 on resource = "
                "Topic:LITERAL:t for request = Fetch with resourceRefCount = 3 based on rule DefaultDeny",
            ),
            (
                "DEBUG",
                "Principal = User:a is Allowed operation = READ from host = 10.0.0.1 on resource = Topic:LITERAL:t "
                "for request = Fetch with resourceRefCount = 1 based on rule MatchingAcl(acl=StandardAcl("
                "resourceType=TOPIC, resourceName=t, patternType=LITERAL, principal=User:a, host=*, operation=READ, "
                "permissionType=ALLOW))",
            ),
        ]


def test_a_topics_references_are_counted_only_for_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    scene = Scene("User:a")
    counted: list[str] = []
    assert scene.authorizer.allows_topic(request(), WRITE, "t", lambda: counted.append("allowed") or 1)
    assert not counted
    assert not scene.authorizer.allows_topic(request("User:b", key=0), WRITE, "t", lambda: 4)
    [line] = [record.getMessage() for record in caplog.records]
    assert "for request = Produce with resourceRefCount = 4 " in line


def test_a_right_that_is_only_looked_for_leaves_no_denial_in_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    scene = Scene()
    assert not scene.authorizer.allows(request(), READ, TOPIC, "t", quiet=True)
    assert not scene.authorizer.allows_on_some(request(), READ, TOPIC)
    assert scene.authorizer.authorized_operations(request(), TOPIC, "t") == 0
    assert not caplog.records
    assert not allows_on_cluster(scene.authorizer, request(), AclOperation.ALTER, AclOperation.CLUSTER_ACTION)
    [line] = [record.getMessage() for record in caplog.records]
    assert "operation = CLUSTER_ACTION" in line


def test_a_name_cannot_begin_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    Scene().authorizer.allows(request(), READ, ResourceType.GROUP, "g\nPrincipal = User:a is Allowed")
    assert "\n" not in caplog.records[0].getMessage()
    assert "Group:LITERAL:g\\nPrincipal" in caplog.records[0].getMessage()


def test_a_principal_cannot_begin_a_line_of_the_log_and_long_names_are_shortened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The names of users come from certificates and tokens."""
    caplog.set_level(logging.INFO)
    Scene().authorizer.allows(request("User:eve\nPrincipal = User:admin"), READ, TOPIC, "n" * 5000)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "\n" not in line
    assert len(line) < 2000


def test_decisions_about_names_that_are_too_long_are_not_kept() -> None:
    """Before the fix, a client without any right filled the broker's memory by names of its choice."""
    scene = Scene()
    for name in ("n" * 255, "n" * 256):
        assert not scene.authorizer.allows(request(), READ, TOPIC, name)
        assert not scene.authorizer.allows_topic(request(), READ, name)
    (client,) = scene.authorizer._clients.values()
    assert [len(name) for _, _, name in client.decisions] == [255]
    assert [len(name) for _, name in client.topics] == [255]


def test_the_names_of_a_request_are_filtered_with_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    scene = Scene()
    scene.change((GRANT,))
    assert allowed_names(scene.authorizer, request(), DESCRIBE, TOPIC, ["t", "u", "u"]) == {"t"}
    assert ["resourceRefCount = 2" in record.getMessage() for record in caplog.records] == [True]
    assert allowed_names(AllowEverything(), request(), DESCRIBE, TOPIC, iter(["t", "u"])) == {"t", "u"}


def config(text: str) -> BrokerConfig:
    return BrokerConfig.from_sources(f"node.id=0\nlog.dirs=/x\n{text}")


def test_without_a_class_name_everything_is_allowed() -> None:
    made = authorizer_of(config("super.users=User:a"), Image)
    assert isinstance(made, AllowEverything)
    assert made.allows(request(), AclOperation.ALTER, CLUSTER, "kafka-cluster")
    assert made.authorized_operations(request(), CLUSTER, "kafka-cluster") == sum(
        1 << n for n in (5, 7, 8, 9, 10, 11, 12)
    )


def test_the_settings_name_the_super_users_and_the_default() -> None:
    text = f"authorizer.class.name={STANDARD}\nsuper.users=User:a; User:CN=b,O=c;\n"
    made = authorizer_of(config(text), Image)
    assert [made.allows(request(user), READ, TOPIC, "t") for user in ("User:a", "User:CN=b,O=c", "User:b")] == [
        True,
        True,
        False,
    ]
    everyone = authorizer_of(config(f"{text}allow.everyone.if.no.acl.found=true"), Image)
    assert everyone.allows(request("User:b"), READ, TOPIC, "t")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
            "authorizer.class.name=kafka.security.authorizer.AclAuthorizer: must be empty, or "
            f"{STANDARD}, Ottla's only authorizer",
        ),
        (
            "super.users=User:a;bob",
            "super.users=User:a;bob: bob must have its type before a colon, as in User:bob",
        ),
    ],
)
def test_settings_that_no_broker_starts_with(text: str, sentence: str) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        config(text)
    assert raised.value.problems == (sentence,)
