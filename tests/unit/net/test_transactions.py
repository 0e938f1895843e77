"""The requests of transactions, to coordinators whose answers a test decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ottla.net.blocking import ConnectionLost
from ottla.net.client import ClusterMetadata, TopicMetadata
from ottla.net.error_codes import Retry
from ottla.net.names import Address, TopicPartition, Transaction, TransactionalIdState
from ottla.net.transactions import (
    ADD_PARTITIONS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    TRANSACTION_STATE,
    Transactions,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import read_response, write_request, write_response

T = Transaction("t", 7, 3)


class Cluster:
    """Two brokers, in place of a client. `answers` has what each API answers, by the request's own fields."""

    def __init__(self) -> None:
        self.coordinators: dict[str, int] = {}
        self.leaders: deque[dict[int, int]] = deque([{0: 0, 1: 1}])
        self.answers: dict[int, Callable[[int, Mapping[str, Any]], Any]] = {FIND_COORDINATOR: self._find}
        self.asked: list[tuple[int, int, int]] = []  # (node, API, version)
        self.dropped = 0

    def _find(self, _: int, message: Mapping[str, Any]) -> Any:
        found = [{"key": key, "node_id": self.coordinators.get(key, 0)} for key in message["coordinator_keys"]]
        return {"coordinators": found}

    def broker(self, node: int) -> Connection:
        return Connection(self, node)

    def any_broker(self) -> Connection:
        return Connection(self, 0)

    def drop(self, _: Connection) -> None:
        self.dropped += 1

    def retrying(self, attempt: Callable[[], Any], what: str) -> Any:
        for _ in range(5):
            try:
                return attempt()
            except (Retry, ConnectionLost):
                continue
        raise AssertionError(f"{what} was tried too often")

    def metadata(self, topics: list[str]) -> ClusterMetadata:
        assert topics == [TRANSACTION_STATE]
        leaders = self.leaders.popleft() if len(self.leaders) > 1 else self.leaders[0]
        topic = TopicMetadata(TRANSACTION_STATE, None, True, leaders)
        brokers = {node: Address("b", node + 1) for node in (0, 1)}
        return ClusterMetadata(brokers, 0, {TRANSACTION_STATE: topic} if leaders else {}, {}, brokers[0])


class Connection:
    """A connection to a broker, whose requests and answers go through Kafka's own format."""

    def __init__(self, cluster: Cluster, node: int) -> None:
        self.address = Address("b", node + 1)
        self._cluster, self._node = cluster, node
        self._sent: deque[tuple[int, int, Mapping[str, Any]]] = deque()

    def version(self, _: int, lowest: int, highest: int) -> int:
        return highest

    def send(self, api_key: int, version: int, message: Mapping[str, Any]) -> None:
        write_request(api_key, version, message)
        self._cluster.asked.append((self._node, api_key, version))
        self._sent.append((api_key, version, message))

    def receive(self) -> Any:
        api_key, version, message = self._sent.popleft()
        answer = self._cluster.answers[api_key](self._node, message)
        return read_response(api_key, version, write_response(api_key, version, answer))

    def request(self, api_key: int, version: int, message: Mapping[str, Any]) -> Any:
        self.send(api_key, version, message)
        return self.receive()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def transactions(cluster: Cluster) -> Transactions:
    return Transactions(cluster)  # type: ignore[arg-type]


def in_turn(*codes: str) -> Callable[[int, Mapping[str, Any]], Any]:
    left = deque(codes)
    return lambda node, message: {"error_code": ErrorCode[left.popleft()], "producer_id": 7, "producer_epoch": 3}


def test_each_id_is_asked_for_at_its_coordinator(cluster: Cluster, transactions: Transactions) -> None:
    cluster.coordinators = {"t": 1, "u": 0}
    cluster.answers[INIT_PRODUCER_ID] = in_turn("none", "none")
    assert transactions.initialise(["t", "u"], 1000) == {"t": T, "u": Transaction("u", 7, 3)}
    assert sorted(cluster.asked[1:]) == [(0, INIT_PRODUCER_ID, 4), (1, INIT_PRODUCER_ID, 4)]


def test_a_coordinator_that_moved_is_looked_for_again(cluster: Cluster, transactions: Transactions) -> None:
    def moved(node: int, _: Mapping[str, Any]) -> Any:
        cluster.coordinators["t"] = 1
        return {"error_code": ErrorCode.none if node else ErrorCode.not_coordinator}

    cluster.answers[END_TXN] = moved
    assert transactions.end([T], committed=True) == []
    assert [node for node, api_key, _ in cluster.asked if api_key == END_TXN] == [0, 1]


