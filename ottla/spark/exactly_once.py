"""The writers of exactly-once streams, and of batches in transactions: they carry out the steps of
`ottla.spark.decisions`.

Spark makes a new writer for each use: at the beginning of a micro-batch one that it pickles for the tasks, at the end
one that it calls `commit` or `abort` of. The process around a writer may be a new one each time, too. So what the end
has to know travels with the writer to the tasks, and with their results back to the driver.

The beginning is the moment of pickling: Spark pickles a streaming writer once for its tasks, before any of them starts.
"""

from __future__ import annotations

import json
import pickle
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.net.names import Transaction
from ottla.net.transactions import Transactions

from . import decisions
from .decisions import Begun, Failed, Step, TaskWritten
from .ledger import DEFAULT_TOPIC, Ledger
from .options import ExactlyOnce, WriteOptions
from .planning import open_client
from .properties import ClientProperties
from .writing import Writer, initialised

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # StreamExecution's and MicroBatchExecution's
_LATE = 0.9  # the part of the transactions' time-out after which a batch isn't decided any more
_Result = TypeVar("_Result")


class NotBegun(pickle.PicklingError):
    """A micro-batch can't begin. It begins while Spark pickles the writer. If pickling raises a PickleError, Spark
    shows this error's message; any other error would become "Could not serialize object"."""


class Driver:
    """Carries out the steps of a query's driver. A context manager, which closes its connections."""

    def __init__(self, properties: ClientProperties, query: str, topic: str) -> None:
        self._properties = properties
        self._query = query
        self._client = open_client(properties)
        self._coordinators = open_client(properties)
        self._transactions = Transactions(self._coordinators)
        self._ledger = Ledger(self._client, self._transactions, topic, query)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._client.close()
        self._coordinators.close()

    def carry_out(self, procedure: Generator[Step, Any, _Result]) -> _Result:
        """Carries out all steps of `procedure`, and returns its result."""
        result = None
        while True:
            try:
                step = procedure.send(result)
            except StopIteration as ended:
                done: _Result = ended.value
                return done
            result = self._step(step)

    def _step(self, step: Step) -> Any:
        match step:
            case decisions.Fence():
                return initialised(self._transactions, decisions.driver_id(self._query), self._properties)
            case decisions.Read():
                return self._ledger.last()
            case decisions.Record(driver, decision):
                return self._ledger.record(driver, decision)
            case decisions.Commit(transactions):
                return self._transactions.end(transactions, committed=True)
            case decisions.Describe(ids):
                return self._transactions.describe(ids)
            case decisions.ListOpen():
                open_ids = self._transactions.open(lambda name: decisions.is_task_of(self._query, name))
                found = self._transactions.describe(open_ids)
                return [
                    Transaction(name, each.producer_id, each.epoch)
                    for name, each in found.items()
                    if each.state == decisions.ONGOING
                ]
            case decisions.Abort(transactions):
                return self._transactions.end(transactions, committed=False)


class InTransaction(WriterCommitMessage):
    """A task's result, with what its driver knew when the batch began: at `began_s`, seconds of its clock."""

    def __init__(self, result: TaskWritten, begun: Begun, began_s: float) -> None:
        self.result = result
        self.begun = begun
        self.began_s = began_s


class ExactlyOnceStreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("ottla")` with the option ottla.exactlyOnce."""

    def __init__(self, options: WriteOptions, exactly_once: ExactlyOnce) -> None:
        self.options = options
        self.exactly_once = exactly_once
        self.begun: Begun | None = None
        self.began_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Begins the micro-batch, once: Spark pickles this writer for the batch's tasks."""
        if self.begun is None:
            self.began_s = time.time()
            known_id = query_id_in(self.exactly_once.checkpoint)
            with self._driver() as driver:
                try:
                    self.begun = driver.carry_out(decisions.begin(known_id, self.exactly_once.confirmed))
                except Exception as error:
                    raise NotBegun(f"the batch can't begin: {error}") from error
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes one task's rows in a transaction that stays open, or counts them if the batch is decided already."""
        context, begun = TaskContext.get(), self.begun
        assert context is not None
        assert begun is not None
        query_id, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query_id is None or batch is None:
            raise Failed(f"Spark doesn't tell tasks the query's id ({QUERY_ID}) and the batch's ({BATCH_ID})")
        transaction = None
        if decisions.is_written(begun.last, query_id, int(batch), self.exactly_once.confirmed):
            rows = sum(each.num_rows for each in iterator)
        else:
            query, attempt = self.exactly_once.query, context.attemptNumber()
            name = decisions.task_id(query, context.partitionId(), attempt, begun.driver)
            rows, transaction = write_in_transaction(self.options, name, iterator, begun.driver)
        result = TaskWritten(query_id, int(batch), context.attemptNumber(), rows, transaction)
        return InTransaction(result, begun, self.began_s)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Decides the batch and commits its transactions."""
        found = _in_transaction(messages)
        if not found:
            return
        allowed_s = _LATE * self.options.properties.transaction_timeout_ms / 1000
        late = time.time() - found[0].began_s > allowed_s
        results = [each.result for each in found]
        with self._driver() as driver:
            driver.carry_out(decisions.finish(found[0].begun, batchId, results, late, self.exactly_once.confirmed))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Aborts the transactions of the tasks that succeeded, unless the batch is decided: Spark calls this after an
        error of `commit`, too. Each task that failed has aborted its own transaction."""
        found = _in_transaction(messages)
        if not found:
            return
        with self._driver() as driver:
            driver.carry_out(decisions.abandon(found[0].begun, [each.result for each in found]))

    def _driver(self) -> Driver:
        topic = self.exactly_once.topic or DEFAULT_TOPIC
        return Driver(self.options.properties, self.exactly_once.query, topic)


class TransactionalBatchWriter(DataSourceArrowWriter):
    """The writer of `df.write.format("ottla")` with the option ottla.exactlyOnce: one transaction for each task.

    The driver commits them after all tasks have succeeded, without a recorded decision: Spark has no name for a batch
    job by which another run would know it.
    """

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.name = f"batch/{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes one task's rows in a transaction that stays open."""
        context = TaskContext.get()
        assert context is not None
        name = decisions.task_id(self.name, context.partitionId(), context.attemptNumber(), _NOTHING.driver)
        rows, transaction = write_in_transaction(self.options, name, iterator, None)
        return InTransaction(TaskWritten("", 0, context.attemptNumber(), rows, transaction), _NOTHING, 0.0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commits every task's transaction."""
        lost = self._end(messages, committed=True)
        if lost:
            names = ", ".join(each.transactional_id for each in lost)
            raise Failed(f"the coordinator aborted transactions of this write, since they timed out: {names}")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Aborts the transactions of the tasks that succeeded, as far as `commit` hasn't committed them. Each task that
        failed has aborted its own."""
        self._end(messages, committed=False)

    def _end(self, messages: list[WriterCommitMessage | None], *, committed: bool) -> list[Transaction]:
        results = [each.result for each in _in_transaction(messages)]
        with open_client(self.options.properties) as client:
            transactions = [each.transaction for each in results if each.transaction is not None]
            return Transactions(client).end(transactions, committed=committed)


_NOTHING = Begun(Transaction("", -1, 0), None)


def write_in_transaction(
    options: WriteOptions, name: str, iterator: Iterator[pa.RecordBatch], driver: Transaction | None
) -> tuple[int, Transaction | None]:
    """Writes all rows in a transaction of the id `name`, which stays open. Returns the number of rows, and the
    transaction (None if there are no rows).

    Raises Failed if `driver` isn't the query's driver any more: a task of an older driver must not initialise an id
    that a newer driver's tasks use.
    """
    for first in iterator:
        if first.num_rows:
            break
    else:
        return 0, None
    if driver is not None:
        with open_client(options.properties) as client:
            decisions.check_current(driver, Transactions(client).describe([driver.transactional_id]))
    with Writer(options.properties, options.topic, name) as writer:
        writer.write(first)
        for rows in iterator:
            writer.write(rows)
        writer.flush()
        return writer.rows_acknowledged, writer.transaction


def query_id_in(checkpoint: str) -> str | None:
    """The query id in a checkpoint; None if this process can't read the checkpoint, or the checkpoint is new.

    Only a path of the local file system can be read: Python has no way to the others that Spark can use.
    """
    parts = urlsplit(checkpoint)
    if not checkpoint or parts.scheme not in ("", "file"):
        return None
    folder = Path(unquote(parts.path) if parts.scheme else checkpoint)
    try:
        return str(json.loads((folder / "metadata").read_bytes())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _in_transaction(messages: Sequence[WriterCommitMessage | None]) -> list[InTransaction]:
    return [each for each in messages if isinstance(each, InTransaction)]
