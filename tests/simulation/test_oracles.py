"""Each oracle finds its violation in histories written by hand, and none in a good history."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.history import Event, History
from tests.simulation.oracles import check_all

P = ["t", 0]
OUT_OF_ORDER = "out_of_order_sequence_number"


def send(values: list[str], offset: int | None = None, phase: str = "ok", **fields: Any) -> list[Event]:
    """The history of a producer's request: its beginning and its end; by default idempotent and with acks=all."""
    known = {"process": "p", "partition": P, "values": values, "acks": -1, "idempotent": True, **fields}
    begun = {"op": "send", "phase": "invoke", **known}
    if phase == "invoke":
        return [begun]
    return [begun, {"op": "send", "phase": phase, **known, **({} if offset is None else {"offset": offset})}]


def poll(position: int, *records: tuple[int, str], **fields: Any) -> list[Event]:
    """The history of a consumer's poll that was answered with these records."""
    known = {"process": "c", "partition": P, "position": position, **fields}
    return [{"op": "poll", "phase": "ok", **known, "records": list(records)}]


def final(*records: tuple[int, str], start: int = 0, **fields: Any) -> list[Event]:
    """The events of a history that state the partition's content at the end of the run."""
    return [{"op": "final", "phase": "ok", "partition": P, "start": start, "records": list(records), **fields}]


def commit(offset: int, phase: str = "ok") -> list[Event]:
    """The history of an offset commit of group `g`, which has only one process."""
    known = {"group": "g", "partition": P, "offset": offset}
    return [{"op": "commit", "phase": "invoke", **known}, {"op": "commit", "phase": phase, **known}]


def leads(broker: int) -> list[Event]:
    """The history's note that a broker becomes the coordinator of all groups."""
    return [{"op": "leads", "phase": "ok", "partition": ["__consumer_offsets", 0], "broker": broker}]


def committed(offset: int, number: int = 1, by: int = -1) -> list[Event]:
    """The history of an OffsetFetch request of group `g`, and of the answer from broker `by`."""
    known = {"group": "g", "partition": P, "id": number}
    return [
        {"op": "committed", "phase": "invoke", **known},
        {"op": "committed", "phase": "ok", **known, "offset": offset, "by": by},
    ]


def permitted(offset: int) -> list[Event]:
    """The history's note that the loss of the records from `offset` on is permitted: all in-sync replicas lost them."""
    return [{"op": "permitted", "phase": "ok", "partition": P, "offset": offset}]


def commits(generation: int, *phases: str, number: int) -> list[Event]:
    """The history of an offset commit under a generation, by a member of group `m`."""
    known = {
        "process": "m", "group": "m", "partition": P, "offset": generation, "generation": generation, "id": number,
    }  # fmt: skip
    return [{"op": "commit", "phase": phase, **known} for phase in phases]


def sync(member: str, token: str, *partitions: int) -> list[Event]:
    """The history's note that a member gets its assignment in generation 3."""
    known = {"process": member, "member": member, "group": "m", "generation": 3, "token": token}
    return [{"op": "sync", "phase": "ok", **known, "partitions": list(partitions)}]


def forgotten(sequence: int, sent_behind: int, error: str = OUT_OF_ORDER) -> list[Event]:
    """The history's note that a broker refuses the next sequence number of an idempotent producer."""
    told = {"value": "a", "error": error, "sequence": sequence, "sent_behind": sent_behind}
    return [{"op": "forgotten", "phase": "fail", "process": "p", "partition": P, **told}]


GOOD = [
    *send(["a", "b"], 0),
    *send(["c"], phase="unknown"),
    *send(["x"], phase="fail"),
    *poll(0, (0, "a")),
    *poll(1, (1, "b"), (2, "c")),
    *commit(1),
    *commit(2, "unknown"),
    *committed(2),
    *commits(1, "invoke", number=1),
    *commits(2, "invoke", "ok", number=2),
    *commits(1, "ok", number=1),  # the request was in flight before the commit under generation 2 was acknowledged
    *sync("m0", "x", 0),
    *sync("m1", "x", 1),
    *final((0, "a"), (1, "b"), (2, "c")),
]

