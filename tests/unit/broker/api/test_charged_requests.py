"""What the handlers charge to their clients' quotas, and what throttled clients are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api import create_partitions, create_topics, delete_topics, metadata, produce
from ottla.broker.authorizer import AllowEverything
from ottla.broker.request import Request
from ottla.broker.throttling import Charge, Throttling
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.settings import Quota
from ottla.net.metering import Meter
from ottla.net.pending import Pending
from ottla.protocol.codecs import Codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_request, read_response, write_request, write_response
from tests.unit.broker.api.stand_in import BrokerStandIn, broker_stand_in, request_of
from tests.unit.broker.api.test_produce_and_fetch import Stage, answer_of, asked, batch_of, play, values
from tests.unit.broker.without_quotas import without_quotas

__all__ = ["play"]  # a fixture

METADATA, CREATE, DELETE, GROW = 3, 19, 20, 37
KILOBYTE = 1000


class Charges:
    """Charges requests of user ANONYMOUS to these limits. The clock stands still unless the test sets it."""

    def __init__(self, **limits: float) -> None:
        self.now = 1000.0
        self.throttling: Throttling = without_quotas()
        self.throttling._now = lambda: self.now
        entity = (("user", "ANONYMOUS"),)
        image = Image(quotas={entity: Quota(limits)})
        self.throttling.changed(image, Changed(quotas=frozenset({entity})))
        self.muted: list[float] = []
        self.work_ns = 0  # the time that the event loop spends on each request

    def charge(self, request: Request, size_bytes: int = 0) -> Request:
        connection: Any = request.connection
        connection.principal = "User:ANONYMOUS"
        meter = Meter(lambda: self.work_ns)
        meter._since_ns, meter._depth = 0, 1  # the time has run since 0
        connection.metered = lambda: meter
        connection.mute = self.muted.append
        request.charge = self.throttling.charge(connection, request.api_key, request.client_id, size_bytes)
        return request


class ChargedStage:
    """A `Stage` whose requests are charged."""

    def __init__(self, stage: Stage, **limits: float) -> None:
        self.stage = stage
        self.charges = Charges(**limits)
        self.last: Charge | None = None  # that of the last request
        stage.ask = self.ask

    def ask(self, module: Any, key: int, message: dict[str, Any], version: int = 12) -> Any:
        body = bytearray(write_request(key, version, message))
        request = self.charges.charge(Request(key, version, 1, "me", self.stage.client), len(body))
        self.last = request.charge
        return module.serve(self.stage.broker, request, body, 0, len(body))


Play = Callable[[Callable[[Stage], Coroutine[Any, Any, None]]], None]


def produced(parts: Any) -> int:
    """The throttle time in ms of an answer to Produce."""
    if isinstance(parts, Pending):
        parts = parts.parts
    answer = read_response(0, 12, b"".join(map(bytes, parts)), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return int(answer.throttle_time.total_seconds() * 1000)


def test_a_producer_is_answered_at_once_and_told_to_wait(play: Play) -> None:
    async def body(stage: Stage) -> None:
        charged = ChargedStage(stage, producer_byte_rate=100 * KILOBYTE)
        assert produced(stage.produce({0: batch_of([bytes(990_000)])})) == 0
        throttled = produced(stage.produce({0: batch_of([bytes(110_000)])}))
        assert 1000 <= throttled < 1010
        assert charged.charges.muted == [throttled / 1000]
        assert len(values(stage, 0)) == 2

    play(body)


def test_an_answer_that_waited_states_the_rest_of_the_time(play: Play) -> None:
    """Dispatch charges a request whose answer waits when the handler has taken it over."""

    async def body(stage: Stage) -> None:
        stage.recompress_to(Codec.lz4)
        charged = ChargedStage(stage, producer_byte_rate=1 * KILOBYTE)
        pending = stage.produce({0: batch_of([bytes(20_000)])})
        assert pending.parts is None
        assert charged.last is not None
        time_ms = charged.last.produced()
        charged.charges.now += 4.0
        await stage.settle()
        assert produced(pending) == time_ms - 4000
        assert charged.charges.muted == [time_ms / 1000]
        assert stage.failures == []

    play(body)


def test_a_producer_without_answers_is_muted_for_its_bytes(play: Play) -> None:
    async def body(stage: Stage) -> None:
        charged = ChargedStage(stage, producer_byte_rate=1 * KILOBYTE, request_percentage=0.000001)
        request = charged.charges.charge(Request(0, 12, 1, "me", stage.client), 11_000)
        partition = {"index": 0, "records": bytes(batch_of([b"x"]))}
        topics = [{"name": "t", "partition_data": [partition]}]
        frame = bytearray(write_request(0, 12, {"acks": 0, "timeout": 1000, "topic_data": topics}))
        assert produce.serve(stage.broker, request, frame, 0, len(frame)) is None
        assert request.charge is not None
        assert request.charge.unanswered
        assert request.charge.produced() == 1000

    play(body)


def fetched(parts: Any, version: int = 12) -> tuple[int, int, int]:
    """(throttle time in ms, bytes of records, session id) of an answer to Fetch."""
    answer = answer_of(parts, version)
    size = sum(len(partition.records or b"") for topic in answer.responses for partition in topic.partitions)
    return int(answer.throttle_time.total_seconds() * 1000), size, answer.session_id


def test_a_consumer_above_its_quota_gets_an_empty_answer(play: Play) -> None:
    async def body(stage: Stage) -> None:
        stage.produce({0: batch_of([bytes(800_000)]), 1: batch_of([bytes(400_000)])})
        charged = ChargedStage(stage, consumer_byte_rate=100 * KILOBYTE)
        first = [{"topic": "t", "partitions": [asked(0)]}]
        second = [{"topic": "t", "partitions": [asked(1)]}]
        time_ms, size, _ = fetched(stage.fetch(session_epoch=-1, topics=first))
        assert (time_ms, size > 800_000) == (0, True)
        time_ms, size, _ = fetched(stage.fetch(session_epoch=-1, topics=second))
        assert 2000 <= time_ms < 2010
        assert size == 0
        assert charged.charges.muted == [time_ms / 1000]
        assert stage.counters.bytes_out < 900_000, "records that weren't sent aren't counted"
        charged.charges.now += 12.0
        assert fetched(stage.fetch(session_epoch=-1, topics=second))[1] > 400_000

    play(body)


def test_an_answer_is_no_larger_than_ten_seconds_of_the_quota(play: Play) -> None:
    async def body(stage: Stage) -> None:
        stage.produce({0: batch_of([bytes(9_000)]), 1: batch_of([bytes(9_000)])})
        ChargedStage(stage, consumer_byte_rate=1 * KILOBYTE)
        topics = [{"topic": "t", "partitions": [asked(0), asked(1)]}]
        time_ms, size, _ = fetched(stage.fetch(session_epoch=-1, topics=topics, min_bytes=50_000))
        assert time_ms == 0
        assert 9_000 < size < 10_000

    play(body)


def test_a_batch_that_is_always_too_large_is_sent_and_the_consumer_waits(play: Play) -> None:
    async def body(stage: Stage) -> None:
        stage.produce({0: batch_of([bytes(20_000)])})
        ChargedStage(stage, consumer_byte_rate=1 * KILOBYTE)
        topics = [{"topic": "t", "partitions": [asked(0)]}]
        time_ms, size, _ = fetched(stage.fetch(session_epoch=-1, topics=topics))
        assert 10_000 < time_ms < 10_500
        assert size > 20_000
        time_ms, size, _ = fetched(stage.fetch(session_epoch=-1, topics=topics))
        assert time_ms > 20_000
        assert size == 0

    play(body)


def test_a_session_isnt_begun_by_an_empty_answer(play: Play) -> None:
    async def body(stage: Stage) -> None:
        stage.produce({0: batch_of([bytes(20_000)])})
        charged = ChargedStage(stage, consumer_byte_rate=1 * KILOBYTE)
        topics = [{"topic": "t", "partitions": [asked(0)]}]
        stage.fetch(session_epoch=-1, topics=topics)
        assert fetched(stage.fetch(session_epoch=0, topics=topics)) == (pytest.approx(30_000, abs=500), 0, 0)
        assert len(stage.sessions) == 0
        charged.charges.now += 30
        _, size, session = fetched(stage.fetch(session_epoch=0, topics=topics))
        assert size > 20_000
        assert session != 0

    play(body)


def test_a_session_tells_later_what_an_empty_answer_left_out(play: Play) -> None:
    async def body(stage: Stage) -> None:
        charged = ChargedStage(stage, consumer_byte_rate=1 * KILOBYTE)
        topics = [{"topic": "t", "partitions": [asked(0), asked(1)]}]
        _, _, session = fetched(stage.fetch(session_epoch=0, topics=topics))
        stage.produce({0: batch_of([bytes(20_000)])})
        stage.produce({1: batch_of([b"small"])})
        time_ms, size, again = fetched(stage.fetch(session_id=session, session_epoch=1))
        assert time_ms > 0
        assert (size, again) == (0, session)
        charged.charges.now += 60
        answer = answer_of(stage.fetch(session_id=session, session_epoch=2))
        told = {partition.partition_index for topic in answer.responses for partition in topic.partitions}
        assert told == {0, 1}

    play(body)


def test_a_fetch_that_waits_is_charged_when_it_is_answered(play: Play) -> None:
    async def body(stage: Stage) -> None:
        charged = ChargedStage(stage, consumer_byte_rate=1 * KILOBYTE)
        topics = [{"topic": "t", "partitions": [asked(0)]}]
        pending = stage.fetch(session_epoch=-1, topics=topics, max_wait=10_000)
        assert charged.charges.muted == []
        stage.produce({0: batch_of([bytes(20_000)])})
        await asyncio.sleep(0.01)
        assert fetched(pending.parts)[1] > 20_000
        assert len(charged.charges.muted) == 1

    play(body)


def test_a_fetch_with_an_unknown_session_is_charged_for_its_time(play: Play) -> None:
    async def body(stage: Stage) -> None:
        charged = ChargedStage(stage, request_percentage=1)
        charged.charges.work_ns = 500_000_000
        answer = answer_of(stage.fetch(session_id=77, session_epoch=5))
        assert answer.error_code is ErrorCode.fetch_session_id_not_found
        assert answer.throttle_time.total_seconds() == 1
        assert charged.charges.muted == [1.0]

    play(body)


def test_followers_arent_charged(play: Play) -> None:
    async def body(stage: Stage) -> None:
        stage.produce({0: batch_of([bytes(50_000)])})
        charged = ChargedStage(stage, consumer_byte_rate=1)
        topics = [{"topic": "t", "partitions": [asked(0)]}]
        stage.fetch(session_epoch=-1, topics=topics, replica_id=1)
        stage.fetch(session_epoch=-1, topics=topics, replica_id=1)
        assert charged.charges.muted == []

    play(body)


class Nobody(AllowEverything):
    """Allows nothing."""

    enforced = True

    def allows(self, *_arguments: Any, **_more: Any) -> bool:
        """False."""
        return False


def test_a_replicas_id_alone_exempts_no_client(play: Play) -> None:
    async def body(stage: Stage) -> None:
        charged = ChargedStage(stage, request_percentage=1)
        charged.charges.work_ns = 500_000_000
        stage.broker.authorizer = Nobody()
        topics = [{"topic": "t", "partitions": [asked(0)]}]
        assert fetched(stage.fetch(session_epoch=-1, topics=topics, replica_id=1))[0] == 1000
        assert charged.charges.muted == [1.0]

    play(body)


# ---- changes of topics


async def changed(broker: BrokerStandIn, charges: Charges, module: Any, key: int, version: int, message: Any) -> Any:
    """(the answer, the throttle time in ms)."""
    request = charges.charge(request_of(key, version))
    handled: Any = broker
    decoded = read_request(key, version, write_request(key, version, message))
    response = await module.handle(handled, request, decoded)
    assert request.charge is not None
    return read_response(key, version, write_response(key, version, response)), request.charge.answered()


def new_topic(name: str, partitions: int) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}


def creation(*topics: dict[str, Any]) -> dict[str, Any]:
    return {"topics": list(topics), "timeout": 10_000, "validate_only": False}


@pytest.mark.parametrize(
    ("strict", "create_version", "grow_version", "delete_version"), [(True, 6, 3, 5), (False, 5, 2, 4)]
)
def test_partitions_that_are_created_and_deleted_take_tokens(
    tmp_path: Path, strict: bool, create_version: int, grow_version: int, delete_version: int
) -> None:
    async def body() -> None:
        charges = Charges(controller_mutation_rate=1)
        async with broker_stand_in(tmp_path) as broker:

            async def create(name: str, partitions: int) -> tuple[int, int]:
                message = creation(new_topic(name, partitions))
                answer, time_ms = await changed(broker, charges, create_topics, CREATE, create_version, message)
                return answer.topics[0].error_code, time_ms

            async def grow(name: str, count: int) -> tuple[int, int]:
                topic = {"name": name, "count": count, "assignments": None}
                message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
                answer, time_ms = await changed(broker, charges, create_partitions, GROW, grow_version, message)
                return answer.results[0].error_code, time_ms

            async def delete(name: str) -> tuple[int, int]:
                message = {"topic_names": [name], "timeout": 10_000}
                answer, time_ms = await changed(broker, charges, delete_topics, DELETE, delete_version, message)
                return answer.responses[0].error_code, time_ms

            used_up = ErrorCode.throttling_quota_exceeded if strict else ErrorCode.none
            assert await create("a", 3) == (0, 0)
            assert await create("bad name", 90) == (ErrorCode.invalid_topic_exception, 0), "it takes nothing"
            assert await create("a", 90) == (ErrorCode.topic_already_exists, 0)
            assert await grow("a", 5) == (0, 0)
            assert await grow("a", 2) == (ErrorCode.invalid_partitions, 0)
            assert await create("b", 10) == (0, 0 if strict else 4000)
            assert await create("c", 1) == (used_up, 4000 if strict else 5000)
            assert await grow("a", 6) == (used_up, 4000 if strict else 6000)
            assert await delete("b") == (used_up, 4000 if strict else 16_000)
            charges.now += 4 if strict else 16
            assert await delete("a") == (0, 0 if strict else 6000)

    asyncio.run(body())


def test_one_request_is_refused_topic_by_topic(tmp_path: Path) -> None:
    async def body() -> None:
        charges = Charges(controller_mutation_rate=1)
        async with broker_stand_in(tmp_path) as broker:
            message = creation(*[new_topic(f"t{number}", 8) for number in range(4)])
            answer, time_ms = await changed(broker, charges, create_topics, CREATE, 7, message)
            codes = sorted(topic.error_code for topic in answer.topics)
            assert codes == [0, 0, ErrorCode.throttling_quota_exceeded, ErrorCode.throttling_quota_exceeded]
            assert all(topic.error_message is None for topic in answer.topics)
            assert time_ms == 5000

    asyncio.run(body())


def test_topics_that_metadata_creates_take_tokens_and_nobody_is_throttled_for_them(tmp_path: Path) -> None:
    async def body() -> None:
        charges = Charges(controller_mutation_rate=1)
        async with broker_stand_in(tmp_path, "num.partitions=12") as broker:
            for name, code in (("first", 0), ("second", ErrorCode.unknown_topic_or_partition)):
                message = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
                answer, time_ms = await changed(broker, charges, metadata, METADATA, 9, message)
                assert (answer.topics[0].error_code, time_ms) == (code, 0)

    asyncio.run(body())
