"""The observer finds violations in states of the store and of brokers that the tests make by hand."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from ottla.metadata import keys
from ottla.metadata.model.brokers import Broker, BrokerState
from ottla.metadata.model.partitions import Partition
from ottla.metadata.store import Change, Entry, Revision
from tests.simulation.history import History, of
from tests.simulation.loop import SimulationLoop
from tests.simulation.observer import Observer
from tests.simulation.topics import TOPIC, UNCLEAN

TOPIC_ID = UUID(int=7)


class World:
    """The parts of a world that the observer checks: brokers 1 and 2, and replicas of one partition."""

    def __init__(self) -> None:
        self.history = History()
        self.counts = self.history.counts
        self.loop = SimulationLoop(Random(0))
        self.nodes = {1: SimpleNamespace(id=1, host="a", broker=None), 2: SimpleNamespace(id=2, host="b", broker=None)}
        self.store = SimpleNamespace(observers=[])
        self.observer = Observer(self)  # type: ignore[arg-type]
        self._revision = 0

    def note(self, text: str) -> None:
        pass

    def runs(self, broker: int, incarnation: str, end: int, *, high_watermark: int = 0, epoch: int = 0) -> None:
        """Starts a process of the broker, with a replica whose log ends at `end`."""
        log = SimpleNamespace(log_start_offset=end, log_end_offset=end, recovery_point=0, directory="/data/t-0")
        replica = SimpleNamespace(
            topic_id=TOPIC_ID, index=0, log=log, high_watermark=high_watermark, leader_epoch=epoch
        )

        class Replicas(list[Any]):
            def get_by_id(self, *_: object) -> Any:
                return replica

        membership = SimpleNamespace(incarnation=incarnation)
        self.nodes[broker].broker = SimpleNamespace(membership=membership, partitions=Replicas([replica]))

    def ends(self, broker: int) -> None:
        """Ends the broker's process."""
        self.observer._process_left(self.nodes[broker])  # type: ignore[arg-type]
        self.nodes[broker].broker = None

    def registers(self, broker: int, incarnation: str) -> int:
        """Registers a broker. Returns the registration's epoch."""
        value = Broker(broker, 0, {}, state=BrokerState.RUNNING, incarnation=incarnation)
        return self._write(keys.broker(broker), value.encode())

    def has_state(self, **fields: Any) -> None:
        """Writes the partition's state."""
        state = Partition(TOPIC_ID, 0, (1, 2), **fields)
        self._write(keys.partition(TOPIC_ID, 0), state.encode())

    def _write(self, key: str, value: bytes) -> int:
        self._revision += 1
        entry = Entry(key, value, self._revision, self._revision)
        for observe in self.store.observers:
            observe(Revision(self._revision, (Change(key, entry),)))
        return self._revision


def joined(end: int, successors_end: int | None = None) -> list[str]:
    """The violations when broker 2, whose log ends at `end`, joins the ISR of broker 1, which has committed 10 records.
    With `successors_end`, broker 2's process was replaced before it joined the ISR. The log of the new process ends at
    `successors_end`, and the new process isn't registered yet.
    """
    world = World()
    leader, follower = world.registers(1, "a"), world.registers(2, "b")
    world.runs(1, "a", 12, high_watermark=10)
    world.runs(2, "b", end)
    world.has_state(isr=(1,), isr_epochs=(leader,), leader=1)
    if successors_end is not None:
        world.ends(2)
        world.runs(2, "c", successors_end)
    world.has_state(isr=(1, 2), isr_epochs=(leader, follower), leader=1, partition_epoch=1)
    return world.observer.wrong


def test_who_joins_an_isr_has_what_is_committed() -> None:
    assert joined(10) == []
    assert any("joined the ISR with a log that ends at 9" in sentence for sentence in joined(9))


def test_what_counts_is_the_log_of_the_process_that_is_registered() -> None:
    assert joined(10, successors_end=3) == []
    assert any("a log that ends at 9" in sentence for sentence in joined(9, successors_end=12))


def succeeded(topic: str, **fields: Any) -> World:
    """A world in which broker 2 was elected after broker 1, the only in-sync replica, had died."""
    world = World()
    world.observer._topics[TOPIC_ID] = topic
    first, second = world.registers(1, "a"), world.registers(2, "b")
    world.has_state(isr=(1,), isr_epochs=(first,), leader=1, **fields)
    world.has_state(
        isr=(2,), isr_epochs=(second,), leader=2, leader_epoch=1, partition_epoch=1, recovering=topic == UNCLEAN
    )
    return world


def test_only_unclean_elections_choose_from_outside_and_only_where_they_are_allowed() -> None:
    assert any("elected from outside" in sentence for sentence in succeeded(TOPIC).observer.wrong)
    assert succeeded(TOPIC, elr=(2,), elr_epochs=(2,)).observer.wrong == []
    allowed = succeeded(UNCLEAN)
    assert allowed.observer.wrong == []
    assert [(event["broker"], event["held"]) for event in of(allowed.history.events, "unclean", "ok")] == [(2, [])]


def test_nothing_above_the_high_watermark_is_compacted() -> None:
    world = World()
    world.runs(1, "a", 12, high_watermark=10)
    world.observer._compacting(world.nodes[1], SimpleNamespace(directory="/data/t-0", end_offset=10))  # type: ignore[arg-type]
    assert world.observer.wrong == []
    world.observer._compacting(world.nodes[1], SimpleNamespace(directory="/data/t-0", end_offset=11))  # type: ignore[arg-type]
    assert len(world.observer.wrong) == 1
