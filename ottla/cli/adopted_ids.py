"""The transactional ids in an adopted `__transaction_state`: reads the logs of that topic's partitions. Reads only.

The broker's coordinator reads the same records when it becomes the leader of a partition, and skips a record that it
can't decode. An adoption must not lose a transactional id in this way, so here such a record is an error.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

from ottla.broker.transaction.metadata import Transaction
from ottla.broker.transaction.partitioning import partition_for
from ottla.broker.transaction.records import read_key, read_value
from ottla.broker.transaction.states import State
from ottla.protocol.batches import Record, crc_valid, records
from ottla.protocol.errors import KafkaError, ProtocolError
from ottla.storage import names
from ottla.storage.log_file import whole_batches

UNFINISHED = frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT})
"""The states in which the transaction of an id is open in the partitions that the id names."""


class UnreadableId(Exception):
    """A record of `__transaction_state` can't be decoded. The message names the file and the offset."""


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


def misplaced(ids: dict[str, Transaction], index: int, count: int) -> str | None:
    """A transactional id of partition `index` that belongs to another one of `count` partitions; None if all ids are
    where they belong."""
    return next((each for each in ids if partition_for(each, count) != index), None)


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
