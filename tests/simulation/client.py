"""Clients over the protocol's messages: small, honest about what they know, and as persistent as Kafka's are.

They go by Kafka's rules where those matter for safety: an idempotent producer resends in order from the first batch
that isn't acknowledged, nobody takes metadata with an older leader epoch than what it knows, and fetches name the
leader epoch, so that a deposed leader can't answer for the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

from ottla.protocol.batches import Record, build_batch, iterate_headers, records
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.frames import request_frame, response_body
from ottla.protocol.messages import read_response, write_request

from .history import Event, History
from .network import Stream

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
CREATE_TOPICS, INIT_PRODUCER_ID, ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS = 19, 22, 43, 45
VERSIONS = {
    PRODUCE: 9, FETCH: 12, LIST_OFFSETS: 7, METADATA: 12, OFFSET_COMMIT: 8, OFFSET_FETCH: 7, FIND_COORDINATOR: 3,
    CREATE_TOPICS: 7, INIT_PRODUCER_ID: 4, ELECT_LEADERS: 2, ALTER_PARTITION_REASSIGNMENTS: 0,
}  # fmt: skip

# Nothing was appended, for certain.
REFUSED = frozenset(
    {
        ErrorCode.not_enough_replicas,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.corrupt_message,
    }
)
# As an answer to the first batch that isn't acknowledged.
FORGOTTEN = frozenset(
    {
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
    }
)
Partition = tuple[str, int]
Opener = Callable[[str, int], Awaitable[Stream]]
_size = struct.Struct(">i")


class Unavailable(Exception):
    """The request can't be served just now; `sent` says whether it may have had an effect all the same."""

    def __init__(self, reason: object, *, sent: bool) -> None:
        super().__init__(str(reason))
        self.sent = sent


class Connection:
    """Requests over one stream; several may be under way, and are answered in order."""

    def __init__(self, stream: Stream, client_id: str) -> None:
        self.closed = False
        self._stream = stream
        self._client_id = client_id
        self._correlation_id = 0
        self._waiting: dict[int, tuple[int, asyncio.Future[Any]]] = {}
        self._reader = asyncio.create_task(self._read())
        self._writing = asyncio.Lock()

    async def call(self, api_key: int, message: Mapping[str, Any], timeout_s: float) -> Any:
        """The answer. Raises Unavailable."""
        if self.closed:
            raise Unavailable("closed", sent=False)
        version = VERSIONS[api_key]
        self._correlation_id += 1
        frame = request_frame(
            api_key, version, self._correlation_id, self._client_id, write_request(api_key, version, message)
        )
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._correlation_id] = (api_key, answer)
        try:
            async with asyncio.timeout(timeout_s):
                async with self._writing:
                    await self._stream.write(frame)
                return await answer
        except (OSError, TimeoutError) as error:
            self.close(error)
            raise Unavailable(error, sent=True) from error

    def close(self, reason: object = "closed") -> None:
        """Fails all that waits."""
        if not self.closed:
            self.closed = True
            self._stream.close()
            self._reader.cancel()
            for _, answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError(str(reason)))
                    answer.exception()
            self._waiting.clear()

    async def _read(self) -> None:
        head = bytearray(4)
        try:
            while True:
                await self._stream.read_exactly(memoryview(head))
                body = bytearray(_size.unpack(head)[0])
                await self._stream.read_exactly(memoryview(body))
                frame = bytes(body)
                (correlation_id,) = _size.unpack_from(frame)
                api_key, answer = self._waiting.pop(correlation_id)
                _, start = response_body(api_key, VERSIONS[api_key], frame)
                if not answer.done():
                    answer.set_result(read_response(api_key, VERSIONS[api_key], frame, start))
        except OSError as error:
            self.close(error)


