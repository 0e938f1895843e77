"""Writes the changes of ISRs of the partitions that this broker leads. The metadata store's transactions compare the
revisions that the decisions were based on (guards).

A transaction compares the revision of the partition's state, and the revisions, as last read, of the registrations of
this broker and of each broker that joins: a broker that has begun to drain, has registered anew or is gone can't join.
If a comparison fails, the change is proposed anew from the newer metadata. While the outcome of a proposal isn't known,
both the old and the new ISR count (`LeaderState`). Then the partition's state is written again, if need be unchanged,
until its revision shows whether the earlier proposal was written.

A broker that was away rejoins the ISRs of thousands of partitions at a time: so a transaction changes many partitions,
and several transactions are under way at a time. A partition is in at most one of them.

A follower that may join is noticed when it fetches, and when its broker's registration changes. A follower that lags is
noticed by a check every half `replica.lag.time.max.ms`. `Candidates` decides which followers may join, and for which of
them the high watermark waits so that they can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from uuid import UUID

from ottla.broker.candidates import Candidates
from ottla.broker.partition import Partition
from ottla.broker.replica.leader import LeaderState
from ottla.metadata import eligibility, keys
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.brokers import Broker
from ottla.metadata.model.partitions import NO_LEADER, with_isr
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.metadata.store import (
    TRANSACTION_OPERATIONS_MAX,
    Guard,
    Put,
    Rejected,
    Store,
    StoreUnavailable,
    UnknownOutcome,
)

logger = logging.getLogger(__name__)

_BATCH = 100  # proposals in one transaction: each guards its own partition, and all mostly guard the same few brokers
_WRITES_MAX = 8  # transactions under way at a time, as in the controller
_AGAIN_S = 0.1

Key = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A partition's state that its leader wants to write. `leading` is the leadership under which the proposal was
    made."""

    partition: Partition
    leading: LeaderState | None  # None where this broker doesn't lead
    before: PartitionState
    after: PartitionState
    guards: tuple[Guard, ...]

    @property
    def key(self) -> Key:
        return self.partition.topic_id, self.partition.index

    @property
    def put(self) -> Put:
        return Put(keys.partition(*self.key), self.after.encode())


