"""The records of `__transaction_state`, in Kafka's format. Pure.

A key starts with an int16 that states the record's kind: 0 is a transactional id; records of other kinds are skipped. A
value starts with an int16 version; a null value is a tombstone, which says that the id has expired. Version 1 is
flexible (KIP-482), and has the fields of the newer protocol of transactions as tagged fields. Values of other versions
are skipped. The finalised level of the feature `transaction.version` says which version is written. Two kinds of
records are written in version 1 at any level, because version 0 lacks a field that the next coordinator needs:

- The record changes a producer id, because its epochs are used up. The next coordinator has to know which id the
  producer was given.
- A client of the newer protocol began or ended the transaction. The next coordinator has to know that the end raised
  the epoch, so that it recognises a repeated EndTxn.

Source: Kafka's TransactionLogKey.json, TransactionLogValue.json, TransactionLog.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ottla.protocol.errors import ProtocolError
from ottla.protocol.stored_fields import FieldReader, FieldWriter

from .metadata import (
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    V1,
    V2,
    Partitions,
    TopicPartition,
    Transaction,
)
from .partitioning import TRANSACTIONS_TOPIC
from .states import State

_ID_KEY = 0
_FLEXIBLE = 1
_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID, _CLIENT_VERSION = range(3)  # tags; Kafka doesn't use tag 3 yet
_short = struct.Struct(">h")
_long = struct.Struct(">q")


def value_version(transaction: Transaction, feature_level: int) -> int:
    """The version in which a value is written at a level of `transaction.version`."""
    needs_tags = transaction.changes_producer_id or transaction.client_version >= V2
    return _FLEXIBLE if needs_tags else min(feature_level, _FLEXIBLE)


# --- writing ---


def id_key(transactional_id: str) -> bytes:
    """The key of a transactional id. Raises struct.error if the id is longer than 32,767 bytes."""
    writer = FieldWriter()
    writer.int16(_ID_KEY)
    writer.text(transactional_id)
    return bytes(writer.out)


def value(transaction: Transaction, version: int) -> bytes:
    """The value that states a transaction, in version 0 or 1."""
    assert not (transaction.state is State.EMPTY and transaction.partitions), transaction
    writer = FieldWriter()
    writer.int16(version)
    writer.flexible = version >= _FLEXIBLE
    writer.int64(transaction.producer_id)
    writer.int16(transaction.epoch)
    writer.int32(transaction.timeout_ms)
    writer.int8(transaction.state)
    _write_partitions(writer, None if transaction.state is State.EMPTY else transaction.partitions)
    writer.int64(transaction.last_update_ms)
    writer.int64(transaction.start_ms)
    writer.tags(dict(_tags(transaction)))
    return bytes(writer.out)


def _write_partitions(writer: FieldWriter, partitions: Partitions | None) -> None:
    if partitions is None:
        writer.count(None)
        return
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    writer.count(len(by_topic))
    for topic, indexes in by_topic.items():
        writer.text(topic)
        writer.count(len(indexes))
        for index in indexes:
            writer.int32(index)
        writer.tags({})


def _tags(transaction: Transaction) -> Iterable[tuple[int, bytes]]:
    """The tagged fields that don't have their defaults."""
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        yield _PREVIOUS_PRODUCER_ID, _long.pack(transaction.previous_producer_id)
    if transaction.next_producer_id != NO_PRODUCER_ID:
        yield _NEXT_PRODUCER_ID, _long.pack(transaction.next_producer_id)
    if transaction.client_version != V1:
        yield _CLIENT_VERSION, _short.pack(transaction.client_version)


# --- reading ---


def read_key(data: bytes) -> str | None:
    """The transactional id that a key names; None for kinds that are skipped. Raises ProtocolError at malformed
    bytes."""
    reader = FieldReader(data, TRANSACTIONS_TOPIC)
    return reader.text() if reader.int16() == _ID_KEY else None


def read_value(data: bytes) -> Transaction | None:
    """Decodes a value; None for versions that are skipped. Raises ProtocolError at malformed bytes, or at a state that
    no record may have."""
    reader = FieldReader(data, TRANSACTIONS_TOPIC)
    version = reader.int16()
    if not 0 <= version <= _FLEXIBLE:
        return None
    reader.flexible = version >= _FLEXIBLE
    producer_id, epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    state = _state(reader.int8())
    partitions = _read_partitions(reader)
    last_update_ms, start_ms = reader.int64(), reader.int64()
    tags = reader.tags()
    return Transaction(
        producer_id,
        epoch,
        timeout_ms,
        state,
        NO_PARTITIONS if state is State.EMPTY else partitions,
        last_update_ms,
        start_ms,
        _tagged(tags, _PREVIOUS_PRODUCER_ID, _long, NO_PRODUCER_ID),
        _tagged(tags, _NEXT_PRODUCER_ID, _long, NO_PRODUCER_ID),
        _tagged(tags, _CLIENT_VERSION, _short, V1),
    )


def _state(number: int) -> State:
    try:
        return State(number)
    except ValueError:
        raise ProtocolError(f"unknown state {number} of a transactional id in {TRANSACTIONS_TOPIC}") from None


def _read_partitions(reader: FieldReader) -> Partitions:
    partitions: set[TopicPartition] = set()
    for _ in range(reader.count()):
        topic = reader.text()
        partitions.update(TopicPartition(topic, reader.int32()) for _ in range(reader.count()))
        reader.tags()
    return frozenset(partitions)


def _tagged(tags: dict[int, bytes], tag: int, form: struct.Struct, default: int) -> int:
    data = tags.get(tag)
    if data is None:
        return default
    if len(data) != form.size:
        raise ProtocolError(f"tag {tag} of a value in {TRANSACTIONS_TOPIC} has {len(data)} bytes")
    value: int
    (value,) = form.unpack(data)
    return value