class Client:
    """One client process: what it knows of the cluster, and its connections."""

    def __init__(
        self, name: str, bootstrap: list[tuple[str, int]], opener: Opener, history: History, random: Random
    ) -> None:
        self.name = name
        self.history = history
        self.random = random
        self.timeout_s = 3.0
        self.backoff_s = 0.1
        self.epoch_ms = 1_700_000_000_000  # when its records were made: brokers forget producers by that
        self.leaders: dict[Partition, tuple[int, int]] = {}  # broker id, leader epoch
        self._bootstrap = bootstrap
        self._opener = opener
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], Connection] = {}
        self._opening = asyncio.Lock()

    async def to_any(self, api_key: int, message: Mapping[str, Any]) -> Any:
        """Asks a broker chosen by lot. Raises Unavailable."""
        known = list(self._addresses.values()) or self._bootstrap
        return await self._to(self.random.choice(known + self._bootstrap), api_key, message)

    async def to_broker(self, broker_id: int, api_key: int, message: Mapping[str, Any]) -> Any:
        """Asks one broker. Raises Unavailable."""
        address = self._addresses.get(broker_id)
        if address is None:
            raise Unavailable(f"no address of broker {broker_id}", sent=False)
        return await self._to(address, api_key, message)

    async def connection_to_leader(self, partition: Partition) -> tuple[Connection, int]:
        """A connection to the leader, and the leader epoch. Raises Unavailable."""
        leader, epoch = self.leaders.get(partition, (-1, -1))
        if leader not in self._addresses:
            await self.refresh(partition[0])
            leader, epoch = self.leaders.get(partition, (-1, -1))
        if leader not in self._addresses:
            raise Unavailable(f"{partition} has no leader", sent=False)
        return await self._connection(self._addresses[leader]), epoch

    async def refresh(self, topic: str) -> None:
        """Asks who leads. Raises Unavailable."""
        answer = await self.to_any(METADATA, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
        for broker in answer.brokers:
            self._addresses[broker.node_id] = (broker.host, broker.port)
        for found in answer.topics:
            for partition in found.partitions:
                key = (found.name, partition.partition_index)
                if partition.leader_epoch >= self.leaders.get(key, (-1, -1))[1]:
                    self.leaders[key] = (partition.leader_id, partition.leader_epoch)

    async def refreshed(self, topic: str) -> None:
        """After an error: waits a moment and asks who leads, as far as that works."""
        await asyncio.sleep(self.backoff_s * self.random.uniform(0.5, 1.5))
        with contextlib.suppress(Unavailable):
            await self.refresh(topic)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    async def _to(self, address: tuple[str, int], api_key: int, message: Mapping[str, Any]) -> Any:
        connection = await self._connection(address)
        return await connection.call(api_key, message, self.timeout_s)

    async def _connection(self, address: tuple[str, int]) -> Connection:
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            try:
                async with asyncio.timeout(self.timeout_s), self._opening:
                    connection = self._connections.get(address)
                    if connection is None or connection.closed:
                        connection = Connection(await self._opener(*address), self.name)
                        self._connections[address] = connection
            except (OSError, TimeoutError) as error:
                raise Unavailable(error, sent=False) from error
        return connection


class _Batch:
    """A batch on its way."""

    def __init__(self, values: list[str], frame: bytes, sequence: int, begun: Event) -> None:
        self.values = values
        self.frame = frame
        self.sequence = sequence
        self.begun = begun


class Producer:
    """Sends numbered values to one partition. `depth` batches may be under way."""

    def __init__(
        self, client: Client, partition: Partition, *, acks: int, idempotent: bool, depth: int, padding: int
    ) -> None:
        self.client = client
        self.partition = partition
        self.acks = acks
        self.idempotent = idempotent
        self.stopped = False
        self.done = False
        self._depth = depth
        self._padding = padding
        self._producer = (-1, -1)  # id, epoch
        self._sequence = 0
        self._number = 0
        self._unacknowledged: list[_Batch] = []

    async def run(self, pause_s: float) -> None:
        """Sends until stopped, and then until all is acknowledged."""
        while not self.stopped or self._unacknowledged:
            if self.idempotent and self._producer[0] < 0:
                await self._become_idempotent()
            if not self.stopped:
                for _ in range(self.client.random.randint(1, self._depth) - len(self._unacknowledged)):
                    self._unacknowledged.append(self._batch())
            if self.idempotent:
                await self._send_in_order()
            else:
                await self._send_once()
            if not self.stopped:
                await asyncio.sleep(pause_s * self.client.random.uniform(0.2, 1.8))
        self.done = True

    async def _become_idempotent(self) -> None:
        message = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1}
        while self._producer[0] < 0:
            try:
                answer = await self.client.to_any(INIT_PRODUCER_ID, message)
            except Unavailable:
                await asyncio.sleep(self.client.backoff_s)
                continue
            if answer.error_code:
                await asyncio.sleep(self.client.backoff_s)
            else:
                self._producer = (answer.producer_id, answer.producer_epoch)
        self._sequence = 0

    def _forgotten(self, batch: _Batch, error: KafkaError) -> None:
        """The broker doesn't know what it acknowledged: noted, and begun anew under another producer id."""
        self.client.history.add(
            "forgotten", "fail", process=self.client.name, partition=list(self.partition), value=batch.values[0],
            error=error.code.name,
        )  # fmt: skip
        for waiting in self._unacknowledged:
            self.client.history.end(waiting.begun, "unknown")
        self._unacknowledged = []
        self._producer = (-1, -1)

    def _batch(self) -> _Batch:
        count = self.client.random.randint(1, 4)
        values = []
        for _ in range(count):
            self._number += 1
            values.append(f"{self.client.name}/{self._number}")
        padding = self.client.random.randrange(self._padding + 1)
        items = [
            Record(at, self.client.epoch_ms + self._number, None, value.encode().ljust(padding, b"."))
            for at, value in enumerate(values)
        ]
        sequence = self._sequence if self.idempotent else -1
        frame = build_batch(
            items, producer_id=self._producer[0], producer_epoch=self._producer[1], base_sequence=sequence
        )
        self._sequence += count
        begun = self.client.history.invoke(
            "send", process=self.client.name, partition=list(self.partition), values=values, acks=self.acks,
            idempotent=self.idempotent,
        )  # fmt: skip
        return _Batch(values, frame, sequence, begun)

    async def _send_in_order(self) -> None:
        """One round: everything that isn't acknowledged, in order; what fails stays for the next."""
        outcomes: list[Any] = []
        try:
            connection, _ = await self.client.connection_to_leader(self.partition)
            outcomes = await asyncio.gather(
                *(self._produce(connection, batch) for batch in self._unacknowledged), return_exceptions=True
            )
        except Unavailable:
            pass
        left: list[_Batch] = []
        for batch, outcome in zip(self._unacknowledged, outcomes or [None] * len(self._unacknowledged), strict=True):
            if isinstance(outcome, int):
                self.client.history.end(batch.begun, "ok", offset=outcome)
                continue
            if isinstance(outcome, BaseException) and not isinstance(outcome, (KafkaError, Unavailable)):
                raise outcome
            if isinstance(outcome, KafkaError) and outcome.code in FORGOTTEN and not left:
                self._unacknowledged = self._unacknowledged[self._unacknowledged.index(batch) :]
                self._forgotten(batch, outcome)
                return
            left.append(batch)
        self._unacknowledged = left
        if left:
            self.client.history.counts["sends repeated"] += len(left)
            await self.client.refreshed(self.partition[0])

    async def _send_once(self) -> None:
        """Each batch once: what isn't answered stays unknown."""
        batches, self._unacknowledged = self._unacknowledged, []
        again = False
        for batch in batches:
            try:
                connection, _ = await self.client.connection_to_leader(self.partition)
                offset = await self._produce(connection, batch)
            except Unavailable as error:
                self.client.history.end(batch.begun, "unknown" if error.sent else "fail")
                again = True
            except KafkaError as error:
                self.client.history.end(batch.begun, "fail" if error.code in REFUSED else "unknown")
                again = True
            else:
                self.client.history.end(batch.begun, "ok", offset=offset)
        if again:
            await self.client.refreshed(self.partition[0])

    async def _produce(self, connection: Connection, batch: _Batch) -> int:
        topic, index = self.partition
        message = {
            "acks": self.acks,
            "timeout": int(self.client.timeout_s * 800),
            "topic_data": [{"name": topic, "partition_data": [{"index": index, "records": batch.frame}]}],
        }
        answer = await connection.call(PRODUCE, message, self.client.timeout_s)
        (result,) = answer.responses[0].partition_responses
        if result.error_code == ErrorCode.duplicate_sequence_number:
            return -1
        if result.error_code:
            raise KafkaError(result.error_code)
        return int(result.base_offset)


