"""A partition leader's knowledge of its followers, and the high watermark that follows from it. Pure; times in seconds.

The rules, as in Kafka's `Partition` and `Replica` (KIP-497, KIP-679):

1. *Maximal ISR*: the committed ISR and every member of a proposal whose outcome isn't known. The high watermark is the
   lowest end among its members, so that all members of the ISR have all committed records, whether the metadata shows
   the committed ISR or a proposed one. A replica is proposed at the fetch that shows that it may join.
2. The high watermark never falls while the leader stays the same. (`Partition` decides that it stands still while too
   few replicas are in sync, or eligible replicas may be elected.)
3. A follower's fetch offset is the end of its log: it has appended all records before the offset. After a change of
   leader it has also truncated to the shared records, which the epoch in its request proves.
4. A follower is caught up when its fetch offset has reached the leader's log end, either the present end or the end at
   the time of the follower's previous fetch.
5. A follower joins when it has reached the high watermark and the start of the leader's epoch; it leaves when it wasn't
   caught up for longer than `replica.lag.time.max.ms` and isn't at the end. A follower that no longer fetches doesn't
   join, and a follower that has just joined isn't removed before that time is over: otherwise the rules for joining and
   leaving would add and remove a stalled follower again and again.
6. A fetch under an older registration than the newest one seen doesn't count: the fetch is from before a restart. Nor
   does a fetch without a registration (−1) count: it may come from a second process that waits for the id of a live
   one. A fetch under a newer registration comes from another process, for which the time when the earlier one was
   caught up doesn't count.
7. The high watermark waits for the *candidates*, too: followers outside of the ISR that were caught up within
   `replica.lag.time.max.ms` and may join by their registration (`ottla.broker.candidates` determines them). Otherwise a
   leader that is the only in-sync replica would commit each record at once, and a follower that is one record behind
   would never reach the high watermark. Source: Kafka's `Partition.maybeIncrementLeaderHW`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.broker.replica.selector import Candidate

NO_OFFSET = -1


class Progress:
    """One follower's progress. `end_offset` is −1 until the follower has fetched from this leader."""

    __slots__ = ("broker_epoch", "caught_up_at", "end_offset", "fetched_at", "leader_end_at_fetch", "log_start_offset")

    def __init__(self, caught_up_at: float) -> None:
        self.broker_epoch = -1
        self.end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.caught_up_at = caught_up_at
        self.fetched_at = caught_up_at
        self.leader_end_at_fetch = NO_OFFSET

    def counts(self, broker_epoch: int) -> bool:
        """Whether a fetch under the registration `broker_epoch` counts (rule 6)."""
        return broker_epoch >= max(self.broker_epoch, 0)


