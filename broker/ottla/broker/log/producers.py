"""The last batches of each idempotent producer of a partition, by which repeated and missing batches are recognised.

Owned by the log, since it changes only with appends, truncation and replay. `check` is called before an append,
`update` after it; snapshots beside the segments spare a restart from reading the whole log.

A truncation takes the same time however many producers there are: it only notes the log's new end. Each producer's
entry is set back when it is next used, by the batches kept in it. The result is the same as that of reading the log's
headers, except for a producer whose kept batches are all dropped and that wrote earlier ones. Of such a producer only
the epoch is known then. The epoch is enough:

1. A producer has at most BATCHES_KNOWN batches in flight. So every batch that it wrote before the first of its
   BATCHES_KEPT batches was answered, and the producer doesn't send it again.
2. A producer of a newer epoch sends nothing of an older one.
3. If the producer's next batch has sequence 0 of this epoch or of a newer one, the batch is accepted. Otherwise it
   follows a batch that was answered and is lost: then the producer gets the error for a gap, as from Kafka.

Where a transaction's marker is dropped, the producer's state from before the marker is taken back (`transactions`).
That state is kept until the marker is below the high watermark. So the log is read only if a truncation drops records
that were committed, or a marker from before the last start. A snapshot written by Kafka has only one batch of each
producer, and doesn't say where the log's last marker is: then the log may have to be read, too.

Source: Kafka's ProducerStateManager, ProducerStateEntry and ProducerAppendInfo (KIP-98, KIP-360).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from ottla.protocol.batches import NO_SEQUENCE, TRANSACTIONAL, BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.markers import Marker
from ottla.storage.indexes import AbortedTransaction
from ottla.storage.producer_snapshot import NOT_TOLD, KeptBatch, SnapshotEntry, sealed_snapshot, snapshot_pieces

from .transactions import EMPTY, Ended, Transactions

BATCHES_KNOWN = 5  # repeats of so many are recognised, as in Kafka: a producer has no more in flight
BATCHES_KEPT = BATCHES_KNOWN + 1  # if all batches in flight are truncated, the one before them is still there
NO_EPOCH = -1
_SEQUENCE_MASK = 0x7FFFFFFF


class Duplicate(NamedTuple):
    """The offsets that a repeated batch got when it was first appended. `append_time` is its greatest timestamp."""

    first_offset: int
    last_offset: int
    append_time: int


class ProducerEntry:
    """One producer's state on one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "marker_timestamp",
        "transaction_start",
        "version",
        "wrote_more",
    )

    def __init__(self, epoch: int = NO_EPOCH, version: int = 0) -> None:
        self.epoch = epoch
        self.version = version  # the version of `Producers` as of the last change; an older entry is never changed
        self.batches: tuple[KeptBatch, ...] = ()
        self.wrote_more = False  # whether it wrote batches before these, in this epoch or an earlier one
        self.last_timestamp = -1
        self.marker_timestamp = -1  # of the last marker since the start
        self.coordinator_epoch = -1
        self.transaction_start = -1

    def copy(self, version: int) -> ProducerEntry:
        """A copy of the entry, for another version of `Producers`."""
        made = ProducerEntry(self.epoch, version)
        made.batches, made.wrote_more, made.last_timestamp = self.batches, self.wrote_more, self.last_timestamp
        made.coordinator_epoch, made.transaction_start = self.coordinator_epoch, self.transaction_start
        made.marker_timestamp = self.marker_timestamp
        return made

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1


class _Cut(NamedTuple):
    """A truncation to `end_offset`. It concerns entries whose version is less than `version`."""

    version: int
    end_offset: int


_version_of = itemgetter(0)


