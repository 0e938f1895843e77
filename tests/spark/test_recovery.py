"""After kill -9 of a streaming driver and its Python workers, files have each record once, topics at least once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from tests.peers.tools import ROOT
from tests.spark.driver import LIMIT
from tests.spark.topics import Topics

COUNT = 1000


@contextmanager
def running(bootstrap: str, topic: str, folder: Path, *hold: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a driver. At the end, the driver, its JVM and its workers are killed, so none of them can clean up."""
    command = [sys.executable, "-m", "tests.spark.driver", bootstrap, topic, str(folder), *hold]
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def committed(folder: Path) -> int:
    commits = folder / "state" / "commits"
    return len([each for each in commits.iterdir() if each.name.isdigit()]) if commits.is_dir() else 0


def wait_until(process: subprocess.Popen[bytes], folder: Path, what: str, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not reached():
        assert process.poll() is None, (folder / "driver.log").read_text()[-3000:]
        assert time.monotonic() < deadline, f"not within 200 s: {what}"
        time.sleep(0.01)


def kill_workers(process: subprocess.Popen[bytes]) -> None:
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "pyspark.daemon" in " ".join(child.cmdline()):
                child.kill()


@pytest.mark.timeout(900)  # three drivers start; a busy machine takes a minute for each
def test_killed_between_and_within_micro_batches(
    spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(2)
    for partition in range(2):
        topics.fill(topic, partition, COUNT)
    with running(bootstrap, topic, tmp_path) as process:
        wait_until(process, tmp_path, "a micro-batch is committed", lambda: committed(tmp_path) >= 1)
    before = committed(tmp_path)
    assert before < 2 * COUNT // LIMIT, "the driver had finished before it was killed"
    with running(bootstrap, topic, tmp_path, "hold") as process:
        wait_until(process, tmp_path, "one task has written, another is writing", (tmp_path / "within").exists)
        kill_workers(process)
        assert process.wait(200) != 0  # in local mode Spark doesn't retry a task
    assert committed(tmp_path) == before
    with running(bootstrap, topic, tmp_path) as process:
        assert process.wait(200) == 0, (tmp_path / "driver.log").read_text()[-3000:]

    expected = Counter(f"{partition}:{index}" for partition in range(2) for index in range(COUNT))
    found = Counter(row.value for row in spark.read.parquet(str(tmp_path / "rows")).select("value").collect())
    assert found == expected
    # A reader that ignores Spark's list of files may see files of a failed micro-batch, but misses no record.
    files = [each for each in (tmp_path / "rows").rglob("*.parquet") if each.stat().st_size]
    seen = {value for each in files for value in parquet.ParquetFile(each).read(["value"])["value"].to_pylist()}
    assert seen == set(expected)


@pytest.mark.timeout(900)  # two drivers start
def test_killed_in_a_write_to_a_topic(bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    """No record is missing, and only records that the killed micro-batch had written are in the topic twice."""
    topic, target = topics.create(2), topics.create(1)
    for partition in range(2):
        topics.fill(topic, partition, COUNT)
    with running(bootstrap, topic, tmp_path, "into", target, "hold") as process:
        wait_until(process, tmp_path, "one task's rows have arrived", lambda: topics.end(target) > 0)
    written = topics.end(target)
    assert committed(tmp_path) == 0
    with running(bootstrap, topic, tmp_path, "into", target) as process:
        assert process.wait(400) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    found = Counter(record.value for record in topics.records(target))
    assert set(found) == {b"%d:%d" % (partition, index) for partition in range(2) for index in range(COUNT)}
    assert sum(found.values()) - len(found) == written <= LIMIT
    assert max(found.values()) == 2
