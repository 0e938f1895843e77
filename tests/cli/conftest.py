"""The fixtures and helpers that run the command line as a process of its own, and a cluster for it to talk to.

The cluster is the one at OTTLA_TEST_BOOTSTRAP (which may be Apache Kafka), else an `ottla dev` of this test run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any, NoReturn

import psutil
import pytest

from ottla.cli.main import main

OTTLA = [sys.executable, "-m", "ottla.cli.main"]
TIMEOUT_S = 60


class Result:
    """The output and the exit code of a run of `ottla`."""

    def __init__(self, code: int, stdout: bytes, stderr: bytes) -> None:
        self.code = code
        self.stdout = stdout.decode()
        self.stderr = stderr.decode()

    @property
    def json(self) -> Any:
        """stdout as one JSON document."""
        return json.loads(self.stdout)

    @property
    def json_lines(self) -> list[Any]:
        """stdout with one JSON document on each line."""
        return [json.loads(line) for line in self.stdout.splitlines()]


Ottla = Callable[..., Result]


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    """Kills the processes that a test leaves: after a test that fails half-way, an `ottla dev --restart` would start
    brokers for ever."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    for child in psutil.Process().children(recursive=True):
        if child.pid not in before:
            with suppress(psutil.NoSuchProcess):
                child.kill()


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment variables of every run of `ottla`: no OTTLA_ variables from outside the test run, and the path of
    a configuration file without contexts."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTTLA_")}
    return clean | {"OTTLA_CONFIG_FILE": str(tmp_path_factory.mktemp("config") / "config.toml"), "PYTHONUTF8": "1"}


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[str]:
    """The cluster's bootstrap address."""
    given = os.environ.get("OTTLA_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    folder = tmp_path_factory.mktemp("dev")
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [*OTTLA, "dev", "--port", "0", "--data", str(folder / "data"), "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        pytest.fail(f"ottla dev doesn't start:\n{(folder / 'log').read_text()[-4000:]}")
    yield json.loads(line)["bootstrap"]
    process.terminate()
    assert process.wait(TIMEOUT_S) == 0
    process.stdout.close()


@pytest.fixture(scope="session")
def ottla(bootstrap: str, environment: dict[str, str]) -> Ottla:
    """A function that runs `ottla` against the cluster, such as `ottla("topics", "list", input=b"…")`."""

    def run(*arguments: str, input: bytes = b"", **variables: str) -> Result:
        return run_forked(arguments, input, environment | {"OTTLA_BOOTSTRAP": bootstrap} | variables)

    return run


def run_forked(arguments: tuple[str, ...], input: bytes, variables: dict[str, str]) -> Result:
    """Runs `ottla` in a fork of this process. So it is a process of its own, but needs no time for the imports."""
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write(input)
        stdin.seek(0)
        child = os.fork()
        if child == 0:
            _become(arguments, (stdin.fileno(), stdout.fileno(), stderr.fileno()), variables)
        deadline = time.monotonic() + TIMEOUT_S
        ended, status = 0, 0
        while not ended:
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended and time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                deadline = float("inf")
            time.sleep(0.005)
        stdout.seek(0)
        stderr.seek(0)
        return Result(os.waitstatus_to_exitcode(status), stdout.read(), stderr.read())


def _become(arguments: tuple[str, ...], files: tuple[int, int, int], variables: dict[str, str]) -> NoReturn:
    code = 99
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = ["ottla", *arguments]
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


@pytest.fixture
def topic(ottla: Ottla) -> str:
    """A new topic with two partitions."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    created = ottla("topics", "create", name, "--partitions", "2")
    assert created.code == 0, created.stderr
    return name
