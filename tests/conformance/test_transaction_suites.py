"""The tests that the developers of franz-go, sarama, librdkafka and aiokafka wrote for transactions.

Those of franz-go and sarama need Go, those of librdkafka Cargo, CMake and a C++ compiler; their sources are fetched
once. Those of aiokafka need a checkout of its repository. With OTTLA_CRASH=long franz-go's copy more records, and those
of librdkafka run at all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conformance.conftest import SETTINGS, Target
from tests.crash.faults import LONG, MINUTES
from tests.peers import aiokafka_suite, franz_go_suite, librdkafka_suite, sarama_suite
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster

RECORDS = 200_000 if LONG else 5_000
PARTITIONS = 31 if LONG else 5  # at most, of each topic
RESET_EVERY_S = 3.0  # each broker; franz-go reports a group that it cannot join for some resets in a row as an error
BROKERS = pytest.mark.parametrize("brokers", [1, 3], ids=["one-broker", "three-brokers"])


def franz_go(bootstrap: str, factor: int) -> None:
    """Runs TestTxnEtl of franz-go: six chains of three groups each copy a topic, with other balancers, as members go.
    No record may be missing, come twice, or come in another order. Three of the chains need consumer groups of KIP-848,
    and are skipped where brokers don't have this protocol."""
    outcomes, output = franz_go_suite.run(bootstrap, factor, "^TestTxnEtl$", RECORDS, PARTITIONS, 1200 if LONG else 240)
    assert "FAIL" not in outcomes.values(), output[-12_000:]
    passed = [name for name, outcome in outcomes.items() if name.startswith("TestTxnEtl/") and outcome == "PASS"]
    assert len(passed) >= 3, output[-4000:]


@pytest.mark.timeout(1500 if LONG else 300)
def test_franz_go(target: Target) -> None:
    franz_go(target.bootstrap, target.replication_factor)


@contextmanager
def resets(cluster: OttlaCluster) -> Iterator[None]:
    """Resets all connections of clients to one broker after another, again and again, to each every RESET_EVERY_S."""
    over = threading.Event()

    def reset() -> None:
        while not over.is_set():
            for route in cluster.to_clients:
                if over.wait(RESET_EVERY_S / len(cluster.to_clients)):
                    return
                route.reset()

    thread = threading.Thread(target=reset)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(1500)
@MINUTES
@BROKERS
def test_franz_go_whose_connections_are_reset(tmp_path_factory: pytest.TempPathFactory, brokers: int) -> None:
    with (
        ottla_cluster(tmp_path_factory.mktemp("resets"), brokers, 0, ["clients"], **SETTINGS) as cluster,
        resets(cluster),
    ):
        franz_go(",".join(route.endpoint for route in cluster.to_clients), brokers)


@pytest.mark.timeout(360)
@MINUTES
def test_sarama(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The tests create topics with three replicas, and one of them stops the coordinator of its transaction."""
    with ottla_cluster(tmp_path_factory.mktemp("sarama"), 3, **SETTINGS) as cluster:
        outcomes, output = sarama_suite.run(cluster)
    assert set(outcomes.values()) == {"PASS"}, output[-8000:]
    assert len(outcomes) == 12, outcomes


@pytest.mark.timeout(1800)
@MINUTES
def test_librdkafka(target: Target) -> None:
    """librdkafka's tests of idempotence (0090), of transactions (0103), and of consumers of transactions."""
    too_few = librdkafka_suite.NEED_THREE_BROKERS if target.replication_factor < 3 else ()
    numbers = [number for number in librdkafka_suite.TRANSACTIONS if number not in too_few]
    outcomes = librdkafka_suite.run(target.bootstrap, numbers)
    assert {name[:4] for name in outcomes} == set(numbers)
    assert [outcome for outcome in outcomes.values() if outcome not in ("PASSED", "SKIPPED")] == []


@pytest.mark.timeout(900)
@MINUTES
@BROKERS
def test_aiokafka(tmp_path_factory: pytest.TempPathFactory, brokers: int) -> None:
    """The tests count on topics of two partitions."""
    source = aiokafka_suite.checkout()
    with ottla_cluster(tmp_path_factory.mktemp("aiokafka"), brokers, **SETTINGS | {"num_partitions": "2"}) as cluster:
        outcomes = aiokafka_suite.run(cluster.bootstrap, source)
    assert len(outcomes) > 15
    assert [f"{name}: {outcome}" for name, outcome in outcomes.items() if outcome not in ("passed", "skipped")] == []
