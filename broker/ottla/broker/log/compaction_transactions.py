"""Tells a compaction which of the batches that it reads are aborted data, and which markers may be removed. Pure.

The caller reads the batches in the order of the log. Data of an aborted transaction, which a transaction index names,
may be removed at once. A marker is needed as long as its transaction has data, because a consumer that reads committed
records only hides or shows the data by the marker. So a marker may be removed if no batch of its transaction was read
since the producer's previous marker. Then the new segment's transaction index has no entry for the transaction, either.

Source: Kafka's CleanedTransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.protocol.batches import BatchHeader
from ottla.protocol.markers import Marker
from ottla.storage.indexes import AbortedTransaction


class ReadTransactions:
    """The transactions of the batches that were read so far."""

    __slots__ = ("_aborted", "_kept", "_later", "_with_data")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._later = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}  # by producer: the last one that has begun
        self._with_data: set[int] = set()  # the producers whose transaction has data
        self._kept: list[AbortedTransaction] = []

    def data_read(self, header: BatchHeader) -> bool:
        """Notes a batch of data. Returns whether its transaction was aborted."""
        if not header.is_transactional:
            return False
        self._with_data.add(header.producer_id)
        return self._aborted_at(header) is not None

    def marker_read(self, header: BatchHeader, marker: Marker) -> bool:
        """Notes a marker. Returns whether its transaction has no data left, so that the marker may be removed."""
        aborted = self._aborted_at(header)
        self._aborted.pop(header.producer_id, None)
        if header.producer_id not in self._with_data:
            return True
        self._with_data.discard(header.producer_id)
        if aborted is not None and not marker.committed:
            self._kept.append(aborted)
        return False

    def take_kept(self) -> list[AbortedTransaction]:
        """The entries for the transaction index of a new segment: the aborted transactions with data whose markers were
        read since the last call."""
        kept, self._kept = self._kept, []
        return kept

    def _aborted_at(self, header: BatchHeader) -> AbortedTransaction | None:
        """The aborted transaction whose data or marker a batch has; None for any other batch."""
        while self._later and self._later[-1].first_offset <= header.last_offset:
            transaction = self._later.pop()
            self._aborted[transaction.producer_id] = transaction
        found = self._aborted.get(header.producer_id)
        return found if found is not None and header.base_offset <= found.last_offset else None
