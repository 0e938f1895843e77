"""The memory budget of all connections: the memory that requests need for their work counts, too, and no connections
wait for each other."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.net.memory import BufferedMemory, Work
from tests.unit.examples import examples


def test_work_counts_until_it_ends() -> None:
    memory = BufferedMemory(100)
    assert memory.reserve_work("a", 60, 0.0, lambda: None)
    first = memory.begin_work("a", 60, 0.0)
    assert memory.used_bytes == 60
    granted: list[str] = []
    assert not memory.reserve_work("b", 60, 0.0, lambda: granted.append("b"))
    assert not memory.acquire("c", 60, 0.0)
    assert (memory.waiting, granted) == (1, [])
    first.end(1.0)
    first.end(1.0)
    assert granted == ["b"]
    assert memory.used_bytes == 60, "granted memory counts before the work begins"
    memory.begin_work("b", 60, 1.0).end(2.0)
    assert (memory.used_bytes, memory.waiting) == (0, 0)


def test_work_begins_however_full_the_memory_is_where_no_other_is_under_way() -> None:
    """Five connections each have a large frame, and each needs more memory for its work. If work couldn't begin without
    free memory, they would all wait for ever."""
    memory = BufferedMemory(100)
    for holder in range(5):
        assert memory.acquire(holder, 20, 0.0)
    memory.wait("a sixth", 20, lambda: None)
    begun: list[int] = []
    assert memory.reserve_work(0, 30, 0.0, lambda: None)
    for holder in range(1, 5):
        assert not memory.reserve_work(holder, 30, 0.0, lambda holder=holder: begun.append(holder))  # type: ignore[misc]
    work = memory.begin_work(0, 30, 0.0)
    for holder in range(1, 5):
        assert begun == list(range(1, holder))
        work.end(0.0)
        assert begun == list(range(1, holder + 1)), (
            "work begins one after the other, before memory is granted for frames"
        )
        work = memory.begin_work(holder, 30, 0.0)
    work.end(0.0)
    assert memory.used_bytes == 100


def test_a_large_answer_is_begun_however_full_the_memory_is_where_no_other_is_under_way() -> None:
    """Complete frames take all of the memory, and the answer to each needs more. If answers couldn't begin without free
    memory, all connections would wait for ever."""
    memory = BufferedMemory(100)
    memory.large_answers[3] = 30
    for holder in range(5):
        assert memory.acquire(holder, 20, 0.0)
    memory.wait("a sixth", 20, lambda: None)
    begun: list[int] = []
    assert memory.reserve_answer(0, 3, 0.0, lambda: None)
    for holder in range(1, 5):
        assert not memory.reserve_answer(holder, 3, 0.0, lambda holder=holder: begun.append(holder))  # type: ignore[misc]
    for holder in range(5):
        assert begun == list(range(1, holder + 1))
        memory.hold_answer(holder, 40, 0.0)
        assert begun == list(range(1, holder + 1)), "no other answer is begun before this one is sent"
        memory.answer_sent(holder, 0.0)
    assert memory.used_bytes == 100
    for holder in range(5):
        memory.release(holder, 0.0)
    assert (memory.used_bytes, memory.waiting) == (20, 0)


def test_an_answer_that_is_smaller_than_the_room_for_it_wakes_who_waits_for_the_rest() -> None:
    memory = BufferedMemory(100)
    memory.large_answers[3] = 80
    assert memory.reserve_answer("reads", 3, 0.0, lambda: None)
    granted: list[str] = []
    assert not memory.acquire("sends", 60, 0.0)
    memory.wait("sends", 60, lambda: granted.append("sends"))
    memory.hold_answer("reads", 10, 0.0)
    assert (granted, memory.used_bytes, memory.waiting) == (["sends"], 70, 0)


def test_a_frame_of_which_part_was_served_wakes_who_waits_for_that() -> None:
    memory = BufferedMemory(100)
    memory.hold_frames("sends", 90, 0.0)
    granted: list[str] = []
    memory.wait("sends too", 60, lambda: granted.append("sends too"))
    memory.hold_frames("sends", 40, 0.0)
    assert (granted, memory.used_bytes) == (["sends too"], 100)


def test_an_answer_waits_for_work_that_holds_everything_and_then_goes_on() -> None:
    memory = BufferedMemory(100)
    memory.large_answers[3] = 30
    assert memory.reserve_answer("reads", 3, 0.0, lambda: None)
    memory.hold_answer("reads", 30, 0.0)
    work = memory.begin_work("works", 100, 0.0)
    granted: list[str] = []
    assert not memory.reserve_answer("asks", 3, 0.0, lambda: granted.append("asks"))
    assert not memory.reserve_work("works too", 50, 0.0, lambda: granted.append("works too"))
    memory.answer_sent("reads", 0.0)
    assert granted == ["asks"], "an answer is begun without free memory if no other answer is under way"
    memory.answer_sent("asks", 0.0)
    work.end(0.0)
    assert granted == ["asks", "works too"]


def test_room_for_an_answer_that_the_broker_has_not_made_lapses_and_closes_nobody() -> None:
    """A JoinGroup may wait for a minute for the group's other members."""
    memory = BufferedMemory(100)
    memory.large_answers[11] = 60
    assert memory.reserve_answer("joins", 11, 0.0, lambda: None)
    granted: list[str] = []
    memory.wait("sends", 50, lambda: granted.append("sends"))
    assert memory.overdue(5.0) == []
    assert granted == [], "the answer may come soon"
    assert memory.overdue(1000.0) == []
    assert granted == ["sends"]
    memory.wait("sends too", 60, lambda: granted.append("sends too"))
    memory.hold_answer("joins", 60, 1000.0)
    assert "joins" not in memory.overdue(1001.0)
    assert "joins" in memory.overdue(2000.0), "the peer doesn't take the answer"
    memory.answer_sent("joins", 2000.0)
    memory.release("sends", 2000.0)
    memory.release("sends too", 2000.0)
    assert (memory.used_bytes, memory.waiting) == (0, 0)


