"""A broker tells other brokers which revision it has applied. The answer to a request that changes the metadata waits
until every broker has applied the change.
"""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api import await_revision, registry
from ottla.broker.api.registry import ROUTES
from ottla.broker.authorizer import AllowEverything
from ottla.broker.request import Request
from ottla.metadata.follower import Follower
from ottla.metadata.image import Changed, Image
from ottla.net.pending import Pending
from ottla.protocol.applied_revision import AWAIT_REVISION, VERSION, Question, read_answer, write_question
from ottla.protocol.errors import ProtocolError
from ottla.protocol.frames import read_request_header, request_frame, response_body

CLIENTS, BROKERS = "CLIENTS", "BROKERS"


class Stage:
    """A broker that has applied revision 10 of the metadata, and a connection of another broker. The test moves the
    broker to later revisions.
    """

    def __init__(self, listener: str = BROKERS) -> None:
        self.follower = Follower(None)  # type: ignore[arg-type]  # the follower is never started
        self.broker: Any = SimpleNamespace(
            authorizer=AllowEverything(),
            config=SimpleNamespace(listeners=SimpleNamespace(inter_broker=BROKERS)),
            follower=self.follower,
            spawn=lambda coroutine, name: asyncio.get_running_loop().create_task(coroutine),
        )
        self.connection: Any = SimpleNamespace(listener=SimpleNamespace(name=listener), answered=lambda: None)
        self.broker.image = Image()

    async def move_to(self, revision: int) -> None:
        self.broker.image = Image(revision=revision)
        await self.follower._publish(self.broker.image, Changed())

    def ask(self, revision: int, wait_ms: int) -> Any:
        frame = request_frame(AWAIT_REVISION, VERSION, 3, "me", write_question(Question(revision, wait_ms)))
        *header, end = read_request_header(frame, 4)
        return await_revision.serve(self.broker, Request(*header, self.connection), bytearray(frame), end, len(frame))


def applied(parts: Any) -> int:
    frame = b"".join(parts)[4:]
    correlation_id, start = response_body(AWAIT_REVISION, VERSION, frame)
    assert correlation_id == 3
    return read_answer(frame, start, len(frame))


def test_what_is_applied_is_answered_at_once() -> None:
    async def body() -> None:
        stage = Stage()
        await stage.move_to(10)
        assert applied(stage.ask(9, 1000)) == applied(stage.ask(10, 1000)) == 10

    asyncio.run(body())


def test_what_is_not_applied_yet_is_answered_when_it_is() -> None:
    async def body() -> None:
        stage = Stage()
        await stage.move_to(10)
        reply = stage.ask(12, 10_000)
        assert isinstance(reply, Pending)
        for revision in (11, 13):
            await asyncio.sleep(0.01)
            assert reply.parts is None
            await stage.move_to(revision)
        await asyncio.sleep(0.01)
        assert applied(reply.parts) == 13

    asyncio.run(body())


def test_when_the_time_is_up_the_answer_says_how_far_the_broker_is() -> None:
    async def body() -> None:
        stage = Stage()
        await stage.move_to(10)
        reply = stage.ask(12, 20)
        await asyncio.sleep(0.3)
        assert applied(reply.parts) == 10

    asyncio.run(body())


def test_a_client_gets_no_answer() -> None:
    with pytest.raises(ProtocolError, match="on the inter-broker listener only"):
        Stage(CLIENTS).ask(1, 1)


def test_no_client_is_told_of_it() -> None:
    """An API with an `own_name` is left out of ApiVersions and of the page about compatibility."""
    assert ROUTES[AWAIT_REVISION].api.own_name == ROUTES[AWAIT_REVISION].api.name == "await_revision"


def test_whatever_writes_an_intent_is_answered_when_every_broker_has_applied_it() -> None:
    """An intent is what an administrator's request asks for, as the metadata store records it. Each API whose handler
    writes an intent is declared with `changes_metadata`, so its answer waits. Metadata isn't declared so:
    its handler waits itself, and only if it has created a topic.
    """
    writes = ("intents.", "config_resources")
    imported = {name: module for name, module in vars(registry).items() if inspect.ismodule(module)}
    modules = {name: module for name, module in imported.items() if module.__package__ == registry.__package__}
    assert len(modules) == len(ROUTES)
    writing = {
        name
        for name, module in modules.items()
        if any(word in inspect.getsource(module).replace("image.intents.", "") for word in writes)
        and "await" in inspect.getsource(module)
    }
    waiting = {name for name, module in modules.items() if module.API.changes_metadata}
    assert len(waiting) >= 9
    assert writing - waiting <= {"metadata", "describe_configs"}
    assert "applied_revisions.everywhere()" in inspect.getsource(modules["metadata"])