BAD = {
    "lost write": [*send(["a", "b"], 0), *final((0, "a"))],
    "moved write": [*send(["a"], 0), *send(["b"], 1), *final((0, "b"), (1, "a"))],
    "phantom": [*final((0, "nobody's"))],
    "strayed": [*send(["a"], 0, partition=["u", 0]), *final((0, "a"))],
    "superseded generation": [*commits(2, "invoke", "ok", number=1), *commits(1, "invoke", "ok", number=2)],
    "two assignments": [*sync("m0", "x"), *sync("m1", "y")],
    "two owners": [*sync("m0", "x", 0), *sync("m1", "x", 0)],
    "aborted read": [*send(["a"], phase="fail"), *final((0, "a"))],
    "two values": [*send(["a"], 0), *send(["b"], phase="unknown"), *poll(0, (0, "b")), *final((0, "a"))],
    "duplicate": [*send(["a"], phase="unknown"), *final((0, "a"), (1, "a"))],
    "reordered": [*send(["a"], phase="unknown"), *send(["b"], phase="unknown"), *final((0, "b"), (1, "a"))],
    "skipped poll": [*send(["a", "b"], 0), *poll(0, (1, "b")), *final((0, "a"), (1, "b"))],
    "repeated poll": [*send(["a", "b"], 0), *poll(1, (0, "a")), *final((0, "a"), (1, "b"))],
    "out of range": [
        {"op": "poll", "phase": "fail", "process": "c", "partition": P, "position": 7, "error": "offset_out_of_range"}
    ],
    "read before it was committed": [*send(["a"], phase="unknown"), *poll(0, (0, "a")), *final()],
    "hole": [*send(["a"], 0), *send(["b"], phase="unknown"), *final((0, "a"), (2, "b"))],
    "forgotten producer": [*forgotten(4, 3)],
    "lost commit": [*commit(1), *commit(2), *committed(1)],
    "phantom commit": [*commit(1), *committed(5)],
}


def wrong(events: list[Event]) -> list[str]:
    return check_all(History.of(*events).events)


def test_a_good_history() -> None:
    assert wrong(GOOD) == []


def test_a_client_that_begins_a_new_epoch_may_repeat_what_had_no_answer() -> None:
    renumbered = send(["a"], phase="unknown", renumbers=True)
    one_epoch, two_epochs, new_id = (
        final((0, "a"), (1, "a"), producers=[(7, 3), second]) for second in ((7, 3), (7, 4), (8, 0))
    )
    assert wrong([*renumbered, *two_epochs]) == []
    assert wrong([*renumbered, *new_id]) == []
    assert wrong([*renumbered, *one_epoch]) == ["duplicate: a is at t-0@0 and at 1"]
    assert wrong([*send(["a"], phase="unknown"), *two_epochs]) == ["duplicate: a is at t-0@0 and at 1"]
    thrice = final((0, "a"), (1, "a"), (2, "a"), producers=[(7, 3), (7, 4), (7, 4)])
    assert wrong([*renumbered, *thrice]) == ["duplicate: a is at t-0@1 and at 2"]


@pytest.mark.parametrize("kind", BAD)
def test_bad_histories(kind: str) -> None:
    assert any(sentence.startswith(kind) for sentence in wrong(BAD[kind])), wrong(BAD[kind])


def test_what_all_in_sync_replicas_lost_at_once_is_excused_and_nothing_else() -> None:
    events = [*send(["a"], 0), *send(["b"], 1), *poll(0, (0, "a"), (1, "b")), *permitted(1), *final((0, "a"))]
    assert wrong(events) == []
    assert wrong([*events[:-2], *permitted(1), *final()])


def test_what_was_asked_for_after_the_loss_is_excused_by_nothing() -> None:
    before = [*send(["a"], 0), *poll(0, (0, "a")), *permitted(0)]
    assert wrong([*before, *send(["b"], 0), *poll(0, (0, "b")), *final((0, "b"))]) == []
    assert wrong([*before, *send(["b"], 0), *final()])
    assert wrong([*before, *send(["b"], phase="unknown"), *poll(0, (0, "b")), *final()])
    assert wrong([*before, *send(["b"], 0), *send(["c"], 0), *final((0, "c"))])


def elected(epoch: int, broker: int = 1) -> list[Event]:
    """The history's note that the partition gets a leader."""
    return [{"op": "leads", "phase": "ok", "partition": P, "broker": broker, "epoch": epoch}]


def test_a_deposed_leader_may_show_what_was_lost_since_and_nobody_else() -> None:
    begun = [*elected(0), *send(["a"], 0, id=1), *send(["b"], phase="unknown", id=2)]
    asked_late = {"op": "poll", "phase": "invoke", "process": "c", "partition": P, "position": 0, "id": 9}
    read, later = poll(0, (0, "a"), epoch=0, id=9), poll(0, (0, "a"), epoch=1, id=9)
    assert wrong([*begun, *elected(1, 2), *permitted(0), asked_late, *read, *final((0, "b"))]) == []
    assert wrong([*begun, *elected(1, 2), *permitted(0), asked_late, *later, *final((0, "b"))]), (
        "the answer is of the new leader's epoch"
    )
    assert wrong([*begun, *permitted(0), asked_late, *read, *elected(1, 2), *final((0, "b"))]), (
        "the loss came before the leader was deposed"
    )
    assert wrong([*begun, *permitted(0), *elected(1, 2), asked_late, *later, *final((0, "b"))]), (
        "the reader asked the new leader, after the loss"
    )
    assert wrong([*begun, *elected(1, 2), *permitted(1), asked_late, *read, *final((0, "b"))]), (
        "the offset is below the lost offsets"
    )
    assert wrong([*begun, *elected(1, 2), asked_late, *read, *final((0, "b"))]), "nothing was lost"
    sent_late = [*elected(0), *elected(1, 2), *send(["a"], phase="unknown", id=7), *permitted(0), asked_late]
    assert wrong([*sent_late, *read, *final()]), "the leader got a only after its epoch's end"


