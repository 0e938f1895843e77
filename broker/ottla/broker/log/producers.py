"""What each idempotent producer last wrote to a partition: how a repeated batch is known, and a missing one.

Owned by the log, since it changes only with appends, truncation and replay. `check` asks before an append, `update`
notes after it; snapshots beside the segments spare a restart from reading the whole log.

Source: Kafka's ProducerStateManager, ProducerStateEntry and ProducerAppendInfo (KIP-98, KIP-360). A snapshot file is
big-endian: version i16 (1), CRC-32C u32 of all that follows, count i32, then per producer: id i64, epoch i16, last
sequence i32, last offset i64, offset delta i32, timestamp i64, coordinator epoch i32, first offset of the open
transaction i64 (−1: none). Behind that, where Kafka doesn't look, ours have the producers' batches before the last, so
that one who repeats several of them after a restart is known by all: count i32, then id i64, last sequence i32, last
offset i64, offset delta i32, timestamp i64 of each, older ones first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.batches import BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError

BATCHES_KNOWN = 5  # whose repeats are known, as in Kafka: a producer has no more on the way
BATCHES_KEPT = BATCHES_KNOWN + 1  # so that where all on the way are truncated, the one before is still there
NO_EPOCH = -1
NO_SEQUENCE = -1
_PRODUCERS_A_PIECE = 100
_SEQUENCE_MASK = 0x7FFFFFFF
_prefix = struct.Struct(">hIi")
_version_and_checksum = struct.Struct(">hI")
_entry = struct.Struct(">qhiqiqiq")
_count = struct.Struct(">i")
_earlier = struct.Struct(">qiqiq")


class Duplicate(NamedTuple):
    """What a repeated batch got when it was first appended. `append_time` is the batch's greatest timestamp."""

    first_offset: int
    last_offset: int
    append_time: int


class KeptBatch(NamedTuple):
    """One of a producer's last batches."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class ProducerEntry:
    """One producer's state on one partition."""

    __slots__ = ("batches", "below", "coordinator_epoch", "epoch", "last_timestamp", "transaction_start", "version")

    def __init__(self, epoch: int = NO_EPOCH, version: int = 0) -> None:
        self.epoch = epoch
        self.version = version  # of the `Producers` that may change it: an older one's belongs to a frozen state, too
        self.batches: tuple[KeptBatch, ...] = ()
        self.below = 0  # all of its batches end below that offset: what `Producers` are in the order of
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        self.transaction_start = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1


FrozenProducers = Mapping[int, ProducerEntry]
"""The state of a moment, by producer id; nobody changes it."""


