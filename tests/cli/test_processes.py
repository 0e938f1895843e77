"""`ottla dev` and `ottla broker`: their start, stop and status, the troubles that prevent a start, and data that
survives a restart."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ottla.cli.processes import server_command
from tests.cli.conftest import OTTLA, TIMEOUT_S, run_forked
from tests.peers.wire import free_port


class Dev:
    """An `ottla dev` on a data directory, and the JSON that it printed when it was ready."""

    def __init__(self, data: Path, environment: dict[str, str], *options: str) -> None:
        self.log = data.with_suffix(".log").open("ab")
        self.process = subprocess.Popen(
            [*OTTLA, "dev", "--port", "0", "--data", str(data), "--json", *options],
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, data.with_suffix(".log").read_text()[-4000:]
        self.announced: dict[str, Any] = json.loads(line)
        self.bootstrap: str = self.announced["bootstrap"]
        self.broker_pid: int = self.announced["brokers"][0]["pid"]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal, waits until the process ends, and returns the exit code."""
        self.process.send_signal(how)
        return self.wait()

    def wait(self) -> int:
        """Waits until the process ends, and returns the exit code."""
        code = self.process.wait(TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        return code


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `ottla` to its end."""
    result = run_forked(arguments, b"", environment)
    return subprocess.CompletedProcess(arguments, result.code, result.stdout, result.stderr)


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    """The options of a broker on a free port, with a data directory of its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    file = tmp_path / "server.properties"
    file.write_text(f"node.id=7\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={tmp_path / 'data'}\n")
    return ["--config", str(file)]


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_dev_keeps_its_data_and_makes_the_wished_topics(tmp_path: Path, environment: dict[str, str]) -> None:
    data = tmp_path / "data"
    dev = Dev(data, environment | {"OTTLA_TOPICS": "orders:3:1, returns"})
    listed = json.loads(run(environment, "topics", "list", "--json", "-b", dev.bootstrap).stdout)
    assert [(topic["name"], topic["partitions"]) for topic in listed] == [("orders", 3), ("returns", 1)]
    assert run(environment, "produce", "orders", "--value", "kept", "-b", dev.bootstrap).returncode == 0
    in_use = run(environment, "dev", "--port", "0", "--data", str(data))
    assert in_use.returncode == 1
    assert f"process {dev.process.pid}" in in_use.stderr
    assert dev.stop(signal.SIGINT) == 0
    assert not alive(dev.broker_pid)

    again = Dev(data, environment | {"OTTLA_TOPICS": "orders:3:1"})
    read = run(environment, "consume", "orders", "--from-beginning", "-e", "-b", again.bootstrap)
    assert read.stdout == "kept\n"
    assert again.stop() == 0


def test_dev_restarts_what_dies_only_when_asked_to(tmp_path: Path, environment: dict[str, str]) -> None:
    dev = Dev(tmp_path / "a", environment, "--restart")
    os.kill(dev.broker_pid, signal.SIGKILL)
    deadline = time.monotonic() + TIMEOUT_S
    while run(environment, "cluster", "-b", dev.bootstrap, "--timeout", "5").returncode != 0:
        assert time.monotonic() < deadline
    assert dev.stop() == 0

    dev = Dev(tmp_path / "b", environment)
    os.kill(dev.broker_pid, signal.SIGKILL)
    assert dev.wait() == 1
    assert "broker 0 was killed by SIGKILL" in (tmp_path / "b.log").read_text()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--brokers", "0"], 2, "greater than or equal to 1"),
        (["--brokers", "3", "--port", "65534"], 2, "there are fewer than 3 ports from 65534 on"),
        (["--data", "/proc/nowhere"], 1, "can't use the data directory"),
        (["--topics", "a:b"], 2, "is not NAME:PARTITIONS:REPLICATION-FACTOR"),
        (["--set", "log.segment.bytez=1"], 2, "the nearest is log.segment.bytes"),
        (["--set", "log.segment.bytes=1"], 2, "must be at least"),
        (["--listen", "no-such-host.invalid"], 1, "no address to listen on"),
        (["--port", "65536"], 2, "65535"),
    ],
)
def test_what_keeps_dev_from_starting_is_one_line(
    tmp_path: Path, environment: dict[str, str], options: list[str], code: int, words: str
) -> None:
    refused = run(environment, "dev", "--port", "0", "--data", str(tmp_path / "data"), *options)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (code, "", 1), refused.stderr
    assert words in refused.stderr


