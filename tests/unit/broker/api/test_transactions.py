"""The handlers of transactions' APIs, over a coordinator whose partitions are in memory.

Each request is written and read in the version that a client would send, and each answer is written and read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker import transaction_service
from ottla.broker.api import describe_transactions
from ottla.broker.api.registry import ROUTES
from ottla.broker.authorizer import AllowEverything
from ottla.broker.group.partitioning import OFFSETS_TOPIC, partition_for
from ottla.broker.marker_sender import Marker
from ottla.broker.transaction.metadata import TopicPartition
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC
from ottla.broker.transaction.states import State
from ottla.broker.transaction_service import SHARED_ANSWER_S
from ottla.metadata.model.settings import Feature
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_request, read_response, write_request, write_response
from tests.unit.broker.api.stand_in import request_of
from tests.unit.broker.test_group_service import turns, virtually
from tests.unit.broker.test_transaction_service import Stage

FIND_COORDINATOR, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, WRITE_MARKERS, DESCRIBE, LIST = 10, 22, 24, 25, 26, 27, 65, 66
T0, T1, GONE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("gone", 0)


class Broker:
    """The handlers' broker: a coordinator that leads all its partitions, and topics `t` and `__consumer_offsets`."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.transactions = self.stage.service
        self.producer_ids = self.stage
        self.marker_log = self
        self.wanted: list[str] = []
        self.authorizer = AllowEverything()
        self.internal_topics = SimpleNamespace(want=self.wanted.append)
        self.awaited_elections = SimpleNamespace(settled=self._settled)
        led = SimpleNamespace(leader=1)
        topics = {
            "t": SimpleNamespace(id=1, partitions={0: led, 1: led}),
            OFFSETS_TOPIC: SimpleNamespace(id=2, partitions=dict.fromkeys(range(50), led)),
        }
        endpoint = SimpleNamespace(host="here", port=9092)
        brokers = {1: SimpleNamespace(endpoints=_AnyListener(endpoint))}
        features = {"transaction.version": Feature(2)}
        self.image = SimpleNamespace(topics=topics, brokers=brokers, features=features)
        self.written: list[tuple[Marker, list[TopicPartition]]] = []
        self.patience: list[bool] = []

    async def _settled(self, partitions: Any, pending: Any) -> None:
        """Takes the place of the wait for elections: no leader is dead."""

    async def append_markers(
        self, marker: Marker, partitions: Sequence[TopicPartition], *, patient: bool = False
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.written.append((marker, list(partitions)))
        self.patience.append(patient)
        return {each: ErrorCode.none for each in partitions if each != GONE}

    async def asked(self, key: int, version: int, /, **fields: Any) -> Any:
        """The answer to a request, as a client reads it."""
        handle = ROUTES[key].handle
        assert handle is not None
        body = read_request(key, version, write_request(key, version, fields))
        broker: Any = self
        answer = await handle(broker, request_of(key, version, "test"), body)
        return read_response(key, version, write_response(key, version, answer))

    async def begun(self, name: str = "id") -> Any:
        """A producer with an open transaction in T0."""
        producer = await self.asked(INIT, 5, transactional_id=name, transaction_timeout=60_000)
        assert producer.error_code is ErrorCode.none
        errors = await self.added(5, producer, {T0}, name)
        assert errors == {T0: ErrorCode.none}
        return producer

    async def added(
        self, version: int, producer: Any, partitions: set[TopicPartition], name: str = "id", verify: bool = False
    ) -> dict[TopicPartition, ErrorCode]:
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(partitions):
            topics.setdefault(topic, []).append(index)
        named = [{"name": topic, "partitions": indexes} for topic, indexes in topics.items()]
        ids = {"transactional_id": name, "producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        if version >= 4:
            asked = {**ids, "verify_only": verify, "topics": named}
            (answer,) = (await self.asked(ADD_PARTITIONS, version, transactions=[asked])).results_by_transaction
            assert answer.transactional_id == name
            results = answer.topic_results
        else:
            older = {f"v3_and_below_{field}": value for field, value in {**ids, "topics": named}.items()}
            results = (await self.asked(ADD_PARTITIONS, version, **older)).results_by_topic_v3_and_below
        return {
            TopicPartition(topic.name, each.partition_index): each.partition_error_code
            for topic in results
            for each in topic.results_by_partition
        }


class _AnyListener:
    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint

    def get(self, listener: str) -> Any:
        return self.endpoint


@pytest.mark.parametrize("version", range(6))
def test_a_transaction_in_every_version(version: int) -> None:
    async def scene() -> None:
        broker = Broker()
        producer = await broker.asked(INIT, version, transactional_id="id", transaction_timeout=60_000)
        assert (producer.error_code, producer.producer_epoch) == (ErrorCode.none, 0)
        assert await broker.added(version, producer, {T0, T1}) == {T0: ErrorCode.none, T1: ErrorCode.none}
        ids = {"transactional_id": "id", "producer_id": producer.producer_id, "producer_epoch": 0}
        answer = await broker.asked(ADD_OFFSETS, min(version, 4), group_id="g", **ids)
        assert answer.error_code is ErrorCode.none
        answer = await broker.asked(END, version, committed=True, **ids)
        assert answer.error_code is ErrorCode.none
        if version >= 5:
            assert (answer.producer_id, answer.producer_epoch) == (producer.producer_id, 1)
        (sending,) = broker.stage.sent
        assert sending.markers.missing == {T0, T1, TopicPartition(OFFSETS_TOPIC, partition_for("g", 50))}
        await broker.stage.write_markers()
        again = await broker.asked(END, version, committed=True, **ids)
        assert again.error_code is ErrorCode.none
        await broker.transactions.stop()

    virtually(scene)


@pytest.mark.parametrize(("key", "since"), [(INIT, 4), (ADD_PARTITIONS, 2), (ADD_OFFSETS, 2), (END, 2)])
def test_older_producers_are_fenced_in_words_that_they_know(key: int, since: int) -> None:
    async def scene() -> None:
        broker = Broker()
        producer = await broker.begun()
        await broker.asked(INIT, 5, transactional_id="id", transaction_timeout=60_000)  # aborts
        await broker.stage.write_markers()
        await broker.asked(INIT, 5, transactional_id="id", transaction_timeout=60_000)
        ids = {"transactional_id": "id", "producer_id": producer.producer_id, "producer_epoch": 0}
        for version in range(5):
            if key == ADD_PARTITIONS:
                error = (await broker.added(version, producer, {T0}))[T0]
            elif key == INIT:
                if version < 3:
                    continue  # these have no epoch
                error = (await broker.asked(INIT, version, transaction_timeout=60_000, **ids)).error_code
            elif key == ADD_OFFSETS:
                error = (await broker.asked(key, version, group_id="g", **ids)).error_code
            else:
                error = (await broker.asked(key, version, committed=True, **ids)).error_code
            assert error is (ErrorCode.invalid_producer_epoch if version < since else ErrorCode.producer_fenced)
        await broker.transactions.stop()

    virtually(scene)


def test_init_producer_id_without_a_transactional_id_and_with_half_a_producer() -> None:
    async def scene() -> None:
        broker = Broker()
        fresh = await broker.asked(INIT, 5, transactional_id=None, transaction_timeout=0)
        assert (fresh.error_code, fresh.producer_id, fresh.producer_epoch) == (ErrorCode.none, 101, 0)
        for half in ({"producer_id": 7}, {"producer_epoch": 7}):
            for name in (None, "id"):
                answer = await broker.asked(INIT, 5, transactional_id=name, transaction_timeout=60_000, **half)
                assert (answer.error_code, answer.producer_id) == (ErrorCode.invalid_request, -1)
        for timeout_ms in (0, 900_001):
            answer = await broker.asked(INIT, 5, transactional_id="id", transaction_timeout=timeout_ms)
            assert answer.error_code is ErrorCode.invalid_transaction_timeout
        answer = await broker.asked(INIT, 5, transactional_id="", transaction_timeout=60_000)
        assert answer.error_code is ErrorCode.invalid_request
        await broker.transactions.stop()

    virtually(scene)


@pytest.mark.parametrize("version", [0, 3, 4, 5])
def test_one_unknown_partition_keeps_the_others_out(version: int) -> None:
    async def scene() -> None:
        broker = Broker()
        producer = await broker.asked(INIT, 5, transactional_id="id", transaction_timeout=60_000)
        missing = TopicPartition("t", 9)
        assert await broker.added(version, producer, {T0, GONE, missing}) == {
            T0: ErrorCode.operation_not_attempted,
            GONE: ErrorCode.unknown_topic_or_partition,
            missing: ErrorCode.unknown_topic_or_partition,
        }
        assert broker.transactions.described("id").partitions == frozenset()
        await broker.transactions.stop()

    virtually(scene)


def test_only_brokers_add_partitions_of_internal_topics() -> None:
    async def scene() -> None:
        broker = Broker()
        producer = await broker.asked(INIT, 5, transactional_id="id", transaction_timeout=60_000)
        offsets = TopicPartition(OFFSETS_TOPIC, 3)
        assert await broker.added(3, producer, {T0, offsets}) == {
            T0: ErrorCode.operation_not_attempted,
            offsets: ErrorCode.topic_authorization_failed,
        }
        assert await broker.added(4, producer, {T0, offsets}) == {T0: ErrorCode.none, offsets: ErrorCode.none}
        await broker.transactions.stop()

    virtually(scene)


def test_a_leader_asks_whether_partitions_belong_to_a_transaction() -> None:
    async def scene() -> None:
        broker = Broker()
        producer = await broker.begun()
        assert await broker.added(5, producer, {T0, T1}, verify=True) == {
            T0: ErrorCode.none,
            T1: ErrorCode.transaction_abortable,
        }
        assert await broker.added(5, producer, {T0}, "unknown", verify=True) == {
            T0: ErrorCode.invalid_producer_id_mapping
        }
        assert broker.transactions.described("id").partitions == {T0}
        await broker.transactions.stop()

    virtually(scene)


def test_offsets_wait_for_their_topic() -> None:
    async def scene() -> None:
        broker = Broker()
        producer = await broker.begun()
        del broker.image.topics[OFFSETS_TOPIC]
        ids = {"transactional_id": "id", "producer_id": producer.producer_id, "producer_epoch": 0}
        answer = await broker.asked(ADD_OFFSETS, 4, group_id="g", **ids)
        assert answer.error_code is ErrorCode.coordinator_not_available
        assert broker.wanted == [OFFSETS_TOPIC]
        await broker.transactions.stop()

    virtually(scene)


def test_transactions_are_described() -> None:
    async def scene() -> None:
        broker = Broker()
        producer = await broker.begun()
        await broker.asked(INIT, 5, transactional_id="rests", transaction_timeout=5_000)
        answer = await broker.asked(DESCRIBE, 0, transactional_ids=["id", "unknown", ""])
        ongoing, unknown, empty = answer.transaction_states
        assert (ongoing.transaction_state, ongoing.producer_id) == ("Ongoing", producer.producer_id)
        assert ongoing.transaction_timeout.total_seconds() == 60
        assert ongoing.transaction_start_time.timestamp() == 1_000
        assert [(topic.topic, topic.partitions) for topic in ongoing.topics] == [("t", (0,))]
        as_broker: Any = broker
        body = SimpleNamespace(transactional_ids=["rests"])
        answer = await describe_transactions.handle(as_broker, request_of(DESCRIBE, 0, "test"), body)
        (rests,) = answer["transaction_states"]  # kio refuses to read a time before 1970
        assert (rests["transaction_state"], rests["transaction_start_time"], rests["topics"]) == ("Empty", -1, [])
        assert write_response(DESCRIBE, 0, answer)
        assert unknown.error_code is ErrorCode.transactional_id_not_found
        assert empty.error_code is ErrorCode.invalid_request
        await broker.transactions.stop()

    virtually(scene)


@pytest.mark.parametrize(
    ("filters", "names", "unknown"),
    [
        ({}, {"id", "rests"}, ()),
        ({"state_filters": ["Ongoing"]}, {"id"}, ()),
        ({"state_filters": ["Ongoing", "Lost"]}, {"id"}, ("Lost",)),
        ({"state_filters": ["Lost"]}, set(), ("Lost",)),
        ({"producer_id_filters": [102]}, {"rests"}, ()),
        ({"duration_filter": 5_000}, {"rests"}, ()),  # as Kafka, which counts from −1 without a transaction
    ],
)
def test_transactions_are_listed(filters: dict[str, Any], names: set[str], unknown: tuple[str, ...]) -> None:
    async def scene() -> None:
        broker = Broker()
        await broker.begun()
        await broker.asked(INIT, 5, transactional_id="rests", transaction_timeout=5_000)
        answer = await broker.asked(LIST, 1, **filters)
        assert answer.error_code is ErrorCode.none
        assert {each.transactional_id for each in answer.transaction_states} == names
        assert answer.unknown_state_filters == unknown
        await broker.transactions.stop()
        answer = await broker.asked(LIST, 0)
        assert answer.error_code is ErrorCode.coordinator_not_available

    virtually(scene)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("id-.*", ["id-1", "id-2"]),
        ("id-1", ["id-1"]),
        ("id", []),
        (".*[13]", ["id-1", "other-3"]),
        ("", ["id-1", "id-2", "other-3"]),
        (None, ["id-1", "id-2", "other-3"]),
    ],
)
def test_transactions_are_listed_by_a_pattern(pattern: str | None, names: list[str]) -> None:
    async def scene() -> None:
        broker = Broker()
        for name in ("id-1", "id-2", "other-3"):
            await broker.begun(name)
        answer = await broker.asked(LIST, 2, transactional_id_pattern=pattern)
        assert answer.error_code is ErrorCode.none
        assert sorted(each.transactional_id for each in answer.transaction_states) == names
        refused = await broker.asked(LIST, 2, transactional_id_pattern="(")
        assert refused.error_code is ErrorCode.invalid_regular_expression
        assert not refused.transaction_states
        await broker.transactions.stop()

    virtually(scene)


