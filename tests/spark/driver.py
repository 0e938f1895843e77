"""A driver to be killed: `python -m tests.spark.driver BOOTSTRAP TOPIC FOLDER [hold]` writes a topic to Parquet.

With `hold`, the task of partition 1 stops within its first micro-batch's write, once another task's file is there, and
says so by the file `within` in FOLDER.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from ottla.spark.jobs.frames import run, stream
from ottla.spark.jobs.sink import rows, sink
from ottla.spark.session import spark_session

LIMIT = 400
HELD_S = 300


def main() -> None:
    bootstrap, topic, folder, *hold = sys.argv[1:]
    spark = spark_session("driver", spark__master="local[2]", spark__driver__memory="512m")
    path, checkpoint = f"{folder}/rows", f"{folder}/state"
    if not hold:
        sink(spark, bootstrap, topic, path, checkpoint, limit=LIMIT)
        return
    found = rows(stream(spark, bootstrap, topic, LIMIT, headers=True))
    held = found.mapInArrow(held_within(Path(folder)), found.schema)
    writer = held.writeStream.format("parquet").partitionBy("date")
    run(writer.option("path", path).option("checkpointLocation", checkpoint), "")


def held_within(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What holds partition 1's rows back half-way, until its process is killed."""
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
            raise AssertionError("nobody killed this worker")

    return held


if __name__ == "__main__":
    main()
