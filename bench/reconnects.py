"""For how long do 5,000 clients that reconnect at once over TLS hold Ottla's event loop?

They connect at the same time, as after a broker's restart, make a handshake each, ask for the versions of APIs, and
hang up at the same time. The broker measures each turn of its event loop, in CPU time of the loop's thread. Estimate:
the handshakes take 0.5 ms each, 2.5 s in all, and have 1 ms of each turn; reads have 3 ms, and accepts 1 ms.

The goal is absolute: Apache Kafka doesn't run on a single loop.
"""

from __future__ import annotations

from bench.pair import Plan, folder
from bench.table import Row, within
from tests.cost.reconnects import longest_turns_ms

GOAL_MS = 10
CLIENTS = 5_000


def run(plan: Plan) -> list[Row]:
    """A row for the longest turn."""
    row = Row(
        f"event loop held while {CLIENTS} clients reconnect over TLS, the longest turn", "CPU ms", within(GOAL_MS)
    )
    for _ in range(plan.rounds):
        with folder() as root:
            row.ottla.append(longest_turns_ms(root, CLIENTS)[0])
    return [row]