def _as_of(entry: ProducerEntry, cuts: Sequence[_Cut]) -> ProducerEntry | None:
    """The producer's entry as of the truncations in `cuts` that came after the entry's version. Returns `entry` itself
    if no truncation drops a batch of the entry, else a new entry with the batches that are left. Returns None if no
    batch is left, and the producer had written nothing before the entry's batches."""
    at = bisect_right(cuts, entry.version, key=_version_of)
    if at == len(cuts):
        return entry
    end_offset = cuts[at].end_offset  # the lowest end offset of this and all later truncations
    if entry.transaction_start < end_offset and not (entry.batches and entry.batches[-1].last_offset >= end_offset):
        return entry
    left = tuple([batch for batch in entry.batches if batch.last_offset < end_offset])
    if not left and not entry.wrote_more:
        return None
    earlier = entry.copy(entry.version)
    earlier.batches = left
    if left:
        earlier.last_timestamp = max(left[-1].timestamp, entry.marker_timestamp)
    if entry.transaction_start >= end_offset:
        earlier.transaction_start = -1
    return earlier


class FrozenProducers:
    """The producers' state at one moment, which never changes. May be read in any thread."""

    __slots__ = ("_cuts", "_entries", "marked_to")

    def __init__(self, entries: dict[int, ProducerEntry], cuts: Sequence[_Cut], marked_to: int) -> None:
        self._entries = entries
        self._cuts = cuts
        self.marked_to = marked_to  # no transaction marker has this offset or a later one

    def items(self) -> Iterator[tuple[int, ProducerEntry]]:
        """(producer id, entry) of each producer."""
        for producer_id, entry in self._entries.items():
            if (now := _as_of(entry, self._cuts)) is not None:
                yield producer_id, now


