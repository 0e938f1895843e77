"""The immutable map `PersistentMap` behaves as a dict, and a change of it leaves the earlier maps as they were."""

from __future__ import annotations

from uuid import UUID

import hypothesis.strategies as st
from hypothesis import given

from ottla.metadata.persistent import PersistentMap

keys = st.one_of(
    st.integers(-5, 300),
    st.text(max_size=3),
    st.uuids(version=4),
    st.tuples(st.text(max_size=2), st.none() | st.integers(0, 9)),
)
steps = st.lists(st.tuples(st.dictionaries(keys, st.integers()), st.lists(keys, max_size=5)), max_size=12)


@given(st.dictionaries(keys, st.integers()), steps)
def test_behaves_as_a_dict_and_leaves_its_predecessors_alone(initial: dict[object, int], changes: object) -> None:
    model: dict[object, int] = dict(initial)
    present: PersistentMap[object, int] = PersistentMap(initial)
    history = [(present, dict(model))]
    for puts, removes in changes:  # type: ignore[attr-defined]
        for key in removes:
            model.pop(key, None)
        model.update(puts)
        present = present.changed(puts, removes)
        history.append((present, dict(model)))
    for version, expected in history:
        assert dict(version) == expected
        assert len(version) == len(expected)
        assert version == expected
        for key, value in expected.items():
            assert version[key] == value
            assert version.get(key) == value
            assert key in version


def test_a_successor_shares_what_it_leaves_alone() -> None:
    before: PersistentMap[int, object] = PersistentMap({number: object() for number in range(10_000)})
    after = before.changed({5: object()})
    shared = sum(one is other for one, other in zip(before._buckets, after._buckets, strict=True))
    assert shared == len(before._buckets) - 1
    assert max(len(bucket) for bucket in after._buckets) <= 64


def test_uuids_spread_over_the_buckets() -> None:
    ids: PersistentMap[UUID, int] = PersistentMap(
        {UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128): n for n in range(5000)}
    )
    assert max(len(bucket) for bucket in ids._buckets) < 100
