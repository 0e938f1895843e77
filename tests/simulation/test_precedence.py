"""Tests of the oracles that compare the order of events with the order of records: each finds its violation in a
history written by hand, and nothing in a sound one."""

from __future__ import annotations

from tests.simulation.history import Event, History
from tests.simulation.oracles import check_all
from tests.simulation.test_atomic import BOTH, P0, P1, end, read, settled, transaction


def wrong(*events: Event, times: bool = False) -> list[str]:
    return check_all(list(events) if times else History.of(*events).events)


def fence(process: str, request: int) -> list[Event]:
    """A producer that begins under the transactional id x0."""
    fields = {"process": process, "name": "x0", "id": request}
    return [{"op": "fence", "phase": phase, **fields} for phase in ("invoke", "ok")]


def unanswered(name: str, process: str = "x0.1") -> list[Event]:
    """A transaction whose writes are never acknowledged."""
    return [event for event in transaction(name, process=process) if (event["op"], event["phase"]) != ("write", "ok")]


def both_ways(one: str, other: str, *, cycle: bool) -> list[Event]:
    """The records of two transactions in both partitions: in the same order, or in opposite orders."""
    first, second = [[0, f"{one}:0"], [1, f"{other}:0"]], [[0, f"{one}:1"], [1, f"{other}:1"]]
    if cycle:
        second = [[0, f"{other}:1"], [1, f"{one}:1"]]
    return [settled(P0, first), settled(P1, second)]


def test_transactions_that_follow_each_other_are_in_one_order_everywhere() -> None:
    following = [*unanswered("a"), *end("a", "ok"), *unanswered("b"), *end("b", "ok", request=2)]
    assert wrong(*following, *both_ways("a", "b", cycle=False)) == []
    (found,) = wrong(*following, *both_ways("a", "b", cycle=True))
    assert found.startswith("write cycle: b:1 is at transacted-1@0, before a:1 at 1")


def test_transactions_that_are_open_at_the_same_time_may_be_in_any_order() -> None:
    other = unanswered("b", process="y0.1")
    together = [*unanswered("a"), *other, *end("a", "ok"), *end("b", "ok", process="y0.1", request=2)]
    for cycle in (True, False):
        assert wrong(*together, *both_ways("a", "b", cycle=cycle)) == []


def test_writes_of_a_producer_that_was_replaced_lie_before_those_of_its_successor() -> None:
    replaced = [
        *fence("x0.1", 8), *unanswered("a"), *fence("x0.2", 9),
        *unanswered("b", process="x0.2"), *end("b", "ok", process="x0.2"),
    ]  # fmt: skip
    of_b = [[0, "b:1"]]
    sound = [settled(P0, [[1, "b:0"]], [[0, "a:0"], [1, "b:0"]]), settled(P1, of_b)]
    assert wrong(*replaced, *sound) == []
    late = [settled(P0, [[0, "b:0"]], [[0, "b:0"], [1, "a:0"]]), settled(P1, of_b)]
    (found,) = wrong(*replaced, *late)
    assert found.startswith("write cycle: b:0 is at transacted-0@0, before a:0 at 1")


def test_an_acknowledged_record_behind_a_later_one_is_found() -> None:
    def write(value: str, *phases: str) -> list[Event]:
        fields = {"process": "x0.1", "transaction": "a", "partition": P0, "values": [value], "offset": -1}
        return [{"op": "write", "phase": phase, **fields} for phase in phases]

    begins = transaction("a")[0]
    ordered = [begins, *write("1", "invoke", "ok"), *write("2", "invoke", "ok"), *end("a", "ok")]
    assert wrong(*ordered, settled(P0, [[0, "1"], [1, "2"]])) == []
    (found,) = wrong(*ordered, settled(P0, [[0, "2"], [1, "1"]]))
    assert found.startswith("reordered writes: 2 is at transacted-0@0, before 1 at 1")
    together = [begins, *write("1", "invoke"), *write("2", "invoke"), *write("1", "ok"), *write("2", "ok")]
    assert wrong(*together, *end("a", "ok"), settled(P0, [[0, "2"], [1, "1"]])) == []


def test_a_record_that_nobody_sent_is_found() -> None:
    found = wrong(*transaction("a"), *end("a", "ok"), settled(P0, [[0, "a:0"], [1, "?"]]), BOTH[1])
    assert found == ["unsent write: ? is at transacted-0@1, and no producer has sent it"]


def test_records_that_are_read_before_their_commit_was_asked_for_are_found() -> None:
    early = read([[0, "a:0"]], 0, 1, 1)
    asked, done = end("a", "ok")
    assert wrong(*transaction("a"), asked, early, done, *BOTH) == []
    (found,) = wrong(*transaction("a"), early, asked, done, *BOTH)
    assert found.startswith("intermediate read: r read a:0 at transacted-0@0")


def test_aborted_and_unsent_records_that_are_read_are_found() -> None:
    aborted = [*transaction("a"), *end("a", "ok", commits=False), settled(P0, [], [[0, "a:0"]])]
    found = wrong(*aborted, read([[0, "a:0"]], 0, 1, 1))
    assert any(sentence.startswith("aborted read: r read a:0") for sentence in found)
    found = wrong(*aborted, read([[0, "?"]], 0, 1, 1))
    assert any(sentence.startswith("unsent read: r read ?") for sentence in found)


def test_a_partition_that_may_have_lost_its_marker_proves_nothing_even_if_nobody_can_read_it_to_its_end() -> None:
    """Seed 43849 at fecf2980: the loss took the marker of an abort, and a later commit of the producer came later."""
    loss: Event = {"op": "permitted", "phase": "ok", "partition": P0, "offset": 0, "isr": [2]}
    aborted = [*transaction("a"), *end("a", "ok", commits=False)]
    shown = read([[0, "a:0"]], 0, 1, 1)
    assert wrong(*aborted, loss, shown, settled(P1, [], [[0, "a:1"]])) == []
    assert wrong(*aborted, shown, settled(P1, [], [[0, "a:1"]]))


def test_a_record_that_was_read_and_vanished_is_found() -> None:
    vanished = read([[0, "a:0"]], 0, 1, 1)
    found = wrong(*transaction("a"), *end("a", "unknown"), vanished, settled(P0, []), settled(P1, []))
    assert any("[(0, 'a:0')] differ from the end" in sentence for sentence in found)


def test_a_last_stable_offset_that_stays_is_found() -> None:
    def at(t: float, stable: int, high_watermark: int = 9) -> Event:
        return {"t": t, **read([], 0, 0, stable, high_watermark)}

    patience: Event = {"t": 0.0, "op": "patience", "phase": "ok", "seconds": 5.0}

    def found(*reads: Event) -> list[str]:
        return wrong(patience, *reads, times=True)

    assert found(at(1, 3), at(5.9, 3)) == []
    assert found(at(1, 3), at(4, 4), at(8, 4)) == []
    assert found(at(1, 3, 3), at(9, 3, 3)) == []  # nothing is open
    assert found(at(1, 3), at(2, 3, 3), at(6.5, 3)) == []
    (sentence,) = found(at(1, 3), at(4, 3), at(7, 3), at(8, 3))
    assert sentence.startswith("stuck: the last stable offset of transacted-0 was 3 from 1 s to 7 s")
    assert wrong(at(1, 3), at(99, 3), times=True) == []  # the run has no patience
