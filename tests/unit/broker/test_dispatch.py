"""Frames that end too early, requests without the rights, and handlers that answer immediately, later or never."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api.declaration import Api
from ottla.broker.api.delete_topics import API as DELETE_TOPICS
from ottla.broker.api.heartbeat import API as HEARTBEAT
from ottla.broker.api.registry import ROUTES, Route
from ottla.broker.authorizer import AllowEverything
from ottla.broker.dispatch import Dispatcher
from ottla.broker.request import Request
from ottla.net.pending import Part, Pending
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.flexible import is_flexible
from ottla.protocol.frames import response_body
from ottla.protocol.messages import read_response, write_request
from tests.unit.broker.without_quotas import without_quotas


@pytest.mark.parametrize("key", sorted(ROUTES))
@pytest.mark.parametrize("after", [b"", b"\x00" * 400, b"\x05" * 400, b"\xff" * 400], ids=["end", "0", "5", "255"])
@pytest.mark.parametrize("tags", [b"", b"\x01", b"\x01\x05", b"\x01\x05\x7f", b"\x80"])
def test_a_frame_that_ends_in_its_header_is_malformed(key: int, after: bytes, tags: bytes) -> None:
    broker: Any = SimpleNamespace(spawn=lambda coroutine: pytest.fail("it was served"))
    dispatcher = Dispatcher(broker, ROUTES, without_quotas())
    header = struct.pack(">hhih", key, ROUTES[key].api.versions[1], 1, 2) + b"me" + tags
    connection: Any = SimpleNamespace(listener=SimpleNamespace(name="PLAINTEXT"))
    with pytest.raises(ProtocolError):
        dispatcher.dispatch(connection, bytearray(header + after), 0, len(header))


class Client:
    """Stands in for a connection, and notes why it is closed."""

    def __init__(self) -> None:
        self.listener = SimpleNamespace(name="PLAINTEXT")
        self.id, self.principal, self.client_host = 1, "User:ANONYMOUS", "127.0.0.1"
        self.closed: list[str] = []

    def answered(self) -> None:
        """Called when the `parts` of a request's answer are ready; does nothing."""

    def close(self, reason: str) -> None:
        self.closed.append(reason)


def _heartbeat(route: Route) -> tuple[Sequence[Part] | None, list[str]]:
    """The answer to a Heartbeat that is served by `route`, and the reasons why the connection is closed."""
    member = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    body = write_request(HEARTBEAT.key, 4, member)
    frame = bytearray(struct.pack(">hhih", HEARTBEAT.key, 4, 7, 2) + b"me" + b"\0" + body)
    client: Any = Client()

    async def served() -> Sequence[Part] | None:
        memory = SimpleNamespace(answered=lambda key, size: None)
        spawn = asyncio.get_running_loop().create_task
        broker: Any = SimpleNamespace(spawn=spawn, server=SimpleNamespace(memory=memory))
        dispatcher = Dispatcher(broker, {HEARTBEAT.key: route}, without_quotas())
        pending = dispatcher.dispatch(client, frame, 0, len(frame))
        if pending is None:
            return None
        assert isinstance(pending, Pending)
        for _ in range(5):
            await asyncio.sleep(0)
        return pending.parts

    return asyncio.run(served()), client.closed


async def _given(answer: Any) -> Any:
    await asyncio.sleep(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


def _in_task(answer: Any, api: Api = HEARTBEAT) -> Route:
    async def handle(*_: object) -> Any:
        return await _given(answer)

    return Route(api, handle)


def _at_once(answer: Any) -> Route:
    def handle(*_: object) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    return Route(HEARTBEAT, taskless=handle)


def _later(answer: Any) -> Route:
    return Route(HEARTBEAT, taskless=lambda *_: asyncio.ensure_future(_given(answer)))


CUT_OFF = (None, ["the request failed inside the broker"])
WAYS = pytest.mark.parametrize("way", [_in_task, _at_once, _later])


@WAYS
def test_a_handler_answers(way: Callable[[Any], Route]) -> None:
    parts, closed = _heartbeat(way({"error_code": ErrorCode.rebalance_in_progress}))
    assert parts is not None
    assert b"".join(map(bytes, parts)) == struct.pack(">iiBihB", 12, 7, 0, 0, 27, 0)
    assert not closed


@WAYS
@pytest.mark.parametrize("wrong", [ValueError("a bug"), {"error_code": "no number"}], ids=["raises", "nonsense"])
def test_a_client_whose_request_fails_is_cut_off(way: Callable[[Any], Route], wrong: Any) -> None:
    assert _heartbeat(way(wrong)) == CUT_OFF


def test_a_client_whose_answer_is_cancelled_is_cut_off() -> None:
    def cancelled(*_: object) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.cancel)
        return future

    assert _heartbeat(Route(HEARTBEAT, taskless=cancelled)) == CUT_OFF


