"""What the driver of an exactly-once stream into topics does, step by step, and the decision that it records. Pure.

Each task of a micro-batch writes in a transaction of its own, which it leaves open. If all tasks succeeded, the driver
records a *decision*: the list of these transactions. Then it ends them, and records that they are ended. The record is
the moment at which the batch counts:

1. A transaction is committed only if a recorded decision lists it. For that reason nothing of a batch that isn't
   decided ever becomes visible to readers of committed records.
2. A decision is completed before any task of a later batch begins: by the driver that recorded it, or by the next
   one, from the record. Ending a transaction again is harmless, because a transactional id gets a new producer epoch
   only by InitProducerId, which tasks send after the decision is recorded as completed.
3. A batch of which a decision is recorded isn't written when it comes again: its tasks only count their rows.
4. A record is written in a transaction of the driver's own id. A driver initialises this id before each batch. So
   an older driver that still runs can't record a decision any more, and the outcome of its last record is settled
   before the new driver reads it.

From 1 and 3 no row becomes visible twice; from 2 no row of a decided batch is lost. One thing can break 2: a decided
transaction that timed out, and that the coordinator aborted before EndTxn came. The answer to EndTxn shows this, and
the query stops. The answer is the same if the coordinator has forgotten the id, which was unused for a week: then the
transaction may have been committed or aborted, nothing that brokers still know tells which, and the query stops, too.

The procedures are generators: they yield steps, and are sent the steps' results. `ottla.spark.exactly_once` carries
the steps out; the tests carry them out on a model of brokers, and kill the driver before and after every one.

An id that a task initialises must not be that of a decided transaction, which would be aborted. So attempts of a task
have different ids, up to ATTEMPTS of them at a time: a speculative attempt, or one that still runs although Spark has
given it up, can't touch the transaction of the attempt that Spark chose. The driver's epoch takes turns in the ids,
too: tasks of an older driver that still run use other ids than those of the newer driver, for TURNS batches.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ottla.net.names import Transaction, TransactionalIdState

PREFIX = "ottla-spark"
ONGOING = "Ongoing"
TURNS = 4
ATTEMPTS = 64  # ids of each task and turn: coordinators keep every id for days
_SETTLED = frozenset({"Empty", "CompleteCommit", "CompleteAbort"})  # no record is on its way


class Refused(Exception):
    """The query can't continue until a person decides something. The message says why, and how to tell Ottla the
    decision."""


class Failed(Exception):
    """The batch can't be finished now. The query's next start commits the batch's transactions if the batch is decided;
    otherwise it aborts them, and the batch runs again."""


@dataclass(frozen=True)
class Decision:
    """A batch that counts, with the number of its rows and the transactions that are to be committed for it.

    `completed`: whether all of them are committed.
    """

    query_id: str
    batch: int
    rows: int
    transactions: tuple[Transaction, ...]
    completed: bool


class Begun(NamedTuple):
    """What tasks and the end of a batch have to know: the driver's own producer, and the last decision."""

    driver: Transaction
    last: Decision | None


class TaskWritten(NamedTuple):
    """A task's result. `transaction` is None if the task had no rows, or if it only counted them."""

    query_id: str
    batch: int
    attempt: int
    rows: int
    transaction: Transaction | None


# ---- the steps that procedures yield, and their results


class Fence(NamedTuple):
    """Initialise the driver's transactional id. Result: the driver's new producer, as a Transaction."""


class Read(NamedTuple):
    """Read the query's last recorded decision. Result: a Decision, or None."""


class Record(NamedTuple):
    """Record a decision, in a transaction of the driver's producer. Raises an error if another driver has fenced it."""

    driver: Transaction
    decision: Decision


class Commit(NamedTuple):
    """Commit transactions. Result: those that had been aborted before."""

    transactions: tuple[Transaction, ...]


class Describe(NamedTuple):
    """Ask for the states of transactional ids. Result: a TransactionalIdState by id."""

    ids: tuple[str, ...]


class ListOpen(NamedTuple):
    """List the open transactions of the query's tasks. Result: Transactions."""


class Abort(NamedTuple):
    """Abort transactions, as far as they are open with this very epoch."""

    transactions: tuple[Transaction, ...]


Step = Fence | Read | Record | Commit | Describe | ListOpen | Abort
_Steps = Generator[Step, Any, None]


# ---- names


def driver_id(query: str) -> str:
    """The transactional id of the drivers of the query with this name."""
    return f"{PREFIX}/{query}/driver"


def task_id(query: str, task: int, attempt: int, driver: Transaction) -> str:
    """The transactional id of an attempt of a task, in a batch that `driver` began. `attempt` is Spark's id of the task
    attempt (`taskAttemptId`). The attempt's number wouldn't do: it begins with 0 again when Spark runs a stage anew,
    while attempts of the stage's first run may still go on (SPARK-24552)."""
    return f"{PREFIX}/{query}/{task}/{attempt % ATTEMPTS}/{driver.epoch % TURNS}"


