"""Exactly-once streams on a model of brokers and Spark: whatever is killed, and when, each row becomes visible once.

The model carries out the very procedures of `ottla.spark.decisions`, one step at a time. A driver is
killed before or after a step (for steps about several transactions also in the middle), and another driver starts, with
another number of tasks. Older drivers may go on beside newer ones.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from ottla.net.names import Transaction, TransactionalIdState
from ottla.spark import decisions
from ottla.spark.decisions import Begun, Decision, Failed, Refused, TaskWritten

QUERY = "q"
BATCHES = 3
ROWS = 6


class WorkerDied(Exception):
    """The process dies in which Spark's driver ends a batch: Spark calls `abort` in another one."""


class FencedDriver(Exception):
    """The coordinator refuses the driver's producer."""


@dataclass
class Id:
    """A transactional id at its coordinator."""

    producer_id: int
    epoch: int = 0
    state: str = "Empty"
    rows: list[str] = field(default_factory=list)


@dataclass
class Brokers:
    """Coordinators, the rows that readers of committed records see, and the topic of decisions."""

    ids: dict[str, Id] = field(default_factory=dict)
    producer_ids: Iterator[int] = field(default_factory=count)
    visible: list[str] = field(default_factory=list)
    ledger: list[Decision] = field(default_factory=list)

    def initialise(self, name: str) -> Transaction:
        found = self.ids.get(name)
        if found is None:
            found = self.ids[name] = Id(next(self.producer_ids))
        else:
            found.epoch += 1
        found.state, found.rows = "Empty", []
        return Transaction(name, found.producer_id, found.epoch)

    def write(self, transaction: Transaction, rows: list[str]) -> None:
        found = self.ids[transaction.transactional_id]
        if found.epoch != transaction.epoch:
            raise FencedDriver(transaction)
        found.state = "Ongoing"
        found.rows += rows

    def end(self, transaction: Transaction, committed: bool) -> bool:
        """Whether the transaction is ended as asked, now or before."""
        found = self.ids.get(transaction.transactional_id)
        if found is None:
            return False
        wanted = "CompleteCommit" if committed else "CompleteAbort"
        if found.epoch != transaction.epoch or found.state not in ("Ongoing", wanted):
            return False
        if found.state == "Ongoing":
            found.state = wanted
            if committed:
                self.visible += found.rows
            found.rows = []
        return True

    def time_out(self, name: str) -> None:
        """The coordinator aborts the open transaction of an id, and fences its producer."""
        found = self.ids[name]
        if found.state == "Ongoing":
            found.epoch += 1
            found.state, found.rows = "CompleteAbort", []

    def forget(self, *names: str) -> None:
        """The coordinator forgets ids that weren't used for a week."""
        for name in names:
            assert self.ids[name].state != "Ongoing"
            del self.ids[name]

    def carry_out(self, step: decisions.Step) -> Iterator[Any]:
        """Carries out a step in parts, between which a driver may be killed. The last value is the step's result."""
        match step:
            case decisions.Fence():
                yield self.initialise(decisions.driver_id(QUERY))
            case decisions.Read():
                yield self.ledger[-1] if self.ledger else None
            case decisions.Record(driver, decision):
                if self.ids[driver.transactional_id].epoch != driver.epoch:
                    raise FencedDriver(driver)
                self.ledger.append(decisions.from_json(decisions.to_json(decision)))
                yield None
            case decisions.Commit(transactions) | decisions.Abort(transactions):
                committed, others = isinstance(step, decisions.Commit), []
                for each in transactions:
                    if not self.end(each, committed):
                        others.append(each)
                    yield others
                yield others
            case decisions.Describe(ids):
                yield {
                    name: TransactionalIdState(self.ids[name].state, self.ids[name].producer_id, self.ids[name].epoch)
                    for name in ids
                    if name in self.ids
                }
            case decisions.ListOpen():
                yield [
                    Transaction(name, each.producer_id, each.epoch)
                    for name, each in self.ids.items()
                    if each.state == "Ongoing" and decisions.is_task_of(QUERY, name)
                ]


@dataclass
class Checkpoint:
    """What Spark keeps: the query's id, and the last batch whose sink has returned from its commit."""

    query_id: str = "one"
    committed: int = -1


