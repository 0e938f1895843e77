"""`ottla dev`: a cluster on this machine, one process per broker, on the embedded metadata store.

Owns the processes: it starts them, waits until they serve, makes the wished topics, watches, and stops them in order.
It works without a terminal (in a container): then the brokers' logs go to its own stderr instead of files.
"""

from __future__ import annotations

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
from typing import IO, Annotated

import typer

from ottla.cli.broker import parse_ready
from ottla.cli.errors import CommandError, UsageError
from ottla.cli.options import BOOTSTRAP_DEFAULT, output_command
from ottla.cli.output import Output
from ottla.cli.processes import PidFile, server_command, tail

_DEV_PID_FILE = "ottla-dev.pid"
METADATA_FILE = "metadata.sqlite"
_READY_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 60.0
_BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 15.0)


@dataclass
class _Broker:
    """One broker's process, its place and its address."""

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

    def start(self, descriptor: int) -> None:
        """Start the process; it inherits the lock on the data directory and on its own log directory."""
        pid_file = PidFile(self.directory)
        own = pid_file.acquire("another broker")
        self.ready.clear()
        with self._log_file() as log_file:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log_file,
                # Out of the terminal's group: Ctrl-C comes to this process, which stops the brokers in order.
                process_group=0,
                pass_fds=[descriptor, own],
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
        return self.process.pid if self.process is not None else None

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll() if self.process is not None else 0

    def last_words(self) -> str:
        """The complaint that its log ends with, where it has a log of its own; a killed process had no last words."""
        lines = tail(self.log, 1) if self.log is not None and (self.exit_code() or 0) > 0 else []
        return "".join(line.strip().removeprefix("error: ").rstrip(".") for line in lines)


@output_command
def dev(
    output: Output,
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            "-n",
            min=1,
            envvar="OTTLA_DEV_BROKERS",
            help="How many; each is a process. Else as many as the data has, at first 1.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", envvar="OTTLA_DEV_DATA", help="Where everything is kept; else in your data home."
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", min=0, max=65535, envvar="OTTLA_DEV_PORT", help="Of the first broker; 0 picks a free one."
        ),
    ] = 9092,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST", envvar="OTTLA_DEV_LISTEN", help="Address to listen on.")
    ] = "127.0.0.1",
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise", metavar="HOST", envvar="OTTLA_DEV_ADVERTISE", help="Host name that clients are told."
        ),
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option(
            "--topics", metavar="NAME:PARTITIONS:RF,…", envvar="OTTLA_TOPICS", help="Topics to create if missing."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="NAME=VALUE", help="A setting of every broker; may be repeated."),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start a broker again when it dies.")] = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C. Data is kept between starts."""
    from ottla.cli.broker import load_configuration

    wished = parse_topics(topics)
    load_configuration(None, ["node.id=0", *(settings or [])])
    directory = (data if data is not None else default_directory()).absolute()
    lock = PidFile(directory, _DEV_PID_FILE)
    descriptor = lock.acquire("another `ottla dev`")
    told = advertise or ("127.0.0.1" if listen in ("0.0.0.0", "::", "") else listen)
    known = sum(found.is_dir() for found in directory.glob("broker-*"))
    count = brokers or max(known, 1)
    if count < known:
        output.note(f"The data is of {known} brokers: what only the others have in sync will have no leader.")
    cluster = [
        _planned(number, chosen, directory, listen, told, count, settings or [])
        for number, chosen in enumerate(_ports(listen, port, count))
    ]
    # All of them, so that a client finds the others when the first one is gone.
    bootstrap = ",".join(f"{_bracketed(told)}:{one.port}" for one in cluster)
    with _wakeups() as waker:
        try:
            for one in cluster:
                one.start(descriptor)
            if _wait_until_ready(cluster, waker):
                _create_topics(f"{_local(listen)}:{cluster[0].port}", wished, output)
                _announce(output, cluster, bootstrap, directory)
                _watch(cluster, waker, descriptor, restart, output)
        finally:
            _stop(cluster, waker)
    output.note("Stopped; the data stays in " + str(directory) + ".")


