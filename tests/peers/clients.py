"""Five clients behind one interface: they write the sample records with a codec, and compute the digest of a topic's
records.

kafka-python, confluent-kafka (librdkafka) and aiokafka run in this process, franz-go and Apache Kafka's Java client as
programs.
"""

from __future__ import annotations

import asyncio
import subprocess
from abc import ABC, abstractmethod

import aiokafka
import confluent_kafka
import kafka

from tests.peers import apache_kafka
from tests.peers.records import COUNT, SampleRecord, all_records, digest
from tests.peers.tools import ROOT, go_program


class Client(ABC):
    """A client library. `produce` writes the sample records to partition 0 of each topic, with the topic's codec."""

    name: str

    @abstractmethod
    def produce(self, bootstrap: str, codecs: dict[str, str]) -> None:
        """Writes with `codecs` (topic → codec). Raises if a record isn't acknowledged with the expected offset."""

    @abstractmethod
    def digests(self, bootstrap: str, topics: list[str]) -> dict[str, str]:
        """The digest of the records in partition 0 of each topic."""


class KafkaPython(Client):
    """The client library kafka-python, in this process."""

    name = "kafka-python"

    def produce(self, bootstrap: str, codecs: dict[str, str]) -> None:
        for topic, codec in codecs.items():
            compression = None if codec == "none" else codec
            producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, compression_type=compression, linger_ms=20)
            sent = [producer.send(topic, r.value, r.key, r.headers, 0, r.timestamp) for r in all_records()]
            producer.flush(20)
            assert [future.get(0).offset for future in sent] == list(range(COUNT))
            producer.close()

    def digests(self, bootstrap: str, topics: list[str]) -> dict[str, str]:
        found = {}
        for topic in topics:
            consumer = kafka.KafkaConsumer(
                bootstrap_servers=bootstrap,
                auto_offset_reset="earliest",
                consumer_timeout_ms=15_000,
                fetch_max_wait_ms=50,
                check_crcs=True,
                group_id=None,
            )
            consumer.assign([kafka.TopicPartition(topic, 0)])
            messages = [next(consumer) for _ in range(COUNT)]
            found[topic] = digest(
                (m.offset, SampleRecord(m.timestamp, m.key, m.value, [(k, v) for k, v in m.headers])) for m in messages
            )
            consumer.close()
        return found


class Confluent(Client):
    """The client library confluent-kafka, which is based on librdkafka, in this process."""

    name = "librdkafka"

    def produce(self, bootstrap: str, codecs: dict[str, str]) -> None:
        for topic, codec in codecs.items():
            offsets: list[int] = []

            def delivered(
                error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message, offsets: list[int] = offsets
            ) -> None:
                assert error is None, error
                offsets.append(message.offset())

            producer = confluent_kafka.Producer(
                {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20, "enable.idempotence": True}
            )
            for record in all_records():
                producer.produce(
                    topic,
                    record.value,
                    record.key,
                    0,
                    on_delivery=delivered,
                    timestamp=record.timestamp,
                    headers=record.headers,
                )
            assert producer.flush(20) == 0
            assert offsets == list(range(COUNT))

    def digests(self, bootstrap: str, topics: list[str]) -> dict[str, str]:
        found = {}
        for topic in topics:
            consumer = confluent_kafka.Consumer(
                {"bootstrap.servers": bootstrap, "group.id": "unused", "check.crcs": True}
            )
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            messages = consumer.consume(COUNT, 15)
            assert [m.error() for m in messages] == [None] * COUNT
            found[topic] = digest(
                (m.offset(), SampleRecord(m.timestamp()[1], m.key(), m.value(), list(m.headers() or [])))
                for m in messages
            )
            consumer.close()
        return found


class AioKafka(Client):
    """The client library aiokafka, in this process."""

    name = "aiokafka"

    def produce(self, bootstrap: str, codecs: dict[str, str]) -> None:
        asyncio.run(self._produce(bootstrap, codecs))

    async def _produce(self, bootstrap: str, codecs: dict[str, str]) -> None:
        for topic, codec in codecs.items():
            compression = None if codec == "none" else codec
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap, compression_type=compression, linger_ms=20
            ) as producer:
                sent = [await producer.send(topic, r.value, r.key, 0, r.timestamp, r.headers) for r in all_records()]
                results = await asyncio.wait_for(asyncio.gather(*sent), 20)
                assert [result.offset for result in results] == list(range(COUNT))

    def digests(self, bootstrap: str, topics: list[str]) -> dict[str, str]:
        return asyncio.run(self._digests(bootstrap, topics))

    async def _digests(self, bootstrap: str, topics: list[str]) -> dict[str, str]:
        found = {}
        for topic in topics:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap, auto_offset_reset="earliest", check_crcs=True
            )
            async with consumer:
                consumer.assign([aiokafka.TopicPartition(topic, 0)])
                messages = [await asyncio.wait_for(consumer.getone(), 15) for _ in range(COUNT)]
            found[topic] = digest(
                (m.offset, SampleRecord(m.timestamp, m.key, m.value, list(m.headers))) for m in messages
            )
        return found


class Program(Client):
    """A client in another language: `tests/conformance/{java/clients,go}`, whose comments have the arguments."""

    def __init__(self, name: str) -> None:
        self.name = name

    def produce(self, bootstrap: str, codecs: dict[str, str]) -> None:
        self.run(bootstrap, "produce", *(f"{topic}={codec}" for topic, codec in codecs.items()))

    def digests(self, bootstrap: str, topics: list[str]) -> dict[str, str]:
        printed = self.run(bootstrap, "digest", *topics)
        return {line.split()[1]: line.split()[2] for line in printed.splitlines() if line.startswith("digest ")}

    def run(self, *arguments: str, check: bool = True) -> str:
        """Runs the program and returns its standard output. With `check` it raises AssertionError if a step failed."""
        command = self._command() + list(arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0 or not check, f"{arguments}:\n{done.stdout}\n{done.stderr[-4000:]}"
        return done.stdout

    def _command(self) -> list[str]:
        if self.name == "java":
            return apache_kafka.java(apache_kafka.compile_program("clients", "kafka"), "Clients")
        return [str(go_program(ROOT / "tests/conformance/go"))]


JAVA = Program("java")
GO = Program("franz-go")
SARAMA = Program("sarama")  # for transactions only
CLIENTS: tuple[Client, ...] = (KafkaPython(), Confluent(), AioKafka(), JAVA, GO)
