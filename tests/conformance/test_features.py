"""Features by Apache Kafka's own tool, and UpdateFeatures compared with Apache Kafka."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.peers.apache_kafka import ApacheKafka, tool
from tests.peers.wire import Wire

UPDATE_FEATURES = 57
TRANSACTIONS = "transaction.version"
ELR = "eligible.leader.replicas.version"
UP, SAFE, UNSAFE = 1, 2, 3


def update(bootstrap: str, version: int, *updates: tuple[str, int, int], validate_only: bool = False) -> Any:
    asked = [
        {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind != UP}
        for name, level, kind in updates
    ]
    with Wire(bootstrap) as wire:
        message = {"timeout": 10_000, "feature_updates": asked, "validate_only": validate_only}
        return wire.call(UPDATE_FEATURES, version, message)


@pytest.fixture
def servers(bootstrap: str, apache_kafka: ApacheKafka) -> Iterator[tuple[str, str]]:
    """The addresses of the broker under test and of Apache Kafka. After the test, both have the levels of new clusters
    again."""
    both = (bootstrap, apache_kafka.bootstrap)
    yield both
    for address in both:
        assert update(address, 2, (TRANSACTIONS, 2, UP), (ELR, 1, UP)).error_code == 0


def features(bootstrap: str, *arguments: str) -> str:
    return tool("features", "--bootstrap-server", bootstrap, *arguments)


def described(bootstrap: str) -> dict[str, tuple[str, str, str]]:
    """Feature → (lowest level, highest level, finalised level)."""
    columns = ("Feature", "SupportedMinVersion", "SupportedMaxVersion", "FinalizedVersionLevel")
    row = r"\s+".join([*(rf"{column}: (\S+)" for column in columns), r"Epoch: \d+"])
    return {name: (low, high, level) for name, low, high, level in re.findall(row, features(bootstrap, "describe"))}


def test_kafka_features(servers: tuple[str, str]) -> None:
    bootstrap, kafka = servers
    ours, theirs = described(bootstrap), described(kafka)
    assert ours == {name: theirs[name] for name in (ELR, TRANSACTIONS)}
    for command in (
        ("upgrade", "--feature", f"{TRANSACTIONS}=2", "--dry-run"),
        ("downgrade", "--feature", f"{TRANSACTIONS}=1"),
        ("downgrade", "--feature", f"{TRANSACTIONS}=0", "--unsafe", "--dry-run"),
        ("disable", "--feature", TRANSACTIONS, "--feature", ELR),
        ("upgrade", "--feature", f"{TRANSACTIONS}=2", "--feature", f"{ELR}=1"),
    ):
        assert features(bootstrap, *command) == features(kafka, *command)
        assert described(bootstrap) == {name: described(kafka)[name] for name in (ELR, TRANSACTIONS)}
    with pytest.raises(AssertionError, match=r"exit 1\nCould not upgrade transaction.version to 3\. .*only supports"):
        features(bootstrap, "upgrade", "--feature", f"{TRANSACTIONS}=3")


REQUESTS: list[tuple[tuple[str, int, int], ...]] = [
    (),
    ((TRANSACTIONS, 2, UP),),
    ((TRANSACTIONS, 1, UP),),
    ((TRANSACTIONS, 3, UP),),
    ((TRANSACTIONS, -1, SAFE),),
    ((TRANSACTIONS, 2, SAFE),),
    ((TRANSACTIONS, 1, SAFE),),
    ((TRANSACTIONS, 2, SAFE),),
    ((TRANSACTIONS, 2, UNSAFE),),
    ((TRANSACTIONS, 0, UNSAFE),),
    ((TRANSACTIONS, 1, 0),),
    ((TRANSACTIONS, 1, 9),),
    (("foo", 1, UP),),
    (("foo", 0, SAFE),),
    (("", 1, UP),),
    ((TRANSACTIONS, 1, UP), (ELR, 7, UP)),
    ((TRANSACTIONS, 9, UP), (TRANSACTIONS, 1, UP)),
    ((TRANSACTIONS, 2, UP), (ELR, 0, SAFE)),
]


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_answers_as_apache_kafka(servers: tuple[str, str], version: int, validate_only: bool) -> None:
    for request in REQUESTS:
        ours, theirs = (update(address, version, *request, validate_only=validate_only) for address in servers)
        assert comparable(ours) == comparable(theirs), request


def comparable(answer: Any) -> Any:
    """(code, message, results), with Kafka's words for the process that decides, and the results in any order: Kafka's
    order is that of a hash table."""
    message = re.sub("This version of Ottla", "Local controller 0", answer.error_message or "")
    results = [(each.feature, each.error_code, each.error_message) for each in getattr(answer, "results", ())]
    return answer.error_code, message, sorted(results)
