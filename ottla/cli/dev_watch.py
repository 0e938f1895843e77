"""What `ottla dev` does beside its brokers' processes: a thread that talks to the cluster as a client does.

It carries out what a grown cluster owes its topics (`dev_growth`). It never stops the cluster, whatever it meets.
"""

from __future__ import annotations

import threading

from ottla.cli import dev_growth
from ottla.cli.errors import CommandError
from ottla.cli.output import Output

_TIMEOUT_S = 15.0


class DevWatch:
    """Runs from `start` to `stop`."""

    def __init__(self, bootstrap: str, growth: dev_growth.Growth, output: Output) -> None:
        self._thread = threading.Thread(target=self._run, name="ottla dev watch", daemon=True)
        self._bootstrap = bootstrap
        self._growth = growth
        self._output = output
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begins, once the brokers serve."""
        self._thread.start()

    def stop(self) -> None:
        """Tells it to end; from now on it says nothing."""
        self._stopping.set()

    def wait(self) -> None:
        """Waits until it has ended, and left the terminal as it was."""
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT_S)

    def _run(self) -> None:
        from ottla.cli.connection import Cluster

        try:
            with Cluster(self._bootstrap, _TIMEOUT_S) as cluster:
                self._growth.carry_out(cluster, self._output, self._stopping)
        except (CommandError, OSError) as error:
            if not self._stopping.is_set():
                told = error if isinstance(error, CommandError) else CommandError(str(error))
                self._output.note(dev_growth.failed(told, self._growth.wanted))
