"""Sends every batch of `bad_batches` to a running broker, and checks the answer and that other clients don't suffer.

A faulty client must not make a topic unreadable: a refused batch moves no offset, and every client can read the batches
that were taken.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

from ottla.protocol.batches import HEADER_SIZE, iterate_headers
from ottla.protocol.codecs import Codec, compress
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import write_request
from tests.fuzz.bad_batches import ODD, PLAIN, PRODUCE, TOPICS, Case, all_cases, produced
from tests.fuzz.made_batches import GOOD, record, seal
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Closed, Wire

CREATE_TOPICS, LIST_OFFSETS, FETCH = 19, 2, 1
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def now_ms() -> int:
    """The time at which the first test of this module begins: a run of all tests may have begun hours before."""
    return time.time_ns() // 1_000_000


@pytest.fixture(scope="module")
def cases(now_ms: int) -> list[Case]:
    """All cases of `bad_batches`."""
    return all_cases(now_ms)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaBroker]:
    """A broker for this module alone, with all topics of `bad_batches`. It takes batches of up to 50 MB."""
    running = OttlaBroker(tmp_path_factory.mktemp("poisoned"), message_max_bytes="50000000")
    with Wire(running.bootstrap) as wire:
        create(wire, TOPICS)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def wire(broker: OttlaBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap, 60) as connection:
        yield connection


def create(wire: Wire, topics: dict[str, dict[str, str]]) -> None:
    asked = [
        {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in settings.items()],
        }
        for name, settings in topics.items()
    ]
    answer = wire.call(CREATE_TOPICS, 5, {"topics": asked, "timeout": 20_000})
    assert [topic.error_code for topic in answer.topics] == [0] * len(topics)


def end_offset(wire: Wire, topic: str) -> int:
    partition = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    answer = wire.call(LIST_OFFSETS, 7, {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}]})
    return int(answer.topics[0].partitions[0].offset)


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_bad_batches_are_refused_with_their_error_and_move_no_offset(
    wire: Wire, cases: list[Case], codec: Codec
) -> None:
    seen = 0
    for case in cases:
        if case.codec != codec:
            continue
        before = end_offset(wire, case.topic)
        answer, message = produced(wire, case.topic, case.batch)
        assert answer == case.wanted, f"{case}: {message}"
        moved = end_offset(wire, case.topic) - before
        assert (moved > 0) == (case.wanted.error == "none"), f"{case}: the log's end moved by {moved}"
        assert moved <= 4, f"{case}: the log's end moved by {moved}"
        if case.wanted.error != "none":
            assert message, f"{case}: the answer has no message"
        seen += 1
    assert seen > 60


def test_what_was_taken_can_be_read_by_every_client(broker: OttlaBroker, wire: Wire, cases: list[Case]) -> None:
    """Writes the batches that Ottla takes, except large ones. Then librdkafka reads each topic to its end, and so does
    kafka-python, except the topic ODD, whose batches it can't read."""
    for case in cases:
        if case.wanted.error == "none" and len(case.batch) < MEGABYTE:
            produced(wire, case.topic, case.batch)
    for topic in TOPICS:
        end = end_offset(wire, topic)
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"reader-of-{topic}",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, 0, 0)])
        offsets: list[int] = []
        deadline = time.monotonic() + 60
        while len(offsets) < end and time.monotonic() < deadline:
            for message in consumer.consume(1000, 1.0):
                assert message.error() is None, f"librdkafka on {topic}: {message.error()}"
                offsets.append(message.offset())
        consumer.close()
        assert offsets == list(range(end)), f"librdkafka on {topic}"
        if topic == ODD:
            continue
        reader = KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=10_000, check_crcs=True)
        reader.assign([KafkaTopicPartition(topic, 0)])
        reader.seek(KafkaTopicPartition(topic, 0), 0)
        offsets = []
        while len(offsets) < end and time.monotonic() < deadline + 60:
            for batch in reader.poll(1000).values():
                offsets += [record.offset for record in batch]
        reader.close()
        assert offsets == list(range(end)), f"kafka-python on {topic}"


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_a_claim_of_2_gib_never_moves_an_offset(wire: Wire, now_ms: int, codec: Codec) -> None:
    """In each batch one number claims 2,147,483,647 or the largest value of its field: a number of the header, or the
    length of the first record."""
    payload = compress(codec, GOOD)
    sound = seal(payload, 3, now_ms, codec=codec)
    claims = [
        seal(payload, 2**31 - 1, now_ms, codec=codec),
        seal(payload, 3, now_ms, codec=codec, last_offset_delta=2**31 - 1),
    ]
    claims.append(seal(payload, 3, now_ms, codec=codec, base_offset=2**63 - 1))
    claims.append(sound[:8] + struct.pack(">i", 2**31 - 1) + sound[12:])
    lying = b"\xfe\xff\xff\xff\x0f" + GOOD[1:]
    claims.append(seal(compress(codec, lying), 3, now_ms, codec=codec))
    before = end_offset(wire, PLAIN)
    for claim in claims:
        assert produced(wire, PLAIN, claim)[0].error != "none"
    assert end_offset(wire, PLAIN) == before
    assert produced(wire, PLAIN, sound)[0].error == "none"
    assert end_offset(wire, PLAIN) == before + 3


