"""An exactly-once stream whose processes are killed at chosen points.

`python -m tests.spark.kills BOOTSTRAP FOLDER SEED COUNT SOURCE TARGET` starts a query from SOURCE into TARGET again and
again, each time with another number of tasks and one point at which a process dies by SIGKILL: before or after any step
of the query's driver, between every two ends of transactions, or in a task, between any two batches of rows. Mostly the
Python process dies that is at this point. Every JVM_EVERY-th time it is the JVM around that process: the driver, with
which this program ends, too, so that its starter starts it again. Every second life of this program has executors that
are processes of their own; then that JVM may be an executor.

FOLDER/kills has a line for each run that has begun, and FOLDER/hits one for each kill: who died, and at which point.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.spark import decisions
from ottla.spark.exactly_once import Driver, ExactlyOnceStreamWriter
from ottla.spark.jobs.frames import stream
from ottla.spark.ledger import DEFAULT_TOPIC
from ottla.spark.options import write_options
from ottla.spark.session import spark_session
from ottla.spark.source import PushdownSource
from tests.spark.jvms import DRIVER, HOME, keywords, local_cluster
from tests.spark.topics import Topics

JVM_EVERY = 12
POINTS = 26  # a batch of two or three tasks has about as many
ROWS = 40
NAME = "killed"


def kill_here_if_due(folder: str, label: str) -> None:
    """Counts a point, and kills this process or its JVM if the run's plan says so."""
    reached = Path(folder, "reached")
    with reached.open("a") as file:
        file.write(label + "\n")
    plan = json.loads(Path(folder, "plan").read_text())
    if len(reached.read_text().splitlines()) == plan["point"]:
        with Path(folder, "hits").open("a") as file:
            file.write(f"{plan['who']} {label}\n")
        if plan["who"] == "jvm":
            next(each for each in psutil.Process().parents() if "java" in each.name()).kill()
        os.kill(os.getpid(), signal.SIGKILL)


class KilledDriver(Driver):
    """A driver whose process may be killed before and after each step, and between the ends of two transactions."""

    folder = ""

    def _step(self, step: decisions.Step) -> Any:
        label = type(step).__name__
        kill_here_if_due(self.folder, f"before {label}")
        if isinstance(step, decisions.Commit):
            result: Any = []
            for number, each in enumerate(step.transactions):
                if number:
                    kill_here_if_due(self.folder, "between two ends")
                result += super()._step(decisions.Commit((each,)))
        else:
            result = super()._step(step)
        kill_here_if_due(self.folder, f"after {label}")
        return result


class KilledWriter(ExactlyOnceStreamWriter):
    """A writer whose tasks may be killed before their first rows, between two batches of rows, and at their end."""

    folder = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        def rows() -> Iterator[pa.RecordBatch]:
            for each in iterator:
                kill_here_if_due(self.folder, "before rows")
                yield each

        written = super().write(rows())
        kill_here_if_due(self.folder, "after a task")
        return written

    def _driver(self) -> Driver:
        exactly_once = self.exactly_once
        driver = KilledDriver(self.options.properties, exactly_once.query, exactly_once.topic or DEFAULT_TOPIC)
        driver.folder = self.folder
        return driver


class KilledSource(PushdownSource):
    """The format `killed`: `ottla`, with the option `folder`, where the plans are."""

    @classmethod
    def name(cls) -> str:
        return "killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        given = dict(self.options)
        folder = given.pop("folder")
        options = write_options(given, streaming=True)
        assert options.exactly_once is not None
        writer = KilledWriter(options, options.exactly_once)
        writer.folder = folder
        return writer


def main() -> None:
    bootstrap, where, seed, count, source, target = sys.argv[1:]
    folder = Path(where)
    log = folder / "kills"
    done = len(log.read_text().splitlines()) if log.exists() else 0
    os.environ["SPARK_HOME"] = str(HOME)
    within = DRIVER | {"spark.master": "local[2,2]", "spark.driver.memory": "512m"}
    beside = local_cluster(executors=2, cores=1)
    spark = spark_session("kills", **keywords(beside if done // JVM_EVERY % 2 else within))
    spark.dataSource.register(KilledSource)
    with Topics(bootstrap) as topics:
        for number in range(done, int(count) + 1):
            choose = random.Random(f"{seed} {number}")
            last = number == int(count)  # the last run isn't disturbed
            plan = {
                "who": "jvm" if number % JVM_EVERY == JVM_EVERY - 1 else "worker",
                "point": 0 if last else choose.randint(1, POINTS),
            }
            if not last:
                for partition in range(2):
                    have = topics.end(source, partition)
                    topics.fill(source, partition, max((number + 1) * ROWS - have, 0), first=have)
            (folder / "plan").write_text(json.dumps(plan))
            (folder / "reached").unlink(missing_ok=True)
            with log.open("a") as lines:  # before the run, which may end this program
                lines.write(f"{number} {plan['who']} {plan['point']}\n")
            frame = stream(spark, bootstrap, source, 2 * ROWS).select("key", "value").repartition(choose.randint(1, 4))
            writer = frame.writeStream.format("killed").option("folder", where).queryName(NAME)
            writer = writer.option("kafka.bootstrap.servers", bootstrap).option("ottla.exactlyOnce", "true")
            writer = writer.option("topic", target).option("checkpointLocation", str(folder / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                print(f"{number}: {str(error)[:2000]}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