def test_a_closed_connection_leaves_nothing_behind() -> None:
    memory = BufferedMemory(100)
    work = memory.begin_work("a", 90, 0.0)
    assert not memory.reserve_work("b", 50, 0.0, lambda: None)
    memory.forget_work("b", 0.0)
    assert memory.waiting == 0
    assert not memory.reserve_work("c", 50, 0.0, lambda: None)
    work.end(0.0)
    assert memory.used_bytes == 50
    memory.forget_work("c", 0.0)
    assert memory.used_bytes == 0


def test_who_waits_for_memory_is_not_taken_for_slow() -> None:
    """The broker is slow with its work. The peer is slow neither with its frames nor with its answers."""
    memory = BufferedMemory(100)
    work = memory.begin_work("work", 90, 0.0)
    assert memory.acquire("sends", 10, 0.0)
    assert not memory.reserve_work("sends", 50, 0.0, lambda: None)
    assert "sends" not in memory.overdue(1000.0)
    work.end(0.0)
    memory.wait("another", 100, lambda: None)
    assert "sends" in memory.overdue(1000.0), "the work has got its memory, but doesn't begin"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 150), st.sampled_from("frwa")), max_size=60))
@example([(0, 1, "f"), (0, 1, "w"), (2, 99, "w"), (0, 1, "f"), (2, 2, "f")])
@settings(max_examples=examples(300), deadline=None)
def test_whatever_happens_all_is_given_back_and_everybody_goes_on(steps: list[tuple[int, int, str]]) -> None:
    memory = BufferedMemory(100)
    waiting: set[Hashable] = set()
    works: list[Work] = []
    wishes: dict[int, str] = {}
    for holder, size, kind in steps:
        if holder in waiting:
            continue
        wishes[holder] = kind
        if kind != "w":
            # first, a connection begins the work that memory was granted for, or gives the memory back
            memory.forget_work(holder, 0.0)
        granted = lambda holder=holder: waiting.discard(holder)  # noqa: E731
        if kind == "f":
            memory.release(holder, 0.0)  # a connection has one frame at a time
            if not memory.acquire(holder, size, 0.0):
                waiting.add(holder)
                memory.wait(holder, size, granted)
        elif kind == "r":
            memory.release(holder, 0.0)
        elif kind == "a":
            memory.large_answers[3] = size
            if not memory.reserve_answer(holder, 3, 0.0, granted):
                waiting.add(holder)
            elif size % 2:
                memory.hold_answer(holder, size // 2, 0.0)
        elif memory.reserve_work(holder, size, 0.0, granted):
            works.append(memory.begin_work(holder, size, 0.0))
        else:
            waiting.add(holder)
    for _ in range(200):
        for work in works:
            work.end(0.0)
        for holder in range(6):
            if holder not in waiting:
                memory.forget_work(holder, 0.0)
                memory.release(holder, 0.0)
            if holder not in waiting or wishes[holder] == "f":  # a peer takes its answers while it sends
                memory.answer_sent(holder, 0.0)
    assert not waiting
    assert memory.used_bytes == 0
