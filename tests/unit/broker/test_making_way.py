"""A broker closes its clients' connections if other brokers lead its partitions while the store doesn't answer it, and
in no other case."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.making_way import MakingWay, is_led_elsewhere
from ottla.metadata.model.brokers import Broker, BrokerState, Endpoint
from ottla.metadata.model.cluster import Cluster
from ottla.metadata.model.partitions import Partition
from ottla.protocol.frames import read_request_header, response_frame
from ottla.protocol.messages import write_response

SESSION_S = 9.0
METADATA = 3
TOPIC = UUID(int=7)


class House:
    """A broker's surroundings. The test sets for how long the store hasn't answered, and whether other brokers lead.
    `done` has the actions that MakingWay takes."""

    def __init__(self) -> None:
        self.silence_s = 0.0
        self.moved = False
        self.heard_meanwhile = False
        self.registered = True
        self.asked = 0
        self.done: list[str] = []
        self.way = MakingWay(
            self,
            silence_s=lambda: self.silence_s,
            session_s=lambda: SESSION_S,
            is_led_elsewhere=self._is_led_elsewhere,
            is_registered=lambda: self.registered,
            let_go=lambda: self.done.append("let go"),
        )

    async def _is_led_elsewhere(self) -> bool:
        self.asked += 1
        if self.heard_meanwhile:
            self.silence_s = 0.0
        return self.moved

    def turn_away(self, why: str) -> None:
        self.done.append("turned away")

    def let_in(self) -> None:
        self.done.append("let in")

    def look(self) -> None:
        asyncio.run(self.way.look())


def test_a_broker_for_whose_partitions_others_were_elected_hangs_up() -> None:
    house = House()
    house.moved = True
    house.silence_s = SESSION_S - 1
    house.look()
    assert (house.done, house.asked) == ([], 0)
    house.silence_s = SESSION_S
    house.look()
    house.look()
    assert house.done == ["let go", "turned away"]
    assert house.asked == 1
    assert house.way.made


def test_a_store_that_answers_nobody_is_waited_for() -> None:
    house = House()
    house.silence_s = 100 * SESSION_S
    for _ in range(5):
        house.look()
    assert (house.done, house.asked) == ([], 5)


def test_a_store_that_answers_while_the_others_are_asked() -> None:
    house = House()
    house.silence_s, house.moved, house.heard_meanwhile = SESSION_S, True, True
    house.look()
    assert house.done == []


def test_it_serves_again_when_its_image_shows_its_registration() -> None:
    house = House()
    house.silence_s, house.moved = SESSION_S, True
    house.look()
    house.silence_s, house.registered = 0.1, False  # the broker has registered anew, but its image lacks that
    house.look()
    assert house.way.made
    house.registered = True
    house.look()
    house.look()
    assert house.done == ["let go", "turned away", "let in"]
    assert not house.way.made


Led = tuple[int, int]  # leader, leader epoch


def elsewhere(*told: Led | None, cluster: str = "c") -> bool:
    """Whether broker 0, which leads t-0 in epoch 4, finds out from these answers that another broker leads. None means
    that the other broker can't be reached."""
    endpoints = {id: {"B": Endpoint("B", "host", id)} for id in range(len(told) + 1)}
    brokers = {id: Broker(id, 1, each, state=BrokerState.RUNNING) for id, each in endpoints.items()}
    state = Partition(TOPIC, 0, (0, 1), (0, 1), (1, 1), leader=0, leader_epoch=4)
    intents = {TOPIC: SimpleNamespace(name="t")}
    image: Any = SimpleNamespace(
        brokers=brokers, cluster=Cluster("c"), partitions={TOPIC: {0: state}}, intents_by_id=intents
    )

    async def connect(host: str, port: int) -> _Stream:
        if (said := told[port - 1]) is None:
            raise RuntimeError("can't start new thread")
        return _Stream(said, cluster)

    return asyncio.run(is_led_elsewhere(0, image, "B", connect))


def test_one_broker_that_knows_of_a_newer_leader_is_enough() -> None:
    assert elsewhere((0, 4), (1, 5))
    assert elsewhere(None, (2, 6))


@pytest.mark.parametrize(
    "told",
    [(), (None, None), ((0, 4), None), ((0, 3), (1, 3)), ((1, 4),), ((-1, 5),), ((0, 9),)],
    ids=["nobody else", "nobody answers", "the same", "who is behind", "the same epoch", "no leader", "itself, anew"],
)
def test_what_proves_nothing(told: tuple[Led | None, ...]) -> None:
    assert not elsewhere(*told)


def test_what_another_cluster_says_proves_nothing() -> None:
    assert not elsewhere((1, 5), cluster="another")


class _Stream:
    """A connection to a broker that names this leader of t-0."""

    def __init__(self, led: Led, cluster: str) -> None:
        self._led = led
        self._cluster = cluster
        self._answer = b""

    async def write(self, data: bytes) -> None:
        key, version, correlation_id, _, _ = read_request_header(data, 4)
        assert (key, version) == (METADATA, 8)
        leader, epoch = self._led
        partition = {
            "error_code": 0, "partition_index": 0, "leader_id": leader, "leader_epoch": epoch, "replica_nodes": [0, 1],
            "isr_nodes": [], "offline_replicas": [],
        }  # fmt: skip
        topic = {"error_code": 0, "name": "t", "is_internal": False, "partitions": [partition]}
        message = {
            "throttle_time": 0, "brokers": [], "cluster_id": self._cluster, "controller_id": 1, "topics": [topic],
            "cluster_authorized_operations": -1,
        }  # fmt: skip
        body = write_response(METADATA, 8, message)
        self._answer = bytes(response_frame(METADATA, 8, correlation_id, body))

    async def read_exactly(self, into: memoryview) -> None:
        into[:] = self._answer[: len(into)]
        self._answer = self._answer[len(into) :]

    def close(self) -> None:
        pass
