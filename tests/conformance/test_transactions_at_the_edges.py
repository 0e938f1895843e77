"""Transactions of unusual size, over topics that change meanwhile, and requests that only a faulty or hostile client
sends. OTTLA_TEST_BOOTSTRAP runs these tests against another broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from ottla.protocol.batches import CONTROL, TRANSACTIONAL
from ottla.protocol.errors import ErrorCode
from ottla.protocol.markers import Marker, marker_batch
from tests.fuzz.made_batches import record, seal
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.transacting import ADD_PARTITIONS, V1, V2, TransactingProducer, committed_values
from tests.peers.wire import Wire

WRITE_TXN_MARKERS, DESCRIBE_TRANSACTIONS = 27, 65

pytestmark = pytest.mark.parametrize("protocol", [V1, V2])


@pytest.fixture
def begun(bootstrap: str, unique: Callable[[str], str]) -> Callable[[int], TransactingProducer]:
    """Makes a producer that has begun."""

    def make(protocol: int) -> TransactingProducer:
        producer = TransactingProducer([bootstrap], unique("edges"), protocol)
        producer.init()
        return producer

    return make


@pytest.fixture
def topic(bootstrap: str, unique: Callable[[str], str]) -> str:
    """A topic of two partitions."""
    return created(bootstrap, unique("edges"), 2)


def created(bootstrap: str, name: str, partitions: int) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
    return name


Begun = Callable[[int], TransactingProducer]


@pytest.fixture(scope="module")
def wide(ottla: OttlaBroker | None, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with a topic `wide` of 1,000 partitions. No other test should have to bear with that
    topic."""
    own = None if ottla is None else OttlaBroker(tmp_path_factory.mktemp("wide"))
    address = bootstrap if own is None else own.bootstrap
    created(address, "wide", 1000)
    yield address
    if own is not None:
        own.kill()


def test_a_transaction_of_1_000_partitions(wide: str, protocol: int) -> None:
    producer = TransactingProducer([wide], f"wide {protocol}", protocol)
    producer.init()
    producer.write("wide", f"aborted {protocol}", *range(1000))
    producer.end(False)
    producer.write("wide", f"committed {protocol}", *range(1000))
    producer.end(True)
    producer.init()  # the producer begins anew when all markers are written
    found = Counter(committed_values(wide, "wide", 1000))
    assert found[f"committed {protocol}"] == 1000
    assert not found[f"aborted {protocol}"]


def test_a_topic_that_is_deleted_and_one_that_grows_meanwhile(
    bootstrap: str, begun: Begun, topic: str, unique: Callable[[str], str], protocol: int
) -> None:
    deleted = created(bootstrap, unique("deleted"), 2)
    producer = begun(protocol)
    producer.write(topic, "first", 0)
    producer.write(deleted, "gone", 0, 1)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([deleted])[deleted].result(30)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    producer.write(topic, "second", 2)
    producer.end(True)
    producer.write(topic, "third", 1)
    producer.end(True)
    assert committed_values(bootstrap, topic, 3) == ["first", "second", "third"]
    created(bootstrap, deleted, 2)
    producer.write(deleted, "new", 0)
    producer.end(True)
    assert committed_values(bootstrap, deleted, 2) == ["new"]


def test_two_producers_in_one_request(bootstrap: str, begun: Begun, topic: str, protocol: int) -> None:
    one, other = begun(protocol), begun(protocol)
    one.write(topic, "before", 0)
    batches = [{"index": index, "records": each.batch(topic, index, "x")} for index, each in enumerate((one, other))]
    assert codes(one.produce(topic, batches)) == [ErrorCode.invalid_producer_id_mapping] * 2
    one.write(topic, "after", 0)
    one.end(True)
    assert committed_values(bootstrap, topic, 2) == ["after", "before"]


