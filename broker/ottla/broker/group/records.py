"""The records of `__consumer_offsets`, in Kafka's format. Pure.

A key starts with an int16 that states the record's kind: 0 and 1 a committed offset (group, topic, partition), 2 a
classic group. Records of other kinds are skipped: kinds 3 to 8 belong to KIP-848 groups, kinds from 9 on to share and
streams groups. A value starts with an int16 version; a null value is a tombstone. Ottla reads versions 0 to 4. It
writes kind 1 with value version 4 (1 where the client asked for a retention time), and kind 2 with value version 3.

Source: Kafka's OffsetCommitKey/Value.json, GroupMetadataKey/Value.json, GroupCoordinatorRecordHelpers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.errors import ProtocolError
from ottla.protocol.stored_fields import FieldReader
from ottla.protocol.varints import write_unsigned_varint

from .partitioning import OFFSETS_TOPIC

_short = struct.Struct(">h")
_int = struct.Struct(">i")
_long = struct.Struct(">q")
_long_int = struct.Struct(">qi")

OFFSET_KEY, GROUP_KEY = 1, 2
_OFFSET_VALUE, _OFFSET_VALUE_WITH_EXPIRY, _GROUP_VALUE, _FLEXIBLE = 4, 1, 3, 4
_TOPIC_ID_TAG = 0


class OffsetKey(NamedTuple):
    """The key of a group's committed offset for a partition."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a group's metadata."""

    group: str


class Committed(NamedTuple):
    """A committed offset. Times are in ms since 1970. `expire_ms` is −1 unless an old client asked for a retention
    time."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """One member as a record states it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A classic group as a record states it. A group with members is Stable, a group without members Empty."""

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_timestamp_ms: int = -1
    members: tuple[MemberMetadata, ...] = ()


# --- writing ---


def offset_key(key: OffsetKey) -> bytes:
    """The key of a committed offset."""
    return _short.pack(OFFSET_KEY) + _string(key.group) + _string(key.topic) + _int.pack(key.partition)


def group_key(group: str) -> bytes:
    """The key of a group's metadata."""
    return _short.pack(GROUP_KEY) + _string(group)


def offset_value(committed: Committed) -> bytes:
    """The value of a committed offset."""
    if committed.expire_ms >= 0:
        return (
            _short.pack(_OFFSET_VALUE_WITH_EXPIRY)
            + _long.pack(committed.offset)
            + _string(committed.metadata)
            + _long.pack(committed.commit_ms)
            + _long.pack(committed.expire_ms)
        )
    out = bytearray(_short.pack(_OFFSET_VALUE))
    out += _long_int.pack(committed.offset, committed.leader_epoch)
    metadata = committed.metadata.encode()
    write_unsigned_varint(out, len(metadata) + 1)
    out += metadata
    out += _long.pack(committed.commit_ms)
    if committed.topic_id is None:
        out.append(0)
    else:
        out += bytes((1, _TOPIC_ID_TAG, 16)) + committed.topic_id.bytes
    return bytes(out)


def group_value(group: GroupMetadata) -> bytes:
    """The value of a group's metadata."""
    out = bytearray(_short.pack(_GROUP_VALUE))
    out += _string(group.protocol_type)
    out += _int.pack(group.generation)
    out += _string(group.protocol)
    out += _string(group.leader)
    out += _long.pack(group.state_timestamp_ms)
    out += _int.pack(len(group.members))
    for member in group.members:
        out += _string(member.member_id)
        out += _string(member.instance_id)
        out += _string(member.client_id)
        out += _string(member.client_host)
        out += _int.pack(member.rebalance_timeout_ms)
        out += _int.pack(member.session_timeout_ms)
        out += _int.pack(len(member.subscription)) + member.subscription
        out += _int.pack(len(member.assignment)) + member.assignment
    return bytes(out)


def _string(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    encoded = value.encode()
    return _short.pack(len(encoded)) + encoded


# --- reading ---


def read_key(data: bytes) -> OffsetKey | GroupKey | None:
    """Decodes a record's key; None for kinds that are skipped. Raises ProtocolError at malformed bytes."""
    reader = FieldReader(data, OFFSETS_TOPIC)
    kind = reader.int16()
    if kind in (0, OFFSET_KEY):
        return OffsetKey(reader.text(), reader.text(), reader.int32())
    if kind == GROUP_KEY:
        return GroupKey(reader.text())
    return None


def read_offset_value(data: bytes) -> Committed:
    """Decodes a committed offset. Raises ProtocolError at malformed bytes, or at a version other than 0 to 4."""
    reader = FieldReader(data, OFFSETS_TOPIC)
    version = _version(reader)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.text()
    commit_ms = reader.int64()
    expire_ms = reader.int64() if version == 1 else -1
    topic_id = reader.tags().get(_TOPIC_ID_TAG)
    return Committed(offset, leader_epoch, metadata, commit_ms, expire_ms, UUID(bytes=topic_id) if topic_id else None)


def read_group_value(data: bytes) -> GroupMetadata:
    """Decodes a group's metadata. Raises ProtocolError at malformed bytes, or at a version other than 0 to 4."""
    reader = FieldReader(data, OFFSETS_TOPIC)
    version = _version(reader)
    protocol_type, generation = reader.text(), reader.int32()
    protocol, leader = reader.nullable_text(), reader.nullable_text()
    state_timestamp_ms = reader.int64() if version >= 2 else -1
    members = []
    for _ in range(reader.count()):
        member_id = reader.text()
        instance_id = reader.nullable_text() if version >= 3 else None
        client_id, client_host = reader.text(), reader.text()
        rebalance_timeout_ms = reader.int32() if version >= 1 else -1
        session_timeout_ms = reader.int32()
        subscription, assignment = reader.blob(), reader.blob()
        reader.tags()
        members.append(
            MemberMetadata(
                member_id,
                instance_id,
                client_id,
                client_host,
                rebalance_timeout_ms,
                session_timeout_ms,
                subscription,
                assignment,
            )
        )
    reader.tags()
    return GroupMetadata(protocol_type, generation, protocol, leader, state_timestamp_ms, tuple(members))


def _version(reader: FieldReader) -> int:
    version = reader.int16()
    if not 0 <= version <= _FLEXIBLE:
        raise ProtocolError(f"unknown version {version} of a value in {OFFSETS_TOPIC}")
    reader.flexible = version >= _FLEXIBLE
    return version
