"""Transactional producers: one transactional id, and its producers one after the other.

A producer writes to several partitions, may commit offsets of a group in the same transaction, and then commits or
aborts. It retries as Kafka's clients do, and classifies errors as they do: after some it aborts, after others it ends
and a successor begins anew under the same id. It dies between any two steps; its successor may begin while it still
writes.

Each transaction speaks one of both protocols of KIP-890. With the older one (V1) a producer adds partitions itself,
and keeps its epoch from one transaction to the next. With the newer one (V2) partitions are added by the brokers, and
EndTxn gives the producer its next epoch. A producer that goes over from V1 to V2 begins a new epoch, as Java's does.

Requests may get lost on their way, and arrive later: after repeats of them, in a later transaction, after a successor's
beginning. With V2 they must do no harm there. With V1 a delayed request ends or tears a later transaction of the same
epoch, by Kafka's design; so after an unanswered request of V1 the producer takes a new epoch (KIP-360).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.protocol.batches import Record, build_batch
from ottla.protocol.errors import ErrorCode, KafkaError

from .client import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Client,
    Partition,
    Unavailable,
)  # fmt: skip
from .history import Event

V1, V2 = 1, 2
VERSIONS = {
    V1: {ADD_PARTITIONS_TO_TXN: 3, ADD_OFFSETS_TO_TXN: 3, PRODUCE: 11, TXN_OFFSET_COMMIT: 4, END_TXN: 4},
    V2: {PRODUCE: 12, TXN_OFFSET_COMMIT: 5, END_TXN: 5},
}
GROUP, TRANSACTION = 0, 1  # types of coordinators
IMPATIENT_S = (0.001, 0.003, 0.01)  # about as long as a request and its verification take
LATE_OF_THE_IMPATIENT = 0.4
DEATHS_AT_THE_END = 0.5
LATE_S = (0.003, 0.01, 0.1, 0.5, 2.0)  # the mean delay of a request that got lost on its way

# Errors after which the producer is over, by the API; those of Kafka's clients.
_E = ErrorCode
FATAL: Mapping[int, frozenset[ErrorCode]] = {
    INIT_PRODUCER_ID: frozenset({_E.invalid_producer_epoch, _E.producer_fenced}),
    ADD_PARTITIONS_TO_TXN: frozenset(
        {_E.invalid_producer_epoch, _E.producer_fenced, _E.invalid_txn_state, _E.invalid_producer_id_mapping}
    ),
    END_TXN: frozenset(
        {_E.invalid_producer_epoch, _E.producer_fenced, _E.invalid_txn_state, _E.invalid_producer_id_mapping}
    ),
    TXN_OFFSET_COMMIT: frozenset({_E.invalid_producer_epoch, _E.producer_fenced}),
    PRODUCE: frozenset({_E.producer_fenced, _E.invalid_producer_id_mapping}),
}
ABORTABLE = frozenset(
    {
        _E.transaction_abortable, _E.invalid_producer_epoch, _E.invalid_txn_state, _E.unknown_producer_id,
        _E.invalid_producer_id_mapping, _E.illegal_generation,
    }
)  # fmt: skip
NO_EFFECT = frozenset({_E.coordinator_load_in_progress, _E.concurrent_transactions})  # of an EndTxn answered so


class _Died(Exception):
    """The producer's process died."""


class _Over(Exception):
    """The producer can't go on: its epoch is fenced, or its id is unknown."""


class _Abort(Exception):
    """The transaction can only be aborted."""


@dataclass(frozen=True)
class Habits:
    """How producers of an id behave: probabilities, except where a unit is named."""

    timeout_ms: int = 2000  # of transactions
    newer: float = 0.5  # that a transaction speaks V2
    aborts: float = 0.25
    deaths: float = 0.02  # before a step
    zombies: float = 0.3  # that the producer goes on although its successor has begun
    late: float = 0.05  # that a request gets lost and arrives later
    offsets: float = 0.4  # that a transaction commits offsets
    plain: float = 0.0  # that the group commits an offset without a transaction, after one in the transaction; a
    # predecessor that isn't dead would commit such offsets, too, because nothing fences it
    impatient: float = 0.1  # that the producer aborts while its batches are under way
    depth: int = 3  # batches in flight to a partition
    pause_s: float = 0.2


