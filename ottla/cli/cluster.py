"""`ottla cluster`, `ottla brokers list` and `ottla log-dirs`: what the cluster consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import explained
from ottla.cli.errors import CommandError, NotFound, explain_code
from ottla.cli.options import cluster_command
from ottla.cli.output import Output, size_text

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

brokers_app = typer.Typer(no_args_is_help=True, help="The brokers of the cluster.")


def _brokers(cluster: Cluster) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    with explained("the description of the cluster"):
        answer = cluster.admin.describe_cluster()
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


@cluster_command
def cluster_overview(cluster: Cluster, output: Output) -> None:
    """Show the cluster's id, its controller, and how many brokers, topics and partitions there are."""
    answer, brokers = _brokers(cluster)
    with explained("the list of topics"):
        topics = cluster.admin.describe_topics()
    partitions = [partition for topic in topics for partition in topic["partitions"]]
    record = {
        "cluster_id": answer["cluster_id"],
        "controller_id": answer["controller_id"],
        "brokers": len(brokers),
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
        "topics": "Topics",
        "internal_topics": "Internal topics",
        "partitions": "Partitions",
        "under_replicated": "Under-replicated",
        "without_leader": "Without leader",
    }
    output.record(record, labels)


@brokers_app.command("list")
@cluster_command
def list_brokers(cluster: Cluster, output: Output) -> None:
    """List the brokers with the addresses that clients get."""
    _, rows = _brokers(cluster)
    output.rows(
        rows,
        {"id": "ID", "host": "HOST", "port": "PORT", "rack": "RACK", "fenced": "FENCED", "controller": "CONTROLLER"},
    )


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

    _, known = _brokers(cluster)
    missing = set(broker or []) - {row["id"] for row in known}
    if missing:
        raise NotFound(f"there is no broker {min(missing)}", "`ottla brokers list` shows which there are.")
    if topic:
        lookup.describe_topics(cluster, topic)
    with explained("the log directories"):
        answer = cluster.admin.describe_log_dirs(topic or None, brokers=broker or None)
    directories, replicas = [], []
    for one in answer:
        for directory in one["log_dirs"]:
            rows = _replica_rows(one["broker"], directory)
            replicas += rows
            failure = _failure(directory)
            total, usable = directory.get("total_bytes", -1), directory.get("usable_bytes", -1)
            directories.append(
                {
                    "broker": one["broker"],
                    "log_dir": directory["log_dir"],
                    "error": failure.message if failure else None,
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


def _failure(directory: dict[str, Any]) -> CommandError | None:
    code = directory["error_code"]
    return explain_code(code, f"log directory '{directory['log_dir']}'") if code else None
