"""The precedence of entities: KIP-55 and KIP-546."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.quota.entities import CLIENT_ID, USER, Client, Limits

ENTITIES = [
    ({USER: "u", CLIENT_ID: "c"}, Client("u", "c")),
    ({USER: "u", CLIENT_ID: None}, Client("u", "c")),
    ({USER: "u"}, Client("u", "")),
    ({USER: None, CLIENT_ID: "c"}, Client("u", "c")),
    ({USER: None, CLIENT_ID: None}, Client("u", "c")),
    ({USER: None}, Client("u", "")),
    ({CLIENT_ID: "c"}, Client("", "c")),
    ({CLIENT_ID: None}, Client("", "c")),
]


def limits_of(*numbers: int) -> Limits:
    """The entities of `ENTITIES` by number; each one's limit is its number."""
    limits = Limits()
    for number in numbers:
        limits.set(tuple(sorted(ENTITIES[number][0].items())), number)
    return limits


@pytest.mark.parametrize("numbers", [pair for size in (1, 2, 8) for pair in itertools.combinations(range(8), size)])
def test_the_first_entity_in_kafkas_order_decides(numbers: tuple[int, ...]) -> None:
    first = min(numbers)
    assert limits_of(*numbers).of("u", "c") == (ENTITIES[first][1], first)


@pytest.mark.parametrize(
    ("numbers", "user", "client_id", "expected"),
    [
        ((0, 1, 2, 6), "other", "other", None),
        ((0, 6, 7), "other", "c", (Client("", "c"), 6)),
        ((6, 7), "u", "other", (Client("", "other"), 7)),
        ((2, 5), "other", "c", (Client("other", ""), 5)),
        ((4,), "x", "y", (Client("x", "y"), 4)),
        ((1, 2), "u", "", (Client("u", ""), 2)),  # a client without a client id
        ((0, 1, 3, 4, 6, 7), "u", "", None),
        ((), "u", "c", None),
    ],
)
def test_whom_a_limit_is_for(
    numbers: tuple[int, ...], user: str, client_id: str, expected: tuple[Client, float] | None
) -> None:
    assert limits_of(*numbers).of(user, client_id) == expected


NAMES = st.sampled_from(["a", "b", None])


@given(
    entities=st.dictionaries(
        st.dictionaries(st.sampled_from([USER, CLIENT_ID]), NAMES, min_size=1).map(lambda parts: tuple(parts.items())),
        st.integers(1, 99),
    ),
    user=st.sampled_from(["a", "b", "z"]),
    client_id=st.sampled_from(["a", "b", "z"]),
)
def test_the_most_specific_entity_that_matches_decides(
    entities: dict[tuple[tuple[str, str | None], ...], int], user: str, client_id: str
) -> None:
    """The twin ranks the entities that match: those with a user's name come first, then those with the user's default;
    among them a client id's name before the default before none."""
    limits = Limits()
    by_parts = {}
    for entity, bound in entities.items():
        limits.set(entity, bound)
        by_parts[frozenset(entity)] = bound
    ranks = {"name": 0, "default": 1, "none": 2}
    ranked = []
    for parts, bound in by_parts.items():
        named = dict(parts)
        rank = []
        for kind, name in ((USER, user), (CLIENT_ID, client_id)):
            if kind not in named:
                rank.append("none")
            elif named[kind] is None:
                rank.append("default")
            elif named[kind] == name:
                rank.append("name")
            else:
                break
        else:
            ranked.append(([ranks[part] for part in rank], bound))
    found = limits.of(user, client_id)
    assert (None if found is None else found[1]) == (min(ranked)[1] if ranked else None)


def test_a_limit_that_is_removed_uncovers_the_next_one() -> None:
    limits = limits_of(2, 7)
    assert limits
    limits.set(((USER, "u"),), None)
    assert limits.of("u", "c") == (Client("", "c"), 7)
    limits.set(((CLIENT_ID, None),), None)
    limits.set(((CLIENT_ID, None),), None)
    assert limits.of("u", "c") is None
    assert not limits
