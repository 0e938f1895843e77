"""How many rows a second does Spark read with the source `ottla`, and how many with Spark's own Kafka connector?

Both read the same topic of the same broker: values of 100 B or 1 KiB in batches of 16 KiB, two cores, without the start
of the session. Estimate: without fetching or decoding, Spark's data source API passes 2.6 million rows of 100 B a
second and 0.84 million of 1 KiB (all columns). The start of a stream takes about a second of CPU with either source.
With a tenth of the rows, the figures would show little but this start, so a fast run reads more than a tenth.
"""

from __future__ import annotations

import tempfile
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.pair import Plan
from bench.spark import SOURCES, create, fill, session_and_broker
from bench.table import Row, at_least

ROWS = {100: 5_000_000, 1024: 1_000_000}
ROWS_FAST = {100: 2_000_000, 1024: 600_000}


def run(plan: Plan) -> list[Row]:
    """Rows for each size of values: reads by count(), by a cast of the values, and by a stream."""
    rows = []
    with session_and_broker() as (spark, bootstrap):
        for size, wanted in (ROWS_FAST if plan.fast else ROWS).items():
            topic = f"read-{size}"
            create(bootstrap, topic)
            count = fill(bootstrap, topic, wanted, size)
            rows += _size(spark, bootstrap, plan, topic, count, size)
    return rows


def _size(spark: SparkSession, bootstrap: str, plan: Plan, topic: str, count: int, size: int) -> list[Row]:
    counting = Row(f"Spark count(), {size} B", "rows/s", at_least(2))
    casting = Row(f"Spark cast to string and sum of lengths, {size} B", "rows/s", at_least(1.4))
    streaming = Row(f"Spark stream, availableNow, {size} B", "rows/s", at_least(1.5))
    length = f.sum(f.length(f.col("value").cast("string")))
    for measured_round in range(plan.rounds + 1):
        for source in SOURCES:
            options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
            frame = spark.read.format(source).options(**options).load()
            begun = time.monotonic()
            assert frame.count() == count
            counted = time.monotonic()
            assert frame.select(length).collect()[0][0] == count * size
            cast = time.monotonic()
            _stream(spark.readStream.format(source).options(**options).load())
            ended = time.monotonic()
            if measured_round:
                counting.add(source, count / (counted - begun))
                casting.add(source, count / (cast - counted))
                streaming.add(source, count / (ended - cast))
    return [counting, casting, streaming]


def _stream(frame: DataFrame) -> None:
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
