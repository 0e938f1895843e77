"""Loads made with librdkafka (confluent-kafka): they produce or consume a given number of records."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, Producer, TopicPartition

PAYLOADS = 1000
PATIENCE_S = 300  # so that the benchmark ends if a broker has died
UNSECURED: Mapping[str, str] = {}
WORDS = "order customer amount currency created shipped warehouse article price discount total status region".split()


def payloads(size_bytes: int) -> list[bytes]:
    """Different values of this size, which compress about as well as application data."""
    source = random.Random(size_bytes)
    made = []
    for _ in range(PAYLOADS):
        text = bytearray()
        while len(text) < size_bytes:
            text += f'"{source.choice(WORDS)}":"{source.randrange(10**9)}",'.encode()
        made.append(bytes(text[:size_bytes]))
    return made


def produce(
    bootstrap: str,
    topic: str,
    count: int,
    values: list[bytes],
    acks: str,
    codec: str,
    security: Mapping[str, str] = UNSECURED,
) -> None:
    """Produces `count` records and waits for their acknowledgements. `security` has librdkafka's settings for the
    connections. Raises RuntimeError if a record fails."""
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 4,
            "acks": acks,
            "compression.type": codec,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 * 1024,
            "delivery.report.only.error": True,
            **security,
        }
    )

    def failed(error: object, _: object) -> None:
        failures.append(str(error))

    send = producer.produce
    deadline = time.monotonic() + PATIENCE_S
    number = 0
    values_count = len(values)
    while number < count:
        try:
            send(topic, values[number % values_count], on_delivery=failed)
            number += 1
        except BufferError:
            producer.poll(0.01)
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"only {number - len(producer)} of {count} records were produced in {PATIENCE_S} s"
                ) from None
    left = producer.flush(120)
    if left or failures:
        raise RuntimeError(f"{left} records weren't acknowledged, and {len(failures)} were refused: {failures[:1]}")


def end_offsets(bootstrap: str, topic: str, partitions: int) -> int:
    """The sum of the partitions' end offsets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 4, "group.id": "bench"})
    try:
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, index), 30)[1] for index in range(partitions))
    finally:
        consumer.close()


def consume(
    bootstrap: str,
    topic: str,
    partitions: int,
    count: int,
    isolation_level: str = "read_uncommitted",
    security: Mapping[str, str] = UNSECURED,
) -> None:
    """Reads `count` records from the beginning, by an isolation level (librdkafka's default unless it is given). Raises
    RuntimeError if the records don't come in time."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 4,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": isolation_level,
            # By default librdkafka stops fetching for a second whenever its queue has 100,000 records.
            "queued.min.messages": 2_000_000,
            "queued.max.messages.kbytes": 512 * 1024,
            **security,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    got = 0
    deadline = time.monotonic() + PATIENCE_S
    while got < count:
        got += len(consumer.consume(min(10_000, count - got), 1.0))  # ends with this number, or after a second
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {got} of {count} records were received in {PATIENCE_S} s")
    consumer.close()
