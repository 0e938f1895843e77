"""What a small request costs in CPU, counted, as a multiple of the least that any server would need on this machine.

Absolute figures differ between machines, and wall time says nothing on a busy one. So a server that only receives,
writes and sends is measured in between, window by window, and the cheapest windows are compared: they saw least of what
else the machine does. When this was written Produce took 2.2 times as much and Fetch 2.0; the bounds are a third above.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bench.process import cpu_seconds
from bench.raw import exchange, fetch_request, produce_request
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire

WINDOW_REQUESTS = 400  # about 10 ms: short enough that some windows are left alone by whatever else runs
WINDOWS_MIN = 20
WINDOWS_MAX = 600
PRODUCE_MULTIPLE_MAX = 2.9
FETCH_MULTIPLE_MAX = 2.7
SESSION_FETCH_MULTIPLE_MAX = 2.9
SESSION_ID_AT = 15  # in a Fetch response: behind size, correlation id, no tags, throttle time and error
IDLE_BYTES_MAX = 57_600_000  # 0.15 of what Apache Kafka holds


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaBroker]:
    broker = OttlaBroker(tmp_path_factory.mktemp("cost"))
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def bare() -> Iterator[tuple[int, str]]:
    """(pid, address) of the bare server."""
    command = [sys.executable, str(Path(__file__).parent / "bare_server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, f"127.0.0.1:{int(process.stdout.readline())}"
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def one_processor(broker: OttlaBroker, bare: tuple[int, str]) -> Iterator[None]:
    """Client and servers share a processor: waking somebody on another one costs a virtual machine more than a request
    does, is paid by whoever wakes, and happens or not as the scheduler likes."""
    before = os.sched_getaffinity(0)
    chosen = {min(before)}
    for pid in (broker.process.pid, bare[0], os.getpid()):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), chosen)
    yield
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), before)


def cost(pid: int, address: str, request: bytes) -> float:
    """CPU seconds of a process for one window of requests over one connection."""
    before = cpu_seconds(pid)
    exchange(address, request, 1, WINDOW_REQUESTS)
    return cpu_seconds(pid) - before


def session_cost(broker: OttlaBroker, topic: str) -> float:
    """CPU seconds of the broker for one window of incremental fetches, each of which finds the same record."""
    host, _, port = broker.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as sock:
        sock.sendall(fetch_request(topic, 0, 1_000_000, (0, 0)))
        (session_id,) = struct.unpack_from(">i", sock.recv(1 << 20), SESSION_ID_AT)
        requests = [fetch_request(topic, 0, 1_000_000, (session_id, epoch + 1)) for epoch in range(WINDOW_REQUESTS)]
        before = cpu_seconds(broker.process.pid)
        for request in requests:
            sock.sendall(request)
            sock.recv(1 << 20)
        return cpu_seconds(broker.process.pid) - before


def multiple(bare: tuple[int, str], request: bytes, window_cost: Callable[[], float], most: float) -> float:
    """The cheapest window of the broker over the cheapest of the bare server; it goes on for a while if that is above
    `most`, since two processors that share a core take up to twice as long as one alone."""
    pid, address = bare
    for _ in range(4):
        window_cost()
    ours = least = float("inf")
    for window in range(WINDOWS_MAX):
        ours = min(ours, window_cost())
        least = min(least, cost(pid, address, request))
        if window >= WINDOWS_MIN and ours / least < most:
            break
    print(f"{ours / WINDOW_REQUESTS * 1e6:.1f} µs, bare {least / WINDOW_REQUESTS * 1e6:.1f} µs, {window + 1} windows")
    return ours / least


def create(broker: OttlaBroker, topic: str) -> None:
    with Wire(broker.bootstrap) as wire:
        new = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        answer = wire.call(19, 5, {"topics": [new], "timeout": 10_000, "validate_only": False})
        assert answer.topics[0].error_code == 0


def test_idle_memory(broker: OttlaBroker) -> None:
    assert broker.resident_bytes() < IDLE_BYTES_MAX


@pytest.mark.usefixtures("one_processor")
@pytest.mark.parametrize(
    ("topic", "request_of", "most"),
    [
        ("produced", lambda topic: produce_request(topic, bytes(100)), PRODUCE_MULTIPLE_MAX),
        ("fetched", lambda topic: fetch_request(topic, 0, 1_000_000), FETCH_MULTIPLE_MAX),
    ],
)
def test_a_small_request(
    broker: OttlaBroker, bare: tuple[int, str], topic: str, request_of: Callable[[str], bytes], most: float
) -> None:
    create(broker, topic)
    exchange(broker.bootstrap, produce_request(topic, bytes(100)), 1, 1)
    request = request_of(topic)
    window_cost = partial(cost, broker.process.pid, broker.bootstrap, request)
    assert multiple(bare, request, window_cost, most) < most


@pytest.mark.usefixtures("one_processor")
def test_a_fetch_in_a_session(broker: OttlaBroker, bare: tuple[int, str]) -> None:
    create(broker, "in-a-session")
    exchange(broker.bootstrap, produce_request("in-a-session", bytes(100)), 1, 1)
    request = fetch_request("in-a-session", 0, 1_000_000, (1, 1))
    window_cost = partial(session_cost, broker, "in-a-session")
    assert multiple(bare, request, window_cost, SESSION_FETCH_MULTIPLE_MAX) < SESSION_FETCH_MULTIPLE_MAX
