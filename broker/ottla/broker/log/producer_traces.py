"""What producers have left in the log of a stopped broker: open transactions, the greatest producer id, and the
greatest epoch of a coordinator. Reads a partition's directory, and changes nothing.

All three are in the newest producer snapshot (Kafka writes one at a clean stop). Changes after the snapshot are read
from the batches. Source: Kafka's ProducerStateManager and EndTransactionMarker.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.protocol.batches import NO_PRODUCER_ID
from ottla.protocol.markers import NO_COORDINATOR_EPOCH, read_marker
from ottla.storage import names
from ottla.storage.producer_snapshot import read_snapshot

from .disk import Disk
from .segment import OpenFiles, Segment


@dataclass(slots=True)
class ProducerTraces:
    """The traces of a partition's producers.

    `open_transactions` maps the ids of the producers with open transactions to the transactions' first offsets.
    `producer_id` is the greatest producer id, `coordinator_epoch` the greatest epoch of a coordinator that wrote a
    marker; both are −1 where there is none. `end_offset` is the offset after the last batch.
    """

    open_transactions: dict[int, int] = field(default_factory=dict)
    producer_id: int = NO_PRODUCER_ID
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    end_offset: int = 0

    def _note(self, producer_id: int, coordinator_epoch: int = NO_COORDINATOR_EPOCH) -> None:
        self.producer_id = max(self.producer_id, producer_id)
        self.coordinator_epoch = max(self.coordinator_epoch, coordinator_epoch)

    def restore(self, snapshot: bytes) -> None:
        """Takes over the producers of a snapshot file. Raises ValueError where the snapshot is damaged."""
        for entry in list(read_snapshot(snapshot)):
            self._note(entry.producer_id, entry.coordinator_epoch)
            if entry.transaction_start >= 0:
                self.open_transactions[entry.producer_id] = entry.transaction_start

    def replay(self, segment: Segment, start: int) -> None:
        """Takes over the segment's batches from the offset `start` on."""
        for position, header in segment.headers():
            if header.base_offset < start:
                continue
            self.end_offset = header.last_offset + 1
            if header.producer_id < 0:
                continue
            self._note(header.producer_id)
            if not header.is_transactional:
                continue
            if not header.is_control:
                self.open_transactions.setdefault(header.producer_id, header.base_offset)
            elif (marker := read_marker(segment.batch_at(position, header))) is not None:
                self.open_transactions.pop(header.producer_id, None)
                self._note(header.producer_id, marker.coordinator_epoch)


def producer_traces(disk: Disk, directory: str) -> ProducerTraces:
    """What producers have left in a partition's directory. Raises OSError."""
    files = {}
    for entry in disk.list(directory):
        if (parsed := names.parse_offset_name(entry.name)) is not None:
            files[parsed] = entry.size
    snapshots = [offset for offset, kind in files if kind == names.PRODUCER_SNAPSHOT]
    traces, start = _newest(disk, directory, snapshots)
    bases = sorted(offset for offset, kind in files if kind == names.LOG)
    open_files = OpenFiles()
    for base, end in zip(bases, [*bases[1:], None], strict=True):
        if end is None or end > start:
            segment = Segment(disk, directory, base, open_files=open_files, size=files[base, names.LOG])
            traces.replay(segment, start)
            segment.let_go()
    return traces


def _newest(disk: Disk, directory: str, offsets: list[int]) -> tuple[ProducerTraces, int]:
    """(the producers in the newest readable snapshot, the offset of that snapshot)."""
    for offset in sorted(offsets, reverse=True):
        traces = ProducerTraces(end_offset=offset)
        try:
            traces.restore(disk.read(f"{directory}/{names.offset_name(offset, names.PRODUCER_SNAPSHOT)}"))
        except ValueError:
            continue
        return traces, offset
    return ProducerTraces(), 0
