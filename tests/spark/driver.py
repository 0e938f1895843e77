"""A driver that tests kill: `python -m tests.spark.driver BOOTSTRAP TOPIC FOLDER [into TARGET] [hold]`.

It writes TOPIC to Parquet files in FOLDER, or with `into TARGET` to another topic. With `hold`, the task of partition 1
stops and waits to be killed:

- In a write to files, this task stops within its first micro-batch. When another task has written a file, this task
  creates the file `within` in FOLDER.
- In a write to a topic, this task stops after its last row but before its end. The topic may not have the rows of this
  task yet; the rows of the other task arrive.
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
    """Writes the keys and values of a stream to a topic. With `hold`, the task of partition 1 doesn't end."""
    if hold:
        found = found.mapInArrow(held_at_the_end, found.schema)
    writer = found.select("key", "value").writeStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    run(writer.option("topic", target).option("checkpointLocation", checkpoint), "")


def held_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields all rows. If rows of partition 1 were among them, the iterator then blocks until the process is killed."""
    held = False
    for batch in batches:
        yield batch
        held = held or 1 in batch["partition"].to_pylist()
    if held:
        time.sleep(HELD_S)
        raise AssertionError("this worker wasn't killed")


def held_within(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that yields all rows of other partitions, but only half of a batch of partition 1.

    After that half, the function blocks until the process is killed. When another task has written a file, the function
    creates the file `within` in `folder`.
    """
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
