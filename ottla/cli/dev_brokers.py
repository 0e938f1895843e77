"""The brokers of an `ottla dev`: plans them, starts them as processes, waits until they serve, and stops them in order.

When the `ottla dev` process ends, for whatever reason, its brokers stop. Each broker's standard input is a pipe whose
other end only the `ottla dev` process has open, and a broker stops as on SIGTERM when its standard input ends
(`ottla.cli.server`). The kernel closes the pipe whenever that process ends, even in the moment after the fork.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ottla.cli.broker import parse_ready
from ottla.cli.client_file import properties_text, write_private
from ottla.cli.dev_growth import default_factor
from ottla.cli.errors import CommandError, UsageError
from ottla.cli.output import Output
from ottla.cli.processes import PidFile, server_command, tail

if TYPE_CHECKING:
    from ottla.cli.dev_security import DevSecurity

METADATA_FILE = "metadata.sqlite"
_READY_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 60.0
_LEFT_BEHIND_TIMEOUT_S = 30.0


@dataclass
class DevBroker:
    """One broker of an `ottla dev`: its process, its data directory and its address."""

    id: int
    directory: Path
    host: str
    port: int
    command: list[str]
    log: Path | None
    process: subprocess.Popen[bytes] | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    deaths: int = 0
    restart_at: float | None = None

    def start(self, lifeline: int) -> None:
        """Starts the broker's process, which inherits the lock on its data directory. The process's standard input is
        `lifeline`, the pipe that the function `lifeline` opens. The broker stops when that pipe ends."""
        pid_file = PidFile(self.directory)
        own = pid_file.acquire("another broker")
        self.ready.clear()
        with self._log_file() as log_file:
            self.process = subprocess.Popen(
                self.command,
                stdin=lifeline,
                stdout=subprocess.PIPE,
                stderr=log_file,
                # The broker isn't in the terminal's process group. So Ctrl-C reaches only `ottla dev`, which stops the
                # brokers in order.
                process_group=0,
                pass_fds=[own],
            )
        pid_file.write(self.process.pid)
        pid_file.release()
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()

    @contextmanager
    def _log_file(self) -> Iterator[IO[bytes] | None]:
        if self.log is None:
            yield None
            return
        with self.log.open("ab") as file:
            yield file

    def _read(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            if parse_ready(line.decode("utf-8", "replace")):
                self.ready.set()

    @property
    def pid(self) -> int | None:
        """The id of the process that was started last; None before the first start."""
        return self.process.pid if self.process is not None else None

    def exit_code(self) -> int | None:
        """The process's exit code; None while it runs, 0 before the first start."""
        return self.process.poll() if self.process is not None else 0

    def last_words(self) -> str:
        """The error in the last line of the broker's log file; empty unless the exit code is above 0 and the file
        exists."""
        lines = tail(self.log, 1) if self.log is not None and (self.exit_code() or 0) > 0 else []
        return "".join(line.strip().removeprefix("error: ").rstrip(".") for line in lines)


@contextmanager
def lifeline() -> Iterator[int]:
    """The reading end of a pipe, for brokers' standard inputs. The writing end is closed when this process ends, or at
    the end of the context."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(writing)
        os.close(reading)


def wait_for_those_left_behind(directory: Path, output: Output) -> None:
    """Waits until the brokers of an `ottla dev` that was killed have stopped by themselves. Raises CommandError if they
    don't stop."""
    deadline = time.monotonic() + _LEFT_BEHIND_TIMEOUT_S
    told = False
    while left := _running(directory):
        processes = ", ".join(str(pid) for pid in left.values())
        if time.monotonic() > deadline:
            raise CommandError(
                f"broker {min(left)} (process {left[min(left)]}) still runs on {directory}, without an `ottla dev`",
                f"End it (kill {processes.replace(',', '')}), or name another data directory with --data.",
            )
        if not told:
            told = True
            output.note(f"An `ottla dev` was killed here; its brokers (process {processes}) are closing their logs …")
        time.sleep(0.1)


def _running(directory: Path) -> dict[int, int]:
    """The process ids of the brokers that run on an `ottla dev`'s directories, by broker id."""
    found = {}
    for path in directory.glob("broker-*"):
        number = path.name.removeprefix("broker-")
        if number.isdecimal() and (pid := PidFile(path).running_pid()) is not None:
            found[int(number)] = pid
    return found


def free_ports(listen: str, port: int, count: int) -> list[int]:
    """The brokers' ports, all of which are free at the time of the call. Raises UsageError, CommandError."""
    if port + count > 65536:
        raise UsageError(f"there are fewer than {count} ports from {port} on")
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    chosen, held = [], []
    try:
        for number in range(count):
            wanted = port + number if port else 0
            probe = socket.socket(family, socket.SOCK_STREAM)
            held.append(probe)
            # The broker sets this option, too. Without it, a port would seem to be in use for a minute after each stop.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((listen, wanted))
            except socket.gaierror as error:
                raise CommandError(f"'{listen}' is no address to listen on", "See --listen.") from error
            except OSError as error:
                if error.errno == 98:
                    raise CommandError(
                        f"port {wanted} is in use", "Choose another with --port; 0 picks a free one."
                    ) from error
                reason = (error.strerror or str(error)).lower()
                raise CommandError(
                    f"can't listen on {listen}:{wanted}: {reason}", "See --listen and --port."
                ) from error
            chosen.append(probe.getsockname()[1])
    finally:
        for probe in held:
            probe.close()
    return chosen


