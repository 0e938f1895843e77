"""Apache Kafka and Ottla answer each bad batch as the table of tests/fuzz/bad_batches.py says."""

from __future__ import annotations

import time
from collections.abc import Callable

from kafka import KafkaAdminClient

from tests.fuzz.bad_batches import TOPICS, all_cases, produced
from tests.peers.apache_kafka import ApacheKafka
from tests.peers.wire import Wire


def answers(bootstrap: str, unique: Callable[[str], str]) -> dict[str, str]:
    """The broker's answer to each case."""
    names = {topic: unique(topic) for topic in TOPICS}
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    wanted = {
        names[topic]: {
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": settings | {"max.message.bytes": "50000000"},
        }
        for topic, settings in TOPICS.items()
    }
    admin.create_topics(wanted, wait_for_metadata=True)
    admin.close()
    with Wire(bootstrap, 60) as wire:
        return {
            f"{case.topic}, {case}": str(produced(wire, names[case.topic], case.batch)[0])
            for case in all_cases(time.time_ns() // 1_000_000)
        }


def test_apache_kafka_answers_as_the_table_says(apache_kafka: ApacheKafka, unique: Callable[[str], str]) -> None:
    expected = {f"{case.topic}, {case}": str(case.expected) for case in all_cases(0)}
    assert answers(apache_kafka.bootstrap, unique) == expected


def test_the_broker_answers_as_the_table_says(
    bootstrap: str, ottla: object | None, unique: Callable[[str], str]
) -> None:
    """Ottla gives Apache Kafka's answer, down to the named records, except for cases that have an `ottla`."""
    expected = {f"{case.topic}, {case}": str(case.expected if ottla is None else case.wanted) for case in all_cases(0)}
    assert answers(bootstrap, unique) == expected


def test_where_ottla_differs_it_refuses_what_apache_kafka_takes_or_names_the_error() -> None:
    """Ottla takes no batch that Apache Kafka refuses."""
    for case in all_cases(0):
        assert case.expected.error == "none" or case.wanted.error != "none", str(case)
