"""Replaces the operating system's functions that processes call without a port: entropy, `sendfile`, and CPU time.

`uuid4`, `secrets` and `SystemRandom` all use `os.urandom`. It is replaced while a simulation runs, so that all random
numbers of the product come from the seed. `os.sendfile` is replaced because its arguments are descriptors, which are
numbers in a table here. `perf_counter`, by which long work is cut into slices, always returns the same time: otherwise
the number of yields would depend on the machine. The turns of connections have a clock of their own (`TurnClock`).
"""

from __future__ import annotations

import asyncio
import os
import random as random_module
import sys
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from random import Random
from typing import Any

FIRST_DESCRIPTOR = 1 << 20
STEP_SECONDS_MAX = 0.002


class Descriptors:
    """The simulated sockets and files by number."""

    def __init__(self) -> None:
        self.files: dict[int, Any] = {}
        self.sockets: dict[int, Any] = {}
        self._next = FIRST_DESCRIPTOR

    def new(self) -> int:
        self._next += 1
        return self._next

    def sendfile(self, out: int, file: int, offset: int, count: int) -> int:
        """`os.sendfile` between simulated descriptors."""
        data = self.files[file].pread(count, offset)
        return int(self.sockets[out].send(data)) if data else 0


@contextmanager
def simulated_machine(random: Random, descriptors: Descriptors) -> Iterator[None]:
    """Replaces the functions for the time of the context, with `random` as the source of entropy."""
    urandom, sendfile, seeded = os.urandom, os.sendfile, random_module._urandom  # type: ignore[attr-defined]
    os.urandom = random.randbytes
    random_module._urandom = random.randbytes  # type: ignore[attr-defined]
    os.sendfile = descriptors.sendfile  # type: ignore[assignment]
    counters = [
        (module, name, getattr(module, name))
        for module_name, module in list(sys.modules.items())
        for name in ("perf_counter", "perf_counter_ns")
        if module_name.startswith("ottla.") and hasattr(module, name)
    ]
    for module, name, _ in counters:
        setattr(module, name, lambda: 0)
    try:
        yield
    finally:
        for module, name, counter in counters:
            setattr(module, name, counter)
        os.urandom, os.sendfile = urandom, sendfile
        random_module._urandom = seeded  # type: ignore[attr-defined]


class TurnClock:
    """A clock of turns for which each step takes up to `STEP_SECONDS_MAX`. So turns end in the middle of the steps that
    wait, though no virtual time passes."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self._random.uniform(0, STEP_SECONDS_MAX)
        return self._now


class LoopThreads:
    """Threads that read from disks, simulated by the event loop's `run_in_executor`."""

    def run(self, volume: Hashable, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """See `ottla.net.disk_threads.DiskThreads`."""
        return asyncio.get_running_loop().run_in_executor(None, work)


class InlineExecutor(Executor):
    """An executor whose work takes no virtual time, for work that a broker waits for while it starts or stops."""

    def __init__(self, workers: int) -> None:
        pass

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
