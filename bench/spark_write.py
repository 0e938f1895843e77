"""How many rows a second does Spark write with the sink `ottla`, and how many with Spark's own Kafka connector?

Both write to topics of the same broker: values of 1 KiB without keys from a cached DataFrame, with the sinks' defaults,
acks=all, two cores.
"""

from __future__ import annotations

import time

from pyspark.sql import functions as f

from bench.pair import Plan
from bench.spark import SOURCES, create, session_and_broker
from bench.table import Row, at_least

ROWS = 1_000_000
SIZE = 1024


def run(plan: Plan) -> list[Row]:
    """A row with the rows per second that each sink writes."""
    written = Row(f"Spark batch write, {SIZE} B", "rows/s", at_least(1))
    count = plan.scaled(ROWS)
    with session_and_broker() as (spark, bootstrap):
        frame = spark.range(count, numPartitions=2).select(f.repeat(f.lit("x"), SIZE).alias("value")).cache()
        assert frame.count() == count
        for measured_round in range(plan.rounds + 1):
            for source in SOURCES:
                topic = f"write-{source}-{measured_round}"
                create(bootstrap, topic)
                options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
                begun = time.monotonic()
                frame.write.format(source).mode("append").options(**options).save()
                if measured_round:
                    written.add(source, count / (time.monotonic() - begun))
    return [written]
