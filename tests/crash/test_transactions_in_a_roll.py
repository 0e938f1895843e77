"""Transactions that are open while each broker restarts in turn, as another commit of Ottla and back again.

The older commit is the one before HEAD, or OTTLA_PREVIOUS. If that commit doesn't know transactions, the brokers
restart as this commit.
"""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.faults import SETTINGS
from tests.crash.test_previous_commit import started_from
from tests.peers.ottla_cluster import ottla_cluster
from tests.peers.previous import previous_sources
from tests.peers.transacting import TransactingProducer, committed_offset, committed_values

pytestmark = pytest.mark.timeout(400)

TOPIC, GROUP = "written", "reading"
PARTITIONS = 2
INTERNAL = {"__transaction_state": 4, "__consumer_offsets": 4}


def test_open_transactions_of_both_protocols_outlast_a_roll_to_the_previous_commit_and_back(tmp_path: Path) -> None:
    previous = previous_sources(tmp_path / "previous", "ottla", "broker", "controller")
    knows = "transaction.version" in (previous / "ottla" / "metadata" / "features.py").read_text()
    settings = SETTINGS | {"offsets_topic_num_partitions": "4", "transaction_state_log_num_partitions": "4"}
    with ottla_cluster(tmp_path, 3, 0, (), **settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        newer = TransactingProducer([broker.bootstrap for broker in cluster.brokers], "newer")
        newer.init()
        older = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "older"})
        older.init_transactions(60)
        newest = [broker.command for broker in cluster.brokers]
        other = [started_from(broker, previous) for broker in cluster.brokers] if knows else newest
        committed: set[str] = set()
        offset = -1
        steps = [(broker, command) for commands in (other, newest) for broker, command in enumerate(commands)]
        for step, (number, command) in enumerate(steps):
            values = {f"{name}-{step}-{at}" for name in ("V1", "V2") for at in range(4)}
            older.begin_transaction()
            _write(newer, older, step, 0)
            newer.commit_offset(GROUP, TOPIC, 0, step)
            broker = cluster.brokers[number]
            broker.stop()
            broker.command = command
            broker.start_again()
            _write(newer, older, step, 2)
            if step % 3 == 1:
                newer.end(False)
                older.abort_transaction(60)
            else:
                newer.end(True)
                older.commit_transaction(60)
                committed |= values
                offset = step
            cluster.wait_until_in_sync(TOPIC, PARTITIONS, 3)
            for topic, count in INTERNAL.items():
                cluster.wait_until_in_sync(topic, count, 3)
        assert committed_values(cluster.bootstrap, TOPIC, PARTITIONS) == sorted(committed)
        assert committed_offset(cluster.bootstrap, GROUP, TOPIC, 0) == offset
        cluster.stop()


def _write(newer: TransactingProducer, older: confluent_kafka.Producer, step: int, first: int) -> None:
    """Writes a record to each partition in both transactions."""
    for index in range(PARTITIONS):
        newer.write(TOPIC, f"V2-{step}-{first + index}", index)
        older.produce(TOPIC, f"V1-{step}-{first + index}".encode(), partition=index)
    assert older.flush(60) == 0