def test_a_client_whose_request_fails_at_once_is_cut_off() -> None:
    def raises(*_: object) -> asyncio.Future[Any]:
        raise ValueError("a bug")

    assert _heartbeat(Route(HEARTBEAT, taskless=raises)) == CUT_OFF


def test_a_change_is_answered_when_every_broker_has_applied_it() -> None:
    """The answer is sent only when every broker has applied the change, even if the handler has returned it before."""
    topics = {"topic_names": ["t"], "timeout": 1000}
    frame = bytearray(struct.pack(">hhih", DELETE_TOPICS.key, 3, 7, 2) + b"me" + write_request(20, 3, topics))
    client: Any = Client()

    async def served() -> None:
        applied = asyncio.Event()
        memory = SimpleNamespace(answered=lambda key, size: None)
        broker: Any = SimpleNamespace(
            spawn=asyncio.get_running_loop().create_task,
            server=SimpleNamespace(memory=memory),
            applied_revisions=SimpleNamespace(everywhere=applied.wait),
        )
        route = _in_task({"responses": []}, DELETE_TOPICS)
        dispatcher = Dispatcher(broker, {DELETE_TOPICS.key: route}, without_quotas())
        pending = dispatcher.dispatch(client, frame, 0, len(frame))
        assert isinstance(pending, Pending)
        for _ in range(5):
            await asyncio.sleep(0)
        assert pending.parts is None
        applied.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert pending.parts is not None

    asyncio.run(served())
    assert not client.closed


class Nobody(AllowEverything):
    """Allows nothing, and notes what it was asked about."""

    enforced = True

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def allows(
        self, request: Request, operation: Any, resource_type: Any, name: str, count: int = 1, *, quiet: bool = False
    ) -> bool:
        """False."""
        self.asked.append((request.principal, operation.name, resource_type.name, name, quiet))
        return False


def _refused(api: Api, version: int, body: dict[str, Any]) -> tuple[Any, list[tuple[Any, ...]]]:
    """The answer to a client that may do nothing, and what the authorizer was asked about. The handler isn't called."""
    called: list[str] = []
    nobody = Nobody()

    async def handle(*_: object) -> Any:
        called.append("handler")
        return {}

    async def dispatched() -> Any:
        memory = SimpleNamespace(answered=lambda key, size: None)
        broker: Any = SimpleNamespace(
            spawn=asyncio.get_running_loop().create_task, server=SimpleNamespace(memory=memory), authorizer=nobody
        )
        head = struct.pack(">hhih", api.key, version, 7, 2) + b"me" + (b"\0" if is_flexible(api.key, version) else b"")
        frame = bytearray(head + write_request(api.key, version, body))
        pending = Dispatcher(broker, {api.key: Route(api, handle)}, without_quotas()).dispatch(
            client, frame, 0, len(frame)
        )
        assert isinstance(pending, Pending)
        assert pending.parts is not None
        answer = b"".join(map(bytes, pending.parts))[4:]
        _, start = response_body(api.key, version, answer)
        return read_response(api.key, version, answer, start)

    client: Any = Client()
    answer = asyncio.run(dispatched())
    assert not called
    assert not client.closed
    return answer, nobody.asked


def test_a_client_without_the_right_on_the_cluster_is_refused_before_the_handler_sees_the_request() -> None:
    answer, asked = _refused(ROUTES[57].api, 1, {"feature_updates": [], "timeout": 1})
    assert answer.error_code == ErrorCode.cluster_authorization_failed
    assert asked == [("User:ANONYMOUS", "ALTER", "CLUSTER", "kafka-cluster", False)]


def test_one_of_several_rights_on_the_cluster_is_enough_and_only_the_last_denial_is_logged() -> None:
    marker = {
        "producer_id": 5,
        "producer_epoch": 0,
        "transaction_result": True,
        "topics": [{"name": "t", "partition_indexes": [3]}],
        "coordinator_epoch": 0,
    }
    answer, asked = _refused(ROUTES[27].api, 1, {"markers": [marker]})
    [topic] = answer.markers[0].topics
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(3, 31)]
    assert [(operation, quiet) for _, operation, _, _, quiet in asked] == [("ALTER", True), ("CLUSTER_ACTION", False)]


ON_CLUSTER = [route.api for route in ROUTES.values() if route.api.refuse is not None]


@pytest.mark.parametrize("api", ON_CLUSTER, ids=lambda api: api.name)
def test_every_version_can_refuse_a_client(api: Api) -> None:
    """The refusal has the fields of the answer, also for a request that names nothing."""
    for version in range(api.versions[0], api.versions[1] + 1):
        answer, asked = _refused(api, version, {})
        assert answer is not None
        assert asked
