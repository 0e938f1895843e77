"""Writes Arrow rows to topics, in a Spark task or any other process.

Rows have the columns of Spark's Kafka sink: value, and optionally key, headers, partition and topic. A `Writer` is by
default an idempotent producer, whose retries write no row twice. If Spark runs a task again, the task has a new
`Writer`, and its rows are written again: each row is written at least once. A `Writer` with a transactional id writes
its rows in a transaction and leaves it open, for the driver to commit.
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc

from ottla.net.client import Client
from ottla.net.error_codes import ABSENT
from ottla.net.existence import Wanted
from ottla.net.names import TopicPartition, Transaction
from ottla.net.producing import Producer
from ottla.net.transactions import Transactions
from ottla.protocol.batches import HEADER_SIZE
from ottla.protocol.errors import ErrorCode, KafkaError

from .encode import encode
from .options import OptionError
from .planning import open_client
from .properties import ClientProperties
from .schema import ARROW_TYPES


class Writer:
    """Writes rows to `topic`. If `topic` is None, writes each row to the topic in its column `topic`.

    It is a context manager: if no error occurred, the end of the context waits until every row is acknowledged. After
    an error, the transaction of a Writer with a `transactional_id` is aborted, if brokers can be reached.
    """

    def __init__(self, properties: ClientProperties, topic: str | None, transactional_id: str | None = None) -> None:
        self._properties = properties
        self._topic = topic
        self._client = open_client(properties)
        self._partitions: dict[str, int] = {}
        self._sticky = random.randrange(1 << 16)
        self.transaction: Transaction | None = None
        # Requests to the transaction's coordinator have connections of their own: a broker that holds back the answers
        # to batches must not hold back those of the coordinator.
        self._coordinators = open_client(properties)
        self._transactions = Transactions(self._coordinators)
        try:
            if transactional_id is not None:
                self.transaction = initialised(self._transactions, transactional_id, properties)
            self._producer = Producer(
                self._client,
                acks=properties.acks,
                codec=properties.codec,
                level=properties.level,
                idempotent=properties.idempotent,
                request_bytes=properties.request_bytes,
                delivery_timeout_ms=properties.delivery_timeout_ms,
                transaction=None if self.transaction is None else (self._transactions, self.transaction),
            )
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
            elif self.transaction is not None:
                with suppress(KafkaError, ConnectionError):
                    self._transactions.end([self.transaction], committed=False)
        finally:
            self._close()

    def write(self, rows: pa.RecordBatch) -> None:
        """Queues the rows for sending. Raises OptionError for a row without a topic, and for a topic or partition that
        doesn't exist.
        """
        if rows.num_rows == 0:
            return
        if self._topic is not None:
            self._write_to(self._topic, rows)
            return
        topics = rows.column("topic")
        if topics.null_count:
            raise OptionError("a row has no topic: fill the topic column, or set the option topic")
        for topic in pc.unique(topics).to_pylist():
            self._write_to(topic, rows.filter(pc.equal(topics, topic)))

    def flush(self) -> None:
        """Waits until every row is acknowledged."""
        self._producer.flush()

    @property
    def rows_acknowledged(self) -> int:
        """The number of rows that brokers have acknowledged so far."""
        return self._producer.records_acknowledged

    def _close(self) -> None:
        self._client.close()
        self._coordinators.close()

    def _write_to(self, topic: str, rows: pa.RecordBatch) -> None:
        count = self._partition_count(topic)
        names = rows.schema.names
        chosen = None
        if "partition" in names:
            chosen = pc.fill_null(rows.column("partition"), -1).to_numpy(zero_copy_only=False)
            if chosen.max() >= count or chosen.min() < -1:
                raise OptionError(
                    f"topic '{topic}' has partitions 0 to {count - 1}, and a row asks for another partition"
                )
        batches = encode(
            rows.column("key").cast(pa.binary()) if "key" in names else None,
            rows.column("value").cast(pa.binary()),
            rows.column("headers").cast(ARROW_TYPES["headers"]) if "headers" in names else None,
            chosen,
            count,
            min(self._properties.batch_bytes, max(self._properties.request_bytes - HEADER_SIZE, 0)),
            self._sticky,
        )
        self._sticky += 1
        now_ms = time.time_ns() // 1_000_000
        for each in batches:
            self._producer.send(TopicPartition(topic, each.partition), each.body, each.rows, now_ms)

    def _partition_count(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = topic_partitions(self._client, topic)
        return self._partitions[topic]


def initialised(transactions: Transactions, name: str, properties: ClientProperties) -> Transaction:
    """The producer of a transactional id, from now on. Raises OptionError if transactions may not last so long."""
    try:
        return transactions.initialise([name], properties.transaction_timeout_ms)[name]
    except KafkaError as error:
        if error.code != ErrorCode.invalid_transaction_timeout:
            raise
        raise OptionError(
            f"kafka.transaction.timeout.ms is {properties.transaction_timeout_ms}, and the brokers' "
            "transaction.max.timeout.ms is lower: raise theirs, or lower this one"
        ) from None


def topic_partitions(client: Client, topic: str) -> int:
    """The number of a topic's partitions. Raises OptionError if the topic doesn't exist or can't be written."""
    cluster = client.look_up({topic: Wanted()})
    if topic in cluster.errors:
        where = ", ".join(map(str, client.bootstrap))
        if cluster.errors[topic] in ABSENT:
            raise OptionError(f"topic '{topic}' does not exist at {where}; create it with: ottla topics create {topic}")
        raise OptionError(f"topic '{topic}' can't be written at {where}: {cluster.errors[topic].name}")
    return len(cluster.topics[topic].leaders)