class _Producer(NamedTuple):
    id: int
    epoch: int


NOBODY = _Producer(-1, -1)


class TransactionalId:
    """One transactional id, with its producers. `client_of` makes a client with a name; `slow_down` delays what arrives
    on some connections."""

    def __init__(
        self,
        client_of: Callable[[str], Client],
        name: str,
        partitions: Sequence[Partition],
        habits: Habits,
        slow_down: Callable[[], None],
    ) -> None:
        self.name = name
        self.client = client_of(name)
        self.partitions = partitions
        self.habits = habits
        self.slow_down = slow_down
        self.group = f"group-of-{name}"
        self.stopped = False
        self.offset = 0  # the last offset that any of the producers committed or tried to commit
        self._client_of = client_of
        self._lives = 0
        self._others: list[asyncio.Task[None]] = []  # producers that go on although a successor has begun

    async def run(self) -> None:
        """Runs one producer after the other until stopped. The last one ends its transaction, or dies in it."""
        while not self.stopped:
            life = Life(self, self._next_client())
            living = asyncio.create_task(life.run())
            replaced = self.client.random.random() < self.habits.zombies
            if replaced:
                await asyncio.wait([living], timeout=self.client.random.expovariate(0.7))
                self._others.append(living)
                living.add_done_callback(lambda task: task.cancelled() or task.result())
            else:
                await living
        for other in self._others:
            await other

    async def take_over(self) -> None:
        """Begins a producer that does nothing: it ends the transaction of its predecessor."""
        await Life(self, self._next_client()).begin()

    def _next_client(self) -> Client:
        self._lives += 1
        return self._client_of(f"{self.name}.{self._lives}")


