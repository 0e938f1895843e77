"""The client's identity that handlers see in a request, and how a late answer reaches the client."""

from types import SimpleNamespace
from typing import Any

from ottla.broker.request import Request


def test_the_identity_is_that_of_the_connection() -> None:
    connection: Any = SimpleNamespace(
        listener=SimpleNamespace(name="CLIENTS"), principal="User:reader", client_host="10.0.0.7"
    )
    request = Request(3, 12, 1, "me", connection)
    assert (request.listener, request.principal, request.client_host) == ("CLIENTS", "User:reader", "10.0.0.7")


def test_an_answer_that_comes_later_has_one_place() -> None:
    answered = []
    connection: Any = SimpleNamespace(answered=lambda: answered.append(True))
    request = Request(3, 12, 1, "me", connection)
    pending = request.pending
    assert pending.api_key == 3
    assert pending.wanted
    request.pending.answer([b"answer"])
    assert (pending.parts, answered) == ([b"answer"], [True])