def is_task_of(query: str, transactional_id: str) -> bool:
    """Whether `task_id` makes this id for the query, for some task, attempt and driver."""
    start, *numbers = transactional_id.rsplit("/", 3)
    return start == f"{PREFIX}/{query}" and len(numbers) == 3 and all(each.isdigit() for each in numbers)


# ---- what the driver does


def begin(query_id: str | None, confirmed: str) -> Generator[Step, Any, Begun]:
    """Before any task of a batch writes: commits the last batch if an earlier driver decided it but didn't complete it,
    and aborts all other transactions that earlier drivers left open.

    `query_id` is the id in the checkpoint, as far as the driver can read it: with it a wrong checkpoint is refused
    before it disturbs the query's own driver. Raises Refused.
    """
    if query_id is not None:
        check_owner((yield Read()), query_id, confirmed)
    driver = yield Fence()
    last = yield Read()
    if last is not None and not last.completed:
        lost = yield Commit(last.transactions)
        if lost:
            yield from _check_current(driver)  # otherwise a newer driver has ended them, and gone on
        if lost and confirmed == f"rewrite {last.batch}":
            last = replace(last, batch=last.batch - 1, rows=0, transactions=(), completed=True)
        elif lost and confirmed != f"skip {last.batch}":
            known = yield Describe(tuple(each.transactional_id for each in lost))
            raise Refused(_lost(last, lost, known))
        else:
            last = replace(last, completed=True)
        yield Record(driver, last)
        driver = yield Fence()  # the batch's own records begin with a new epoch, and with sequence number 0
    yield from _abort_leftovers(driver)
    return Begun(driver, None if last is None else replace(last, transactions=()))


def check_owner(last: Decision | None, query_id: str, confirmed: str) -> None:
    """Raises Refused if the last decision was made under another checkpoint, unless `confirmed` (the value of the
    option ottla.exactlyOnce.confirm) allows this checkpoint to replace the other one."""
    if last is not None and last.query_id != query_id and confirmed != f"replace {last.query_id}":
        raise Refused(
            f"another checkpoint has written under this query name: that checkpoint's query id is '{last.query_id}', "
            f"and this one's is '{query_id}'. Rows that the other one has written may be written a second time. Use "
            "the other checkpoint, or another queryName, or allow the replacement once by the option "
            f"ottla.exactlyOnce.confirm = 'replace {last.query_id}'"
        )


def is_written(last: Decision | None, query_id: str, batch: int, confirmed: str) -> bool:
    """Whether `batch` is decided already, so that its rows must not be written again. Raises Refused."""
    check_owner(last, query_id, confirmed)
    if last is None or last.query_id != query_id or batch > last.batch:
        return False
    if batch < last.batch:
        raise Refused(
            f"batch {batch} comes again after batch {last.batch} was written: the checkpoint was set back to an older "
            "state. A new checkpoint can go on from here, with startingOffsets of its own"
        )
    return True


def finish(begun: Begun, batch: int, results: Sequence[TaskWritten], late: bool, confirmed: str) -> _Steps:
    """After all tasks of a batch succeeded: decides the batch, and commits its transactions.

    `late` tells that the tasks took almost as long as transactions may last. Raises Failed and Refused.
    """
    if not results:
        return
    query_id, rows = results[0].query_id, sum(each.rows for each in results)
    if {(each.query_id, each.batch) for each in results} != {(query_id, batch)}:
        raise Failed(f"the tasks' results don't belong to batch {batch} of the query {query_id}")
    if is_written(begun.last, query_id, batch, confirmed):
        assert begun.last is not None
        if rows != begun.last.rows and confirmed != f"skip {batch}":
            raise Refused(
                f"batch {batch} was written with {begun.last.rows} rows, and comes again with {rows}: the checkpoint "
                "was set back to an older state, or the query doesn't give the same rows again. To go on without these "
                f"{rows} rows set the option ottla.exactlyOnce.confirm = 'skip {batch}'"
            )
        return
    transactions = tuple(each.transaction for each in results if each.transaction is not None)
    if not transactions:
        return
    if late:
        raise Failed(
            f"batch {batch} took almost as long as its transactions may last: raise kafka.transaction.timeout.ms (and "
            "the brokers' transaction.max.timeout.ms), or make the batches smaller"
        )
    found = yield Describe(tuple(each.transactional_id for each in transactions))
    for each in transactions:
        if found.get(each.transactional_id) != TransactionalIdState(ONGOING, each.producer_id, each.epoch):
            raise Failed(
                f"the transaction {each.transactional_id} of batch {batch} is no longer open: it timed out, or another "
                "driver runs the query"
            )
    decision = Decision(query_id, batch, rows, transactions, completed=False)
    yield Record(begun.driver, decision)
    lost = yield Commit(transactions)
    if lost:
        raise Failed(
            f"batch {batch} was decided, but {len(lost)} of its {len(transactions)} transactions were ended before by "
            f"somebody else: they timed out, or another driver runs the query. The next start tells which: {_ids(lost)}"
        )
    yield Record(begun.driver, replace(decision, completed=True))
    if any(each.attempt for each in results):
        yield from _abort_leftovers(begun.driver)


