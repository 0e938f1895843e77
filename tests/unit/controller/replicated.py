"""A partition with logs: a model of replication that shows whether the controller's decisions lose committed records.

Brokers stop cleanly, or are killed and lose any tail of their logs. Leaders append, shrink and expand the ISR, and
commit as far as the rules of replication allow. An administrator moves replicas, cancels moves, drains brokers, and
changes min.insync.replicas. After each write of the controller, `check` compares the state with the one before.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ottla.controller.proposal import Proposal
from ottla.metadata import keys
from ottla.metadata.eligibility import MIN_ISR, elr_min_isr, with_eligible
from ottla.metadata.identities import ConfigResource
from ottla.metadata.model.brokers import NO_EPOCH, Broker, BrokerState
from ottla.metadata.model.partitions import NO_LEADER, Election, Partition
from ottla.metadata.model.reports import LogEnd, Report
from ottla.metadata.model.settings import Config
from ottla.metadata.reports import contenders
from tests.unit.controller.world import T, World

BROKERS = (1, 2, 3, 4, 5)
Log = tuple[tuple[int, int], ...]  # records as (leader epoch, number)


class Replicated:
    """One partition on five brokers; `step` makes one event happen, chosen by `random`."""

    def __init__(self, random: Random, *, eligible: bool) -> None:
        self.random = random
        self.world = World()
        self.eligible = eligible
        if eligible:
            self.world.keep_eligible_replicas()
        for broker in BROKERS:
            self.world.broker(broker)
        self.logs: dict[int, Log] = dict.fromkeys(BROKERS, ())
        self.marker: dict[int, int] = dict.fromkeys(BROKERS, NO_EPOCH)  # the epoch of a clean stop
        self.committed: Log = ()
        self.seen: dict[str, int] = {}
        self.records = 0
        self.unclean_allowed = False
        self.set_min_isr(random.choice((1, 2, 2, 2, 3)))
        self.world.topic([random.sample(BROKERS, random.choice((1, 2, 3, 3)))])
        self.world.settle()

    # ---- events

    def step(self) -> None:
        """Makes one random event happen."""
        events = (
            (self.decide, 8), (self.write_records, 4), (self.replicate, 10), (self.expand, 8), (self.shrink, 1),
            (self.commit, 6), (self.kill, 3), (self.stop_cleanly, 2), (self.start, 6), (self.run, 8),
            (self.drain_off, 1), (self.lose_lease, 1), (self.reassign, 3), (self.wish_drained, 1),
            (self.change_min_isr, 1), (self.elect, 1), (self.report, 4),
        )  # fmt: skip
        event = self.random.choices([event for event, _ in events], [weight for _, weight in events])[0]
        event()

    def decide(self) -> None:
        """The controller writes some of its proposals, in any order, and may die before the rest."""
        proposals = self.world.proposals()
        self.random.shuffle(proposals)
        for proposal in proposals:
            self.apply(proposal)

    def write_records(self) -> None:
        leader = self.leader
        if leader is not None:
            self.records += 1
            self.logs[leader] = (*self.logs[leader], (self.state.leader_epoch, self.records))

    def replicate(self) -> None:
        """A follower copies some or all of the leader's log, and truncates its own where it differs."""
        follower = self.random.choice(self.state.replicas)
        leader = self.leader
        if leader is None or follower == leader or follower not in self.world.image.brokers:
            return
        own, theirs = self.logs[follower], self.logs[leader]
        same = _common(own, theirs)
        self.logs[follower] = theirs[: self.random.choice((self.random.randint(same, len(theirs)), len(theirs)))]

    def expand(self) -> None:
        """The leader adds a caught-up follower to the ISR."""
        brokers = self.world.image.brokers
        state, leader = self.state, self.leader
        able = [b for b in state.replicas if b not in state.isr and b in brokers and brokers[b].electable]
        able = [b for b in able if leader is not None and self.logs[b] == self.logs[leader]]
        if able:
            joiner = self.random.choice(able)
            self.write_isr((*state.isr, joiner), (*state.isr_epochs, brokers[joiner].epoch))

    def shrink(self) -> None:
        state, leader = self.state, self.leader
        others = [member for member in state.isr if member != leader]
        if leader is not None and others:
            gone = self.random.choice(others)
            rest = tuple(member for member in state.isr if member != gone)
            self.write_isr(rest, tuple(map(state.epoch_in_isr, rest)))

    def commit(self) -> None:
        """The high watermark moves to the least end of the ISR's logs, if the ISR has its minimal size."""
        state, leader = self.state, self.leader
        if leader is None or state.elr or len(state.isr) < min(self.min_isr, len(state.target)):
            return
        reached = min(_common(self.logs[member], self.logs[leader]) for member in state.isr)
        if reached > len(self.committed):
            assert self.logs[leader][: len(self.committed)] == self.committed, "the leader lacks committed records"
            self.committed = self.logs[leader][:reached]
            self.count("commits")

    def kill(self) -> None:
        """A broker is killed, and loses a random number of the last records of its log, perhaps none or all. Sometimes
        it starts again immediately."""
        broker = self.random.choice(BROKERS)
        if broker not in self.world.image.brokers:
            return
        self.world.stop(broker)
        log = self.logs[broker]
        self.logs[broker] = log[: self.random.randint(0, len(log))]
        self.marker[broker] = NO_EPOCH
        self.count("kills")
        if self.random.random() < 0.4:
            self.start_one(broker)

    def stop_cleanly(self) -> None:
        broker = self.random.choice(BROKERS)
        if broker in self.world.image.brokers:
            self.marker[broker] = self.world.stop(broker)
            if self.random.random() < 0.3:
                self.start_one(broker)

    def start(self) -> None:
        dead = [broker for broker in BROKERS if broker not in self.world.image.brokers]
        if dead:
            self.start_one(self.random.choice(dead))

    def report(self) -> None:
        """A broker reports its log of a partition without a leader."""
        self.report_of(self.random.choice(BROKERS))

    def report_of(self, broker: int) -> None:
        registered, state = self.world.image.brokers.get(broker), self.state
        if registered is None or state.leader != NO_LEADER or broker not in contenders(state):
            return
        log = self.logs[broker]
        end = LogEnd(log[-1][0] if log else -1, len(log), -1)
        self.world.put(keys.report(broker, 0), Report(registered.epoch, 1, {(T, 0): end}))

    def run(self) -> None:
        starting = [b.id for b in self.world.image.brokers.values() if b.state is not BrokerState.RUNNING]
        if starting:
            self.set_state(self.random.choice(starting), BrokerState.RUNNING)

    def drain_off(self) -> None:
        broker = self.random.choice(BROKERS)
        if broker in self.world.image.brokers:
            self.set_state(broker, BrokerState.DRAINING)

    def lose_lease(self) -> None:
        """A broker's registration ends, but its process lives, and registers anew."""
        broker = self.random.choice(BROKERS)
        if broker in self.world.image.brokers:
            self.world.restart(broker, clean=True)

    def reassign(self) -> None:
        if self.random.random() < 0.3:
            self.world.reassign(None)
        else:
            self.world.reassign(self.random.sample(BROKERS, self.random.choice((1, 2, 3, 3))))
            self.count("moves")

    def wish_drained(self) -> None:
        self.world.drain(*self.random.sample(BROKERS, self.random.choice((0, 1, 2))))

    def change_min_isr(self) -> None:
        self.set_min_isr(self.random.choice((1, 2, 2, 3)))

    def elect(self) -> None:
        self.world.put(keys.election(T, 0), Election())

    # ---- after the faults

    def heal(self) -> None:
        """All brokers run, catch up and join the ISR, and the controller decides until nothing is left to do."""
        self.world.drain()
        for broker in BROKERS:
            if broker not in self.world.image.brokers:
                self.start_one(broker)
            self.set_state(broker, BrokerState.RUNNING)
        for _ in range(20):
            self.rest()
            for broker in BROKERS:
                self.report_of(broker)
            self.rest()
            leader = self.leader
            assert leader is not None, "all brokers run, but the partition has no leader"
            for follower in self.state.replicas:
                self.logs[follower] = self.logs[leader]
            if set(self.state.isr) == set(self.state.replicas) and not self.state.reassigning:
                break
            self.expand()
        assert set(self.state.isr) == set(self.state.replicas), "the ISR doesn't become whole"
        assert not self.state.reassigning, "the move doesn't end"
        assert not self.world.image.reassignments
        assert not self.state.elr
        self.commit()

    def rest(self) -> None:
        for _ in range(20):
            proposals = self.world.proposals()
            if not proposals:
                return
            for proposal in proposals:
                self.apply(proposal)
        raise AssertionError("the controller doesn't finish")

    # ---- invariants

    def apply(self, proposal: Proposal) -> None:
        before = self.state
        if self.world.write(proposal.guards, proposal.writes) and self.state != before:
            self.check(before, self.state)

    def check(self, old: Partition, new: Partition) -> None:
        """Checks a step of the controller from one state to the next."""
        brokers = self.world.image.brokers
        assert new.partition_epoch == old.partition_epoch + 1, "the partition epoch doesn't grow by one"
        assert new.isr, "the last member left the ISR"
        assert set(new.isr) <= set(new.replicas), "the ISR has members without a replica"
        assert not set(new.isr) & set(new.elr), "a replica is both in the ISR and in the ELR"
        assert new.leader == NO_LEADER or new.leads(new.leader, brokers[new.leader].epoch), (
            "the leader isn't in the ISR"
        )
        moved = new.leader != old.leader or new.epoch_in_isr(new.leader) != old.epoch_in_isr(old.leader)
        dropped = not set(old.replicas) <= set(new.replicas)
        assert new.leader_epoch == old.leader_epoch + int(moved or dropped), "the leader epoch doesn't count elections"
        joined = set(new.isr) - set(old.isr)
        assert joined <= {new.leader}, "the controller added a replica to the ISR"
        if new.leader == NO_LEADER and not any(self.alive(new, member) for member in new.isr):
            assert set(old.isr) & set(new.replicas) <= set(new.isr), (
                "the ISR lost members, although none of its members is alive"
            )
        if old.reassigning and not new.reassigning and set(new.replicas) != set(old.original):
            assert all(self.alive(new, replica) for replica in new.replicas), (
                "a move ended before its target is in sync"
            )
        if moved and new.leader != NO_LEADER:
            self.check_election(old, new)

    def check_election(self, old: Partition, new: Partition) -> None:
        self.count("elections")
        members = zip((*old.isr, *old.elr), (*old.isr_epochs, *old.elr_epochs), strict=True)
        # With the feature of eligible replicas, the election waits for every member that has all records. Without the
        # feature, it waits only for members without an unclean stop.
        whole = [b for b, epoch in members if self.is_whole(b) and (self.eligible or self.may_be_whole(b, epoch))]
        log = self.logs[new.leader]
        if self.is_whole(new.leader):
            self.count("from the ELR" if new.leader in old.elr else "from the ISR")
            return
        if self.eligible:
            assert not whole, f"committed records were lost: {new.leader} leads, but {whole} have the records"
        electable = self.world.image.brokers
        survivors = [b for b in whole if self.alive(old, b) and electable[b].electable]
        assert not survivors, f"committed records were lost: {new.leader} leads, but {survivors} live and have them"
        self.count("losses")  # no live member has the committed records any more
        self.committed = log[: _common(log, self.committed)]

    # ---- helpers

    @property
    def state(self) -> Partition:
        return self.world.partition()

    @property
    def leader(self) -> int | None:
        """The leader, if its present registration is the one that the partition's state names; None otherwise."""
        broker = self.world.image.brokers.get(self.state.leader)
        return broker.id if broker is not None and self.state.leads(broker.id, broker.epoch) else None

    @property
    def min_isr(self) -> int:
        return int(self.world.image.config("topic", "t")[MIN_ISR])

    def alive(self, state: Partition, member: int) -> bool:
        """Whether the broker's present registration is the one with which it joined the ISR."""
        registered = self.world.image.brokers.get(member)
        return registered is not None and state.epoch_in_isr(member) == registered.epoch

    def is_whole(self, broker: int) -> bool:
        return self.logs[broker][: len(self.committed)] == self.committed

    def may_be_whole(self, broker: int, epoch: int) -> bool:
        """Whether the metadata allows that the broker has all records: it hasn't registered again yet, or has done so
        after a clean stop."""
        registered = self.world.image.brokers.get(broker)
        return registered is None or not a_stop_was_unclean(registered, epoch)

    def set_min_isr(self, value: int) -> None:
        self.world.put(keys.config(ConfigResource("topic", "t")), Config({MIN_ISR: str(value)}))

    def set_state(self, broker: int, state: BrokerState) -> None:
        self.world.put(keys.broker(broker), replace(self.world.image.brokers[broker], state=state))

    def start_one(self, broker: int) -> None:
        self.world.broker(broker, self.random.choice(list(BrokerState)[:2]), self.marker[broker])
        self.marker[broker] = NO_EPOCH

    def write_isr(self, isr: tuple[int, ...], epochs: tuple[int, ...]) -> None:
        """Writes an ISR as the leader does, with the ELR that follows from it."""
        before = self.state
        after = replace(before, isr=isr, isr_epochs=epochs, partition_epoch=before.partition_epoch + 1)
        image = self.world.image
        after = with_eligible(before, after, image.brokers, elr_min_isr(image, "t", "1"))
        self.world.put(keys.partition(T, 0), after)

    def count(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1


def a_stop_was_unclean(broker: Broker, epoch: int) -> bool:
    """Whether the broker stopped uncleanly since the registration `epoch`. This function shares no code with the
    controller, so that it finds the controller's mistakes."""
    return broker.epoch != epoch and (broker.previous_epoch != epoch or epoch == NO_EPOCH)


def _common(one: Log, other: Log) -> int:
    """The number of equal records at the beginning of two logs."""
    same = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        same += 1
    return same
