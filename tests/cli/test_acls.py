"""`ottla acls` against a broker with an authorizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import Ottla
from tests.peers.ottla_broker import OttlaBroker

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def authorized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with an authorizer, whose super user is everybody."""
    settings = {"authorizer_class_name": STANDARD, "super_users": "User:ANONYMOUS"}
    broker = OttlaBroker(tmp_path_factory.mktemp("authorized"), **settings)
    yield broker.bootstrap
    broker.stop()


def test_acls_are_created_listed_and_deleted(ottla: Ottla, authorized: str) -> None:
    there = ("-b", authorized)
    made = ottla("acls", "create", "--allow", "User:alice", "--topic", "orders", "--operation", "read", *there)
    assert (made.code, made.stdout) == (0, "User:alice may read on topic 'orders'.\n"), made.stderr
    options = ("--deny", "User:*", "--topic", "se", "--prefixed", "--operation", "all", "--host", "10.0.0.1")
    denied = ottla("acls", "create", *options, *there)
    assert denied.stdout == "User:* from 10.0.0.1 may not do everything on every topic whose name begins with 'se'.\n"
    consumer = ("--allow", "User:bob", "--consumer", "--topic", "orders", "--group", "g")
    assert len(ottla("acls", "create", *consumer, "--json", *there).json) == 3

    rows = ottla("acls", "list", "--json", *there).json
    assert len(rows) == 5
    assert rows[0] == {
        "principal": "User:*",
        "permission": "deny",
        "operation": "all",
        "resource": "topic",
        "name": "se",
        "pattern": "prefixed",
        "host": "10.0.0.1",
    }
    table = ottla("acls", "list", "--principal", "User:alice", *there).stdout.splitlines()
    assert [line.split() for line in table] == [
        ["PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST"],
        ["User:alice", "allow", "read", "topic", "orders", "literal", "*"],
    ]
    matching = ottla("acls", "list", "--topic", "secret", "--match", "--json", *there).json
    assert [row["name"] for row in matching] == ["se"]
    reading = ottla("acls", "list", "--operation", "read", "--group", "g", "--topic", "orders", "--json", *there).json
    assert {(row["principal"], row["name"]) for row in reading} == {
        ("User:alice", "orders"),
        ("User:bob", "orders"),
        ("User:bob", "g"),
    }

    asked = ottla("acls", "delete", "--principal", "User:bob", *there)
    assert asked.code == 2
    assert "Say --yes" in asked.stderr
    deleted = ottla("acls", "delete", "--principal", "User:bob", "--topic", "orders", "--yes", *there)
    assert deleted.stdout.splitlines() == [
        "No longer: User:bob may read on topic 'orders'.",
        "No longer: User:bob may describe on topic 'orders'.",
    ]
    assert len(ottla("acls", "delete", "--all", "--yes", "--json", *there).json) == 3
    nothing = ottla("acls", "delete", "--topic", "orders", "--yes", *there)
    assert (nothing.code, "there are no such ACLs" in nothing.stderr) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--topic", "t", "--operation", "read"], "who? Give --allow User:NAME or --deny User:NAME."),
        (["--allow", "User:a", "--operation", "read"], "on what? Give --topic, --group,"),
        (
            ["--allow", "a", "--topic", "t", "--operation", "read"],
            "'a' has no type. Write the type before a colon: User:a.",
        ),
        (["--allow", "User:a", "--topic", "t"], "which operations on a topic? Give --operation,"),
        (
            ["--allow", "User:a", "--group", "g", "--operation", "write"],
            "a group has no operation write. It has:",
        ),
        (["--allow", "User:a", "--topic", "t", "--operation", "raed"], "Did you mean 'read'?"),
        (["--allow", "User:a", "--user", "b", "--operation", "create-tokens"], "'b' has no type."),
        (["--allow", "User:a", "--user", "User:b", "--operation", "read"], "a user has no operation read. It has:"),
        (["--allow", "User:a", "--cluster", "--prefixed", "--operation", "alter"], "the cluster has no prefix."),
        (
            ["--allow", "User:a", "--topic", "t", "--operation", "read", "--host", "10.0.0.0/8"],
            "'10.0.0.0/8' is not an IP address. Brokers compare hosts with clients' IP addresses;",
        ),
    ],
)
def test_mistakes_are_explained_before_a_broker_is_asked(ottla: Ottla, arguments: list[str], sentence: str) -> None:
    result = ottla("acls", "create", *arguments, "-b", "127.0.0.1:1")
    assert result.code == 2
    assert sentence in result.stderr


def test_a_cluster_without_an_authorizer_says_what_to_set(ottla: Ottla, bootstrap: str) -> None:
    result = ottla("acls", "list", "-b", bootstrap)
    assert result.code == 1
    assert f"Set authorizer.class.name={STANDARD}" in result.stderr
