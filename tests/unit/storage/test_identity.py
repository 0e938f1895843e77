"""The files that say to which node a log directory and to which topic a partition's directory belongs, in Kafka's
formats.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.identity import (
    parse_clean_marker,
    parse_properties,
    parse_topic_id,
    render_clean_marker,
    render_properties,
    render_topic_id,
)


def test_meta_properties_are_read_with_comments_and_spaces() -> None:
    text = b"#\n#Thu Jan 01 00:00:00 UTC 2026\ncluster.id=abc\n version = 1 \nnode.id=3\n\nno property\n"
    assert parse_properties(text) == {"cluster.id": "abc", "version": "1", "node.id": "3"}
    assert parse_properties(render_properties({"version": "1", "node.id": "7"})) == {"version": "1", "node.id": "7"}
    with pytest.raises(UnicodeDecodeError):
        parse_properties(b"\xff")


@given(st.uuids())
def test_a_partition_knows_its_topics_id(topic_id: UUID) -> None:
    assert parse_topic_id(render_topic_id(topic_id)) == topic_id


@pytest.mark.parametrize(
    "damaged",
    [b"", b"version: 0\n", b"version: 1\ntopic_id: gvvQSa46Q0eXORI28z83Yw", b"version: 0\ntopic_id: x", b"\xff"],
)
def test_a_damaged_topic_id_is_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_topic_id(damaged)


def test_a_clean_stop_names_the_broker_epoch_that_it_ended() -> None:
    assert render_clean_marker(17) == b'{"version":0,"brokerEpoch":17}'
    assert parse_clean_marker(render_clean_marker(17)) == 17
    assert [parse_clean_marker(text) for text in (b"", b"{}", b"[]", b'{"brokerEpoch":null}', b"\xff")] == [-1] * 5
