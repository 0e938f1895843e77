"""The topic in which drivers record their decisions: one record for each decision, with the query's name as its key.

The topic is on the cluster that the queries write to. So it needs no file system that driver and executors share, and
a record is as durable and atomic as the transactions that it decides about; a transaction of the driver's own
transactional id fences an older driver out. The topic is compacted, and has one partition.

A decision counts if its transaction was committed. Whether it was is taken from the marker behind it, not from the last
stable offset, because an open transaction of another query would hold that one back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from ottla.net.client import Client
from ottla.net.fetching import RangeReader
from ottla.net.names import EARLIEST, LATEST, TopicPartition, Transaction
from ottla.net.producing import Producer
from ottla.net.transactions import Transactions
from ottla.protocol.batches import Record, iterate_headers, records, write_record
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.markers import read_marker

from .decisions import Decision, Failed, from_json, to_json

DEFAULT_TOPIC = "ottla-spark-decisions"
_REPLICAS = 3
_FENCED = (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_txn_state)
_FIRST_WINDOW = 32  # offsets that are read from the topic's end at first


class Ledger:
    """The decisions of one query. `client` sends batches and reads; `transactions` asks coordinators."""

    def __init__(self, client: Client, transactions: Transactions, topic: str, query: str) -> None:
        self._client = client
        self._transactions = transactions
        self._partition = TopicPartition(topic, 0)
        self._key = query.encode()
        self._driver: Transaction | None = None
        self._producer: Producer | None = None

    def last(self) -> Decision | None:
        """The newest decision whose transaction was committed. Creates the topic if it doesn't exist.

        Raises KafkaError, Unreachable, ValueError.
        """
        self._ensure_topic()
        first = self._client.list_offsets({self._partition: EARLIEST})[self._partition].offset
        end = self._client.list_offsets({self._partition: LATEST})[self._partition].offset
        window = _FIRST_WINDOW
        while True:
            start = max(first, end - window)
            found = last_committed(self._batches(start, end), self._key)
            if found is not None:
                return from_json(found)
            if start == first:
                return None
            window *= 2

    def record(self, driver: Transaction, decision: Decision) -> None:
        """Records a decision. When this returns, the record is committed. After an error the record may be committed or
        not; the next InitProducerId for the driver's id settles which.

        Raises Failed if another driver has begun, KafkaError, Unreachable. With one driver's producer this must be
        called on one Ledger only, because its sequence numbers go on.
        """
        if self._producer is None or self._driver != driver:
            self._driver = driver
            self._producer = Producer(self._client, transaction=(self._transactions, driver))
        else:  # a new Producer would begin again with sequence number 0
            self._producer.begin_transaction()
        body = bytearray()
        write_record(body, Record(0, 0, self._key, to_json(decision)), 0, 0)
        try:
            self._producer.send(self._partition, bytes(body), 1, time.time_ns() // 1_000_000)
            self._producer.flush()
            fenced = bool(self._transactions.end([driver], committed=True))
        except KafkaError as error:
            if error.code not in _FENCED:
                raise
            fenced = True
        if fenced:
            raise Failed(f"another driver runs the query: {driver.transactional_id} has a newer producer")

    def _ensure_topic(self) -> None:
        """Creates the topic if it doesn't exist. It has three replicas, or as many as there are brokers."""
        cluster = self._client.metadata([self._partition.topic])
        if self._partition.topic in cluster.topics:
            return
        replicas = min(_REPLICAS, len(cluster.brokers))
        settings = {"cleanup.policy": "compact", "min.insync.replicas": str(max(1, replicas - 1))}
        self._client.create_topic(self._partition.topic, 1, replication=replicas, configs=settings)

    def _batches(self, start: int, end: int) -> Iterator[bytes]:
        for fetched in RangeReader(self._client, self._partition, start, end):
            for position, header in iterate_headers(fetched.records):
                if start <= header.base_offset < end:
                    yield bytes(fetched.records[position : position + header.size])


def last_committed(batches: Iterable[bytes], key: bytes) -> bytes | None:
    """The value of the newest record with `key` in a committed transaction. Pure.

    A producer's marker ends its records before it. A record without a marker behind it doesn't count.
    """
    open_values: dict[int, bytes] = {}
    found = None
    for batch in batches:
        _, header = next(iterate_headers(batch))
        if header.is_control:
            marker = read_marker(batch)
            value = open_values.pop(header.producer_id, None)
            if marker is not None and marker.committed and value is not None:
                found = value
            continue
        for record in records(batch):
            if record.key == key and record.value is not None:
                open_values[header.producer_id] = record.value
    return found
