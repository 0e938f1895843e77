"""A log directory of Kafka's is surveyed and claimed."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.log import adopt
from ottla.broker.log.config import LogConfig
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import RealDisk
from ottla.broker.log.home import ForeignDirectory
from tests.unit.broker.log.workbench import ALONE, contents, fill

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)


def test_a_directory_is_surveyed_and_claimed(tmp_path: Path) -> None:
    theirs = LogDirectories([str(tmp_path)], lambda: 0, ALONE)
    theirs.open("theirs", 5, lambda topic: CONFIG)
    for index in (0, 2):
        fill(theirs.open_or_create("orders", index, UUID(int=7), CONFIG), 10)
    before = contents(theirs.logs[UUID(int=7), 2])
    with pytest.raises(BlockingIOError):
        adopt.survey(RealDisk(), str(tmp_path))
    theirs.close()
    (tmp_path / "nobody-0").mkdir()
    found = adopt.survey(RealDisk(), str(tmp_path))
    assert (found.cluster_id, found.node_id, found.stopped_cleanly) == ("theirs", 5, True)
    [topic] = found.topics
    assert (topic.name, topic.topic_id, sorted(topic.partitions)) == ("orders", UUID(int=7), [0, 2])
    assert topic.partitions[2].high_watermark == before[-1][0] + 1
    assert "nobody-0" in found.problems[0]
    with pytest.raises(ForeignDirectory):
        LogDirectories([str(tmp_path)], lambda: 0, ALONE).open("ours", 1, lambda topic: CONFIG)
    for _ in range(2):
        adopt.claim(RealDisk(), str(tmp_path), "ours", 1)
    ours = LogDirectories([str(tmp_path)], lambda: 0, ALONE)
    ours.open("ours", 1, lambda topic: CONFIG)
    assert contents(ours.logs[UUID(int=7), 2]) == before
    assert "cluster.id=theirs" in (tmp_path / "meta.properties.kafka").read_text()
