"""What brokers bear, out of what they answer: loads of brokers and partitions at one moment. Pure.

A broker tells what it has worked since its start (`ottla.load` in DescribeConfigs), numbers that only grow; what grew
between two answers is its load. DescribeLogDirs tells sizes and room. Apache Kafka's brokers tell no work, and a broker
that doesn't answer is measured as one that did nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.balance.directories import Placed
from ottla.balance.loads import BrokerLoad, Goal, PartitionLoad
from ottla.placement import PartitionName, Replicas

CPU_SLACK = 0.02  # of a core: brokers that differ by less work alike
DISK_SLACK_BYTES = 64 << 20


class Worked(NamedTuple):
    """What a broker has worked since its start: CPU time, and by partition (bytes in, bytes out); `at` in seconds."""

    at: float
    cpu_seconds: float
    traffic: dict[PartitionName, tuple[int, int]]


class Rates(NamedTuple):
    """What a broker works: cores, and by partition (bytes in a second, bytes out a second)."""

    cores: float
    traffic: dict[PartitionName, tuple[float, float]]


class Directory(NamedTuple):
    """A log directory: the bytes that its volume has left (−1: nobody knows), and the sizes of the replicas in it."""

    broker: int
    path: str
    usable_bytes: int
    sizes: dict[PartitionName, int]


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


def read_worked(at: float, value: str) -> Worked:
    """What a broker told at a moment."""
    told = json.loads(value)
    traffic = {
        (topic, int(index)): (bytes_in, bytes_out)
        for topic, partitions in told["partitions"].items()
        for index, (bytes_in, bytes_out) in partitions.items()
    }
    return Worked(at, told["cpu_seconds"], traffic)


def rates(before: Worked, after: Worked) -> Rates:
    """What was worked a second between two looks; a counter that began anew counts from 0."""
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
    directories: Iterable[Directory],
) -> Measured:
    """One picture of what the answers say.

    A leader handles what comes in, what consumers read, and a copy for each follower; a follower what comes in. A
    partition's size is that of its largest replica: the others grow to it.
    """
    capacities: dict[int, dict[str, float | None]] = {}
    placed: dict[int, dict[PartitionName, Placed]] = {}
    for directory in directories:
        # What others have on the volume is no capacity of this broker's.
        usable = directory.usable_bytes
        capacity = usable + float(sum(directory.sizes.values())) if usable >= 0 else None
        capacities.setdefault(directory.broker, {})[directory.path] = capacity
        held = placed.setdefault(directory.broker, {})
        held.update({name: Placed(directory.path, float(size)) for name, size in directory.sizes.items()})
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
