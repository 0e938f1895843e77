"""Produces sealed batches to partitions' leaders: idempotent, in order, one request at a time to each leader.

A request to a broker has the oldest waiting batch of each partition that the broker leads. So no partition ever has two
batches on the way: a retry can't change the order of batches, and the broker recognises, by the sequence numbers, a
batch that it has already. While a leader works on a request, the caller can make more batches; `send` waits only while
more than `buffer_bytes` are waiting.

A producer with a transaction adds each partition to the transaction before its first batch for the partition. It never
ends the transaction, which stays open when the producer is gone: whoever knows the transaction's identity ends it.

After a retriable error, a batch is sent again until it is `delivery_timeout_ms` old. After that, and after any other
error, `send` or `flush` raises, and the producer can't be used any more. Source: KIP-98, Kafka's Sender and
TransactionManager.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from ottla.protocol.batches import HEADER_SIZE, TRANSACTIONAL, seal_batch
from ottla.protocol.errors import ErrorCode, KafkaError

from .blocking import Connection, ConnectionLost
from .client import Client, Unreachable
from .error_codes import ABSENT, PASSING, Retry
from .names import TopicPartition, Transaction
from .transactions import Transactions

PRODUCE = 0
# A topic or partition may be unknown to a broker for a moment after its creation.
_RETRIED = PASSING | ABSENT


@dataclass(slots=True)
class _Batch:
    count: int
    sealed: bytes
    deadline: float


@dataclass(slots=True)
class _Queue:
    next_sequence: int = 0
    batches: deque[_Batch] = field(default_factory=deque)


class Producer:
    """Sends record batches. Not safe to share between threads.

    `request_bytes` bounds the batches in one request, as Kafka's max.request.size does. It also bounds each batch
    before compression.

    `acks` is −1, 0 or 1; with 0 the producer doesn't learn which batches were written. `codec` and `level` compress
    each batch. With a `transaction` (and the requests to its coordinator, whose client is another than `client`),
    every batch belongs to the transaction, and `acks` must be −1.
    """

    def __init__(
        self,
        client: Client,
        *,
        acks: int = -1,
        codec: int = 0,
        level: int | None = None,
        idempotent: bool = True,
        request_bytes: int = 1 << 20,
        buffer_bytes: int = 8 << 20,
        delivery_timeout_ms: int = 120_000,
        transaction: tuple[Transactions, Transaction] | None = None,
    ) -> None:
        self._client = client
        self._transaction = transaction
        self._added: set[TopicPartition] = set()
        self._acks = acks
        self._codec = codec
        self._level = level
        self._request_bytes = request_bytes
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        if transaction is not None:
            self._producer_id, self._epoch = transaction[1].producer_id, transaction[1].epoch
        else:
            self._producer_id, self._epoch = client.init_producer_id() if idempotent and acks == -1 else (-1, -1)
        self._queues: dict[TopicPartition, _Queue] = {}
        self._under_way: dict[Connection, list[TopicPartition]] = {}
        self._waiting_bytes = 0
        self._last_trouble = ""
        self.records_acknowledged = 0

    def send(self, partition: TopicPartition, body: bytes, count: int, timestamp: int) -> None:
        """Queues one batch of `count` encoded records, with offsets from 0 up, which all have `timestamp` (ms).

        Raises KafkaError(message_too_large) if the batch, before compression, is larger than a request may be.
        """
        size = len(body) + HEADER_SIZE
        if size > self._request_bytes:
            what = "a record" if count == 1 else f"a batch of {count} records"
            raise KafkaError(
                ErrorCode.message_too_large,
                f"{what} for {partition} takes {size} bytes, and max.request.size is {self._request_bytes}",
            )
        queue = self._queues.setdefault(partition, _Queue())
        sequence = queue.next_sequence if self._producer_id >= 0 else -1
        queue.next_sequence = (queue.next_sequence + count) & 0x7FFFFFFF
        sealed = seal_batch(
            body,
            count,
            attributes=self._codec | (TRANSACTIONAL if self._transaction else 0),
            level=self._level,
            base_timestamp=timestamp,
            max_timestamp=timestamp,
            last_offset_delta=count - 1,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
        )
        deadline = time.monotonic() + self._delivery_timeout_s
        queue.batches.append(_Batch(count, sealed, deadline))
        self._waiting_bytes += len(sealed)
        while self._waiting_bytes > self._buffer_bytes:
            self._turn()

    def begin_transaction(self) -> None:
        """Begins the next transaction of the same producer, after somebody has ended the last one. Nothing may be
        waiting to be sent."""
        self._added.clear()

    def flush(self) -> None:
        """Returns when every batch is acknowledged (with acks=0: sent)."""
        while self._waiting_bytes:
            self._turn()

    def _turn(self) -> None:
        """Sends a request to every leader that has none under way. Then waits for the answer to one of the requests."""
        trouble = self._dispatch()
        if not self._under_way:
            self._last_trouble = trouble or self._last_trouble
            self._check_deadlines()
            time.sleep(self._client.retry_backoff_ms / 1000)
            return
        connection = next(iter(self._under_way))
        try:
            self._take(connection)
        except ConnectionLost as error:
            self._last_trouble = str(error)
            self._forget(connection)
            self._check_deadlines()
            time.sleep(self._client.retry_backoff_ms / 1000)

    def _dispatch(self) -> str:
        """Sends a request to each leader that has waiting batches and no request under way.

        Returns the reason why some batch couldn't be sent; an empty text if there was no failure.
        """
        self._add_to_transaction()
        requests: dict[Connection, list[TopicPartition]] = {}
        busy = {partition for partitions in self._under_way.values() for partition in partitions}
        sizes: dict[Connection, int] = {}
        trouble = ""
        for partition, queue in self._queues.items():
            if not queue.batches or partition in busy:
                continue
            try:
                connection = self._client.leader(partition)
            except (ConnectionError, Retry) as error:
                trouble = str(error)
                continue
            size = sizes.get(connection, 0) + len(queue.batches[0].sealed)
            if connection in self._under_way or (connection in sizes and size > self._request_bytes):
                continue
            sizes[connection] = size
            requests.setdefault(connection, []).append(partition)
        for connection, partitions in requests.items():
            try:
                self._send(connection, partitions)
            except ConnectionLost as error:
                trouble = str(error)
                self._forget(connection)
        return trouble

    def _add_to_transaction(self) -> None:
        """Adds the partitions of waiting batches to the transaction, as far as they aren't in it yet."""
        if self._transaction is None:
            return
        new = [each for each, queue in self._queues.items() if queue.batches and each not in self._added]
        if new:
            requests, transaction = self._transaction
            requests.add(transaction, new)
            self._added.update(new)

    def _send(self, connection: Connection, partitions: list[TopicPartition]) -> None:
        topics: dict[str, list[dict[str, object]]] = {}
        for each in partitions:
            records = self._queues[each].batches[0].sealed
            topics.setdefault(each.topic, []).append({"index": each.partition, "records": records})
        message = {
            "transactional_id": self._transaction[1].transactional_id if self._transaction else None,
            "acks": self._acks,
            "timeout": self._client.request_timeout_ms,
            "topic_data": [{"name": name, "partition_data": data} for name, data in topics.items()],
        }
        connection.send(PRODUCE, connection.version(PRODUCE, 3, 9), message, answered=self._acks != 0)
        if self._acks == 0:
            for each in partitions:
                self._done(each)
        else:
            self._under_way[connection] = partitions

    def _take(self, connection: Connection) -> None:
        held_s = self._client.request_timeout_ms / 1000
        self._client.await_answer(connection, self._under_way[connection], 2 * held_s)
        answer = connection.receive(extra_s=held_s)
        del self._under_way[connection]
        retried = False
        for topic in answer.responses:
            for result in topic.partition_responses:
                partition = TopicPartition(topic.name, result.index)
                code = result.error_code
                # A duplicate is a batch whose first answer was lost.
                if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                    self._done(partition)
                elif code in _RETRIED:
                    retried = True
                    self._last_trouble = f"{connection.address} answered {code.name} for {partition}"
                    self._client.forget_leader(partition)
                else:
                    raise KafkaError(code, self._explain(code, partition, connection, result.error_message))
        if retried:
            self._check_deadlines()
            time.sleep(self._client.retry_backoff_ms / 1000)

    def _done(self, partition: TopicPartition) -> None:
        batch = self._queues[partition].batches.popleft()
        self._waiting_bytes -= len(batch.sealed)
        self.records_acknowledged += batch.count

    def _forget(self, connection: Connection) -> None:
        for partition in self._under_way.pop(connection, []):
            self._client.forget_leader(partition)
        self._client.drop(connection)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for partition, queue in self._queues.items():
            if queue.batches and queue.batches[0].deadline <= now:
                raise Unreachable(
                    f"{partition}: {queue.batches[0].count} records were not acknowledged in "
                    f"{self._delivery_timeout_s * 1000:.0f} ms: {self._last_trouble}"
                )

    def _explain(self, code: ErrorCode, partition: TopicPartition, connection: Connection, message: str | None) -> str:
        text = f"writing to {partition} (answered by {connection.address})"
        if code == ErrorCode.message_too_large:
            size = len(self._queues[partition].batches[0].sealed)
            text += f": a batch of {size} bytes is more than the topic's max.message.bytes"
        return f"{text}: {message}" if message else text
