"""The topics that tests of transactions write to, and what their readers see."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.conftest import Target


def create(target: Target, *names: str, partitions: int) -> None:
    """Creates topics of so many partitions each. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    topics = [NewTopic(name, partitions, target.replication_factor) for name in names]
    for created in admin.create_topics(topics).values():
        created.result(30)


def values_of(target: Target, topic: str, isolation: str = "read_committed") -> list[str]:
    """All values of a topic, up to its end for that isolation level, read by librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    indexes = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, index, 0) for index in indexes])
    found: list[str] = []
    ended: set[int | None] = set()
    while len(ended) < len(indexes):
        message = consumer.poll(30)
        assert message is not None, f"the end of {topic} doesn't come after {len(found)} records"
        if (error := message.error()) is None:
            found.append((message.value() or b"").decode())
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()
    return found
