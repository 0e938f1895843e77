"""Pipelines under spark-submit, as in docs/spark.md, each with its own executor. The machine's time zone isn't UTC."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.protocol.batches import Record
from ottla.spark.java import ensure_java
from tests.peers.tools import ROOT
from tests.spark.jvms import HOME, local_cluster
from tests.spark.topics import BEGIN_MS, Topics

PARTITIONS, COUNT, KEYS = 4, 300, 10
STEP_MS = 60_000  # The records are from 22:13 to 03:12 UTC: they have two dates in UTC, and one date in Tokyo.
ZONE = "Asia/Tokyo"


@contextmanager
def submitted(folder: Path, job: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a pipeline under spark-submit. At the end, all its remaining processes are killed."""
    ensure_java()
    (folder / "events").mkdir(parents=True)
    settings = local_cluster(executors=1, cores=2) | {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }
    command = [str(Path(sys.executable).with_name("spark-submit"))]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += [str(ROOT / "docker" / "spark" / "job.py"), job, *options]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(HOME), "TZ": ZONE}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ran_on(folder: Path) -> set[str]:
    """The ids of the executors on which tasks ended."""
    (events,) = (folder / "events").iterdir()
    told = (json.loads(line) for line in events.read_text().splitlines())
    return {each["Task Info"]["Executor ID"] for each in told if each["Event"] == "SparkListenerTaskEnd"}


@pytest.mark.timeout(900)  # two drivers and two executors start; a busy machine takes a minute for each
def test_sink_and_compact_table(spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    """Before the fix, the files had the records' dates in the machine's time zone."""
    topic = topics.create(PARTITIONS)
    rows = [(partition, index) for partition in range(PARTITIONS) for index in range(COUNT)]
    for partition in range(PARTITIONS):
        records = [
            Record(0, BEGIN_MS + STEP_MS * index, b"%d-%d" % (partition, index % KEYS), b"%d:%d" % (partition, index))
            for index in range(COUNT)
        ]
        topics.write(topic, partition, records)
    whence = ("--bootstrap", bootstrap, "--topic", topic)
    files, table = tmp_path / "files", tmp_path / "table"
    with (
        submitted(files, "sink", *whence, "--path", str(files / "rows"), "--checkpoint", str(files / "state")) as sink,
        submitted(table, "compact_table", *whence, "--path", str(table / "rows")) as compact_table,
    ):
        for process, folder in ((sink, files), (compact_table, table)):
            assert process.wait(400) == 0, (folder / "log").read_text()[-3000:]
            assert ran_on(folder) == {"0"}

    written = spark.read.parquet(str(files / "rows")).collect()
    assert Counter((row.partition, row.offset, row.key, row.value, str(row.date)) for row in written) == Counter(
        (partition, index, f"{partition}-{index % KEYS}", f"{partition}:{index}", date(index))
        for partition, index in rows
    )
    assert len({row.date for row in written}) == 2
    latest = {f"{partition}-{index % KEYS}": f"{partition}:{index}" for partition, index in rows}
    found = spark.read.parquet(str(table / "rows")).collect()
    assert len(found) == len(latest)
    assert {row.key: row.value for row in found} == latest
    assert f"{len(latest)} keys written to" in (table / "log").read_text()


def date(index: int) -> str:
    """A record's date in UTC."""
    return str(datetime.fromtimestamp((BEGIN_MS + STEP_MS * index) / 1000, UTC).date())