def test_a_first_batch_that_others_overtook_may_come_too_late() -> None:
    assert wrong(forgotten(0, 3)) == []
    assert wrong(forgotten(0, 0)), "no later batch had been sent"
    assert wrong(forgotten(4, 3)), "a broker that knows the producer's earlier batches may not refuse this one"
    assert wrong(forgotten(0, 3, "invalid_producer_epoch"))


def test_a_repeat_of_the_sixth_batch_from_the_end_is_out_of_order() -> None:
    assert wrong(forgotten(4, 5)) == []
    assert wrong(forgotten(4, 4)), "the batch is among the last five"


def test_of_compacted_batches_only_the_last_may_be_known() -> None:
    written = send(["a"], phase="unknown", id=7, keys=["k"], tombstones=[], tombstones_go=False)
    assert wrong([*written, *forgotten(4, 1)]) == []
    assert wrong([*written, *forgotten(4, 0)]), "the broker knows the last batch"


def unclean(broker: int, *held: tuple[int, str]) -> list[Event]:
    """The history's note of the election of a replica that may lack records; its log has the records `held`."""
    return [{"op": "unclean", "phase": "ok", "partition": P, "broker": broker, "held": list(held)}]


def test_an_unclean_election_costs_what_the_elected_one_doesnt_have_and_no_more() -> None:
    begun = [*elected(0), *send(["a"], 0, id=1, by=1), *send(["b"], 1, id=2, by=1)]
    assert wrong([*begun, *elected(1, 2), *unclean(2, (0, "a")), *final((0, "a"))]) == []
    assert wrong([*begun, *elected(1, 2), *unclean(2, (0, "a")), *final()]), "the elected replica had a"
    assert wrong([*begun, *elected(1, 2), *unclean(2, (0, "x")), *final()]) == [], (
        "the elected replica had another record at a's offset"
    )
    assert wrong([*begun, *elected(1, 2), *final((0, "a"))]), "the election wasn't unclean"
    later = send(["c"], 1, id=3, by=2)
    assert wrong([*begun, *elected(1, 2), *unclean(2, (0, "a")), *later, *final((0, "a"))]), (
        "c was acknowledged after the election"
    )


def test_what_a_new_leader_acknowledges_is_no_older_than_its_leadership() -> None:
    asked, answered = send(["a"], 0, id=1, by=2)
    for loss in (permitted(0), unclean(2)):
        assert wrong([*elected(0), asked, *loss, *elected(1, 2), answered, *final()]), "broker 2 got a after the loss"
        assert wrong([*elected(0, 2), asked, *loss, *elected(1, 2), answered, *final()]) == [], (
            "broker 2 may have acknowledged a before the loss"
        )
    assert wrong([*elected(0), asked, *elected(1, 2), *permitted(0), answered, *final()]) == []
    assert wrong([*elected(0), asked, *elected(1, 2), *unclean(2), answered, *final()]), (
        "broker 2 acknowledged a after the unclean election that made it the leader"
    )
    assert wrong([*elected(0), asked, *elected(1, 2), *elected(2), *unclean(1), answered, *final()]) == []


def test_a_deposed_leader_alone_may_acknowledge_what_an_unclean_election_has_lost() -> None:
    begun = [*elected(0), *send(["a"], 0, id=1, by=1), *elected(1, 2), *unclean(2, (0, "a"))]
    late = send(["b"], 1, id=2, by=1)
    assert wrong([*begun, *late, *final((0, "a"))]) == []
    shown = poll(0, (0, "a"), (1, "b"), epoch=0, id=3)
    assert wrong([*begun, *late, *shown, *final((0, "a"))]) == []
    assert wrong([*begun, *elected(2, 1), *late, *final((0, "a"))]), "broker 1 leads again"
    assert wrong([*elected(0), *elected(1, 2), *permitted(1), *late, *final()]), (
        "a loss of power excuses no later acknowledgement"
    )


