"""Clients open as many connections as they can: the broker keeps enough file descriptors for its logs."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import kafka

from tests.peers.ottla_broker import OttlaBroker

LIMIT = 256
PARTITIONS = 30


class LimitedBroker(OttlaBroker):
    """A broker that may have at most LIMIT open files."""

    def _start(self) -> subprocess.Popen[bytes]:
        if self.command[0] != "sh":
            self.command = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *self.command]
        return super()._start()


def test_connections_leave_descriptors_to_the_logs(tmp_path: Path) -> None:
    broker = LimitedBroker(tmp_path)
    host, _, port = broker.bootstrap.partition(":")
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({"before": {"num_partitions": 1, "replication_factor": 1}})
    producer.send("before", b"").get(20)  # both are connected now
    crowd = [socket.create_connection((host, int(port))) for _ in range(2 * LIMIT)]
    try:
        time.sleep(0.5)
        admin.create_topics({"t": {"num_partitions": PARTITIONS, "replication_factor": 1}})
        sent = [producer.send("t", b"%d" % index, partition=index % PARTITIONS) for index in range(3 * PARTITIONS)]
        assert [future.get(20).offset for future in sent] == [index // PARTITIONS for index in range(3 * PARTITIONS)]
    finally:
        for connection in crowd:
            connection.close()
        producer.close()
        admin.close()
    broker.stop()
    text = broker.log_path.read_text()
    assert "has failed" not in text
    assert "refused" in text
