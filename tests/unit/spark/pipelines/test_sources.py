"""Which records a pipeline reads."""

from __future__ import annotations

from ottla.net.names import READ_COMMITTED
from ottla.spark.options import read_options
from ottla.spark.pipelines.sources import records_options
from ottla.spark.pipelines.spec import TopicSource


def test_records_of_aborted_transactions_are_no_rows_whatever_the_properties_say() -> None:
    kafka = {"bootstrap.servers": "h:1", "isolation.level": "read_uncommitted"}
    options = records_options(TopicSource(topic=("a", "b")), kafka)
    assert options["subscribe"] == "a,b"
    for given in (options, dict(reversed(options.items()))):  # Spark gives the options in any order
        assert read_options(given, streaming=True).properties.isolation == READ_COMMITTED
