"""Metrics of replication: from leaders on other brokers to this broker, and from this broker to followers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ottla.broker.exposition import Sample
from ottla.broker.metrics.metric import COUNTER, GAUGE, Metric, single
from ottla.broker.ports import WithReplication, WithReplicationBytesOut

_FETCHERS = "kafka.server:type=ReplicaFetcherManager,clientId=Replica,name="


class Source(WithReplication, WithReplicationBytesOut, Protocol):
    """The parts of a broker that the metrics of replication read."""


def _lags(broker: Source) -> Iterator[Sample]:
    for partition, lag in list(broker.replication.lags()):
        yield (("topic", partition.topic), ("partition", str(partition.index))), lag


METRICS: tuple[Metric[Source], ...] = (
    Metric(
        "kafka_server_replicafetchermanager_maxlag", GAUGE,
        "The greatest number of committed records that a replica here lacks.",
        single(lambda broker: broker.replication.max_lag), _FETCHERS + "MaxLag",
    ),
    Metric(
        "kafka_server_replicafetchermanager_minfetchrate", GAUGE,
        "Fetches a second, over the last minute, of the fetcher that sends the fewest.",
        single(lambda broker: broker.replication.min_fetch_rate), _FETCHERS + "MinFetchRate",
    ),
    Metric(
        "kafka_server_replicafetchermanager_failedpartitionscount", GAUGE,
        "Replicas here that aren't copied from their leaders any more, because of an unforeseen error.",
        single(lambda broker: broker.replication.failed_count), _FETCHERS + "FailedPartitionsCount",
    ),
    Metric(
        "kafka_server_fetcherlagmetrics_consumerlag", GAUGE,
        "Committed records that a replica here lacks, by the high watermark in its leader's last answer.",
        _lags, "kafka.server:type=FetcherLagMetrics,clientId=*,topic=*,partition=*,name=ConsumerLag",
        ("topic", "partition"),
    ),
    Metric(
        "kafka_server_brokertopicmetrics_replicationbytesin_total", COUNTER,
        "Bytes of record batches copied from leaders.",
        single(lambda broker: broker.replication.bytes_in),
        "kafka.server:type=BrokerTopicMetrics,name=ReplicationBytesInPerSec",
    ),
    Metric(
        "kafka_server_brokertopicmetrics_replicationbytesout_total", COUNTER,
        "Bytes of record batches sent to followers.",
        single(lambda broker: broker.replication_bytes_out),
        "kafka.server:type=BrokerTopicMetrics,name=ReplicationBytesOutPerSec",
    ),
)  # fmt: skip
"""The metrics of replication."""