def rows_of(batch: int) -> list[str]:
    return [f"{batch}.{index}" for index in range(ROWS)]


Script = Generator[str, None, None]


def driver(
    brokers: Brokers, checkpoint: Checkpoint, tasks: int, speculative: bool = False, confirmed: str = ""
) -> Script:
    """A run of the query to its end: yields a name wherever it may be killed, or another driver may do something."""

    def carried_out(procedure: Generator[decisions.Step, Any, Any]) -> Generator[str, None, Any]:
        result = None
        while True:
            try:
                step = procedure.send(result)
            except StopIteration as ended:
                return ended.value
            yield f"before {type(step).__name__}"
            for part in brokers.carry_out(step):
                result = part
                yield f"after {type(step).__name__}"

    while checkpoint.committed + 1 < BATCHES:
        batch = checkpoint.committed + 1
        begun: Begun = yield from carried_out(decisions.begin(checkpoint.query_id, confirmed))
        results = []
        try:
            for task in range(tasks):
                rows = rows_of(batch)[task::tasks]
                for attempt in range(2 if speculative else 1):
                    written = decisions.is_written(begun.last, checkpoint.query_id, batch, confirmed)
                    transaction = None
                    if rows and not written:
                        (described,) = brokers.carry_out(decisions.Describe((begun.driver.transactional_id,)))
                        decisions.check_current(begun.driver, described)
                        yield "checked"
                        transaction = brokers.initialise(decisions.task_id(QUERY, task, attempt, begun.driver))
                        yield "initialised"
                        for row in rows:
                            brokers.write(transaction, [row])
                            yield "written"
                results.append(TaskWritten(checkpoint.query_id, batch, attempt, len(rows), transaction))
            yield from carried_out(decisions.finish(begun, batch, results, False, confirmed))
        except (WorkerDied, Failed, FencedDriver):
            yield from carried_out(decisions.abandon(begun, results))
            raise
        yield "committed"
        checkpoint.committed = max(checkpoint.committed, batch)


def run(script: Script, kill_at: int | None = None, *, worker: bool = False) -> None:
    """Runs until the script's end, or until `kill_at` of its points have been reached. Then the driver is killed, or
    only its Python process (`worker`)."""
    for number, _ in enumerate(script, 1):
        if number == kill_at and worker:
            with suppress(WorkerDied):
                script.throw(WorkerDied())
                run(script)
            return
        if number == kill_at:
            script.close()
            return


def check_once(brokers: Brokers) -> None:
    assert [row for row, count in Counter(brokers.visible).items() if count > 1] == []


def check_all(brokers: Brokers) -> None:
    assert sorted(brokers.visible) == sorted(row for batch in range(BATCHES) for row in rows_of(batch))
    assert [name for name, each in brokers.ids.items() if each.state == "Ongoing"] == []


def kills_at_any_two_points(*tasks: int) -> None:
    for worker in (False, True):
        test_two_kills_at_any_two_points(*tasks, worker)


def points(tasks: int, speculative: bool = False) -> int:
    return sum(1 for _ in driver(Brokers(), Checkpoint(), tasks, speculative))


def test_a_run_without_failures() -> None:
    brokers, checkpoint = Brokers(), Checkpoint()
    run(driver(brokers, checkpoint, 3))
    check_all(brokers)
    assert [(each.batch, each.completed) for each in brokers.ledger] == [
        (0, False), (0, True), (1, False), (1, True), (2, False), (2, True)
    ]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "third"), [(3, 2, 1), (1, 3, 2), (2, 2, 2), (2, 8, 1)])
@pytest.mark.parametrize("worker", [False, True], ids=["driver", "worker"])
def test_two_kills_at_any_two_points(first: int, second: int, third: int, worker: bool) -> None:
    """… with another number of tasks after each of them."""
    for one in range(1, points(first) + 1):
        for two in range(1, points(second) + 1, 7):
            brokers, checkpoint = Brokers(), Checkpoint()
            run(driver(brokers, checkpoint, first), one, worker=worker)
            check_once(brokers)
            run(driver(brokers, checkpoint, second), two, worker=worker)
            check_once(brokers)
            run(driver(brokers, checkpoint, third))
            check_all(brokers)


