"""The two kinds of failure that the protocol knows, and Kafka's error codes. Pure.

If a peer breaks the framing or the schema, its connection is closed (`ProtocolError`). If a request is well formed but
can't be served, it is answered by an error code (`KafkaError`). Codes are Kafka's `Errors` enum.
"""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "ProtocolError"]


class ProtocolError(Exception):
    """The peer's bytes break the protocol. The peer's connection must be closed."""


class KafkaError(Exception):
    """A request, or one element of it, can't be served; `code` becomes the client's answer.

    `message` is for answers that have a field for an error message; it is empty if the code says everything.
    `record_errors` are the bad records of a producer's batch, as (index in the batch, sentence), as in KIP-467.
    """

    def __init__(
        self, code: ErrorCode, message: str = "", record_errors: Sequence[tuple[int, str | None]] = ()
    ) -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message
        self.record_errors = record_errors
