"""Moves between the log directories of a broker."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from ottla.balance.directories import Placed, levelled_directories

PATHS = ("/a", "/b", "/c")
REPLICAS = st.dictionaries(
    st.tuples(st.sampled_from("tu"), st.integers(0, 20)),
    st.builds(Placed, st.sampled_from(PATHS), st.integers(0, 100).map(float)),
)


def filled(replicas: dict[tuple[str, int], Placed], moves: dict[tuple[str, int], str]) -> dict[str, float]:
    load = dict.fromkeys(PATHS, 0.0)
    for name, placed in replicas.items():
        load[moves.get(name, placed.directory)] += placed.size_bytes
    return load


@given(REPLICAS, st.sampled_from([None, 5000.0]))
def test_no_directory_gets_out_of_balance(replicas: dict[tuple[str, int], Placed], capacity: float | None) -> None:
    moves = levelled_directories(dict.fromkeys(PATHS, capacity), replicas)
    before, after = filled(replicas, {}), filled(replicas, moves)
    fair = sum(before.values()) / len(PATHS)
    for path in PATHS:
        assert abs(after[path] - fair) <= max(abs(before[path] - fair), 0.1 * fair) + 1e-6
    assert all(replicas[name].directory != path for name, path in moves.items())


def test_full_directories_give_their_largest_replicas() -> None:
    replicas = {("t", index): Placed("/a", 10.0) for index in range(12)} | {("small", 0): Placed("/a", 1.0)}
    moves = levelled_directories(dict.fromkeys(PATHS), replicas)
    assert ("small", 0) not in moves
    assert sorted(filled(replicas, moves).values()) == [40.0, 40.0, 41.0]


def test_a_larger_volume_gets_more() -> None:
    replicas = {("t", index): Placed("/a", 10.0) for index in range(40)}
    moves = levelled_directories({"/a": 1000.0, "/b": 3000.0, "/c": 0.001}, replicas)
    assert filled(replicas, moves)["/b"] >= 270
    assert filled(replicas, moves)["/c"] == 0


def test_what_may_not_be_touched_is_load_all_the_same() -> None:
    """A directory that other topics' replicas fill gets no more replicas."""
    replicas = {("x", index): Placed("/a", 100.0) for index in range(4)} | {("other", 0): Placed("/b", 900.0)}
    movable = [("x", index) for index in range(4)]
    assert levelled_directories({"/a": 1000.0, "/b": 1000.0}, replicas, movable=movable) == {}


def test_what_differs_by_less_than_the_slack_stays() -> None:
    replicas = {("t", index): Placed("/a", 10.0) for index in range(4)}
    assert levelled_directories({"/a": None, "/b": None}, replicas, slack_bytes=20.0) == {}
    assert levelled_directories({"/a": None, "/b": None}, replicas, slack_bytes=5.0)
