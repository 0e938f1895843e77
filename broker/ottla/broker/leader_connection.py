"""The connection of a replica fetcher to the broker from which it copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ottla.broker.replica.fetch_session import Key
from ottla.metadata.image import Image
from ottla.net.peer import Answer, Peer
from ottla.net.streams import Connect
from ottla.protocol.errors import ProtocolError
from ottla.protocol.messages import read_response, write_request
from ottla.settings.config import BrokerConfig

LIST_OFFSETS = 2
LATEST, EARLIEST = -1, -2  # the timestamps that ask ListOffsets for the end and the start of the leader's log
_LIST_OFFSETS_VERSION = 7


@dataclass(frozen=True, slots=True)
class AskedPartition:
    """A partition in a ListOffsets request. `leader_epoch` is the epoch of the leader that this replica follows."""

    topic: str
    index: int
    leader_epoch: int


class LeaderConnection:
    """Sends requests to one broker, at the address that the broker's registration has when the connection is opened.

    The first request opens the connection; the first request after a failure or `close` opens another one.
    """

    def __init__(
        self,
        broker_id: int,
        leader: int,
        image: Callable[[], Image],
        config: Callable[[], BrokerConfig],
        connect: Connect,
    ) -> None:
        self._broker_id = broker_id
        self._leader = leader
        self._image = image
        self._config = config
        self._connect = connect
        self._peer: Peer | None = None
        self._dialled_epoch = -1  # the leader's registration to whose address the connection goes

    async def request(self, api_key: int, version: int, body: bytes) -> Answer:
        """Sends a request and returns its answer. Raises OSError, as TimeoutError after `replica.socket.timeout.ms`,
        and ProtocolError."""
        config = self._config()
        peer = self._peer
        if peer is None or not peer.connected:
            peer = self._peer = self._dial(config)
        return await peer.request(api_key, version, body, config.get_int("replica.socket.timeout.ms") / 1000)

    async def list_offsets(self, asking: Mapping[Key, AskedPartition], mark: int) -> Mapping[Key, tuple[int, int]]:
        """The leader's (error code, offset) for each partition: its end offset if `mark` is LATEST, its start offset if
        `mark` is EARLIEST. Raises OSError, ProtocolError."""
        body = write_request(LIST_OFFSETS, _LIST_OFFSETS_VERSION, self._list_offsets_message(asking.values(), mark))
        answer = await self.request(LIST_OFFSETS, _LIST_OFFSETS_VERSION, body)
        listed = read_response(LIST_OFFSETS, _LIST_OFFSETS_VERSION, bytes(answer.frame[: answer.end]), answer.start)
        found = {
            (topic.name, told.partition_index): (int(told.error_code), int(told.offset))
            for topic in listed.topics
            for told in topic.partitions
        }
        try:
            return {key: found[asked.topic, asked.index] for key, asked in asking.items()}
        except KeyError as missing:
            raise ProtocolError(f"the answer to ListOffsets lacks the requested partition {missing}") from None

    def registered_anew(self) -> bool:
        """Whether the leader has registered again since the connection was opened: the process that would answer is
        gone."""
        registered = self._image().brokers.get(self._leader)
        return registered is not None and registered.epoch != self._dialled_epoch

    def give_up(self) -> bool:
        """Ends the request under way with TimeoutError, unless its answer has begun to arrive. Returns whether it ends
        the request."""
        return self._peer is not None and self._peer.give_up()

    def close(self) -> None:
        """Closes the connection, if it is open. A later request opens another one."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _list_offsets_message(self, asking: Iterable[AskedPartition], mark: int) -> Mapping[str, object]:
        topics: dict[str, list[dict[str, int]]] = {}
        for asked in asking:
            partition = {
                "partition_index": asked.index,
                "current_leader_epoch": asked.leader_epoch,
                "timestamp": mark,
            }
            topics.setdefault(asked.topic, []).append(partition)
        return {
            "replica_id": self._broker_id,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
        }

    def _dial(self, config: BrokerConfig) -> Peer:
        """A connection to the leader's present address, not open yet. Raises OSError where the leader has no
        address."""
        registered = self._image().brokers.get(self._leader)
        listener = config.listeners.inter_broker
        endpoint = None if registered is None else registered.endpoints.get(listener)
        if endpoint is None:
            missing = "isn't registered" if registered is None else f"has no listener {listener}"
            raise OSError(f"broker {self._leader} {missing}")
        assert registered is not None
        self._dialled_epoch = registered.epoch
        return Peer(self._connect, endpoint.host, endpoint.port, f"broker-{self._broker_id}-fetcher")
