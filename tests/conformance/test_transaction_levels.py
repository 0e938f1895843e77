"""The level of `transaction.version` is lowered and raised again while transactions are open, and producers of both
protocols use one transactional id in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.test_features import SAFE, TRANSACTIONS, UP, update
from tests.peers.transacting import V1, V2, TransactingProducer, committed_offset, committed_values

LEVELS, PROTOCOLS, COMMITS = (2, 1), (V1, V2), (True, False)


@pytest.fixture
def level(bootstrap: str) -> Iterator[Callable[[int], None]]:
    """Sets the level of `transaction.version`, which is 2 again after the test."""
    now = [2]

    def set_level(level: int) -> None:
        if level != now[0]:
            kind = UP if level > now[0] else SAFE
            assert update(bootstrap, 2, (TRANSACTIONS, level, kind)).error_code == 0
            now[0] = level

    yield set_level
    set_level(2)


def test_transactions_end_whatever_the_level_and_the_protocol_were_when_they_began(
    bootstrap: str, level: Callable[[int], None], unique: Callable[[str], str]
) -> None:
    topic, group = unique("levels"), unique("levels")
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = TransactingProducer([bootstrap], topic)
    wanted, offset = [], -1
    cases = product(LEVELS, LEVELS, PROTOCOLS, COMMITS)
    for number, (at_beginning, at_end, protocol, commit) in enumerate(cases):
        if number % 5 == 0:
            producer.init()
        level(at_beginning)
        producer.protocol = protocol
        producer.write(topic, f"{number}-a", 0)
        producer.commit_offset(group, topic, 0, number)
        level(at_end)
        producer.write(topic, f"{number}-b", 1)
        producer.end(commit)
        if commit:
            wanted += [f"{number}-a", f"{number}-b"]
            offset = number
    assert committed_values(bootstrap, topic, 2) == sorted(wanted)
    assert committed_offset(bootstrap, group, topic, 0) == offset


def test_a_successor_of_the_other_protocol_aborts_what_its_predecessor_left_open(
    bootstrap: str, level: Callable[[int], None], unique: Callable[[str], str]
) -> None:
    topic, group = unique("successors"), unique("successors")
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    wanted = []
    for number, (at_beginning, at_end, protocol) in enumerate(product(LEVELS, LEVELS, PROTOCOLS)):
        level(at_beginning)
        predecessor = TransactingProducer([bootstrap], topic, protocol)
        predecessor.init()
        predecessor.write(topic, f"{number}-left", 0)
        predecessor.commit_offset(group, topic, 0, 1000 + number)
        level(at_end)
        successor = TransactingProducer([bootstrap], topic, V1 if protocol == V2 else V2)
        successor.init()
        successor.write(topic, f"{number}-kept", 0)
        successor.commit_offset(group, topic, 0, number)
        successor.end(True)
        wanted.append(f"{number}-kept")
    assert committed_values(bootstrap, topic, 2) == sorted(wanted)
    assert committed_offset(bootstrap, group, topic, 0) == number
