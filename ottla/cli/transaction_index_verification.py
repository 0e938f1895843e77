"""Compares the transaction indexes of a partition with the batches of its segments. Reads only.

An index names the aborted transactions whose markers are in its segment. Without an entry, consumers of committed
records get the records of the aborted transaction, and compaction keeps them as if they were committed. So each abort
marker that ends data must have an entry, and each entry must belong to an abort marker.

Compaction removes the batches of aborted transactions, and retention removes the beginning of the log. So an entry may
name offsets that no batch has any more. It must not name an offset that another batch has.

Segments that the next start recovers aren't compared: it makes their indexes anew, and while a broker runs, or after it
was killed, the files lack the newest entries.

The entries of one segment at a time are in memory. Of all entries of the partition, only the offsets that they name are
kept, as arrays: a batch that has such an offset may be in a segment far before the entry.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby

from ottla.protocol.batches import BatchHeader
from ottla.protocol.markers import read_marker
from ottla.storage import names
from ottla.storage.checkpoints import parse_offsets
from ottla.storage.indexes import ABORTED_ENTRY_BYTES, aborted_transactions
from ottla.storage.producer_snapshot import read_snapshot
from ottla.wording import counted

REPAIR = (
    "Stop the broker, delete {index}, and start the broker: it reads the batches, and makes the indexes of this segment"
    " and of all later ones anew."
)
REPAIRED_BY_START = "The next start of the broker makes the indexes of this segment and of all later ones anew."
Found = tuple[int, str, str]  # (place in the index file, what is wrong, what repairs it)


class _Entries:
    """The index of one segment, as its file has it, by the offsets of the markers."""

    def __init__(self, directory: str, base: int) -> None:
        self.path = f"{directory}/{names.offset_name(base, names.TRANSACTION_INDEX)}"
        self.repair = REPAIR.format(index=f"{directory}/{names.offset_name(base, names.OFFSET_INDEX)}")
        self.exists = os.path.exists(self.path)
        content = b""
        if self.exists:
            with open(self.path, "rb") as file:
                content = file.read()
        self.torn_bytes = len(content) % ABORTED_ENTRY_BYTES
        self.size = len(content)
        self.all = list(aborted_transactions(content))
        self.unmatched = {entry.last_offset: number for number, entry in enumerate(self.all)}
        self.lacking = 0


class _Claims:
    """The offsets that the entries of a partition's segments name, and which of them a batch has."""

    def __init__(self, directory: str, bases: Sequence[int]) -> None:
        found = [_offsets_named(_Entries(directory, base)) for base in bases]
        self._offsets = array("q", (offset for offset, _ in groupby(merge(*found))))
        self._taken = bytearray(len(self._offsets))

    def take(self, first: int, last: int) -> None:
        """Notes a batch that has the offsets from `first` to `last`."""
        begin, end = bisect_left(self._offsets, first), bisect_right(self._offsets, last)
        self._taken[begin:end] = b"\1" * (end - begin)

    def taken(self, offset: int) -> bool:
        """Whether a batch that was noted has the offset, which an entry names."""
        return bool(self._taken[bisect_left(self._offsets, offset)])


def _offsets_named(entries: _Entries) -> array[int]:
    named = {offset for entry in entries.all for offset in (entry.first_offset, entry.last_stable_offset)}
    return array("q", sorted(named))


