"""Elects leaders, for `topics elect` and for `balance run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.cli.connection import explained
from ottla.cli.errors import CommandError, explain_code

if TYPE_CHECKING:
    from ottla.cli.connection import Cluster
    from ottla.placement import PartitionName

_ELECTION_NOT_NEEDED = 84


def elect(
    cluster: Cluster, partitions: Mapping[str, list[int]] | None, *, unclean: bool = False
) -> tuple[list[PartitionName], list[CommandError]]:
    """Asks the cluster to elect the preferred leaders of these partitions, given by topic (None: of all partitions).
    With `unclean` any live replica may be elected. Returns the partitions that have a new leader, and an error for each
    partition whose election was refused.
    """
    with explained("the elections"):
        answer = cluster.admin.elect_leaders(
            int(unclean), partitions, timeout_ms=cluster.timeout_ms, raise_errors=False
        )
    elected: list[PartitionName] = []
    failures: list[CommandError] = []
    for topic in answer.replica_election_results:
        for result in topic.partition_result:
            if not result.error_code:
                elected.append((topic.topic, result.partition_id))
            elif result.error_code != _ELECTION_NOT_NEEDED:
                subject = f"partition '{topic.topic}-{result.partition_id}'"
                failures.append(explain_code(result.error_code, subject, result.error_message))
    return elected, failures
