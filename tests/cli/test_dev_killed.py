"""When an `ottla dev` is killed, its brokers end, and the next `ottla dev` waits for them or names them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from ottla.cli.processes import server_command
from tests.cli.conftest import OTTLA, TIMEOUT_S
from tests.cli.test_processes import Dev, alive, run


def gone(pids: list[int]) -> bool:
    """Whether these processes end within TIMEOUT_S. Kills the processes that don't."""
    deadline = time.monotonic() + TIMEOUT_S
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return not left


def test_brokers_end_with_a_dev_that_is_killed_and_the_next_one_has_their_data(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    data = tmp_path / "data"
    dev = Dev(data, environment, "--brokers", "3")
    pids = [broker["pid"] for broker in dev.announced["brokers"]]
    assert run(environment, "topics", "create", "orders", "-b", dev.bootstrap).returncode == 0
    assert run(environment, "produce", "orders", "--value", "kept", "-b", dev.bootstrap).returncode == 0
    dev.stop(signal.SIGKILL)
    try:
        again = Dev(data, environment)  # starts at once, while the old brokers close their logs
    finally:
        assert gone(pids)
    assert len(again.announced["brokers"]) == 3
    read = run(environment, "consume", "orders", "--from-beginning", "-e", "-b", again.bootstrap)
    assert read.stdout == "kept\n", read.stderr
    assert again.stop() == 0


def test_brokers_end_with_a_dev_that_is_killed_before_they_serve(tmp_path: Path, environment: dict[str, str]) -> None:
    command = [*OTTLA, "dev", "--port", "0", "--data", str(tmp_path / "data"), "--brokers", "2"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment)
    deadline = time.monotonic() + TIMEOUT_S
    while not (children := psutil.Process(process.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert gone([child.pid for child in children])


def test_a_broker_whose_starter_was_gone_before_it_looked_ends_by_itself(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    settings = {"node.id": "0", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "data")}
    command = [*server_command(None, settings), "--until-stdin-ends"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    _, errors = process.communicate(timeout=TIMEOUT_S)  # closes the broker's standard input at once
    assert process.returncode == 0
    assert b"the process that started this one is gone" in errors


def test_a_broker_that_stays_behind_is_named_by_its_own_process(tmp_path: Path, environment: dict[str, str]) -> None:
    data = tmp_path / "data"
    Dev(data, environment).stop()
    own = ("--set", "node.id=0", "--set", f"log.dirs={data / 'broker-0'}")
    listener = ("--set", "listeners=PLAINTEXT://127.0.0.1:0")
    store = ("--set", f"ottla.metadata.store=embedded:{data / 'metadata.sqlite'}")
    started = run(environment, "broker", "--daemon", "--json", *own, *listener, *store)
    assert started.returncode == 0, started.stderr
    pid = json.loads(started.stdout)["pid"]
    try:
        refused = run(environment, "dev", "--port", "0", "--data", str(data))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        assert gone([pid])
    assert refused.returncode == 1
    assert f"broker 0 (process {pid}) still runs on {data}" in refused.stderr
    assert f"kill {pid}" in refused.stderr
