"""`ottla dev`: a cluster on this machine, one process per broker, on the embedded metadata store.

Owns the brokers' processes: starts them, waits until they serve, creates the topics of --topics, watches the processes,
and stops them in order. Without a terminal (in a container) the brokers' logs go to this process's stderr instead of
files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.dev_brokers import (
    DevBroker,
    Waker,
    bracketed,
    death,
    free_ports,
    lifeline,
    local,
    metadata_store,
    planned,
    stop_all,
    wait_for_those_left_behind,
    wait_until_ready,
    wakeups,
)
from ottla.cli.dev_growth import Growth
from ottla.cli.dev_watch import DevWatch
from ottla.cli.errors import UsageError
from ottla.cli.options import BOOTSTRAP_DEFAULT, output_command
from ottla.cli.output import Output
from ottla.cli.processes import PidFile

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster
    from ottla.cli.dev_security import DevSecurity

_DEV_PID_FILE = "ottla-dev.pid"
_BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 15.0)


@output_command
def dev(
    output: Output,
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            "-n",
            min=1,
            envvar="OTTLA_DEV_BROKERS",
            help="The number of brokers; by default that of the last start, or 1 at the first start.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            envvar="OTTLA_DEV_DATA",
            help="Directory of all data; by default ottla/dev in your data home.",
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port",
            "-p",
            min=0,
            max=65535,
            envvar="OTTLA_DEV_PORT",
            help="Port of the first broker; 0 picks a free one.",
        ),
    ] = 9092,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST", envvar="OTTLA_DEV_LISTEN", help="Address to listen on.")
    ] = "127.0.0.1",
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="HOST",
            envvar="OTTLA_DEV_ADVERTISE",
            help="Host name that brokers advertise to clients.",
        ),
    ] = None,
    topics: Annotated[
        str | None,
        typer.Option(
            "--topics", metavar="NAME:PARTITIONS:RF,…", envvar="OTTLA_TOPICS", help="Topics to create if missing."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="NAME=VALUE", help="A setting of every broker; may be repeated."),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start a broker again when it dies.")] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            envvar="OTTLA_DEV_SECURE",
            help="Encrypt connections, let clients log in, and check their rights; makes a client's files.",
        ),
    ] = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C. Data is kept between starts."""
    from ottla.cli.broker import load_configuration

    wished = parse_topics(topics)
    load_configuration(None, ["node.id=0", *(settings or [])])
    directory = (data if data is not None else default_directory()).absolute()
    lock = PidFile(directory, _DEV_PID_FILE)
    lock.acquire("another `ottla dev`")
    wait_for_those_left_behind(directory, output)
    told = advertise or ("127.0.0.1" if listen in ("0.0.0.0", "::", "") else listen)
    known = sum(found.is_dir() for found in directory.glob("broker-*"))
    count = brokers or max(known, 1)
    if count < known:
        output.note(
            f"The data was written by {known} brokers: partitions whose replicas in sync are all away get no leader."
        )
    security = _secured(directory, listen, told) if secure else None
    cluster = [
        planned(number, chosen, directory, listen, told, count, settings or [], security)
        for number, chosen in enumerate(free_ports(listen, port, count))
    ]
    # Every broker's address, so that a client reaches the cluster even if the first broker is dead.
    bootstrap = ",".join(f"{bracketed(told)}:{one.port}" for one in cluster)
    reached = ",".join(f"{local(listen)}:{one.port}" for one in cluster)
    kept = [name for name, _, factor in wished if factor != -1]
    growth = Growth(directory, known, count, kept)
    connect = partial(_connected, reached, security)
    watch = DevWatch(connect, growth, output, logs_hidden=cluster[0].log is not None)
    with wakeups() as waker, lifeline() as line:
        try:
            for one in cluster:
                one.start(line)
            if wait_until_ready(cluster, waker):
                _create_topics(connect, wished, output)
                _announce(output, cluster, bootstrap, directory, security)
                watch.start()
                _watch(cluster, waker, line, restart, output)
        finally:
            watch.stop()
            stop_all(cluster, waker)
            watch.wait()
    output.note("Stopped; the data stays in " + str(directory) + ".")


def parse_topics(text: str | None) -> list[tuple[str, int, int]]:
    """`name:partitions:rf,…` as (name, partitions, replication factor). A missing number is -1, the default."""
    topics = []
    for part in (part.strip() for part in (text or "").split(",")):
        if not part:
            continue
        name, *numbers = part.split(":")
        if not name or len(numbers) > 2 or not all(number.lstrip("-").isdecimal() for number in numbers):
            raise UsageError(
                f"'{part}' in OTTLA_TOPICS is not NAME:PARTITIONS:REPLICATION-FACTOR", "For instance: orders:3:1."
            )
        counts = [int(number) for number in numbers] + [-1, -1]
        topics.append((name, counts[0], counts[1]))
    return topics


