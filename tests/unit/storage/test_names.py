"""Names of files and directories."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ottla.storage import names

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True)


@given(topics, st.integers(0, 10**6))
def test_partitions(topic: str, index: int) -> None:
    assert names.parse_partition_name(names.partition_name(topic, index)) == (topic, index)


@given(topics, st.integers(0, 10**6), st.sampled_from([names.DELETE_DIRECTORY, names.STRAY_DIRECTORY]), st.uuids())
def test_renamed_partitions_are_no_partitions(topic: str, index: int, suffix: str, unique: UUID) -> None:
    name = names.renamed_partition_name(topic, index, suffix, unique)
    assert len(name) <= 255
    assert name.endswith(suffix)
    assert names.parse_partition_name(name) is None


@given(st.integers(0, 2**63 - 1), st.sampled_from([*names.SEGMENT_SUFFIXES, names.PRODUCER_SNAPSHOT]))
def test_segments(offset: int, suffix: str) -> None:
    assert names.parse_offset_name(names.offset_name(offset, suffix)) == (offset, suffix)


def test_what_is_neither() -> None:
    for name in ("leader-epoch-checkpoint", "1.log", "0" * 20, "0" * 20 + ".log~", ".lock"):
        assert names.parse_offset_name(name) is None
    for name in ("meta.properties", "topic", "topic-", "-1", ".lock"):
        assert names.parse_partition_name(name) is None
