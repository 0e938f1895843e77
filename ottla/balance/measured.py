"""Derives the loads of brokers and partitions at one moment from brokers' answers. Pure.

A broker reports its work since its start (`ottla.load` in DescribeConfigs), as numbers that only grow. Their growth
between two answers, divided by the time, is the broker's load. DescribeLogDirs reports sizes of replicas and free bytes
of volumes. Apache Kafka's brokers don't report work. A broker that doesn't answer counts as one without work.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.balance.directories import Placed
from ottla.balance.loads import BrokerLoad, Goal, PartitionLoad
from ottla.placement import PartitionName, Replicas

CPU_SLACK = 0.02  # cores: brokers that differ by less count as equally loaded
DISK_SLACK_BYTES = 64 << 20


class Worked(NamedTuple):
    """A broker's work since its start: its CPU time, and (bytes in, bytes out) by partition.

    `at` is the moment at which the broker's answer came, in seconds.
    """

    at: float
    cpu_seconds: float
    traffic: dict[PartitionName, tuple[int, int]]


class Rates(NamedTuple):
    """A broker's load: the cores that it uses, and (bytes in, bytes out) a second by partition."""

    cores: float
    traffic: dict[PartitionName, tuple[float, float]]


class Directory(NamedTuple):
    """A log directory: the free bytes of its volume (−1: unknown), and the sizes of the replicas in it."""

    broker: int
    path: str
    usable_bytes: int
    sizes: dict[PartitionName, int]


@dataclass(frozen=True)
class Measured:
    """The loads of a cluster. `cores` has only the brokers that report their work."""

    brokers: dict[int, BrokerLoad]
    partitions: dict[PartitionName, PartitionLoad]
    cores: dict[int, float]
    capacities: dict[int, dict[str, float | None]]  # by broker and log directory
    placed: dict[int, dict[PartitionName, Placed]]  # by broker

    @property
    def slack(self) -> dict[Goal, float]:
        """For each goal, the least difference between a broker's load and its fair load that is to be removed. Smaller
        differences are ignored."""
        work = sum(each.leading + (len(each.replicas) - 1) * each.following for each in self.partitions.values())
        cores = sum(self.cores.values())
        return {Goal.disk: DISK_SLACK_BYTES, Goal.cpu: CPU_SLACK * work / cores if cores else work}


def read_worked(at: float, value: str) -> Worked:
    """Parses `value`, a broker's answer about its work, which came at the moment `at` (in seconds)."""
    told = json.loads(value)
    traffic = {
        (topic, int(index)): (bytes_in, bytes_out)
        for topic, partitions in told["partitions"].items()
        for index, (bytes_in, bytes_out) in partitions.items()
    }
    return Worked(at, told["cpu_seconds"], traffic)


def rates(before: Worked, after: Worked) -> Rates:
    """The load between two answers of a broker. A counter that has decreased was reset meanwhile, and counts from 0."""
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
    """The loads of a cluster, joined from its brokers' answers.

    A leader handles the bytes that are produced, the bytes that consumers read, and a copy of the produced bytes for
    each follower. A follower handles the produced bytes. A partition's size is that of its largest replica, because the
    other replicas will grow to that size.
    """
    capacities: dict[int, dict[str, float | None]] = {}
    placed: dict[int, dict[PartitionName, Placed]] = {}
    for directory in directories:
        # Other files on the volume reduce the broker's capacity.
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
