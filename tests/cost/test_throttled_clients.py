"""Throttled clients never delay others: another client's slowest requests take as long with them as without them.

The machine may be busy, so windows with throttled clients and windows without them take turns, and the cheapest windows
are compared. The throttled clients are sockets whose buffers are full of requests: a broker that read them, or looked
at them again and again, would spend its time on them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench.raw import exchange, produce_request
from tests.cost.test_request_cost import created
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire

ALTER_CLIENT_QUOTAS = 49
REQUESTS = 400
WINDOWS_MIN, WINDOWS_MAX = 10, 150
THROTTLED = 30
P99_RATIO_MAX = 1.1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OttlaBroker]:
    broker = OttlaBroker(tmp_path)
    yield broker
    broker.stop()


def p99(latencies: list[float]) -> float:
    return sorted(latencies)[int(len(latencies) * 0.99)]


@contextmanager
def throttled_clients(bootstrap: str, request: bytes) -> Iterator[None]:
    """Clients that have sent so much that they are throttled, and wait with more in their sockets' buffers."""
    host, _, port = bootstrap.rpartition(":")
    with ExitStack() as stack:
        for _ in range(THROTTLED):
            sock = stack.enter_context(socket.create_connection((host, int(port)), 30))
            sock.setblocking(False)
            try:
                for _ in range(1000):
                    sock.sendall(request)
            except BlockingIOError:
                pass
        yield


def test_others_dont_notice_throttled_clients(broker: OttlaBroker) -> None:
    for topic in ("throttled", "others"):
        created(broker, topic)
    entity = [{"entity_type": "client-id", "entity_name": "bench"}]
    limit = {"key": "producer_byte_rate", "value": 1000.0, "remove": False}
    with Wire(broker.bootstrap) as wire:
        altered = {"entries": [{"entity": entity, "ops": [limit]}], "validate_only": False}
        assert wire.call(ALTER_CLIENT_QUOTAS, 1, altered).entries[0].error_code == 0
    mine = produce_request("others", bytes(100)).replace(b"\x00\x05bench", b"\x00\x05other")
    theirs = produce_request("throttled", bytes(100_000))
    exchange(broker.bootstrap, mine, 1, 2000)
    alone = beside = float("inf")
    for window in range(WINDOWS_MAX):
        alone = min(alone, p99(exchange(broker.bootstrap, mine, 1, REQUESTS).latencies))
        with throttled_clients(broker.bootstrap, theirs):
            beside = min(beside, p99(exchange(broker.bootstrap, mine, 1, REQUESTS).latencies))
        if window >= WINDOWS_MIN and beside < alone * P99_RATIO_MAX:
            break
    print(f"p99 {alone * 1e6:.0f} us alone, {beside * 1e6:.0f} us beside throttled clients, {window + 1} windows")
    assert beside < alone * P99_RATIO_MAX