class Consumer:
    """Reads one partition from its start on."""

    def __init__(self, client: Client, partition: Partition, position: int = 0) -> None:
        self.client = client
        self.partition = partition
        self.position = position
        self.high_watermark = -1
        self.log_start = 0
        self.stopped = False

    async def run(self, pause_s: float, wait_ms: int) -> None:
        """Polls until stopped."""
        while not self.stopped:
            begun = self.client.history.invoke(
                "poll", process=self.client.name, partition=list(self.partition), position=self.position
            )
            try:
                found = await self.poll(wait_ms)
            except (Unavailable, KafkaError) as error:
                self.client.history.end(begun, "fail", error=str(error))
                if isinstance(error, KafkaError) and error.code is ErrorCode.offset_out_of_range:
                    self.position = 0
                await self.client.refreshed(self.partition[0])
                continue
            self.client.history.end(begun, "ok", records=found)
            if found:
                self.position = found[-1][0] + 1
            await asyncio.sleep(pause_s * self.client.random.uniform(0.2, 1.8))

    async def poll(self, wait_ms: int) -> list[tuple[int, str]]:
        """(offset, value) of what comes next. Raises Unavailable, KafkaError."""
        topic, index = self.partition
        connection, epoch = await self.client.connection_to_leader(self.partition)
        asked = {
            "partition": index,
            "current_leader_epoch": epoch,
            "fetch_offset": self.position,
            "last_fetched_epoch": -1,
            "partition_max_bytes": self.client.random.choice((200, 4096, 1 << 20)),
        }
        message = {
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": self.client.random.randrange(2),
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": [asked]}],
        }
        answer = await connection.call(FETCH, message, self.client.timeout_s + wait_ms / 1000)
        if answer.error_code:
            raise KafkaError(answer.error_code)
        (result,) = answer.responses[0].partitions
        if result.error_code:
            raise KafkaError(result.error_code)
        self.high_watermark = result.high_watermark
        self.log_start = result.log_start_offset
        data = bytes(result.records or b"")
        return [
            (record.offset, (record.value or b"").decode().rstrip("."))
            for at, header in iterate_headers(data)
            for record in records(data[at : at + header.size])
            if record.offset >= self.position
        ]