class Life:
    """One producer, from its InitProducerId to its death."""

    def __init__(self, owner: TransactionalId, client: Client) -> None:
        self.client = client
        self._owner = owner
        self._habits = owner.habits
        self._producer = NOBODY
        self._protocol = V1
        self._late = owner.habits.late  # the probability that a request gets lost
        self._sequences: dict[Partition, int] = defaultdict(int)
        self._doubtful = False  # whether a request of this epoch may still arrive
        self._unanswered = 0  # requests without an answer
        self._number = 0
        self._coordinators: dict[int, int] = {}
        self._ghost = Client(
            f"{client.name}~", client._bootstrap, client._opener, client.history, client.random, client.bell
        )
        self._ghost.timeout_s = client.timeout_s

    async def run(self) -> None:
        """Makes transactions until the id is stopped, or the producer dies or is fenced."""
        with contextlib.suppress(_Died, _Over):
            await self.begin()
            while not self._owner.stopped:
                await self._transaction()
                await self.client.pause(self._habits.pause_s)

    async def begin(self) -> None:
        """Takes over the id from the producer before."""
        begun = self.client.history.invoke("fence", process=self.client.name, name=self._owner.name)
        await self._init()
        self.client.history.end(begun, "ok", producer=list(self._producer))

    async def _init(self) -> None:
        """A new epoch: from the coordinator, or after errors of this producer (KIP-360)."""
        while True:
            message = {
                "transactional_id": self._owner.name,
                "transaction_timeout": self._habits.timeout_ms,
                "producer_id": self._producer.id,
                "producer_epoch": self._producer.epoch,
            }
            answer = await self._coordinated(TRANSACTION, INIT_PRODUCER_ID, message, lambda answer: answer.error_code)
            if answer is not None:
                break
        self._is_now(answer)

    def _is_now(self, answer: Any) -> None:
        producer = _Producer(answer.producer_id, answer.producer_epoch)
        if producer != self._producer:
            self._producer = producer
            self._sequences.clear()
        self._doubtful = False

    # ---- one transaction

    async def _transaction(self) -> None:
        """One transaction. Raises _Died, _Over."""
        random, history = self.client.random, self.client.history
        self._number += 1
        before, self._protocol = self._protocol, V2 if random.random() < self._habits.newer else V1
        if self._number > 1 and (before, self._protocol) == (V1, V2):
            await self._init()  # in the same epoch, the leaders would take the first batches for the last transaction's
        transaction = f"{self.client.name}#{self._number}"
        deadline = asyncio.get_running_loop().time() + random.uniform(1.0, 6.0)
        partitions = random.sample(list(self._owner.partitions), random.randint(1, len(self._owner.partitions)))
        offset = -1
        if random.random() < self._habits.offsets:
            self._owner.offset += 2  # the next one is for a commit without a transaction
            offset = self._owner.offset
        history.add(
            "transaction", "ok", process=self.client.name, name=self._owner.name, transaction=transaction,
            protocol=self._protocol, producer=list(self._producer), group=self._owner.group, offset=offset,
        )  # fmt: skip
        commits = random.random() >= self._habits.aborts
        try:
            if self._protocol == V1:
                self._may_die()
                await self._add_partitions(partitions, deadline)
            self._may_die()
            writing = [self._write(transaction, partition, deadline) for partition in partitions]
            if random.random() < self._habits.impatient:
                await self._impatiently(writing)
            if offset >= 0 and random.random() < 0.3:
                writing.append(self._commit_offset(transaction, offset, deadline))
                offset = -1
            await _all(writing)
            if offset >= 0:
                self._may_die()
                await self._commit_offset(transaction, offset, deadline)
        except _Abort:
            commits = False
        self._may_die()
        await self._end(transaction, commits)

    async def _impatiently(self, steps: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Begins these steps while some connections are slow, and gives them up after a moment. Their requests may be
        under way, and may arrive much later. Raises _Abort."""
        self._owner.slow_down()
        self._late = max(self._late, LATE_OF_THE_IMPATIENT)
        tasks = [asyncio.ensure_future(step) for step in steps]
        await asyncio.wait(tasks, timeout=self.client.random.expovariate(1 / self.client.random.choice(IMPATIENT_S)))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._late = self._habits.late
        self._doubtful = True
        raise _Abort

    async def _end(self, transaction: str, commits: bool) -> None:
        history = self.client.history
        event = history.invoke(
            "end", process=self.client.name, name=self._owner.name, transaction=transaction, commits=commits,
            protocol=self._protocol, producer=list(self._producer),
        )  # fmt: skip
        message = {
            "transactional_id": self._owner.name,
            "producer_id": self._producer.id,
            "producer_epoch": self._producer.epoch,
            "committed": commits,
        }
        unknown = False
        dies = self.client.random.random() < self._habits.deaths
        while True:
            try:
                answer = await self._ask(TRANSACTION, END_TXN, message)
            except Unavailable as error:
                unknown = unknown or error.sent
            else:
                code = answer.error_code
                if not code:
                    history.end(event, "ok")
                    break
                if code in FATAL[END_TXN] or code is ErrorCode.transaction_abortable:
                    history.end(event, "unknown" if unknown else "fail", error=code.name)
                    raise _Over
                unknown = unknown or code not in NO_EFFECT
            if dies and unknown:
                history.end(event, "unknown")
                raise _Died
            await self._back_off()
        if self._protocol == V2:
            self._is_now(answer)
        elif self._doubtful:
            await self._init()

    def _may_die(self) -> None:
        """Dies with the id's probability; more probably when the id is stopped, so that no successor ends the
        transaction, and its time-out has to."""
        deaths = self._habits.deaths
        if self.client.random.random() < (DEATHS_AT_THE_END if deaths and self._owner.stopped else deaths):
            raise _Died

    # ---- steps

    async def _add_partitions(self, partitions: Sequence[Partition], deadline: float) -> None:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        message = {
            "v3_and_below_transactional_id": self._owner.name,
            "v3_and_below_producer_id": self._producer.id,
            "v3_and_below_producer_epoch": self._producer.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": indexes} for topic, indexes in topics.items()],
        }

        def error(answer: Any) -> ErrorCode:
            codes = [
                each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]
            return next((code for code in codes if code), ErrorCode.none)

        await self._until_done(TRANSACTION, ADD_PARTITIONS_TO_TXN, message, error, deadline)

    async def _commit_offset(self, transaction: str, offset: int, deadline: float) -> None:
        """Commits an offset of the group in the transaction, and perhaps a later one without the transaction."""
        owner, history = self._owner, self.client.history
        ids = {
            "transactional_id": owner.name,
            "producer_id": self._producer.id,
            "producer_epoch": self._producer.epoch,
            "group_id": owner.group,
        }
        if self._protocol == V1:
            await self._until_done(
                TRANSACTION, ADD_OFFSETS_TO_TXN, ids, lambda answer: answer.error_code, deadline, ADD_PARTITIONS_TO_TXN
            )
            self._may_die()
        topic, index = owner.partitions[0]
        partition = {"partition_index": index, "committed_offset": offset, "committed_leader_epoch": -1}
        message = {**ids, "generation_id": -1, "member_id": "", "topics": [{"name": topic, "partitions": [partition]}]}
        lost = self._unanswered
        await self._until_done(
            GROUP, TXN_OFFSET_COMMIT, message, lambda answer: answer.topics[0].partitions[0].error_code, deadline
        )
        if lost != self._unanswered or self.client.random.random() >= self._habits.plain:
            return  # a request that is still under way would put the offset of the transaction behind this one
        begun = history.invoke("plain commit", transaction=transaction, group=owner.group, offset=offset + 1)
        commit = {
            "group_id": owner.group,
            "generation_id_or_member_epoch": -1,
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": [{**partition, "committed_offset": offset + 1}]}],
        }
        try:
            answer = await self._ask(GROUP, OFFSET_COMMIT, commit)
        except Unavailable as error:
            history.end(begun, "unknown" if error.sent else "fail")
        else:
            history.end(begun, "unknown" if answer.topics[0].partitions[0].error_code else "ok")

    async def _write(self, transaction: str, partition: Partition, deadline: float) -> None:
        """Writes some batches to a partition, several of them in flight. Raises _Died, _Over, _Abort."""
        random = self.client.random
        waiting: list[tuple[bytes, Event]] = []
        for _ in range(random.randint(1, self._habits.depth)):
            waiting.append(self._batch(transaction, partition, random.randint(1, 3)))
        while waiting:
            self._may_die()
            outcomes = await asyncio.gather(*(self._produce(partition, frame) for frame, _ in waiting))
            left = []
            for (frame, event), outcome in zip(waiting, outcomes, strict=True):
                if isinstance(outcome, int):
                    self.client.history.end(event, "ok", offset=outcome)
                    continue
                if isinstance(outcome, KafkaError):
                    if outcome.code in FATAL[PRODUCE]:
                        raise _Over
                    first = not left
                    if outcome.code in ABORTABLE or (first and outcome.code is ErrorCode.out_of_order_sequence_number):
                        self._doubtful = True
                        raise _Abort
                left.append((frame, event))
            waiting = left
            if waiting:
                if asyncio.get_running_loop().time() > deadline:
                    self._doubtful = True
                    raise _Abort
                await self._back_off()
                with contextlib.suppress(Unavailable):
                    await self.client.refresh(partition[0])

    def _batch(self, transaction: str, partition: Partition, count: int) -> tuple[bytes, Event]:
        sequence = self._sequences[partition]
        self._sequences[partition] += count
        values = [f"{transaction}:{partition[1]}:{sequence + at}" for at in range(count)]
        now_ms = self.client.epoch_ms + int(asyncio.get_running_loop().time() * 1000)
        frame = build_batch(
            [Record(at, now_ms, None, value.encode()) for at, value in enumerate(values)],
            producer_id=self._producer.id,
            producer_epoch=self._producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        event = self.client.history.invoke(
            "write", process=self.client.name, transaction=transaction, partition=list(partition), values=values
        )
        return frame, event

    async def _produce(self, partition: Partition, frame: bytes) -> int | KafkaError | Unavailable:
        topic, index = partition
        message = {
            "transactional_id": self._owner.name,
            "acks": -1,
            "timeout": int(self.client.timeout_s * 800),
            "topic_data": [{"name": topic, "partition_data": [{"index": index, "records": frame}]}],
        }
        version = VERSIONS[self._protocol][PRODUCE]
        try:
            if partition not in self.client.leaders:
                await self.client.refresh(topic)
            if self._gets_lost():
                leader, _ = self.client.leaders.get(partition, (-1, -1))
                raise self._lost(leader, PRODUCE, message, version)
            connection, _ = await self.client.connection_to_leader(partition)
            answer = await connection.call(PRODUCE, message, self.client.timeout_s, version)
        except Unavailable as error:
            self._doubtful = self._doubtful or (error.sent and self._protocol == V1)
            return error
        (result,) = answer.responses[0].partition_responses
        if result.error_code == ErrorCode.duplicate_sequence_number:
            return -1
        if result.error_code:
            return KafkaError(result.error_code)
        return int(result.base_offset)

    # ---- requests

    async def _until_done(
        self,
        kind: int,
        api_key: int,
        message: Mapping[str, Any],
        error: Callable[[Any], ErrorCode],
        deadline: float,
        errors_of: int = -1,
    ) -> None:
        """Repeats a request of the transaction until it succeeds. Raises _Over, and _Abort after the deadline."""
        while await self._coordinated(kind, api_key, message, error, errors_of) is None:
            if asyncio.get_running_loop().time() > deadline:
                raise _Abort
            self._may_die()

    async def _coordinated(
        self,
        kind: int,
        api_key: int,
        message: Mapping[str, Any],
        error: Callable[[Any], ErrorCode],
        errors_of: int = -1,
    ) -> Any:
        """Sends a request to a coordinator once. Returns the answer, or None if the request has to be repeated. Raises
        _Over, _Abort."""
        try:
            answer = await self._ask(kind, api_key, message)
        except Unavailable:
            await self._back_off()
            return None
        code = error(answer)
        if not code:
            return answer
        if code in FATAL[errors_of if errors_of >= 0 else api_key]:
            raise _Over
        if code in ABORTABLE:
            raise _Abort
        await self._back_off()
        return None

    async def _ask(self, kind: int, api_key: int, message: Mapping[str, Any]) -> Any:
        """Sends a request to a coordinator. Raises Unavailable."""
        version = VERSIONS[self._protocol].get(api_key, -1)
        try:
            coordinator = await self._coordinator(kind)
            if api_key != OFFSET_COMMIT and self._gets_lost():
                raise self._lost(coordinator, api_key, message, version)
            answer = await self.client.to_broker(coordinator, api_key, message, version)
        except Unavailable as error:
            self._unanswered += error.sent
            self._doubtful = self._doubtful or (error.sent and self._protocol == V1)
            self._coordinators.pop(kind, None)
            raise
        if getattr(answer, "error_code", ErrorCode.none) or kind == GROUP:
            self._coordinators.pop(kind, None)
        return answer

    async def _coordinator(self, kind: int) -> int:
        if kind not in self._coordinators:
            key = self._owner.name if kind == TRANSACTION else self._owner.group
            answer = await self.client.to_any(FIND_COORDINATOR, {"key": key, "key_type": kind})
            if answer.error_code:
                raise Unavailable(answer.error_code, sent=False)
            await self.client.refresh(self._owner.partitions[0][0])  # the brokers' addresses
            self._coordinators[kind] = answer.node_id
        return self._coordinators[kind]

    def _gets_lost(self) -> bool:
        return self.client.random.random() < self._late

    def _lost(self, broker: int, api_key: int, message: Mapping[str, Any], version: int) -> Unavailable:
        """Lets a request arrive later, by another connection. Nobody waits for its answer."""
        delay_s = self.client.random.expovariate(1 / self.client.random.choice(LATE_S))
        self._ghost._addresses = dict(self.client._addresses)

        async def arrive() -> None:
            await asyncio.sleep(delay_s)
            with contextlib.suppress(Unavailable):
                await self._ghost.to_broker(broker, api_key, message, version)

        task = asyncio.create_task(arrive())
        _late.add(task)
        task.add_done_callback(_late.discard)
        self.client.history.counts["requests that arrived late"] += 1
        return Unavailable("lost on its way", sent=True)

    async def _back_off(self) -> None:
        await asyncio.sleep(self.client.backoff_s * self.client.random.uniform(0.3, 1.5))


_late: set[asyncio.Task[None]] = set()  # so that they aren't collected


async def _all(steps: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Waits for all steps. Raises the worst of their errors."""
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for kind in (_Died, _Over, _Abort):
        for error in errors:
            if isinstance(error, kind):
                raise error
    if errors:
        raise errors[0]
