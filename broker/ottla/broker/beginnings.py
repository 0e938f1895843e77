"""The batches of one Produce request with which a transaction begins in their partitions.

Before such a batch is appended, the transaction's coordinator has to confirm it (`verification.py`). One question to
the coordinator covers all such batches of a request. The batches join the queues of their partitions only after the
answer, so that no other producer waits for a coordinator.

The producer's later requests over the same connection wait, too (`Order`). If a later batch were checked first, the
partition would refuse it with OUT_OF_ORDER_SEQUENCE_NUMBER. The producer would get this error after the success of the
earlier batch, and would take the error for a loss of records. Kafka's brokers handle one request of a connection at a
time.

Requests that wait for one coordinator (by the id of its broker) have at most a quarter of the memory for requests, and
those that wait for any coordinator have half of it. A further request is answered NOT_ENOUGH_REPLICAS at once, as if no
coordinator were available: its producer sends it again after its backoff, and looks for no other leader. So a
coordinator that doesn't answer for seconds leaves room for the requests of producers without transactions, and for
those that wait for one other coordinator at least.

Source: KIP-890; Kafka's ReplicaManager.handleProduceAppend.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Protocol

from ottla.broker.transaction.initialization import Producer
from ottla.broker.transaction.metadata import TopicPartition
from ottla.broker.transaction_verifier import Errors
from ottla.broker.verification import NOT_NEEDED, Guard
from ottla.protocol import batches
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.produce import ProduceRequest
from ottla.protocol.received import Memory

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

V2_FIRST_VERSION = 12
"""The first version of Produce that clients of transaction protocol V2 send. Such a client doesn't add a partition to
its transaction itself: the partition's leader does."""

COORDINATORS_PART = 4  # one part in so many of the memory for requests may wait for one coordinator
ALL_PART = 2  # one part in so many may wait for all coordinators
_ABORTABLE_FIRST_VERSION = 11  # the first version of Produce whose clients know TRANSACTION_ABORTABLE
_RETRIED = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.operation_not_attempted,  # another partition of the request is too new for the coordinator
    }
)


class Verifier(Protocol):
    """Asks the coordinators of transactions."""

    async def confirm(
        self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition], *, adds: bool
    ) -> Errors:
        """Asks whether the transaction has the partitions, or adds them; see `TransactionVerifier.confirm`."""

    def leader(self, transactional_id: str) -> int:
        """The id of the coordinator's broker; see `TransactionVerifier.leader`."""


class Order:
    """The connections with requests that wait for a transaction's coordinator. Transactional requests of one connection
    are handled in the order of their arrival. `memory_bytes` is the memory for the requests of all connections."""

    def __init__(self, memory_bytes: int) -> None:
        self._waiting_bytes = Counter[int]()  # by the coordinator's broker
        self._bytes_max = memory_bytes // COORDINATORS_PART
        self._all_bytes_max = memory_bytes // ALL_PART
        self._last: dict[object, asyncio.Future[None]] = {}

    def waits(self, connection: object) -> bool:
        """Whether a request of the connection waits for a transaction's coordinator."""
        return connection in self._last

    def has_room(self, size_bytes: int, coordinator: int) -> bool:
        """Whether a request that keeps `size_bytes` may wait for the coordinator in broker `coordinator`. One request
        may always wait, however large it is."""
        all_bytes, its_bytes = self._waiting_bytes.total(), self._waiting_bytes[coordinator]
        return not all_bytes or (
            all_bytes + size_bytes <= self._all_bytes_max
            and (not its_bytes or its_bytes + size_bytes <= self._bytes_max)
        )

    def join(self, connection: object, size_bytes: int, coordinator: int) -> Place:
        """A place behind all requests of the connection that wait now, for a request that keeps `size_bytes`. The
        caller must call the place's `leave`."""
        place = Place(self, connection, self._last.get(connection), size_bytes, coordinator)
        self._last[connection] = place.left
        self._waiting_bytes[coordinator] += size_bytes
        return place

    def left(self, place: Place) -> None:
        """Called by `place` when it has been left."""
        self._waiting_bytes[place.coordinator] -= place.size_bytes
        if not self._waiting_bytes[place.coordinator]:
            del self._waiting_bytes[place.coordinator]
        if self._last.get(place.connection) is place.left:
            del self._last[place.connection]


