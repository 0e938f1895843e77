"""Tests of the oracles for transactions: each finds its violation in a history written by hand, and nothing in a sound
one. And of the reader of committed records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.protocol.batches import Record, assign, build_batch
from ottla.protocol.markers import Marker, marker_batch
from tests.simulation.committed import committed_records
from tests.simulation.history import Event, History
from tests.simulation.oracles import check_all

P0, P1 = ["transacted", 0], ["transacted", 1]


def transaction(name: str, offset: int = -1, process: str = "x0.1") -> list[Event]:
    """The beginning of a transaction that writes `name`:0 to one partition and `name`:1 to another."""
    begins = {
        "op": "transaction", "phase": "ok", "process": process, "name": "x0", "transaction": name, "protocol": 2,
        "producer": [1, 0], "group": "g", "offset": offset,
    }  # fmt: skip
    written = [
        {"op": "write", "phase": phase, "process": process, "transaction": name, "partition": partition,
         "values": [f"{name}:{partition[1]}"], "offset": 0}
        for partition in (P0, P1) for phase in ("invoke", "ok")
    ]  # fmt: skip
    return [begins, *written]


def end(name: str, phase: str, commits: bool = True, process: str = "x0.1", request: int = 1) -> list[Event]:
    """An EndTxn with its outcome."""
    fields = {"process": process, "name": "x0", "transaction": name, "commits": commits, "id": request}
    return [{"op": "end", "phase": each, **fields} for each in ("invoke", phase)]


def settled(partition: list[Any], records: list[list[Any]], raw: list[list[Any]] | None = None) -> Event:
    """The committed records of a partition at the end; all of its records where they are others."""
    found = records if raw is None else raw
    return {"op": "settled", "phase": "ok", "partition": partition, "records": records, "raw": found}


def read(records: list[list[Any]], position: int, following: int, stable: int, high_watermark: int = 9) -> Event:
    return {
        "op": "read", "phase": "ok", "process": "r", "partition": P0, "position": position, "records": records,
        "next": following, "stable": stable, "high_watermark": high_watermark,
    }  # fmt: skip


def wrong(*events: Event) -> list[str]:
    return check_all(History.of(*events).events)


BOTH = [settled(P0, [[0, "a:0"]]), settled(P1, [[0, "a:1"]])]
NONE = [settled(P0, [], [[0, "a:0"]]), settled(P1, [], [[0, "a:1"]])]
ONE = [settled(P0, [[0, "a:0"]]), settled(P1, [], [[0, "a:1"]])]


def test_whole_transactions_are_sound() -> None:
    assert wrong(*transaction("a"), *end("a", "ok"), *BOTH) == []
    assert wrong(*transaction("a"), *end("a", "ok", commits=False), *NONE) == []
    assert wrong(*transaction("a"), *NONE) == []  # the producer died
    for left in (BOTH, NONE):
        assert wrong(*transaction("a"), *end("a", "unknown"), *left) == []


def test_torn_and_lost_transactions_are_found() -> None:
    assert "torn transaction: a" in wrong(*transaction("a"), *end("a", "ok"), *ONE)[0]
    assert "torn transaction: of a" in wrong(*transaction("a"), *end("a", "unknown"), *ONE)[0]
    assert "lost transaction: a" in wrong(*transaction("a"), *end("a", "ok"), *NONE)[0]


def test_aborted_records_that_can_be_read_are_found() -> None:
    for ending in (end("a", "ok", commits=False), end("a", "fail"), []):
        assert "aborted read: a" in wrong(*transaction("a"), *ending, *BOTH)[0]


def test_losses_that_are_permitted_are_excused() -> None:
    for topic in ("transacted", "__transaction_state"):
        lost = [{"op": "permitted", "phase": "ok", "partition": [topic, index], "offset": 0} for index in (0, 1)]
        assert wrong(*transaction("a"), *end("a", "ok"), *lost, *ONE) == []


def test_duplicates_and_moved_records_are_found() -> None:
    twice = settled(P0, [[0, "a:0"], [1, "a:0"]])
    found = wrong(*transaction("a"), *end("a", "ok"), twice, BOTH[1])
    assert any("duplicate: a:0 is in transacted-0 at [0, 1]" in sentence for sentence in found)
    moved = settled(P0, [[3, "a:0"]])
    assert "lost write: a:0" in wrong(*transaction("a"), *end("a", "ok"), moved, BOTH[1])[0]


def test_reads_of_what_isnt_committed_and_skipped_records_are_found() -> None:
    sound = read([[0, "a:0"]], 0, 1, 1)
    assert wrong(*transaction("a"), *end("a", "ok"), sound, *BOTH) == []
    for records in ([], [[0, "b:0"]]):
        found = wrong(*transaction("a"), *end("a", "ok"), read(records, 0, 1, 1), *BOTH)
        assert "read before the end of a transaction" in found[0]


def test_a_last_stable_offset_that_falls_is_found() -> None:
    begun = [*transaction("a"), *end("a", "ok")]
    assert wrong(*begun, read([], 1, 1, 1), read([], 1, 1, 1), *BOTH) == []
    assert wrong(*begun, read([], 1, 1, 3), read([], 1, 1, 2, 2), *BOTH) == []  # a new leader
    assert "unstable offset" in wrong(*begun, read([], 1, 1, 3), read([], 1, 1, 2), *BOTH)[0]


def test_a_producer_that_commits_after_its_successor_has_begun_is_found() -> None:
    def fence(process: str, request: int) -> list[Event]:
        fields = {"process": process, "name": "x0", "id": request}
        return [{"op": "fence", "phase": phase, **fields} for phase in ("invoke", "ok")]

    both = [*fence("x0.1", 8), *fence("x0.2", 9)]
    assert "unfenced: x0.1" in wrong(*both, *transaction("a"), *end("a", "ok"), *BOTH)[0]
    successor = [*both, *transaction("a", process="x0.2"), *end("a", "ok", process="x0.2")]
    assert wrong(*successor, *BOTH) == []


def test_offsets_that_arent_those_of_the_last_committed_transaction_are_found() -> None:
    def at(offset: int) -> Event:
        return {"op": "settled offset", "phase": "ok", "group": "g", "offset": offset}

    begun = transaction("a", offset=4)
    assert wrong(*begun, *end("a", "ok"), *BOTH, at(4)) == []
    assert wrong(*begun, *end("a", "unknown"), *NONE, at(-1)) == []
    assert "torn offsets" in wrong(*begun, *end("a", "ok"), *BOTH, at(-1))[0]
    assert "torn offsets" in wrong(*begun, *end("a", "ok", commits=False), *NONE, at(4))[0]
    plain = {"op": "plain commit", "group": "g", "transaction": "a", "offset": 5, "id": 7}
    later = [{**plain, "phase": phase} for phase in ("invoke", "ok")]
    assert wrong(*begun, *later, *end("a", "ok"), *BOTH, at(5)) == []
    assert "torn offsets" in wrong(*begun, *later, *end("a", "ok"), *BOTH, at(4))[0]


def test_the_reader_drops_aborted_records_up_to_the_marker() -> None:
    def data(offset: int, producer_id: int, value: bytes) -> bytearray:
        batch = build_batch(
            [Record(0, 0, None, value)], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
        )
        return placed(bytearray(batch), offset)

    def placed(batch: bytearray, offset: int) -> bytearray:
        assign(batch, 0, offset, 0)
        return batch

    log = b"".join(
        (
            data(0, 7, b"aborted"),
            data(1, 8, b"committed"),
            placed(marker_batch(7, 0, Marker(False, 0, 0)), 2),
            placed(marker_batch(8, 0, Marker(True, 0, 0)), 3),
            data(4, 7, b"next"),
        )
    )
    aborted = [SimpleNamespace(producer_id=7, first_offset=0)]
    found, raw, position = committed_records(SimpleNamespace(records=log, aborted_transactions=aborted), 0)
    assert found == [(1, "committed"), (4, "next")]
    assert raw == [(0, "aborted"), (1, "committed"), (4, "next")]
    assert position == 5
