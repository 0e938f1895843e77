"""`ottla cluster`, `ottla brokers list` and `ottla log-dirs`: the cluster, its brokers and disks, and their health."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import health
from ottla.cli.availability import brokers_text, min_isr
from ottla.cli.connection import explained
from ottla.cli.errors import NotFound
from ottla.cli.help import App
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
from ottla.wording import counted, size_text

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

app = App(invoke_without_command=True)
brokers_app = App(no_args_is_help=True, help="The brokers of the cluster.")

DRAINED = "ottla.brokers.drained"
_CUTS_SHOWN_MAX = 10


def describe_brokers(cluster: Cluster) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the answer of DescribeCluster, a row for each broker in the order of their ids)."""
    with explained("the description of the cluster"):
        answer = cluster.patiently(cluster.admin.describe_cluster)
    rows = [
        {
            "id": broker["broker_id"],
            "host": broker["host"],
            "port": broker["port"],
            "rack": broker["rack"],
            "fenced": broker.get("is_fenced", False),
            "controller": broker["broker_id"] == answer["controller_id"],
        }
        for broker in sorted(answer["brokers"], key=lambda broker: int(broker["broker_id"]))
    ]
    return answer, rows


@app.callback()
@cluster_command
def cluster_overview(cluster: Cluster, output: Output, command: typer.Context) -> None:
    """Show the cluster's id, its controller, and how many brokers, topics and partitions there are."""
    if command.invoked_subcommand is not None:
        return
    answer, brokers = describe_brokers(cluster)
    topics = all_topics(cluster)
    partitions = [partition for topic in topics for partition in topic["partitions"]]
    record = {
        "cluster_id": answer["cluster_id"],
        "controller_id": answer["controller_id"],
        "brokers": len(brokers),
        "away": away(topics, brokers),
        "topics": sum(not topic["is_internal"] for topic in topics),
        "internal_topics": sum(topic["is_internal"] for topic in topics),
        "partitions": len(partitions),
        "under_replicated": sum(len(p["isr_nodes"]) < len(p["replica_nodes"]) for p in partitions),
        "without_leader": sum(p["leader_id"] < 0 for p in partitions),
        "bootstrap": cluster.bootstrap,
    }
    labels = {
        "cluster_id": "Cluster id",
        "bootstrap": "Bootstrap",
        "controller_id": "Controller",
        "brokers": "Brokers",
        "away": "Brokers away",
        "topics": "Topics",
        "internal_topics": "Internal topics",
        "partitions": "Partitions",
        "under_replicated": "Under-replicated",
        "without_leader": "Without leader",
    }
    output.record(record, labels)


