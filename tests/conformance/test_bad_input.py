"""Bytes that no correct client sends: the broker answers an error or closes the connection, and serves its other
clients."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator

import crc32c
import pytest
import zstandard
from kafka import KafkaAdminClient

from ottla.protocol.batches import Record, build_batch
from ottla.protocol.errors import ErrorCode
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Closed, Wire, frame

PRODUCE, FETCH, LIST_OFFSETS, METADATA, HEARTBEAT, JOIN_GROUP, API_VERSIONS, CREATE_TOPICS = 0, 1, 2, 3, 12, 11, 18, 19
MEGABYTE = 1024 * 1024


def header(api_key: int, version: int) -> bytes:
    """A request header v1 with the client id null."""
    return struct.pack(">hhih", api_key, version, 1, -1)


def serves(bootstrap: str) -> bool:
    """Whether another client gets an answer within five seconds."""
    start = time.monotonic()
    with Wire(bootstrap, 5) as wire:
        brokers = wire.call(METADATA, 4, {"topics": [], "allow_auto_topic_creation": False}).brokers
    return len(brokers) == 1 and time.monotonic() - start < 5


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> Iterator[str]:
    """A topic of one partition."""
    name = f"bad-input-{time.time_ns()}"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    yield name
    admin.delete_topics([name])
    admin.close()


@pytest.mark.parametrize(
    "data",
    [
        frame(b""),
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 104857601),
        frame(b"\x00"),
        frame(header(API_VERSIONS, 0)[:7]),
        frame(header(999, 0)),
        frame(header(-1, 0)),
        frame(header(METADATA, 99)),
        frame(header(METADATA, -1)),
        frame(header(METADATA, 1) + struct.pack(">i", 2**31 - 1)),
        frame(header(METADATA, 1) + struct.pack(">i", 1000) + b"\x00\x05"),
        frame(struct.pack(">hhih", METADATA, 1, 1, 30000) + b"short"),
        frame(header(PRODUCE, 3) + b"\xff" * 20),
        frame(header(4, 0)),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    ],
    ids=[
        "size 0",
        "size -1",
        "the least size",
        "2 GiB",
        "one byte above the limit",
        "one byte",
        "half a header",
        "unknown API",
        "negative API",
        "unknown version",
        "negative version",
        "2 billion elements",
        "array that ends early",
        "client id that ends early",
        "ones for a body",
        "an API between controllers",
        "HTTP",
        "TLS",
    ],
)
def test_nonsense_closes_the_connection(bootstrap: str, data: bytes) -> None:
    with Wire(bootstrap, 10) as wire:
        wire.send(data)
        assert wire.closed_by_peer()
    assert serves(bootstrap)


def test_half_a_frame_is_waited_for(bootstrap: str) -> None:
    whole = frame(header(API_VERSIONS, 0))
    with Wire(bootstrap) as wire:
        for i in range(len(whole)):
            wire.send(whole[i : i + 1])
            time.sleep(0.005)
        assert wire.receive()[:4] == struct.pack(">i", 1)
    with Wire(bootstrap) as wire:
        wire.send(whole[:-3])
    assert serves(bootstrap)


def test_good_requests_before_a_bad_one_are_answered(bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        wire.send(frame(header(API_VERSIONS, 0)) * 3 + frame(header(999, 0)))
        with contextlib.suppress(Closed):
            for _ in range(4):
                assert wire.receive()[:4] == struct.pack(">i", 1)
    assert serves(bootstrap)


def batch(count: int = 3, **options: object) -> bytes:
    records = [Record(i, 1_700_000_000_000 + i, b"k", b"v" * 10, []) for i in range(count)]
    return build_batch(records, **options)  # type: ignore[arg-type]


def patched(data: bytes, position: int, value: bytes) -> bytes:
    """`data` with `value` at `position`, and with a CRC that fits the new bytes."""
    changed = bytearray(data)
    changed[position : position + len(value)] = value
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)


def produce(
    bootstrap: str, topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1, version: int = 7
) -> ErrorCode:
    with Wire(bootstrap) as wire:
        answer = wire.call(
            PRODUCE,
            version,
            {
                "acks": acks,
                "timeout": 5000,
                "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
            },
        )
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


MAGIC_0 = struct.pack(">qiIbbii", 0, 14 + 5, 0, 0, 0, -1, 5) + b"value"
MAGIC_1 = struct.pack(">qiIbbqii", 0, 22 + 5, 0, 1, 0, 0, -1, 5) + b"value"


@pytest.mark.parametrize(
    ("records", "allowed"),
    [
        (batch()[:30] + b"\xff" + batch()[31:], {"corrupt_message"}),
        (patched(batch(), 57, struct.pack(">i", 4)), {"invalid_record"}),
        (patched(batch(), 57, struct.pack(">i", 2**31 - 1)), {"invalid_record"}),
        (patched(batch(), 57, struct.pack(">i", -1)), {"invalid_record"}),
        (patched(batch(), 23, struct.pack(">i", 7)), {"invalid_record"}),
        (patched(batch(), 23, struct.pack(">i", -5)), {"invalid_record"}),
        (MAGIC_0, {"invalid_record"}),
        (MAGIC_1, {"invalid_record"}),
        (
            batch()[:16] + b"\x03" + batch()[17:],
            {"invalid_record", "unsupported_for_message_format", "corrupt_message"},
        ),
        (batch() + batch(), {"invalid_record"}),
        (b"", {"invalid_record", "corrupt_message"}),
        (batch()[:-5], {"invalid_record", "corrupt_message"}),
        (batch() + b"xyz", {"none", "invalid_record", "corrupt_message"}),
        (batch()[:8] + struct.pack(">i", 10) + batch()[12:], {"corrupt_message", "invalid_record"}),
        (batch()[:8] + struct.pack(">i", -1) + batch()[12:], {"corrupt_message", "invalid_record"}),
        (batch(control=True), {"invalid_record"}),
        (batch(producer_id=5, producer_epoch=0, base_sequence=-1), {"invalid_record"}),
        (build_batch([Record(0, 4_000_000_000_000_000, None, b"v", [])]), {"invalid_timestamp"}),
        (build_batch([Record(0, 0, None, b"v" * 2 * MEGABYTE, [])]), {"message_too_large"}),
    ],
    ids=[
        "CRC",
        "a record too many",
        "2 billion records",
        "a negative count",
        "offset delta too large",
        "negative offset delta",
        "magic 0",
        "magic 1",
        "magic 3",
        "two batches",
        "nothing",
        "cut off",
        "something behind",
        "length below a header",
        "negative length",
        "control batch",
        "no sequence",
        "from the far future",
        "too large",
    ],
)
def test_bad_batches_are_refused_one_by_one(bootstrap: str, topic: str, records: bytes, allowed: set[str]) -> None:
    try:
        assert produce(bootstrap, topic, records).name in allowed
    finally:
        assert serves(bootstrap)
    assert produce(bootstrap, topic, batch()).name == "none"


def test_the_inside_of_a_batch_is_checked_on_compacted_topics(bootstrap: str, unique: Callable[[str], str]) -> None:
    name = unique("compacted")
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    configs = {"cleanup.policy": "compact"}
    admin.create_topics(
        {name: {"num_partitions": 1, "replication_factor": 1, "configs": configs}}, wait_for_metadata=True
    )
    admin.close()
    no_key = build_batch([Record(0, 1_700_000_000_000, None, b"v", [])])
    assert produce(bootstrap, name, no_key).name == "invalid_record"
    assert (
        produce(bootstrap, name, build_batch([Record(0, 1_700_000_000_000, None, b"v", [])], codec=3)).name
        == "invalid_record"
    )
    assert produce(bootstrap, name, patched(batch(), 61, b"\x7e")).name in ("invalid_record", "corrupt_message")
    assert produce(bootstrap, name, batch()).name == "none"


def test_transactional_batches_without_a_transactional_id_are_refused(bootstrap: str, topic: str) -> None:
    transactional = batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    assert produce(bootstrap, topic, transactional).name == "transactional_id_authorization_failed"


def test_idempotence_is_checked(bootstrap: str, topic: str) -> None:
    def numbered(sequence: int, epoch: int = 3) -> str:
        return produce(bootstrap, topic, batch(producer_id=999_999, producer_epoch=epoch, base_sequence=sequence)).name

    assert numbered(0) == "none"
    assert numbered(3) == "none"
    assert numbered(0) == "none", "a duplicate of one of the last five batches gets the answer of the original"
    assert numbered(9) == "out_of_order_sequence_number"
    assert numbered(0, epoch=2) == "invalid_producer_epoch"


@pytest.mark.parametrize(("acks", "wanted"), [(2, "invalid_required_acks"), (-2, "invalid_required_acks")])
def test_unknown_acks(bootstrap: str, topic: str, acks: int, wanted: str) -> None:
    assert produce(bootstrap, topic, batch(), acks=acks).name == wanted


def test_partitions_that_are_not_there(bootstrap: str, topic: str) -> None:
    assert produce(bootstrap, topic, batch(), partition=7).name == "unknown_topic_or_partition"
    assert produce(bootstrap, topic, batch(), partition=-1).name == "unknown_topic_or_partition"
    assert produce(bootstrap, f"{topic}-absent", batch()).name == "unknown_topic_or_partition"
    assert produce(bootstrap, "no spaces", batch()).name in ("unknown_topic_or_partition", "invalid_topic_exception")


def test_clients_may_not_write_internal_topics(bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        wire.call(10, 2, {"key": "any-group", "key_type": 0})  # creates __consumer_offsets
    assert produce(bootstrap, "__consumer_offsets", batch()).name in (
        "invalid_topic_exception",
        "unknown_topic_or_partition",
    )


def test_garbage_for_a_compressed_payload_harms_nobody(bootstrap: str, topic: str) -> None:
    for codec in (1, 2, 3, 4, 5, 6, 7):
        produce(bootstrap, topic, patched(batch(), 21, struct.pack(">h", codec)))
        assert serves(bootstrap)


def test_decompression_bombs_are_bounded(
    bootstrap: str, ottla: OttlaBroker | None, unique: Callable[[str], str]
) -> None:
    """The topic wants another codec, so the broker has to decompress the batch. It must not decompress more than a
    bound allows."""
    name = unique("bomb")
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    configs = {"compression.type": "gzip"}
    admin.create_topics(
        {name: {"num_partitions": 1, "replication_factor": 1, "configs": configs}}, wait_for_metadata=True
    )
    admin.close()
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 30))
    assert len(bomb) < 200_000
    head = bytearray(batch(1)[:61])
    struct.pack_into(">i", head, 8, 49 + len(bomb))
    before = ottla.resident_bytes() if ottla else 0
    result = produce(bootstrap, name, patched(bytes(head) + bomb, 21, struct.pack(">h", 4)))
    assert result.name != "none"
    assert serves(bootstrap)
    if ottla:
        assert ottla.resident_bytes() - before < 300 * MEGABYTE


def test_create_topics_checks_names_and_duplicates(bootstrap: str) -> None:
    def create(*names: str) -> dict[str, str]:
        with Wire(bootstrap) as wire:
            topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
            answer = wire.call(CREATE_TOPICS, 5, {"topics": topics, "timeout": 5000, "validate_only": True})
        return {topic.name: ErrorCode(topic.error_code).name for topic in answer.topics}

    assert create("twice", "once", "twice") == {"twice": "invalid_request", "once": "none"}
    for name in ("", ".", "..", "a" * 250, "a/b", "a b", "ä", "a\x00b"):
        assert create(name) == {name: "invalid_topic_exception"}
    assert create("a" * 249) == {"a" * 249: "none"}


def test_names_that_collide_in_metrics(bootstrap: str, unique: Callable[[str], str]) -> None:
    name = unique("a.b")
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})
    with Wire(bootstrap) as wire:
        other = {"name": name.replace(".", "_"), "num_partitions": 1, "replication_factor": 1}
        answer = wire.call(CREATE_TOPICS, 5, {"topics": [other], "timeout": 5000})
    assert ErrorCode(answer.topics[0].error_code).name == "invalid_topic_exception"
    admin.delete_topics([name])
    admin.close()


def test_offsets_out_of_range(bootstrap: str, topic: str) -> None:
    def fetch(offset: int, **more: int) -> str:
        partition = {
            "partition": 0,
            "fetch_offset": offset,
            "partition_max_bytes": 1000,
            "current_leader_epoch": -1,
        } | more
        request = {
            "replica_id": -1,
            "max_bytes": 1000,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [partition]}],
        }
        with Wire(bootstrap) as wire:
            answer = wire.call(FETCH, 11, request)
        return ErrorCode(answer.responses[0].partitions[0].error_code).name

    assert fetch(0) == "none"
    assert fetch(1_000_000) == "offset_out_of_range"
    assert fetch(-1) == "offset_out_of_range"
    assert fetch(0, current_leader_epoch=1000) == "unknown_leader_epoch"


def test_unknown_fetch_session(bootstrap: str, topic: str) -> None:
    with Wire(bootstrap) as wire:
        answer = wire.call(
            FETCH, 11, {"replica_id": -1, "max_bytes": 1000, "session_id": 77, "session_epoch": 5, "topics": []}
        )
    assert ErrorCode(answer.error_code).name == "fetch_session_id_not_found"


def test_unknown_members(bootstrap: str, unique: Callable[[str], str]) -> None:
    with Wire(bootstrap) as wire:
        wire.call(10, 2, {"key": "g", "key_type": 0})
        deadline = time.monotonic() + 20
        while True:
            answer = wire.call(
                HEARTBEAT, 3, {"group_id": unique("nobody"), "generation_id": 1, "member_id": "stranger"}
            )
            name = ErrorCode(answer.error_code).name
            if (
                name not in ("coordinator_load_in_progress", "not_coordinator", "coordinator_not_available")
                or time.monotonic() > deadline
            ):
                break
            time.sleep(0.1)
        assert name == "unknown_member_id"
        assert (
            ErrorCode(wire.call(HEARTBEAT, 3, {"group_id": "", "generation_id": 1, "member_id": "m"}).error_code).name
            == "invalid_group_id"
        )
        joining = {
            "group_id": unique("odd"),
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }
        short = wire.call(JOIN_GROUP, 5, joining | {"session_timeout": 1, "rebalance_timeout": 1000})
        assert ErrorCode(short.error_code).name == "invalid_session_timeout"
        none = wire.call(
            JOIN_GROUP, 5, joining | {"session_timeout": 10_000, "rebalance_timeout": 1000, "protocols": []}
        )
        assert ErrorCode(none.error_code).name == "inconsistent_group_protocol"


def test_who_announces_much_and_sends_nothing_shuts_nobody_out(bootstrap: str, ottla: OttlaBroker | None) -> None:
    """Forty connections announce a frame of 50 MB each, 2 GB in all, and Ottla still serves other clients. Apache Kafka
    with a heap of 1 GiB would die."""
    if ottla is None:
        pytest.skip("Apache Kafka would die")
    before = ottla.resident_bytes()
    announced = struct.pack(">i", 50 * MEGABYTE) + header(PRODUCE, 7)
    connections = []
    for _ in range(40):
        host, _, port = bootstrap.rpartition(":")
        connection = socket.create_connection((host, int(port)), 5)
        connection.sendall(announced)
        connection.setblocking(False)
        connections.append(connection)
    sent = [0] * len(connections)
    junk = bytes(64 * 1024)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for i, connection in enumerate(connections):
            with contextlib.suppress(OSError):
                if sent[i] < 40 * MEGABYTE:
                    sent[i] += connection.send(junk)
        if max(sent) >= 40 * MEGABYTE:
            break
    assert serves(bootstrap)
    grown = ottla.resident_bytes() - before
    assert grown < 400 * MEGABYTE, f"{grown / MEGABYTE:.0f} MB"
    for connection in connections:
        connection.close()
    assert serves(bootstrap)


def test_who_never_reads_answers_is_not_read_from(bootstrap: str, ottla: OttlaBroker | None) -> None:
    """A client sends requests without end and never reads an answer. The broker stops reading, and its memory doesn't
    grow."""
    if ottla is None:
        pytest.skip("the memory of a broker that this test hasn't started can't be measured")
    before = ottla.resident_bytes()
    requests = frame(header(METADATA, 1) + struct.pack(">i", -1)) * 1000
    with Wire(bootstrap) as wire:
        wire.socket.settimeout(1)
        sent = 0
        with contextlib.suppress(TimeoutError, ConnectionError):
            while sent < 200 * MEGABYTE:
                sent += wire.socket.send(requests)
        assert sent < 200 * MEGABYTE
        assert serves(bootstrap)
        assert ottla.resident_bytes() - before < 200 * MEGABYTE


def test_many_idle_connections(bootstrap: str) -> None:
    idle = [Wire(bootstrap) for _ in range(300)]
    assert serves(bootstrap)
    for wire in idle:
        wire.socket.close()


def test_records_written_right_after_the_topic_was_created(
    bootstrap: str, ottla: OttlaBroker | None, unique: Callable[[str], str]
) -> None:
    if ottla is None:
        pytest.skip("Apache Kafka answers not_leader_or_follower for a moment after a topic's creation")
    for _ in range(10):
        name = unique("at-once")
        with Wire(bootstrap) as wire:
            created = wire.call(
                CREATE_TOPICS,
                5,
                {"topics": [{"name": name, "num_partitions": 2, "replication_factor": 1}], "timeout": 10_000},
            )
            assert created.topics[0].error_code == 0
        assert produce(bootstrap, name, batch(), partition=1).name == "none"
