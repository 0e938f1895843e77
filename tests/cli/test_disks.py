"""Disks that are full or damaged: the answer, the status and the terminal of `dev` say what is wrong."""

from __future__ import annotations

import json
import os
import pty
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import OTTLA, TIMEOUT_S, Result, run_forked
from tests.cli.test_processes import Dev
from tests.crash.volumes import fill, small_volume

VOLUME_BYTES = 24 << 20
SMALL = (
    *("--set", "log.segment.bytes=4194304", "--set", "log.index.size.max.bytes=65536"),
    *("--set", "offsets.topic.num.partitions=2"),
)
FULL = "full: nothing is appended until there is room"
RECORD = b"r" * 10_000 + b"\n"


class Terminal:
    """An `ottla dev` on a pseudo-terminal, and the text that it shows there."""

    def __init__(self, data: Path, environment: dict[str, str], *options: str) -> None:
        master, slave = pty.openpty()
        command = [*OTTLA, "dev", "--port", "0", "--data", str(data), *options]
        self._process = subprocess.Popen(command, stdout=slave, stderr=slave, env=environment | {"COLUMNS": "200"})
        os.close(slave)
        self._master = master
        self._text = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.until(lambda text: "Ctrl-C stops it." in text)
        self.bootstrap = self._text.partition("Bootstrap")[2].split()[0]

    def _read(self) -> None:
        try:
            while data := os.read(self._master, 65536):
                self._text += data.decode(errors="replace")
        except OSError:
            pass  # the terminal's other end is closed

    def until(self, condition: Callable[[str], bool]) -> str:
        """Waits until the text on the terminal fulfils the condition; returns the text."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition(self._text):
            assert time.monotonic() < deadline, self._text
            time.sleep(0.05)
        return self._text

    def stop(self) -> None:
        """Sends Ctrl-C."""
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(TIMEOUT_S) == 0
        self._reader.join(TIMEOUT_S)
        os.close(self._master)


@contextmanager
def terminal(data: Path, environment: dict[str, str], *options: str) -> Iterator[Terminal]:
    running = Terminal(data, environment, *options)
    yield running
    running.stop()


def ottla(where: Terminal | Dev, environment: dict[str, str], *arguments: str, input: bytes = b"") -> Result:
    return run_forked(arguments, input, environment | {"OTTLA_BOOTSTRAP": where.bootstrap})


@pytest.mark.timeout(180)
def test_a_full_disk_is_said_by_produce_status_log_dirs_and_the_terminal(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with (
        small_volume(tmp_path / "volume", VOLUME_BYTES) as volume,
        terminal(volume / "data", environment, *SMALL) as dev,
    ):
        assert ottla(dev, environment, "topics", "create", "filled").code == 0
        assert ottla(dev, environment, "cluster", "status", "--json").json["directories"] == []
        assert ottla(dev, environment, "produce", "filled", "--value", "fits").code == 0
        fill(volume / "ballast")
        directory = str(volume / "data" / "broker-0")
        refused = ottla(dev, environment, "produce", "filled", "--timeout", "3", input=RECORD * 200)
        assert refused.code == 1, refused.stderr
        said = [
            line for line in refused.stderr.splitlines() if f"log directory {directory} of broker 0 is full" in line
        ]
        assert [line.split(":")[0] for line in said] == ["warning", "error"]
        assert "--timeout" not in refused.stderr

        status = ottla(dev, environment, "cluster", "status", "--json").json
        assert status["directories"] == [{"broker": 0, "path": directory, "trouble": FULL}]
        assert FULL in ottla(dev, environment, "cluster", "status").stdout
        shown = ottla(dev, environment, "log-dirs", "--json").json[0]
        assert (shown["error"], shown["usable_bytes"]) == (FULL, 0)
        dev.until(lambda text: f"Log directory {directory} of broker 0 is full." in text)

        (volume / "ballast").unlink()
        dev.until(lambda text: f"Log directory {directory} of broker 0 is in order again." in text)
        assert ottla(dev, environment, "produce", "filled", input=RECORD * 10).code == 0
        assert ottla(dev, environment, "cluster", "status", "--json").json["directories"] == []


@pytest.fixture
def damaged(tmp_path: Path, environment: dict[str, str]) -> Path:
    """The data directory of an `ottla dev` whose topic `orders` has three batches of ten records. The second batch has
    a wrong byte."""
    data = tmp_path / "data"
    dev = Dev(data, environment, *SMALL)
    assert ottla(dev, environment, "topics", "create", "orders").code == 0
    for first in (0, 10, 20):
        records = "".join(f"{number}\n" for number in range(first, first + 10)).encode()
        assert ottla(dev, environment, "produce", "orders", input=records).code == 0
    assert dev.stop() == 0
    (segment,) = (data / "broker-0" / "orders-0").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[12 + struct.unpack_from(">i", content, 8)[0] + 80] ^= 0xFF
    segment.write_bytes(content)
    return data


@pytest.mark.parametrize("options", [("-e",), ("-e", "--json"), ("--group", "billing", "--max-messages", "30")])
def test_a_corrupt_batch_has_a_topic_a_partition_and_an_offset(
    damaged: Path, environment: dict[str, str], options: tuple[str, ...]
) -> None:
    dev = Dev(damaged, environment)
    result = ottla(dev, environment, "consume", "orders", "--from-beginning", *options)
    assert result.code == 1
    assert len(result.stdout.splitlines()) == 10, "the records before the batch are printed"
    assert "the record batch at offset 10 of orders:0 is corrupt: its CRC doesn't fit its bytes" in result.stderr
    assert "ottla log verify LOG-DIRECTORY/orders-0" in result.stderr
    if "--json" in options:
        assert json.loads(result.stderr)["error"]["kafka_code"] == 2
    behind = ottla(dev, environment, "consume", "orders", "--offset", "20", "-e")
    assert behind.stdout.split() == [str(number) for number in range(20, 30)]
    assert dev.stop() == 0


def test_a_corrupt_batch_that_a_compaction_meets_stands_in_the_status_and_on_the_terminal(
    damaged: Path, environment: dict[str, str]
) -> None:
    """Before the fix, only the broker's log mentioned the batch."""
    options = ("--set", "log.cleaner.backoff.ms=200", "--set", "log.roll.ms=500")
    with terminal(damaged, environment, *options) as dev:
        assert ottla(dev, environment, "cluster", "status", "--json").json["damaged"] == []
        settings = ("--set", "cleanup.policy=compact", "--set", "min.cleanable.dirty.ratio=0")
        assert ottla(dev, environment, "configs", "alter", "topic", "orders", *settings).code == 0
        time.sleep(0.6)  # longer than log.roll.ms, so that the next record begins another segment
        assert ottla(dev, environment, "produce", "orders", "--key", "k", "--value", "v").code == 0
        dev.until(lambda text: "orders:0 can't be read at offset 10: not compacted any more" in text)
        (told,) = ottla(dev, environment, "cluster", "status", "--json").json["damaged"]
        assert (told["broker"], told["topic"], told["partition"], told["offset"]) == (0, "orders", 0, 10)
        assert "wrong CRC" in told["trouble"]
        shown = ottla(dev, environment, "cluster", "status")
        assert "not compacted any more" in shown.stdout
        assert "ottla log verify" in shown.stderr