class Committer:
    """Commits growing offsets of one partition for a group, and reads them back."""

    def __init__(self, client: Client, group: str, partition: Partition) -> None:
        self.client = client
        self.group = group
        self.partition = partition
        self.stopped = False
        self._coordinator = -1
        self._offset = 0

    async def run(self, pause_s: float) -> None:
        """Commits one offset after the other until stopped; each once."""
        while not self.stopped:
            self._offset += 1
            begun = self.client.history.invoke(
                "commit", process=self.client.name, group=self.group, partition=list(self.partition),
                offset=self._offset,
            )  # fmt: skip
            try:
                await self._commit()
            except Unavailable as error:
                self.client.history.end(begun, "unknown" if error.sent else "fail")
                self._coordinator = -1
            except KafkaError as error:
                # A coordinator that lost its partition while it waited has perhaps written all the same.
                self.client.history.end(begun, "unknown", error=error.code.name)
                self._coordinator = -1
            else:
                self.client.history.end(begun, "ok")
            await asyncio.sleep(pause_s * self.client.random.uniform(0.2, 1.8))
            if self.client.random.random() < 0.2:
                await self.look()

    async def watch(self, pause_s: float) -> None:
        """Reads the committed offset again and again until stopped, whatever somebody else is just committing."""
        while not self.stopped:
            await self.look()
            await asyncio.sleep(pause_s * self.client.random.uniform(0.2, 1.8))

    async def look(self) -> bool:
        """Reads the committed offset; whether that worked."""
        begun = self.client.history.invoke(
            "committed", process=self.client.name, group=self.group, partition=list(self.partition)
        )
        topic, index = self.partition
        message = {
            "group_id": self.group,
            "topics": [{"name": topic, "partition_indexes": [index]}],
            "require_stable": False,
        }
        try:
            answer = await self._to_coordinator(OFFSET_FETCH, message)
            if answer.error_code:
                raise KafkaError(answer.error_code)
            (result,) = answer.topics[0].partitions
            if result.error_code:
                raise KafkaError(result.error_code)
        except (Unavailable, KafkaError) as error:
            self.client.history.end(begun, "fail", error=str(error))
            self._coordinator = -1
            await asyncio.sleep(self.client.backoff_s)
            return False
        self.client.history.end(begun, "ok", offset=result.committed_offset, by=self._coordinator)
        return True

    async def _commit(self) -> None:
        topic, index = self.partition
        partition = {"partition_index": index, "committed_offset": self._offset, "committed_leader_epoch": -1}
        message = {
            "group_id": self.group,
            "generation_id_or_member_epoch": -1,
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": [partition]}],
        }
        answer = await self._to_coordinator(OFFSET_COMMIT, message)
        (result,) = answer.topics[0].partitions
        if result.error_code:
            raise KafkaError(result.error_code)

    async def _to_coordinator(self, api_key: int, message: Mapping[str, Any]) -> Any:
        if self._coordinator < 0:
            await self.client.refreshed(self.partition[0])
            answer = await self.client.to_any(FIND_COORDINATOR, {"key": self.group, "key_type": 0})
            if answer.error_code:
                raise KafkaError(answer.error_code)
            self._coordinator = answer.node_id
        return await self.client.to_broker(self._coordinator, api_key, message)


