"""Frames that end too early, and handlers that answer now, later or never."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api.delete_topics import API as DELETE_TOPICS
from ottla.broker.api.heartbeat import API as HEARTBEAT
from ottla.broker.api.registry import Route, load_routes
from ottla.broker.dispatch import Dispatcher
from ottla.net.pending import Part, Pending
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.messages import write_request

ROUTES = load_routes()


@pytest.mark.parametrize("key", sorted(ROUTES))
@pytest.mark.parametrize("after", [b"", b"\x00" * 400, b"\x05" * 400, b"\xff" * 400], ids=["end", "0", "5", "255"])
@pytest.mark.parametrize("tags", [b"", b"\x01", b"\x01\x05", b"\x01\x05\x7f", b"\x80"])
def test_a_frame_that_ends_in_its_header_is_malformed(key: int, after: bytes, tags: bytes) -> None:
    broker: Any = SimpleNamespace(spawn=lambda coroutine: pytest.fail("it was served"))
    dispatcher = Dispatcher(broker, ROUTES)
    header = struct.pack(">hhih", key, ROUTES[key].api.versions[1], 1, 2) + b"me" + tags
    connection: Any = SimpleNamespace(listener=SimpleNamespace(name="PLAINTEXT"))
    with pytest.raises(ProtocolError):
        dispatcher.dispatch(connection, bytearray(header + after), 0, len(header))


class Client:
    """Stands in for a connection: keeps what it is sent, and why it is closed."""

    def __init__(self) -> None:
        self.listener = SimpleNamespace(name="PLAINTEXT")
        self.id, self.principal, self.client_host = 1, "User:ANONYMOUS", "127.0.0.1"
        self.closed: list[str] = []

    def answered(self) -> None:
        """`parts` of the request are there."""

    def close(self, reason: str) -> None:
        self.closed.append(reason)


def _heartbeat(handle: Callable[..., Any]) -> tuple[Sequence[Part] | None, list[str]]:
    """What comes back, or why the client is cut off, when Heartbeat is served by `handle`."""
    member = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    body = write_request(HEARTBEAT.key, 4, member)
    frame = bytearray(struct.pack(">hhih", HEARTBEAT.key, 4, 7, 2) + b"me" + b"\0" + body)
    client: Any = Client()

    async def served() -> Sequence[Part] | None:
        memory = SimpleNamespace(answered=lambda key, size: None)
        spawn = asyncio.get_running_loop().create_task
        broker: Any = SimpleNamespace(spawn=spawn, server=SimpleNamespace(memory=memory))
        dispatcher = Dispatcher(broker, {HEARTBEAT.key: Route(HEARTBEAT, handle, None)})
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


def _in_task(answer: Any) -> Callable[..., Any]:
    async def handle(*_: object) -> Any:
        return await _given(answer)

    return handle


def _at_once(answer: Any) -> Callable[..., Any]:
    def handle(*_: object) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    return handle


def _later(answer: Any) -> Callable[..., Any]:
    return lambda *_: asyncio.ensure_future(_given(answer))


CUT_OFF = (None, ["its request failed inside the broker"])
WAYS = pytest.mark.parametrize("way", [_in_task, _at_once, _later])


@WAYS
def test_a_handler_answers(way: Callable[[Any], Callable[..., Any]]) -> None:
    parts, closed = _heartbeat(way({"error_code": ErrorCode.rebalance_in_progress}))
    assert parts is not None
    assert b"".join(map(bytes, parts)) == struct.pack(">iiBihB", 12, 7, 0, 0, 27, 0)
    assert not closed


@WAYS
@pytest.mark.parametrize("wrong", [ValueError("a bug"), {"error_code": "no number"}], ids=["raises", "nonsense"])
def test_a_client_whose_request_fails_is_cut_off(way: Callable[[Any], Callable[..., Any]], wrong: Any) -> None:
    assert _heartbeat(way(wrong)) == CUT_OFF


def test_a_client_whose_answer_is_cancelled_is_cut_off() -> None:
    def cancelled(*_: object) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.cancel)
        return future

    assert _heartbeat(cancelled) == CUT_OFF


def test_a_client_whose_request_fails_at_once_is_cut_off() -> None:
    def raises(*_: object) -> asyncio.Future[Any]:
        raise ValueError("a bug")

    assert _heartbeat(raises) == CUT_OFF


def test_a_change_is_answered_when_every_broker_has_applied_it() -> None:
    """Not before, although the handler is through."""
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
        route = Route(DELETE_TOPICS, _in_task({"responses": []}), None)
        pending = Dispatcher(broker, {DELETE_TOPICS.key: route}).dispatch(client, frame, 0, len(frame))
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
