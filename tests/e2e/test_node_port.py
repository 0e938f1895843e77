"""A client outside of the cluster reaches every broker by a node port, and a client inside reads the first client's
records."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.scene import Scene, topic, working

RECORDS = 300
OUTSIDE = {"name": "outside", "port": 9094, "type": "NodePort"}


def test_node_port(operator: Operator) -> None:
    with working(operator, "node-port") as scene:
        before = scene.births()
        scene.change(listeners=[{"name": "plain", "port": 9092, "type": "Internal"}, OUTSIDE])
        bootstrap = wait("the addresses", lambda: address_of(scene, "outside"), 240)
        wait("every broker's pod was replaced", lambda: not set(scene.births().values()) & set(before.values()), 300)
        scene.settled()
        bootstrap = address_of(scene, "outside") or bootstrap
        scene.kube.apply(topic("from-outside", partitions=6))
        scene.topic_settled("from-outside")
        brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).brokers
        assert len(brokers) == 3
        assert len({(broker.host, broker.port) for broker in brokers.values()}) == 3
        write(bootstrap)
        assert read(bootstrap) == RECORDS
        inside = scene.ask("consume", "from-outside", "--from-beginning", "--max-messages", str(RECORDS))
        assert len(inside.splitlines()) == RECORDS


def address_of(scene: Scene, listener: str) -> str | None:
    """The bootstrap address of a listener in the Cluster's status; None while there is none."""
    listeners: list[dict[str, Any]] = scene.cluster().get("status", {}).get("listeners", [])
    return next((one["bootstrap"] for one in listeners if one["name"] == listener and one.get("bootstrap")), None)


def write(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    answers: list[object] = []
    for number in range(RECORDS):
        producer.produce(
            "from-outside", str(number), partition=number % 6, on_delivery=lambda error, _: answers.append(error)
        )
    assert producer.flush(60) == 0
    assert set(answers) == {None}


def read(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "outside", "auto.offset.reset": "earliest"})
    consumer.subscribe(["from-outside"])
    count = 0
    while count < RECORDS and (message := consumer.poll(30)) is not None:
        assert message.error() is None
        count += 1
    consumer.close()
    return count