def test_a_long_list_of_transactions_lets_others_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        broker = Broker()
        for number in range(20):
            await broker.begun(f"id-{number}")
        listing = asyncio.create_task(broker.asked(LIST, 2, transactional_id_pattern="id-.*"))
        await turns(5)
        assert not listing.done()
        await broker.begun("another")
        assert len((await listing).transaction_states) == 20
        await broker.transactions.stop()

    monkeypatch.setattr(transaction_service, "SLICE_SECONDS", 0)
    virtually(scene)


def test_a_partition_that_commits_nothing_holds_up_one_answer_about_other_transactions_for_a_short_time() -> None:
    """A leader asks about several transactions by one request, and sends the next request after the answer."""

    async def scene() -> None:
        broker = Broker()
        names = [f"id-{number}" for number in range(20)]
        producers = {name: await broker.stage.init(name) for name in names}
        held = broker.stage.of(names[0])
        held.hold()
        time, waits, told = asyncio.get_running_loop().time, [], []
        for pair in [names[at : at + 5] for at in range(0, 20, 5)]:
            topics = [{"name": "t", "partitions": [0]}]
            asked = [
                {
                    "transactional_id": name,
                    "producer_id": producers[name].id,
                    "producer_epoch": producers[name].epoch,
                    "topics": topics,
                }
                for name in pair
            ]
            began = time()
            answer = await broker.asked(ADD_PARTITIONS, 5, transactions=asked)
            waits.append(time() - began)
            for each in answer.results_by_transaction:
                ((result,),) = [topic.results_by_partition for topic in each.topic_results]
                told.append(result.partition_error_code)
        late = ErrorCode.coordinator_not_available
        assert told == [late if broker.stage.of(name) is held else ErrorCode.none for name in names]
        assert waits == [SHARED_ANSWER_S, 0, 0, 0]
        held.replicate()
        await asyncio.sleep(1)
        for name in names:
            assert broker.transactions.described(name).state is State.ONGOING
        await broker.transactions.stop()

    virtually(scene)


