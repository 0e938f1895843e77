"""Each metric of Kafka that dashboards and alerts use is in the catalogue under its name, or in NOT_THERE with a
reason."""

import re

import pytest

from ottla.broker.metrics.catalogue import METRICS, NOT_THERE

# The metrics that dashboards and alerts for Kafka use: group, type and names.
WATCHED = """
kafka.server BrokerTopicMetrics MessagesInPerSec BytesInPerSec
kafka.server BrokerTopicMetrics BytesOutPerSec BytesRejectedPerSec ReplicationBytesInPerSec
kafka.server BrokerTopicMetrics ReplicationBytesOutPerSec TotalProduceRequestsPerSec TotalFetchRequestsPerSec
kafka.server BrokerTopicMetrics FailedProduceRequestsPerSec FailedFetchRequestsPerSec
kafka.server ReplicaManager UnderReplicatedPartitions UnderMinIsrPartitionCount
kafka.server ReplicaManager AtMinIsrPartitionCount
kafka.server ReplicaManager OfflineReplicaCount
kafka.server ReplicaManager PartitionCount LeaderCount IsrShrinksPerSec
kafka.server ReplicaManager IsrExpandsPerSec
kafka.server ReplicaManager ReassigningPartitions ProducerIdCount PartitionsWithLateTransactionsCount
kafka.server AddPartitionsToTxnManager VerificationFailureRate
kafka.server ReplicaFetcherManager MaxLag MinFetchRate
kafka.server FetcherLagMetrics ConsumerLag
kafka.server DelayedOperationPurgatory PurgatorySize
kafka.server KafkaRequestHandlerPool RequestHandlerAvgIdlePercent
kafka.network RequestMetrics RequestsPerSec ErrorsPerSec TotalTimeMs RequestQueueTimeMs LocalTimeMs RemoteTimeMs
kafka.network RequestMetrics ResponseQueueTimeMs ResponseSendTimeMs
kafka.network RequestChannel RequestQueueSize
kafka.network SocketServer NetworkProcessorAvgIdlePercent
kafka.controller KafkaController ActiveControllerCount OfflinePartitionsCount PreferredReplicaImbalanceCount
kafka.controller KafkaController ActiveBrokerCount FencedBrokerCount
kafka.controller ControllerStats UncleanLeaderElectionsPerSec LeaderElectionRateAndTimeMs
kafka.log Log Size LogEndOffset LogStartOffset
kafka.log LogFlushStats LogFlushRateAndTimeMs
kafka.log LogManager OfflineLogDirectoryCount
kafka.server Produce|Fetch byte-rate
kafka.server Produce|Fetch|Request|ControllerMutation throttle-time
kafka.server Request request-time exempt-request-time
kafka.server ControllerMutation tokens mutation-rate
"""
MBEANS = [
    (group, kind, name)
    for line in WATCHED.strip().splitlines()
    for group, kind, *names in [line.split()]
    for name in names
]


@pytest.mark.parametrize(("group", "kind", "name"), MBEANS)
def test_what_people_watch_is_here_or_explained(group: str, kind: str, name: str) -> None:
    pattern = re.compile(rf"{re.escape(group)}:type={re.escape(kind)}(,.*)?,name={re.escape(name)}")
    exported = [metric.name for metric in METRICS if pattern.fullmatch(metric.mbean)]
    explained = [why for mbean, why in NOT_THERE if pattern.fullmatch(mbean)]
    assert len(exported) + len(explained) == 1


# Customary names without an MBean, from the Python client of Prometheus and from Kafka's exporters.
OF_OTHERS = ("process_", "python_", "kafka_cluster_partition_highwatermark")


def test_names_are_unique_and_proper() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.doc.endswith(".")
        assert metric.mbean or metric.name.startswith(("ottla_", *OF_OTHERS)), metric.name
