"""Transactions of real clients while brokers are killed, paused, cut off and relieved of their leaderships: the
anomalies that Jepsen looks for in transactions don't happen.

Of the long form (`make crash`), this run goes on until `FAILOVERS` failovers have happened, or `LONG_S` have passed.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.failovers import by_topic, failovers, leader_changes
from tests.crash.faults import LONG, SETTINGS
from tests.crash.storm import Storm
from tests.crash.transactional_workload import PARTITIONS, TransactionalWorkload
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster
from tests.peers.wire import Closed, Wire
from tests.simulation.copied import judged_inputs

FAILOVERS = 500
LONG_S = 1500
SHORT_S = 10
LOOK_S = 5
SESSION_S = 3  # so that pauses and cut paths cause failovers, too
LASTING_S = (0.3, 4.5)
TRANSACTION_STATE = "__transaction_state"
ELECT_LEADERS, INCREMENTAL_ALTER_CONFIGS = 43, 44
BROKER, SET, PREFERRED = 4, 0, 0

pytestmark = pytest.mark.timeout(LONG_S + 900 if LONG else 600)


def logs(cluster: OttlaCluster) -> dict[int, str]:
    """Each broker's log."""
    return {number: broker.log_path.read_text(errors="replace") for number, broker in enumerate(cluster.brokers)}


class Moves:
    """The faults of this scenario beside those of every storm: leaderships that move, and clients that get no answers.

    Requests of clients are never held back: librdkafka's protocol has one epoch for many transactions, and a request
    that is delayed beyond its transaction's end may hit the next one, by Kafka's design.
    """

    def __init__(self, cluster: OttlaCluster, dice: Random, written_to: Path) -> None:
        self.faults: Counter[str] = Counter()
        others = [self._kill, self._drain, self._drain, self._drain, self._elect, self._elect, self._cut_clients]
        self.storm = Storm(cluster, dice, self.note, others, LASTING_S)
        self._cluster = cluster
        self._dice = dice
        self._written_to = written_to

    def note(self, kind: str) -> None:
        """Notes a fault, with the time."""
        self.faults[kind] += 1
        with open(self._written_to, "a") as file:
            file.write(f"{time.monotonic():.3f} {kind}\n")

    def _kill(self) -> None:
        """Kills a broker: as often again as every storm does."""
        self.storm.kill()

    def _drain(self) -> None:
        """All leaderships of a broker move to other brokers."""
        if self.drain(str(self._dice.randrange(len(self._cluster.brokers)))):
            self.storm.for_a_while("leaderships moved from a broker", lambda: self.drain(""))

    def _elect(self) -> None:
        """The first replica of each partition becomes its leader."""
        message = {"election_type": PREFERRED, "topic_partitions": None, "timeout_ms": 2000}
        if self._asked(ELECT_LEADERS, 2, message):
            self.note("preferred leaders elected")

    def _cut_clients(self) -> None:
        """A broker's answers don't arrive at its clients."""
        route = self._dice.choice(self._cluster.to_clients)
        route.cut("back")

        def mend() -> None:
            route.reset()
            route.heal()

        self.storm.for_a_while("answers to clients cut", mend)

    def drain(self, brokers: str) -> bool:
        """Drains these brokers of leaderships, and no other brokers. Returns whether a broker has taken that over."""
        config = {"name": "ottla.brokers.drained", "config_operation": SET, "value": brokers}
        message = {
            "resources": [{"resource_type": BROKER, "resource_name": "", "configs": [config]}],
            "validate_only": False,
        }
        return self._asked(INCREMENTAL_ALTER_CONFIGS, 1, message)

    def _asked(self, api_key: int, version: int, message: dict[str, Any]) -> bool:
        """Sends a request to one broker after the other until one answers. Returns whether one has answered."""
        for broker in self._cluster.brokers:
            if broker.running:
                try:
                    with Wire(broker.bootstrap, 3.0) as wire:
                        wire.call(api_key, version, message)
                except (OSError, Closed):
                    continue
                return True
        return False


@pytest.mark.parametrize("secured", [False, True], ids=["PLAINTEXT", "SASL_SSL"])
def test_no_anomaly_of_transactions_survives_failovers(tmp_path: Path, secured: bool) -> None:
    seed = SystemRandom().randrange(1 << 32)
    (tmp_path / "seed").write_text(f"{seed}\n")
    print(f"seed {seed}")
    settings = {
        **SETTINGS,
        **{name: str(SESSION_S * 1000) for name in ("broker_session_timeout_ms", "replica_lag_time_max_ms")},
        "transaction_state_log_num_partitions": "4",
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": "1000",
    }
    with ottla_cluster(tmp_path, 3, 1, ["brokers", "clients", "etcd"], secured, **settings) as cluster:
        cluster.wait("the topics exist", lambda: created(cluster), 120)
        for topic, count in PARTITIONS.items():
            cluster.wait_until_in_sync(topic, count, 3)
        workload = TransactionalWorkload(tmp_path, cluster.clients, seed=seed, connect=cluster.connect)
        moves = Moves(cluster, Random(seed), tmp_path / "faults")
        workload.start()
        try:
            workload.wait_for_commits(2, 120)
            began = time.monotonic()
            with closing(moves.storm) as storm:
                while not over(cluster, time.monotonic() - began):
                    until = time.monotonic() + LOOK_S
                    while time.monotonic() < until:
                        storm.blow()
                storm.settle()
            cluster.wait("no broker is drained", lambda: moves.drain(""))
            workload.wait_for_commits(3, 120)
            workload.calm()
            wrong = workload.finish()
        except BaseException:
            workload.close()
            keep(tmp_path, workload, seed)
            raise
        took_s = time.monotonic() - began
        changes = leader_changes(logs(cluster))
        topics = by_topic(changes)
        print(
            f"{failovers(changes)} failovers in {took_s:.0f} s; leader changes: {topics}; faults: {dict(moves.faults)};"
            f" seen: {workload.summary()}"
        )
        if wrong:
            keep(tmp_path, workload, seed)
        found = "\n".join(wrong)
        assert not wrong, f"seed {seed}; history, journals of clients and logs of brokers are in {tmp_path}:\n{found}"
        assert judged_inputs(workload.events), "the copies of no input have proven anything"
        assert any(topics.get(topic) for topic in PARTITIONS), f"no partition of a topic changed its leader: {topics}"
        assert topics.get(TRANSACTION_STATE), f"no coordinator of transactions changed: {topics}"
        cluster.stop()


def created(cluster: OttlaCluster) -> bool:
    """Creates the topics. Returns whether all of them exist: on a busy machine a broker may not be registered yet."""
    admin = AdminClient({**cluster.clients, "log_level": 0})
    topics = [NewTopic(name, count, 3) for name, count in PARTITIONS.items()]
    for creation in admin.create_topics(topics).values():
        try:
            creation.result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                return False
    return True


def over(cluster: OttlaCluster, seconds: float) -> bool:
    """Whether the run is long enough."""
    if not LONG:
        return seconds > SHORT_S
    return seconds > LONG_S or failovers(leader_changes(logs(cluster))) >= FAILOVERS


def keep(folder: Path, workload: TransactionalWorkload, seed: int) -> None:
    """Writes the history as JSONL, and the faults, for the analysis of a failure."""
    events = workload.events or workload.history.events
    (folder / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "upset").write_text("".join(f"{at:.3f} {what}\n" for at, what in workload.history.notes))
    print(f"seed {seed}: the history and the faults are in {folder}")