def parse_topics(text: str | None) -> list[tuple[str, int, int]]:
    """`name:partitions:rf,…` as (name, partitions, replication factor); what is left out is -1: the default."""
    topics = []
    for part in (part.strip() for part in (text or "").split(",")):
        if not part:
            continue
        name, *numbers = part.split(":")
        if not name or len(numbers) > 2 or not all(number.lstrip("-").isdecimal() for number in numbers):
            raise UsageError(
                f"'{part}' in OTTLA_TOPICS is not NAME:PARTITIONS:REPLICATION-FACTOR", "For instance: orders:3:1."
            )
        counts = [int(number) for number in numbers] + [-1, -1]
        topics.append((name, counts[0], counts[1]))
    return topics


def default_directory() -> Path:
    """Where `ottla dev` keeps its data unless told otherwise."""
    from platformdirs import user_data_path

    return user_data_path("ottla") / "dev"


def _ports(listen: str, port: int, count: int) -> list[int]:
    """The brokers' ports, each of them free at this moment."""
    if port + count > 65536:
        raise UsageError(f"there are no {count} ports from {port} on")
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    chosen, held = [], []
    try:
        for number in range(count):
            wanted = port + number if port else 0
            probe = socket.socket(family, socket.SOCK_STREAM)
            held.append(probe)
            # As the broker will do; else a port would seem taken for a minute after each stop.
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


def _planned(
    number: int, port: int, directory: Path, listen: str, told: str, brokers: int, settings: list[str]
) -> _Broker:
    own = directory / f"broker-{number}"
    # What makes a laptop pleasant stands in a file, so that the environment and --set can say otherwise.
    replication = min(3, brokers)
    defaults = {
        "default.replication.factor": replication,
        "min.insync.replicas": max(1, replication - 1),
        "offsets.topic.replication.factor": replication,
        "group.initial.rebalance.delay.ms": 0,
    }
    file = directory / f"broker-{number}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in defaults.items()), encoding="utf-8")
    fixed = {
        "node.id": str(number),
        "listeners": f"PLAINTEXT://{_bracketed(listen)}:{port}",
        "advertised.listeners": f"PLAINTEXT://{_bracketed(told)}:{port}",
        "log.dirs": str(own),
        "ottla.metadata.store": f"embedded:{directory / METADATA_FILE}",
    }
    command = server_command(file, [*(f"{name}={value}" for name, value in fixed.items()), *settings])
    log = directory / f"broker-{number}.log" if sys.stderr.isatty() else None
    return _Broker(number, own, listen, port, command, log)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _local(listen: str) -> str:
    """Where this machine reaches what listens there."""
    return {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}.get(listen, _bracketed(listen))


class _Waker:
    """Lets the main thread sleep until a signal comes; `stopping` counts the requests to stop."""

    def __init__(self) -> None:
        self.stopping = 0
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._receiver.setblocking(False)

    def install(self) -> None:
        """Take over the signals that concern the cluster."""
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, self._stop)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)

    def sleep(self, timeout_s: float) -> None:
        """Until a signal comes or the time is over."""
        if select.select([self._receiver], [], [], max(0.0, timeout_s))[0]:
            with suppress(BlockingIOError):
                self._receiver.recv(4096)

    def close(self) -> None:
        """Give up the wake-up descriptor."""
        signal.set_wakeup_fd(-1)
        self._receiver.close()
        self._sender.close()

    def _stop(self, signum: int, frame: object) -> None:
        self.stopping += 1


@contextmanager
def _wakeups() -> Iterator[_Waker]:
    waker = _Waker()
    waker.install()
    try:
        yield waker
    finally:
        waker.close()


