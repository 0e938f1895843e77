"""The right coordinators are called when the broker becomes the leader of a partition, when it no longer leads the
partition, and when a topic is deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

from ottla.broker.coordinators import Coordinators
from ottla.metadata.image import Changed

GONE, OLDER = UUID(int=1), UUID(int=2)


def test_a_coordinator_hears_of_the_partitions_of_its_topic_alone() -> None:
    groups, transactions = Mock(), Mock()
    coordinators = Coordinators({"groups": groups, "transactions": transactions})
    led: Any = SimpleNamespace(topic="groups", index=3)
    others: Any = SimpleNamespace(topic="t", index=3)
    for partition in (led, others):
        coordinators.leadership_changed(partition, True)
    groups.became_leader.assert_called_once_with(led)
    for partition in (led, others):
        coordinators.leadership_changed(partition, False)
    groups.lost_leadership.assert_called_once_with(3)
    assert transactions.mock_calls == []


def test_every_coordinator_hears_of_topics_that_were_deleted_now() -> None:
    groups, transactions = Mock(), Mock()
    coordinators = Coordinators({"groups": groups, "transactions": transactions})
    image: Any = SimpleNamespace(tombstones={GONE: SimpleNamespace(name="t")})
    coordinators.changed(image, Changed(tombstones=frozenset({GONE, OLDER})))  # OLDER was confirmed by all brokers
    coordinators.changed(image, Changed())
    for coordinator in (groups, transactions):
        coordinator.topics_deleted.assert_called_once_with(["t"])
