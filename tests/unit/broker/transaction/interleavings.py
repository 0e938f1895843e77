"""Plays of producers of one transactional id, whose requests and answers are delayed, repeated and lost.

A play is made from one seed. Producers run transactions, crash, and are followed by new producers of the same id, while
older ones may still be alive. Meanwhile the coordinator's appends fail or wait for their commits, its leadership moves,
markers are written late, and transactions time out. `mistakes` then reads the committed records, and what producers
were told:

1. By the newer protocol, each transaction has a producer id and epoch of its own.
2. A transaction is made by requests of one transaction of one producer, and ended by the coordinator or by the same
   producer's request to end this transaction.
3. If a producer was told that its transaction was committed, then it was, once. If it was told that the transaction was
   aborted, or that its state doesn't allow to commit it, then it wasn't committed.
4. No two producers are given the same producer id and epoch.

After the play, a new producer gets its transaction through in bounded time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from ottla.broker.transaction.decision import Answer, Limits, Moment, Wanted
from ottla.broker.transaction.ending import Ending
from ottla.broker.transaction.initialization import Init, Producer
from ottla.broker.transaction.metadata import V2, TopicPartition, Transaction
from ottla.broker.transaction.records import id_key, read_value, value
from ottla.broker.transaction.shard import Plan, TransactionShard, encode
from ottla.broker.transaction.states import State
from ottla.protocol.errors import ErrorCode

NAME = "id"
TIMEOUT_MS = 10_000
PARTITIONS = [TopicPartition("t", index) for index in range(3)]
COORDINATOR = ("coordinator", 0)
NOBODY = Producer(-1, -1)
AGAIN = (
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)

Tag = tuple[str, int]  # a producer's name, and the number of its transaction


@dataclass(eq=False)
class Call:
    """A request, which may be sent several times."""

    client: Client | None
    tag: Tag
    ask: Init | Ending | TopicPartition
    present: Producer


@dataclass
class Run:
    """One transaction, as the committed records show it."""

    producer: tuple[int, int]
    tags: set[Tag] = field(default_factory=set)
    commits: bool | None = None
    ended_by: Tag | None = None


class Client:
    """A producer, with the one call that it waits for."""

    def __init__(self, play: Play, name: str) -> None:
        self.play = play
        self.name = name
        self.present: Producer | None = None
        self.number = 0
        self.begun = False
        self.gone = False
        self.call: Call | None = self._calls(Init(TIMEOUT_MS))

    def _calls(self, ask: Init | Ending | TopicPartition) -> Call:
        return Call(self, (self.name, self.number), ask, self.present or NOBODY)

    def act(self) -> None:
        """Sends the present call (once more), or goes on to the next one."""
        rng = self.play.rng
        if self.call is None:
            self.call = self._next(rng)
        self.play.network.append(("call", self.call, Answer()))

    def _next(self, rng: Random) -> Call:
        assert self.present is not None
        if rng.random() < 0.06:  # after an error, the producer goes on in another epoch
            self.begun = False
            return self._calls(Init(TIMEOUT_MS, self.present))
        if not self.begun:
            self.number += 1
            self.begun = True
            return self._calls(rng.choice(PARTITIONS))
        if rng.random() < 0.3:
            return self._calls(rng.choice(PARTITIONS))
        return self._calls(Ending(*self.present, rng.random() < 0.6, self.play.version))

    def answered(self, call: Call, answer: Answer) -> None:
        """Takes an answer, if it is to the present call."""
        if call is not self.call or answer.error in AGAIN:
            return
        self.call = None
        ask = call.ask
        if answer.error is not ErrorCode.none:
            if isinstance(ask, Ending) and answer.error is ErrorCode.invalid_txn_state and ask.commit:
                self.play.told.append((call.tag, False))
            self.gone = True
            return
        if isinstance(ask, Ending):
            self.begun = False
            self.play.told.append((call.tag, ask.commit))
        if isinstance(ask, Init) or (isinstance(ask, Ending) and self.play.version == V2):
            self.present = Producer(answer.producer_id, answer.epoch)
            self.play.given.setdefault(self.present, set()).add(self.name)


class Play:
    """One play. `version` is the protocol that the producers speak."""

    def __init__(self, seed: int, version: int) -> None:
        self.rng = Random(seed)
        self.version = version
        self.level = self.rng.choice((0, 1, 2)) if version != V2 else 2
        self.now_ms = 1_000
        self.network: list[tuple[str, Call, Answer]] = []
        self.given: dict[Producer, set[str]] = {}
        self.told: list[tuple[Tag, bool]] = []
        self.log: list[tuple[bytes, bytes | None]] = []
        self.makers: list[Tag] = []  # of each record
        self.waiting: list[tuple[int, Call, Answer]] = []
        self.high_watermark = 0
        self.producer_ids = 100
        self.clients: list[Client] = []
        self.born = 0
        if self.rng.random() < 0.3:  # few epochs are left
            begun = Transaction(1, 32_760, TIMEOUT_MS, State.EMPTY, frozenset(), 0)
            self.log.append((id_key(NAME), value(begun, 1)))
            self.makers.append(COORDINATOR)
        self.high_watermark = len(self.log)
        self.shard = TransactionShard(Limits())
        self._load()

    def run(self, steps: int) -> None:
        """Plays `steps` random steps."""
        actions: list[tuple[int, Callable[[], None]]] = [
            (12, self._a_producer_acts),
            (12, self._a_message_arrives),
            (6, self._records_are_committed),
            (6, self._markers_are_written),
            (1, self._a_message_is_repeated),
            (1, self._a_message_is_lost),
            (1, self._a_producer_is_born),
            (1, self._time_passes),
            (1, self._the_leadership_moves),
        ]
        weights = [weight for weight, _ in actions]
        for _ in range(steps):
            self.rng.choices([action for _, action in actions], weights)[0]()

    def finish(self) -> int:
        """A new producer's transaction without further faults: how many requests it took. Raises AssertionError if it
        doesn't get through."""
        present: Producer | None = None
        asks: list[Init | Ending | TopicPartition] = [Init(TIMEOUT_MS), PARTITIONS[0]]
        for count in range(1, 30):
            self._commit_all()
            ask = asks[0] if asks else Ending(*(present or NOBODY), True, self.version)
            answers: list[Answer] = []
            self._serve(Call(None, ("last", 0), ask, present or NOBODY), answers.append)
            self._commit_all()
            answer = answers[0]
            if answer.error is ErrorCode.none:
                if isinstance(ask, Init):
                    present = Producer(answer.producer_id, answer.epoch)
                if not asks:
                    return count
                del asks[0]
            assert answer.error is ErrorCode.none or answer.error in AGAIN, answer
        raise AssertionError("a new producer doesn't get its transaction through")

    # --- steps ---

    def _a_producer_acts(self) -> None:
        alive = [client for client in self.clients if not client.gone]
        if alive:
            self.rng.choice(alive[-2:]).act()
        else:
            self._a_producer_is_born()

    def _a_producer_is_born(self) -> None:
        self.born += 1
        self.clients.append(Client(self, f"producer {self.born}"))

    def _a_message_arrives(self) -> None:
        if not self.network:
            return
        # Mostly the latest ones: those that stay are late for later transactions.
        index = max(self.rng.randrange(len(self.network)) for _ in range(3))
        self._arrive(*self.network.pop(index))

    def _arrive(self, kind: str, call: Call, answer: Answer) -> None:
        if kind == "answer":
            if call.client is not None and not call.client.gone:
                call.client.answered(call, answer)
            return
        self._serve(call, lambda answer: self.network.append(("answer", call, answer)))

    def _a_message_is_repeated(self) -> None:
        calls = [message for message in self.network if message[0] == "call"]
        if calls:
            self.network.insert(0, self.rng.choice(calls))

    def _a_message_is_lost(self) -> None:
        if self.network:
            del self.network[self.rng.randrange(len(self.network))]

    def _records_are_committed(self) -> None:
        self.high_watermark = min(self.high_watermark + self.rng.randint(1, 2), len(self.log))
        self._committed()

    def _markers_are_written(self) -> None:
        for markers in list(self.shard.markers.values()):
            for partition in sorted(markers.missing):
                if self.rng.random() < 0.7:
                    markers.answered(partition, self.rng.choice((ErrorCode.none, ErrorCode.not_leader_or_follower)))
            self._append(self.shard.complete(markers, self._moment()), COORDINATOR)

    def _time_passes(self) -> None:
        self.now_ms += self.rng.choice((1, 1_000, TIMEOUT_MS))
        for name in self.shard.overdue(self.shard.open_ids(), self.now_ms):
            plan = self.shard.abort_overdue(name, self._moment(), self._unused())
            assert plan is None or isinstance(plan, Plan)
            self._append(plan, COORDINATOR)

    def _the_leadership_moves(self) -> None:
        kept = self.rng.randint(self.high_watermark, len(self.log))
        del self.log[kept:], self.makers[kept:]
        self.high_watermark = kept
        self.waiting.clear()  # their answers never come
        self._load()

    # --- the coordinator ---

    def _load(self) -> None:
        self.shard = TransactionShard(Limits())
        for offset, (key, data) in enumerate(self.log):
            self.shard.replayed(key, data, offset, True)

    def _serve(self, call: Call, answer: Callable[[Answer], None]) -> None:
        shard, moment, ask = self.shard, self._moment(), call.ask
        plan: Plan | Wanted
        if isinstance(ask, Init):
            plan = shard.init_producer_id(NAME, ask, moment)
            if isinstance(plan, Wanted):
                plan = shard.init_producer_id(NAME, ask, moment, self._unused())
        elif isinstance(ask, Ending):
            plan = shard.end(NAME, ask, moment)
            if isinstance(plan, Wanted):
                plan = shard.end(NAME, ask, moment, self._unused())
        else:
            plan = shard.add_partitions(NAME, call.present, {ask}, self.version, moment)
        assert isinstance(plan, Plan)
        # An InitProducerId aborts on the coordinator's behalf.
        offset = self._append(plan, COORDINATOR if isinstance(ask, Init) else call.tag)
        if plan.change is None:
            answer(plan.answer)
        elif offset is None:
            answer(Answer(ErrorCode.coordinator_not_available))
        elif call.client is None:
            self._commit_all()
            answer(plan.answer)
        else:
            self.waiting.append((offset, call, plan.answer))

    def _append(self, plan: Plan | None, maker: Tag) -> int | None:
        """The record's offset; None if nothing was appended."""
        if plan is None or plan.change is None:
            return None
        if self.rng.random() < 0.05:
            self.shard.append_failed([plan.change])
            return None
        self.log.append(encode(plan.change, self.level))
        self.makers.append(maker)
        self.shard.appended([plan.change], len(self.log) - 1)
        return len(self.log) - 1

    def _committed(self) -> None:
        self.shard.committed(self.high_watermark)
        for offset, call, answer in self.waiting:
            if offset < self.high_watermark:
                self.network.append(("answer", call, answer))
        self.waiting = [waits for waits in self.waiting if waits[0] >= self.high_watermark]

    def _commit_all(self) -> None:
        self.high_watermark = len(self.log)
        self._committed()
        for markers in list(self.shard.markers.values()):
            markers.missing.clear()
            self._append(self.shard.complete(markers, self._moment()), COORDINATOR)
        self.high_watermark = len(self.log)
        self._committed()

    def _moment(self) -> Moment:
        return Moment(self.now_ms, self.level)

    def _unused(self) -> int:
        self.producer_ids += 1
        return self.producer_ids

    # --- what is judged ---

    def runs(self) -> list[Run]:
        """The transactions that the committed records show, in their order."""
        runs: list[Run] = []
        before = State.EMPTY
        for (_, data), maker in zip(self.log[: self.high_watermark], self.makers, strict=False):
            assert data is not None
            transaction = read_value(data)
            assert transaction is not None
            if transaction.state is State.ONGOING:
                if before is not State.ONGOING:
                    runs.append(Run((transaction.producer_id, transaction.epoch)))
                runs[-1].tags.add(maker)
            elif transaction.prepared and before is State.ONGOING:
                runs[-1].commits, runs[-1].ended_by = transaction.commits, maker
            before = transaction.state
        return runs

    def mistakes(self) -> list[str]:
        """The rules of the module's docstring that the play broke."""
        runs, found = self.runs(), []
        if len({run.producer for run in runs}) < len(runs) and self.version == V2:
            found.append("two transactions have the same producer id and epoch")
        for run in runs:
            if len(run.tags) > 1:
                found.append(f"one transaction has partitions of several: {run.tags}")
            if run.ended_by not in {None, COORDINATOR, *run.tags}:
                found.append(f"the transaction of {run.tags} was ended by {run.ended_by}")
        for tag, commits in self.told:
            committed = sum(run.commits is True for run in runs if tag in run.tags)
            if committed != commits:
                found.append(f"{tag} was told committed={commits}, and was committed {committed} times")
        found += [f"{names} were given {producer}" for producer, names in self.given.items() if len(names) > 1]
        return found
