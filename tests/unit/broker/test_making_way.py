"""A broker hangs up when its registration has ended and the store doesn't tell it, and at no other time."""

from __future__ import annotations

import asyncio

from ottla.broker.making_way import MakingWay, is_missing_elsewhere
from ottla.metadata.image import Image
from ottla.metadata.model import Broker, BrokerState, Endpoint
from ottla.protocol.frames import read_request_header, response_frame
from ottla.protocol.messages import write_response

SESSION_S = 9.0
METADATA = 3


class House:
    """A broker, what it hears of the store and of the others, and what it does about it."""

    def __init__(self) -> None:
        self.silence_s = 0.0
        self.missing = False
        self.heard_meanwhile = False
        self.registered = True
        self.asked = 0
        self.done: list[str] = []
        self.way = MakingWay(
            self,
            silence_s=lambda: self.silence_s,
            session_s=lambda: SESSION_S,
            is_missing_elsewhere=self._is_missing_elsewhere,
            is_registered=lambda: self.registered,
            let_go=lambda: self.done.append("let go"),
        )

    async def _is_missing_elsewhere(self) -> bool:
        self.asked += 1
        if self.heard_meanwhile:
            self.silence_s = 0.0
        return self.missing

    def turn_away(self, why: str) -> None:
        self.done.append("turned away")

    def let_in(self) -> None:
        self.done.append("let in")

    def look(self) -> None:
        asyncio.run(self.way.look())


def test_a_broker_whose_registration_has_ended_hangs_up() -> None:
    house = House()
    house.missing = True
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
    house.silence_s, house.missing, house.heard_meanwhile = SESSION_S, True, True
    house.look()
    assert house.done == []


def test_it_serves_again_when_its_image_shows_its_registration() -> None:
    house = House()
    house.silence_s, house.missing = SESSION_S, True
    house.look()
    house.silence_s, house.registered = 0.1, False  # registered anew, and the image is still the old one
    house.look()
    assert house.way.made
    house.registered = True
    house.look()
    house.look()
    assert house.done == ["let go", "turned away", "let in"]
    assert not house.way.made


def test_one_broker_that_knows_is_enough_and_one_that_does_not_answer_says_nothing() -> None:
    def missing(*knows: set[int] | None) -> bool:
        """Asked by broker 0; each of the others knows these brokers, or can't be reached."""
        endpoints = {id: {"B": Endpoint("B", "host", id)} for id in range(len(knows) + 1)}
        brokers = {id: Broker(id, 1, each, state=BrokerState.RUNNING) for id, each in endpoints.items()}

        async def connect(host: str, port: int) -> _Stream:
            if (known := knows[port - 1]) is None:
                raise ConnectionRefusedError("refused")
            return _Stream(known)

        return asyncio.run(is_missing_elsewhere(0, Image(revision=9, brokers=brokers), "B", connect))

    assert not missing()
    assert not missing(None, None)
    assert not missing({0, 1, 2}, None)
    assert not missing({0, 1}, {0, 1, 2})
    assert missing(None, {1, 2})
    assert missing({0, 1, 2}, {1, 2})


class _Stream:
    """A connection to a broker that knows these."""

    def __init__(self, known: set[int]) -> None:
        self._known = known
        self._answer = b""

    async def write(self, data: bytes) -> None:
        header = read_request_header(data, 4)
        assert (header.api_key, header.api_version) == (METADATA, 8)
        brokers = [{"node_id": id, "host": "host", "port": id, "rack": None} for id in sorted(self._known)]
        message = {"throttle_time": 0, "brokers": brokers, "cluster_id": "c", "controller_id": 1, "topics": []}
        message["cluster_authorized_operations"] = -1
        body = write_response(METADATA, 8, message)
        self._answer = bytes(response_frame(METADATA, 8, header.correlation_id, body))

    async def read_exactly(self, into: memoryview) -> None:
        into[:] = self._answer[: len(into)]
        self._answer = self._answer[len(into) :]

    def close(self) -> None:
        pass
