"""A request's CPU time, as a multiple of the least that any server would need on this machine.

Absolute times differ between machines, and wall time says nothing on a busy one. So a server that only receives, writes
and sends is measured in turn with the broker, window by window, and the cheapest windows are compared: the rest of the
machine disturbed them least. Processors differ, by up to a factor of two, in how much slower they run Python than
system calls. A request of little data is therefore compared with the sum of the bare server and a fixed amount of
interpreted work. Each bound is a third above the multiple that was measured when the bound was set.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.librdkafka import payloads
from bench.process import cpu_seconds
from bench.raw import batch_request, exchange, fetch_request, produce_request
from ottla.protocol.codecs import Codec, compress
from ottla.protocol.unpacking import decompress
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.tools import ROOT, need_native_walk
from tests.peers.wire import Wire

WINDOW_REQUESTS = 400  # about 10 ms: short enough that other processes leave some windows undisturbed
LARGE_WINDOW_REQUESTS = 4
PACKED_WINDOW_REQUESTS = 20
WINDOWS_MIN = 20
WINDOWS_MAX = 600
# the measurement ends after this many windows without a new minimum below CHEAPER times the old one
WINDOWS_UNCHANGED = 10
CHEAPER = 0.98
INTERPRETED = pickle.dumps(("topic", 0, None))
PRODUCE_INTERPRETED = 6.5  # how often INTERPRETED is read: the work of a request beyond the bare server's
FETCH_INTERPRETED = 5.2
SESSION_FETCH_INTERPRETED = 5.8
SMALL_MULTIPLE_MAX = 1.33  # measured: 1.0
LARGE_PRODUCE_MULTIPLE_MAX = 4.1  # measured: 3.1
LARGE_FETCH_MULTIPLE_MAX = 2.2  # measured: 1.65
PACKED_PRODUCE_MULTIPLE_MAX = {  # measured: 1.65, 1.57, 1.88, 2.25
    Codec.gzip: 2.2,
    Codec.snappy: 2.1,
    Codec.lz4: 2.5,
    Codec.zstd: 3.0,
}
PRODUCE_ANSWER_BYTES = 56
LARGE_RECORDS = 9_000  # of 100 B: a batch of about a megabyte
LARGE_BYTES = 1_000_000
PACKED_RECORDS = 3_300  # of 100 B that compress as well as application data, packed as librdkafka does it
SESSION_ID_AT = 15  # in a Fetch response: after size, correlation id, tags (none), throttle time and error
IDLE_BYTES_MAX = 57_600_000  # 0.15 of Apache Kafka's idle memory


class Server(NamedTuple):
    """A broker, or the bare server."""

    pid: int
    address: str


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaBroker]:
    need_native_walk()
    broker = OttlaBroker(tmp_path_factory.mktemp("cost"))
    yield broker
    broker.stop()


@contextmanager
def bare_server(answer_bytes: int) -> Iterator[Server]:
    command = [sys.executable, str(Path(__file__).parent / "bare_server.py"), str(answer_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Server(process.pid, f"127.0.0.1:{int(process.stdout.readline())}")
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def bare() -> Iterator[Server]:
    """A bare server whose answers are as large as a broker's to Produce."""
    with bare_server(PRODUCE_ANSWER_BYTES) as server:
        yield server


@pytest.fixture(scope="module")
def bare_sender() -> Iterator[Server]:
    """A bare server that answers with a megabyte of a file."""
    with bare_server(LARGE_BYTES) as server:
        yield server


@contextmanager
def on_one_processor(*pids: int) -> Iterator[None]:
    """Runs client and servers on one processor. To wake a process on another processor costs a virtual machine more
    than a request does; the process that wakes the other one pays, and the scheduler decides at random whether that
    happens."""
    before = os.sched_getaffinity(0)
    chosen = {min(before)}
    for pid in (*pids, os.getpid()):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), chosen)
    yield
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), before)


@pytest.fixture
def one_processor(broker: OttlaBroker, bare: Server, bare_sender: Server) -> Iterator[None]:
    with on_one_processor(broker.process.pid, bare.pid, bare_sender.pid):
        yield


def cost(server: Server, request: bytes, count: int) -> float:
    """CPU seconds of a server for one window of requests over one connection."""
    before = cpu_seconds(server.pid)
    exchange(server.address, request, 1, count)
    return cpu_seconds(server.pid) - before