@app.command()
@cluster_command
def status(cluster: Cluster, output: Output) -> None:
    """Show troubles of partitions, disks, logs and brokers, the bytes that recovery cut off, and moves under way."""
    from ottla.cli import moves

    _, brokers = describe_brokers(cluster)
    topics = all_topics(cluster)
    minima = min_isr(cluster, [topic["name"] for topic in topics])
    active = moves.under_way(cluster)
    living = {row["id"] for row in brokers if not row["fenced"]}
    rows = []
    for topic in sorted(topics, key=lambda topic: str(topic["name"])):
        for partition in sorted(topic["partitions"], key=lambda partition: int(partition["partition_index"])):
            name = (topic["name"], partition["partition_index"])
            trouble = _trouble(partition, minima.get(topic["name"], 1), living, moving=name in active)
            if trouble:
                isr, replicas = partition["isr_nodes"], partition["replica_nodes"]
                rows.append(
                    {"topic": name[0], "partition": name[1], "trouble": trouble, "isr": isr, "replicas": replicas}
                )
    drained = drained_brokers(cluster)
    brokers_away = away(topics, brokers)
    directories, recovered = health.directories(cluster, living), health.recovered(cluster, living)
    damaged = health.damaged(cluster, living)
    if output.as_json:
        output.document(
            {
                "brokers": sorted(living),
                "away": brokers_away,
                "drained": drained,
                "moves": len(active),
                "partitions": rows,
                "directories": [one._asdict() for one in directories],
                "damaged": [one._asdict() for one in damaged],
                "recovered": [one._asdict() for one in recovered],
            }
        )
        return
    output.rows(
        rows,
        {"topic": "TOPIC", "partition": "PARTITION", "trouble": "WHAT", "isr": "ISR", "replicas": "REPLICAS"},
        empty=f"All partitions of {counted(len(topics), 'topic')} are led and in sync.",
    )
    if directories:
        output.title("\nLog directories:")
        output.rows(
            [one._asdict() for one in directories], {"broker": "BROKER", "path": "DIRECTORY", "trouble": "WHAT"}
        )
    if damaged:
        output.title("\nDamaged logs:")
        output.rows(
            [one._asdict() for one in damaged],
            {
                "topic": "TOPIC",
                "partition": "PARTITION",
                "offset": "OFFSET",
                "broker": "REPORTED BY",
                "trouble": "WHAT",
            },
        )
        output.note(
            "`ottla log verify LOG-DIRECTORY/TOPIC-PARTITION`, on each broker that has the partition, "
            "shows where the log is damaged."
        )
    for one in recovered:
        output.title(f"\n{one.line()}:")
        for cut in one.cuts[:_CUTS_SHOWN_MAX]:
            output.title(f"  {health.cut_text(cut)}")
        if one.logs > _CUTS_SHOWN_MAX:
            output.title("  … (more with --json, and all in the broker's log)")
    if brokers_away:
        output.note(f"{brokers_text(brokers_away).capitalize()} away.")
    if drained:
        output.note(f"Drained: {', '.join(map(str, drained))}.")
    if active:
        output.note(f"{counted(len(active), 'move')} under way: ottla reassign status")


def _trouble(partition: dict[str, Any], min_isr: int, living: set[int], *, moving: bool) -> str:
    """The most serious problem of a partition, as a phrase; empty if it has none."""
    isr, replicas = partition["isr_nodes"], partition["replica_nodes"]
    if partition["leader_id"] < 0:
        gone = [broker for broker in replicas if broker not in living]
        return f"no leader: {brokers_text(gone)} away" if gone else "no leader"
    if len(isr) < min(min_isr, len(replicas)):
        return "below min.insync.replicas: acks=all is refused"
    if moving:
        return "moving"
    if not set(replicas) <= living:
        return "a replica's broker is away"
    if len(isr) < len(replicas):
        return "a replica isn't in sync"
    return "" if partition["leader_id"] == replicas[0] else "not led by the preferred replica"


def all_topics(cluster: Cluster) -> list[dict[str, Any]]:
    """The metadata of all topics, internal ones too."""
    with explained("the list of topics"):
        topics: list[dict[str, Any]] = cluster.patiently(cluster.admin.describe_topics)
    return topics


def away(topics: list[dict[str, Any]], brokers: list[dict[str, Any]]) -> list[int]:
    """The ids of the brokers that have replicas and don't run."""
    living = {row["id"] for row in brokers if not row["fenced"]}
    holders = {broker for topic in topics for one in topic["partitions"] for broker in one["replica_nodes"]}
    return sorted(holders - living)


@brokers_app.command("list")
@cluster_command
def list_brokers(cluster: Cluster, output: Output) -> None:
    """List all brokers, also stopped ones: the addresses that clients get, the numbers of replicas and of leaders."""
    _, rows = describe_brokers(cluster)
    topics = all_topics(cluster)
    drained = drained_brokers(cluster)
    partitions = [partition for topic in topics for partition in topic["partitions"]]
    known = {row["id"] for row in rows}
    absent = dict.fromkeys(("host", "port", "rack"))
    rows += [{"id": gone, **absent, "fenced": True, "controller": False} for gone in set(away(topics, rows)) - known]
    for row in rows:
        row["leads"] = sum(partition["leader_id"] == row["id"] for partition in partitions)
        row["replicas"] = sum(row["id"] in partition["replica_nodes"] for partition in partitions)
        row["drained"] = row["id"] in drained
        row["state"] = "away" if row["id"] not in known else "fenced" if row["fenced"] else "running"
    rows.sort(key=lambda row: int(row["id"]))
    columns = {"id": "ID", "state": "STATE", "host": "HOST", "port": "PORT", "rack": "RACK", "leads": "LEADS"}
    output.rows(rows, columns | {"replicas": "REPLICAS", "drained": "DRAINED", "controller": "CONTROLLER"})


