"""The machine that a broker runs on, as far as the broker uses it. The simulation replaces the real machine by
simulated machines.

The metadata store isn't a part of the machine: it is a port of its own, passed to the broker. The broker's threads are
the event loop's thread, the threads of `threads` and `disk_threads`, the thread that waits for a compaction's process,
and the thread of `renewal`. Durations are measured by the event loop's time, never by the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random, SystemRandom
from select import epoll

from ottla.broker.log.disk import Disk, RealDisk
from ottla.metadata.renewal import Renewal, RenewalThread
from ottla.metadata.store import Store
from ottla.net.busy_poll import WINDOW_SECONDS
from ottla.net.disk_threads import DiskThreads, VolumeThreads
from ottla.net.server import OpenSocket, open_socket
from ottla.net.streams import Connect, connect_tcp
from ottla.net.turns import Clock, Epoll

Threads = Callable[[int], Executor]


def renewal_thread(store: Store, stall_s: float) -> Renewal:
    """The thread that keeps the registration's lease alive, unless the event loop is blocked for longer than `stall_s`
    seconds."""
    return RenewalThread(store.lease_line(), stall_s)


def now_ms() -> int:
    """The time of the wall clock in ms since the Unix epoch: for timestamps, never for durations."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Machine:
    """The clock, the random numbers, the disk, the sockets and the threads of one broker; by default the real ones."""

    now_ms: Callable[[], int] = now_ms
    random: Random = field(default_factory=SystemRandom)
    disk: Disk = field(default_factory=RealDisk)
    open_socket: OpenSocket = open_socket  # opens a listening socket
    connect: Connect = connect_tcp  # connects to another broker
    threads: Threads = ThreadPoolExecutor  # an executor with the given number of workers, for which start and stop wait
    disk_threads: DiskThreads = field(default_factory=VolumeThreads)  # for reads of data that isn't in memory
    busy_poll_seconds: float = WINDOW_SECONDS  # 0 in a simulation, whose clock stands still while callbacks are due
    open_epoll: Callable[[], Epoll] = epoll  # knows which sockets of clients are readable
    turn_clock: Clock = time.perf_counter  # measures the turns that connections have of the event loop
    renewal: Callable[[Store, float], Renewal] = renewal_thread  # renews the registration's lease
