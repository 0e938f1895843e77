"""Small clients that send the protocol's messages, and retry as persistently as Kafka's clients do.

They obey Kafka's rules that matter for safety. An idempotent producer resends in order from the first unacknowledged
batch. A client ignores metadata with an older leader epoch than the known one. Fetches name the leader epoch, so that a
deposed leader can't answer for the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

from ottla.protocol.errors import ErrorCode
from ottla.protocol.frames import request_frame, response_body
from ottla.protocol.messages import read_response, write_request

from .history import History
from .network import Stream

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = 19, 20, 22
ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
ELECT_LEADERS, INCREMENTAL_ALTER_CONFIGS, ALTER_PARTITION_REASSIGNMENTS, UPDATE_FEATURES = 43, 44, 45, 57
VERSIONS = {
    PRODUCE: 9, FETCH: 12, LIST_OFFSETS: 7, METADATA: 12, OFFSET_COMMIT: 8, OFFSET_FETCH: 7, FIND_COORDINATOR: 3,
    JOIN_GROUP: 6, HEARTBEAT: 4, LEAVE_GROUP: 4, SYNC_GROUP: 4, CREATE_TOPICS: 7, DELETE_TOPICS: 5, INIT_PRODUCER_ID: 4,
    ADD_PARTITIONS_TO_TXN: 3, ADD_OFFSETS_TO_TXN: 3, END_TXN: 4, TXN_OFFSET_COMMIT: 4,
    ELECT_LEADERS: 2, INCREMENTAL_ALTER_CONFIGS: 1, ALTER_PARTITION_REASSIGNMENTS: 0,
    UPDATE_FEATURES: 1,
}  # fmt: skip

Partition = tuple[str, int]
Opener = Callable[[str, int], Awaitable[Stream]]
_size = struct.Struct(">i")


class Unavailable(Exception):
    """The request isn't served now. `sent` says whether the request may have had an effect nevertheless."""

    def __init__(self, reason: object, *, sent: bool) -> None:
        super().__init__(str(reason))
        self.sent = sent


class Bell:
    """Ends the pauses of all clients early, so that their work comes in bursts."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def pause(self, seconds: float) -> None:
        """Pauses until the bell rings, at most for `seconds`."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _wake, woken)
        self._waiting[woken] = None
        try:
            await woken
        finally:
            timer.cancel()
            del self._waiting[woken]

    def ring(self) -> None:
        for woken in self._waiting:
            _wake(woken)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class Connection:
    """Requests over one stream. Several may be in flight; they are answered in order."""

    def __init__(self, stream: Stream, client_id: str) -> None:
        self.closed = False
        self._stream = stream
        self._client_id = client_id
        self._correlation_id = 0
        self._waiting: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self._reader = asyncio.create_task(self._read())
        self._writing = asyncio.Lock()

    async def call(self, api_key: int, message: Mapping[str, Any], timeout_s: float, version: int = -1) -> Any:
        """Sends a request and returns the answer. Raises Unavailable."""
        if self.closed:
            raise Unavailable("closed", sent=False)
        version = VERSIONS[api_key] if version < 0 else version
        self._correlation_id += 1
        frame = request_frame(
            api_key, version, self._correlation_id, self._client_id, write_request(api_key, version, message)
        )
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._correlation_id] = (api_key, version, answer)
        try:
            async with asyncio.timeout(timeout_s):
                async with self._writing:
                    await self._stream.write(frame)
                return await answer
        except (OSError, TimeoutError) as error:
            self.close(error)
            raise Unavailable(error, sent=True) from error

    def close(self, reason: object = "closed") -> None:
        """Closes the stream, and fails all requests in flight."""
        if not self.closed:
            self.closed = True
            self._stream.close()
            self._reader.cancel()
            for *_, answer in self._waiting.values():
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
                api_key, version, answer = self._waiting.pop(correlation_id)
                _, start = response_body(api_key, version, frame)
                if not answer.done():
                    answer.set_result(read_response(api_key, version, frame, start))
        except OSError as error:
            self.close(error)