def planned(
    number: int,
    port: int,
    directory: Path,
    listen: str,
    told: str,
    brokers: int,
    settings: list[str],
    security: DevSecurity | None,
) -> DevBroker:
    """A broker that isn't started yet. The defaults of its settings are written to its properties file, which its owner
    alone may read."""
    own = directory / f"broker-{number}"
    # The defaults for a laptop are in a file, so that the environment and --set take precedence over them.
    replication = default_factor(brokers)
    defaults = {
        "default.replication.factor": str(replication),
        "min.insync.replicas": str(max(1, replication - 1)),
        "offsets.topic.replication.factor": str(replication),
        "transaction.state.log.replication.factor": str(replication),
        "group.initial.rebalance.delay.ms": "0",
    }
    file = directory / f"broker-{number}.properties"
    secured = {} if security is None else security.broker_settings
    write_private(file, properties_text({**defaults, **secured}), replace=True)
    protocol = "PLAINTEXT"
    if security is not None:
        from ottla.cli.dev_security import PROTOCOL

        protocol = PROTOCOL
    fixed = {
        "node.id": str(number),
        "listeners": f"{protocol}://{bracketed(listen)}:{port}",
        "advertised.listeners": f"{protocol}://{bracketed(told)}:{port}",
        "log.dirs": str(own),
        "ottla.metadata.store": metadata_store(directory),
    }
    command = server_command(file, [*(f"{name}={value}" for name, value in fixed.items()), *settings])
    command.append("--until-stdin-ends")
    log = directory / f"broker-{number}.log" if sys.stderr.isatty() else None
    return DevBroker(number, own, listen, port, command, log)


def metadata_store(directory: Path) -> str:
    """The store of all brokers, as the setting `ottla.metadata.store` names it."""
    return f"embedded:{directory / METADATA_FILE}"


def bracketed(host: str) -> str:
    """A host as it is written before a port: an IPv6 address gets brackets."""
    return f"[{host}]" if ":" in host else host


def local(listen: str) -> str:
    """The host under which this machine reaches a listener on `listen`."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}.get(listen, bracketed(listen))


def wait_until_ready(cluster: list[DevBroker], waker: Waker) -> bool:
    """Waits until all brokers serve. Returns False if a signal requests the stop earlier. Raises CommandError."""
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not all(one.ready.is_set() for one in cluster):
        if waker.stopping:
            return False
        for one in cluster:
            if one.exit_code() is not None:
                raise death(one)
        if time.monotonic() > deadline:
            raise CommandError(f"the brokers aren't ready after {_READY_TIMEOUT_S:g} s", "See their logs.")
        waker.sleep(0.02)
    return True


def death(one: DevBroker) -> CommandError:
    """The error for a broker that has ended."""
    words = one.last_words()
    remedy = f"Its log: {one.log}" if one.log is not None else "Its log is above."
    code = one.exit_code() or 0
    ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return CommandError(f"broker {one.id} {ended}{': ' if words else ''}{words}", remedy)


def stop_all(cluster: list[DevBroker], waker: Waker) -> None:
    """Sends SIGTERM to all brokers, to the last one first. After a second request to stop, or after the time-out,
    brokers that still run get SIGKILL."""
    for one in reversed(cluster):
        if one.process is not None and one.exit_code() is None:
            one.process.terminate()
    requests = waker.stopping
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while any(one.exit_code() is None for one in cluster):
        if waker.stopping > requests or time.monotonic() > deadline:
            for one in cluster:
                if one.process is not None and one.exit_code() is None:
                    print(f"Broker {one.id} is killed; it will recover its logs.", file=sys.stderr)
                    one.process.kill()
                    one.process.wait()
            return
        waker.sleep(0.1)


class Waker:
    """Lets the main thread sleep until a signal comes; `stopping` counts the requests to stop."""

    def __init__(self) -> None:
        self.stopping = 0
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._receiver.setblocking(False)

    def install(self) -> None:
        """Handles SIGINT, SIGTERM, SIGHUP and SIGCHLD from now on."""
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, self._stop)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)

    def sleep(self, timeout_s: float) -> None:
        """Sleeps until a signal comes, or for `timeout_s`."""
        if select.select([self._receiver], [], [], max(0.0, timeout_s))[0]:
            with suppress(BlockingIOError):
                self._receiver.recv(4096)

    def close(self) -> None:
        """Closes the sockets of the wake-up descriptor."""
        signal.set_wakeup_fd(-1)
        self._receiver.close()
        self._sender.close()

    def _stop(self, signum: int, frame: object) -> None:
        self.stopping += 1


@contextmanager
def wakeups() -> Iterator[Waker]:
    """A waker that handles the signals, for the time of the context."""
    waker = Waker()
    waker.install()
    try:
        yield waker
    finally:
        waker.close()
