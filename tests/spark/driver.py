"""A driver for tests to kill: `python -m tests.spark.driver BOOTSTRAP TOPIC FOLDER [hold]` writes a topic to Parquet.

With `hold`, the task of partition 1 stops within the write of its first micro-batch. As soon as another task has
written a file, it creates the file `within` in FOLDER. With `into TARGET`, the topic is written to another topic. There
`hold` stops the task of partition 1 before its end, when its rows are on the way and the other task's rows have
arrived.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from ottla.spark.jobs.frames import run, stream
from ottla.spark.jobs.sink import rows, sink
from ottla.spark.session import spark_session
from tests.spark.jvms import DRIVER, keywords

LIMIT = 400
HELD_S = 300


def main() -> None:
    bootstrap, topic, folder, *rest = sys.argv[1:]
    hold = "hold" in rest
    spark = spark_session("driver", spark__master="local[2]", spark__driver__memory="512m", **keywords(DRIVER))
    path, checkpoint = f"{folder}/rows", f"{folder}/state"
    if "into" in rest:
        into(stream(spark, bootstrap, topic, LIMIT), bootstrap, rest[rest.index("into") + 1], checkpoint, hold)
        return
    if not hold:
        sink(spark, bootstrap, topic, path, checkpoint, limit=LIMIT)
        return
    found = rows(stream(spark, bootstrap, topic, LIMIT, headers=True))
    held = found.mapInArrow(held_within(Path(folder)), found.schema)
    writer = held.writeStream.format("parquet").partitionBy("date")
    run(writer.option("path", path).option("checkpointLocation", checkpoint), "")


def into(found: DataFrame, bootstrap: str, target: str, checkpoint: str, hold: bool) -> None:
    """Writes the keys and values of a stream to a topic. With `hold`, partition 1's task never ends."""
    if hold:
        found = found.mapInArrow(held_at_the_end, found.schema)
    writer = found.select("key", "value").writeStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    run(writer.option("topic", target).option("checkpointLocation", checkpoint), "")


def held_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Passes the rows on unchanged. If rows of partition 1 were among them, the iterator doesn't end until the process
    is killed.
    """
    held = False
    for batch in batches:
        yield batch
        held = held or 1 in batch["partition"].to_pylist()
    if held:
        time.sleep(HELD_S)
        raise AssertionError("this worker wasn't killed")


def held_within(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that passes half of partition 1's rows on, and holds the rest back until the process is killed."""
    before = set((folder / "rows").rglob("*.parquet"))

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 1 not in batch["partition"].to_pylist():
                yield batch
                continue
            yield batch.slice(0, batch.num_rows // 2)
            deadline = time.monotonic() + HELD_S
            while time.monotonic() < deadline:
                written = set((folder / "rows").rglob("*.parquet")) - before
                if any(each.stat().st_size for each in written):
                    (folder / "within").touch()
                time.sleep(0.05)
            raise AssertionError("this worker wasn't killed")

    return held


if __name__ == "__main__":
    main()