def test_a_kill_with_speculative_attempts() -> None:
    for one in range(1, points(2, speculative=True) + 1):
        brokers, checkpoint = Brokers(), Checkpoint()
        run(driver(brokers, checkpoint, 2, speculative=True), one)
        run(driver(brokers, checkpoint, 3, speculative=True))
        check_all(brokers)


def interleaved(seed: int) -> tuple[Brokers, Counter[str]]:
    """Drivers that Spark has given up still run beside newer drivers; their steps come in any order."""
    choose = random.Random(seed)
    brokers, checkpoint, endings = Brokers(), Checkpoint(), Counter[str]()
    running: list[Script] = []
    for _ in range(3000):
        if not running or (len(running) < 3 and choose.random() < 0.02):
            running.append(driver(brokers, checkpoint, choose.randint(1, 4), choose.random() < 0.3))
        script = choose.choice(running)
        try:
            for _ in range(choose.choice((1, 1, 3, 20))):
                next(script)
        except StopIteration:
            endings["done"] += 1
            running.remove(script)
        except (Failed, FencedDriver) as error:
            endings[type(error).__name__] += 1
            running.remove(script)
        except Refused as error:
            running.remove(script)
            # A driver that stood still while another one went on is told that its checkpoint is an old one.
            endings["lost" if "aborted" in str(error) else "refused"] += 1
        check_once(brokers)
        if checkpoint.committed + 1 == BATCHES:
            break
    return brokers, endings


def test_older_drivers_that_go_on() -> None:
    """No row is doubled, and none is lost unnoticed. Only one event can abort a decided transaction: a task of an older
    driver found its driver still current, was paused for TURNS batches, and then sends InitProducerId just when the
    newer driver has decided a batch and not yet committed it. In this case the query stops with an error."""
    total, stopped = Counter[str](), 0
    for seed in range(500):
        brokers, endings = interleaved(seed)
        total += endings
        stopped += endings["lost"] > 0
        if not endings["lost"]:
            assert set(brokers.visible) >= {row for batch in range(BATCHES) for row in rows_of(batch)}, seed
    assert total["Failed"] + total["FencedDriver"] > 100
    assert stopped == 0


# ---- planted bugs, which the runs above must find


def _recorded_after_the_commit(begun: Begun, batch: int, results: list[TaskWritten], *_: Any) -> Any:
    if begun.last is None or batch > begun.last.batch:
        transactions = tuple(each.transaction for each in results if each.transaction)
        yield decisions.Commit(transactions)
        yield decisions.Record(begun.driver, Decision("one", batch, ROWS, transactions, True))


def _not_completed_by_the_next_driver(*_: Any) -> Any:
    driver = yield decisions.Fence()
    return Begun(driver, (yield decisions.Read()))


def _leftovers_stay(*_: Any) -> Any:
    driver = yield decisions.Fence()
    last = yield decisions.Read()
    if last is not None and not last.completed:
        yield decisions.Commit(last.transactions)
        last = replace(last, completed=True)
        yield decisions.Record(driver, last)
    return Begun(driver, last)


def _aborted_after_the_decision(_: Begun, results: list[TaskWritten]) -> Any:
    yield decisions.Abort(tuple(each.transaction for each in results if each.transaction))


def _completion_not_recorded(*_: Any) -> Any:
    driver = yield decisions.Fence()
    last = yield decisions.Read()
    if last is not None and not last.completed and (yield decisions.Commit(last.transactions)):
        raise Refused
    left_open = yield decisions.ListOpen()
    yield decisions.Abort(tuple(left_open))
    return Begun(driver, last)


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("finish", _recorded_after_the_commit),
        ("begin", _not_completed_by_the_next_driver),
        ("begin", _leftovers_stay),
        ("begin", _completion_not_recorded),
        ("is_written", lambda *_: False),
        ("abandon", _aborted_after_the_decision),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_planted_bugs_are_found(monkeypatch: pytest.MonkeyPatch, name: str, bug: Callable[..., Any]) -> None:
    monkeypatch.setattr(decisions, name, bug)
    monkeypatch.setattr(decisions, "TURNS", 1)
    with pytest.raises((AssertionError, Refused)):
        kills_at_any_two_points(3, 2, 1)