def keyed(value: str, offset: int | None = None, phase: str = "ok", *, gone: bool | None = None) -> list[Event]:
    """The history of the send of a record to a compacted topic. The record's key is the value's first letter. With
    `gone` the record is a tombstone, and `gone` says whether compaction may remove it.
    """
    return send(
        [value], offset, phase, keys=[value[0]], tombstones=[] if gone is None else [value], tombstones_go=bool(gone)
    )


def test_of_each_key_the_last_record_stays() -> None:
    begun = [*keyed("a1", 0), *keyed("b1", 1), *keyed("a2", 2)]
    assert wrong([*begun, *final((1, "b1"), (2, "a2"))]) == []
    assert wrong([*begun, *final((0, "a1"), (1, "b1"), (2, "a2"))]) == []
    assert wrong([*begun, *poll(0, (0, "a1"), (2, "a2")), *final((0, "a1"), (1, "b1"))])[0].startswith("lost update")
    assert wrong([*begun, *final((2, "a2"))]), "the key b has no record any more"
    assert wrong([*begun, *keyed("a3", phase="unknown"), *final((1, "b1"), (3, "a3"))]) == []
    assert wrong([*begun, *permitted(2), *final((0, "a1"), (1, "b1"))]) == []


def test_what_was_read_of_a_key_doesnt_become_older() -> None:
    begun = [*keyed("a1", 0), *keyed("a2", phase="unknown"), *poll(0, (1, "a2"))]
    assert wrong([*begun, *final((1, "a2"))]) == []
    assert wrong([*begun, *final((0, "a1"))])
    sent_early = keyed("a1")
    assert wrong([*sent_early[:1], *begun[2:], *keyed("a1", 2)[1:], *final((2, "a1"))]) == [], (
        "a1's offset is the higher one"
    )


def test_a_tombstone_is_the_last_record_of_its_key() -> None:
    assert wrong([*keyed("a1", 0), *keyed("a2", 1, gone=False), *final((1, "a2"))]) == []
    assert wrong([*keyed("a1", 0), *keyed("a2", 1, gone=False), *final((0, "a1"))])
    assert wrong([*keyed("a1", 0), *keyed("a2", 1, gone=False), *final()]), "compaction may not remove this tombstone"
    assert wrong([*keyed("a1", 0), *keyed("a2", 1, gone=True), *final()]) == []
    assert wrong([*keyed("a1", 0), *keyed("a2", 1, gone=True), *keyed("a3", 2), *final()])


def test_who_reads_a_compacted_topic_misses_only_what_is_outdone() -> None:
    begun = [*keyed("a1", 0), *keyed("b1", 1)]
    ended = [*keyed("a2", 2), *final((1, "b1"), (2, "a2"))]
    assert wrong([*begun, *keyed("a2", 2), *poll(0, (1, "b1"), (2, "a2")), *final((1, "b1"), (2, "a2"))]) == []
    assert wrong([*begun, *keyed("a2", 2), *poll(0, (2, "a2")), *final((1, "b1"), (2, "a2"))])
    assert wrong([*begun, *poll(0, (1, "b1")), *ended])[0].startswith("skipped record"), "a2 came later"
    assert wrong([*begun, *poll(1, (0, "a1"), (1, "b1")), *ended])[0].startswith("unsorted")


def test_commits_after_a_loss_of_commits_count() -> None:
    lost: list[Event] = [{"op": "permitted", "phase": "ok", "partition": ["__consumer_offsets", 0], "offset": 0}]
    assert wrong([*commit(5), *lost, *committed(-1)]) == []
    assert wrong([*commit(5), *lost, *commit(6), *committed(-1, 2)])


def test_writes_that_only_the_leader_acknowledged_may_be_lost() -> None:
    assert wrong([*send(["a"], 0, acks=1, idempotent=False), *final()]) == []


def test_only_the_present_coordinator_must_know_the_last_commit() -> None:
    begun = [*leads(1), *commit(1), *commit(2), *leads(2)]
    assert wrong([*begun, *committed(1, by=1)]) == []
    assert wrong([*begun, *committed(1, by=2)])
    assert wrong([*begun, *committed(5, by=1)]), "nobody committed that"
    lost: list[Event] = [{"op": "permitted", "phase": "ok", "partition": ["__consumer_offsets", 0], "offset": 0}]
    assert wrong([*begun, *lost, *committed(2, by=1), *committed(-1, by=2)]) == []


def test_a_commit_that_was_late_on_its_way_may_overtake() -> None:
    assert wrong([*commit(1, "unknown"), *commit(2), *committed(1)]) == []


def test_a_history_tells_runs_apart() -> None:
    assert History.of(*GOOD).digest == History.of(*GOOD).digest
    assert History.of(*GOOD).digest != History.of(*GOOD[:-1]).digest
