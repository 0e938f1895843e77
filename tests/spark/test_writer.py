"""The writer of Spark's tasks, tested without Spark: its requests stay within their limits."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ottla.net.client import Client
from ottla.net.fetching import RangeReader
from ottla.net.names import TopicPartition
from ottla.protocol.batches import iterate_headers
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark.options import write_options
from ottla.spark.writing import Writer
from tests.spark.topics import Topics


def writer(bootstrap: str, topic: str, **properties: str) -> Writer:
    given = {f"kafka.{name.replace('_', '.')}": value for name, value in properties.items()}
    return Writer(
        write_options({"kafka.bootstrap.servers": bootstrap, "topic": topic, **given}, streaming=False).properties,
        topic,
    )


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_record_beyond_max_request_size_is_refused(bootstrap: str, topics: Topics, codec: str) -> None:
    """Before the fix, a record of any size was sent. As in Java, the size before compression counts."""
    topic = topics.create(1)
    with (
        pytest.raises(
            KafkaError, match=r"a record for t-\w+-0 takes 5\d{3} bytes, and max.request.size is 4000"
        ) as caught,
        writer(bootstrap, topic, max_request_size="4000", compression_type=codec) as full,
    ):
        full.write(pa.record_batch({"value": pa.array([b"x" * 100, b"x" * 5000], pa.binary())}))
    assert caught.value.code == ErrorCode.message_too_large


def test_batches_are_no_larger_than_a_request(bootstrap: str, topics: Topics) -> None:
    topic = topics.create(1)
    with writer(bootstrap, topic, max_request_size="4000", batch_size="100000") as small:
        small.write(pa.record_batch({"value": pa.array([b"x" * 100] * 500, pa.binary())}))
    with Client(bootstrap) as client:
        sizes = [
            header.size
            for fetched in RangeReader(client, TopicPartition(topic, 0), 0, 500)
            for _, header in iterate_headers(fetched.records)
        ]
    assert max(sizes) <= 4000
    assert len(sizes) < 20
