"""Fetch and ListOffsets for consumers that read committed records only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker import reading
from ottla.broker.api import list_offsets
from ottla.broker.partition import Partition
from ottla.broker.reading import Readable
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.protocol.batches import Record, build_batch, iterate_headers, read_header
from ottla.protocol.messages import read_request, write_request
from tests.unit.broker.api.stand_in import request_of
from tests.unit.broker.api.test_produce_and_fetch import TOPIC_ID, Stage, answer_of, asked
from tests.unit.waiting import until

LIST_OFFSETS = 2
READ_COMMITTED = 1
VERSION = 12


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
    return Stage(tmp_path)


def with_follower(partition: Partition) -> None:
    """Adds replica 1 to the ISR: records are committed once it has fetched them."""
    partition.become_leader(PartitionState(TOPIC_ID, partition.index, (0, 1), (0, 1), (1, 1), 0, 1))


def write(partition: Partition, producer: int, *values: bytes) -> None:
    """Appends a batch of a transaction, or, for producer −1, a batch outside of any transaction."""
    base = partition.log.log_end_offset
    made = [Record(at, 1_000_000 + base + at, b"k", value) for at, value in enumerate(values)]
    if producer < 0:
        batch = bytearray(build_batch(made))
        partition.append_admitted(memoryview(batch), read_header(batch))
        return
    known = partition.log.producers.get(producer)
    sequence = 0 if known is None else known.last_sequence + 1
    batch = bytearray(
        build_batch(made, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)
    )
    guard = partition.guard_for(producer, 0, sequence, bumps=False)
    partition.append_admitted(memoryview(batch), read_header(batch), guard)


def end(partition: Partition, producer: int, *, committed: bool) -> None:
    partition.append_marker(producer, 0, 0, committed, 1)


def replicated(partition: Partition, end_offset: int | None = None) -> None:
    offset = partition.log.log_end_offset if end_offset is None else end_offset
    partition.follower_fetched(1, 1, offset, 0)


def fetch(stage: Stage, offset: int, isolation: int = READ_COMMITTED, **more: Any) -> Any:
    topics = [{"topic": "t", "partitions": [asked(0, offset)]}]
    return stage.fetch(VERSION, isolation_level=isolation, topics=topics, **more)


def partition_of(parts: Any) -> Any:
    return answer_of(parts, VERSION).responses[0].partitions[0]


def offsets_in(answer: Any) -> list[int]:
    return [header.base_offset for _, header in iterate_headers(answer.records or b"")]


def told(answer: Any) -> list[tuple[int, int]] | None:
    listed = answer.aborted_transactions
    return None if listed is None else [(entry.producer_id, entry.first_offset) for entry in listed]


def run(body: Any) -> None:
    asyncio.run(body)


def test_a_reader_of_committed_records_stops_at_the_first_open_transaction(stage: Stage) -> None:
    async def scene() -> None:
        partition = stage.partitions.find("t", 0)
        write(partition, -1, b"plain")
        write(partition, 7, b"open")
        write(partition, -1, b"plain")
        answer = partition_of(fetch(stage, 0))
        assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
        assert (offsets_in(answer), told(answer)) == ([0], [])
        answer = partition_of(fetch(stage, 0, isolation=0))
        assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
        assert (offsets_in(answer), told(answer)) == ([0, 1, 2], None)
        answer = partition_of(fetch(stage, 1))
        assert (offsets_in(answer), told(answer), answer.error_code) == ([], [], 0)
        answer = partition_of(fetch(stage, 2))
        assert (offsets_in(answer), told(answer), answer.error_code) == ([], [], 0)

    run(scene())


def test_the_aborted_transactions_among_the_records_are_listed(stage: Stage) -> None:
    async def scene() -> None:
        partition = stage.partitions.find("t", 0)
        write(partition, 7, b"aborted")
        write(partition, 8, b"committed")
        end(partition, 7, committed=False)
        end(partition, 8, committed=True)
        write(partition, 7, b"aborted, too")
        end(partition, 7, committed=False)
        answer = partition_of(fetch(stage, 0))
        assert offsets_in(answer) == [0, 1, 2, 3, 4, 5]
        assert told(answer) == [(7, 0), (7, 4)]
        assert told(partition_of(fetch(stage, 3))) == [(7, 4)]
        assert told(partition_of(fetch(stage, 0, isolation=0))) is None

    run(scene())


def test_transactions_that_end_in_a_later_segment_are_listed_and_far_ones_are_not(stage: Stage) -> None:
    async def scene() -> None:
        partition = stage.partitions.find("t", 0)
        write(partition, 7, b"aborted")
        for producer in range(20, 80):
            write(partition, producer, bytes(200))
            end(partition, producer, committed=False)
        end(partition, 7, committed=False)
        write(partition, 8, b"aborted, too")
        end(partition, 8, committed=False)
        assert len(partition.log.segments) > 3
        found: Readable = reading.read(partition, 0, 1, True, True)
        assert found.aborted is not None
        assert (7, 0) in found.aborted
        assert (8, 122) not in found.aborted, "this transaction begins far behind the bytes that were read"
        assert len(found.aborted) < 40

    run(scene())


def waiting(parts: Any) -> bool:
    return not isinstance(parts, list)


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_waiting_reader_of_committed_records_wakes_when_a_transaction_ends(stage: Stage) -> None:
    async def scene() -> None:
        partition = stage.partitions.find("t", 0)
        write(partition, 7, b"open")
        pending = fetch(stage, 0, max_wait=10_000)
        other = fetch(stage, 1, isolation=0, max_wait=10_000)
        assert waiting(pending)
        write(partition, -1, b"plain")
        await turn()
        assert other.parts is not None
        assert pending.parts is None, "the high watermark has moved, but there is nothing to read"
        end(partition, 7, committed=True)
        await turn()
        assert pending.parts is not None
        assert partition.committed_waiters == partition.waiters == []

    run(scene())


def test_a_marker_wakes_readers_when_it_is_committed(stage: Stage) -> None:
    async def scene() -> None:
        partition = stage.partitions.find("t", 0)
        with_follower(partition)
        write(partition, 7, b"aborted")
        replicated(partition)
        pending = fetch(stage, 0, max_wait=10_000)
        end(partition, 7, committed=False)
        await turn()
        assert pending.parts is None
        replicated(partition)
        await turn()
        assert pending.parts is not None

    run(scene())


def test_a_transaction_index_that_is_not_in_memory_is_read_by_a_thread(stage: Stage) -> None:
    async def scene() -> None:
        partition = stage.partitions.find("t", 0)
        write(partition, 7, b"aborted")
        end(partition, 7, committed=False)
        partition.log.roll()
        index = partition.log.segments[0].aborted
        assert index is not None
        index.let_go()
        with pytest.raises(BlockingIOError):
            reading.read(partition, 0, 1000, True, True, 0)
        pending = fetch(stage, 0)
        await until(lambda: pending.parts is not None)
        answer = partition_of(pending.parts)
        assert (offsets_in(answer), told(answer)) == ([0, 1], [(7, 0)])

    run(scene())


def session_fetch(stage: Stage, session: tuple[int, int], isolation: int, offset: int | None = None) -> Any:
    topics = [] if offset is None else [{"topic": "t", "partitions": [asked(0, offset)]}]
    parts = stage.fetch(
        VERSION, isolation_level=isolation, topics=topics, session_id=session[0], session_epoch=session[1]
    )
    return answer_of(parts, VERSION)


def test_a_session_reads_to_the_end_of_its_isolation_level(stage: Stage) -> None:
    async def scene() -> None:
        partition = stage.partitions.find("t", 0)
        write(partition, 7, b"open")
        first = session_fetch(stage, (0, 0), READ_COMMITTED, 0)
        assert offsets_in(first.responses[0].partitions[0]) == []
        session = first.session_id
        assert len(partition.committed_waiters) == 1
        assert session_fetch(stage, (session, 1), READ_COMMITTED).responses == ()
        write(partition, -1, b"plain")
        moved = session_fetch(stage, (session, 2), READ_COMMITTED).responses[0].partitions[0]
        assert (moved.high_watermark, moved.last_stable_offset, offsets_in(moved)) == (2, 0, [])
        end(partition, 7, committed=True)
        stable = session_fetch(stage, (session, 3), READ_COMMITTED).responses[0].partitions[0]
        assert (offsets_in(stable), stable.last_stable_offset) == ([0, 1, 2], 3)
        assert session_fetch(stage, (session, 4), READ_COMMITTED, 3).responses == ()

    run(scene())


def test_a_session_that_changes_its_isolation_level_reads_anew(stage: Stage) -> None:
    async def scene() -> None:
        partition = stage.partitions.find("t", 0)
        write(partition, 7, b"open")
        first = session_fetch(stage, (0, 0), READ_COMMITTED, 0)
        second = session_fetch(stage, (first.session_id, 1), 0)
        assert offsets_in(second.responses[0].partitions[0]) == [0]
        assert session_fetch(stage, (first.session_id, 2), 0, 1).responses == ()
        assert partition.committed_waiters == []
        assert len(partition.waiters) == 1
        session_fetch(stage, (first.session_id, 3), READ_COMMITTED)
        assert partition.waiters == []

    run(scene())


@pytest.mark.parametrize(
    ("isolation", "timestamp", "found"),
    [(0, -1, 3), (1, -1, 1), (0, 1_000_001, 1), (1, 1_000_001, -1), (1, 1_000_000, 0), (1, -2, 0), (1, 2_000_000, -1)],
)
def test_offsets_are_found_below_the_last_stable_one(stage: Stage, isolation: int, timestamp: int, found: int) -> None:
    async def scene() -> None:
        partition = stage.partitions.find("t", 0)
        write(partition, -1, b"plain")
        write(partition, 7, b"open")
        write(partition, -1, b"plain")
        partitions = [{"partition_index": 0, "timestamp": timestamp}]
        body = read_request(
            LIST_OFFSETS, 5,
            write_request(
                LIST_OFFSETS, 5,
                {"replica_id": -1, "isolation_level": isolation, "topics": [{"name": "t", "partitions": partitions}]},
            ),
        )  # fmt: skip
        request: Any = request_of(LIST_OFFSETS, 5)
        request = SimpleNamespace(api_version=5, pending=SimpleNamespace(wanted=True, abandoned=None))
        answer = await list_offsets.handle(stage.broker, request, body)
        assert answer["topics"][0]["partitions"][0]["offset"] == found

    run(scene())
