"""Metrics of the replicas that this broker holds, and of their logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from ottla.broker import damage, ports
from ottla.broker.exposition import Sample, powers_of_two
from ottla.broker.metrics.metric import COUNTER, GAUGE, HISTOGRAM, NO_LABELS, Metric, by_partition, count_of, single

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

_REPLICAS = "kafka.server:type=ReplicaManager,name="
_LOG = "kafka.log:type=Log,topic=*,partition=*,name="


class Source(
    ports.WithAppliedRevisions,
    ports.WithCompactor,
    ports.WithId,
    ports.WithImage,
    ports.WithIsrChanges,
    ports.WithLogs,
    ports.WithPartitions,
    ports.WithReplication,
    ports.WithMembership,
    Protocol,
):
    """The parts of a broker that the metrics of replicas read."""


def _reassigning(broker: Source) -> int:
    """How many of the partitions that this broker leads are being reassigned."""
    count = 0
    for partition in broker.partitions:
        if partition.leads:
            state = broker.image.partition(partition.topic_id, partition.index)
            count += state is not None and bool(state.adding or state.removing)
    return count


def _offline(broker: Source) -> int:
    """How many replicas went offline while the broker ran, or couldn't be opened at its start."""
    count = sum(partition.offline for partition in broker.partitions)
    for key in broker.logs.lost:
        state = broker.image.partition(*key)
        if state is not None and broker.id in state.replicas and broker.partitions.get_by_id(*key) is None:
            count += 1
    return count


def _uncleanable(broker: Source) -> Iterator[Sample]:
    directories = Counter(broker.logs.directory_of(log) for log in broker.compactor.uncleanable())
    for path in broker.logs.paths:
        yield (("logdirectory", path),), directories[path]


def _troubles(broker: Source) -> Iterator[Sample]:
    for duty, count in sorted(broker.logs.troubles.counts.items()):
        yield (("duty", duty),), count


def _flushes(broker: Source) -> Iterator[Sample]:
    counters = broker.logs.flushes
    yield NO_LABELS, powers_of_two(counters.latency_buckets, 6, 24, 1e-3, counters.latency_microseconds)


def _under_replicated(partition: Partition) -> bool:
    return partition.leads and len(partition.isr) < len(partition.replicas)


def _min_isr(partition: Partition) -> int:
    """`min.insync.replicas` as Kafka applies it: at most the number of replicas."""
    return min(partition.min_isr, len(partition.replicas))


