"""A broker's answer names each unreadable place in its logs, with topic, partition and offset."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from ottla.broker import reading
from ottla.broker.api import describe_configs
from ottla.broker.api.config_resources import ConfigResourceType
from ottla.broker.authorizer import AllowEverything
from ottla.broker.counters import TopicCounters
from ottla.broker.follower_log import restart_at, truncate_to
from ottla.broker.log.compactor import CompactionLimits, Compactor
from ottla.broker.log.config import LogConfig
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.log import Log
from ottla.broker.log.segment import DamagedSegment
from ottla.broker.partition import Partition
from ottla.broker.replica.follower import CorruptBatch
from ottla.protocol.batches import Record, build_batch, read_header
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.settings import own
from tests.unit.broker.log.workbench import ALONE

TOPIC_ID = UUID(int=1)
NOW_MS = 1_000_000
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150, cleanup_policy=frozenset({"compact"}))


class World:
    """A broker with one log of a hundred records in many segments. It has only the objects that are needed to answer
    DescribeConfigs."""

    def __init__(self, path: Path) -> None:
        self.logs = LogDirectories([str(path)], lambda: NOW_MS, ALONE)
        self.logs.open("c", 1, lambda topic: CONFIG)
        self.log = self.logs.open_or_create("t", 0, TOPIC_ID, CONFIG)
        for number in range(100):
            base = self.log.log_end_offset
            batch = bytearray(build_batch([Record(base, 0, b"%d" % (number % 5), b"value")], base_offset=base))
            self.log.append(batch, read_header(batch), base, 0)
        self.partition = Partition("t", TOPIC_ID, 0, self.log, TopicCounters(), lambda: NOW_MS, Mock())
        self.partition.high_watermark = self.log.log_end_offset
        self.compactor = Compactor(self.logs, lambda: NOW_MS, CompactionLimits(backoff_ms=50))
        self.refused: list[tuple[Partition, int, CorruptBatch]] = []

    def told(self) -> list[dict[str, Any]]:
        """The damage in the answer of DescribeConfigs."""
        broker: Any = SimpleNamespace(
            authorizer=AllowEverything(),
            id=1,
            image=None,
            logs=self.logs,
            partitions=[self.partition],
            compactor=self.compactor,
            replication=SimpleNamespace(refused=lambda: iter(self.refused)),
        )
        resource = SimpleNamespace(
            resource_type=ConfigResourceType.BROKER, resource_name="1", configuration_keys=[own.DAMAGED]
        )
        request: Any = SimpleNamespace(resources=[resource], include_synonyms=False, include_documentation=False)
        answer = asyncio.run(describe_configs.handle(broker, None, request))  # type: ignore[arg-type]
        (found,) = answer["results"][0]["configs"]
        said: list[dict[str, Any]] = json.loads(found["value"])
        return said


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_nothing_is_told_of_logs_that_are_whole(world: World) -> None:
    assert world.told() == []


def test_a_batch_that_a_follower_refuses(world: World) -> None:
    world.refused.append((world.partition, 2, CorruptBatch(10, "the batch has a wrong CRC")))
    trouble = "not copied from broker 2 any further: the batch has a wrong CRC"
    assert world.told() == [{"topic": "t", "partition": 0, "offset": 10, "trouble": trouble}]


def second_batch_of(log: Log, at: int) -> int:
    """Flips a byte in a segment's second batch; returns the batch's offset."""
    segment = log.segments[at]
    (_, first), (position, second), *_ = segment.headers()
    (byte,) = segment.file.pread(1, position + 65)
    segment.file.pwrite(bytes((byte ^ 0xFF,)), position + 65)
    assert first.last_offset + 1 == second.base_offset
    return second.base_offset


def test_a_batch_that_a_compaction_meets(world: World) -> None:
    """Before the fix, only the broker's log named the batch, and only by its position in a file."""
    offset = second_batch_of(world.log, 1)

    async def compacting() -> None:
        running = asyncio.create_task(world.compactor.run())
        async with asyncio.timeout(60):
            while not world.compactor.uncleanable():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(compacting())
    (told,) = world.told()
    assert (told["topic"], told["partition"], told["offset"]) == ("t", 0, offset)
    assert told["trouble"].startswith("not compacted any more: ")
    assert "wrong CRC" in told["trouble"]


def test_a_header_that_a_fetch_meets_until_it_is_deleted(world: World) -> None:
    segment = world.log.segments[1]
    segment.offsets.clear()
    (_, first), *_ = segment.headers()
    segment.file.pwrite(struct.pack(">i", -7), 8)
    asked = first.last_offset + 1
    with pytest.raises(KafkaError) as caught:
        reading.read(world.partition, asked, 100, True, False)
    assert caught.value.code == ErrorCode.corrupt_message
    (told,) = world.told()
    assert told["offset"] == asked
    assert told["trouble"].startswith("fetches of this offset are refused: ")
    world.log.delete_records_before(asked + 1)
    assert world.told() == []


@pytest.mark.parametrize(
    "shorten", [lambda partition: truncate_to(partition, 5), lambda partition: restart_at(partition, 7)]
)
def test_what_a_truncation_took_is_told_no_more(world: World, shorten: Callable[[Partition], None]) -> None:
    """A damaged batch that a truncation removed is no longer reported. Before the fix, the alert stayed until the
    broker's next start, although the replica had been copied anew."""
    world.partition.damage_met = 20, "fetches of this offset are refused: no batch"
    assert len(world.told()) == 1
    shorten(world.partition)
    for _ in range(30):
        base = world.log.log_end_offset
        batch = bytearray(build_batch([Record(base, 0, b"k", b"value")], base_offset=base))
        world.log.append(batch, read_header(batch), base, 0)
    assert world.told() == []


def test_a_log_that_is_offline_alone(world: World) -> None:
    world.log.directory_failed(DamagedSegment(f"{world.log.segments[1].path}: its offset index names position -7"))
    (told,) = world.told()
    assert (told["topic"], told["partition"], told["offset"]) == ("t", 0, None)
    assert told["trouble"].startswith("offline on this broker: ")
    world.logs.delete_topic(TOPIC_ID)
    assert world.told() == []