class LeaderState:
    """The knowledge of one partition's leader in one leader epoch. `epoch_start` is the leader's log end offset when
    the epoch began."""

    __slots__ = ("_broker_id", "_joining", "candidates", "epoch_start", "followers", "isr", "maximal_isr")

    def __init__(
        self,
        broker_id: int,
        replicas: Iterable[int],
        isr: Sequence[int],
        epoch_start: int,
        now: float,
    ) -> None:
        self._broker_id = broker_id
        self._joining: frozenset[int] = frozenset()  # members of proposals whose outcome isn't known
        self.epoch_start = epoch_start
        self.isr = tuple(isr)
        # A member of the ISR has the full lag time for its first fetch; any other follower must first catch up.
        self.followers = {
            replica: Progress(now if replica in isr else float("-inf")) for replica in replicas if replica != broker_id
        }
        self.maximal_isr = frozenset(isr)
        self.candidates: frozenset[int] = frozenset()  # the candidates of rule 7

    # ---- events

    def committed(self, replicas: Iterable[int], isr: Sequence[int], now: float) -> None:
        """Takes over the replicas and the ISR from the metadata, by which every proposal that was under way is
        decided."""
        wanted = [replica for replica in replicas if replica != self._broker_id]
        for replica in wanted:
            if replica not in self.followers:
                self.followers[replica] = Progress(now if replica in isr else float("-inf"))
            elif replica in isr and replica not in self.isr:
                self.followers[replica].caught_up_at = now
        for replica in self.followers.keys() - set(wanted):
            del self.followers[replica]
        self.isr = tuple(isr)
        self._joining = frozenset()
        self.maximal_isr = frozenset(isr)
        self.candidates = self.candidates.intersection(self.followers) - self.maximal_isr

    def proposed(self, isr: Iterable[int]) -> None:
        """Notes a proposed ISR: until `committed` or `refused` is called, the high watermark waits for its members,
        too, beside those of the committed ISR and of earlier proposals."""
        self._joining |= frozenset(isr)
        self.maximal_isr = frozenset(self.isr) | self._joining

    def refused(self) -> None:
        """Drops all proposals: none of them was or will be written."""
        self._joining = frozenset()
        self.maximal_isr = frozenset(self.isr)

    def fetched(
        self, replica: int, broker_epoch: int, offset: int, log_start_offset: int, leader_end: int, now: float
    ) -> bool:
        """Notes a follower's fetch from `offset` on, which shows that the follower has all records before that offset.
        Returns whether the fetch counts."""
        progress = self.followers.get(replica)
        if progress is None or not progress.counts(broker_epoch):
            return False
        if 0 <= progress.broker_epoch < broker_epoch:
            progress.caught_up_at = float("-inf")
        if offset >= leader_end:
            progress.caught_up_at = now
        elif offset >= progress.leader_end_at_fetch >= 0:
            progress.caught_up_at = max(progress.caught_up_at, progress.fetched_at)
        progress.broker_epoch = broker_epoch
        progress.end_offset = offset
        progress.log_start_offset = log_start_offset
        progress.fetched_at = now
        progress.leader_end_at_fetch = leader_end
        return True

    def was_caught_up(self, replica: int, broker_epoch: int, at: float) -> None:
        """Notes that a follower had all records at its last fetch, which was at the time `at`. (Fetches of caught-up
        followers aren't noted one by one.)"""
        progress = self.followers.get(replica)
        if progress is not None and progress.caught_up_at < at and progress.counts(broker_epoch):
            progress.caught_up_at = at

    # ---- conclusions

    def advance(self, high_watermark: int, leader_end: int) -> int:
        """The high watermark, raised as far as rules 1, 2 and 7 allow."""
        lowest = leader_end
        for replica in self.maximal_isr | self.candidates if self.candidates else self.maximal_isr:
            if replica != self._broker_id:
                progress = self.followers.get(replica)
                lowest = min(lowest, NO_OFFSET if progress is None else progress.end_offset)
        return max(lowest, high_watermark)

    def in_sync_followers(self) -> list[Candidate]:
        """The followers in the ISR, from which consumers could read."""
        return [
            Candidate(replica, progress.log_start_offset, progress.end_offset)
            for replica in self.isr
            if (progress := self.followers.get(replica)) is not None
        ]

    def low_watermark(self, log_start_offset: int) -> int:
        """The lowest log start offset of the replicas in sync; `log_start_offset` is the leader's own."""
        known = [self.followers[replica].log_start_offset for replica in self.isr if replica in self.followers]
        return min([log_start_offset, *known])

    def has_committed(self, replica: int, high_watermark: int) -> bool:
        """Whether the follower has all records that it must have to join the ISR (rule 5)."""
        return self.followers[replica].end_offset >= max(high_watermark, self.epoch_start)

    def caught_up(self, replica: int, leader_end: int, now: float, lag_max_s: float) -> bool:
        """Whether the follower has all records, or had them within the last `lag_max_s`."""
        progress = self.followers[replica]
        return progress.end_offset == leader_end or now - progress.caught_up_at <= lag_max_s

    def present(self, replica: int, leader_end: int, now: float, lag_max_s: float) -> bool:
        """Whether the follower has fetched within the last `lag_max_s`, or has all records."""
        progress = self.followers[replica]
        return progress.end_offset == leader_end or now - progress.fetched_at <= lag_max_s

    def lagging(self, leader_end: int, now: float, lag_max_s: float) -> list[int]:
        """The members of the ISR that haven't been caught up for longer than `lag_max_s`."""
        return [
            replica
            for replica in self.isr
            if replica in self.followers and not self.caught_up(replica, leader_end, now, lag_max_s)
        ]

    def candidates_last_for(self, leader_end: int, now: float, lag_max_s: float) -> float:
        """For how many more seconds all candidates count as caught up if none of them fetches. There must be
        candidates."""
        waited_for = [self.followers[replica] for replica in self.candidates]
        since = min(now if progress.end_offset == leader_end else progress.caught_up_at for progress in waited_for)
        return since + lag_max_s - now

    def lag_of(self, replica: int, leader_end: int, now: float) -> str:
        """A follower's lag as text for the log."""
        progress = self.followers[replica]
        if progress.end_offset == NO_OFFSET:
            return f"broker {replica} hasn't fetched in this epoch, for {now - progress.fetched_at:.1f} s"
        fetched, caught_up = now - progress.fetched_at, now - progress.caught_up_at
        return (
            f"broker {replica} has the records below offset {progress.end_offset} of {leader_end},"
            f" fetched {fetched:.1f} s ago, had all records {caught_up:.1f} s ago"
        )

    @property
    def alone(self) -> bool:
        """Whether a record is committed as soon as the leader has it."""
        return self.maximal_isr == {self._broker_id} and not self.candidates

    @property
    def undecided(self) -> bool:
        """Whether a proposal is under way, or its outcome isn't known."""
        return bool(self._joining)
