"""The parts that the Spark benchmarks share: a session with both data sources, one broker, a filled topic."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from ottla.net.client import Client
from ottla.spark.properties import ClientProperties
from ottla.spark.session import spark_session
from ottla.spark.writing import Writer
from tests.peers.apache_kafka import jars
from tests.peers.ottla_broker import OttlaBroker

PARTITIONS = 6
SOURCES = ("ottla", "kafka")
_ROWS = 12_000


@contextmanager
def session_and_broker() -> Iterator[tuple[SparkSession, str]]:
    """A context in which a broker and a Spark session run. Yields (the session, on two cores, with Ottla's source and
    with Spark's own Kafka connector; the broker's address)."""
    connector = ",".join(map(str, sorted(Path(jars("spark").removesuffix("/*")).glob("*.jar"))))
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
        _as_installed(Path(folder, "absent"))
        broker = OttlaBroker(Path(folder))
        try:
            settings = {"spark__master": "local[2]", "spark__jars": connector, "spark__driver__memory": "2g"}
            spark = spark_session("bench", **settings)
            yield spark, broker.bootstrap
            spark.stop()
        finally:
            broker.stop()


def _as_installed(absent: Path) -> None:
    """Hides hypothesis, which kio imports if it is installed, from the processes that this process starts.

    Only a developer's environment has hypothesis, and its import would add 0.2 s of CPU to each start.
    """
    absent.mkdir()
    (absent / "hypothesis.py").write_text("raise ImportError('not part of an installation')\n")
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{absent}{os.pathsep}{path}" if path else str(absent)


def create(bootstrap: str, topic: str) -> None:
    """Creates a topic of PARTITIONS partitions."""
    with Client(bootstrap) as client:
        client.create_topic(topic, PARTITIONS)
        while topic not in client.metadata([topic]).topics:
            pass


def fill(bootstrap: str, topic: str, count: int, size: int) -> int:
    """Writes about `count` values of `size` bytes, evenly over the partitions. Returns the number written."""
    rows = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"x" * size] * _ROWS, pa.binary()),
            "partition": pa.array([row % PARTITIONS for row in range(_ROWS)], pa.int32()),
        }
    )
    with Writer(ClientProperties(bootstrap, batch_bytes=1 << 14), topic) as writer:
        for _ in range(max(count // _ROWS, 1)):
            writer.write(rows)
        writer.flush()
        return writer.rows_acknowledged