@pytest.mark.parametrize("codec", [Codec.gzip, Codec.snappy, Codec.lz4, Codec.zstd], ids=lambda codec: codec.name)
def test_a_refused_batch_without_acks_closes_the_connection_and_moves_no_offset(
    broker: OttlaBroker, wire: Wire, now_ms: int, codec: Codec
) -> None:
    bomb = seal(compress(codec, bytes(64 * MEGABYTE)), 3, now_ms, codec=codec)
    before = end_offset(wire, PLAIN)
    sets = [{"name": PLAIN, "partition_data": [{"index": 0, "records": bomb}]}]
    with Wire(broker.bootstrap, 30) as other:
        other.ask(PRODUCE, 9, write_request(PRODUCE, 9, {"acks": 0, "timeout": 5000, "topic_data": sets}))
        with pytest.raises(Closed):
            other.receive()
    assert end_offset(wire, PLAIN) == before


def test_bombs_cost_a_piece_each(broker: OttlaBroker, now_ms: int) -> None:
    """Twelve connections send decompression bombs, twice. The broker's memory grows by its buffers, not by the unpacked
    size of the bombs."""
    size = 256 * MEGABYTE
    # shorter than the stated lengths, which shows only at the end
    body = record(0, value=b"", value_length=size + 50, length=size + 99) + bytes(size)
    bombs = [seal(compress(codec, body), 1, now_ms, codec=codec) for codec in (Codec.gzip, Codec.zstd, Codec.lz4)]
    del body
    before = broker.resident_bytes()
    wires = [Wire(broker.bootstrap, 120) for _ in range(12)]
    highest = before
    for _ in range(2):
        for at, each in enumerate(wires):
            sets = [{"name": PLAIN, "partition_data": [{"index": 0, "records": bombs[at % len(bombs)]}]}]
            each.ask(PRODUCE, 9, write_request(PRODUCE, 9, {"acks": 1, "timeout": 5000, "topic_data": sets}))
        for each in wires:
            answer = each.answer(PRODUCE, 9)
            assert ErrorCode(answer.responses[0].partition_responses[0].error_code) == ErrorCode.invalid_record
            highest = max(highest, broker.resident_bytes())
    for each in wires:
        each.socket.close()
    assert highest - before < 100 * MEGABYTE, f"grew by {(highest - before) / MEGABYTE:.0f} MB"


def test_a_valid_batch_that_unpacks_large_is_taken_and_given_back(broker: OttlaBroker, wire: Wire, now_ms: int) -> None:
    """One batch has some KiB of Zstandard that unpack to one record of 256 MiB. Another one has 500,000 records."""
    batch = seal(compress(Codec.zstd, record(0, value=bytes(256 * MEGABYTE))), 1, now_ms, codec=Codec.zstd)
    before = broker.resident_bytes()
    first = end_offset(wire, PLAIN)
    assert produced(wire, PLAIN, batch)[0].error == "none"
    many = b"".join(record(delta) for delta in range(500_000))
    packed = seal(compress(Codec.zstd, many), 500_000, now_ms, codec=Codec.zstd)
    assert produced(wire, PLAIN, packed)[0].error == "none"
    assert broker.resident_bytes() - before < 64 * MEGABYTE
    partition = {
        "partition": 0,
        "fetch_offset": first,
        "partition_max_bytes": 10 * MEGABYTE,
        "current_leader_epoch": -1,
    }
    asked = {
        "replica_id": -1,
        "max_bytes": 10 * MEGABYTE,
        "session_epoch": -1,
        "topics": [{"topic": PLAIN, "partitions": [partition]}],
    }
    records = wire.call(FETCH, 11, asked).responses[0].partitions[0].records
    positions = [(position, header) for position, header in iterate_headers(records)]
    assert [header.count for _, header in positions] == [1, 500_000]
    position, header = positions[0]
    assert bytes(records[position + HEADER_SIZE : position + header.size]) == batch[HEADER_SIZE:], "as it was sent"