@pytest.mark.parametrize("version", [1, 2])
def test_markers_are_appended_by_the_partitions_leader(version: int) -> None:
    async def scene() -> None:
        broker = Broker()
        topics = [{"name": "t", "partition_indexes": [1, 0]}, {"name": "gone", "partition_indexes": [0]}]
        entry = {
            "producer_id": 7,
            "producer_epoch": 3,
            "transaction_result": True,
            "topics": topics,
            "coordinator_epoch": 5,
            "transaction_version": 2,
        }
        other = {**entry, "producer_id": 8, "topics": topics[:1], "transaction_result": False}
        answer = await broker.asked(WRITE_MARKERS, version, markers=[entry, other])
        told = {
            (marker.producer_id, topic.name, each.partition_index): each.error_code
            for marker in answer.markers
            for topic in marker.topics
            for each in topic.partitions
        }
        assert told == {
            (7, "t", 0): ErrorCode.none,
            (7, "t", 1): ErrorCode.none,
            (7, "gone", 0): ErrorCode.unknown_topic_or_partition,
            (8, "t", 0): ErrorCode.none,
            (8, "t", 1): ErrorCode.none,
        }
        transaction_version = 2 if version >= 2 else 0
        assert [marker for marker, _ in broker.written] == [
            Marker(7, 3, True, 5, transaction_version),
            Marker(8, 3, False, 5, transaction_version),
        ]
        assert broker.patience == [version == 1] * 2, "a tool sends version 1, and sends no marker again"
        assert not (await broker.asked(WRITE_MARKERS, version, markers=[])).markers
        await broker.transactions.stop()

    virtually(scene)


