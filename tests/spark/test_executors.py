"""Real executors, in a local-cluster of another process: one is killed, and one task is retried."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from tests.peers.tools import ROOT
from tests.spark.topics import Topics

COUNT = 1000


@pytest.mark.timeout(900)  # a driver and three executors start; a busy machine takes a minute for each
def test_an_executor_is_killed_and_a_task_fails(bootstrap: str, topics: Topics) -> None:
    topic, target = topics.create(4), topics.create(2)
    for partition in range(4):
        topics.fill(topic, partition, COUNT)
    command = [sys.executable, "-m", "tests.spark.executors", bootstrap, topic, target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["read", str(4 * COUNT), "killed", "1"]
    found = Counter(record.value for record in topics.records(target))
    assert set(found) == {b"%d:%d" % (partition, index) for partition in range(4) for index in range(COUNT)}
    assert max(found.values()) <= 2
