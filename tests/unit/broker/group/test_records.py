"""The format of `__consumer_offsets`: records that a real Kafka wrote are read, and written back byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.group import records as format
from ottla.broker.group.records import Committed, GroupKey, GroupMetadata, MemberMetadata, OffsetKey
from ottla.protocol.batches import Record, iterate_headers
from ottla.protocol.batches import records as records_of
from ottla.protocol.errors import ProtocolError

FIXTURES = Path(__file__).parent / "fixtures"
FLIGHTS_ID = UUID("7aabb16a-5a76-489a-9b0b-00602aa292a8")


def fixture_records(name: str) -> Iterator[Record]:
    data = (FIXTURES / name).read_bytes()
    for position, header in iterate_headers(data):
        yield from records_of(data[position : position + header.size])


def decoded(record: Record) -> tuple[object, object]:
    assert record.key is not None
    key = format.read_key(record.key)
    if record.value is None:
        return key, None
    if isinstance(key, GroupKey):
        return key, format.read_group_value(record.value)
    return key, format.read_offset_value(record.value)


@pytest.mark.parametrize("name", ["readers.log", "statics.log", "simple.log", "deleted.log"])
def test_what_kafka_wrote_is_written_the_same(name: str) -> None:
    count = 0
    for record in fixture_records(name):
        key, value = decoded(record)
        assert isinstance(key, OffsetKey | GroupKey)
        assert record.key == (format.offset_key(key) if isinstance(key, OffsetKey) else format.group_key(key.group))
        if isinstance(value, Committed):
            assert format.offset_value(value) == record.value
        elif isinstance(value, GroupMetadata):
            assert format.group_value(value) == record.value
        else:
            assert record.value is None
        count += 1
    assert count > 0


def test_kafkas_group_metadata() -> None:
    created, stable, *_ = (decoded(record) for record in fixture_records("statics.log"))
    assert created == (GroupKey("statics"), GroupMetadata(state_timestamp_ms=1795260565711))
    key, value = stable
    assert key == GroupKey("statics")
    assert isinstance(value, GroupMetadata)
    member = value.members[0]
    assert (value.protocol_type, value.generation, value.protocol) == ("consumer", 1, "range")
    assert value.leader == member.member_id == "seat-1-2b1c720b-3be1-4afd-8347-e24ca1c97311"
    assert (member.instance_id, member.client_id, member.client_host) == ("seat-1", "static-1", "/127.0.0.1")
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (300_000, 10_000)
    assert b"flights" in member.subscription
    assert b"flights" in member.assignment


def test_kafkas_offsets() -> None:
    note = [decoded(record) for record in fixture_records("statics.log")][2]
    assert note == (OffsetKey("statics", "flights", 0), Committed(7, 3, "note é", 1795260568731, -1, FLIGHTS_ID))
    with_expiry, *_, tombstone = (decoded(record) for record in fixture_records("deleted.log"))
    assert with_expiry == (OffsetKey("ret", "flights", 0), Committed(5, -1, "m", 1795260984052, 1795261084052))
    assert tombstone == (GroupKey("ret"), None)


texts = st.text(max_size=20)
times = st.integers(-1, 2**63 - 1)
members = st.builds(
    MemberMetadata,
    member_id=texts,
    instance_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout_ms=st.integers(0, 2**31 - 1),
    session_timeout_ms=st.integers(0, 2**31 - 1),
    subscription=st.binary(max_size=50),
    assignment=st.binary(max_size=50),
)
groups = st.builds(
    GroupMetadata,
    protocol_type=texts,
    generation=st.integers(0, 2**31 - 1),
    protocol=st.none() | texts,
    leader=st.none() | texts,
    state_timestamp_ms=times,
    members=st.lists(members, max_size=3).map(tuple),
)


@given(groups)
def test_groups_come_back_the_same(group: GroupMetadata) -> None:
    assert format.read_group_value(format.group_value(group)) == group


@given(st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1), texts, times, st.none() | st.uuids(version=4))
def test_offsets_come_back_the_same(offset: int, epoch: int, metadata: str, at: int, topic: UUID | None) -> None:
    committed = Committed(offset, epoch, metadata, at, -1, topic)
    assert format.read_offset_value(format.offset_value(committed)) == committed


@given(texts, texts, st.integers(0, 2**31 - 1))
def test_keys_come_back_the_same(group: str, topic: str, partition: int) -> None:
    key = OffsetKey(group, topic, partition)
    assert format.read_key(format.offset_key(key)) == key
    assert format.read_key(format.group_key(group)) == GroupKey(group)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # version 0: offset, metadata, commit time
        ("0000 0000000000000007 0001 6d 0000000000000009", Committed(7, -1, "m", 9)),
        # version 1 has an expiry time as well
        ("0001 0000000000000007 0001 6d 0000000000000009 000000000000000b", Committed(7, -1, "m", 9, 11)),
        ("0002 0000000000000007 0001 6d 0000000000000009", Committed(7, -1, "m", 9)),
        # version 3 has a leader epoch after the offset
        ("0003 0000000000000007 00000002 0001 6d 0000000000000009", Committed(7, 2, "m", 9)),
        # version 4 is compact and has tagged fields; an unknown tag is skipped
        ("0004 0000000000000007 00000002 02 6d 0000000000000009 01 05 02 abcd", Committed(7, 2, "m", 9)),
    ],
)
def test_every_version_of_an_offset(data: str, expected: Committed) -> None:
    assert format.read_offset_value(bytes.fromhex(data)) == expected


def test_old_versions_of_a_group() -> None:
    member = "0001 61 0001 62 0001 63 {rebalance} 00000005 00000000 00000001 78"
    zero = "0000 0001 74 00000003 0001 70 0001 61 00000001" + member.format(rebalance="")
    one = "0001 0001 74 00000003 0001 70 0001 61 00000001" + member.format(rebalance="00000006")
    for data, rebalance in ((zero, -1), (one, 6)):
        group = format.read_group_value(bytes.fromhex(data))
        assert group == GroupMetadata(
            "t", 3, "p", "a", -1, (MemberMetadata("a", None, "b", "c", rebalance, 5, b"", b"x"),)
        )


def test_a_flexible_group() -> None:
    data = "0004 02 74 00000003 02 70 00 0000000000000009 02 02 61 00 02 62 02 63 00000006 00000005 01 02 78 00 00"
    assert format.read_group_value(bytes.fromhex(data)) == GroupMetadata(
        "t", 3, "p", None, 9, (MemberMetadata("a", None, "b", "c", 6, 5, b"", b"x"),)
    )


@pytest.mark.parametrize("kind", [3, 8, 9, 15, 99])
def test_other_kinds_are_not_ours(kind: int) -> None:
    assert format.read_key(kind.to_bytes(2, "big") + b"\x00\x01g") is None


@pytest.mark.parametrize("data", ["", "00", "0001", "0001 0005 61", "0002 ffff"])
def test_malformed_keys(data: str) -> None:
    with pytest.raises(ProtocolError):
        format.read_key(bytes.fromhex(data))


def test_later_versions_and_cut_values() -> None:
    whole = format.group_value(GroupMetadata(members=(MemberMetadata("a", None, "b", "c", 6, 5, b"", b"x"),)))
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            format.read_group_value(whole[:size])
    with pytest.raises(ProtocolError):
        format.read_offset_value(b"\x00\x05" + bytes(40))