def _wait_until_ready(cluster: list[_Broker], waker: _Waker) -> bool:
    """Whether all serve; False when a stop was asked for before."""
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not all(one.ready.is_set() for one in cluster):
        if waker.stopping:
            return False
        for one in cluster:
            if one.exit_code() is not None:
                raise _death(one)
        if time.monotonic() > deadline:
            raise CommandError(f"the brokers don't serve after {_READY_TIMEOUT_S:g} s", "See their logs.")
        waker.sleep(0.02)
    return True


def _death(one: _Broker) -> CommandError:
    words = one.last_words()
    remedy = f"Its log: {one.log}" if one.log is not None else "Its log stands above."
    code = one.exit_code() or 0
    ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return CommandError(f"broker {one.id} {ended}{': ' if words else ''}{words}", remedy)


def _create_topics(bootstrap: str, topics: list[tuple[str, int, int]], output: Output) -> None:
    if not topics:
        return
    from ottla.cli.connection import Cluster, explained
    from ottla.cli.errors import explain_code
    from ottla.cli.topics import TOPIC_EXISTS

    wanted = {name: {"num_partitions": partitions, "replication_factor": factor} for name, partitions, factor in topics}
    with Cluster(bootstrap, 30) as cluster, explained("the topics of OTTLA_TOPICS"):
        answer = cluster.admin.create_topics(wanted, raise_errors=False)
        for topic in answer["topics"]:
            if topic["error_code"] not in (0, TOPIC_EXISTS):
                raise explain_code(topic["error_code"], f"topic '{topic['name']}'", topic["error_message"])
        cluster.admin.wait_for_topics(list(wanted))
    output.note("Topics: " + ", ".join(wanted))


def _announce(output: Output, cluster: list[_Broker], bootstrap: str, directory: Path) -> None:
    if output.as_json:
        brokers = [{"id": one.id, "pid": one.pid, "port": one.port} for one in cluster]
        output.line({"bootstrap": bootstrap, "data": str(directory), "brokers": brokers})
        return
    count = "1 broker" if len(cluster) == 1 else f"{len(cluster)} brokers"
    print(f"Ottla is running: {count}, data in {directory}\n")
    print(f"  Bootstrap   {bootstrap}")
    if bootstrap != BOOTSTRAP_DEFAULT:
        print(f"              export OTTLA_BOOTSTRAP={bootstrap}")
    if len(cluster) > 1:
        for one in cluster:
            print(f"  {'Brokers' if one is cluster[0] else '':<12}{one.id} on port {one.port}, process {one.pid}")
    print("  Try it      ottla topics create hello")
    print("              echo hi | ottla produce hello")
    print("              ottla consume hello --from-beginning")
    if cluster[0].log is not None:
        print(f"  Logs        {directory}/broker-*.log")
    print("\nCtrl-C stops it.", flush=True)


def _watch(cluster: list[_Broker], waker: _Waker, descriptor: int, restart: bool, output: Output) -> None:
    """Until a stop is asked for; a broker that dies is started again, or missed as long as there are others."""
    missed: set[int] = set()
    while not waker.stopping:
        now = time.monotonic()
        for one in cluster:
            if one.id in missed:
                continue
            if one.restart_at is not None and now >= one.restart_at:
                one.restart_at = None
                one.start(descriptor)
            elif one.restart_at is None and one.exit_code() is not None:
                if not restart:
                    missed.add(one.id)
                    if len(missed) == len(cluster):
                        raise _death(one)
                    output.note(f"{_death(one).line()} The others go on; --restart would have started it again.")
                    continue
                pause = _BACKOFF_S[min(one.deaths, len(_BACKOFF_S) - 1)]
                one.deaths += 1
                one.restart_at = now + pause
                output.note(f"{_death(one).line()} It starts again in {pause:g} s.")
        waits = [one.restart_at - now for one in cluster if one.restart_at is not None]
        waker.sleep(min(waits, default=3600))


def _stop(cluster: list[_Broker], waker: _Waker) -> None:
    """SIGTERM to all, the last first; SIGKILL for what still runs after a second request or the time-out."""
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
