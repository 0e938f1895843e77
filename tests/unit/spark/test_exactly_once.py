"""What the writers of exactly-once streams do without brokers and without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.spark.exactly_once import query_id_in


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_the_query_id_of_a_local_checkpoint(tmp_path: Path, prefix: str) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    where = prefix + str(folder).replace(" ", "%20" if prefix else " ")
    assert query_id_in(where) is None
    (folder / "metadata").write_text('{"id":"7c2f"}')
    assert query_id_in(where) == "7c2f"


@pytest.mark.parametrize("checkpoint", ["", "s3a://bucket/checkpoint", "hdfs:///checkpoint"])
def test_other_file_systems_are_left_to_spark(checkpoint: str) -> None:
    assert query_id_in(checkpoint) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", "\x00"])
def test_a_checkpoint_that_is_being_written_has_no_id_yet(tmp_path: Path, content: str) -> None:
    (tmp_path / "metadata").write_text(content)
    assert query_id_in(str(tmp_path)) is None
