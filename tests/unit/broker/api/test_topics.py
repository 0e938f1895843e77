"""Deliberate differences of the topic APIs from Kafka, and large requests."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api import metadata
from ottla.broker.bounded import AT_A_TIME, gather_bounded
from ottla.net.pending import Pending
from ottla.protocol.errors import ErrorCode
from tests.unit.broker.api.stand_in import BrokerStandIn, broker_stand_in

METADATA, CREATE, DELETE = 3, 19, 20


async def named(broker: BrokerStandIn, *names: str, version: int = 12, create: bool = True) -> dict[str, ErrorCode]:
    request: dict[str, Any] = {"topics": [{"name": name} for name in names]}
    if version >= 4:
        request["allow_auto_topic_creation"] = create
    answer = await broker.ask(METADATA, version, request)
    return {topic.name: topic.error_code for topic in answer.topics}


def test_an_automatically_created_topic_is_in_the_answer(tmp_path: Path) -> None:
    async def body() -> None:
        async with broker_stand_in(tmp_path, "num.partitions=3") as broker:
            names = [f"t{i}" for i in range(AT_A_TIME + 8)]
            assert await named(broker, *names, "a b", "t0") == dict.fromkeys(names, ErrorCode.none) | {
                "a b": ErrorCode.invalid_topic_exception
            }
            assert all(len(broker.image.topics[name].partitions) == 3 for name in names)
            assert await named(broker, "old", version=0) == {"old": ErrorCode.none}
            assert await named(broker, "no", create=False) == {"no": ErrorCode.unknown_topic_or_partition}
            several = await asyncio.gather(*(named(broker, "same") for _ in range(5)))
            assert several == [{"same": ErrorCode.none}] * 5

    asyncio.run(body())


@pytest.mark.parametrize("settings", ["auto.create.topics.enable=false", "default.replication.factor=2"])
def test_no_topic_where_none_may_or_can_be_made(tmp_path: Path, settings: str) -> None:
    async def body() -> None:
        async with broker_stand_in(tmp_path, settings) as broker:
            assert await named(broker, "t") == {"t": ErrorCode.unknown_topic_or_partition}
            assert "t" not in broker.image.intents

    asyncio.run(body())


def test_clients_are_not_kept_waiting_for_a_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "CREATION_WAIT_SECONDS", 0.2)

    async def body() -> None:
        async with broker_stand_in(tmp_path, controlled=False) as broker:
            began = time.monotonic()
            names = [f"t{i}" for i in range(AT_A_TIME * 4)]
            assert set((await named(broker, *names)).values()) == {ErrorCode.unknown_topic_or_partition}
            assert time.monotonic() - began < 5

    asyncio.run(body())


def test_only_what_is_asked_about_named_topics_waits_for_an_election(tmp_path: Path) -> None:
    async def scene() -> None:
        async with broker_stand_in(tmp_path) as broker:
            assert await named(broker, "t") == {"t": ErrorCode.none}
            topic_id = broker.image.topics["t"].id
            waited: list[Any] = []

            async def settled(wanted: Any, pending: Pending) -> None:
                assert (pending.api_key, pending.wanted) == (METADATA, True)
                waited.append({topic: list(indexes) for topic, indexes in wanted.items()})

            broker.awaited_elections = SimpleNamespace(settled=settled, just_died=[])
            for topics in (None, []):
                await broker.ask(METADATA, 12, {"topics": topics, "allow_auto_topic_creation": False})
            await named(broker, "u", create=False)
            assert not waited
            await named(broker, "t")
            by_id = [{"topic_id": topic_id, "name": None}]
            await broker.ask(METADATA, 12, {"topics": by_id, "allow_auto_topic_creation": False})
            assert waited == [{topic_id: [0]}] * 2

    asyncio.run(scene())


def test_hundreds_of_topics_in_one_request(tmp_path: Path) -> None:
    async def body() -> None:
        async with broker_stand_in(tmp_path) as broker:
            topics = [{"name": f"t{i}", "num_partitions": 1, "replication_factor": 1} for i in range(300)]
            answer = await broker.ask(CREATE, 4, {"topics": topics, "timeout": 60_000})
            assert {topic.error_code for topic in answer.topics} == {ErrorCode.none}
            assert len(broker.image.topics) == 300
            gone = [{"name": f"t{i}"} for i in range(300)]
            answer = await broker.ask(DELETE, 6, {"topics": gone, "timeout": 60_000})
            assert {topic.error_code for topic in answer.responses} == {ErrorCode.none}
            assert not broker.image.topics
            too_many = [{"name": f"t{i}", "num_partitions": 6000, "replication_factor": 1} for i in range(2)]
            answer = await broker.ask(CREATE, 4, {"topics": too_many, "timeout": 60_000})
            assert {topic.error_code for topic in answer.topics} == {ErrorCode.policy_violation}

    asyncio.run(body())


def test_a_bounded_number_runs_at_a_time_and_order_is_kept() -> None:
    running = most = 0

    async def operation(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return item * 2

    assert asyncio.run(gather_bounded(operation, range(100))) == [item * 2 for item in range(100)]
    assert most == AT_A_TIME
