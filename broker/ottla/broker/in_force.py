"""The wait of an administrator's request about rights, users or tokens until the change is in force everywhere.

Other changes of the metadata wait only for brokers that keep up. Whoever takes away a right, a user or a token has to
know that no broker honours it any more, so these changes wait for every registered broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ottla.broker.applied_revisions import AppliedRevisions
from ottla.protocol.errors import ErrorCode, KafkaError

TIMEOUT_S = 25.0
"""The time for such a change. The requests have no time-out; this is less than the 30 s for which clients wait by
default, so that they get an answer."""


@asynccontextmanager
async def in_force(applied_revisions: AppliedRevisions) -> AsyncIterator[None]:
    """After the block, waits until every registered broker has applied the change that the block made. The block and
    the wait together take `TIMEOUT_S` at most, if the block does. Raises KafkaError REQUEST_TIMED_OUT: the change is
    written, but some broker may still decide by the older state."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_S
    yield
    behind = await applied_revisions.everywhere_by(deadline)
    if behind:
        named = ", ".join(map(str, sorted(behind)))
        message = f"The change is written, but it isn't known to be in force on the brokers {named} yet."
        raise KafkaError(ErrorCode.request_timed_out, message)
