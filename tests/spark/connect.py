"""A client of Spark Connect: `python -m tests.spark.connect SERVER BOOTSTRAP TOPIC TARGET FOLDER`, which prints JSON.

A query with foreachBatch writes TOPIC to TARGET. The function of foreachBatch runs in a process of the server, and the
listener runs in this process. A process can't have both sessions of Spark Connect and classic ones, so this client is a
program of its own.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent

from ottla.spark.jobs.frames import append
from ottla.spark.listener import LagListener

LIMIT = 80
TOLD_S = 60


class Told(LagListener):
    """Notes the sum of the partitions' lags in each report, and whether the end of the query was reported."""

    def __init__(self) -> None:
        super().__init__(lambda query, lag: self.seen.append(sum(lag.values())))
        self.seen: list[int] = []
        self.ended = False

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.ended = True


def main() -> None:
    server, bootstrap, topic, target, folder = sys.argv[1:]
    spark = SparkSession.builder.remote(server).getOrCreate()
    listener = Told()
    spark.streams.addListener(listener)
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    found = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", LIMIT).load()

    def written(rows: DataFrame, batch: int) -> None:
        append(rows.select("key", "value"), bootstrap, target)

    writer = found.writeStream.foreachBatch(written).queryName("each").option("checkpointLocation", folder)
    assert writer.trigger(availableNow=True).start().awaitTermination(300)
    deadline = time.monotonic() + TOLD_S
    while not (listener.ended and listener.seen[-1:] == [0]) and time.monotonic() < deadline:
        time.sleep(0.1)
    print(json.dumps([listener.seen, [[each.description, each.metrics] for each in listener.sources.get("each", [])]]))
    # In PySpark 4.3, removeListener blocks for ever if an event arrives during the call: it keeps the lock that the
    # event's thread needs. So the last event is awaited first.
    spark.streams.removeListener(listener)
    spark.stop()


if __name__ == "__main__":
    main()
