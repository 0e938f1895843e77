"""Positions in Spark's checkpoint: the form of Spark's Kafka source, with and without the ids of topics."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from ottla.net.names import TopicPartition
from ottla.spark.positions import Position, from_json
from ottla.uuids import uuid_text

OLD, NEW = UUID(int=1), UUID(int=2)
OFFSETS = {TopicPartition("b", 10): 3, TopicPartition("b", 2): 1, TopicPartition("a", 0): 0}


def test_offsets_have_sparks_shape() -> None:
    shaped = Position(OFFSETS, {}).json()
    assert list(shaped) == ["a", "b"]
    assert list(shaped["b"]) == ["2", "10"]
    assert from_json(shaped) == Position(OFFSETS, {})


def test_ids_stand_beside_the_offsets() -> None:
    position = Position(OFFSETS, {"a": OLD, "b": NEW, "elsewhere": NEW})
    assert from_json(json.loads(json.dumps(position.json()))) == Position(OFFSETS, {"a": OLD, "b": NEW})
    assert position.json()["a:AAAAAAAAAAAAAAAAAAAAAQ"] == {}
    assert uuid_text(NEW) == "AAAAAAAAAAAAAAAAAAAAAg"


def test_who_knows_no_ids_reads_the_same_offsets() -> None:
    """Spark's JsonUtils and earlier versions of Ottla read each topic's partitions. An entry with a topic's id has no
    partitions."""
    shaped = Position(OFFSETS, {"a": OLD, "b": NEW}).json()
    theirs = {
        TopicPartition(topic, int(index)): at for topic, indexes in shaped.items() for index, at in indexes.items()
    }
    assert theirs == OFFSETS


def test_equal_positions_are_equal_texts() -> None:
    """If the text of a position changes, Spark takes this for new data."""
    one = Position(OFFSETS, {"b": NEW, "a": OLD})
    other = Position(dict(reversed(OFFSETS.items())), {"a": OLD, "b": NEW})
    assert json.dumps(one.json()) == json.dumps(other.json())


def test_a_topic_with_another_id_was_created_anew() -> None:
    begin = Position(OFFSETS, {"a": OLD, "b": OLD})
    assert begin.recreated(Position(OFFSETS, {"a": OLD, "b": NEW})) == {"b"}
    assert begin.recreated(Position(OFFSETS, {})) == set()
    assert Position(OFFSETS, {}).recreated(begin) == set()


def test_what_is_no_position_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        from_json({"a": {"x": 1}})
