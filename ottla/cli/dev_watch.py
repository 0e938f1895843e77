"""A thread of `ottla dev` that talks to the cluster as a client does.

The thread gives topics more replicas after the cluster has grown (`dev_growth`). It also prints troubles on the
terminal, because the brokers' own messages may go to files. These troubles are log directories that are full or have
failed, logs that can't be read, and bytes that recovery cut off. No error in this thread stops the cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ottla.cli import dev_growth, health
from ottla.cli.connection import Cluster
from ottla.cli.errors import CommandError
from ottla.cli.output import Output

_TIMEOUT_S = 15.0
_LOOK_S = 2.0
_PAUSE_S = 0.5


class DevWatch:
    """The thread that adds replicas after the cluster has grown, and prints the troubles of log directories and logs.
    It runs from `start` to `stop`."""

    def __init__(
        self, connect: Callable[[float], Cluster], growth: dev_growth.Growth, output: Output, *, logs_hidden: bool
    ) -> None:
        """`connect` gives the cluster for a time-out in seconds. `logs_hidden`: whether the brokers' logs go to files,
        and not to this terminal."""
        self._thread = threading.Thread(target=self._run, name="ottla dev watch", daemon=True)
        self._connect = connect
        self._growth = growth
        self._output = output
        self._logs_hidden = logs_hidden
        self._stopping = threading.Event()
        self._look_at = 0.0  # the time of the next look, by the monotonic clock
        self._troubles: set[health.Directory] = set()
        self._damaged: set[health.Damaged] = set()
        self._recovered: dict[int, tuple[int, int]] = {}

    def start(self) -> None:
        """Starts the thread. Call it once the brokers serve."""
        self._thread.start()

    def stop(self) -> None:
        """Requests the thread's end. From now on the thread prints nothing."""
        self._stopping.set()

    def wait(self) -> None:
        """Waits, for a bounded time, until the thread has ended and its progress bar is gone."""
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT_S)

    def _run(self) -> None:
        with self._connect(_TIMEOUT_S) as cluster:
            try:
                self._growth.carry_out(cluster, self._output, partial(self._pause, cluster))
            except (CommandError, OSError) as error:
                told = error if isinstance(error, CommandError) else CommandError(str(error))
                self._say(dev_growth.failed(told, self._growth.wanted))
            while self._logs_hidden and not self._pause(cluster):
                pass

    def _pause(self, cluster: Cluster) -> bool:
        """Waits a moment, looks for troubles every `_LOOK_S`, and returns whether the thread is to stop."""
        if self._logs_hidden and time.monotonic() >= self._look_at:
            with suppress(CommandError):  # a look that fails is repeated later
                self._look(cluster)
            self._look_at = time.monotonic() + _LOOK_S
        return self._stopping.wait(_PAUSE_S)

    def _look(self, cluster: Cluster) -> None:
        living = cluster.living()
        troubles = set(health.directories(cluster, living))
        for one in sorted(troubles - self._troubles):
            line = one.error().line()
            self._say(line[0].upper() + line[1:])
        for one in sorted(self._troubles - troubles):
            if one.broker in living:
                self._say(f"Log directory {one.path} of broker {one.broker} is in order again.")
        self._troubles = troubles
        for damaged in health.damaged(cluster, living):
            if damaged not in self._damaged:
                self._damaged.add(damaged)
                self._say(f"{damaged.line()}; `ottla log verify` says more.")
        for told in health.recovered(cluster, living):
            if self._recovered.get(told.broker) != (told.logs, told.bytes_dropped):
                self._recovered[told.broker] = told.logs, told.bytes_dropped
                self._say(f"{told.line()}; `ottla cluster status` shows the logs.")

    def _say(self, text: str) -> None:
        if not self._stopping.is_set():
            self._output.note(text)
