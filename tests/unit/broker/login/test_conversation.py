"""What a conversation lets through to a mechanism."""

from __future__ import annotations

import struct

from ottla.broker.login.conversation import MESSAGE_BYTES_MAX, Conversation, Mechanism
from ottla.protocol.messages import write_request
from ottla.protocol.sasl import PLAIN, SASL_AUTHENTICATE, SASL_HANDSHAKE


def request(api_key: int, message: dict[str, object]) -> bytes:
    return struct.pack(">hhih", api_key, 1, 7, -1) + write_request(api_key, 1, message)


class Listening:
    """A mechanism that notes its messages."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def respond(self, message: bytes) -> bytes:
        self.sizes.append(len(message))
        return b"more"


def test_a_message_that_is_too_long_doesnt_reach_the_mechanism() -> None:
    """A mechanism's pattern would hold the event loop for half a second with a message of 500 kB."""
    exchange = Listening()
    for size, refused in ((MESSAGE_BYTES_MAX, ""), (MESSAGE_BYTES_MAX + 1, "a message of 81921 bytes")):
        conversation = Conversation({PLAIN: Mechanism(lambda: exchange)})
        conversation.arrived(request(SASL_HANDSHAKE, {"mechanism": PLAIN}), 0)
        outcome = conversation.arrived(request(SASL_AUTHENTICATE, {"auth_bytes": bytes(size)}), 0)
        assert outcome.refused == (f"login refused, PLAIN: {refused}" if refused else "")
        assert outcome.delayed == bool(refused)
    assert exchange.sizes == [MESSAGE_BYTES_MAX]
