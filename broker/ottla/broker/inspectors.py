"""The threads that check producers' batches, shared fairly by the producers' connections.

A batch of a few KB may unpack to GBs, and such a batch is valid. So a thread checks a batch for a turn of some 10 ms
(`loop_quota.THREAD_MICROSECONDS`); a batch that takes longer waits for its next turn. A free thread goes to the
connection that has the fewest threads; if several connections have equally few, to the connection that has waited
longest. A connection has all of the threads only while no other connection waits for one. The rule that this protects:
a batch whose check fits into one turn waits for no more than one turn of each other connection, whatever size the other
connections' batches unpack to.

Owned by the event loop; only the checks run in the threads.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from concurrent.futures import Executor

from ottla.broker.admission import Admitted
from ottla.broker.contents import Inspection
from ottla.broker.loop_quota import THREAD_MICROSECONDS, bytes_in


class Inspectors:
    """Gives `count` threads of `executor` to connections, by turns."""

    def __init__(self, executor: Executor, count: int) -> None:
        self._executor = executor
        self._idle = count
        self._running: dict[Hashable, int] = {}  # holder → the number of its threads; no entry if it has none
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    async def look(self, holder: Hashable, inspection: Inspection) -> Admitted:
        """The inspection's result. The inspection takes as many turns in a thread as it needs; `holder` is the batch's
        connection, to which these turns are counted. Raises KafkaError as the inspection does."""
        loop = asyncio.get_running_loop()
        quota_bytes = bytes_in(THREAD_MICROSECONDS, inspection.codec)
        turn = self._queue(holder)
        self._give_away()
        while True:
            await self._comes(holder, turn)
            try:
                found = await loop.run_in_executor(self._executor, inspection.go_on, quota_bytes)
                if found is not None:
                    return found
                # Before the thread goes to another connection, so that this connection is considered, too.
                turn = self._queue(holder)
            finally:
                self._ended(holder)

    def stop(self) -> None:
        """Begins no further turn."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _queue(self, holder: Hashable) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append(turn)
        return turn

    async def _comes(self, holder: Hashable, turn: asyncio.Future[None]) -> None:
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._ended(holder)  # a thread was given to this turn, and wasn't used
            raise

    def _ended(self, holder: Hashable) -> None:
        self._idle += 1
        self._running[holder] -= 1
        if not self._running[holder]:
            del self._running[holder]
        self._give_away()

    def _give_away(self) -> None:
        while self._idle and self._waiting:
            self._give(min(self._waiting, key=lambda waiting: self._running.get(waiting, 0)))

    def _give(self, holder: Hashable) -> None:
        turns = self._waiting[holder]
        turn = turns.popleft()
        if turns:
            self._waiting.move_to_end(holder)
        else:
            del self._waiting[holder]
        if not turn.done():  # a cancelled task doesn't wait any more
            self._idle -= 1
            self._running[holder] = self._running.get(holder, 0) + 1
            turn.set_result(None)
