"""Creates the topics that a test needs, and writes their records batch by batch."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from ottla.net.client import Client
from ottla.net.error_codes import check
from ottla.net.names import LATEST, TopicPartition
from ottla.protocol.batches import Record, build_batch
from ottla.protocol.errors import ErrorCode

PRODUCE, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, CREATE_PARTITIONS = 0, 19, 20, 21, 37
BEGIN_MS = 1_700_000_000_000
# Retention is off: the records' timestamps are years old, and a broker deletes expired records every five minutes.
KEPT = "-1"


class Topics:
    """Creates topics with unique names, and writes records to them."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._client = Client(bootstrap, api_timeout_ms=20_000)

    def __enter__(self) -> Topics:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def create(self, partitions: int = 1, *, name: str = "t", **configs: str) -> str:
        """Creates a topic, and returns its name when every partition has a leader.

        Names in `configs` have an underscore for each dot.
        """
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        given = {"retention.ms": KEPT} | {key.replace("_", "."): value for key, value in configs.items()}
        self._client.create_topic(topic, partitions, configs=given)
        self.wait_for(topic, partitions)
        return topic

    def create_many(self, count: int, *, name: str) -> list[str]:
        """Creates topics of one partition each with a single request. Returns their names when all have leaders."""
        names = [f"{name}-{uuid.uuid4().hex[:8]}" for _ in range(count)]
        topic = {"num_partitions": 1, "replication_factor": -1, "assignments": []}
        configs = [{"name": "retention.ms", "value": KEPT}]
        wanted = [{"name": each, **topic, "configs": configs} for each in names]
        message = {"topics": wanted, "timeout": 30_000, "validate_only": False}
        controller = self._client.broker(self._client.metadata([]).controller_id)
        answer = controller.request(CREATE_TOPICS, 5, message, extra_s=30)
        assert {each.error_code for each in answer.topics} == {ErrorCode.none}
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = self._client.metadata(names).topics.values()
            if len(found) == count and min(min(each.leaders.values(), default=-1) for each in found) >= 0:
                return names
            time.sleep(0.05)
        raise AssertionError(f"after 20 s not all of the {count} topics have a leader")

    def delete(self, names: Sequence[str]) -> None:
        """Deletes topics."""
        controller = self._client.broker(self._client.metadata([]).controller_id)
        answer = controller.request(DELETE_TOPICS, 5, {"topic_names": list(names), "timeout": 30_000}, extra_s=30)
        assert {each.error_code for each in answer.responses} == {ErrorCode.none}

    def recreate(self, topic: str, partitions: int = 1) -> None:
        """Deletes a topic and creates another one of the same name. Returns when every partition has a leader."""
        self.delete([topic])
        deadline = time.monotonic() + 20
        while not self._client.create_topic(topic, partitions, configs={"retention.ms": KEPT}):
            assert time.monotonic() < deadline, f"{topic} isn't deleted"
            time.sleep(0.1)
        self.wait_for(topic, partitions)

    def wait_for(self, topic: str, partitions: int) -> None:
        """Returns when the topic's `partitions` partitions have leaders."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = self._client.metadata([topic]).topics.get(topic)
            if found is not None and len(found.leaders) == partitions and min(found.leaders.values()) >= 0:
                return
            time.sleep(0.05)
        raise AssertionError(f"{topic} doesn't get leaders")

    def write(self, topic: str, partition: int, records: Sequence[Record], codec: int = 0) -> int:
        """Writes one batch, and returns the offset of its first record."""
        numbered = [record._replace(offset=index) for index, record in enumerate(records)]
        data = {"index": partition, "records": build_batch(numbered, codec=codec)}
        message = {"transactional_id": None, "acks": -1, "timeout": 10_000}

        def attempt() -> int:
            connection = self._client.leader(TopicPartition(topic, partition))
            answer = connection.request(
                PRODUCE, 9, {**message, "topic_data": [{"name": topic, "partition_data": [data]}]}
            )
            result = answer.responses[0].partition_responses[0]
            # In Kafka, metadata may name a leader before that broker has become the leader.
            check(result.error_code, topic, connection.address)
            return int(result.base_offset)

        return self._client.retrying(attempt, "Produce")

    def fill(self, topic: str, partition: int, count: int, *, first: int = 0, codec: int = 0) -> None:
        """Writes `count` records, numbered from `first`. The value is `<partition>:<number>`.

        The timestamp is BEGIN_MS for number 0, and rises by one second with each number.
        """
        rows = [
            Record(0, BEGIN_MS + 1000 * (first + index), b"k%d" % index, b"%d:%d" % (partition, first + index))
            for index in range(count)
        ]
        for start in range(0, count, 500):
            self.write(topic, partition, rows[start : start + 500], codec)

    def end(self, topic: str, partition: int = 0) -> int:
        """The log end offset of a partition."""
        where = TopicPartition(topic, partition)
        return self._client.list_offsets({where: LATEST})[where].offset

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Deletes the records before `offset`."""
        connection = self._client.leader(TopicPartition(topic, partition))
        partitions = [{"partition_index": partition, "offset": offset}]
        answer = connection.request(
            DELETE_RECORDS, 2, {"topics": [{"name": topic, "partitions": partitions}], "timeout": 10_000}
        )
        assert answer.topics[0].partitions[0].error_code == ErrorCode.none

    def grow(self, topic: str, partitions: int) -> None:
        """Adds partitions to a topic, until it has `partitions` of them."""
        wanted = {"name": topic, "count": partitions, "assignments": None}
        answer = self._client.any_broker().request(CREATE_PARTITIONS, 2, {"topics": [wanted], "timeout": 10_000})
        assert answer.results[0].error_code == ErrorCode.none, answer
        self.wait_for(topic, partitions)

    def records(self, topic: str) -> list[Record]:
        """Every record of a topic, partition after partition, as kafka-python reads it."""
        from kafka import KafkaConsumer
        from kafka import TopicPartition as Theirs

        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        )
        found = []
        for partition in sorted(consumer.partitions_for_topic(topic) or ()):
            where = Theirs(topic, partition)
            consumer.assign([where])
            consumer.seek_to_beginning(where)
            end = consumer.end_offsets([where])[where]
            while consumer.position(where) < end:
                for batch in consumer.poll(1000).values():
                    found += [Record(each.offset, each.timestamp, each.key, each.value, each.headers) for each in batch]
        consumer.close()
        return found
