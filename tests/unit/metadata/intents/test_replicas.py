"""Which brokers can have replicas, and the replicas that new partitions get."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.metadata import keys
from ottla.metadata.identities import ConfigResource
from ottla.metadata.image import DRAINED, Image
from ottla.metadata.intents.replicas import PARTITIONS_PER_REQUEST_MAX, assigned, known_brokers, placed
from ottla.metadata.model.brokers import Broker, BrokerState
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.settings import Config
from ottla.metadata.model.value import Value
from ottla.metadata.store import Entry, Snapshot
from ottla.protocol.errors import ErrorCode, KafkaError

T = UUID("12345678-1234-4321-8765-123456789abc")


def image_of(*running: int, starting: tuple[int, ...] = (), drained: str = "", down: tuple[int, ...] = ()) -> Image:
    """An image with brokers that run, start, or are drained. The brokers `down` aren't registered, but each of them has
    a replica."""
    values: dict[str, Value] = {keys.broker(id): Broker(id, 0, {}, state=BrokerState.RUNNING) for id in running}
    values |= {keys.broker(id): Broker(id, 0, {}) for id in starting}
    values |= {keys.partition(T, id): Partition(T, id, (id,), (), (), -1) for id in down}
    values[keys.config(ConfigResource("broker", ""))] = Config({DRAINED: drained})
    return Image.of(Snapshot(1, tuple(Entry(key, value.encode(), 1, 1) for key, value in values.items())))


def test_a_broker_that_is_down_is_known_by_its_replicas() -> None:
    image = image_of(1, 2, down=(3,))
    assert set(known_brokers(image, [2, 1])) == {1, 2}
    assert set(known_brokers(image, [3])) == set(known_brokers(image, [9])) == {1, 2, 3}


def test_drained_brokers_are_left_out_while_others_run() -> None:
    assert {replica for replicas in placed(image_of(1, 2, 3, drained="1"), 6, 2, 0) for replica in replicas} == {2, 3}
    assert {replica for replicas in placed(image_of(1, 2, drained="1,2"), 6, 1, 0) for replica in replicas} == {1, 2}


def test_brokers_that_are_down_get_replicas_only_where_they_are_needed() -> None:
    image = image_of(1, 2, down=(3,))
    assert {replica for replicas in placed(image, 6, 2, 0) for replica in replicas} == {1, 2}
    assert set(placed(image, 1, 3, 0)[0]) == {1, 2, 3}


def test_a_request_for_too_many_partitions_is_refused() -> None:
    assert len(placed(image_of(1), PARTITIONS_PER_REQUEST_MAX, 1, 0)) == PARTITIONS_PER_REQUEST_MAX
    with pytest.raises(KafkaError) as refused:
        placed(image_of(1), PARTITIONS_PER_REQUEST_MAX + 1, 1, 0)
    assert refused.value.code == ErrorCode.policy_violation


def test_assignments_by_hand_need_a_known_broker_that_runs() -> None:
    image = image_of(1, starting=(2,), down=(3,))
    assert assigned(image, [(0, [3, 1]), (1, [1, 2])]) == ((3, 1), (1, 2))
    with pytest.raises(KafkaError, match="for partition 4 are fenced"):
        assigned(image, [(0, [2, 3])], 2, first_index=4)
    with pytest.raises(KafkaError, match="no such broker"):
        assigned(image, [(0, [9])])
    with pytest.raises(KafkaError, match="not consistent"):
        assigned(image, [(0, [1])], 2)
