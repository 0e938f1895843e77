"""What does a record cost if three brokers have it before it is acknowledged?

Three brokers of each system, replication factor 3, min.insync.replicas 2, acks=all; librdkafka, records of 1 KiB
without compression, topics of 1 and of 6 partitions. Estimate: each byte is received once and sent twice by the leader,
received twice by the followers, and written three times. At 1 GB/s for each of these steps on one core, 1 GB costs
about 8 CPU seconds in all. Two cores, which the client shares, pass at most some 200 MB/s.
"""

from __future__ import annotations

import itertools

from bench.librdkafka import end_offsets, payloads, produce
from bench.pair import SETTINGS, Peer, Plan, create_topic, delete_topic, folder, measured
from bench.table import Row, at_least, at_most
from tests.peers.apache_kafka import AS_SHIPPED, apache_kafka_cluster
from tests.peers.ottla_cluster import ottla_cluster

RECORD_BYTES = 1024
BYTES = 1_000_000_000
PARTITIONS = (1, 6)
REPLICATED = SETTINGS | {
    "offsets_topic_replication_factor": "3",
    "transaction_state_log_replication_factor": "3",
    "min_insync_replicas": "2",
}


def run(plan: Plan) -> list[Row]:
    """Rows for each number of partitions: records per second, and CPU seconds of all brokers per GB. All six brokers
    run all the time."""
    with (
        folder() as root,
        apache_kafka_cluster(root / "kafka", 3, options=AS_SHIPPED, **REPLICATED) as nodes,
        ottla_cluster(root / "ottla", 3, **REPLICATED) as ours,
    ):
        clusters: dict[str, list[Peer]] = {"ottla": list(ours.brokers), "kafka": list(nodes)}
        return [row for partitions in PARTITIONS for row in _case(clusters, plan, partitions)]


def _case(clusters: dict[str, list[Peer]], plan: Plan, partitions: int) -> list[Row]:
    name = f"produce 1 KiB, 3 replicas, acks=all, partitions: {partitions}"
    wall = Row(name, "records/s", at_least(1.5))
    per_byte = Row(name, "CPU s of all brokers/GB", at_most(0.5))
    values = payloads(RECORD_BYTES)
    count = plan.scaled(BYTES) // RECORD_BYTES
    number = itertools.count()
    for measuring in (False, *[True] * plan.rounds):
        for which, brokers in clusters.items():
            topic = f"replicated-{partitions}-{next(number)}"
            bootstrap = ",".join(broker.bootstrap for broker in brokers)
            create_topic(brokers[0].bootstrap, topic, partitions, replicas=3)
            with measured(*brokers) as spent:
                produce(bootstrap, topic, count, values, "all", "none")
            written = end_offsets(bootstrap, topic, partitions)
            delete_topic(brokers[0].bootstrap, topic)
            if written != count:
                raise AssertionError(f"{which}: the topic has {written} of {count} acknowledged records")
            if measuring:
                wall.add(which, count / spent.wall, client_bound=spent.client_bound)
                per_byte.add(which, spent.broker_cpu / (count * RECORD_BYTES / 1e9))
    return [wall, per_byte]
