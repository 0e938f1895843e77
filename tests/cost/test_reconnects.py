"""5,000 clients that reconnect at once over TLS, and hang up at once, don't hold a broker's event loop."""

from __future__ import annotations

from pathlib import Path

from tests.cost.reconnects import longest_turns_ms

CLIENTS = 5_000
# The goal is 10 ms (`bench/reconnects.py`). On a busy machine, whose caches others share, the same work takes up to
# twice the CPU time.
HELD_MS_MAX = 20.0


def test_thousands_of_reconnects_dont_hold_the_event_loop(tmp_path: Path) -> None:
    longest = longest_turns_ms(tmp_path, CLIENTS)
    print(f"{CLIENTS} clients; the longest turns of the event loop, in ms of CPU time: {longest}")
    assert longest[0] < HELD_MS_MAX, longest
