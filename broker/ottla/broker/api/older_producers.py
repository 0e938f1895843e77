"""Replaces error codes that older producers don't know."""

from __future__ import annotations

from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode


def known_to(request: Request, error: ErrorCode, since: int) -> ErrorCode:
    """Returns `error`, but INVALID_PRODUCER_EPOCH in place of PRODUCER_FENCED for a request of a version below `since`.
    Both errors are fatal to a producer that waits for its transaction coordinator."""
    if error is ErrorCode.producer_fenced and request.api_version < since:
        return ErrorCode.invalid_producer_epoch
    return error
