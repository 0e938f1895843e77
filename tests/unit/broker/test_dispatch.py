"""Frames that end too early, requests without the rights, and handlers that answer immediately, later or never."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api.api_versions import API as API_VERSIONS
from ottla.broker.api.declaration import Api
from ottla.broker.api.delete_topics import API as DELETE_TOPICS
from ottla.broker.api.fetch import API as FETCH
from ottla.broker.api.heartbeat import API as HEARTBEAT
from ottla.broker.api.registry import ROUTES, Route
from ottla.broker.authorizer import Rights, allow_everything
from ottla.broker.dispatch import Dispatcher
from ottla.broker.request import Request
from ottla.net.pending import Part, Pending
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages import write_request
from tests.unit.broker.without_quotas import without_quotas


@pytest.mark.parametrize("key", sorted(ROUTES))
@pytest.mark.parametrize("after", [b"", b"\x00" * 400, b"\x05" * 400, b"\xff" * 400], ids=["end", "0", "5", "255"])
@pytest.mark.parametrize("tags", [b"", b"\x01", b"\x01\x05", b"\x01\x05\x7f", b"\x80"])
def test_a_frame_that_ends_in_its_header_is_malformed(key: int, after: bytes, tags: bytes) -> None:
    broker: Any = SimpleNamespace(spawn=lambda coroutine: pytest.fail("it was served"))
    dispatcher = Dispatcher(broker, ROUTES, allow_everything, without_quotas())
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
        dispatcher = Dispatcher(broker, {HEARTBEAT.key: route}, allow_everything, without_quotas())
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
        pending = Dispatcher(broker, {DELETE_TOPICS.key: route}, allow_everything, without_quotas()).dispatch(
            client, frame, 0, len(frame)
        )
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


def _asked(key: int, version: int, *, allowed: bool) -> tuple[list[tuple[Any, ...]], list[str], list[str]]:
    """For a request with an empty body: the authoriser's arguments, the called handlers, and the reasons why the
    connection is closed."""
    asked: list[tuple[Any, ...]] = []
    called: list[str] = []

    def authorize(request: Request, rights: Rights) -> bool:
        asked.append((request.api_key, request.principal, request.client_host, request.listener, rights))
        return allowed

    def serve(*_: object) -> list[Any]:
        called.append("hot")
        return [b"answer"]

    def at_once(*_: object) -> Any:
        called.append("without a task")
        return asyncio.get_running_loop().create_future()

    async def in_task(*_: object) -> Any:
        called.append("in a task")
        return {}

    async def dispatched() -> None:
        broker: Any = SimpleNamespace(spawn=lambda coroutine: called.append("in a task") or coroutine.close())
        routes = {
            FETCH.key: Route(FETCH, serve=serve),
            HEARTBEAT.key: Route(HEARTBEAT, taskless=at_once),
            DELETE_TOPICS.key: Route(DELETE_TOPICS, in_task),
            API_VERSIONS.key: Route(API_VERSIONS, in_task),
        }
        frame = bytearray(struct.pack(">hhih", key, version, 7, 2) + b"me" + bytes(40))
        reply = Dispatcher(broker, routes, authorize, without_quotas()).dispatch(client, frame, 0, len(frame))
        assert (reply is None) is not allowed

    client: Any = Client()
    asyncio.run(dispatched())
    return asked, called, client.closed


GUARDED = pytest.mark.parametrize(
    ("api", "version", "way"),
    [(FETCH, 12, "hot"), (HEARTBEAT, 3, "without a task"), (DELETE_TOPICS, 3, "in a task")],
    ids=["hot", "without-a-task", "in-a-task"],
)


@GUARDED
def test_rights_are_asked_for_before_a_request_is_handled(api: Api, version: int, way: str) -> None:
    asked, called, closed = _asked(api.key, version, allowed=True)
    assert asked == [(api.key, "User:ANONYMOUS", "127.0.0.1", "PLAINTEXT", api.needs)]
    assert (called, closed) == ([way], [])


@GUARDED
def test_no_handler_sees_a_request_that_is_refused(api: Api, version: int, way: str) -> None:
    asked, called, [why] = _asked(api.key, version, allowed=False)
    assert len(asked) == 1
    assert not called
    assert why.startswith("User:ANONYMOUS has no right to ")


def test_what_needs_no_right_is_asked_of_nobody() -> None:
    asked, called, closed = _asked(API_VERSIONS.key, 0, allowed=True)
    assert (asked, called, closed) == ([], ["in a task"], [])
