"""Transactions in every state on three Apache Kafka brokers, and a record of the brokers' log directories, so that
tests of the directories' adoption need no Java.

`python -m tests.peers.adoption_scene` starts Apache Kafka, plays the scene, kills the brokers, and records their log
directories anew, without Kafka's own metadata log.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.apache_kafka import ApacheKafka, apache_kafka_cluster, tool
from tests.peers.wire import Wire

RECORDED = Path(__file__).resolve().parents[1] / "unit/cli/fixtures/three_brokers_of_apache_kafka_4_3_1.tar.xz"
BROKERS = 3
FIND_COORDINATOR = 10
NEVER_MS = 2**31 - 2  # a time-out of 24 days
SETTINGS = {
    "transaction_state_log_num_partitions": "3",
    "transaction_state_log_replication_factor": "3",
    "transaction_state_log_min_isr": "2",
    "transaction_max_timeout_ms": str(2**31 - 1),
    "offsets_topic_num_partitions": "1",
    "offsets_topic_replication_factor": "3",
    "group_initial_rebalance_delay_ms": "0",
    "log_index_size_max_bytes": "4096",  # a killed broker leaves its indexes with all their reserved bytes
    # A killed broker stays the leader of its partition, so that markers wait for it. Apache Kafka drops the markers for
    # a partition without a leader, as if the partition had been deleted: the transaction hangs there.
    "broker_session_timeout_ms": "600000",
    "replica_lag_time_max_ms": "3000",
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": "600000",  # overdue transactions stay open
}
ORDERS, LONELY, GROUP = "orders", "lonely", "readers"
STATES = {
    "empty": "Empty",
    "committed": "CompleteCommit",
    "aborted": "CompleteAbort",
    "open": "Ongoing",
    "overdue": "Ongoing",
    "fenced": "Ongoing",
    "to-commit": "PrepareCommit",
    "to-abort": "PrepareAbort",
    "java": "CompleteCommit",
}
"""The state of each transactional id at the end of the scene. The ids of the two prepared transactions have a number
behind these names, because their coordinator must not be the broker that is killed."""

COMMITTED = ["committed-0", "committed-1", "java", "java"]
"""The values that readers of committed records see in ORDERS up to the first open transaction."""


class Scene:
    """The producers of a scene, by their transactional ids; `replaced` is the one whose id has a successor."""

    def __init__(self, nodes: list[ApacheKafka]) -> None:
        self.nodes = nodes
        self.bootstrap = ",".join(node.bootstrap for node in nodes)
        self.producers: dict[str, confluent_kafka.Producer] = {}
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        topics = [NewTopic(ORDERS, 1, BROKERS), NewTopic(LONELY, 1, replica_assignment=[[BROKERS - 1]])]
        for created in admin.create_topics(topics).values():
            created.result(30)
        self.begun("committed").commit_transaction(30)
        self.begun("aborted").abort_transaction(30)
        self.producers["empty"] = producer(self.bootstrap, "empty")
        self.producers["empty"].init_transactions(30)
        self.java()
        opened = self.begun("open", timeout_ms=NEVER_MS)
        reader = confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": GROUP})
        position = confluent_kafka.TopicPartition(ORDERS, 0, 2)
        opened.send_offsets_to_transaction([position], reader.consumer_group_metadata(), 30)
        reader.close()
        self.begun("overdue", timeout_ms=2000)
        self.replaced = self.begun("fenced", timeout_ms=NEVER_MS)
        self.begun("fenced", timeout_ms=NEVER_MS)
        to_commit, to_abort = (
            self.begun(self._coordinated_elsewhere(name), LONELY, NEVER_MS) for name in ("to-commit", "to-abort")
        )
        nodes[BROKERS - 1].kill()  # its partition of LONELY has no other replica: the markers have to wait
        for end in (to_commit.commit_transaction, to_abort.abort_transaction):
            with suppress(confluent_kafka.KafkaException):  # librdkafka waits until the transaction has ended
                end(15)

    def _coordinated_elsewhere(self, name: str) -> str:
        """A transactional id with this name whose coordinator isn't the broker that will be killed."""
        with Wire(self.nodes[0].bootstrap) as wire:
            for number in range(100):
                asked = {"key_type": 1, "coordinator_keys": [f"{name}-{number}"]}
                [coordinator] = wire.call(FIND_COORDINATOR, 4, asked).coordinators
                if not coordinator.error_code and coordinator.node_id != BROKERS - 1:
                    return f"{name}-{number}"
        raise AssertionError("one broker coordinates all transactional ids")

    def begun(self, transactional_id: str, topic: str = ORDERS, timeout_ms: int = 60_000) -> confluent_kafka.Producer:
        """A producer that has written two records in a transaction, which is open."""
        made = self.producers[transactional_id] = producer(self.bootstrap, transactional_id, timeout_ms)
        made.init_transactions(30)
        made.begin_transaction()
        for number in range(2):
            made.produce(topic, f"{transactional_id}-{number}", partition=0)
        assert made.flush(30) == 0
        return made

    def java(self) -> None:
        """Commits two records by the newer protocol of transactions, which librdkafka doesn't speak."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as payload:
            payload.write("java\n")
            payload.flush()
            tool(
                "producer-perf-test", "--topic", ORDERS, "--num-records", "2", "--throughput", "-1",
                "--payload-file", payload.name, "--transactional-id", "java", "--transaction-duration-ms", "60000",
                "--bootstrap-server", self.bootstrap,
            )  # fmt: skip

    def kill(self) -> None:
        """Kills the brokers that still run: without a majority of the controllers, none of them can stop cleanly."""
        for node in self.nodes[: BROKERS - 1]:
            node.kill()


def producer(bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": min(timeout_ms, 300_000),
            "log_level": 0,
            "linger.ms": 0,
        }
    )


@contextmanager
def played(folder: Path) -> Iterator[Scene]:
    """The scene on a cluster of Apache Kafka whose nodes have `folder`/node-N/data as their log directories. The
    cluster runs, except for one broker."""
    with apache_kafka_cluster(folder, BROKERS, heap="384M", **SETTINGS) as nodes:
        yield Scene(nodes)


def unpacked(folder: Path) -> list[Path]:
    """The recorded log directories of the three brokers."""
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    return [folder / f"node-{number}" / "data" for number in range(BROKERS)]


def record() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with played(Path(folder)) as scene:
            scene.kill()
        RECORDED.parent.mkdir(exist_ok=True)
        with tarfile.open(RECORDED, "w:xz") as archive:
            for number in range(BROKERS):
                archive.add(f"{folder}/node-{number}/data", f"node-{number}/data", filter=_worth_keeping)


def _worth_keeping(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "__cluster_metadata" in member.name:
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    record()
