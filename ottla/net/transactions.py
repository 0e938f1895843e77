"""The requests of transactions, from a blocking client to the coordinators of transactional ids.

Each request goes out in a version of the protocol before KIP-890's second part (TV1, the protocol of librdkafka): a
transaction keeps the producer epoch that InitProducerId gave it. So whoever knows a transaction's id, producer id and
epoch can end it, from any process, and can repeat the request when its answer was lost.

Requests for many ids are sent to each coordinator one behind the other, before the first answer is waited for. Answers
that tell of a passing state (a coordinator that moves, a transaction whose markers are being written) are followed by
another request, until the client's `api_timeout_ms` has passed.

Source: KIP-98, KIP-360, KIP-664 (DescribeTransactions, ListTransactions), KIP-699 (FindCoordinator for many ids).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ottla.protocol.errors import ErrorCode

from .blocking import Connection, ConnectionLost
from .client import Client
from .error_codes import Retry, check
from .names import TopicPartition, Transaction, TransactionalIdState

FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 10, 22, 24, 26
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66
TRANSACTION_STATE = "__transaction_state"
ONGOING = "Ongoing"
_TRANSACTIONAL_ID = 1  # FindCoordinator's key type
_IN_FLIGHT_MAX = 50  # requests on a connection
# What EndTxn answers if the transaction of this producer epoch is no longer there: it was ended the other way, because
# it timed out or because somebody initialised its id.
_ENDED_OTHERWISE = frozenset(
    {
        ErrorCode.invalid_txn_state,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
    }
)
_Result = TypeVar("_Result")


class Transactions:
    """Sends requests to the coordinators of transactional ids.

    `client` must have no request of its own under way, so a producer needs another client for its batches.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._nodes: dict[str, int] = {}

    def initialise(self, ids: Iterable[str], timeout_ms: int) -> dict[str, Transaction]:
        """InitProducerId: aborts the transaction of each id that is open, and fences its producer.

        Returns when those transactions' markers are written. `timeout_ms` is the time after which the coordinator
        aborts a transaction that begins from now on. Raises KafkaError, Unreachable.
        """

        def settle(name: str, answer: Any, connection: Connection) -> Transaction:
            check(answer.error_code, f"the transactional id {name}", connection.address)
            return Transaction(name, answer.producer_id, answer.producer_epoch)

        messages = {
            name: {
                "transactional_id": name,
                "transaction_timeout": timeout_ms,
                "producer_id": -1,
                "producer_epoch": -1,
            }
            for name in ids
        }
        return self._each(INIT_PRODUCER_ID, (0, 4), messages, settle, "InitProducerId")

    def add(self, transaction: Transaction, partitions: Iterable[TopicPartition]) -> None:
        """AddPartitionsToTxn: from now on the end of the transaction is written to `partitions`, too.

        Raises KafkaError, Unreachable.
        """
        topics: dict[str, list[int]] = {}
        for each in partitions:
            topics.setdefault(each.topic, []).append(each.partition)
        message = {
            "v3_and_below_transactional_id": transaction.transactional_id,
            "v3_and_below_producer_id": transaction.producer_id,
            "v3_and_below_producer_epoch": transaction.epoch,
            "v3_and_below_topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()],
        }

        def settle(name: str, answer: Any, connection: Connection) -> None:
            for topic in answer.results_by_topic_v3_and_below:
                for result in topic.results_by_partition:
                    where = TopicPartition(topic.name, result.partition_index)
                    if result.partition_error_code == ErrorCode.operation_not_attempted:
                        continue  # another partition of the request has the error that stopped all of it
                    if result.partition_error_code == ErrorCode.unknown_topic_or_partition:
                        raise Retry(f"{connection.address} doesn't know {where} yet")
                    check(result.partition_error_code, f"{where} in the transaction {name}", connection.address)

        self._each(ADD_PARTITIONS, (0, 3), {transaction.transactional_id: message}, settle, "AddPartitionsToTxn")

    def end(self, transactions: Iterable[Transaction], *, committed: bool) -> list[Transaction]:
        """Sends EndTxn for each transaction. Returns the transactions that had already ended with the opposite outcome
        (aborted instead of committed, or committed instead of aborted).

        Safe to repeat, as long as no InitProducerId for the ids came in between. Raises KafkaError, Unreachable.
        """
        wanted = {each.transactional_id: each for each in transactions}

        def settle(name: str, answer: Any, connection: Connection) -> bool:
            if answer.error_code in _ENDED_OTHERWISE:
                return False
            check(answer.error_code, f"the transaction {name}", connection.address)
            return True

        messages = {
            name: {
                "transactional_id": name,
                "producer_id": each.producer_id,
                "producer_epoch": each.epoch,
                "committed": committed,
            }
            for name, each in wanted.items()
        }
        ended = self._each(END_TXN, (0, 3), messages, settle, "EndTxn")
        return [wanted[name] for name, done in ended.items() if not done]

    def describe(self, ids: Iterable[str]) -> dict[str, TransactionalIdState]:
        """The state of each transactional id that its coordinator knows. Raises KafkaError, Unreachable."""

        def settle(name: str, answer: Any, connection: Connection) -> TransactionalIdState | None:
            found = answer.transaction_states[0]
            if found.error_code == ErrorCode.transactional_id_not_found:
                return None
            check(found.error_code, f"the transactional id {name}", connection.address)
            return TransactionalIdState(found.transaction_state, found.producer_id, found.producer_epoch)

        messages = {name: {"transactional_ids": [name]} for name in ids}
        found = self._each(DESCRIBE_TRANSACTIONS, (0, 0), messages, settle, "DescribeTransactions")
        return {name: each for name, each in found.items() if each is not None}

    def open(self, belongs: Callable[[str], bool]) -> list[str]:
        """The transactional ids with an open transaction for which `belongs` returns True, sorted.

        All coordinators are asked, and asked again if their partitions moved meanwhile. Raises KafkaError, Unreachable.
        """
        return self._client.retrying(lambda: self._open(belongs), "ListTransactions")

    def _open(self, belongs: Callable[[str], bool]) -> list[str]:
        before = self._client.metadata([TRANSACTION_STATE])
        found: set[str] = set()
        for node in self._coordinating(before.topics, before.brokers):
            connection = self._client.broker(node)
            version = connection.version(LIST_TRANSACTIONS, 0, 1)
            answer = connection.request(
                LIST_TRANSACTIONS, version, {"state_filters": [ONGOING], "producer_id_filters": []}
            )
            check(answer.error_code, "the list of its transactions", connection.address)
            found.update(each.transactional_id for each in answer.transaction_states)
        after = self._client.metadata([TRANSACTION_STATE])
        if self._leaders(before.topics) != self._leaders(after.topics):
            raise Retry("coordinators of transactions moved while they were asked")
        return sorted(name for name in found if belongs(name))

    def _leaders(self, topics: Mapping[str, Any]) -> Mapping[int, int]:
        """The leader of each partition of `__transaction_state`; empty if the topic isn't shown."""
        return dict(topics[TRANSACTION_STATE].leaders) if TRANSACTION_STATE in topics else {}

    def _coordinating(self, topics: Mapping[str, Any], brokers: Mapping[int, Any]) -> set[int]:
        """The ids of the brokers that coordinate transactions; those of all brokers, if the topic isn't shown."""
        if TRANSACTION_STATE not in topics:
            return set(brokers)
        leaders = set(topics[TRANSACTION_STATE].leaders.values())
        if min(leaders, default=0) < 0:
            raise Retry(f"a partition of {TRANSACTION_STATE} has no leader")
        return leaders

    def _each(
        self,
        api_key: int,
        versions: tuple[int, int],
        messages: Mapping[str, Mapping[str, Any]],
        settle: Callable[[str, Any, Connection], _Result],
        what: str,
    ) -> dict[str, _Result]:
        """Sends the message of each transactional id to its coordinator, and returns what `settle` makes of the
        answers. `settle` raises Retry for an answer after which the message is to be sent again."""
        found: dict[str, _Result] = {}

        def attempt() -> dict[str, _Result]:
            trouble: Retry | None = None
            for node, names in self._by_coordinator([name for name in messages if name not in found]).items():
                connection = self._client.broker(node)
                version = connection.version(api_key, *versions)
                for start in range(0, len(names), _IN_FLIGHT_MAX):
                    some = names[start : start + _IN_FLIGHT_MAX]
                    try:
                        for name in some:
                            connection.send(api_key, version, messages[name])
                        answers = [connection.receive() for _ in some]
                    except BaseException as error:
                        self._client.drop(connection)  # answers that nobody waits for may still come
                        if isinstance(error, ConnectionLost):
                            self._nodes.clear()
                        raise
                    for name, answer in zip(some, answers, strict=True):
                        try:
                            found[name] = settle(name, answer, connection)
                        except Retry as error:
                            trouble = error
                            self._nodes.pop(name, None)
            if trouble is not None:
                raise trouble
            return found

        return self._client.retrying(attempt, what)

    def _by_coordinator(self, names: Sequence[str]) -> dict[int, list[str]]:
        unknown = [name for name in names if name not in self._nodes]
        if unknown:
            connection = self._client.any_broker()
            version = connection.version(FIND_COORDINATOR, 4, 4)
            message = {"key_type": _TRANSACTIONAL_ID, "coordinator_keys": unknown}
            answer = connection.request(FIND_COORDINATOR, version, message)
            for each in answer.coordinators:
                check(each.error_code, f"the coordinator of {each.key}", connection.address, each.error_message)
                self._nodes[each.key] = each.node_id
        grouped: dict[int, list[str]] = {}
        for name in names:
            grouped.setdefault(self._nodes[name], []).append(name)
        return grouped