# ---- refusals


def decided(brokers: Brokers, checkpoint: Checkpoint) -> None:
    """Kills a driver right after its first decision."""
    for point in driver(brokers, checkpoint, 3):
        if point == "after Record":
            return


def test_a_decided_transaction_that_timed_out_stops_the_query() -> None:
    brokers, checkpoint = Brokers(), Checkpoint()
    decided(brokers, checkpoint)
    brokers.time_out("ottla-spark/q/1/0/0")
    for _ in range(2):
        with pytest.raises(Refused, match=r"batch 0 was decided, but .* aborted 1 of its 3 .*: ottla-spark/q/1/0/0"):
            run(driver(brokers, checkpoint, 3))
    run(driver(brokers, checkpoint, 2, confirmed="skip 0"))
    lost = rows_of(0)[1::3]
    assert sorted(brokers.visible) == sorted({row for batch in range(3) for row in rows_of(batch)} - set(lost))


def test_a_batch_with_lost_transactions_can_be_written_again() -> None:
    brokers, checkpoint = Brokers(), Checkpoint()
    decided(brokers, checkpoint)
    brokers.time_out("ottla-spark/q/1/0/0")
    for _ in range(2):  # the second run has nothing to write, although the option stays
        run(driver(brokers, checkpoint, 2, confirmed="rewrite 0"))
    doubled = rows_of(0)[0::3] + rows_of(0)[2::3]
    assert sorted(brokers.visible) == sorted([row for batch in range(3) for row in rows_of(batch)] + doubled)


@pytest.mark.parametrize("aborted", [0, 1, 3])
def test_a_decided_batch_whose_ids_are_forgotten_may_be_complete_or_not(aborted: int) -> None:
    """After a week the coordinators don't know the ids any more, and a person has to look. Before the fix, the message
    said that the transactions had been aborted, although they may have been committed."""
    brokers, checkpoint = Brokers(), Checkpoint()
    names = [f"ottla-spark/q/{task}/0/0" for task in range(3)]
    if aborted:
        decided(brokers, checkpoint)
        for name in names[:aborted]:
            brokers.time_out(name)
        brokers.forget(*names[:aborted])
    else:
        script = driver(brokers, checkpoint, 3)
        while next(script) != "after Commit" or len(brokers.visible) < ROWS:
            pass
        script.close()
        brokers.forget(*names)
    with pytest.raises(Refused) as refusal:
        run(driver(brokers, checkpoint, 3))
    said = str(refusal.value)
    assert f"have forgotten {aborted or 3} of its 3 transactions" in said
    assert "were aborted" not in said, "nobody knows"
    assert "the batch's 6 rows" in said
    run(driver(brokers, checkpoint, 2, confirmed="rewrite 0" if aborted == 3 else "skip 0"))
    missing = rows_of(0)[0::3] if aborted == 1 else []
    assert sorted(brokers.visible) == sorted({row for batch in range(3) for row in rows_of(batch)} - set(missing))


def test_an_id_that_was_forgotten_and_used_again_does_not_tell_that_its_transaction_was_aborted() -> None:
    """All transactions of the batch were committed, and their ids were forgotten. Then a task of an older driver, which
    was still running, initialised one of the ids anew."""
    brokers, checkpoint = Brokers(), Checkpoint()
    script = driver(brokers, checkpoint, 3)
    while next(script) != "after Commit" or len(brokers.visible) < ROWS:
        pass
    script.close()
    names = [f"ottla-spark/q/{task}/0/0" for task in range(3)]
    brokers.forget(*names)
    brokers.initialise(names[1])
    with pytest.raises(Refused) as refusal:
        run(driver(brokers, checkpoint, 3))
    assert "have forgotten 3 of its 3 transactions" in str(refusal.value)
    assert "aborted" not in str(refusal.value)


