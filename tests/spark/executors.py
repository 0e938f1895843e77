"""A driver with two executors, which are processes: `python -m tests.spark.executors BOOTSTRAP TOPIC TARGET`.

It reads TOPIC, kills one of the executors during the read, and prints the counts of `read_over_a_kill`. Then it writes
the rows to TARGET, and one of the tasks fails in its first attempt.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from ottla.spark.jobs.frames import append, batch
from ottla.spark.session import spark_session
from tests.spark.jvms import HOME, keywords, local_cluster

STARTED_S = 200


def main() -> None:
    bootstrap, topic, target = sys.argv[1:]
    os.environ["SPARK_HOME"] = str(HOME)
    spark = spark_session("executors", **keywords(local_cluster(executors=2, cores=1)))
    with TemporaryDirectory() as folder:
        found, killed = read_over_a_kill(spark, bootstrap, topic, Path(folder))
    print("read", found, "killed", killed)
    rows = batch(spark, bootstrap, topic).select("key", "value")
    append(rows.mapInArrow(failing_once, rows.schema), bootstrap, target)
    spark.stop()


def read_over_a_kill(spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> tuple[int, int]:
    """Reads the topic, and kills an executor during the read.

    Each task reads its first rows, and then waits until the executor of one task is killed. Returns the number of
    distinct values that the read finds, and the number of executors that were killed.
    """
    victims: list[psutil.Process] = []
    killed = folder / "killed"

    def kill() -> None:
        deadline = time.monotonic() + STARTED_S
        while not victims and time.monotonic() < deadline:
            victims.extend(each for held in folder.glob("held-*") if (each := executor_of(int(held.name[5:]))))
            time.sleep(0.05)
        del victims[1:]
        with suppress(psutil.NoSuchProcess):  # the executor has ended by itself
            for each in victims:
                each.kill()
        killed.touch()

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            (folder / f"held-{os.getpid()}").touch()
            while not killed.exists():
                time.sleep(0.05)
            yield each

    killing = threading.Thread(target=kill)
    killing.start()
    found = batch(spark, bootstrap, topic).select("value").mapInArrow(held, "value binary").distinct().count()
    killing.join()
    return found, len(victims)


def executor_of(worker: int) -> psutil.Process | None:
    """The executor that started a Python worker. None if the executor or the worker has ended."""
    try:
        above = psutil.Process(worker).parents()
        return next((each for each in above if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline())), None)
    except psutil.Error:  # the process has ended, or is about to
        return None


def failing_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields all rows. The first attempt of the first task then fails."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")


if __name__ == "__main__":
    main()
