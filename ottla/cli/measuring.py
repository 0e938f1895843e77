"""What brokers bear, measured over Kafka's protocol: bytes on disk, traffic, CPU.

Sizes and capacities come from DescribeLogDirs. What a broker has worked since its start it tells under a name of
Ottla's own (`ottla.load` in DescribeConfigs); it is asked twice, and what grew between the two answers is the load.
Apache Kafka's brokers don't tell that, and a broker that doesn't answer is measured as one that did nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.balance.directories import Placed
from ottla.balance.loads import BrokerLoad, Goal, PartitionLoad
from ottla.cli import health, moves
from ottla.settings.own import LOAD

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster
    from ottla.placement import PartitionName, Replicas

CPU_SLACK = 0.02  # of a core: brokers that differ by less work alike
DISK_SLACK_BYTES = 64 << 20


class Worked(NamedTuple):
    """What a broker has worked since its start: CPU time, and by partition (bytes in, bytes out)."""

    at: float
    cpu_seconds: float
    traffic: dict[PartitionName, tuple[int, int]]


class Rates(NamedTuple):
    """What a broker works: cores, and by partition (bytes in a second, bytes out a second)."""

    cores: float
    traffic: dict[PartitionName, tuple[float, float]]


@dataclass(frozen=True)
class Measured:
    """The loads of a cluster. `cores` has the brokers that tell what they work."""

    brokers: dict[int, BrokerLoad]
    partitions: dict[PartitionName, PartitionLoad]
    cores: dict[int, float]
    capacities: dict[int, dict[str, float | None]]  # by broker and log directory
    placed: dict[int, dict[PartitionName, Placed]]  # by broker

    @property
    def slack(self) -> dict[Goal, float]:
        """By how much brokers may differ whatever their average is."""
        work = sum(each.leading + (len(each.replicas) - 1) * each.following for each in self.partitions.values())
        cores = sum(self.cores.values())
        return {Goal.disk: DISK_SLACK_BYTES, Goal.cpu: CPU_SLACK * work / cores if cores else work}


def measure(cluster: Cluster, window_s: float) -> Measured:
    """Looks twice, `window_s` apart. Raises CommandError."""
    racks, living = cluster.racks(), sorted(cluster.living())
    before = worked(cluster, living)
    if before:
        time.sleep(window_s)
    after = worked(cluster, before)
    speeds = {broker: rates(before[broker], after[broker]) for broker in after}
    described = health.described(cluster, living)
    return loads(moves.assignments(cluster), racks, speeds, described)


def worked(cluster: Cluster, brokers: Iterable[int]) -> dict[int, Worked]:
    """What these brokers have worked; those of another kind, and those that don't answer, are left out."""
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.errors import KafkaConnectionError, NodeNotReadyError, UnknownBrokerIdError

    from ottla.cli.connection import explained

    found = {}
    for broker in brokers:
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker), {LOAD: None})
        with explained(f"the load of broker {broker}"):
            try:
                answer = cluster.admin.describe_configs([resource], config_filter="all")
            except (KafkaConnectionError, NodeNotReadyError, UnknownBrokerIdError):
                continue
        setting = answer.get("broker", {}).get(str(broker), {}).get(LOAD)
        if setting is not None:
            told = json.loads(setting["value"])
            traffic = {
                (topic, int(index)): (bytes_in, bytes_out)
                for topic, partitions in told["partitions"].items()
                for index, (bytes_in, bytes_out) in partitions.items()
            }
            found[broker] = Worked(time.monotonic(), told["cpu_seconds"], traffic)
    return found


def rates(before: Worked, after: Worked) -> Rates:
    """What was worked a second between two looks; a counter that began anew counts from 0. Pure."""
    seconds = max(after.at - before.at, 1e-3)

    def grown(earlier: float, later: float) -> float:
        return (later - earlier if later >= earlier else later) / seconds

    traffic = {}
    for name, (bytes_in, bytes_out) in after.traffic.items():
        earlier_in, earlier_out = before.traffic.get(name, (0, 0))
        traffic[name] = grown(earlier_in, bytes_in), grown(earlier_out, bytes_out)
    return Rates(grown(before.cpu_seconds, after.cpu_seconds), traffic)


def loads(
    assignments: Mapping[PartitionName, Replicas],
    racks: Mapping[int, str | None],
    speeds: Mapping[int, Rates],
    described: Iterable[Mapping[str, Any]],
) -> Measured:
    """One picture of what the answers say. Pure.

    A leader handles what comes in, what consumers read, and a copy for each follower; a follower what comes in. A
    partition's size is that of its largest replica: the others grow to it.
    """
    capacities: dict[int, dict[str, float | None]] = {}
    placed: dict[int, dict[PartitionName, Placed]] = {}
    for answer in described:
        for directory in answer["log_dirs"]:
            found = {
                (topic["name"], partition["partition_index"]): float(partition["partition_size"])
                for topic in directory["topics"]
                for partition in topic["partitions"]
                if not partition["is_future_key"]
            }
            usable = directory.get("usable_bytes", -1)
            # What others have on the volume is no capacity of this broker's.
            capacity = usable + sum(found.values()) if usable >= 0 else None
            capacities.setdefault(answer["broker"], {})[directory["log_dir"]] = capacity
            held = placed.setdefault(answer["broker"], {})
            held.update({name: Placed(directory["log_dir"], size) for name, size in found.items()})
    sizes: dict[PartitionName, float] = {}
    for held in placed.values():
        for name, one in held.items():
            sizes[name] = max(sizes.get(name, 0.0), one.size_bytes)
    traffic: dict[PartitionName, tuple[float, float]] = {}
    for speed in speeds.values():
        for name, (bytes_in, bytes_out) in speed.traffic.items():
            others_in, others_out = traffic.get(name, (0.0, 0.0))
            traffic[name] = others_in + bytes_in, others_out + bytes_out
    partitions = {}
    for name, replicas in assignments.items():
        bytes_in, bytes_out = traffic.get(name, (0.0, 0.0))
        leading = bytes_in * len(replicas) + bytes_out
        partitions[name] = PartitionLoad(replicas, sizes.get(name, 0.0), leading, bytes_in)
    brokers = {}
    for broker, rack in racks.items():
        volumes = capacities.get(broker, {}).values()
        known = [capacity for capacity in volumes if capacity is not None]
        whole = sum(known) if known and len(known) == len(volumes) else None
        brokers[broker] = BrokerLoad(broker, rack, whole)
    cores = {broker: speed.cores for broker, speed in speeds.items()}
    return Measured(brokers, partitions, cores, capacities, placed)