def test_a_lost_connection_is_dropped_and_the_end_is_sent_again(cluster: Cluster, transactions: Transactions) -> None:
    def lost_once(_: int, message: Mapping[str, Any]) -> Any:
        if not cluster.dropped:
            raise ConnectionLost("gone", Address("b", 1))
        assert (message["producer_id"], message["producer_epoch"], message["committed"]) == (7, 3, True)
        return {"error_code": ErrorCode.none}

    cluster.answers[END_TXN] = lost_once
    assert transactions.end([T], committed=True) == []
    assert cluster.dropped == 1


@pytest.mark.parametrize(
    "code", ["invalid_txn_state", "producer_fenced", "invalid_producer_epoch", "invalid_producer_id_mapping"]
)
def test_transactions_that_were_ended_otherwise_are_named(
    cluster: Cluster, transactions: Transactions, code: str
) -> None:
    other = Transaction("u", 8, 0)
    cluster.answers[END_TXN] = lambda node, message: {
        "error_code": ErrorCode[code] if message["transactional_id"] == "u" else ErrorCode.none
    }
    assert transactions.end([T, other], committed=True) == [other]


def test_an_end_waits_for_the_markers_of_the_one_before(cluster: Cluster, transactions: Transactions) -> None:
    cluster.answers[END_TXN] = in_turn("concurrent_transactions", "coordinator_load_in_progress", "none")
    assert transactions.end([T], committed=False) == []


def test_a_right_that_is_missing_is_an_error(cluster: Cluster, transactions: Transactions) -> None:
    cluster.answers[END_TXN] = in_turn("transactional_id_authorization_failed")
    with pytest.raises(KafkaError, match="the transaction t"):
        transactions.end([T], committed=True)


def test_partitions_are_added_once_brokers_know_them(cluster: Cluster, transactions: Transactions) -> None:
    codes = deque([(ErrorCode.operation_not_attempted, ErrorCode.unknown_topic_or_partition), (0, 0)])

    def add(_: int, message: Mapping[str, Any]) -> Any:
        assert message["v3_and_below_topics"] == [{"name": "a", "partitions": [0, 1]}]
        results = [
            {"partition_index": index, "partition_error_code": code} for index, code in enumerate(codes.popleft())
        ]
        return {"results_by_topic_v3_and_below": [{"name": "a", "results_by_partition": results}]}

    cluster.answers[ADD_PARTITIONS] = add
    transactions.add(T, [TopicPartition("a", 0), TopicPartition("a", 1)])
    assert not codes


def test_ids_that_nobody_knows_are_left_out(cluster: Cluster, transactions: Transactions) -> None:
    """Where no transaction is open, Kafka answers −1 for its start; before the fix the answer couldn't be read."""
    states = {
        "t": {"transaction_state": "Empty", "producer_id": 7, "producer_epoch": 3, "transaction_start_time": -1},
        "u": {"error_code": ErrorCode.transactional_id_not_found, "transaction_start_time": 0},
    }
    cluster.answers[DESCRIBE_TRANSACTIONS] = lambda node, message: {
        "transaction_states": [{"transactional_id": name, **states[name]} for name in message["transactional_ids"]]
    }
    assert transactions.describe(["t", "u"]) == {"t": TransactionalIdState("Empty", 7, 3)}


def listing(**by_node: str) -> Callable[[int, Mapping[str, Any]], Any]:
    def answer(node: int, message: Mapping[str, Any]) -> Any:
        assert message["state_filters"] == ["Ongoing"]
        names = by_node.get(f"b{node}", "").split()
        found = [{"transactional_id": name, "producer_id": 1, "transaction_state": "Ongoing"} for name in names]
        return {"transaction_states": found}

    return answer


def test_open_transactions_of_all_coordinators(cluster: Cluster, transactions: Transactions) -> None:
    cluster.answers[LIST_TRANSACTIONS] = listing(b0="x/1 y/1", b1="x/0")
    assert transactions.open(lambda name: name.startswith("x")) == ["x/0", "x/1"]


def test_coordinators_are_asked_again_if_one_of_them_moved(cluster: Cluster, transactions: Transactions) -> None:
    cluster.answers[LIST_TRANSACTIONS] = listing(b0="x", b1="y")
    cluster.leaders = deque([{0: 0, 1: -1}, {0: 0, 1: 0}, {0: 0, 1: 1}, {0: 0, 1: 1}])
    assert transactions.open(lambda name: True) == ["x", "y"]


def test_all_brokers_are_asked_where_the_topic_is_not_shown(cluster: Cluster, transactions: Transactions) -> None:
    cluster.answers[LIST_TRANSACTIONS] = listing(b1="y")
    cluster.leaders = deque([{}])
    assert transactions.open(lambda name: True) == ["y"]
