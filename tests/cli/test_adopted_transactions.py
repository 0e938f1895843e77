"""Three Ottla brokers take over the log directories of three Apache Kafka brokers, with transactions in every state.

The directories are recorded (`tests/peers/adoption_scene.py`), so the producers are imitated by requests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.transaction.metadata import Transaction
from ottla.cli.adopted_ids import transactional_ids
from ottla.protocol.errors import ErrorCode
from tests.cli.test_processes import run
from tests.peers.adoption_scene import BROKERS, COMMITTED, FIND_COORDINATOR, GROUP, LONELY, ORDERS, producer, unpacked
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire

INIT_PRODUCER_ID, END = 22, 26
TIMEOUT_S = 60.0
Environment = dict[str, str]


class Adopted:
    """The brokers of Ottla, and the transactional ids as Kafka left them."""

    def __init__(self, folder: Path, environment: Environment) -> None:
        self.environment = environment
        self.directories = unpacked(folder)
        self.ids: dict[str, Transaction] = {}
        for partition in sorted(self.directories[0].glob("__transaction_state-*")):
            self.ids |= transactional_ids(str(partition))
        store = folder / "metadata.sqlite"
        done = run(environment, "adopt", *map(str, self.directories), "--store", str(store))
        assert done.returncode == 0, done.stderr
        assert "Partitions get leaders when all of these brokers run: 0, 1, 2." in done.stderr

        def started(number: int) -> OttlaBroker:
            return OttlaBroker(
                folder / f"broker-{number}",
                node_id=str(number),
                log_dirs=str(self.directories[number]),
                ottla_metadata_store=f"embedded:{store}",
                transaction_abort_timed_out_transaction_cleanup_interval_ms="500",
                group_initial_rebalance_delay_ms="0",
            )

        with ThreadPoolExecutor(BROKERS) as pool:
            self.brokers = list(pool.map(started, range(BROKERS)))
        self.bootstrap = self.brokers[0].bootstrap

    def named(self, name: str) -> str:
        """The transactional id that begins with `name`."""
        return next(each for each in self.ids if each.startswith(name))

    def ottla(self, *arguments: str) -> Any:
        result = run(self.environment, *arguments, "--json", "-b", self.bootstrap)
        assert result.returncode == 0, result.stderr
        return (
            [json.loads(line) for line in result.stdout.splitlines()]
            if arguments[0] == "consume"
            else json.loads(result.stdout)
        )

    def committed(self, topic: str) -> list[str]:
        """The values that a reader of committed records gets now."""
        rows = self.ottla("consume", topic, "--from-beginning", "-e", "--isolation", "read_committed")
        return [row["value"] for row in rows]

    def states(self) -> dict[str, str]:
        return {row["transactional_id"]: row["state"] for row in self.ottla("transactions", "list")}

    def wait(self, what: Callable[[], Any], wanted: Any) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while (found := what()) != wanted:
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    def end(self, transactional_id: str, epoch: int, *, commit: bool) -> int:
        """Ends a transaction as librdkafka does. Returns the error code."""
        with Wire(self.bootstrap) as wire:
            asked = {"key_type": 1, "coordinator_keys": [transactional_id]}
            [found] = wire.call(FIND_COORDINATOR, 4, asked).coordinators
        message = {
            "transactional_id": transactional_id,
            "producer_id": self.ids[transactional_id].producer_id,
            "producer_epoch": epoch,
            "committed": commit,
        }
        with Wire(f"{found.host}:{found.port}") as wire:
            return int(wire.call(END, 2, message).error_code)


@pytest.fixture
def adopted(tmp_path: Path, environment: Environment) -> Iterator[Adopted]:
    cluster = Adopted(tmp_path, environment)
    yield cluster
    for broker in cluster.brokers:
        broker.kill()


def test_transactions_of_kafka_go_on(adopted: Adopted) -> None:
    to_commit, to_abort = adopted.named("to-commit"), adopted.named("to-abort")
    adopted.wait(
        adopted.states,
        {
            "empty": "Empty",
            "committed": "CompleteCommit",
            "aborted": "CompleteAbort",
            "java": "CompleteCommit",
            "open": "Ongoing",
            "overdue": "CompleteAbort",
            "fenced": "Ongoing",
            to_commit: "CompleteCommit",
            to_abort: "CompleteAbort",
        },
    )
    assert adopted.committed(LONELY) == [f"{to_commit}-0", f"{to_commit}-1"], "decided ones got their markers"
    assert adopted.committed(ORDERS) == COMMITTED, "the rest is behind the first open transaction"

    # A producer ends the transaction that it began on Kafka, with the offsets of a group.
    assert adopted.end("open", adopted.ids["open"].epoch, commit=True) == ErrorCode.none
    adopted.wait(lambda: adopted.committed(ORDERS), [*COMMITTED, "open-0", "open-1"])
    [group] = adopted.ottla("groups", "describe", GROUP)
    assert [each["committed_offset"] for each in group["partitions"]] == [2]

    # A producer that Kafka fenced stays fenced. A new one of its id aborts the open transaction, and goes on.
    fenced = adopted.ids["fenced"].epoch
    assert adopted.end("fenced", fenced - 1, commit=True) == ErrorCode.producer_fenced
    successor = producer(adopted.bootstrap, "fenced")
    successor.init_transactions(30)
    assert adopted.end("fenced", fenced, commit=True) == ErrorCode.producer_fenced
    successor.begin_transaction()
    successor.produce(ORDERS, "goes on", partition=0)
    successor.commit_transaction(30)
    adopted.wait(lambda: adopted.committed(ORDERS), [*COMMITTED, "open-0", "open-1", "goes on"])

    with Wire(adopted.bootstrap) as wire:
        answer = wire.call(INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": 60_000})
    assert answer.producer_id >= 1 << 40, "Kafka's controller may have handed out any lower id"
    with ThreadPoolExecutor(BROKERS) as pool:
        list(pool.map(OttlaBroker.stop, adopted.brokers))
    sound = run(adopted.environment, "log", "verify", *map(str, adopted.directories))
    assert sound.returncode == 0, sound.stdout
