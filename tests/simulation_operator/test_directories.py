"""The simulated brokers' log directories: replicas are placed, moved and reported missing as by a real broker."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.operator.objects import Object
from ottla.operator.plan.names import log_directory
from ottla.operator.plan.topic import KafkaPartition, KafkaTopic
from ottla.protocol.errors import KafkaError
from tests.simulation_operator.directories import CORDONED, Directories

TOPIC = KafkaTopic("t", UUID(int=1), {index: KafkaPartition((0,), frozenset({0})) for index in range(2)}, {})


def pod(*volumes: int) -> Object:
    claims = [{"persistentVolumeClaim": {"claimName": f"data-{volume}-k-broker-0"}} for volume in volumes]
    return {"metadata": {"name": "k-broker-0"}, "spec": {"volumes": [{"configMap": {}}, *claims]}}


def test_a_broker_spreads_replicas_over_its_directories_and_a_pod_without_one_of_them_misses_what_lies_there() -> None:
    directories = Directories(lambda: [TOPIC], lambda: {0: pod(0, 1)}, {})
    directories.step()
    assert [each.sizes for each in directories.describe(0)] == [{("t", 0): 1}, {("t", 1): 1}]
    assert directories.left_out(0, pod(0, 1)) == []
    assert directories.left_out(0, pod(1, 2)) == ["t-0 on data-0-k-broker-0"]


def test_a_replica_lies_elsewhere_once_its_copy_is_whole_and_not_if_the_broker_stops_before() -> None:
    own: dict[int, dict[str, str]] = {0: {}}
    directories = Directories(lambda: [TOPIC], lambda: {0: pod(0, 1)}, own)
    directories.step()
    own[0][CORDONED] = log_directory(0)
    for stops in (True, False):
        directories.move(0, {log_directory(1): [("t", 0), ("gone", 3)]})
        first, second = directories.describe(0)
        assert (first.cordoned, first.sizes, second.arriving) == (True, {("t", 0): 1}, {("t", 0): 1})
        if stops:
            directories.started(0)
        directories.step()
        assert directories.left_out(0, pod(1)) == (["t-0 on data-0-k-broker-0"] if stops else [])
    with pytest.raises(KafkaError):
        directories.move(0, {log_directory(7): [("t", 0)]})


def test_a_topic_of_the_same_name_is_another_one() -> None:
    topics = [TOPIC]
    directories = Directories(lambda: topics, lambda: {0: pod(0)}, {})
    directories.step()
    topics[:] = [KafkaTopic("t", UUID(int=2), TOPIC.partitions, {})]
    assert directories.left_out(0, pod(1)) == []
