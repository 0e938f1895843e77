"""Checks of requests to create a topic: its name, and replicas that the request assigns by hand. Pure.

The rules and the texts of the errors are those of Apache Kafka 4.3 (Topic.validate, ReplicationControlManager), so that
a user who searches for an error's text finds Kafka's explanations.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from ottla.protocol.errors import ErrorCode, KafkaError

NAME_LENGTH_MAX = 249
METADATA_TOPIC = "__cluster_metadata"
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raises KafkaError INVALID_TOPIC_EXCEPTION for a name that Kafka doesn't allow."""
    if name == "":
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif not _LEGAL.fullmatch(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise KafkaError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {problem}")


def metric_name(name: str) -> str | None:
    """The topic's name in Kafka's metrics, with `_` in place of `.`; None if the name has neither character.

    No two topics may have the same metric name.
    """
    return name.replace(".", "_") if "." in name or "_" in name else None


def check_assignments(
    assignments: Sequence[tuple[int, Sequence[int]]], brokers: Collection[int], replication_factor: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """The replicas of each partition, from (index, replicas) pairs whose indexes must be 0, 1, … without a gap.

    `replication_factor` is that of the topic's earlier partitions. Raises KafkaError INVALID_REPLICA_ASSIGNMENT.
    """
    by_index: dict[int, tuple[int, ...]] = {}
    for index, replicas in assignments:
        if index in by_index:
            raise _bad_assignment(f"Found multiple manual partition assignments for partition {index}")
        check_replicas(replicas, brokers)
        if replication_factor is None:
            replication_factor = len(replicas)
        elif len(replicas) != replication_factor:
            raise _bad_assignment(
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not"
                f" consistent with previous partitions, which have {replication_factor} replica(s)."
            )
        by_index[index] = tuple(replicas)
    if sorted(by_index) != list(range(len(by_index))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return tuple(by_index[index] for index in range(len(by_index)))


def check_any_runs(assignments: Sequence[Sequence[int]], running: Mapping[int, bool], first_index: int = 0) -> None:
    """Raises KafkaError INVALID_REPLICA_ASSIGNMENT if a partition's replicas are all on brokers that don't run."""
    for index, replicas in enumerate(assignments, first_index):
        if not any(running.get(replica, False) for replica in replicas):
            raise _bad_assignment(
                f"All brokers specified in the manual partition assignment for partition {index} are fenced or in"
                " controlled shutdown."
            )


def check_replicas(replicas: Sequence[int], brokers: Collection[int]) -> None:
    """Raises KafkaError INVALID_REPLICA_ASSIGNMENT if `replicas` is empty, names a broker twice, or names a broker that
    isn't in `brokers`."""
    if not replicas:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    seen: set[int] = set()
    for replica in sorted(replicas):
        if replica not in brokers:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {replica}, but no such broker is registered."
            )
        if replica in seen:
            raise _bad_assignment(f"The manual partition assignment includes the broker {replica} more than once.")
        seen.add(replica)


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_replica_assignment, message)
