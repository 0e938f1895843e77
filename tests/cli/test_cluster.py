"""The classic demo: three brokers, describe, kill the leader, describe again, consume from the beginning."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.cli.conftest import OTTLA, TIMEOUT_S, run_forked
from tests.cli.test_processes import Dev, alive, run

RECORDS = [f"record {number}" for number in range(100)]


def describe(environment: dict[str, str], bootstrap: str) -> list[dict[str, Any]]:
    described = run(environment, "topics", "describe", "demo", "--json", "-b", bootstrap)
    assert described.returncode == 0, described.stderr
    (topic,) = json.loads(described.stdout)
    partitions: list[dict[str, Any]] = topic["partitions"]
    return partitions


def consume(environment: dict[str, str], bootstrap: str) -> list[str]:
    count = str(len(RECORDS))
    read = run(environment, "consume", "demo", "--from-beginning", "-n", count, "-b", bootstrap, "--timeout", "30")
    assert read.returncode == 0, read.stderr
    return sorted(read.stdout.splitlines())


def test_the_classic_demo(tmp_path: Path, environment: dict[str, str]) -> None:
    dev = Dev(tmp_path / "data", environment, "--brokers", "3")
    pids = {broker["id"]: broker["pid"] for broker in dev.announced["brokers"]}
    assert len(dev.bootstrap.split(",")) == len(pids) == 3
    assert run(environment, "topics", "create", "demo", "--partitions", "3", "-b", dev.bootstrap).returncode == 0
    sent = run_forked(("produce", "demo", "-b", dev.bootstrap), "\n".join(RECORDS).encode(), environment)
    assert sent.code == 0, sent.stderr

    before = describe(environment, dev.bootstrap)
    assert {partition["leader"] for partition in before} == {0, 1, 2}
    assert all(sorted(partition["isr"]) == [0, 1, 2] for partition in before)
    victim = before[0]["leader"]
    os.kill(pids[victim], signal.SIGKILL)
    deadline = time.monotonic() + 30
    after = before
    while any(victim in (partition["leader"], *partition["isr"]) for partition in after):
        assert time.monotonic() < deadline, after
        after = describe(environment, dev.bootstrap)
    assert all(partition["leader"] in {0, 1, 2} - {victim} for partition in after)
    assert consume(environment, dev.bootstrap) == sorted(RECORDS)
    assert run(environment, "produce", "demo", "--value", "one more", "-b", dev.bootstrap).returncode == 0

    began = time.monotonic()
    assert dev.stop(signal.SIGINT) == 0
    assert time.monotonic() - began < 15
    assert not any(map(alive, pids.values()))

    # Without --brokers there are as many brokers as before.
    dev = Dev(tmp_path / "data", environment)
    assert len(dev.announced["brokers"]) == 3
    assert len(consume(environment, dev.bootstrap)) == len(RECORDS)
    assert dev.stop() == 0
    dev = Dev(tmp_path / "data", environment, "--brokers", "1")
    assert len(dev.announced["brokers"]) == 1
    assert run(environment, "topics", "create", "alone", "-b", dev.bootstrap).returncode == 0
    assert dev.stop() == 0


def test_what_people_are_told(tmp_path: Path, environment: dict[str, str]) -> None:
    data = tmp_path / "data"
    for number in range(3):
        (data / f"broker-{number}").mkdir(parents=True)
    command = [*OTTLA, "dev", "--port", "0", "--data", str(data), "--brokers", "2"]
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment)
        deadline = time.monotonic() + TIMEOUT_S
        while "Ctrl-C stops it." not in (text := (tmp_path / "said").read_text()):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        assert "The data was written by 3 brokers" in text
        port, pid = re.findall(r"1 on port (\d+), process (\d+)", text)[0]
        assert f",127.0.0.1:{port}\n" in text
        os.kill(int(pid), signal.SIGKILL)
        while "The other brokers continue" not in (text := (tmp_path / "said").read_text()):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        assert "broker 1 was killed by SIGKILL" in text
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0


def test_a_broker_of_several_is_started_again(tmp_path: Path, environment: dict[str, str]) -> None:
    dev = Dev(tmp_path / "data", environment, "--brokers", "3", "--restart")
    os.kill(dev.broker_pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    died, other = dev.bootstrap.split(",")[:2]
    while True:
        listed = run(environment, "brokers", "list", "--json", "-b", other)
        # Until the broker's death is known, the client may be sent to the dead broker, and say that nothing answers
        # there.
        assert listed.returncode in (0, 3), listed.stderr
        # Only a restarted broker 0 answers at the address of the dead one.
        again = run(environment, "brokers", "list", "--json", "-b", died)
        if not again.returncode and len(json.loads(again.stdout)) == 3:
            break
        assert time.monotonic() < deadline, (listed, again)
    assert (tmp_path / "data.log").read_text().count("broker 0: registered") >= 2
    assert dev.stop() == 0