def session_cost(server: Server, topic: str) -> float:
    """CPU seconds of the broker for one window of incremental fetches, each of which finds the same record."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as sock:
        sock.sendall(fetch_request(topic, 0, LARGE_BYTES, (0, 0)))
        (session_id,) = struct.unpack_from(">i", sock.recv(1 << 20), SESSION_ID_AT)
        requests = [fetch_request(topic, 0, LARGE_BYTES, (session_id, epoch + 1)) for epoch in range(WINDOW_REQUESTS)]
        before = cpu_seconds(server.pid)
        for request in requests:
            sock.sendall(request)
            sock.recv(1 << 20)
        return cpu_seconds(server.pid) - before


def interpreted_cost(count: int) -> float:
    """CPU seconds of `count` reads by the standard library's reader of pickles in Python: independent code that calls,
    looks up, branches and makes objects, as a broker does."""
    loads = pickle._loads  # type: ignore[attr-defined]
    before = time.thread_time()
    for _ in range(count):
        loads(INTERPRETED)
    return time.thread_time() - before


def multiple(window_cost: Callable[[], float], least_costs: Sequence[Callable[[], float]], most: float) -> float:
    """The CPU time of the broker's cheapest window (series of requests), divided by the sum of the cheapest windows of
    the costs that no server can avoid.

    While the result is above `most`, more windows follow, up to a limit: two processors that share a core take up to
    twice as long as one alone. More windows also follow while new minima come, because the broker may have had its
    minimum first. Raises ValueError if a window has cost nothing, because then nothing was measured.
    """
    for _ in range(4):
        window_cost()
    costs = [window_cost, *least_costs]
    cheapest = [float("inf")] * len(costs)
    cheaper_at = 0
    for window in range(WINDOWS_MAX):
        for number, window_of in enumerate(costs):
            found = window_of()
            if found <= 0:
                raise ValueError(f"window {window} cost {found} s by a clock that is too coarse for it")
            if found < cheapest[number] * CHEAPER:
                cheaper_at = window
            cheapest[number] = min(cheapest[number], found)
        ours, least = cheapest[0], sum(cheapest[1:])
        if window >= max(WINDOWS_MIN, cheaper_at + WINDOWS_UNCHANGED) and ours / least < most:
            break
    print(f"{ours * 1e3:.2f} ms a window, least {least * 1e3:.2f} ms, {ours / least:.2f}, {window + 1} windows")
    return ours / least


def created(broker: OttlaBroker, topic: str) -> Server:
    """The broker, with a topic of one partition."""
    with Wire(broker.bootstrap) as wire:
        new = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        answer = wire.call(19, 5, {"topics": [new], "timeout": 10_000, "validate_only": False})
        assert answer.topics[0].error_code == 0
    return Server(broker.process.pid, broker.bootstrap)


@pytest.mark.parametrize(("ours", "bare"), [(0.0, 0.01), (0.01, 0.0), (-0.01, 0.01)])
def test_a_window_that_cost_nothing_is_no_measurement(ours: float, bare: float) -> None:
    with pytest.raises(ValueError, match="window 0 cost"):
        multiple(lambda: ours, [lambda: bare], 2.0)


def test_a_broker_that_had_its_quiet_moment_first_waits_for_that_of_the_others() -> None:
    ours = iter([2.0] * 22 + [1.5] + [2.0] * 600)
    least = iter([1.6] * 25 + [1.0] + [1.6] * 600)
    assert multiple(lambda: next(ours), [lambda: next(least)], 1.33) == 1.5


def test_a_process_whose_threads_have_ended_is_measured_as_finely_as_any() -> None:
    """Before the fix, a process was measured in ticks of 10 ms as soon as one of its threads had ended. A window of a
    broker then cost 0.00 ms, and met its bound."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cost.measured"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    windows = [float(line) for line in done.stdout.splitlines()]
    assert len(windows) == 5
    assert min(windows) >= 0.002
    assert min(windows) < 0.01


def test_idle_memory(broker: OttlaBroker) -> None:
    assert broker.resident_bytes() < IDLE_BYTES_MAX


@pytest.mark.usefixtures("one_processor")
@pytest.mark.parametrize(
    ("topic", "request_of", "interpreted"),
    [
        ("produced", lambda topic: produce_request(topic, bytes(100)), PRODUCE_INTERPRETED),
        ("fetched", lambda topic: fetch_request(topic, 0, LARGE_BYTES), FETCH_INTERPRETED),
    ],
)
def test_a_small_request(
    broker: OttlaBroker, bare: Server, topic: str, request_of: Callable[[str], bytes], interpreted: float
) -> None:
    server = created(broker, topic)
    exchange(server.address, produce_request(topic, bytes(100)), 1, 1)
    request = request_of(topic)
    window_cost, bare_cost = (partial(cost, which, request, WINDOW_REQUESTS) for which in (server, bare))
    least_costs = [bare_cost, partial(interpreted_cost, round(interpreted * WINDOW_REQUESTS))]
    assert multiple(window_cost, least_costs, SMALL_MULTIPLE_MAX) < SMALL_MULTIPLE_MAX


