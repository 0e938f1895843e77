"""A pipeline as streaming queries: one for each sink, and one for the rows that fail.

The queries read the same source, each from its own position, so a sink that is slow or fails doesn't hold the others'
rows back. A row must come out the same in each of them: steps have to depend on nothing but their rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.spark.jobs.frames import check_topics, run_all

from .progress import Progress, ProgressListener
from .sinks import dead_letters, written
from .sources import Kafka, read
from .spec import DEAD_LETTERS, DeadLetterTable, DeadLetterTopic, Every, Pipeline, TopicSink, TopicSource
from .steps import stepped

LAST_PROGRESS_S = 10.0


def queries(spark: SparkSession, pipeline: Pipeline, kafka: Kafka) -> dict[str, DataStreamWriter]:
    """The writers of the pipeline's queries by the sinks' names; nothing is started.

    Raises SpecError if columns don't fit, and Spark's AnalysisException or ParseException if it can't plan a step.
    """
    fatal = not isinstance(pipeline.errors, DeadLetterTopic | DeadLetterTable)
    flow = stepped(read(spark, pipeline.source, kafka, fatal=fatal), pipeline.steps)
    made = {
        name: written(flow.rows, sink, kafka, query_name(pipeline, name), f"sinks[{place}]")
        for place, (name, sink) in enumerate(pipeline.named_sinks)
    }
    failed = flow.all_failed
    if isinstance(pipeline.errors, DeadLetterTopic | DeadLetterTable) and failed is not None:
        name = query_name(pipeline, DEAD_LETTERS)
        made[DEAD_LETTERS] = dead_letters(failed, pipeline.errors, kafka, name, pipeline.name)
    return {
        name: writer.option("checkpointLocation", os.path.join(pipeline.checkpoint, name))
        for name, writer in made.items()
    }


def query_name(pipeline: Pipeline, sink: str) -> str:
    """The name of a sink's query: Spark's progress, transactions and ledgers bear it."""
    return f"{pipeline.name}.{sink}"


def check(pipeline: Pipeline, kafka: Kafka) -> None:
    """Checks what needs no Spark: that the topics of the pipeline exist. Raises OptionError, and ConnectionError if no
    broker answers."""
    topics: list[str] = []
    if isinstance(pipeline.source, TopicSource):
        topics += [pipeline.source.topic] if isinstance(pipeline.source.topic, str) else pipeline.source.topic
    topics += [
        sink.topic for sink in (*pipeline.sinks, pipeline.errors) if isinstance(sink, TopicSink | DeadLetterTopic)
    ]
    if topics:
        check_topics(kafka, *dict.fromkeys(topics))


def run(
    spark: SparkSession, pipelines: Mapping[str, Pipeline], kafka: Mapping[str, Kafka], tell: Callable[[Progress], None]
) -> None:
    """Runs pipelines, by their names, until their triggers are satisfied, or until Ctrl-C; `tell` gets each batch.

    Raises what `queries` raises, and StreamingQueryException if a query fails; the other queries are stopped then.
    """
    planned = {name: queries(spark, pipeline, kafka[name]) for name, pipeline in pipelines.items()}
    everies = {name: each.trigger.every if isinstance(each.trigger, Every) else "" for name, each in pipelines.items()}
    listener = ProgressListener(tell)
    spark.streams.addListener(listener)
    try:
        run_all([(writer, everies[name]) for name, writers in planned.items() for writer in writers.values()])
    finally:
        listener.wait_for_the_last(LAST_PROGRESS_S)
        spark.streams.removeListener(listener)
