"""Texts for people: numbers with their nouns, and texts that are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.wording import abridged, counted

SCHEDULER = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.\npreemption: no victims found"


def test_a_number_and_its_noun_agree() -> None:
    assert [counted(number, "replica") for number in (0, 1, 2)] == ["0 replicas", "1 replica", "2 replicas"]


def test_a_text_is_one_line_and_is_cut_between_words() -> None:
    assert abridged(SCHEDULER, 200) == SCHEDULER.replace("\n", " ")
    assert abridged(SCHEDULER, 80) == "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. …"
    assert abridged("x" * 30, 10) == "x" * 8 + " …", "a text without spaces can only be cut somewhere"


@given(st.text(), st.integers(min_value=3, max_value=50))
def test_an_abridged_text_is_short_enough_and_begins_as_the_text(text: str, most: int) -> None:
    cut = abridged(text, most)
    assert len(cut) <= most
    assert " ".join(text.split()).startswith(cut.removesuffix(" …"))
