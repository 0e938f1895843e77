"""A cluster under load, in which a scenario causes faults, and the assertions that must hold after every scenario."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.sightings import Sightings
from tests.crash.workload import TOPIC, Workload
from tests.peers.ottla_cluster import OttlaCluster, Paths, ottla_cluster

LONG = os.environ.get("OTTLA_CRASH") == "long"
MINUTES = pytest.mark.skipif(not LONG, reason="takes minutes: runs with OTTLA_CRASH=long")
PARTITIONS = 4
SESSION_S = 9 if LONG else 3
LAG_S = 10 if LONG else 3
ROUNDS = 8 if LONG else 1
SETTINGS = {
    "broker_session_timeout_ms": str(SESSION_S * 1000),
    "replica_lag_time_max_ms": str(LAG_S * 1000),
    "replica_socket_timeout_ms": "2000",
    "log_segment_bytes": "1048576",
    "offsets_topic_num_partitions": "8",
    "group_initial_rebalance_delay_ms": "0",
}


class Scene:
    """A scenario's cluster and workload, and the faults that it can cause."""

    def __init__(self, cluster: OttlaCluster, workload: Workload) -> None:
        self.cluster = cluster
        self.workload = workload
        self.sightings = Sightings(cluster)

    def leader(self, index: int = 0) -> int:
        """The leader of a partition of the topic. Waits until there is one."""
        self.cluster.wait("a leader", lambda: self.cluster.leader(TOPIC, index) >= 0)
        return self.cluster.leader(TOPIC, index)

    def follower(self, index: int = 0) -> int:
        """A follower of a partition of the topic."""
        return (self.leader(index) + 1) % len(self.cluster.brokers)

    def fault(self, kind: str) -> None:
        """Notes a fault, with the time."""
        self.sightings.faults[kind] += 1
        self.workload.history.notes.append((time.monotonic(), kind))

    def kill(self, number: int) -> None:
        """Kills a broker as kill -9 does."""
        self.fault(f"kill -9 of broker {number}")
        self.cluster.brokers[number].kill()

    def leader_dies(self, index: int = 0) -> None:
        """Sends SIGKILL to a leader, waits until another broker leads, and starts the killed one again."""
        victim = self.leader(index)
        self.kill(victim)
        self.moved(victim, index)
        self.goes_on()
        self.cluster.brokers[victim].start_again()
        self.in_sync()

    def goes_on(self, records: int = 100, seconds: float = 60.0) -> None:
        """Waits until `records` more records are acknowledged to librdkafka.

        A paused broker keeps its connections, and librdkafka waits 30 s (`request.timeout.ms`) for its answer before it
        looks for another leader. If the paused broker led all partitions, no record is acknowledged in these 30 s.
        """
        self.workload.wait_for_acknowledgements(records, seconds)

    def group_was_rebalanced(self) -> bool:
        """Whether the group's members got other assignments after their first ones."""
        return self.workload.count("assignments") > 4

    def in_sync(self, replicas: int = 3) -> None:
        """Waits until all replicas are in sync."""
        self.cluster.wait_until_in_sync(TOPIC, PARTITIONS, replicas)

    def moved(self, from_broker: int, index: int = 0, seconds: float = SESSION_S + 15.0) -> None:
        """Waits until another broker leads the partition."""
        self.cluster.wait(
            f"another broker than {from_broker} leads",
            lambda: self.cluster.leader(TOPIC, index) not in (-1, from_broker),
            seconds,
        )


@contextmanager
def scene(
    folder: Path,
    expected: Collection[str],
    *,
    size: int = 3,
    etcd_members: int = 0,
    proxied: Collection[Paths] = (),
    explained: Collection[str] = (),
    secured: bool = False,
    **settings: str,
) -> Iterator[Scene]:
    """A cluster with clients at work. At the end all faults are healed. Then it is asserted: no acknowledged record is
    lost, doubled or reordered; the group has committed all records; replicas are alike; each kind of event in
    `expected` happened; each error in the brokers' logs contains one of the texts `explained`; and no log has a
    password of a `secured` cluster."""
    with ottla_cluster(folder, size, etcd_members, proxied, secured, **{**SETTINGS, **settings}) as cluster:
        admin = AdminClient({**cluster.clients, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        cluster.wait_until_in_sync(TOPIC, PARTITIONS, 3)
        clients = cluster.clients
        workload = Workload(
            clients.pop("bootstrap.servers"), PARTITIONS, seed=time.time_ns(), security=clients, connect=cluster.connect
        )
        workload.start()
        here = Scene(cluster, workload)
        here.goes_on()
        try:
            yield here
            for broker in cluster.brokers:
                if broker.process.poll() is not None:
                    broker.start_again()
            cluster.heal()
            here.in_sync()
            here.goes_on(20)
        except BaseException:
            _keep(folder, here)
            raise
        wrong = workload.finish()
        if wrong:
            _keep(folder, here)
        summary = here.sightings.summary(workload)
        print(f"seen: {summary}; faults: {dict(here.sightings.faults)}; silence {workload.longest_silence_s:.2f} s")
        assert not wrong, "\n".join(wrong)
        if cluster.security is not None:
            assert not cluster.security.secrets_in("".join(broker.log_path.read_text() for broker in cluster.brokers))
        assert not (unexplained := here.sightings.unexplained(explained)), "\n".join(unexplained[:20])
        wait_until_alike(cluster)
        assert not (missing := [name for name in (*expected, "faults") if not summary[name]]), f"never seen: {missing}"
        cluster.stop()


def wait_until_alike(cluster: OttlaCluster, seconds: float = 20.0) -> None:
    """Waits until all replicas of each partition have the same segments with the same bytes, and no other broker has a
    copy."""
    for index in range(PARTITIONS):

        def alike(index: int = index) -> bool:
            replicas = cluster.partition(TOPIC, index).replica_nodes
            folders = [cluster.folder_of(number, TOPIC, index) for number in range(len(cluster.brokers))]
            copies = {None if folder is None else _segments(folder) for folder in (folders[each] for each in replicas)}
            others = [folder for number, folder in enumerate(folders) if number not in replicas and folder is not None]
            return len(copies) == 1 and None not in copies and not others

        cluster.wait(f"the replicas of {TOPIC}-{index} are alike", alike, seconds)


def _segments(folder: Path) -> tuple[tuple[str, bytes], ...]:
    return tuple((path.name, path.read_bytes()) for path in sorted(folder.glob("*.log")))


def _keep(folder: Path, here: Scene) -> None:
    """Writes the history as JSONL, for the analysis of a failure."""
    path = folder / "history.jsonl"
    path.write_text("".join(f"{line}\n" for line in here.workload.history.lines()))
    print(f"the history is in {path}; {here.workload.history.notes}")
