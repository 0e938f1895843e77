"""Two clients of a Spark Connect server: a query with foreachBatch and a listener, and a run of spark-pipelines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest

from ottla.spark.java import ensure_java
from ottla.spark.worker_python import worker_python
from tests.peers.tools import ROOT
from tests.peers.wire import free_port
from tests.spark.connect import LIMIT
from tests.spark.jvms import DRIVER
from tests.spark.topics import Topics

COUNT = 100
STARTED_S = 200
HOST = "127.0.0.1"
SPEC = """\
name: flows
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""
FLOW = """\
from pyspark import pipelines
from pyspark.sql import SparkSession

pipelines.create_sink("target", "ottla", {{"kafka.bootstrap.servers": {bootstrap!r}, "topic": {target!r}}})


@pipelines.append_flow(target="target")
def source():
    reader = SparkSession.active().readStream.format("ottla").option("kafka.bootstrap.servers", {bootstrap!r})
    rows = reader.option("subscribe", {topic!r}).option("startingOffsets", "earliest").load()
    return rows.select("key", "value")
"""


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server with two cores. Its JVM and its Python workers are killed at the end.

    Each attempt at a test has its own server. The end of the server's log is printed, and pytest shows it if the test
    fails.
    """
    ensure_java()
    folder, port = tmp_path_factory.mktemp("connect"), free_port()
    settings = {
        **DRIVER,
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": HOST,
        "spark.driver.host": HOST,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.python.authenticate.socketTimeout": "120s",
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--driver-memory", "700m", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=folder,
            env=os.environ | {"PYSPARK_PYTHON": worker_python()},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + STARTED_S
        while True:
            assert process.poll() is None, (folder / "server.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the server doesn't start"
            with suppress(OSError), socket.create_connection((HOST, port), 1):
                break
            time.sleep(0.1)
        yield f"sc://{HOST}:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print((folder / "server.log").read_text(errors="replace")[-5000:])


@pytest.fixture
def filled(topics: Topics) -> tuple[str, str]:
    """The names of a topic with records and of an empty topic."""
    topic = topics.create(2)
    for partition in range(2):
        topics.fill(topic, partition, COUNT)
    return topic, topics.create(1)


def values(topics: Topics, topic: str) -> Counter[bytes | None]:
    return Counter(record.value for record in topics.records(topic))


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Runs a program to its end; returns its output."""
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(600)  # a server and its Python workers start; a busy machine takes a minute for each
def test_foreach_batch_and_listener_under_spark_connect(
    server: str, filled: tuple[str, str], bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    """Before the fix, the listener reported nothing: under Spark Connect, offsets in progress reports are dictionaries
    instead of JSON texts.
    """
    topic, target = filled
    command = [sys.executable, "-m", "tests.spark.connect", server, bootstrap, topic, target, str(tmp_path)]
    lags, sources = json.loads(run(command, ROOT).splitlines()[-1])
    assert values(topics, target) == values(topics, topic)
    assert lags == [2 * COUNT - LIMIT, 2 * COUNT - 2 * LIMIT, 0]
    nothing = {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "0", "avgOffsetsBehindLatest": "0.0"}
    assert sources == [[f"ottla[{topic}]", nothing]]


@pytest.mark.timeout(600)
def test_a_declarative_pipeline_reads_a_topic_and_writes_one(
    server: str, filled: tuple[str, str], bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    """Before the fix, every sink of spark-pipelines failed with "unknown option 'queryname'"."""
    topic, target = filled
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(storage=(tmp_path / "storage").as_uri()))
    flow = FLOW.format(bootstrap=bootstrap, topic=topic, target=target)
    (tmp_path / "transformations" / "flow.py").write_text(flow)
    program = Path(sys.executable).with_name("spark-pipelines")
    assert "Run is COMPLETED" in run([program, "run", "--remote", server], tmp_path)
    assert values(topics, target) == values(topics, topic)
