"""AwaitRevision: a broker asks another one to answer as soon as it has applied a revision of the metadata. Pure.

A broker has applied a revision when its image shows the revision, and the logs that the broker leads by that image are
open. The API is Ottla's own, and its API key is far above Kafka's API keys. Only brokers use it: ApiVersions doesn't
name it, and only the inter-broker listener serves it. A broker that doesn't know the API closes the connection.

The request, version 0, has the revision (int64) and the milliseconds for which the answer may wait (int32). The answer
has the revision that the broker has applied by then (int64). If the time ended first, it is below the requested
revision.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .errors import ProtocolError
from .received import Buffer

AWAIT_REVISION = 31_000
VERSION = 0
_question = struct.Struct(">qi")
_answer = struct.Struct(">q")


class Question(NamedTuple):
    """A request: the revision to wait for, and the longest wait in ms."""

    revision: int
    wait_ms: int


def write_question(question: Question) -> bytes:
    """The body of a request."""
    return _question.pack(*question)


def read_question(frame: Buffer, start: int, end: int) -> Question:
    """The question in frame[start:end]. Raises ProtocolError if the frame ends inside it."""
    if end - start < _question.size:
        raise ProtocolError("the frame ends inside the question for a revision")
    return Question(*_question.unpack_from(frame, start))


def write_answer(applied: int) -> bytes:
    """The body of a response."""
    return _answer.pack(applied)


def read_answer(frame: Buffer, start: int, end: int) -> int:
    """The applied revision in frame[start:end]. Raises ProtocolError if the frame ends inside it."""
    if end - start < _answer.size:
        raise ProtocolError("the frame ends inside the applied revision")
    (applied,) = _answer.unpack_from(frame, start)
    return int(applied)