METRICS: tuple[Metric[Source], ...] = (
    Metric(
        "kafka_server_replicamanager_partitioncount", GAUGE, "Replicas on this broker.",
        single(lambda broker: len(broker.partitions)), _REPLICAS + "PartitionCount",
    ),
    Metric(
        "kafka_server_replicamanager_leadercount", GAUGE, "Partitions that this broker leads.",
        count_of(lambda partition: partition.leads), _REPLICAS + "LeaderCount",
    ),
    Metric(
        "kafka_server_replicamanager_underreplicatedpartitions", GAUGE,
        "Partitions led here with a replica that isn't in sync.",
        count_of(_under_replicated), _REPLICAS + "UnderReplicatedPartitions",
    ),
    Metric(
        "kafka_server_replicamanager_underminisrpartitioncount", GAUGE,
        "Partitions led here with fewer in-sync replicas than min.insync.replicas.",
        count_of(lambda partition: partition.leads and len(partition.isr) < _min_isr(partition)),
        _REPLICAS + "UnderMinIsrPartitionCount",
    ),
    Metric(
        "kafka_server_replicamanager_atminisrpartitioncount", GAUGE,
        "Partitions led here with exactly min.insync.replicas in-sync replicas.",
        count_of(lambda partition: partition.leads and len(partition.isr) == _min_isr(partition)),
        _REPLICAS + "AtMinIsrPartitionCount",
    ),
    Metric(
        "kafka_server_replicamanager_offlinereplicacount", GAUGE,
        "Replicas here whose log directory failed, or whose log couldn't be opened.",
        single(_offline), _REPLICAS + "OfflineReplicaCount",
    ),
    Metric(
        "kafka_server_replicamanager_reassigningpartitions", GAUGE,
        "Partitions led here whose replicas are being changed.",
        single(_reassigning), _REPLICAS + "ReassigningPartitions",
    ),
    Metric(
        "kafka_server_replicamanager_produceridcount", GAUGE,
        "Idempotent producers that replicas here remember, counted once for each replica.",
        lambda broker: [(NO_LABELS, sum(len(partition.log.producers) for partition in broker.partitions))],
        _REPLICAS + "ProducerIdCount",
    ),
    Metric(
        "kafka_server_delayedoperationpurgatory_purgatorysize", GAUGE,
        "Requests that wait, counted once for each partition: a Fetch waits for more to read, a Produce for commits.",
        lambda broker: [
            ((("delayedoperation", "Fetch"),), sum(len(partition.waiters) for partition in broker.partitions)),
            ((("delayedoperation", "Produce"),), sum(partition.commits_waited_for for partition in broker.partitions)),
        ],
        "kafka.server:type=DelayedOperationPurgatory,delayedOperation=*,name=PurgatorySize", ("delayedoperation",),
    ),
    Metric(
        "kafka_log_log_size", GAUGE,
        "Bytes of a replica's segments.", by_partition(lambda partition: partition.log.size),
        _LOG + "Size", ("topic", "partition"),
    ),
    Metric(
        "kafka_log_log_logendoffset", GAUGE, "Offset that the next record of a replica gets.",
        by_partition(lambda partition: partition.log.log_end_offset), _LOG + "LogEndOffset", ("topic", "partition"),
    ),
    Metric(
        "kafka_log_log_logstartoffset", GAUGE, "First offset of a replica.",
        by_partition(lambda partition: partition.log.log_start_offset), _LOG + "LogStartOffset", ("topic", "partition"),
    ),
    Metric(
        "kafka_log_log_numlogsegments", GAUGE, "Segments of a replica.",
        by_partition(lambda partition: len(partition.log.segments)), _LOG + "NumLogSegments", ("topic", "partition"),
    ),
    Metric(
        "kafka_log_logflushstats_logflushtimems", HISTOGRAM, "Time in ms that syncing a log to the disk took.",
        _flushes, "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
    ),
    Metric(
        "kafka_log_logmanager_offlinelogdirectorycount", GAUGE, "Log directories that failed.",
        single(lambda broker: len(broker.logs.failed)), "kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
    ),
    Metric(
        "kafka_log_logcleanermanager_uncleanable_partitions_count", GAUGE,
        "Replicas of a log directory that aren't compacted any more, because their data is damaged.",
        _uncleanable, "kafka.log:type=LogCleanerManager,name=uncleanable-partitions-count,logDirectory=*",
        ("logdirectory",),
    ),
    Metric(
        "ottla_compaction_too_large_batches_total", COUNTER,
        "Batches that a round of compaction left as they were, because they unpack to more than 128 MiB; tombstones "
        "behind such a batch stay, too.",
        single(lambda broker: broker.compactor.too_large),
    ),
    Metric(
        "ottla_log_duty_failures_total", COUNTER,
        "How often a duty for a replica's log (retention, compaction, sync, expiry of producers) failed and is tried"
        " again. The broker's log says why.",
        _troubles, "", ("duty",),
    ),
    Metric(
        "ottla_log_directories_full", GAUGE, "Log directories without room, to which nothing is appended.",
        single(lambda broker: len(broker.logs.full)),
    ),
    Metric(
        "ottla_logs_damaged", GAUGE, "Replicas in whose log this broker has met data that can't be read.",
        single(lambda broker: len({(met.topic, met.partition) for met in damage.damages(broker)})),
    ),
    Metric(
        "ottla_recovery_cut_logs", GAUGE, "Logs whose end was lower after this broker's start than before the start.",
        single(lambda broker: broker.logs.cuts.logs),
    ),
    Metric(
        "ottla_recovery_dropped_bytes", GAUGE, "Bytes that the recovery of logs dropped at this broker's start.",
        single(lambda broker: broker.logs.cuts.bytes_dropped),
    ),
    Metric(
        "kafka_cluster_partition_highwatermark", GAUGE, "Offset up to which a replica's records are committed.",
        by_partition(lambda partition: partition.high_watermark), "", ("topic", "partition"),
    ),
    Metric(
        "ottla_metadata_revision", GAUGE, "Revision of the metadata store that this broker knows.",
        single(lambda broker: broker.image.revision),
    ),
    Metric(
        "ottla_metadata_stragglers", GAUGE,
        "Live brokers for which this one's answers to administrators don't wait any more: they are stopped, slow, or "
        "of an older version.",
        single(lambda broker: broker.applied_revisions.straggler_count),
    ),
    Metric(
        "ottla_answers_ahead_of_brokers_total", COUNTER,
        "Answers to administrators that were given before every live broker had applied the change that they "
        "are about.",
        single(lambda broker: broker.applied_revisions.went_ahead_count),
    ),
    Metric(
        "kafka_server_replicamanager_isrshrinks_total", COUNTER,
        "How often this broker, as leader, took replicas out of an ISR.",
        single(lambda broker: broker.isr_changes.shrinks), _REPLICAS + "IsrShrinksPerSec",
    ),
    Metric(
        "kafka_server_replicamanager_isrexpands_total", COUNTER,
        "How often this broker, as leader, let replicas into an ISR.",
        single(lambda broker: broker.isr_changes.expands), _REPLICAS + "IsrExpandsPerSec",
    ),
    Metric(
        "ottla_metadata_store_silence_seconds", GAUGE,
        "Seconds since the metadata store last confirmed the registration. Beyond the session's time-out, "
        "elections and changes of topics and settings wait.",
        single(lambda broker: broker.membership.silence_seconds),
    ),
)  # fmt: skip
"""The metrics of replicas and logs."""
