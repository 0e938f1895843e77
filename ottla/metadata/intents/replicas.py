"""The brokers that can have replicas, and the replicas that new partitions begin with. Pure.

The replicas of a new partition are placed (`ottla.placement`), or the request assigns them by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ottla.metadata.image import Image
from ottla.metadata.naming import check_any_runs, check_assignments
from ottla.placement import Candidate, place
from ottla.protocol.errors import ErrorCode, KafkaError

PARTITIONS_PER_REQUEST_MAX = 10_000  # the limit in Kafka's ReplicationControlManager


def known_brokers(image: Image, wanted: Iterable[int]) -> Collection[int]:
    """The ids of the registered brokers. If `wanted` has any other id, also the ids of all brokers that have replicas.

    Kafka remembers a broker that is down until it is unregistered. Here a registration ends with its process, so a
    broker that is down is known only by its replicas.
    """
    if all(broker in image.brokers for broker in wanted):
        return image.brokers
    return _with_replicas(image) | image.brokers.keys()


def placed(
    image: Image, count: int, replication_factor: int, start: int, first_index: int = 0
) -> tuple[tuple[int, ...], ...]:
    """The replicas of `count` new partitions, the first of which has the index `first_index`.

    `start` is the position among the brokers where placement starts. Raises KafkaError.
    """
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(ErrorCode.policy_violation, "Excessively large number of partitions per request.")
    undrained = any(broker.electable and broker.id not in image.drained for broker in image.brokers.values())
    unwanted = image.drained if undrained else frozenset[int]()
    candidates = [
        Candidate(broker.id, broker.rack, broker.electable and broker.id not in unwanted)
        for broker in image.brokers.values()
    ]
    # As with Kafka, a broker that is down may get a replica where it is needed, and catches up later.
    if replication_factor > len(candidates):
        down = _with_replicas(image) - image.brokers.keys()
        candidates += [Candidate(broker_id, live=False) for broker_id in sorted(down)]
    return place(candidates, count, replication_factor, start, first_index)


def assigned(
    image: Image,
    assignments: Sequence[tuple[int, Sequence[int]]],
    replication_factor: int | None = None,
    first_index: int = 0,
) -> tuple[tuple[int, ...], ...]:
    """The replicas of new partitions, from the request's (index, replicas) pairs. The indexes are counted from 0.

    `first_index` is the number of partitions that the topic has already, each with `replication_factor` replicas.
    Raises KafkaError INVALID_REPLICA_ASSIGNMENT.
    """
    wanted = [replica for _, replicas in assignments for replica in replicas]
    checked = check_assignments(assignments, known_brokers(image, wanted), replication_factor)
    check_any_runs(checked, {broker.id: broker.electable for broker in image.brokers.values()}, first_index)
    return checked


def _with_replicas(image: Image) -> set[int]:
    """The ids of the brokers that have replicas, whether they run or not."""
    states = (state for of_topic in image.partitions.values() for state in of_topic.values())
    return {replica for state in states for replica in state.replicas}
