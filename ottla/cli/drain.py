"""`ottla brokers drain` and `undrain`: keep brokers from being leaders, for instance before work on their machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import moves, reassign
from ottla.cli.cluster import DRAINED, all_topics, check_brokers, drained_brokers
from ottla.cli.errors import explain_code
from ottla.cli.options import cluster_command
from ottla.cli.output import Output
from ottla.wording import counted

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster

APPEND, SUBTRACT = 2, 3
_LOOK_S = 0.25

BrokersArgument = Annotated[list[int], typer.Argument(metavar="BROKER…", help="The brokers' ids.")]


@cluster_command
def drain(
    cluster: Cluster,
    output: Output,
    brokers: BrokersArgument,
    replicas: Annotated[bool, typer.Option("--replicas", help="Move the replicas to other brokers, too.")] = False,
    throttle: reassign.ThrottleOption = None,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, metavar="SECONDS", help="Wait up to this time until the brokers are drained."),
    ] = 60.0,
) -> None:
    """Take leaderships away from brokers, and give them none until `ottla brokers undrain`."""
    check_brokers(cluster, brokers)
    planned: dict[Any, Any] = {}
    if replicas:  # this comes first: if there is no room elsewhere, nothing is changed
        present, everything = moves.plan(cluster, without={*drained_brokers(cluster), *brokers})
        planned = {name: to for name, to in everything.items() if set(present[name]).intersection(brokers)}
    _alter_list(cluster, APPEND, brokers)
    if planned:
        if throttle is not None:
            moves.throttle(cluster, present, planned, throttle)
        moves.begin(cluster, planned)
    deadline = time.monotonic() + wait
    while (led := _led_by(cluster, brokers)) and time.monotonic() < deadline and not _alone(cluster, brokers):
        time.sleep(_LOOK_S)
    if planned:
        reassign.wait_for(cluster, planned, max(0.0, deadline - time.monotonic()))
        moves.unthrottle(cluster, {name[0] for name in planned})
        led = _led_by(cluster, brokers)
    names = ", ".join(map(str, brokers))
    moved = f", {counted(len(planned), 'partition')} moved" if replicas else ""
    rest = (
        f"; {counted(led, 'partition')} still led: no other broker with an in-sync replica has taken over"
        if led
        else ""
    )
    output.done(f"Drained: {names}{moved}{rest}.", {"drained": brokers, "moved": len(planned), "still_led": led})


@cluster_command
def undrain(cluster: Cluster, output: Output, brokers: BrokersArgument) -> None:
    """Let brokers lead again. They get leaderships back when leaders are balanced, or by `ottla topics elect`."""
    drained = sorted(set(brokers).intersection(drained_brokers(cluster)))
    if drained:
        _alter_list(cluster, SUBTRACT, drained)
    output.done(f"May lead again: {', '.join(map(str, brokers))}.", {"undrained": drained})


def _alter_list(cluster: Cluster, operation: int, brokers: list[int]) -> None:
    """Changes the cluster-wide default of `ottla.brokers.drained`. The request is built here, because kafka-python can
    alter only the settings of a named broker."""
    from ottla.net.admin import ALTER_CONFIGS, BROKER, refusal, settings_altered

    key, newest = ALTER_CONFIGS
    message = settings_altered(BROKER, {"": [(DRAINED, operation, ",".join(map(str, brokers)))]})
    answer = cluster.ask((key, 0, newest), message)
    if (refused := refusal(answer.responses[0])) is not None:
        raise explain_code(int(refused.code), f"setting '{DRAINED}'", refused.message)


def _led(cluster: Cluster, brokers: list[int]) -> list[dict[str, Any]]:
    partitions = [partition for topic in all_topics(cluster) for partition in topic["partitions"]]
    return [partition for partition in partitions if partition["leader_id"] in brokers]


def _led_by(cluster: Cluster, brokers: list[int]) -> int:
    return len(_led(cluster, brokers))


def _alone(cluster: Cluster, brokers: list[int]) -> bool:
    """Whether no other broker has an in-sync replica of any partition that these brokers lead."""
    return all(set(partition["isr_nodes"]) <= set(brokers) for partition in _led(cluster, brokers))