@pytest.mark.parametrize("version", [3, 6])
def test_the_coordinator_of_a_transactional_id_is_found(version: int) -> None:
    async def scene() -> None:
        broker = Broker()
        fields: dict[str, Any] = {"coordinator_keys": ["id"]} if version >= 4 else {"key": "id"}
        for key_type, error in ((1, ErrorCode.coordinator_not_available), (0, ErrorCode.none), (2, 42)):
            answer = await broker.asked(FIND_COORDINATOR, version, key_type=key_type, **fields)
            assert (answer.coordinators[0] if version >= 4 else answer).error_code == error
        assert broker.wanted == [TRANSACTIONS_TOPIC]
        broker.image.topics[TRANSACTIONS_TOPIC] = broker.image.topics[OFFSETS_TOPIC]
        answer = await broker.asked(FIND_COORDINATOR, version, key_type=1, **fields)
        found = answer.coordinators[0] if version >= 4 else answer
        assert (found.error_code, found.node_id, found.host) == (ErrorCode.none, 1, "here")
        await broker.transactions.stop()

    virtually(scene)


def test_there_are_no_transactions_at_level_0() -> None:
    """Brokers that don't know transactions may register then, and would show aborted records to all readers."""

    async def scene() -> None:
        broker = Broker()
        broker.stage.level = 0
        broker.image.features.clear()
        answer = await broker.asked(FIND_COORDINATOR, 6, key_type=1, coordinator_keys=["id"])
        refused = ErrorCode.transactional_id_authorization_failed
        assert answer.coordinators[0].error_code is refused
        assert not broker.wanted
        answer = await broker.asked(INIT, 5, transactional_id="id", transaction_timeout=60_000)
        assert answer.error_code is refused
        answer = await broker.asked(INIT, 5, transactional_id=None, transaction_timeout=60_000)
        assert answer.error_code is ErrorCode.none, "idempotent producers aren't concerned"
        await broker.transactions.stop()

    virtually(scene)
