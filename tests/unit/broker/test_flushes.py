"""Requests that wait until the log is on the disk share flushes."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import Any

import pytest

from ottla.broker.flushes import Flushes
from ottla.protocol.errors import ErrorCode, KafkaError


class FlushedLog:
    """Counts flushes. Each flush notes the log end offset when it begins, and waits until the test lets it go on."""

    def __init__(self) -> None:
        self.end = 0
        self.flushed_to: list[int] = []
        self.may_go_on = threading.Event()
        self.fails = False

    def begin_flush(self) -> Any:
        return PendingFlushOf(self, self.end)

    def flushed(self, pending: PendingFlushOf) -> None:
        self.flushed_to.append(pending.end)


class PendingFlushOf:
    def __init__(self, log: FlushedLog, end: int) -> None:
        self.log, self.end = log, end

    def run(self) -> None:
        assert self.log.may_go_on.wait(10)
        if self.log.fails:
            raise OSError(errno.EIO, "the disk fails")


def flushes_of(log: Any) -> Flushes:
    return Flushes(log, lambda error: KafkaError(ErrorCode.kafka_storage_error, str(error)))


def test_requests_during_a_flush_share_the_next_one() -> None:
    async def main() -> None:
        log = FlushedLog()
        flushes = flushes_of(log)
        log.end = 1
        first = flushes.flush()
        await asyncio.sleep(0.01)
        log.end = 2
        second, third = flushes.flush(), flushes.flush()
        assert second is third, "the first flush began before these records were written"
        assert second is not first
        log.may_go_on.set()
        await asyncio.gather(first, second)
        assert log.flushed_to == [1, 2]
        log.end = 3
        await flushes.flush()
        assert log.flushed_to == [1, 2, 3]

    asyncio.run(main())


def test_a_flush_that_fails_is_told_and_the_next_one_is_tried() -> None:
    async def main() -> None:
        log = FlushedLog()
        flushes = flushes_of(log)
        log.may_go_on.set()
        log.fails = True
        first = flushes.flush()
        await asyncio.sleep(0)
        second = flushes.flush()
        for flush in (first, second):
            with pytest.raises(KafkaError) as error:
                await flush
            assert error.value.code is ErrorCode.kafka_storage_error
        log.fails = False
        await flushes.flush()
        assert log.flushed_to == [0]

    asyncio.run(main())