@pytest.mark.timeout(300)
def test_a_corrupt_batch_that_a_follower_refuses_stands_in_the_status_and_on_the_terminal(
    damaged: Path, environment: dict[str, str]
) -> None:
    """`dev` has more brokers than before, and waits for the new brokers' replicas. Before the fix, `dev` waited for
    ever without a message."""
    with terminal(damaged, environment, "--brokers", "2") as dev:
        line = "orders:0 can't be read at offset 10: not copied from broker 0 any further: the batch has a wrong CRC"
        dev.until(lambda text: line in text)
        (told,) = ottla(dev, environment, "cluster", "status", "--json").json["damaged"]
        assert (told["broker"], told["topic"], told["partition"], told["offset"]) == (1, "orders", 0, 10)
        assert "not copied from broker 0" in ottla(dev, environment, "cluster", "status").stdout


def test_what_recovery_cut_stands_in_the_status_and_on_the_terminal(damaged: Path, environment: dict[str, str]) -> None:
    # The directory then looks as if the broker had been killed before anything was synced.
    (damaged / "broker-0" / ".kafka_cleanshutdown").unlink()
    (damaged / "broker-0" / "recovery-point-offset-checkpoint").unlink()
    with terminal(damaged, environment) as dev:
        status: Any = ottla(dev, environment, "cluster", "status", "--json").json
        (told,) = status["recovered"]
        (cut,) = told["cuts"]
        assert (told["broker"], told["logs"], told["bytes_dropped"]) == (0, 1, cut["bytes_dropped"])
        assert (cut["topic"], cut["partition"], cut["offset"], cut["missing"]) == ("orders", 0, 10, 20)
        assert "a batch with a wrong CRC" in cut["reason"]
        shown = ottla(dev, environment, "cluster", "status").stdout
        assert "At the start of broker 0 recovery cut" in shown
        assert "orders:0 ends at offset 10: a batch with a wrong CRC" in shown
        dev.until(lambda text: "At the start of broker 0 recovery cut" in text)