class Producers:
    """All producers of one partition.

    An entry of an older version isn't changed: it belongs to a frozen state, or to the time before a truncation. The
    next change makes a copy of it. `_cuts` are the truncations by which entries may still have to be set back. Their
    end offsets ascend, because each truncation replaces the earlier ones that ended at the same offset or beyond.
    """

    __slots__ = ("_cut_version", "_cuts", "_entries", "_known_from", "_marked_to", "_version", "transactions")

    def __init__(self, replicated_to: int = 0) -> None:
        """Records below `replicated_to` are below the high watermark: a truncation that drops them may read the
        log."""
        self.transactions: Transactions[ProducerEntry] = Transactions(replicated_to)
        self._entries: dict[int, ProducerEntry] = {}
        self._version = 0  # counts how often the state was frozen or truncated
        self._cuts: list[_Cut] = []
        self._cut_version = 0  # the version that the last truncation began
        self._known_from = 0  # the state before the log reached this offset can only be read from the log
        self._marked_to = 0  # no transaction marker has this offset or a later one

    def __len__(self) -> int:
        """The number of producers. A producer that wrote only truncated batches counts until `expire` meets it."""
        return len(self._entries)

    def oldest_transaction_ms(self) -> int | None:
        """The time, in ms since 1970, of the newest batch of the oldest open transaction's producer; None where no
        transaction is open."""
        producer_id = self.transactions.oldest_producer_id
        entry = None if producer_id is None else self._entries.get(producer_id)
        return None if entry is None else entry.last_timestamp

    def items(self) -> Iterator[tuple[int, ProducerEntry]]:
        """(producer id, entry) of each producer."""
        return FrozenProducers(self._entries, self._cuts, self._marked_to).items()

    def get(self, producer_id: int) -> ProducerEntry | None:
        """A producer's entry; None where the partition has no entry of that producer."""
        entry = self._entries.get(producer_id)
        if entry is not None and entry.version < self._cut_version:
            return _as_of(entry, self._cuts)
        return entry

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Checks whether a client's batch may be appended: returns None if it may, and for a repeated batch the offsets
        of the first append.

        Raises KafkaError invalid_producer_epoch for an older epoch, out_of_order_sequence_number for a gap,
        invalid_txn_state for a batch that doesn't belong to the producer's open transaction.
        """
        entry = self._entries.get(header.producer_id)
        if entry is not None and entry.version < self._cut_version:
            entry = _as_of(entry, self._cuts)
        if entry is None:
            return None
        if header.producer_epoch != entry.epoch:
            if header.producer_epoch < entry.epoch:
                raise KafkaError(
                    ErrorCode.invalid_producer_epoch,
                    f"producer {header.producer_id} has epoch {entry.epoch}, the batch epoch {header.producer_epoch}",
                )
            if header.base_sequence != 0 and entry.epoch != NO_EPOCH:
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {header.producer_id} begins a new epoch with sequence {header.base_sequence}, not 0",
                )
        else:
            sequence, delta = header.base_sequence, header.last_offset_delta
            last_sequence = sequence + delta & _SEQUENCE_MASK
            for kept in entry.batches[-BATCHES_KNOWN:]:
                if kept.last_sequence == last_sequence and kept.offset_delta == delta:
                    return Duplicate(kept.last_offset - delta, kept.last_offset, kept.timestamp)
            last = entry.last_sequence
            if sequence != last + 1 and not (sequence == 0 and last == _SEQUENCE_MASK):
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {header.producer_id} sent sequence {sequence} after sequence {last}",
                )
        if entry.transaction_start >= 0 and not header.attributes & TRANSACTIONAL:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"producer {header.producer_id} sent records outside of its open transaction",
            )
        return None

    def update(self, header: BatchHeader, last_offset: int, max_timestamp: int) -> None:
        """Notes an appended batch of data."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.epoch != header.producer_epoch or entry.version != self._version:
            entry = self._begin(header.producer_id, header.producer_epoch)
        delta = header.last_offset_delta
        kept = KeptBatch(header.base_sequence + delta & _SEQUENCE_MASK, last_offset, delta, max_timestamp)
        batches = entry.batches
        if len(batches) == BATCHES_KEPT:
            entry.batches = (*batches[1:], kept)
            entry.wrote_more = True
        else:
            entry.batches = (*batches, kept)
        entry.last_timestamp = max_timestamp
        if header.attributes & TRANSACTIONAL and entry.transaction_start < 0:
            entry.transaction_start = last_offset - delta
            self.transactions.began(entry.transaction_start, header.producer_id)

    def _begin(self, producer_id: int, epoch: int) -> ProducerEntry:
        """The producer's entry to be changed: for a new epoch a new entry, which keeps the open transaction; for the
        same epoch a copy of the known entry."""
        entry = self._entries[producer_id] = self._next_of(self.get(producer_id), epoch)
        return entry

    def _next_of(self, old: ProducerEntry | None, epoch: int) -> ProducerEntry:
        if old is not None and old.epoch == epoch:
            return old.copy(self._version)
        entry = ProducerEntry(epoch, self._version)
        if old is not None:
            entry.wrote_more = True
            entry.coordinator_epoch, entry.marker_timestamp = old.coordinator_epoch, old.marker_timestamp
            entry.transaction_start = old.transaction_start
        return entry

    def transaction_ended(self, producer_id: int, epoch: int, marker: Marker, offset: int) -> AbortedTransaction | None:
        """Notes the marker at `offset`. Returns the transaction if it was aborted and has data: such a transaction
        belongs into the transaction index of the marker's segment."""
        old = self.get(producer_id)
        entry = self._entries[producer_id] = self._next_of(old, epoch)  # `old` is kept, for a truncation
        first_offset = entry.transaction_start if entry.transaction_start >= 0 else EMPTY
        entry.transaction_start = -1
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = entry.marker_timestamp = marker.timestamp
        entry.wrote_more = True  # it wrote the marker at least
        self._marked_to = offset + 1
        stable = self.transactions.ended(Ended(offset, producer_id, first_offset, old))
        if marker.committed or first_offset == EMPTY:
            return None
        return AbortedTransaction(producer_id, first_offset, offset, stable)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of the earliest transaction that is open, or whose marker isn't below `high_watermark`; None
        where there is none."""
        return self.transactions.first_unstable_offset(high_watermark)

    def expire(self, now_ms: int, expiration_ms: int, among: Iterable[int] | None = None) -> int:
        """Forgets producers (of `among`, or all) that have written nothing for `expiration_ms` and have no open
        transaction, and producers that wrote only truncated batches. Returns how many it has forgotten. The entries of
        the others are set back by all truncations so far."""
        entries, cut_version = self._entries, self._cut_version
        before = len(entries)
        for producer_id in list(entries) if among is None else among:
            entry = entries.get(producer_id)
            if entry is None:
                continue
            if entry.version < cut_version:
                entry = _as_of(entry, self._cuts)
                if entry is not None:
                    entry = entries[producer_id] = entry.copy(self._version)
            if entry is None or (entry.transaction_start < 0 and now_ms - entry.last_timestamp >= expiration_ms):
                del entries[producer_id]
        return before - len(entries)

    def expire_in_steps(self, now_ms: int, expiration_ms: int, count_max: int) -> Iterator[None]:
        """As `expire`, with `count_max` producers in each step; yields between two steps, where the state may change.
        After the last step, the truncations from before the first step are forgotten, because every entry has been set
        back by them."""
        version = self._version
        ids = list(self._entries)
        for start in range(0, len(ids), count_max):
            if start:
                yield
            self.expire(now_ms, expiration_ms, ids[start : start + count_max])
        del self._cuts[: bisect_right(self._cuts, version, key=_version_of)]

    def truncate_to(self, end_offset: int) -> bool:
        """Sets the state back to when the log ended at `end_offset`. Returns False, and changes nothing, where that
        state can only be read from the log. The work is the same however many producers there are."""
        if end_offset < self._known_from or end_offset < self.transactions.known_from:
            return False
        while self._cuts and self._cuts[-1].end_offset >= end_offset:
            self._cuts.pop()
        self._version += 1
        self._cut_version = self._version
        self._cuts.append(_Cut(self._version, end_offset))
        for undone in self.transactions.truncate_to(end_offset):
            if undone.before is None:
                self._entries.pop(undone.producer_id, None)
            else:
                self._entries[undone.producer_id] = undone.before
        self._marked_to = min(self._marked_to, end_offset)
        return True

    def ends_at(self, end_offset: int) -> None:
        """Notes that the log, which was read, ends at `end_offset`, possibly below its former high watermark."""
        self.transactions.replicated_to = min(self.transactions.replicated_to, end_offset)

    def clear(self) -> None:
        """Forgets all producers."""
        self._entries.clear()
        self._cuts.clear()
        self._known_from = self._marked_to = 0
        self.transactions.clear()

    def restore(
        self,
        entries: Iterable[SnapshotEntry],
        end_offset: int,
        now_ms: int,
        expiration_ms: int,
        marked_to: int = NOT_TOLD,
    ) -> None:
        """Takes the state from a snapshot of when the log ended at `end_offset`, without expired producers. No
        transaction marker has the offset `marked_to` or a later one; a snapshot written by Kafka doesn't say this."""
        self._entries = {entry.producer_id: _restored(entry) for entry in entries}
        self._cuts.clear()
        self._cut_version = self._known_from = 0
        self.expire(now_ms, expiration_ms)
        still_open = []
        self._marked_to = max(marked_to, 0)
        for producer_id, entry in self._entries.items():
            if entry.transaction_start >= 0:
                still_open.append((entry.transaction_start, producer_id))
            if marked_to == NOT_TOLD and entry.coordinator_epoch >= 0:  # the marker is before the open transaction
                marked = entry.transaction_start if entry.transaction_start >= 0 else end_offset
                self._marked_to = max(self._marked_to, marked)
            if entry.wrote_more and 0 < len(entry.batches) < BATCHES_KEPT and not _begins(entry.batches[0]):
                self._known_from = max(self._known_from, entry.batches[0].last_offset + 1)
        self.transactions.restore(still_open, self._marked_to)

    def freeze(self) -> FrozenProducers:
        """The present state. Cheap: the entries are shared, and copied when they change."""
        self._version += 1
        return FrozenProducers(self._entries.copy(), tuple(self._cuts), self._marked_to)

    def snapshot(self) -> bytes:
        """The state as a snapshot file."""
        return sealed_snapshot(snapshot_pieces(self.items()), self._marked_to)


def _restored(entry: SnapshotEntry) -> ProducerEntry:
    made = ProducerEntry(entry.epoch)
    made.batches = entry.batches
    made.wrote_more = entry.epoch > 0 or not entry.batches or not _begins(entry.batches[0])
    made.last_timestamp = entry.last_timestamp
    made.coordinator_epoch = entry.coordinator_epoch
    made.transaction_start = entry.transaction_start
    return made


def _begins(batch: KeptBatch) -> bool:
    """Whether `batch` is the first one of the producer's epoch."""
    return batch.last_sequence == batch.offset_delta
