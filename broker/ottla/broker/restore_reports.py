"""Reports the ends of this broker's logs where the metadata alone can't decide the leader, so that the controller
elects the broker with the best log.

There are two cases. (1) The metadata store was restored from a backup, or partitions were adopted from log directories
of Apache Kafka. Then the report names every log of this broker,
also logs of partitions that the backup gives to other brokers. (2) A partition has no leader, and this broker, which
was in its ISR or eligible, is back after an unclean stop. Then the report names the partition, also if its log is
unreadable or missing. A process that has lost its registration since it started reports even if its start followed a
clean stop: its new registration names only the registration directly before it, and not the registration that the clean
stop ended.

A report is attached to the lease of the broker's registration. It is written anew for each registration, and when there
are more partitions to report. The logs don't change meanwhile: the partitions have no leader, so no batch is appended
and no log truncated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from ottla.broker.log.directories import LogDirectories
from ottla.broker.partitions import PartitionTable
from ottla.metadata import keys
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.brokers import NO_EPOCH
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.reports import MISSING, UNREADABLE, LogEnd, Report
from ottla.metadata.reports import PartitionId, contenders, silent, waits_for_reports
from ottla.metadata.store import Delete, LeaseExpired, LeaseId, Put, Store, StoreUnavailable, UnknownOutcome

logger = logging.getLogger(__name__)

PART_LOGS_MAX = 1000
_AGAIN_S = 0.5


class RestoreReports:
    """One broker's reports of its logs' ends. The owner runs `run` as a task, and calls `changed` and `registered` for
    each event."""

    def __init__(self, broker_id: int, store: Store, logs: LogDirectories, table: PartitionTable) -> None:
        self._broker_id = broker_id
        self._store = store
        self._logs = logs
        self._table = table
        self._registered = (NO_EPOCH, LeaseId(0))
        self._reported_epoch = NO_EPOCH
        self._reported: set[PartitionId] = set()
        self._unreadable: set[PartitionId] = set()  # reported partitions whose logs couldn't be read at that time
        self._parts = 0
        self._waiting: dict[PartitionId, int] = {}  # to be reported, with the newest leader epoch known here
        self._whole: set[PartitionId] = set()  # partitions that need no report, because this broker stopped cleanly
        self._first = True  # whether this is the process's first registration, which states a clean stop
        self._restored: set[PartitionId] = set()  # the partitions restored from a backup, which have no leader yet
        self._awaited: frozenset[int] = frozenset()
        self._woken = asyncio.Event()

    def registered(self, broker_epoch: int, lease: LeaseId) -> None:
        """Notes a new registration. Reports under an earlier registration have vanished with the lease of that
        registration."""
        if self._registered[0] != NO_EPOCH:
            self._first = False
        # The first registration doesn't state a clean stop either if a log, or a log directory, has failed since the
        # start.
        if not self._first or self._logs.stopped_epoch == NO_EPOCH:
            for key in self._whole:
                self._wait(key)
            self._whole.clear()
        self._registered = broker_epoch, lease
        self._woken.set()

    def logs_opened(self) -> None:
        """Called after attempts to open logs that couldn't be opened before: the logs that are open now are reported
        anew, because their ends may decide the election."""
        self._reported -= self._unreadable - self._logs.lost.keys()
        self._woken.set()

    def changed(self, image: Image, changed: Changed) -> None:
        """Finds the partitions to report after a change of the image. Must be called before `Replicas.changed`."""
        for key in changed.partitions:
            state = image.partition(*key)
            (self._restored.add if state is not None and state.restored else self._restored.discard)(key)
            self._whole.discard(key)
            if state is None or not (state.restored or self._contends_for(state)):
                self._waiting.pop(key, None)
                self._reported.discard(key)
            elif self._first and not state.restored and self._stopped_cleanly(state):
                self._waiting.pop(key, None)
                self._reported.discard(key)
                self._whole.add(key)
            elif key not in self._waiting:
                self._wait(key)
        if self._waiting or self._parts:
            self._woken.set()
        if self._restored and (changed.reports or changed.brokers or changed.cluster):
            self._tell(image, len(self._restored))

    def _wait(self, key: PartitionId) -> None:
        partition = self._table.get_by_id(*key)
        self._waiting[key] = NO_EPOCH if partition is None else partition.epoch

    def _contends_for(self, state: Partition) -> bool:
        """Whether this broker's log of the partition may be the best of the remaining logs."""
        return waits_for_reports(state) and self._broker_id in contenders(state)

    def _stopped_cleanly(self, state: Partition) -> bool:
        """Whether the log is known to be complete: the first registration of this process says that the process before
        it stopped cleanly."""
        eligible = dict(zip(state.elr, state.elr_epochs, strict=True))
        admitted = eligible.get(self._broker_id, state.epoch_in_isr(self._broker_id))
        # A clean stop of a later registration proves nothing about an unclean stop before it.
        return admitted != NO_EPOCH and self._logs.stopped_epoch == admitted

    def _tell(self, image: Image, count: int) -> None:
        awaited = silent(image)
        if awaited != self._awaited:
            self._awaited = awaited
            if awaited:
                logger.warning("%d restored partitions wait for the logs of brokers %s", count, sorted(awaited))

    async def run(self) -> None:
        """Writes reports when there are partitions to report, and withdraws them when there are none, until
        cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            epoch, lease = self._registered
            try:
                old = epoch == self._reported_epoch and self._waiting.keys() <= self._reported
                if self._waiting and epoch != NO_EPOCH and not old:
                    await self._report(epoch, lease)
                elif not self._waiting and self._parts:
                    await self._withdraw()
            except LeaseExpired:
                continue  # the next registration wakes this task
            except (StoreUnavailable, UnknownOutcome) as reason:
                logger.warning("the logs' ends can't be reported: %s", reason)
                await asyncio.sleep(_AGAIN_S)
                self._woken.set()

    async def _report(self, epoch: int, lease: LeaseId) -> None:
        ends = list(self._ends())
        parts = [dict(ends[start : start + PART_LOGS_MAX]) for start in range(0, len(ends), PART_LOGS_MAX)] or [{}]
        reported = set(self._waiting)
        unreadable = reported & self._logs.lost.keys()
        if self._parts:  # the first part of the old report, without which a report is ignored: two reports never mix
            await self._store.transact([], [Delete(keys.report(self._broker_id, 0))])
        self._parts = max(self._parts, len(parts))  # these parts may be written even if a write fails
        for number, logs in reversed(list(enumerate(parts))):
            put = Put(keys.report(self._broker_id, number), Report(epoch, len(parts), logs).encode(), lease)
            await self._store.transact([], [put])
        opened = unreadable - self._logs.lost.keys()  # logs that were opened while the report was written
        self._reported_epoch, self._reported, self._unreadable = epoch, reported - opened, unreadable - opened
        if opened:
            self._woken.set()
        logger.info("reported the ends of %d logs, whose partitions have no leader, to the controller", len(ends))

    async def _withdraw(self) -> None:
        for number in range(self._parts):
            await self._store.transact([], [Delete(keys.report(self._broker_id, number))])
        self._parts, self._reported_epoch, self._reported = 0, NO_EPOCH, set()
        logger.info("every reported partition has a leader")

    def _ends(self) -> Iterator[tuple[PartitionId, LogEnd]]:
        for key, known in self._waiting.items():
            if key in self._logs.lost:
                yield key, UNREADABLE
            elif (log := self._logs.get(*key)) is not None:
                yield key, LogEnd(log.last_leader_epoch, log.log_end_offset, max(known, log.last_leader_epoch))
            elif key not in self._restored:
                yield key, MISSING
