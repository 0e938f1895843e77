"""The format of `__transaction_state`: records that a real Kafka wrote are read, and written back byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.transaction import records as format
from ottla.broker.transaction.metadata import NO_PARTITIONS, V1, V2, TopicPartition, Transaction, created
from ottla.broker.transaction.states import State
from ottla.protocol.batches import Record, iterate_headers
from ottla.protocol.batches import records as records_of
from ottla.protocol.errors import ProtocolError

from .rules import NOW_MS, UNUSED_PID, A, known

FIXTURE = Path(__file__).parent / "fixtures" / "transactions.log"


def kafkas_records() -> Iterator[Record]:
    data = FIXTURE.read_bytes()
    for position, header in iterate_headers(data):
        yield from records_of(data[position : position + header.size])


def kafkas(transactional_id: str) -> list[Transaction | None]:
    return [
        None if record.value is None else format.read_value(record.value)
        for record in kafkas_records()
        if record.key is not None and format.read_key(record.key) == transactional_id
    ]


def test_what_kafka_wrote_is_written_the_same() -> None:
    count = 0
    for record in kafkas_records():
        assert record.key is not None
        transactional_id = format.read_key(record.key)
        assert transactional_id is not None
        assert format.id_key(transactional_id) == record.key
        if record.value is not None:
            transaction = format.read_value(record.value)
            assert transaction is not None
            assert format.value(transaction, record.value[1]) == record.value
        count += 1
    assert count == 32


def test_a_life_that_kafka_wrote_by_the_older_protocol() -> None:
    *life, tombstone = kafkas("rdkafka-level0")
    assert tombstone is None
    assert [(t.state.label, t.epoch, len(t.partitions), t.client_version) for t in life if t is not None] == [
        ("Empty", 0, 0, V1),
        ("Ongoing", 0, 1, V1),
        ("PrepareCommit", 0, 1, V1),
        ("CompleteCommit", 0, 0, V1),
        ("Ongoing", 0, 3, V1),
        ("PrepareAbort", 0, 3, V1),
        ("CompleteAbort", 0, 0, V1),
        ("Ongoing", 0, 1, V1),
        ("PrepareAbort", 1, 1, V1),
        ("CompleteAbort", 1, 0, V1),
        ("Empty", 2, 0, V1),
    ]


def test_a_life_that_kafka_wrote_by_the_newer_protocol() -> None:
    *life, _ = kafkas("java-level2")
    assert [(t.state.label, t.epoch, t.client_version) for t in life if t is not None] == [
        ("Empty", 0, V1),
        ("Ongoing", 0, V2),
        ("PrepareCommit", 1, V2),
        ("CompleteCommit", 1, V2),
        ("Ongoing", 1, V2),
        ("PrepareCommit", 2, V2),
        ("CompleteCommit", 2, V2),
    ]


@pytest.mark.parametrize("transactional_id", ["rdkafka-level0", "rdkafka-level2", "java-level2"])
def test_the_changes_make_the_records_that_kafka_wrote(transactional_id: str) -> None:
    """Each record of Kafka's follows from the record before it, by a change of `Transaction`."""
    *life, _ = kafkas(transactional_id)
    version = 0 if transactional_id == "rdkafka-level0" else 1
    known: Transaction | None = None
    for wrote in life:
        assert wrote is not None
        now_ms = wrote.last_update_ms
        if known is None:
            made = created(wrote.producer_id, wrote.timeout_ms, now_ms)
        elif wrote.state is State.EMPTY:
            made = known.initialized(wrote.epoch, -1, wrote.timeout_ms, now_ms)
        elif wrote.state is State.ONGOING:
            made = known.with_partitions(wrote.partitions, wrote.client_version, now_ms)
        elif not wrote.prepared:
            made = known.completed(now_ms)
        elif wrote.client_version == V2:
            made = known.ended_v2(wrote.commits, now_ms)
        elif wrote.epoch > known.epoch:
            made = known.fenced_v1(now_ms)
        else:
            made = known.ended_v1(wrote.commits, now_ms)
        assert format.value(made, version) == format.value(wrote, version)
        known = made