def test_what_is_known_to_be_aborted_is_told_beside_what_is_forgotten() -> None:
    brokers, checkpoint = Brokers(), Checkpoint()
    decided(brokers, checkpoint)
    first, second = "ottla-spark/q/0/0/0", "ottla-spark/q/1/0/0"
    brokers.time_out(first)
    brokers.time_out(second)
    brokers.forget(first)
    told = f"forgotten 1 of its 3 .*: {first}.* Of the others, 1 timed out and was aborted: {second}"
    with pytest.raises(Refused, match=told):
        run(driver(brokers, checkpoint, 3))


def test_a_transaction_that_timed_out_before_the_decision_only_fails_the_batch() -> None:
    brokers, checkpoint = Brokers(), Checkpoint()
    script = driver(brokers, checkpoint, 3)
    while next(script) != "before Describe":
        pass
    brokers.time_out("ottla-spark/q/1/0/0")
    with pytest.raises(Failed, match="ottla-spark/q/1/0/0 of batch 0 is no longer open"):
        run(script)
    run(driver(brokers, checkpoint, 3))
    check_all(brokers)


def test_a_batch_that_took_too_long_is_not_decided() -> None:
    begun = Begun(Transaction("d", 1, 0), None)
    results = [TaskWritten("one", 4, 0, 1, Transaction("t", 2, 0))]
    with pytest.raises(Failed, match=r"batch 4 took almost as long .*: raise kafka\.transaction\.timeout\.ms"):
        next(decisions.finish(begun, 4, results, True, ""))


def test_a_new_checkpoint_under_an_old_name_is_refused_before_it_disturbs_the_query() -> None:
    brokers = Brokers()
    run(driver(brokers, Checkpoint(), 2))
    producer = replace(brokers.ids[decisions.driver_id(QUERY)])
    with pytest.raises(Refused, match="that checkpoint's query id is 'one', and this one's is 'two'"):
        run(driver(brokers, Checkpoint("two"), 2))
    assert brokers.ids[decisions.driver_id(QUERY)] == producer
    checkpoint = Checkpoint("two")
    for last in ("one", "two"):
        assert brokers.ledger[-1].query_id == last
        run(driver(brokers, checkpoint, 2, confirmed="replace one"))  # the option may stay
    assert set(Counter(brokers.visible).values()) == {2}
    assert brokers.ledger[-1].query_id == "two"


def test_a_checkpoint_that_was_set_back_is_refused() -> None:
    brokers, checkpoint = Brokers(), Checkpoint()
    run(driver(brokers, checkpoint, 2))
    with pytest.raises(Refused, match="batch 1 comes again after batch 2 was written"):
        run(driver(brokers, Checkpoint(committed=0), 2))


def test_a_written_batch_that_comes_again_with_other_rows_is_refused() -> None:
    last = Decision("one", 7, 100, (), True)
    begun, results = Begun(Transaction("d", 1, 0), last), [TaskWritten("one", 7, 0, 90, None)]
    with pytest.raises(Refused, match=r"written with 100 rows, and comes again with 90: .*confirm = 'skip 7'"):
        list(decisions.finish(begun, 7, results, False, ""))
    assert list(decisions.finish(begun, 7, results, False, "skip 7")) == []


def test_results_of_another_batch_are_not_decided() -> None:
    begun = Begun(Transaction("d", 1, 0), None)
    with pytest.raises(Failed, match="don't belong to batch 5"):
        next(decisions.finish(begun, 5, [TaskWritten("one", 4, 0, 1, None)], False, ""))


# ---- names and records


def test_ids_of_other_queries_are_told_apart() -> None:
    names = ["a", "a/0", "a/0/0", "a/0/0/0", "a/driver", "b"]
    drivers = [Transaction("d", 1, epoch) for epoch in (0, 1)]
    ids = {
        name: {
            decisions.task_id(name, task, attempt, driver)
            for task in (0, 10)
            for attempt in (0, 1)
            for driver in drivers
        }
        for name in names
    }
    every = [each for name in names for each in (*ids[name], decisions.driver_id(name))]
    assert len(set(every)) == len(every)
    for name in names:
        assert {each for each in every if decisions.is_task_of(name, each)} == ids[name]


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"version":2}', b'{"version":1,"queryId":"a","batch":"x"}'])
def test_a_record_of_another_form_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="a record of decisions can't be read"):
        decisions.from_json(value)
