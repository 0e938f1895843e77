"""The measured lag of a blocked event loop."""

import asyncio
import time

from ottla.broker.loop_lag import LoopLag


def test_a_held_loop_is_seen() -> None:
    async def run() -> LoopLag:
        lag = LoopLag()
        lag.start()
        await asyncio.sleep(0.15)
        before = sum(lag.buckets[17:])
        time.sleep(0.3)  # noqa: ASYNC251 — the test has to block the loop
        await asyncio.sleep(0.15)
        lag.stop()
        assert sum(lag.buckets[17:]) == before + 1, "one hold of more than 131 ms is one lag"
        return lag

    lag = asyncio.run(run())
    assert 0.15 < lag.longest_seconds < 1.0
    assert lag.lag_microseconds >= 150_000


def test_waiting_is_idling() -> None:
    async def run() -> tuple[float, float]:
        lag = LoopLag()
        lag.start()
        await asyncio.sleep(0.1)
        idle = lag.idle_ratio
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass
        busy = lag.idle_ratio
        lag.stop()
        return idle, busy

    idle, busy = asyncio.run(run())
    assert idle > 0.5
    assert busy < idle
