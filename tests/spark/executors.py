"""A driver with executors of its own: `python -m tests.spark.executors BOOTSTRAP TOPIC TARGET` prints what it counted.

TOPIC is read while one of two executors is killed, and then written to TARGET by tasks of which one fails at first.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import SparkSession

from ottla.spark.jobs.frames import append, batch
from ottla.spark.session import spark_session

STARTED_S = 200


def main() -> None:
    bootstrap, topic, target = sys.argv[1:]
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    spark = spark_session(
        "executors",
        spark__master="local-cluster[2,1,600]",
        spark__executor__memory="600m",
        spark__driver__memory="512m",
        spark__python__authenticate__socketTimeout="120s",
    )
    found, killed = read_over_a_kill(spark, bootstrap, topic)
    print("read", found, "killed", killed)
    rows = batch(spark, bootstrap, topic).select("key", "value")
    append(rows.mapInArrow(failing_once, rows.schema), bootstrap, target)
    spark.stop()


def read_over_a_kill(spark: SparkSession, bootstrap: str, topic: str) -> tuple[int, int]:
    """How many different values a read finds, and how many executors were killed while it was under way."""
    victims: list[psutil.Process] = []

    def kill() -> None:
        deadline = time.monotonic() + STARTED_S
        while time.monotonic() < deadline:
            running = spark.sparkContext.statusTracker().getActiveStageIds()
            if running and (there := executors()):
                time.sleep(2)
                victims.append(there[0])
                there[0].kill()
                return
            time.sleep(0.1)

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            time.sleep(3)
            yield each

    killing = threading.Thread(target=kill)
    killing.start()
    found = batch(spark, bootstrap, topic).select("value").mapInArrow(slowly, "value binary").distinct().count()
    killing.join()
    return found, len(victims)


def executors() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if _runs_an_executor(each)]


def _runs_an_executor(process: psutil.Process) -> bool:
    try:
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    except psutil.Error:  # it has ended, or is about to
        return False


def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows as they are; the first attempt at the first task fails at their end."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")


if __name__ == "__main__":
    main()