def drained_brokers(cluster: Cluster) -> list[int]:
    """The ids of the brokers that are drained: the setting `ottla.brokers.drained` lists them."""
    from ottla.cli.configs import settings_of_any_broker

    value = settings_of_any_broker(cluster).get(DRAINED, {}).get("value") or ""
    return sorted(int(part) for part in value.split(",") if part.strip())


def check_brokers(cluster: Cluster, brokers: Iterable[int]) -> None:
    """Raises NotFound if the cluster has no broker with one of these ids. The error names the lowest such id."""
    _, known = describe_brokers(cluster)
    missing = set(brokers) - {row["id"] for row in known}
    if missing:
        raise NotFound(f"there is no broker {min(missing)}", "`ottla brokers list` shows all brokers.")


@cluster_command
def log_dirs(
    cluster: Cluster,
    output: Output,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only these topics; may be repeated.")] = None,
    broker: Annotated[list[int] | None, typer.Option("--broker", help="Only these brokers; may be repeated.")] = None,
    partitions: Annotated[bool, typer.Option("--partitions", help="Show every partition.")] = False,
) -> None:
    """Show the brokers' log directories and how full they are."""
    from ottla.cli import lookup

    check_brokers(cluster, broker or [])
    if topic:
        lookup.describe_topics(cluster, topic)
    asked = set(broker or cluster.living())
    answer = health.described(cluster, asked, topic or None)
    if silent := asked.difference(one["broker"] for one in answer):
        output.warn(f"{brokers_text(silent)} not answering", "`ottla brokers list` shows which brokers run.")
    directories, replicas = [], []
    for one in answer:
        for directory in one["log_dirs"]:
            rows = _replica_rows(one["broker"], directory)
            replicas += rows
            trouble = health.trouble(directory)
            total, usable = directory.get("total_bytes", -1), directory.get("usable_bytes", -1)
            directories.append(
                {
                    "broker": one["broker"],
                    "log_dir": directory["log_dir"],
                    "error": trouble or None,
                    "partitions": len(rows),
                    "size_bytes": sum(row["size_bytes"] for row in rows),
                    "total_bytes": total if total >= 0 else None,
                    "usable_bytes": usable if usable >= 0 else None,
                    "replicas": rows,
                }
            )
    if partitions and not output.as_json:
        shown = [{**row, "size": size_text(row["size_bytes"])} for row in replicas]
        columns = {"broker": "BROKER", "topic": "TOPIC", "partition": "PARTITION", "size": "SIZE"}
        output.rows(shown, columns | {"offset_lag": "LAG", "log_dir": "DIRECTORY"}, empty="There are no partitions.")
        return
    for row in directories if not output.as_json else ():
        row["size"] = size_text(row["size_bytes"])
        row["free"] = size_text(row["usable_bytes"]) if row["usable_bytes"] is not None else None
        row["state"] = row["error"] or "ok"
    output.rows(
        directories,
        {
            "broker": "BROKER",
            "log_dir": "DIRECTORY",
            "partitions": "PARTITIONS",
            "size": "SIZE",
            "free": "FREE",
            "state": "STATE",
        },
    )


def _replica_rows(broker: int, directory: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [
        {
            "broker": broker,
            "log_dir": directory["log_dir"],
            "topic": topic["name"],
            "partition": partition["partition_index"],
            "size_bytes": partition["partition_size"],
            "offset_lag": partition["offset_lag"],
            "future": partition["is_future_key"],
        }
        for topic in directory["topics"]
        for partition in topic["partitions"]
    ]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))
