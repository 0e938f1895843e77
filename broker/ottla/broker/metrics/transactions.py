"""Metrics of transactions: of the partitions that this broker leads, and of the ids that it coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from time import time
from typing import Protocol

from ottla.broker import ports
from ottla.broker.exposition import Sample
from ottla.broker.metrics.metric import COUNTER, GAUGE, NO_LABELS, Metric, single

LATE_MS = 300_000  # beyond the longest time-out that a transaction may have; as in Kafka


class Source(ports.WithConfig, ports.WithPartitions, ports.WithTransactions, ports.WithVerifier, Protocol):
    """The parts of a broker that the metrics of transactions read."""


def _late(broker: Source) -> Iterator[Sample]:
    """How many partitions that this broker leads have a late transaction. Source: Kafka's
    ProducerStateManager.hasLateTransaction."""
    oldest_ms = time() * 1000 - broker.config.get_int("transaction.max.timeout.ms") - LATE_MS
    late = 0
    for partition in broker.partitions:
        began_ms = partition.log.producers.oldest_transaction_ms() if partition.leads else None
        late += began_ms is not None and 0 < began_ms < oldest_ms
    yield NO_LABELS, late


def _ids_by_state(broker: Source) -> Iterator[Sample]:
    for state, count in broker.transactions.counts().items():
        yield (("state", state),), count


def _partitions_by_state(broker: Source) -> Iterator[Sample]:
    for state, count in broker.transactions.partition_states().items():
        yield (("state", state),), count


METRICS: tuple[Metric[Source], ...] = (
    Metric(
        "kafka_server_replicamanager_partitionswithlatetransactionscount", GAUGE,
        "Partitions led here with a transaction that is open for five minutes longer than `transaction.max.timeout.ms` "
        "allows. No coordinator ends such a transaction: `ottla transactions find-hanging` finds it.",
        _late, "kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount",
    ),
    Metric(
        "ottla_transaction_coordinator_partitions", GAUGE,
        "Partitions of `__transaction_state` led here, by state. A failed partition is loaded again after a while.",
        _partitions_by_state, "", ("state",),
    ),
    Metric(
        "ottla_transaction_coordinator_transactional_ids", GAUGE,
        "Transactional ids coordinated here, by the state of their transaction: open, ending (its markers are being"
        " written), or idle (there is none).",
        _ids_by_state, "", ("state",),
    ),
    Metric(
        "ottla_transaction_coordinator_time_outs_total", COUNTER,
        "Transactions that the coordinator aborted because they took longer than their time-outs.",
        single(lambda broker: broker.transactions.counters.time_outs),
    ),
    Metric(
        "ottla_transaction_coordinator_expirations_total", COUNTER,
        "Transactional ids that expired, because nobody used them for `transactional.id.expiration.ms`.",
        single(lambda broker: broker.transactions.counters.expirations),
    ),
    Metric(
        "ottla_transaction_coordinator_markers_waiting", GAUGE,
        "Markers that wait until other brokers have answered for earlier markers.",
        single(lambda broker: broker.transactions.markers_waiting),
    ),
    Metric(
        "ottla_transaction_coordinator_unreadable_records_total", COUNTER,
        "Records of `__transaction_state` that a load left out as unreadable; the broker's log names them.",
        single(lambda broker: broker.transactions.counters.unreadable_records),
    ),
    Metric(
        "ottla_transaction_coordinator_errors_total", COUNTER,
        "Unforeseen errors of the coordinator, which are bugs of Ottla. The broker's log has each of them.",
        single(lambda broker: broker.transactions.counters.errors),
    ),
    Metric(
        "ottla_transaction_verifications_total", COUNTER,
        "How often a partition's leader here asked a coordinator to confirm a transaction before its first batch.",
        single(lambda broker: broker.verifier.asked),
    ),
    Metric(
        "kafka_server_addpartitionstotxnmanager_verificationfailure_total", COUNTER,
        "How often a coordinator refused to confirm a transaction before its first batch, or didn't answer in time.",
        single(lambda broker: broker.verifier.failed),
        "kafka.server:type=AddPartitionsToTxnManager,name=VerificationFailureRate",
    ),
)  # fmt: skip
"""The metrics of transactions."""