def test_a_transaction_that_names_unknown_topics(
    bootstrap: str, begun: Begun, topic: str, unique: Callable[[str], str], protocol: int
) -> None:
    unknown = unique("unknown")
    producer = begun(protocol)
    producer.write(topic, "known", 0)
    if protocol == V1:
        named = [{"name": topic, "partitions": [1, 7]}, {"name": unknown, "partitions": [0]}]
        ids = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
        asked = {"transactional_id": producer.transactional_id, **ids, "topics": named}
        with Wire(bootstrap) as wire:
            answer = wire.call(ADD_PARTITIONS, 3, {f"v3_and_below_{name}": each for name, each in asked.items()})
        told = {
            (result.name, each.partition_index): each.partition_error_code
            for result in answer.results_by_topic_v3_and_below
            for each in result.results_by_partition
        }
        lacking, left_out = ErrorCode.unknown_topic_or_partition, ErrorCode.operation_not_attempted
        assert told == {(topic, 1): left_out, (topic, 7): lacking, (unknown, 0): lacking}
    else:
        written = [{"index": index, "records": producer.batch(topic, index, "x")} for index in (0, 7)]
        assert codes(producer.produce(topic, written)) == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    assert partitions_of(bootstrap, producer) == {(topic, 0)}
    producer.end(True)
    assert committed_values(bootstrap, topic, 2) == (["known"] if protocol == V1 else ["known", "x"])


def test_control_batches_of_clients_end_no_transaction(bootstrap: str, begun: Begun, topic: str, protocol: int) -> None:
    """A client that could write markers would commit without its coordinator, or for somebody else."""
    producer = begun(protocol)
    producer.write(topic, "open", 0)
    header = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    marker = bytes(marker_batch(producer.producer_id, producer.epoch, Marker(True, 0, 0)))
    sequenced = seal(record(0), 1, 1_700_000_000_000, attributes=CONTROL | TRANSACTIONAL, base_sequence=1, **header)
    plain = seal(record(0), 1, 1_700_000_000_000, attributes=CONTROL, base_sequence=1, **header)
    for forged in (marker, sequenced, plain):
        assert codes(producer.produce(topic, [{"index": 0, "records": forged}])) == [ErrorCode.invalid_record]
    assert partitions_of(bootstrap, producer) == {(topic, 0)}
    producer.write(topic, "and on", 0)
    producer.end(False)
    assert committed_values(bootstrap, topic, 2) == []


def test_forged_markers_and_those_of_an_older_coordinator_end_no_transaction(
    bootstrap: str, begun: Begun, topic: str, protocol: int
) -> None:
    producer = begun(protocol)
    producer.write(topic, "first", 0)
    producer.end(True)
    producer.init()  # a newer epoch, by either protocol
    producer.write(topic, "second", 0)
    version = 2 if protocol == V2 else 0
    older, same = producer.epoch - 1, producer.epoch
    assert marked(bootstrap, producer, topic, older, 0, version) is ErrorCode.invalid_producer_epoch
    if protocol == V2:  # a marker of the newer protocol has a newer epoch than its transaction
        assert marked(bootstrap, producer, topic, same, 0, version) is ErrorCode.invalid_producer_epoch
    after = same + (protocol == V2)
    assert marked(bootstrap, producer, topic, after, -1, version) is ErrorCode.transaction_coordinator_fenced
    assert partitions_of(bootstrap, producer) == {(topic, 0)}
    producer.write(topic, "third", 0)
    producer.end(True)
    assert committed_values(bootstrap, topic, 2) == ["first", "second", "third"]


def marked(
    bootstrap: str, producer: TransactingProducer, topic: str, epoch: int, coordinator_epoch: int, version: int
) -> ErrorCode:
    """The answer to a marker for partition 0 that aborts the producer's transaction."""
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": version,
        "topics": [{"name": topic, "partition_indexes": [0]}],
    }
    with Wire(bootstrap) as wire:
        answer = wire.call(WRITE_TXN_MARKERS, 2, {"markers": [marker]})
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


def partitions_of(bootstrap: str, producer: TransactingProducer) -> set[tuple[str, int]]:
    """The partitions of the producer's transaction, which must be open."""
    with Wire(bootstrap) as wire:
        answer = wire.call(DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [producer.transactional_id]})
    (found,) = answer.transaction_states
    assert found.transaction_state == "Ongoing"
    return {(each.topic, index) for each in found.topics for index in each.partitions}


def codes(answer: Any) -> list[int]:
    """The error codes of an answer to Produce."""
    return [each.error_code for result in answer.responses for each in result.partition_responses]