class TransactionIndexes:
    """The transaction indexes of one partition's segments. The caller begins each segment, passes each batch of it, and
    ends the segment, in the log's order."""

    def __init__(self, directory: str, bases: Sequence[int]) -> None:
        """`bases` are the base offsets of the segments to compare, in ascending order. Raises OSError."""
        recovered_from = _recovered_from(directory)
        self._directory = directory
        self._compared = [base for base in bases if base < recovered_from]
        self._open = _open_at(directory, bases[0]) if bases else {}
        self._claims = _Claims(directory, self._compared)
        self._here: _Entries | None = None

    def begin(self, base: int) -> None:
        """Begins the segment with this base offset. Raises OSError."""
        self._here = _Entries(self._directory, base) if base in self._compared else None

    @property
    def path(self) -> str:
        """The index file of the segment that was begun."""
        return "" if self._here is None else self._here.path

    def passed(self, header: BatchHeader, batch: memoryview) -> Iterator[Found]:
        """Yields the faults of the index that the next batch of the segment shows."""
        self._claims.take(header.base_offset, header.last_offset)
        if not header.is_transactional:
            return
        if not header.is_control:
            self._open.setdefault(header.producer_id, header.base_offset)
            return
        marker = read_marker(batch)
        if marker is None:
            return
        began = self._open.pop(header.producer_id, None)
        if not marker.committed and self._here is not None:
            yield from self._aborted(self._here, header.producer_id, began, header.base_offset)

    def _aborted(self, here: _Entries, producer_id: int, began: int | None, marker: int) -> Iterator[Found]:
        """Compares the entry of the marker at the offset `marker`. `began` is the first offset of the transaction as
        far as its batches are there, None where none is."""
        number = here.unmatched.pop(marker, None)
        if number is None:
            if began is not None:
                here.lacking += 1
                if here.exists:
                    yield (
                        here.size,
                        f"no entry for the aborted transaction of producer {producer_id}, offsets {began} to {marker}:"
                        " consumers of committed records get its records",
                        here.repair,
                    )
            return
        entry = here.all[number]
        place = number * ABORTED_ENTRY_BYTES
        what = f"the entry of the transaction that ends at offset {marker}"
        if entry.producer_id != producer_id:
            yield (
                place,
                f"{what} names producer {entry.producer_id}, and the marker is of producer {producer_id}",
                here.repair,
            )
        if not self._may_be(entry.first_offset, began, marker):
            where = "no batch is left" if began is None else f"its first batch is at offset {began}"
            yield place, f"{what} begins it at offset {entry.first_offset}, and {where}", here.repair
        stable = min(self._open.values(), default=marker + 1)
        if not self._may_be(entry.last_stable_offset, stable, marker + 2):
            yield (
                place,
                f"{what} states the last stable offset {entry.last_stable_offset}, and by the batches it was {stable}",
                here.repair,
            )

    def _may_be(self, stated: int, found: int | None, below: int) -> bool:
        """Whether an entry may state an offset where the batches that are left give the offset `found`: the batch of an
        earlier offset may have been removed."""
        if stated == found:
            return True
        return 0 <= stated < (below if found is None else found) and not self._claims.taken(stated)

    def ended(self) -> Iterator[Found]:
        """Ends the segment. Yields the faults of its index as a whole, and of the entries that belong to no marker."""
        here = self._here
        if here is None:
            return
        if here.lacking and not here.exists:
            yield (
                0,
                f"the file is missing, and {counted(here.lacking, 'aborted transaction')}"
                f" {'ends' if here.lacking == 1 else 'end'} in the segment: consumers of committed records get what was"
                " aborted",
                here.repair,
            )
        for offset, number in here.unmatched.items():
            yield (
                number * ABORTED_ENTRY_BYTES,
                f"an entry says that a transaction was aborted at offset {offset}, and no abort marker is there",
                here.repair,
            )
        last = -1
        for number, entry in enumerate(here.all):
            if entry.last_offset <= last:
                place = number * ABORTED_ENTRY_BYTES
                yield place, f"the entry of offset {entry.last_offset} comes after that of {last}", here.repair
            last = entry.last_offset
        if here.torn_bytes:
            place = here.size - here.torn_bytes
            yield place, f"{here.torn_bytes} bytes at the end are no whole entry", REPAIRED_BY_START


def _open_at(directory: str, base: int) -> dict[int, int]:
    """The transactions that are open where the segment with this base offset begins, by the producer snapshot there:
    producer id → first offset. Empty without a readable snapshot."""
    try:
        with open(f"{directory}/{names.offset_name(base, names.PRODUCER_SNAPSHOT)}", "rb") as file:
            producers: list[tuple[int, int]] = [
                (entry.producer_id, entry.transaction_start) for entry in read_snapshot(file.read())
            ]
    except (FileNotFoundError, ValueError):
        return {}
    return {producer_id: start for producer_id, start in producers if start >= 0}


def _recovered_from(directory: str) -> int:
    """The base offset of the first segment that the next start recovers because the last stop wasn't a clean one; an
    offset above all others where no segment is recovered."""
    home, name = os.path.split(os.path.abspath(directory))
    checkpoint = f"{home}/{names.RECOVERY_POINTS}"
    partition = names.parse_partition_name(name)
    if partition is None or os.path.exists(f"{home}/{names.CLEAN_SHUTDOWN}") or not os.path.exists(checkpoint):
        return 1 << 63
    try:
        with open(checkpoint, "rb") as file:
            point = parse_offsets(file.read()).get(partition, 0)
    except ValueError:
        point = 0
    parsed = (names.parse_offset_name(name) for name in os.listdir(directory))
    bases = [each[0] for each in parsed if each is not None and each[1] == names.LOG]
    return max((base for base in bases if base <= point), default=0)
