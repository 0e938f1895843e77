"""A broker that measures each turn of its event loop.

`python -m tests.cost.timed_broker SECONDS --config FILE` is `ottla broker --config FILE`, with a callback that is due
in every turn. At a SIGUSR1 it prints the CPU times of the ten longest turns so far in ms, without those of the first
SECONDS after its start, in which it imports and opens what it needs.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import signal
import sys
import time

from ottla.cli import server

LONGEST = 10


class Turns:
    """The longest turns of an event loop, in seconds of CPU time of its thread."""

    def __init__(self, after_s: float) -> None:
        self.longest = [0.0] * LONGEST
        self._from = time.monotonic() + after_s
        self._last = time.thread_time()

    def measure(self) -> None:
        """Measures this turn and all that follow. Must be called on the loop."""
        now = time.thread_time()
        if time.monotonic() > self._from:
            heapq.heappushpop(self.longest, now - self._last)
        self._last = now
        asyncio.get_running_loop().call_soon(self.measure)

    def show(self) -> None:
        """Prints the longest turns."""
        longest = sorted(self.longest, reverse=True)
        print("turns", json.dumps([round(seconds * 1000, 1) for seconds in longest]), flush=True)


def main(after_s: float, arguments: list[str]) -> int:
    """Runs the broker. Returns its exit code."""
    turns = Turns(after_s)
    run = server._run

    async def measured(*config: object, **how: object) -> int:
        turns.measure()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, turns.show)
        return await run(*config, **how)  # type: ignore[arg-type]

    server._run = measured  # type: ignore[assignment]
    return server.main(arguments)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