class Client:
    """One client process: its metadata of the cluster, and its connections."""

    def __init__(
        self,
        name: str,
        bootstrap: list[tuple[str, int]],
        opener: Opener,
        history: History,
        random: Random,
        bell: Bell | None = None,
    ) -> None:
        self.name = name
        self.history = history
        self.random = random
        self.bell = bell or Bell()
        self.timeout_s = 3.0
        self.backoff_s = 0.1
        self.epoch_ms = 1_700_000_000_000  # the base of its records' timestamps, by which brokers expire producers
        self.leaders: dict[Partition, tuple[int, int]] = {}  # broker id, leader epoch
        self._bootstrap = bootstrap
        self._opener = opener
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[tuple[str, int], Connection] = {}
        self._opening = asyncio.Lock()

    async def to_any(self, api_key: int, message: Mapping[str, Any]) -> Any:
        """Sends a request to a random broker, and returns the answer. Raises Unavailable."""
        known = list(self._addresses.values()) or self._bootstrap
        return await self._to(self.random.choice(known + self._bootstrap), api_key, message)

    async def to_broker(self, broker_id: int, api_key: int, message: Mapping[str, Any], version: int = -1) -> Any:
        """Sends a request to this broker, and returns the answer. Raises Unavailable."""
        address = self._addresses.get(broker_id)
        if address is None:
            raise Unavailable(f"the address of broker {broker_id} isn't known", sent=False)
        return await self._to(address, api_key, message, version)

    async def connection_to_leader(self, partition: Partition) -> tuple[Connection, int]:
        """A connection to the partition's leader, and the leader epoch. Raises Unavailable."""
        leader, epoch = self.leaders.get(partition, (-1, -1))
        if leader not in self._addresses:
            await self.refresh(partition[0])
            leader, epoch = self.leaders.get(partition, (-1, -1))
        if leader not in self._addresses:
            raise Unavailable(f"{partition} has no leader", sent=False)
        return await self._connection(self._addresses[leader]), epoch

    async def refresh(self, topic: str) -> None:
        """Asks for the topic's leaders. Raises Unavailable."""
        answer = await self.to_any(METADATA, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
        for broker in answer.brokers:
            self._addresses[broker.node_id] = (broker.host, broker.port)
        for found in answer.topics:
            for partition in found.partitions:
                key = (found.name, partition.partition_index)
                if partition.leader_epoch >= self.leaders.get(key, (-1, -1))[1]:
                    self.leaders[key] = (partition.leader_id, partition.leader_epoch)

    async def refreshed(self, topic: str) -> None:
        """After an error: waits a moment and asks for the topic's leaders. Ignores that no broker answers."""
        await asyncio.sleep(self.backoff_s * self.random.uniform(0.5, 1.5))
        with contextlib.suppress(Unavailable):
            await self.refresh(topic)

    async def pause(self, seconds: float) -> None:
        """Pauses for about `seconds`, or until the bell rings."""
        await self.bell.pause(seconds * self.random.uniform(0.2, 1.8))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    async def _to(self, address: tuple[str, int], api_key: int, message: Mapping[str, Any], version: int = -1) -> Any:
        connection = await self._connection(address)
        return await connection.call(api_key, message, self.timeout_s, version)

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


async def create_topic(client: Client, name: str, assignments: list[list[int]], configs: Mapping[str, str]) -> None:
    """Creates a topic, and retries until it exists."""
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
    """Asks for other replicas of a partition; None cancels the partition's reassignment. The outcome is ignored."""
    topic, index = partition
    wish = {"name": topic, "partitions": [{"partition_index": index, "replicas": replicas}]}
    with contextlib.suppress(Unavailable):
        await client.to_any(ALTER_PARTITION_REASSIGNMENTS, {"timeout": 2000, "topics": [wish]})


async def elect_preferred(client: Client, topic: str, indexes: list[int]) -> None:
    """Asks for preferred leader elections. The outcome is ignored."""
    wish = [{"topic": topic, "partitions": indexes}]
    with contextlib.suppress(Unavailable):
        await client.to_any(ELECT_LEADERS, {"election_type": 0, "topic_partitions": wish, "timeout": 2000})


async def drain(client: Client, brokers: list[int]) -> None:
    """Makes these brokers the only drained ones. The outcome of the request is ignored."""
    config = {"name": "ottla.brokers.drained", "config_operation": 0, "value": ",".join(map(str, brokers))}
    resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
    with contextlib.suppress(Unavailable):
        await client.to_any(INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})


UPGRADE, SAFE_DOWNGRADE = 1, 2


async def finalise(client: Client, feature: str, level: int) -> None:
    """Asks for another level of a feature, whether it is higher or lower than the present one. The outcome is
    ignored."""
    for kind in (UPGRADE, SAFE_DOWNGRADE):
        wish = [{"feature": feature, "max_version_level": level, "upgrade_type": kind}]
        with contextlib.suppress(Unavailable):
            await client.to_any(UPDATE_FEATURES, {"timeout": 2000, "feature_updates": wish, "validate_only": False})