def test_a_port_in_use(tmp_path: Path, environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        dev = run(environment, "dev", "--port", str(port), "--data", str(tmp_path / "data"))
        assert (dev.returncode, dev.stderr.count("\n")) == (1, 1)
        assert f"port {port} is in use" in dev.stderr
        own = ("--set", "node.id=1", "--set", f"log.dirs={tmp_path / 'b'}")
        broker = run(environment, "broker", "--daemon", *own, "--set", f"listeners=PLAINTEXT://127.0.0.1:{port}")
        assert broker.returncode == 1
        assert "already in use" in broker.stderr


def test_a_daemons_life(settings: list[str], environment: dict[str, str]) -> None:
    def status() -> tuple[int, Any]:
        done = run(environment, "broker", "status", *settings, "--json")
        return done.returncode, json.loads(done.stdout)

    assert status()[0] == 3
    started = run(environment, "broker", *settings, "--daemon", "--json")
    assert started.returncode == 0, started.stderr
    broker = json.loads(started.stdout)
    try:
        code, found = status()
        assert (code, found["running"], found["serving"], found["pid"]) == (0, True, True, broker["pid"])
        assert run(environment, "cluster", "-b", broker["bootstrap"]).returncode == 0
        twice = run(environment, "broker", *settings)
        assert (twice.returncode, f"process {broker['pid']}" in twice.stderr) == (1, True)
    finally:
        stopped = run(environment, "broker", "stop", *settings)
    assert stopped.returncode == 0, stopped.stderr
    assert not alive(broker["pid"])
    assert status()[1]["running"] is False
    assert run(environment, "broker", "stop", *settings).returncode == 4


@pytest.mark.parametrize("order", [("FILE", "--daemon"), ("--daemon", "FILE"), ("FILE", "-d", "--set", "node.id=9")])
def test_the_file_may_stand_alone_as_for_kafkas_own_start_script(
    tmp_path: Path, environment: dict[str, str], order: tuple[str, ...]
) -> None:
    """Before the fix, `ottla broker server.properties` answered "No such command 'server.properties'"."""
    file = tmp_path / "server.properties"
    file.write_text(f"node.id=8\nlog.dirs={tmp_path}/data\nlisteners=PLAINTEXT://127.0.0.1:{free_port()}\n")
    arguments = [str(file) if word == "FILE" else word for word in order]
    started = run(environment, "broker", *arguments, "--json")
    assert started.returncode == 0, started.stderr
    try:
        assert json.loads(started.stdout)["id"] == (9 if "node.id=9" in order else 8)
    finally:
        assert run(environment, "broker", "stop", "--config", str(file)).returncode == 0


def test_in_the_foreground_the_process_becomes_the_broker(settings: list[str], environment: dict[str, str]) -> None:
    process = subprocess.Popen([*OTTLA, "broker", *settings], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    words = process.stdout.readline().decode().split()
    assert words[:4] == ["ottla", "broker", "7", "ready"]
    assert words[-1] == f"pid={process.pid}"
    if sys.platform == "linux":
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "zstandard" not in maps
        assert b"ottla.cli.server" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    process.terminate()
    assert process.wait(TIMEOUT_S) == 0
    process.stdout.close()


def test_wrong_settings_are_all_told(environment: dict[str, str]) -> None:
    refused = run(environment, "broker", "--set", "node.id=1", "--set", "num.partition=2", "--set", "log.roll.hours=x")
    assert refused.returncode == 2
    assert [line.split("=")[0] for line in refused.stderr.splitlines()] == [
        "error: num.partition",
        "error: log.roll.hours",
    ]
    assert "the nearest is num.partitions" in refused.stderr


def test_metadata_is_shown_and_watched(tmp_path: Path, environment: dict[str, str]) -> None:
    dev = Dev(tmp_path / "data", environment | {"OTTLA_TOPICS": "orders"})
    store = ("--store", str(tmp_path / "data" / "metadata.sqlite"))
    listed = {
        row["key"]: row["keys"] for row in json.loads(run(environment, "metadata", "ls", *store, "--json").stdout)
    }
    assert (listed["topics/"], listed["brokers/"]) == (1, 1)
    got = json.loads(run(environment, "metadata", "get", "topics/orders", *store, "--json").stdout)
    assert len(got["value"]["assignments"]) == 1
    wrong = run(environment, "metadata", "get", "topics/order", *store)
    assert (wrong.returncode, "Did you mean 'topics/orders'?" in wrong.stderr) == (4, True)

    watch = [*OTTLA, "metadata", "watch", "topics/", "--after", "0", "--json", *store]
    watcher = subprocess.Popen(watch, stdout=subprocess.PIPE, env=environment)
    assert watcher.stdout is not None
    assert json.loads(watcher.stdout.readline())["key"] == "topics/orders"
    assert run(environment, "topics", "create", "later", "-b", dev.bootstrap).returncode == 0
    assert json.loads(watcher.stdout.readline())["key"] == "topics/later"
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(TIMEOUT_S) == 130
    watcher.stdout.close()
    assert dev.stop() == 0
    assert run(environment, "metadata", "ls", "-r", *store).returncode == 0


def test_a_broker_imports_nothing_from_where_it_is_started(tmp_path: Path) -> None:
    (tmp_path / "logging.py").write_text("raise SystemExit('the wrong module')")
    command = server_command(None, ["node.id=0", "num.partitions=0"])
    started = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "num.partitions=0: must be at least 1" in started.stderr


def test_ctrl_c_while_the_command_line_is_imported(environment: dict[str, str]) -> None:
    program = """if True:
        import sys
        class Interrupting:
            def find_spec(self, name, path, target=None):
                if name == "typer":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupting())
        from ottla.cli.entry import main
        main()
    """
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "")


def test_ctrl_c_while_a_broker_is_silent_shows_no_stack_trace(tmp_path: Path, environment: dict[str, str]) -> None:
    dev = Dev(tmp_path / "a", environment)
    assert run(environment, "topics", "create", "t", "-b", dev.bootstrap).returncode == 0
    command = [*OTTLA, "produce", "t", "-b", dev.bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as producing:
        assert producing.stdin is not None
        assert producing.stderr is not None
        producing.stdin.write(b"written\n")
        producing.stdin.flush()
        deadline = time.monotonic() + TIMEOUT_S
        while b" 1 " not in run(environment, "offsets", "t", "-b", dev.bootstrap).stdout.encode():
            assert time.monotonic() < deadline
        os.kill(dev.broker_pid, signal.SIGSTOP)
        producing.stdin.write(b"not answered\n")
        producing.stdin.flush()
        time.sleep(0.5)
        producing.send_signal(signal.SIGINT)
        assert producing.wait(TIMEOUT_S) == 130
        assert producing.stderr.read() == b""
    os.kill(dev.broker_pid, signal.SIGCONT)
    assert dev.stop() == 0