class Producers:
    """All producers of one partition. What was frozen isn't changed any more: the next change of an entry makes a copy
    of that entry.

    The entries are in the order of their `below`, so that a truncation looks at those only that wrote what it drops,
    however many there are: an append puts its producer at the end. A truncation leaves those that it looks at there,
    below the log's new end.
    """

    __slots__ = ("_entries", "_marked", "_version")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._marked = False  # whether transactions changed entries since the log was empty or read
        self._version = 0  # counts how often the state was frozen

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> Iterable[tuple[int, ProducerEntry]]:
        """(producer id, entry) of each."""
        return self._entries.items()

    def get(self, producer_id: int) -> ProducerEntry | None:
        """A producer's entry."""
        return self._entries.get(producer_id)

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Whether a client's batch may be appended: None for yes; of a repeated one, what the first got.

        Raises KafkaError invalid_producer_epoch for an older epoch, out_of_order_sequence_number for a gap.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return None
        if header.producer_epoch != entry.epoch:
            if header.producer_epoch < entry.epoch:
                raise KafkaError(
                    ErrorCode.invalid_producer_epoch,
                    f"producer {header.producer_id} has epoch {entry.epoch}, the batch {header.producer_epoch}",
                )
            if header.base_sequence != 0 and entry.epoch != NO_EPOCH:
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"a new epoch of producer {header.producer_id} starts with sequence {header.base_sequence}",
                )
            return None
        sequence, delta = header.base_sequence, header.last_offset_delta
        last_sequence = sequence + delta & _SEQUENCE_MASK
        for kept in entry.batches[-BATCHES_KNOWN:]:
            if kept.last_sequence == last_sequence and kept.offset_delta == delta:
                return Duplicate(kept.last_offset - delta, kept.last_offset, kept.timestamp)
        last = entry.last_sequence
        if sequence != last + 1 and not (sequence == 0 and last == _SEQUENCE_MASK):
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} sent sequence {sequence} after {last}",
            )
        return None

    def update(self, header: BatchHeader, last_offset: int, max_timestamp: int) -> None:
        """Notes an appended batch of data."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch or entry.version != self._version:
            entry = self._begin(header.producer_id, header.producer_epoch, entry)
        delta = header.last_offset_delta
        kept = KeptBatch(header.base_sequence + delta & _SEQUENCE_MASK, last_offset, delta, max_timestamp)
        batches = entry.batches
        entry.batches = (*batches[1:], kept) if len(batches) == BATCHES_KEPT else (*batches, kept)
        entry.last_timestamp = max_timestamp
        entry.below = last_offset + 1
        del self._entries[header.producer_id]
        self._entries[header.producer_id] = entry  # at the end
        if header.attributes & 0x10 and entry.transaction_start < 0:
            entry.transaction_start = last_offset - delta
            self._marked = True

    def _begin(self, producer_id: int, epoch: int, old: ProducerEntry | None) -> ProducerEntry:
        """A new entry for a new epoch, which an open transaction outlives; a copy where only the old one is frozen."""
        entry = ProducerEntry(epoch, self._version)
        if old is not None:
            entry.coordinator_epoch = old.coordinator_epoch
            entry.transaction_start = old.transaction_start
            entry.below = old.below
            if old.epoch == epoch:
                entry.batches, entry.last_timestamp = old.batches, old.last_timestamp
        self._entries[producer_id] = entry
        return entry

    def transaction_ended(self, producer_id: int, epoch: int, coordinator_epoch: int, timestamp: int) -> int:
        """Notes a commit or abort marker; where the transaction began, −1 for an empty one."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch or entry.version != self._version:
            entry = self._begin(producer_id, epoch, entry)
        self._marked = True
        start, entry.transaction_start = entry.transaction_start, -1
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        return start

    def first_unstable_offset(self) -> int | None:
        """Where the earliest open transaction begins."""
        return min(
            (entry.transaction_start for entry in self._entries.values() if entry.transaction_start >= 0), default=None
        )

    def ids(self) -> list[int]:
        """Whom there are entries of."""
        return list(self._entries)

    def expire(self, now_ms: int, expiration_ms: int, among: Iterable[int] | None = None) -> int:
        """Forgets producers (of `among`, or all) that wrote nothing for `expiration_ms` and have no open transaction;
        how many."""
        entries = self._entries
        old = [
            producer_id
            for producer_id in (entries if among is None else among)
            if (entry := entries.get(producer_id)) is not None
            and entry.transaction_start < 0
            and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in old:
            del entries[producer_id]
        return len(old)

    def truncate_to(self, end_offset: int) -> bool:
        """Goes back to when the log ended at `end_offset`; False, and nothing is changed, where only the log itself can
        say what was then.

        Of those that have a batch below it the batches above are dropped: that there may have been older ones than are
        left needn't be known, since a producer that sent those above had an answer to these. One whose very first batch
        lies above it wasn't there yet.
        """
        if self._marked:
            return False  # what markers did isn't among the batches
        looked_at = []
        for producer_id, entry in reversed(self._entries.items()):
            if entry.below <= end_offset:
                break
            looked_at.append((producer_id, entry))
            first = entry.batches[0]
            if first.last_offset >= end_offset and (entry.epoch or first.last_sequence != first.offset_delta):
                return False
        for producer_id, entry in reversed(looked_at):
            if entry.batches[0].last_offset >= end_offset:
                del self._entries[producer_id]
                continue
            batches = tuple([batch for batch in entry.batches if batch.last_offset < end_offset])
            earlier = self._entries[producer_id] = ProducerEntry(entry.epoch, self._version)
            earlier.batches, earlier.below, earlier.last_timestamp = batches, end_offset, batches[-1].timestamp
        return True

    def clear(self) -> None:
        """Forgets all producers."""
        self._entries.clear()
        self._marked = False

    def restore(self, entries: Iterable[tuple[int, ProducerEntry]], now_ms: int, expiration_ms: int) -> None:
        """Takes the state from a snapshot, without what has expired."""
        self._entries = dict(sorted(entries, key=lambda item: item[1].below))
        self.expire(now_ms, expiration_ms)
        self._marked = any(
            entry.coordinator_epoch >= 0 or entry.transaction_start >= 0 for entry in self._entries.values()
        )

    def freeze(self) -> FrozenProducers:
        """The state as it is now. Cheap: the entries are shared, and copied when they change."""
        self._version += 1
        return self._entries.copy()

    def snapshot(self) -> bytes:
        """The state as a snapshot file."""
        return sealed_snapshot(snapshot_pieces(self._entries))


def snapshot_pieces(producers: FrozenProducers) -> Iterator[bytes]:
    """What a snapshot file holds behind its checksum, in pieces of some producers each, a third of a millisecond's
    work."""
    yield _count.pack(len(producers))
    earlier_count = 0
    items = iter(producers.items())
    while some := list(islice(items, _PRODUCERS_A_PIECE)):
        piece = bytearray()
        for producer_id, entry in some:
            last = entry.batches[-1] if entry.batches else KeptBatch(NO_SEQUENCE, -1, 0, entry.last_timestamp)
            earlier_count += max(len(entry.batches) - 1, 0)
            piece += _entry.pack(
                producer_id,
                entry.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_start,
            )
        yield bytes(piece)
    yield _count.pack(earlier_count)
    items = iter(producers.items())
    while some := list(islice(items, _PRODUCERS_A_PIECE)):
        piece = bytearray()
        for producer_id, entry in some:
            for kept in entry.batches[:-1]:
                piece += _earlier.pack(producer_id, *kept)
        yield bytes(piece)


def sealed_snapshot(pieces: Iterable[bytes]) -> bytes:
    """The snapshot file of these pieces."""
    body = b"".join(pieces)
    return _version_and_checksum.pack(1, crc32c(body)) + body


def read_snapshot(data: bytes) -> Iterator[tuple[int, ProducerEntry]]:
    """(producer id, entry) of each producer in a snapshot file. Raises ValueError where it is damaged."""
    if len(data) < _prefix.size:
        raise ValueError("a producer snapshot ends inside its header")
    version, crc, count = _prefix.unpack_from(data)
    if version != 1:
        raise ValueError(f"version {version} of a producer snapshot")
    if crc32c(memoryview(data)[6:]) != crc or len(data) < _prefix.size + count * _entry.size:
        raise ValueError("a producer snapshot is damaged")
    earlier = _read_earlier(data, _prefix.size + count * _entry.size)
    for position in range(_prefix.size, _prefix.size + count * _entry.size, _entry.size):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, start = _entry.unpack_from(
            data, position
        )
        entry = ProducerEntry(epoch)
        if offset >= 0:
            entry.batches = (*earlier.get(producer_id, ()), KeptBatch(sequence, offset, delta, timestamp))
            entry.below = offset + 1
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.transaction_start = start
        yield producer_id, entry


def _read_earlier(data: bytes, position: int) -> dict[int, list[KeptBatch]]:
    """The batches before each producer's last one; none in Kafka's own snapshots."""
    found: dict[int, list[KeptBatch]] = {}
    if len(data) >= position + _count.size:
        for at in range(position + _count.size, len(data) - _earlier.size + 1, _earlier.size):
            producer_id, *kept = _earlier.unpack_from(data, at)
            found.setdefault(producer_id, []).append(KeptBatch(*kept))
    return found