def default_directory() -> Path:
    """The directory in which `ottla dev` keeps its data by default."""
    from platformdirs import user_data_path

    return user_data_path("ottla") / "dev"


def _secured(directory: Path, listen: str, told: str) -> DevSecurity:
    from ottla.cli.dev_security import prepare

    # Under these hosts brokers are reached, besides those of the loopback interface.
    hosts = [host for host in (listen, told) if host not in ("0.0.0.0", "::", "")]
    return prepare(directory, hosts, metadata_store(directory))


def _connected(bootstrap: str, security: DevSecurity | None, timeout_s: float) -> Cluster:
    from ottla.cli.connection import Cluster
    from ottla.cli.security import read_command_config

    if security is None:
        return Cluster(bootstrap, timeout_s)
    file = security.client_file
    return Cluster(bootstrap, timeout_s, security=read_command_config(file), command_config=file)


def _create_topics(connect: Callable[[float], Cluster], topics: list[tuple[str, int, int]], output: Output) -> None:
    if not topics:
        return
    from ottla.cli.connection import explained
    from ottla.cli.errors import explain_code
    from ottla.cli.topics import TOPIC_EXISTS

    wanted = {name: {"num_partitions": partitions, "replication_factor": factor} for name, partitions, factor in topics}
    with connect(30) as cluster, explained("the topics of OTTLA_TOPICS"):
        answer = cluster.admin.create_topics(wanted, raise_errors=False)
        for topic in answer["topics"]:
            if topic["error_code"] not in (0, TOPIC_EXISTS):
                raise explain_code(topic["error_code"], f"topic '{topic['name']}'", topic["error_message"])
        cluster.admin.wait_for_topics(list(wanted))
    output.note("Topics: " + ", ".join(wanted))


def _announce(
    output: Output, cluster: list[DevBroker], bootstrap: str, directory: Path, security: DevSecurity | None
) -> None:
    if output.as_json:
        brokers = [{"id": one.id, "pid": one.pid, "port": one.port} for one in cluster]
        files = {} if security is None else {"command_config": str(security.client_file)}
        output.line({"bootstrap": bootstrap, "data": str(directory), "brokers": brokers, **files})
        return
    count = "1 broker" if len(cluster) == 1 else f"{len(cluster)} brokers"
    print(f"Ottla is running: {count}, data in {directory}\n")
    print(f"  Bootstrap   {bootstrap}")
    if bootstrap != BOOTSTRAP_DEFAULT:
        print(f"              export OTTLA_BOOTSTRAP={bootstrap}")
    if security is not None:
        import shlex

        from ottla.cli.dev_security import ADMIN

        print(f"  Log in as   {ADMIN}, a super user, with these files, which only you can read:")
        print(f"              export OTTLA_COMMAND_CONFIG={shlex.quote(str(security.client_file))}")
        print(f"  kcat        kcat -F {shlex.quote(str(security.librdkafka_file))} -b {bootstrap} -L")
        print(f"  Java        kafka-topics.sh --bootstrap-server {bootstrap} \\")
        print(f"                --command-config {shlex.quote(str(security.client_file))} --list")
    if len(cluster) > 1:
        for one in cluster:
            print(f"  {'Brokers' if one is cluster[0] else '':<12}{one.id} on port {one.port}, process {one.pid}")
    print("  Try it      ottla topics create hello")
    print("              echo hi | ottla produce hello")
    print("              ottla consume hello --from-beginning")
    if cluster[0].log is not None:
        print(f"  Logs        {directory}/broker-*.log")
    print("\nCtrl-C stops it.", flush=True)


def _watch(cluster: list[DevBroker], waker: Waker, line: int, restart: bool, output: Output) -> None:
    """Watches the brokers until a signal requests the stop. With `restart` a broker that dies is started again. Without
    it the other brokers continue, and CommandError is raised once the last one has died."""
    missed: set[int] = set()
    while not waker.stopping:
        now = time.monotonic()
        for one in cluster:
            if one.id in missed:
                continue
            if one.restart_at is not None and now >= one.restart_at:
                one.restart_at = None
                one.start(line)
            elif one.restart_at is None and one.exit_code() is not None:
                if not restart:
                    missed.add(one.id)
                    if len(missed) == len(cluster):
                        raise death(one)
                    output.note(
                        f"{death(one).line()} The other brokers continue; --restart would start the broker again."
                    )
                    continue
                pause = _BACKOFF_S[min(one.deaths, len(_BACKOFF_S) - 1)]
                one.deaths += 1
                one.restart_at = now + pause
                output.note(f"{death(one).line()} It starts again in {pause:g} s.")
        waits = [one.restart_at - now for one in cluster if one.restart_at is not None]
        waker.sleep(min(waits, default=3600))
