"""The group APIs answer as Apache Kafka 4.3.1 did to `tests.peers.group_scenes`: the real handlers and coordinator,
over partitions in memory and on virtual time."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from ottla.broker.authorizer import AllowEverything
from ottla.broker.cold_reads import ColdReads
from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.group.states import HEARTBEAT, State
from ottla.broker.group_service import GroupService
from ottla.metadata.model.brokers import Endpoint
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_request, read_response, write_request, write_response
from tests.peers.group_scenes import RECORDED, TOPIC, play
from tests.simulation.machine import LoopThreads
from tests.unit.broker.api.stand_in import request_of
from tests.unit.broker.test_group_service import SETTINGS, MemoryPartition, virtually

PARTITIONS = 50
MODULES = (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
HANDLERS: dict[int, Any] = {module.API.key: module.handle for module in MODULES}


async def _at_once(wanted: object, pending: object) -> None:
    """Takes the place of the wait for an election. Returns at once, because no coordinator has died."""


async def _answers() -> dict[str, Any]:
    settings = {**SETTINGS, "group.initial.rebalance.delay.ms": 500}
    groups = GroupService(settings, lambda: PARTITIONS, lambda: 1_000_000, ColdReads(LoopThreads()), lambda: True)
    groups.start()
    for index in range(PARTITIONS):
        groups.became_leader(MemoryPartition(index))
    led = {index: SimpleNamespace(leader=0) for index in range(PARTITIONS)}
    topics = {
        TOPIC: SimpleNamespace(name=TOPIC, id=None, partitions=range(3)),
        OFFSETS_TOPIC: SimpleNamespace(name=OFFSETS_TOPIC, id=None, partitions=led),
    }
    endpoints = {"PLAINTEXT": Endpoint("PLAINTEXT", "127.0.0.1", 9092)}
    image = SimpleNamespace(topics=topics, topics_by_id={}, brokers={0: SimpleNamespace(endpoints=endpoints)})
    broker: Any = SimpleNamespace(
        authorizer=AllowEverything(), groups=groups, image=image, awaited_elections=SimpleNamespace(settled=_at_once)
    )

    async def ask(key: int, version: int, request: dict[str, Any]) -> Any:
        decoded = read_request(key, version, write_request(key, version, request))
        response = await HANDLERS[key](broker, request_of(key, version, "wire"), decoded)
        return read_response(key, version, write_response(key, version, response))

    answers = await play(ask)
    await groups.stop()
    return answers


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return virtually(_answers)


SCENES: dict[str, Any] = json.loads(RECORDED.read_text())


@pytest.mark.parametrize("what", SCENES)
def test_answers_as_apache_kafka(what: str, answers: dict[str, Any]) -> None:
    assert answers[what] == SCENES[what]


def test_nothing_else_was_asked(answers: dict[str, Any]) -> None:
    assert list(answers) == list(SCENES)


def test_a_broken_group_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HEARTBEAT, State.PREPARING_REBALANCE, ErrorCode.none)  # type: ignore[arg-type]
    wrong = {what for what, answer in virtually(_answers).items() if answer != SCENES[what]}
    assert wrong == {"a rebalance, by heartbeat", "after a change of protocols"}
