"""Rights compared with Apache Kafka's StandardAuthorizer: a matrix of grants and APIs, and Kafka's tool for ACLs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api.registry import ROUTES
from ottla.protocol.rights import AclOperation
from tests.peers.apache_kafka import ApacheKafka, tool
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.ottla_cluster import ottla_cluster
from tests.peers.rights_matrix import (
    ADMINISTRATORS,
    AUTHORIZER,
    GRANTS,
    SUPER_USERS,
    TOPICS,
    UNKNOWN_ID,
    Subject,
    acl,
    creation_of,
    filter_of,
    requests,
)

SETTINGS = {**AUTHORIZER, **SUPER_USERS, "group_initial_rebalance_delay_ms": "0"}
CREATING = "Metadata that creates a topic"
SOON = {0: 0, 3: 0, 5: 0}  # Kafka answers before it has created the topic


def without_super_users(folder: Path) -> None:
    """Takes the super users out of the broker's settings: the next start heeds ACLs for everybody."""
    properties = folder / "server.properties"
    lines = properties.read_text().splitlines(keepends=True)
    properties.write_text("".join(line for line in lines if not line.startswith("super.users")))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """Ottla, with ACLs for the administrator alone."""
    folder = tmp_path_factory.mktemp("ottla-rights")
    broker = OttlaBroker(folder, **SETTINGS)
    subject = Subject(broker.bootstrap)
    subject.create(ADMINISTRATORS)
    without_super_users(folder)
    broker.restart()
    yield subject
    broker.stop()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """Apache Kafka, with the same ACLs."""
    folder = tmp_path_factory.mktemp("kafka-rights")
    broker = ApacheKafka(folder, **SETTINGS)
    subject = Subject(broker.bootstrap)
    subject.create(ADMINISTRATORS)
    without_super_users(folder)
    broker.restart()
    yield subject
    broker.stop()


def comparable(outcomes: dict[str, Any]) -> dict[str, Any]:
    """The outcomes without what differs for other reasons than rights."""
    for topic in outcomes[CREATING]["topics"]:
        topic["error_code"] = SOON.get(topic["error_code"], topic["error_code"])
        topic["partitions"] = []
    return outcomes


@pytest.fixture(scope="module")
def prepared(ours: Subject, theirs: Subject) -> tuple[tuple[Subject, Any], tuple[Subject, Any]]:
    """Both brokers, with the ids of their topics."""
    return (ours, ours.prepare()), (theirs, theirs.prepare())


@pytest.mark.parametrize("name", GRANTS)
def test_a_client_gets_what_apache_kafka_gives_it(name: str, prepared: Any) -> None:
    (ours, our_ids), (theirs, their_ids) = prepared
    expected = comparable(theirs.row(GRANTS[name], their_ids))
    got = comparable(ours.row(GRANTS[name], our_ids))
    different = {label: (got[label], expected[label]) for label in expected if got[label] != expected[label]}
    assert not different


PREFIXED = ("--resource-pattern-type", "prefixed")
OPS = ("--cluster", "--allow-principal", "User:ops", "--allow-host", "10.0.0.1", "--operation", "Alter")


def listed(text: str) -> set[str]:
    """The ACLs in the tool's output, each with its resources."""
    found: set[str] = set()
    resource = ""
    for line in text.splitlines():
        if match := re.search(r"resource `(ResourcePattern\(.*\))`", line):
            resource = match[1]
        elif match := re.search(r"\((principal=.*)\)", line):
            found.add(f"{resource} {match[1]}")
    return found


def test_kafka_acls(ours: Subject, theirs: Subject) -> None:
    """Kafka's tool lists, adds and removes the same ACLs on both brokers."""
    commands = (
        ("--add", "--allow-principal", "User:bob", "--producer", "--topic", "t", "--transactional-id", "x"),
        ("--add", "--allow-principal", "User:bob", "--consumer", "--topic", "t", "--group", "g"),
        ("--add", "--deny-principal", "User:eve", "--operation", "All", "--topic", "se", *PREFIXED),
        ("--add", *OPS),
        ("--list", "--topic", "t"),
        ("--list", "--principal", "User:eve"),
        ("--list", "--topic", "secret", "--resource-pattern-type", "match"),
        ("--remove", "--force", "--allow-principal", "User:bob", "--operation", "Read", "--topic", "t"),
        ("--list",),
        ("--remove", "--force", "--topic", "t"),
        ("--remove", "--force", "--topic", "se", *PREFIXED),
        ("--remove", "--force", *OPS),
        ("--remove", "--force", "--group", "g"),
        ("--remove", "--force", "--transactional-id", "x"),
        ("--list",),
    )
    for command in commands:
        got, expected = (tool("acls", "--bootstrap-server", subject.bootstrap, *command) for subject in (ours, theirs))
        assert listed(got) == listed(expected), command
        assert command[0] != "--add" or listed(got)


REFUSALS = frozenset({29, 30, 31, 53})
# ApiVersions, and DescribeCluster, which shows the brokers to everybody; logins; and the requests about delegation
# tokens, which every client on a listener without logins is refused.
OPEN = frozenset({18, 60, 17, 36, 38, 39, 40, 41})


def codes(outcome: Any) -> set[int]:
    """All error codes in an outcome, other than 0."""
    if isinstance(outcome, list):
        return set().union(*map(codes, outcome)) if outcome else set()
    if not isinstance(outcome, dict):
        return set()
    own = {value for name, value in outcome.items() if name.endswith("error_code") and value}
    return own.union(*(codes(value) for value in outcome.values()))


def test_every_api_refuses_a_client_without_rights(ours: Subject) -> None:
    """The answer to a request of such a client has errors about rights alone, or is empty. Ids that no topic has are
    no secret (UNKNOWN_TOPIC_ID)."""
    asked = requests(dict.fromkeys(TOPICS, UNKNOWN_ID), UNKNOWN_ID)
    kafkas = {key for key, route in ROUTES.items() if not route.api.own_name}
    assert kafkas - OPEN <= {key for key, _, _ in asked.values()}
    ids = ours.make(*TOPICS)
    outcomes = ours.row([], ids)
    silent = {label for label, outcome in outcomes.items() if not codes(outcome)}
    assert silent == {
        "Metadata of all topics",
        "ListGroups",
        "ListTransactions",
        "DescribeCluster",
        "DescribeLogDirs, an older version",
        "DescribeTopicPartitions of all topics",
    }
    for label in silent - {"DescribeCluster"}:
        assert not any(value for name, value in outcomes[label].items() if isinstance(value, list)), label
    assert set().union(*(codes(outcome) for outcome in outcomes.values())) == REFUSALS | {100}


def test_a_change_is_in_force_on_every_broker_when_it_is_answered(tmp_path: Path) -> None:
    """Three brokers, which are super users, since they connect to each other without a login. An ACL that one broker
    creates or deletes is known to the others at once."""
    one = acl(AclOperation.READ, name="orders")
    with ottla_cluster(tmp_path, 3, **SETTINGS) as brokers:
        subjects = [Subject(broker.bootstrap) for broker in brokers.brokers]
        for number in range(12):
            here, *others = subjects[number % 3 :] + subjects[: number % 3]
            with here.administrator() as wire:
                assert not wire.call(30, 3, {"creations": [creation_of(one)]}).results[0].error_code
                assert all(each.acls() == {one} for each in others)
                assert not wire.call(31, 3, {"filters": [filter_of(one)]}).filter_results[0].error_code
                assert all(each.acls() == set() for each in others)