async def create_topic(client: Client, name: str, assignments: list[list[int]], configs: Mapping[str, str]) -> None:
    """Creates a topic, with persistence."""
    topic = {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [
            {"partition_index": index, "broker_ids": replicas} for index, replicas in enumerate(assignments)
        ],
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    while True:
        try:
            answer = await client.to_any(CREATE_TOPICS, {"topics": [topic], "timeout": 2000, "validate_only": False})
        except Unavailable:
            await asyncio.sleep(client.backoff_s)
            continue
        code = answer.topics[0].error_code
        if code in (ErrorCode.none, ErrorCode.topic_already_exists):
            return
        await asyncio.sleep(client.backoff_s)


async def reassign(client: Client, partition: Partition, replicas: list[int] | None) -> None:
    """Asks for other replicas, or (None) that it be left at those of before; whatever comes of it."""
    topic, index = partition
    wish = {"name": topic, "partitions": [{"partition_index": index, "replicas": replicas}]}
    with contextlib.suppress(Unavailable):
        await client.to_any(ALTER_PARTITION_REASSIGNMENTS, {"timeout": 2000, "topics": [wish]})


async def elect_preferred(client: Client, topic: str, indexes: list[int]) -> None:
    """Asks for the first replicas to lead; whatever comes of it."""
    wish = [{"topic": topic, "partitions": indexes}]
    with contextlib.suppress(Unavailable):
        await client.to_any(ELECT_LEADERS, {"election_type": 0, "topic_partitions": wish, "timeout": 2000})
