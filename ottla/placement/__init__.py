"""Places the replicas of a topic's partitions on brokers. Pure.

The placement is that of Apache Kafka's StripedReplicaPlacer. Brokers are taken round robin: the first replicas of
successive partitions are on successive brokers. Racks alternate, so that a partition's replicas are on as many racks as
possible. Live brokers come first. A broker that isn't running gets a replica only if the replication factor needs it,
and never the first replica.

The caller gives the starting position (Kafka's is random), so that the same input gives the same placement.

If the replication factor of existing partitions is changed, replicas are only added or only removed. The first replica
stays the first one, as long as it is in sync.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError

PartitionName = tuple[str, int]  # topic, index
Replicas = tuple[int, ...]


class Candidate(NamedTuple):
    """A broker that may get replicas."""

    id: int
    rack: str | None = None
    live: bool = True


def place(
    candidates: Iterable[Candidate], partition_count: int, replication_factor: int, start: int = 0, first_index: int = 0
) -> tuple[tuple[int, ...], ...]:
    """The replicas of partitions `first_index` … `first_index + partition_count − 1`, first replica first.

    Raises KafkaError INVALID_REPLICATION_FACTOR if there are fewer brokers than the factor needs, or none is live.
    """
    brokers = sorted(candidates)
    if replication_factor > len(brokers):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of"
            f" {replication_factor} cannot be reached because only {len(brokers)} broker(s) are registered or some"
            " brokers have all their log directories cordoned.",
        )
    if not any(broker.live for broker in brokers):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {replication_factor} time(s): All brokers are currently fenced or have"
            " all their log directories cordoned.",
        )
    live = _alternating([broker for broker in brokers if broker.live])
    other = _alternating([broker for broker in brokers if not broker.live])
    rack_of = {broker.id: broker.rack for broker in brokers}
    return tuple(
        _replicas(live, other, rack_of, start + index, replication_factor)
        for index in range(first_index, first_index + partition_count)
    )


def resized(
    assignments: Mapping[PartitionName, Replicas],
    names: Iterable[PartitionName],
    candidates: Iterable[Candidate],
    replication_factor: int,
    in_sync: Mapping[PartitionName, Collection[int]],
) -> dict[PartitionName, Replicas]:
    """The new replicas of those partitions in `names` that have more or fewer replicas than `replication_factor`.

    A replica is added on a live broker, if possible on a rack that the partition doesn't have yet; of several such
    brokers, on the one with the fewest replicas in all `assignments`. Replicas are removed in this order: those that
    aren't in sync (`in_sync`, by partition), those that share a rack with another replica, those on the broker with the
    most replicas. The first replica that is in sync is never removed.

    Raises KafkaError INVALID_REPLICATION_FACTOR if too few brokers are live.
    """
    brokers = sorted(candidates)
    racks = {broker.id: broker.rack for broker in brokers}
    load = Counter(replica for replicas in assignments.values() for replica in replicas)
    changed: dict[PartitionName, Replicas] = {}
    for name in sorted(names):
        replicas = assignments[name]
        while len(replicas) < replication_factor:
            free = [broker.id for broker in brokers if broker.live and broker.id not in replicas]
            if not free:
                running = sum(broker.live for broker in brokers)
                raise KafkaError(
                    ErrorCode.invalid_replication_factor,
                    f"{replication_factor} replicas need as many brokers, and {running} run",
                )
            used = {racks.get(replica) for replica in replicas}
            added = min(free, key=lambda broker: (racks[broker] in used, load[broker], broker))
            load[added] += 1
            replicas = (*replicas, added)
        while len(replicas) > replication_factor:
            gone = _least_wanted(replicas, in_sync.get(name, replicas), racks, load)
            load[gone] -= 1
            replicas = tuple(replica for replica in replicas if replica != gone)
        if replicas != assignments[name]:
            changed[name] = replicas
    return changed


def _least_wanted(
    replicas: Replicas, in_sync: Collection[int], racks: Mapping[int, str | None], load: Mapping[int, int]
) -> int:
    """The replica that is removed first if a partition has too many."""
    kept = next((replica for replica in replicas if replica in in_sync), replicas[0])
    shared = Counter(racks.get(replica) for replica in replicas)
    return max(
        (replica for replica in replicas if replica != kept),
        key=lambda replica: (replica not in in_sync, shared[racks.get(replica)] > 1, load[replica], replica),
    )


def _alternating(brokers: Sequence[Candidate]) -> list[int]:
    """The brokers' ids, in an order in which neighbours are on different racks as far as possible."""
    racks: dict[str | None, list[int]] = {}
    for broker in brokers:
        racks.setdefault(broker.rack, []).append(broker.id)
    ordered = sorted(racks.values(), key=lambda ids: (-len(ids), ids))
    longest = max((len(ids) for ids in ordered), default=0)
    return [ids[turn] for turn in range(longest) for ids in ordered if turn < len(ids)]


def _replicas(
    live: Sequence[int], other: Sequence[int], rack_of: dict[int, str | None], position: int, count: int
) -> tuple[int, ...]:
    """`count` brokers: first live ones from `position` on, then others. Within each group, brokers on racks
    without a replica come first."""
    # After each full round of first replicas, followers shift by one broker: this spreads a dead broker's load.
    shift = position // len(live)
    first = position % len(live)
    rest = [live[(first + 1 + (shift + step) % max(1, len(live) - 1)) % len(live)] for step in range(len(live) - 1)]
    spare = [other[(position + step) % len(other)] for step in range(len(other))]
    chosen: list[int] = []
    used_racks: set[str | None] = set()
    for queue in ([live[first], *rest], spare):
        for fresh_racks_only in (True, False):
            for broker in queue:
                if len(chosen) == count:
                    return tuple(chosen)
                if broker in chosen or (fresh_racks_only and rack_of[broker] in used_racks):
                    continue
                chosen.append(broker)
                used_racks.add(rack_of[broker])
    return tuple(chosen)