class Place:
    """A request's place among the transactional requests of its connection."""

    __slots__ = ("_before", "_order", "connection", "coordinator", "left", "size_bytes")

    def __init__(
        self,
        order: Order,
        connection: object,
        before: asyncio.Future[None] | None,
        size_bytes: int,
        coordinator: int,
    ) -> None:
        self._order = order
        self._before = before
        self.connection = connection
        self.size_bytes = size_bytes
        self.coordinator = coordinator
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def comes(self) -> None:
        """Waits until all earlier requests of the connection have left."""
        if self._before is not None:
            await asyncio.wait([self._before])

    def leave(self) -> None:
        """Called when the batches of this place's request have joined their partitions' queues, or the request has
        ended. Once all earlier requests have left, too, the next request goes on. May be called more than once."""
        if self._before is not None and not self._before.done():
            self._before.add_done_callback(lambda _: self.leave())
        elif not self.left.done():
            self.left.set_result(None)
            self._order.left(self)


class Beginnings:
    """The batches that begin transactions, by their partitions; and the coordinator's answer, once `confirm` has got
    it."""

    __slots__ = ("_adds", "_errors", "_guards", "_producer", "_transactional_id", "_version")

    def __init__(
        self, transactional_id: str, producer: Producer, guards: dict[TopicPartition, Guard], version: int
    ) -> None:
        self._transactional_id = transactional_id
        self._producer = producer
        self._guards = guards
        self._version = version
        self._adds = version >= V2_FIRST_VERSION
        self._errors: Errors = {}

    async def confirm(self, verifier: Verifier) -> None:
        """Asks the transaction's coordinator about all batches. Raises nothing."""
        partitions = self._guards.keys()
        self._errors = await verifier.confirm(self._transactional_id, self._producer, partitions, adds=self._adds)

    def guard(self, partition: Partition) -> Guard:
        """The guard for the batch of `partition`. Raises KafkaError with the error code for the producer where the
        coordinator hasn't confirmed the batch."""
        key = TopicPartition(partition.topic, partition.index)
        guard = self._guards.get(key)
        if guard is None:
            return NOT_NEEDED
        error = for_producer(self._errors[key], self._version)
        if error is not ErrorCode.none:
            raise KafkaError(error, "the coordinator doesn't confirm that the transaction has the partition")
        return guard


def beginnings(
    request: ProduceRequest, frame: Memory, version: int, find: Callable[[str | bytes, int], Partition | None]
) -> Beginnings | None:
    """The batches of a Produce request of `version` with which transactions begin; None if there are none. `find`
    returns this broker's replica of a partition. Batches that will be refused for another reason are left out.

    Raises KafkaError INVALID_PRODUCER_ID_MAPPING if the transactional batches have several producer ids."""
    assert request.transactional_id is not None
    guards: dict[TopicPartition, Guard] = {}
    producers: set[Producer] = set()
    for topic, partitions in request.topics:
        for index, start, end in partitions:
            if end - start < batches.HEADER_SIZE:
                continue
            header = batches.read_header(frame, start)
            if not header.attributes & batches.TRANSACTIONAL or header.producer_id < 0:
                continue
            producers.add(Producer(header.producer_id, header.producer_epoch))
            partition = find(topic, index)
            if partition is None or not partition.leads:
                continue
            try:
                guard = partition.guard_for(
                    header.producer_id, header.producer_epoch, header.base_sequence, bumps=version >= V2_FIRST_VERSION
                )
            except KafkaError:
                continue  # the append is refused for the same reason
            if guard is not NOT_NEEDED:
                guards[TopicPartition(partition.topic, partition.index)] = guard
    if len(producers) > 1:
        raise KafkaError(
            ErrorCode.invalid_producer_id_mapping, "the request has transactional batches of several producers"
        )
    return Beginnings(request.transactional_id, producers.pop(), guards, version) if guards else None


def for_producer(error: ErrorCode, version: int) -> ErrorCode:
    """The error code for a producer that sent Produce of `version`, where a coordinator's answer was `error`. The
    producer doesn't look for a coordinator: it sends the batch again to the partition's leader, or aborts."""
    if error is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch  # which a producer gets over by an abort, if it wasn't fenced
    if error in _RETRIED or (error is ErrorCode.concurrent_transactions and version < V2_FIRST_VERSION):
        return ErrorCode.not_enough_replicas  # retried without a look for another leader
    if error is ErrorCode.transaction_abortable and version < _ABORTABLE_FIRST_VERSION:
        return ErrorCode.invalid_txn_state
    return error
