"""The simulation's small client over real sockets and by the real clock."""

from __future__ import annotations

import asyncio
import time
from random import Random

from ottla.net.streams import Connect
from tests.simulation.client import Client
from tests.simulation.history import History


def real_client(
    name: str, addresses: list[tuple[str, int]], connect: Connect, history: History, random: Random
) -> Client:
    """A client on the running event loop. It knows the brokers at `addresses`, each (host, port)."""
    client = Client(name, addresses, connect, history, Random(random.randrange(1 << 32)))
    client.epoch_ms = time.time_ns() // 1_000_000 - int(asyncio.get_running_loop().time() * 1000)
    return client
