"""Broker processes: the command line that starts one, and the locked pid file by which other processes find it.

The process that starts a broker locks the pid file (flock), and the broker inherits the lock with the open file. The
kernel releases the lock when the last process that has it ends, for whatever reason. So a dead broker's file never
counts as a running broker.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ottla.cli.errors import CommandError, ExitCode

SERVER_MODULE = "ottla.cli.server"
BROKER_PID_FILE = "ottla-broker.pid"


def server_command(config: Path | None, settings: Mapping[str, str] | Sequence[str]) -> list[str]:
    """The command line of a broker's process. With -P Python imports nothing from the working directory."""
    pairs = [f"{name}={value}" for name, value in settings.items()] if isinstance(settings, Mapping) else settings
    command = [sys.executable, "-P", "-m", SERVER_MODULE]
    if config is not None:
        command += ["--config", str(config)]
    for pair in pairs:
        command += ["--set", pair]
    return command


class PidFile:
    """The pid file in a data directory. `acquire` creates the directory if it is missing."""

    def __init__(self, directory: Path, name: str = BROKER_PID_FILE) -> None:
        self.path = directory / name
        self._file: int | None = None

    def acquire(self, owner: str) -> int:
        """Locks the file for this process and for processes that inherit the returned descriptor. If the file is locked
        already, raises a CommandError that says that `owner` (such as "a broker") uses the directory."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CommandError(
                f"can't use the data directory {self.path.parent}: {(error.strerror or str(error)).lower()}",
                "Name another directory, or change the owner of this one.",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            running = self.running_pid()
            raise CommandError(
                f"{self.path.parent} is in use by {owner}" + (f" (process {running})" if running else ""),
                "Stop that process first, or name another data directory.",
            ) from None
        self._file = descriptor
        self.write(os.getpid())
        return descriptor

    def write(self, pid: int) -> None:
        """Writes a process id to the file, which must be acquired."""
        assert self._file is not None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{pid}\n".encode(), 0)

    def release(self) -> None:
        """Closes this process's descriptor; processes that inherited it keep the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def running_pid(self) -> int | None:
        """The process id in the file if a process has the lock, else None."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).strip()
            return int(text) if text.isdigit() else None
        finally:
            os.close(descriptor)
        return None

    def stop(self, timeout_s: float) -> int | None:
        """Sends SIGTERM to the running process, and waits for its end. Returns its process id, or None if none ran."""
        pid = self.running_pid()
        if pid is None:
            return None
        try:
            os.kill(pid, signal.SIGTERM)
        except PermissionError as error:
            raise CommandError(f"process {pid} belongs to another user", "Stop the process as that user.") from error
        except ProcessLookupError:
            return pid
        deadline = time.monotonic() + timeout_s
        while self.running_pid() == pid:
            if time.monotonic() > deadline:
                raise CommandError(
                    f"process {pid} got SIGTERM, and still runs after {timeout_s:g} s",
                    "The process's log shows what it is doing; --timeout gives it more time.",
                    ExitCode.timed_out,
                )
            time.sleep(0.05)
        return pid


def serving(host: str, port: int) -> bool:
    """Whether a listener accepts connections at this address."""
    try:
        socket.create_connection((host or "127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a log file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []
