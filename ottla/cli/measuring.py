"""Measures brokers' loads over Kafka's protocol, by the difference of two answers (`ottla/balance/measured.py`)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.balance.measured import Directory, Measured, Worked, loads, rates, read_worked
from ottla.cli import health, moves
from ottla.settings.own import LOAD

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster


def measure(cluster: Cluster, window_s: float) -> Measured:
    """The loads of the cluster, from two answers of each broker, `window_s` apart. Raises CommandError."""
    racks, living = cluster.racks(), sorted(cluster.living())
    before = worked(cluster, living)
    if before:
        time.sleep(window_s)
    after = worked(cluster, before)
    speeds = {broker: rates(before[broker], after[broker]) for broker in after}
    return loads(moves.assignments(cluster), racks, speeds, directories(cluster, living))


def worked(cluster: Cluster, brokers: Iterable[int]) -> dict[int, Worked]:
    """The work that these brokers have done so far. Brokers that aren't Ottla's or don't answer are left out."""
    answers = health.told(cluster, brokers, LOAD, "the load")
    return {broker: read_worked(time.monotonic(), value) for broker, value in answers}


def directories(cluster: Cluster, brokers: Iterable[int]) -> list[Directory]:
    """The log directories of those brokers that answer, without the replicas that are still being copied."""
    return [
        Directory(
            answer["broker"],
            directory["log_dir"],
            directory.get("usable_bytes", -1),
            {
                (topic["name"], partition["partition_index"]): partition["partition_size"]
                for topic in directory["topics"]
                for partition in topic["partitions"]
                if not partition["is_future_key"]
            },
        )
        for answer in health.described(cluster, brokers)
        for directory in answer["log_dirs"]
    ]
