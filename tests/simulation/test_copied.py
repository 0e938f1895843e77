"""Tests of the oracle for programs that consume, process and produce: it finds each violation in a history written by
hand, and nothing in a sound one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.copied import judged_inputs, torn_copies
from tests.simulation.history import Event, History
from tests.simulation.oracles import check_all
from tests.simulation.test_atomic import P0, end, settled

INPUT, OUTPUT = P0, ["copies", 0]


def copy(name: str, first: int, following: int, outcome: str = "ok", *, commits: bool = True) -> list[Event]:
    """A transaction of the group g that copies the input from `first` to `following`."""
    values = [f"{name}>{offset}" for offset in range(first, following)]
    write = {"op": "write", "process": "c.1", "transaction": name, "partition": OUTPUT, "values": values, "offset": -1}
    return [
        {"op": "transaction", "phase": "ok", "process": "c.1", "name": "c", "transaction": name, "protocol": 1,
         "group": "", "offset": -1},
        {"op": "consumed", "phase": "ok", "group": "g", "transaction": name, "partition": INPUT, "first": first,
         "next": following},
        {**write, "phase": "invoke"}, {**write, "phase": "ok"},
        *end(name, outcome, commits, process="c.1", request=hash(name)),
    ]  # fmt: skip


def history(*events: Event, output: list[str], at: int) -> list[Event]:
    """A history in which three records are the input, `output` is the output, and the group is at the offset `at`."""
    given = [[offset, f"i:{offset}"] for offset in range(3)]
    writes = {"op": "write", "process": "w.1", "transaction": "i", "partition": INPUT, "offset": 0}
    values = [value for _, value in given]
    inputs = [
        {"op": "transaction", "phase": "ok", "process": "w.1", "name": "w", "transaction": "i", "protocol": 1,
         "group": "", "offset": -1},
        {**writes, "values": values, "phase": "invoke"}, {**writes, "values": values, "phase": "ok"},
        *end("i", "ok", process="w.1", request=1),
    ]  # fmt: skip
    ends = [
        settled(INPUT, given),
        settled(OUTPUT, [[offset, value] for offset, value in enumerate(output)]),
        {"op": "settled input", "phase": "ok", "group": "g", "partition": INPUT, "offset": at},
    ]
    return History.of(*inputs, *events, *ends).events


def wrong(*events: Event, output: list[str], at: int) -> list[str]:
    """The violations in such a history, whose only input is judged."""
    made = history(*events, output=output, at=at)
    assert judged_inputs(made) == 1
    return check_all(made)


def test_copies_that_are_made_once_are_sound() -> None:
    everything = ["a>0", "a>1", "b>2"]
    assert wrong(*copy("a", 0, 2), *copy("b", 2, 3), output=everything, at=3) == []
    assert wrong(*copy("a", 0, 2), *copy("b", 2, 3, "unknown"), output=everything, at=3) == []
    assert wrong(*copy("a", 0, 2), output=everything[:2], at=2) == []
    aborted = copy("z", 0, 2, commits=False)
    assert wrong(*aborted, *copy("a", 0, 2), output=everything[:2], at=2) == []


def test_a_committed_offset_without_its_records_is_found() -> None:
    (found,) = wrong(*copy("a", 0, 2), *copy("b", 2, 3, "unknown"), output=["a>0", "a>1"], at=3)
    assert found.startswith("offsets without records: g is at 3 at the end")
    assert "has processed i:2 at transacted-0@2" in found


def test_records_without_their_committed_offset_are_found() -> None:
    (found,) = wrong(*copy("a", 0, 2), *copy("b", 2, 3), output=["a>0", "a>1", "b>2"], at=2)
    assert found.startswith("records without offsets: b has processed i:2 at transacted-0@2, and g is at 2")


def test_a_record_that_two_transactions_have_processed_is_found() -> None:
    (found,) = wrong(*copy("a", 0, 2), *copy("b", 1, 3), output=["a>0", "a>1", "b>1", "b>2"], at=3)
    assert found == "processed twice: i:1 at transacted-0@1 was processed by a and by b"


@pytest.mark.parametrize("lost", [INPUT, OUTPUT, ["__consumer_offsets", 0], ["__transaction_state", 0]])
def test_an_input_that_proves_nothing_is_not_counted_as_judged(lost: list[Any]) -> None:
    """Records of the input, of its copies, of the group's offset or of the transaction may have been lost."""
    permitted = {"op": "permitted", "phase": "ok", "partition": lost, "offset": 0}
    made = history(*copy("a", 0, 2), permitted, output=[], at=2)
    assert judged_inputs(made) == 0
    assert list(torn_copies(made)) == []


def test_an_input_that_nobody_has_consumed_is_not_counted_as_judged() -> None:
    assert judged_inputs(history(output=[], at=0)) == 0
