"""A pipeline as streaming queries: one for each sink, and one for the rows that fail.

The queries read the same source, each from its own position, so a sink that is slow doesn't hold the others' rows
back. If one query fails, all are stopped. A row must come out the same in each of them: steps have to depend on nothing
but their rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ottla.spark.exactly_once import query_id_in
from ottla.spark.jobs.frames import check_topics, run_all
from ottla.spark.jobs.lines import last_line

from . import notes
from .confirming import CONFIRM, Unconfirmed, in_words_of_pipelines
from .ownership import targets_of
from .paths import resolved
from .progress import Progress, ProgressListener
from .sinks import dead_letters, written
from .sources import Kafka, read, start_at
from .spec import DEAD_LETTERS, DeadLetterTopic, Every, Pipeline, TopicSink, TopicSource
from .steps import stepped

LAST_PROGRESS_S = 10.0
NOTHING: Mapping[str, str] = MappingProxyType({})


def queries(spark: SparkSession, pipeline: Pipeline, kafka: Kafka, start: str = "") -> dict[str, DataStreamWriter]:
    """The writers of the pipeline's queries by the sinks' names; nothing is started. `start` has the offsets at which
    new queries begin, as JSON; if it is empty, the source says where.

    Raises SpecError if columns don't fit, and Spark's AnalysisException or ParseException if it can't plan a step.
    """
    fatal = pipeline.errors == "fail"
    flow = stepped(read(spark, pipeline.source, kafka, start=start, fatal=fatal), pipeline.steps)
    made = {
        name: written(
            flow.rows, sink, kafka, query_name(pipeline, name), _checkpoint(pipeline, name), f"sinks[{place}]"
        )
        for place, (name, sink) in enumerate(pipeline.named_sinks)
    }
    failed = flow.all_failed
    if failed is not None and not isinstance(pipeline.errors, str):
        name = query_name(pipeline, DEAD_LETTERS)
        made[DEAD_LETTERS] = dead_letters(failed, pipeline.errors, kafka, name, pipeline.name)
    return {name: writer.option("checkpointLocation", _checkpoint(pipeline, name)) for name, writer in made.items()}


def _checkpoint(pipeline: Pipeline, sink: str) -> str:
    return os.path.join(pipeline.checkpoint, sink)


def query_name(pipeline: Pipeline, sink: str) -> str:
    """The name of a sink's query: Spark's progress, transactions and ledgers bear it."""
    return f"{pipeline.name}.{sink}"


def check(pipeline: Pipeline, kafka: Kafka) -> None:
    """Checks what needs no Spark: that the pipeline fits its checkpoint and its targets, and that its topics exist.
    Raises what `notes.compare` raises, OptionError, and ConnectionError if no broker answers."""
    notes.compare(pipeline)
    topics: list[str] = []
    if isinstance(pipeline.source, TopicSource):
        topics += pipeline.source.topics
    topics += [
        sink.topic for sink in (*pipeline.sinks, pipeline.errors) if isinstance(sink, TopicSink | DeadLetterTopic)
    ]
    if topics:
        check_topics(kafka, *dict.fromkeys(topics))


def transactional(pipeline: Pipeline) -> list[str]:
    """The names of the pipeline's queries that write transactions."""
    names = [
        name for name, sink in pipeline.named_sinks if isinstance(sink, TopicSink) and sink.guarantee == "exactly-once"
    ]
    if isinstance(pipeline.errors, DeadLetterTopic):
        names.append(DEAD_LETTERS)
    return [query_name(pipeline, name) for name in names]


def run(
    spark: SparkSession,
    pipelines: Mapping[str, Pipeline],
    kafka: Mapping[str, Kafka],
    tell: Callable[[Progress], None],
    confirmed: Mapping[str, str] = NOTHING,
) -> None:
    """Runs pipelines, by their names, until their triggers are satisfied, or until Ctrl-C; `tell` gets each batch.
    `confirmed` has what a person has confirmed after a refusal, by the names of queries.

    Raises what `queries` and `notes.compare` raise before any query starts. Later it raises StreamingQueryException if
    a query fails, Unconfirmed if the failure is a refusal that a person may answer, and Stopped if something else has
    stopped a query; the other queries are stopped then.
    """
    writers: list[tuple[DataStreamWriter, str]] = []
    starts = {}
    for name, pipeline in pipelines.items():
        notes.compare(pipeline)
        starts[name] = start_at(pipeline.source, kafka[name], notes.start_noted(pipeline.checkpoint))
        every = pipeline.trigger.every if isinstance(pipeline.trigger, Every) else ""
        for sink, writer in queries(spark, pipeline, kafka[name], starts[name]).items():
            text = confirmed.get(query_name(pipeline, sink))
            writers.append((writer.option("ottla.exactlyOnce.confirm", text) if text else writer, every))
    for name, pipeline in pipelines.items():
        notes.note(pipeline, starts[name])
    listener = ProgressListener(tell)
    spark.streams.addListener(listener)
    try:
        run_all(writers)
    except StreamingQueryException as error:
        if CONFIRM not in str(error):
            raise
        raise Unconfirmed(in_words_of_pipelines(last_line(str(error)), _failed(error, pipelines.values()))) from error
    finally:
        listener.wait_for_the_last(LAST_PROGRESS_S)
        spark.streams.removeListener(listener)


def _failed(error: StreamingQueryException, pipelines: Iterable[Pipeline]) -> str:
    """The name of the query that has failed: Spark's message has its id."""
    for pipeline in pipelines:
        for sink in targets_of(pipeline, resolved):
            query_id = query_id_in(_checkpoint(pipeline, sink))
            if query_id is not None and query_id in str(error):
                return query_name(pipeline, sink)
    return "<pipeline>.<sink>"