@pytest.mark.usefixtures("one_processor")
def test_a_fetch_in_a_session(broker: OttlaBroker, bare: Server) -> None:
    server = created(broker, "in-a-session")
    exchange(server.address, produce_request("in-a-session", bytes(100)), 1, 1)
    request = fetch_request("in-a-session", 0, LARGE_BYTES, (1, 1))
    least_costs = [
        partial(cost, bare, request, WINDOW_REQUESTS),
        partial(interpreted_cost, round(SESSION_FETCH_INTERPRETED * WINDOW_REQUESTS)),
    ]
    window_cost = partial(session_cost, server, "in-a-session")
    assert multiple(window_cost, least_costs, SMALL_MULTIPLE_MAX) < SMALL_MULTIPLE_MAX


@pytest.mark.usefixtures("one_processor")
def test_a_large_produce(broker: OttlaBroker, bare: Server) -> None:
    """The broker's work includes the CRC, the count and the lengths of 9,000 records, which the bare server doesn't
    check."""
    server = created(broker, "large-produced")
    request = produce_request("large-produced", bytes(100), records=LARGE_RECORDS)
    window_cost, bare_cost = (partial(cost, which, request, LARGE_WINDOW_REQUESTS) for which in (server, bare))
    assert multiple(window_cost, [bare_cost], LARGE_PRODUCE_MULTIPLE_MAX) < LARGE_PRODUCE_MULTIPLE_MAX


def packed_multiple(broker: OttlaBroker, bare: Server, codec: Codec) -> float:
    """The broker's cost, as a multiple of the sum of two costs that no broker can avoid: the cost of a server that only
    writes the bytes, and the codec's."""
    topic = f"packed-{codec.name}"
    server = created(broker, topic)
    values = payloads(100)
    records = b"".join(values[number % len(values)] for number in range(PACKED_RECORDS))
    packed = compress(codec, records)
    request = batch_request(topic, [values[number % len(values)] for number in range(PACKED_RECORDS)], codec=codec)

    def codec_cost() -> float:
        began = time.thread_time()
        for _ in range(PACKED_WINDOW_REQUESTS):
            decompress(codec, packed)
        return time.thread_time() - began

    window_cost, bare_cost = (partial(cost, which, request, PACKED_WINDOW_REQUESTS) for which in (server, bare))
    return multiple(window_cost, [bare_cost, codec_cost], PACKED_PRODUCE_MULTIPLE_MAX[codec])


@pytest.mark.usefixtures("one_processor")
@pytest.mark.parametrize("codec", list(PACKED_PRODUCE_MULTIPLE_MAX), ids=lambda codec: codec.name)
def test_a_packed_produce(broker: OttlaBroker, bare: Server, codec: Codec) -> None:
    assert packed_multiple(broker, bare, codec) < PACKED_PRODUCE_MULTIPLE_MAX[codec]


def test_a_packed_produce_costs_the_same_whatever_came_before(bare: Server, tmp_path: Path) -> None:
    """Before the fix, Zstandard cost 2.7 times as much until a request of another kind had raised the allocator's
    thresholds."""
    need_native_walk()
    fresh = OttlaBroker(tmp_path)
    try:
        with on_one_processor(fresh.process.pid, bare.pid):
            assert packed_multiple(fresh, bare, Codec.zstd) < PACKED_PRODUCE_MULTIPLE_MAX[Codec.zstd]
    finally:
        fresh.stop()


@pytest.mark.usefixtures("one_processor")
def test_a_large_fetch(broker: OttlaBroker, bare_sender: Server) -> None:
    server = created(broker, "large-fetched")
    exchange(server.address, produce_request("large-fetched", bytes(100), records=LARGE_RECORDS), 1, 4)
    request = fetch_request("large-fetched", 0, LARGE_BYTES)
    window_cost, bare_cost = (partial(cost, which, request, LARGE_WINDOW_REQUESTS) for which in (server, bare_sender))
    assert multiple(window_cost, [bare_cost], LARGE_FETCH_MULTIPLE_MAX) < LARGE_FETCH_MULTIPLE_MAX
