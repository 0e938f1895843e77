"""The transactional ids in an adopted `__transaction_state`, and the groups in an adopted `__consumer_offsets`: reads
the logs of these topics' partitions. Reads only.

The broker's coordinators read the same records when the broker becomes the leader of a partition, and skip a record
that they can't decode. An adoption must not lose a transactional id or a committed offset in this way, so here such a
record is an error.

A hash of an id or a group, modulo the topic's partition count, says in which partition its records are. So the records
show whether the last partitions of the topic are missing.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterator, Mapping

from ottla.broker.group import records as group_records
from ottla.broker.transaction.metadata import Transaction
from ottla.broker.transaction.records import read_key, read_value
from ottla.broker.transaction.states import State
from ottla.protocol.batches import Record, crc_valid, records
from ottla.protocol.errors import KafkaError, ProtocolError
from ottla.protocol.java_hash import partition_of
from ottla.storage import names
from ottla.storage.log_file import whole_batches

UNFINISHED = frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT})
"""The states in which the transaction of an id is open in the partitions that the id names."""

_COUNTS_TRIED = (50, *range(1, 1001))  # Kafka's default partition count of both topics comes first


class UnreadableId(Exception):
    """A record of `__transaction_state` or `__consumer_offsets` can't be decoded. The message names the file and the
    offset."""


def transactional_ids(directory: str) -> dict[str, Transaction]:
    """The transactional ids in the directory of one partition of `__transaction_state`, each with the state that was
    written last. Raises UnreadableId, OSError."""
    found: dict[str, Transaction] = {}
    for path, record in _records(directory):
        try:
            transactional_id = read_key(record.key or b"")
            after = None if record.value is None else read_value(record.value)
        except ProtocolError as error:
            raise UnreadableId(f"{path}, offset {record.offset}: {error}") from error
        if transactional_id is None or (record.value is not None and after is None):
            raise UnreadableId(f"{path}, offset {record.offset}: the record has a format that isn't known")
        if after is None:
            found.pop(transactional_id, None)
        else:
            found[transactional_id] = after
    return found


def groups(directory: str) -> set[str]:
    """The groups that the records in the directory of one partition of `__consumer_offsets` name. Groups that were
    deleted are among them: a group's records are in the same partition at all times. Raises UnreadableId, OSError."""
    found = set()
    for path, record in _records(directory):
        try:
            key = group_records.read_key(record.key or b"")
        except ProtocolError as error:
            raise UnreadableId(f"{path}, offset {record.offset}: {error}") from error
        if key is not None:
            found.add(key.group)
    return found


def misplaced(placed: Mapping[int, Collection[str]], count: int) -> tuple[int, str] | None:
    """A partition, and an id or group of it that belongs to another one of `count` partitions; None if all are where
    they belong. `placed` has the ids or groups of each partition, by its index."""
    return next(
        ((index, each) for index, names in placed.items() for each in names if partition_of(each, count) != index),
        None,
    )


def probable_count(placed: Mapping[int, Collection[str]], above: int) -> int | None:
    """A partition count greater than `above` with which all ids or groups are where they belong; None if no count up to
    1000 is one. Few ids or groups may fit a count that isn't the topic's."""
    return next((count for count in _COUNTS_TRIED if count > above and misplaced(placed, count) is None), None)


def _records(directory: str) -> Iterator[tuple[str, Record]]:
    """(path of the log file, record) of a partition's records, up to the first batch that the broker's recovery would
    cut off."""
    logs = sorted(name for name in os.listdir(directory) if (names.parse_offset_name(name) or ("", ""))[1] == names.LOG)
    for name in logs:
        path = f"{directory}/{name}"
        if not os.path.getsize(path):
            continue
        with open(path, "rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for _, header, batch in whole_batches(content):
            if not crc_valid(batch, 0, header.size):
                return
            if header.is_control:
                continue
            try:
                for record in records(batch):
                    yield path, record
            except (KafkaError, ProtocolError) as error:
                raise UnreadableId(f"{path}, offset {header.base_offset}: {error}") from error