def abandon(begun: Begun, results: Sequence[TaskWritten]) -> _Steps:
    """After a task of a batch, or the batch's end, failed: aborts the transactions of the tasks that succeeded.

    Nothing is aborted if the batch is decided, or may be: the query's next start will tell.
    """
    transactions = tuple(each.transaction for each in results if each.transaction is not None)
    if not transactions:
        return
    driver = yield Describe((begun.driver.transactional_id,))
    check_current(begun.driver, driver)
    if driver[begun.driver.transactional_id].state not in _SETTLED:
        return
    last = yield Read()
    if last is None or (last.query_id, last.batch) != (results[0].query_id, results[0].batch):
        yield Abort(transactions)


def _abort_leftovers(driver: Transaction) -> _Steps:
    """Aborts the transactions that attempts of tasks have left open: those of a batch that isn't decided, or of
    attempts that Spark didn't choose.

    The driver may be an old one that was stopped for a while, and a newer driver's transactions may be among the open
    ones. So the list is used only if, after it was made, this driver is still the query's: then all of the list began
    before any newer driver. The abort names each transaction's epoch, so it can't hit a later transaction.
    """
    left_open = yield ListOpen()
    if not left_open:
        return
    yield from _check_current(driver)
    yield Abort(tuple(left_open))


def _check_current(driver: Transaction) -> _Steps:
    found = yield Describe((driver.transactional_id,))
    check_current(driver, found)


def check_current(driver: Transaction, found: Mapping[str, TransactionalIdState]) -> None:
    """Raises Failed if another driver of the query has begun, by what the coordinator says of the driver's id."""
    current = found.get(driver.transactional_id)
    if current is None or (current.producer_id, current.epoch) != driver[1:]:
        raise Failed(f"another driver runs the query: {driver.transactional_id} has a newer producer")


def _remembered(transaction: Transaction, known: Mapping[str, TransactionalIdState]) -> bool:
    """Whether a coordinator still knows the id from before the transaction ended.

    It isn't so if the coordinator forgot the id, and a task that an older driver had left running initialised the id
    anew: then the id has another producer id. A coordinator also gives an id another producer id when the producer's
    epochs are used up. In this case, too, nothing tells how the earlier producer's transaction ended.
    """
    found = known.get(transaction.transactional_id)
    return found is not None and found.producer_id == transaction.producer_id


def _lost(decision: Decision, lost: Sequence[Transaction], known: Mapping[str, TransactionalIdState]) -> str:
    """Why a decided batch isn't completed. `known` are the states of the lost transactions' ids, as far as coordinators
    know the ids."""
    aborted = [each for each in lost if _remembered(each, known)]
    forgotten = [each for each in lost if not _remembered(each, known)]
    count = len(decision.transactions)
    if forgotten:
        were = "was" if len(aborted) == 1 else "were"
        others = f" Of the others, {len(aborted)} timed out and {were} aborted: {_ids(aborted)}." if aborted else ""
        return (
            f"batch {decision.batch} was decided, but the coordinators have forgotten {len(forgotten)} of its {count} "
            "transactions, whose ids weren't used for as long as the brokers' transactional.id.expiration.ms says: "
            f"{_ids(forgotten)}.{others} Either the query committed the forgotten ones before it stopped, or they "
            f"timed out. Look with isolation.level=read_committed whether the batch's {decision.rows} rows are in "
            "their topics. If all of them are, go on by the option ottla.exactlyOnce.confirm = "
            f"'skip {decision.batch}'. If none is, set it to 'rewrite {decision.batch}', which writes the whole batch "
            "again. If some are, choose between these rows twice ('rewrite') and the missing rows never ('skip')"
        )
    return (
        f"batch {decision.batch} was decided, but the coordinator had aborted {len(lost)} of its {count} "
        f"transactions before their end came, as they timed out: {_ids(lost)}. The rows of the others are visible. To "
        "write the whole batch again, with these rows doubled, set the option ottla.exactlyOnce.confirm = "
        f"'rewrite {decision.batch}'; to go on without the missing rows, set it to 'skip {decision.batch}'"
    )


def _ids(transactions: Sequence[Transaction]) -> str:
    return ", ".join(sorted(each.transactional_id for each in transactions))


# ---- the record


def to_json(decision: Decision) -> bytes:
    """The value of the record of a decision."""
    return json.dumps(
        {
            "version": 1,
            "queryId": decision.query_id,
            "batch": decision.batch,
            "rows": decision.rows,
            "completed": decision.completed,
            "transactions": [list(each) for each in decision.transactions],
        },
        separators=(",", ":"),
    ).encode()


def from_json(value: bytes) -> Decision:
    """The decision in a record's value. Raises ValueError for a value of another form."""
    try:
        content = json.loads(value)
        if content["version"] != 1:
            raise ValueError(f"its version is {content['version']}")
        transactions = tuple(
            Transaction(str(name), int(pid), int(epoch)) for name, pid, epoch in content["transactions"]
        )
        return Decision(
            str(content["queryId"]),
            int(content["batch"]),
            int(content["rows"]),
            transactions,
            bool(content["completed"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a record of decisions can't be read: {error!r}") from error
