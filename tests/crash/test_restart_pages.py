"""A broker's HTTP pages predict which partitions its stop would harm, and tell whether the broker has caught up."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.ottla_broker import OttlaBroker
from tests.peers.ottla_cluster import OttlaCluster
from tests.peers.wire import free_port

# The replicas, of which the first one leads, and min.insync.replicas. The test kills broker 0.
TOPICS = {
    "whole": ([0, 1, 2], "2"),
    "pair": ([0, 1], "2"),
    "alone": ([0], "1"),
    "elsewhere": ([1, 2], "2"),
}


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[OttlaBroker]]:
    started: list[OttlaBroker] = []
    try:
        for number in range(3):
            settings = {
                "node_id": str(number),
                "ottla_metadata_store": f"embedded:{tmp_path / 'metadata'}",
                "ottla_http_listener": f"127.0.0.1:{free_port()}",
            }
            started.append(OttlaBroker(tmp_path / f"broker-{number}", **settings))
            started[-1].http = "http://" + settings["ottla_http_listener"]  # type: ignore[attr-defined]
        yield started
    finally:
        for broker in started:
            if broker.process.poll() is None:
                broker.stop()


def page(broker: OttlaBroker, path: str) -> Any:
    with urllib.request.urlopen(broker.http + path, timeout=10) as answer:  # type: ignore[attr-defined]
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/json"
        return json.load(answer)


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def send(brokers: list[OttlaBroker], topic: str) -> confluent_kafka.KafkaError | None:
    """Sends one record with acks=all, and returns its error."""
    outcome: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": ",".join(broker.bootstrap for broker in brokers),
            "acks": "all",
            "message.timeout.ms": 5000,
            "log_level": 0,
        }
    )
    producer.produce(topic, b"x", on_delivery=lambda error, message: outcome.append(error))
    producer.flush(10)
    return outcome[0]


def test_a_broker_knows_what_its_end_would_break(brokers: list[OttlaBroker]) -> None:
    victim, *others = brokers
    admin = AdminClient({"bootstrap.servers": others[0].bootstrap})
    new = [
        NewTopic(name, 1, replica_assignment=[replicas], config={"min.insync.replicas": min_isr})
        for name, (replicas, min_isr) in TOPICS.items()
    ]
    for future in admin.create_topics(new).values():
        future.result(30)
    for broker in brokers:
        wait_until(lambda broker=broker: page(broker, "/v1/caught-up")["caught_up"])  # type: ignore[misc]
    assert page(victim, "/v1/caught-up") | {"metadata_revision": 0} == {
        "broker": 0, "caught_up": True, "not_ready_because": "", "metadata_revision": 0, "replicas": 3, "in_sync": 3,
        "share": 1.0, "missing": {"count": 0, "partitions": []}, "offline": {"count": 0, "partitions": []},
    }  # fmt: skip
    foretold = page(victim, "/v1/restart-risk")
    assert (foretold["safe"], foretold["replicas"], foretold["leads"]) == (False, 3, 3)
    assert {kind: named["partitions"] for kind, named in foretold["risks"].items()} == {
        "only_copy": ["alone-0"], "offline": [], "loses_records": [], "too_few_replicas": ["pair-0"],
        "below_min_isr": [],
    }  # fmt: skip
    together = page(others[1], "/v1/restart-risk?brokers=1,0")
    assert (together["broker"], together["brokers"], together["replicas"], together["leads"]) == (2, [0, 1], 4, 4)
    assert {kind: named["partitions"] for kind, named in together["risks"].items()} == {
        "only_copy": ["alone-0"], "offline": ["pair-0"], "loses_records": [], "too_few_replicas": ["elsewhere-0"],
        "below_min_isr": ["whole-0"],
    }  # fmt: skip
    with pytest.raises(urllib.error.HTTPError, match="400"):
        page(victim, "/v1/restart-risk?brokers=1,two")
    assert [send(brokers, topic) for topic in TOPICS] == [None] * len(TOPICS)

    victim.kill()
    wait_until(lambda: page(others[0], "/v1/restart-risk")["risks"]["offline"]["count"] >= 1)
    leaders = {name: admin.list_topics(name, timeout=10).topics[name].partitions[0].leader for name in TOPICS}
    assert (leaders["alone"], leaders["elsewhere"]) == (-1, 1)
    assert page(others[0], "/v1/restart-risk")["without_leader"] == {"count": 1, "partitions": ["alone-0"]}
    assert leaders["whole"] in (1, 2)
    assert leaders["pair"] == 1
    failed = [topic for topic in TOPICS if send(others, topic) is not None]
    assert sorted(failed) == ["alone", "pair"]
    risks = page(others[0], "/v1/restart-risk")["risks"]
    assert risks["offline"]["partitions"] == ["pair-0"]
    assert risks["too_few_replicas"]["partitions"] == ["elsewhere-0"]
    assert risks["below_min_isr"]["partitions"] == ["whole-0"]

    victim.start_again()
    wait_until(lambda: page(victim, "/v1/caught-up")["caught_up"])
    assert page(others[0], "/v1/restart-risk")["risks"]["offline"]["count"] == 0
    assert [send(brokers, topic) for topic in TOPICS] == [None] * len(TOPICS)


def test_no_broker_is_safe_to_stop_while_the_store_is_away(tmp_path: Path) -> None:
    cluster = OttlaCluster(tmp_path, 2, etcd_members=1, ottla_metadata_etcd_timeout_ms="1000")
    try:
        broker = cluster.brokers[0]
        broker.http = f"http://{cluster.http[0]}"  # type: ignore[attr-defined]
        assert page(broker, "/v1/restart-risk")["safe"] is True
        cluster.etcd[0].pause()
        wait_until(lambda: page(broker, "/v1/restart-risk")["metadata_connected"] is False)
        assert page(broker, "/v1/restart-risk")["safe"] is False
        assert page(broker, "/v1/caught-up")["caught_up"] is True
        cluster.wait("the silence is measured", lambda: cluster.metric(0, "ottla_metadata_store_silence_seconds") > 5)
        cluster.etcd[0].go_on()
        cluster.wait("it is over", lambda: cluster.metric(0, "ottla_metadata_store_silence_seconds") < 4)
        wait_until(lambda: page(broker, "/v1/restart-risk")["safe"])
    finally:
        cluster.close()