def test_partitions_are_null_without_a_transaction_and_empty_after_it() -> None:
    empty = created(7, 60_000, 1)
    assert format.value(empty, 0)[17:21] == b"\xff\xff\xff\xff"
    complete = replace(empty, state=State.COMPLETE_ABORT)
    assert format.value(complete, 0)[17:21] == b"\x00\x00\x00\x00"
    assert format.value(empty, 1)[17] == 0
    assert format.value(complete, 1)[17] == 1


def transactions() -> st.SearchStrategy[Transaction]:
    ids = st.integers(-1, 2**63 - 1)
    epochs = st.integers(-1, 32_767)
    partitions = st.frozensets(st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 2**31 - 1)), max_size=6)
    return st.builds(
        Transaction,
        ids,
        epochs,
        st.integers(0, 2**31 - 1),
        st.sampled_from(State),
        partitions,
        st.integers(-1, 2**62),
        st.integers(-1, 2**62),
        ids,
        ids,
        st.sampled_from((V1, V2)),
    ).map(lambda t: replace(t, partitions=NO_PARTITIONS) if t.state is State.EMPTY else t)


@given(transactions())
def test_version_1_keeps_everything(transaction: Transaction) -> None:
    assert format.read_value(format.value(transaction, 1)) == transaction


@given(transactions())
def test_version_0_lacks_the_newer_protocols_fields(transaction: Transaction) -> None:
    read = format.read_value(format.value(transaction, 0))
    assert read == replace(transaction, previous_producer_id=-1, next_producer_id=-1, client_version=V1)


@given(transactions(), st.sampled_from((0, 1)), st.data())
def test_bytes_that_end_too_early_are_malformed(transaction: Transaction, version: int, data: st.DataObject) -> None:
    whole = format.value(transaction, version)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ProtocolError):
        format.read_value(cut)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_malformed(data: bytes) -> None:
    for read in (format.read_key, format.read_value):
        try:
            read(data)
        except ProtocolError:
            continue


def test_unknown_kinds_and_versions_are_skipped() -> None:
    assert format.read_key(b"\x00\x01\x00\x01a") is None
    assert format.read_value(b"\x00\x02" + bytes(40)) is None
    assert format.read_value(b"\xff\xff" + bytes(40)) is None


def test_unknown_tags_are_skipped() -> None:
    value = format.value(created(7, 60_000, 1), 1)
    assert value[-11:-8] == b"\x01\x00\x08"  # one tag: the previous producer id
    longer = value[:-11] + b"\x02" + value[-10:] + b"\x03\x02\x00\x05"  # tag 3: Kafka's next producer epoch
    assert format.read_value(longer) == format.read_value(value)


@pytest.mark.parametrize("state", [-1, 6, 7, 100])
def test_states_that_no_record_has_are_malformed(state: int) -> None:
    value = bytearray(format.value(created(7, 60_000, 1), 0))
    value[16:17] = state.to_bytes(1, "big", signed=True)
    with pytest.raises(ProtocolError):
        format.read_value(bytes(value))


def test_the_feature_level_says_which_version_is_written() -> None:
    transaction = known(State.ONGOING)
    assert [format.value_version(transaction, level) for level in (0, 1, 2)] == [0, 1, 1]


def test_a_change_of_the_producer_id_is_written_in_full_at_each_level() -> None:
    ended = known(State.ONGOING, epoch=32_766, client_version=V2).ended_v2(True, NOW_MS, UNUSED_PID)
    for made in (ended, ended.completed(NOW_MS)):
        assert format.value_version(made, 0) == 1
        assert format.read_value(format.value(made, 1)) == replace(made, last_epoch=-1)
    begun = ended.completed(NOW_MS).with_partitions({A}, V1, NOW_MS)
    assert format.value_version(begun, 0) == 0
