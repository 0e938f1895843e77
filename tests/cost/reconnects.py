"""A broker to which thousands of clients come at once, and the longest turns of its event loop meanwhile.

A turn's length is the CPU time that the loop's thread takes for it: what other processes take doesn't count.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from ottla.protocol.frames import API_VERSIONS, request_frame
from ottla.protocol.messages import write_request
from tests.peers.certificates import Authority
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire, free_port

PROCESSES = 4
STARTS_S = 4.0
IDLE_MS = 6_000
_HELLO = request_frame(API_VERSIONS, 0, 1, "many", write_request(API_VERSIONS, 0, {}))


class TimedBroker(OttlaBroker):
    """A broker that knows the longest turns of its event loop."""

    def _start(self) -> subprocess.Popen[bytes]:
        module = self.command.index("ottla.cli.server")
        self.command[module : module + 1] = ["tests.cost.timed_broker", str(STARTS_S)]
        return super()._start()

    def longest_ms(self) -> list[float]:
        """The longest turns so far."""
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 30
        while "\nturns " not in (written := self.log_path.read_text()):
            assert time.monotonic() < deadline, written[-2000:]
            time.sleep(0.05)
        line = written[written.index("\nturns ") + 1 :].splitlines()[0]
        found: list[float] = json.loads(line.removeprefix("turns "))
        return found


def longest_turns_ms(folder: Path, count: int) -> list[float]:
    """The longest turns of a broker's event loop, in ms of CPU time, while `count` clients connect over TLS at once,
    ask for the versions of APIs, and hang up at once."""
    authority = Authority(folder / "ca")
    plain, encrypted = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    listeners = f"PLAINTEXT://{plain},SSL://{encrypted}"
    broker = TimedBroker(
        folder / "broker",
        plain,
        listeners=listeners,
        advertised_listeners=listeners,
        inter_broker_listener_name="PLAINTEXT",
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(authority.issue("server")),
        socket_listen_backlog_size="4096",
    )
    with Wire(plain) as wire:
        wire.call(API_VERSIONS, 0)  # the first request of its kind makes the function that writes its answers
    command = [sys.executable, "-m", "tests.cost.reconnecting", encrypted, str(authority.trust)]
    clients = [
        subprocess.Popen(
            [*command, str(count // PROCESSES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(PROCESSES)
    ]
    try:
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
        for line in ("connect", "hang up"):
            for client in clients:
                assert client.stdin is not None
                client.stdin.write(f"{line}\n")
            if line == "connect":
                answered = [client.stdout.readline() for client in clients if client.stdout is not None]
                assert answered == [f"{count // PROCESSES}\n"] * PROCESSES
        for client in clients:
            assert client.wait(60) == 0
        while psutil.Process(broker.process.pid).num_fds() > count // 10:
            time.sleep(0.05)  # the broker is closing connections
        return broker.longest_ms()
    finally:
        for client in clients:
            client.kill()
            client.wait()
            for pipe in (client.stdin, client.stdout):
                if pipe is not None:
                    pipe.close()
        broker.stop()


def longest_plain_turns_ms(folder: Path, count: int, requests: int) -> list[float]:
    """The longest turns of a broker's event loop, in ms of CPU time, while `count` clients connect at once, send this
    number of requests in one piece, and are silent until the broker closes their connections."""
    address = f"127.0.0.1:{free_port()}"
    broker = TimedBroker(
        folder / "broker", address, connections_max_idle_ms=str(IDLE_MS), socket_listen_backlog_size="4096"
    )
    clients: list[socket.socket] = []
    try:
        with Wire(address) as wire:
            wire.call(API_VERSIONS, 0)
        time.sleep(STARTS_S)
        host, _, port = address.rpartition(":")
        clients += [socket.create_connection((host, int(port))) for _ in range(count)]
        for client in clients:
            client.sendall(_HELLO * requests)
        for client in clients:
            client.settimeout(60)
            received = 0
            while piece := client.recv(1024 * 1024):
                received += len(piece)
            assert bool(received) == bool(requests)
        return broker.longest_ms()
    finally:
        for client in clients:
            client.close()
        broker.stop()