class IsrChanges:
    """The changes of ISRs by one broker. The owner runs `run` and `watch_lag` as tasks."""

    def __init__(
        self,
        broker_id: int,
        store: Store,
        image: Callable[[], Image],
        broker_epoch: Callable[[], int],
        lag_max_s: Callable[[], float],
        partitions: Callable[[], Iterable[Partition]],
        writable: Callable[[Partition], bool] = lambda partition: True,
    ) -> None:
        self.shrinks = 0
        self.expands = 0
        self._broker_id = broker_id
        self._store = store
        self._image = image
        self._broker_epoch = broker_epoch
        self._lag_max_s = lag_max_s
        self._partitions = partitions
        self._writable = writable
        self._candidates = Candidates(image, lag_max_s)
        self._wanted: dict[Key, Partition] = {}
        self._writing: set[Key] = set()  # partitions whose transaction is under way, or is tried again within _AGAIN_S
        self._writes = 0  # transactions under way
        self._unknown: set[Key] = set()  # partitions with a proposal that may yet be written
        self._woken = asyncio.Event()

    def outsider_fetched(self, partition: Partition, replica: int) -> None:
        """A follower that isn't in the ISR has fetched. If it is caught up, the high watermark waits for it; if it may
        join, a change of the ISR is proposed."""
        self._candidates.weigh(partition)
        assert partition.leading is not None
        if not partition.leading.undecided and self._candidates.may_join(partition, replica):
            self.wants(partition)

    def registrations_changed(self, image: Image, changed: Changed) -> None:
        """Called when the image changes. If registrations have changed, checks the partitions again: a broker that
        couldn't join an ISR because of its registration may be able to now, and a candidate may not be able to any
        more."""
        if changed.brokers:
            for partition in self._partitions():
                leading = partition.leading
                if len(partition.isr) < len(partition.replicas) and (leading is not None or partition.offline):
                    if leading is not None and leading.candidates:
                        self._candidates.weigh(partition)
                    self.wants(partition)

    def stop(self) -> None:
        """Stops the candidates' timers. The owner cancels the tasks."""
        self._candidates.stop()

    def wants(self, partition: Partition) -> None:
        """Makes `run` look at the partition's state, and write the state if it should change."""
        self._wanted[partition.topic_id, partition.index] = partition
        self._woken.set()

    async def run(self) -> None:
        """Writes the partition states that leaders want, until cancelled. A transaction without an answer delays only
        its own partitions."""
        async with asyncio.TaskGroup() as writers:
            while True:
                await self._woken.wait()
                self._woken.clear()
                while self._writes < _WRITES_MAX and (some := self._next_batch()):
                    self._writes += 1
                    self._writing.update(some)
                    writers.create_task(self._change(some))

    def _next_batch(self) -> dict[Key, Partition]:
        """Up to _BATCH wanted partitions for which no transaction is under way."""
        free = (key for key in self._wanted if key not in self._writing)
        return {key: self._wanted.pop(key) for key in list(islice(free, _BATCH))}

    async def _change(self, some: dict[Key, Partition]) -> None:
        """Writes the states of these partitions in one transaction. A proposal that wasn't written is made anew after
        _AGAIN_S."""
        try:
            proposals = [proposal for partition in some.values() if (proposal := self._propose(partition))]
            if failed := await self._write(proposals) if proposals else []:
                await asyncio.sleep(_AGAIN_S)  # by then the image shows the change that made the transaction fail
                for proposal in failed:
                    if proposal.partition.leading is proposal.leading:
                        self.wants(proposal.partition)
        finally:
            self._writes -= 1
            self._writing.difference_update(some)
            self._woken.set()

    async def watch_lag(self) -> None:
        """Looks for followers that lag, until cancelled."""
        while True:
            await asyncio.sleep(self._lag_max_s() / 2)
            lag_max_s = self._lag_max_s()
            for partition in self._partitions():
                leading = partition.leading
                if leading is not None and leading.lagging(partition.log.log_end_offset, partition.clock(), lag_max_s):
                    self.wants(partition)

    def _propose(self, partition: Partition) -> _Proposal | None:
        """The partition's state as its leader wants it, if it differs from the state in the metadata; else None."""
        image, leading = self._image(), partition.leading
        own = image.brokers.get(self._broker_id)
        before = image.partition(partition.topic_id, partition.index)
        if own is None or before is None or before.leader_epoch != partition.epoch:
            return None
        if own.epoch != self._broker_epoch() or before.epoch_in_isr(self._broker_id) != own.epoch:
            return None
        if not self._writable(partition):
            return self._resignation(partition, before, own)
        if leading is None or before.leader != self._broker_id:
            return None
        key = (partition.topic_id, partition.index)
        if not leading.undecided:
            self._unknown.discard(key)  # the metadata has shown the proposal's outcome
        unknown = key in self._unknown
        if leading.undecided and not unknown:
            return None  # the proposal is written, but the image doesn't show it yet
        end, now, lag_max_s = partition.log.log_end_offset, partition.clock(), self._lag_max_s()
        lagging = leading.lagging(end, now, lag_max_s)
        members = [(member, before.epoch_in_isr(member)) for member in before.isr if member not in lagging]
        joining = [
            image.brokers[replica]
            for replica in leading.followers
            if replica not in before.isr
            and leading.present(replica, end, now, lag_max_s)
            and self._candidates.may_join(partition, replica)
        ]
        members += [(broker.id, broker.epoch) for broker in joining]
        isr = tuple(member for member, _ in members)
        if isr == before.isr and not before.recovering and not unknown:
            return None
        epochs = tuple(epoch for _, epoch in members)
        after = self._with_eligible(partition, before, replace(with_isr(before, isr, epochs), recovering=False))
        return _Proposal(partition, leading, before, after, _guards(before, key, (own, *joining)))

    def _resignation(self, partition: Partition, before: PartitionState, own: Broker) -> _Proposal | None:
        """The partition's state with this broker removed from the ISR and from leadership; None if no other member may
        lead."""
        members = [(member, before.epoch_in_isr(member)) for member in before.isr if member != self._broker_id]
        brokers = self._image().brokers
        if not any(
            (broker := brokers.get(member)) is not None and broker.electable and broker.epoch == epoch
            for member, epoch in members
        ):
            return None
        isr, epochs = tuple(member for member, _ in members), tuple(epoch for _, epoch in members)
        changed = with_isr(before, isr, epochs)
        if before.leader == self._broker_id:
            changed = replace(changed, leader=NO_LEADER, leader_epoch=before.leader_epoch + 1)
        after = self._with_eligible(partition, before, changed)
        if partition.offline:  # this broker has no log, so it isn't eligible to lead either
            kept = [pair for pair in zip(after.elr, after.elr_epochs, strict=True) if pair[0] != self._broker_id]
            after = replace(after, elr=tuple(each for each, _ in kept), elr_epochs=tuple(epoch for _, epoch in kept))
        key = (partition.topic_id, partition.index)
        return _Proposal(partition, partition.leading, before, after, _guards(before, key, (own,)))

    def _with_eligible(self, partition: Partition, before: PartitionState, after: PartitionState) -> PartitionState:
        image = self._image()
        min_isr = partition.in_sync_min if eligibility.is_enabled(image) else eligibility.NO_ELR
        return eligibility.with_eligible(before, after, image.brokers, min_isr)

    async def _write(self, proposals: list[_Proposal]) -> list[_Proposal]:
        """Writes all proposals in one transaction; if some guards fail, the other proposals in another one. Returns the
        proposals that weren't written, or whose outcome is unknown."""
        for proposal in proposals:  # the leader counts all proposed ISRs before the first await
            if proposal.leading is not None:
                proposal.leading.proposed(proposal.after.isr)
                proposal.partition.isr_moved()
        guards = {guard.key: guard for proposal in proposals for guard in proposal.guards}
        if len(guards) > TRANSACTION_OPERATIONS_MAX:  # such as when a hundred brokers join ISRs at once
            middle = len(proposals) // 2
            return await self._write(proposals[:middle]) + await self._write(proposals[middle:])
        try:
            result = await self._store.transact(list(guards.values()), [proposal.put for proposal in proposals])
        except UnknownOutcome:
            self._unknown.update(proposal.key for proposal in proposals)
            return proposals
        except StoreUnavailable as reason:
            logger.warning("the ISRs of %d partitions can't be changed: %s", len(proposals), reason)
            self._refused(proposals)
            return proposals
        if isinstance(result, Rejected):
            lost: list[_Proposal] = []
            rest: list[_Proposal] = []
            for proposal in proposals:
                failed = any(guard.key in result.failed for guard in proposal.guards)
                (lost if failed else rest).append(proposal)
            self._refused(lost)
            return lost + await self._write(rest) if rest else lost
        for proposal in proposals:
            self._written(proposal)
        return []

    def _refused(self, proposals: list[_Proposal]) -> None:
        """Takes back proposals that weren't written, unless an earlier proposal for the same partition may have been
        written."""
        for proposal in proposals:
            if proposal.key not in self._unknown and proposal.leading is not None:
                proposal.leading.refused()
                proposal.partition.isr_moved()

    def _written(self, proposal: _Proposal) -> None:
        self._unknown.discard(proposal.key)  # the guards held, so no earlier proposal was written
        before, after = proposal.before.isr, proposal.after.isr
        if set(before) - set(after):
            self.shrinks += 1
        if set(after) - set(before):
            self.expands += 1
        if before != after:
            logger.info("%r: ISR %s, was %s%s", proposal.partition, list(after), list(before), _who_lags(proposal))


def _who_lags(proposal: _Proposal) -> str:
    """The lag of each follower that a proposal removes from the ISR, as text for the log."""
    leading, after = proposal.leading, proposal.after.isr
    if leading is None or set(proposal.before.isr) <= set(after):
        return ""
    end, now = proposal.partition.log.log_end_offset, proposal.partition.clock()
    left = [member for member in proposal.before.isr if member not in after and member in leading.followers]
    return "".join(f"; {leading.lag_of(member, end, now)}" for member in left)


def _guards(before: PartitionState, key: Key, brokers: Iterable[Broker]) -> tuple[Guard, ...]:
    """The guards that the partition's state and these brokers' registrations haven't changed since they were read."""
    return (
        Guard(keys.partition(*key), before.revision),
        *(Guard(keys.broker(broker.id), broker.revision) for broker in brokers),
    )
