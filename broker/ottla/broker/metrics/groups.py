"""Metrics of the consumer groups that this broker coordinates."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.broker.exposition import Sample
from ottla.broker.group.group import GroupType
from ottla.broker.group.states import State
from ottla.broker.metrics.metric import COUNTER, GAUGE, Metric, single
from ottla.broker.ports import WithGroups

_COORDINATOR = "kafka.server:type=group-coordinator-metrics,"


def _by_state(broker: WithGroups) -> Iterator[Sample]:
    counts = broker.groups.counts(GroupType.CLASSIC)
    for state in State:
        yield (("state", state.value),), counts[state.value]


def _partitions_by_state(broker: WithGroups) -> Iterator[Sample]:
    for state, count in broker.groups.partition_states().items():
        yield (("state", state),), count


METRICS: tuple[Metric[WithGroups], ...] = (
    Metric(
        "kafka_server_group_coordinator_metrics_num_partitions", GAUGE,
        "Partitions of `__consumer_offsets` led here, by state. A failed partition is loaded again after a while.",
        _partitions_by_state, _COORDINATOR + "name=num-partitions,state=*", ("state",),
    ),
    Metric(
        "kafka_server_group_coordinator_metrics_classic_group_count", GAUGE,
        "Classic groups coordinated here, by state.",
        _by_state, _COORDINATOR + "state=*,name=classic-group-count", ("state",),
    ),
    Metric(
        "kafka_coordinator_group_groupmetadatamanager_numoffsets", GAUGE,
        "Committed offsets of the groups coordinated here.",
        single(lambda broker: broker.groups.offset_count),
        "kafka.coordinator.group:type=GroupMetadataManager,name=NumOffsets",
    ),
    Metric(
        "kafka_server_group_coordinator_metrics_offset_commit_total", COUNTER, "Offsets committed.",
        single(lambda broker: broker.groups.counters.offset_commits), _COORDINATOR + "name=offset-commit-count",
    ),
    Metric(
        "kafka_server_group_coordinator_metrics_offset_deletion_total", COUNTER, "Offsets deleted on request.",
        single(lambda broker: broker.groups.counters.offset_deletions), _COORDINATOR + "name=offset-deletion-count",
    ),
    Metric(
        "kafka_server_group_coordinator_metrics_offset_expiration_total", COUNTER, "Offsets that expired.",
        single(lambda broker: broker.groups.counters.offset_expirations), _COORDINATOR + "name=offset-expiration-count",
    ),
    Metric(
        "kafka_server_group_coordinator_metrics_group_completed_rebalance_total", COUNTER, "Rebalances completed.",
        single(lambda broker: broker.groups.counters.completed_rebalances),
        _COORDINATOR + "name=group-completed-rebalance-count",
    ),
    Metric(
        "ottla_group_coordinator_unreadable_records_total", COUNTER,
        "Records of `__consumer_offsets` that a load left out as unreadable; the broker's log names them.",
        single(lambda broker: broker.groups.counters.unreadable_records),
    ),
    Metric(
        "ottla_group_coordinator_errors_total", COUNTER,
        "Unforeseen errors of the coordinator, which are bugs of Ottla. The broker's log has each of them.",
        single(lambda broker: broker.groups.counters.errors),
    ),
)  # fmt: skip
"""The metrics of groups."""
